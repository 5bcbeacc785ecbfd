//! What is said of a store: in trouble, damaged, gone, swept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use support::{ENDLESS, HELLO, Session, signal, status};

/// Changes the first place of the journal's first segment in which a text stands.
fn damage(session: &Session, text: &str) -> PathBuf {
    let segment = session.data().join("journal/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    segment
}

#[test]
fn gc_forgets_what_has_ended_with_and_without_an_owner() {
    let session = Session::new();
    session.file("hello.json", HELLO);
    session.file("endless.json", ENDLESS);
    let gc = |arguments: &[&str]| -> Value {
        let output = session.command(&[&["gc", "--json"], arguments].concat()).output().unwrap();
        assert_eq!(status(&output), "0", "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let said =
        |told: &Value| (told["runs"].clone(), told["bytes"].as_u64() > Some(1000), told["dry_run"].clone());
    let nothing = (Value::from(0), false, Value::from(false));
    assert_eq!(said(&gc(&["--keep", "0"])), nothing);
    for prompt in ["one", "two"] {
        assert_eq!(
            status(&session.command(&["run", "--model", "rehearsal:hello.json", prompt]).output().unwrap()),
            "0"
        );
    }
    assert_eq!(said(&gc(&["--keep", "1", "--dry-run"])), (Value::from(1), true, Value::from(true)));
    assert_eq!(
        said(&gc(&["--keep", "1", "--status", "completed"])),
        (Value::from(1), true, Value::from(false))
    );
    assert_eq!(said(&gc(&["--older-than", "7d"])), nothing);
    let mut owner = session.start(&["run", "--model", "rehearsal:endless.json", "three"]);
    session.wait_for_owner();
    assert_eq!(said(&gc(&["--keep", "0"])), (Value::from(1), true, Value::from(false)));
    let rows = session.command(&["ls", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&rows.stdout).unwrap();
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    signal(&owner, Signal::INT);
    owner.wait().unwrap();
    let verified = session.command(&["verify", "--json"]).output().unwrap();
    let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!((&verified["findings"], &verified["purged"]), (&Value::Array(vec![]), &Value::from(2)));
    assert_eq!(status(&session.command(&["gc"]).output().unwrap()), "2");
    assert_eq!(status(&session.command(&["gc", "--status", "parked"]).output().unwrap()), "2");
}

#[test]
fn a_store_in_trouble_says_so() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    let run = ["run", "--model", "rehearsal:hello.json", "x"];
    session.sprag(&[&["--data", "/sys/sprag"], &run[..]].concat());
    session.sprag(&[&["--data", "/dev/null"], &run[..]].concat());
    session.sprag(&["--data", "/dev/null", "ls"]);
    session.command(&run).output().unwrap();
    let id = session.newest();

    damage(&session, "tool_limits");
    for arguments in [vec!["ls"], vec!["verify"], vec!["replay", &id], vec!["transcript", &id]] {
        session.sprag(&arguments);
    }
    session.check("trouble.txt");
}

#[test]
fn a_journal_that_is_gone_is_missed() {
    let session = Session::new();
    session.file("hello.json", HELLO);
    session.command(&["run", "--model", "rehearsal:hello.json", "x"]).output().unwrap();
    std::fs::remove_dir_all(session.data().join("journal")).unwrap();
    for arguments in [vec!["ls"], vec!["resume"], vec!["run", "--model", "rehearsal:hello.json", "x"]] {
        let output = session.command(&arguments).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains("data is missing; restore"), "{arguments:?}: {words}");
        assert_eq!(output.status.code(), Some(8), "{arguments:?}");
    }
}

#[test]
fn the_doctor_names_what_is_wrong_and_rebuilds_the_state() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.sprag(&["run", "--model", "rehearsal:hello.json", "Say hello"]);
    let run = session.newest();
    let shown = session.command(&["show", &run, "--json"]).output().unwrap().stdout;
    let mut doctor = session.command(&["doctor", "--rebuild", "--json"]);
    let healthy = doctor.env("PATH", std::env::var_os("PATH").unwrap()).output().unwrap();
    assert_eq!(healthy.status.code(), Some(0));
    let checks: Vec<Value> = serde_json::from_slice(&healthy.stdout).unwrap();
    let about: Vec<&str> = checks.iter().map(|check| check["about"].as_str().unwrap()).collect();
    let looked_at = ["directory", "owner", "space", "sync", "journal", "bash", "processes", "descriptors"];
    assert_eq!(about, [&looked_at[..], &["configuration", "state"]].concat());
    assert_eq!(session.command(&["show", &run, "--json"]).output().unwrap().stdout, shown);

    let segment = session.data().join("journal/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let ill = session.command(&["doctor"]).output().unwrap();
    assert_eq!(ill.status.code(), Some(3));
    let text = String::from_utf8(ill.stdout).unwrap();
    assert!(text.contains("bad   journal"), "{text}");
}

#[test]
fn a_damaged_run_is_named_the_others_are_read_and_a_salvage_saves_them() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    let mut runs = Vec::new();
    for name in ["first", "second"] {
        session.sprag(&["run", "--model", "rehearsal:hello.json", "--session", name, "Say hello"]);
        runs.push(session.newest());
    }
    let [damaged, whole] = &runs[..] else { panic!("two runs") };
    let shown = session.command(&["show", whole, "--json"]).output().unwrap().stdout;
    let segment = damage(&session, "I look around.");

    let listed = session.command(&["ls"]).output().unwrap();
    let (rows, said) = (String::from_utf8(listed.stdout).unwrap(), String::from_utf8(listed.stderr).unwrap());
    assert_eq!((listed.status.code(), rows.lines().count()), (Some(0), 1), "{rows}");
    assert!(rows.starts_with(whole.as_str()), "{rows}");
    assert!(said.starts_with("1 damaged run left out; `sprag "), "{said}");
    assert_eq!(session.command(&["show", whole, "--json"]).output().unwrap().stdout, shown);
    for command in ["show", "why", "transcript", "journal"] {
        let refused = session.command(&[command, damaged]).output().unwrap();
        assert_eq!(refused.status.code(), Some(8), "{command}");
        assert!(String::from_utf8(refused.stderr).unwrap().contains("damage in "), "{command}");
    }

    let saved = session.command(&["doctor", "--salvage", "--json"]).output().unwrap();
    assert_eq!(saved.status.code(), Some(0));
    let saved: Value = serde_json::from_slice(&saved.stdout).unwrap();
    assert_eq!(saved["losses"]["whole"], 1);
    assert_eq!(saved["losses"]["torn"][0]["run"], damaged.as_str());
    assert_eq!(saved["losses"]["torn"][0]["session"], "first");
    assert!(segment.with_extension("seg.damaged").is_file());
    assert_eq!(session.command(&["verify"]).output().unwrap().status.code(), Some(0));
    assert_eq!(session.command(&["show", whole, "--json"]).output().unwrap().stdout, shown);
    session.sprag(&["run", "--model", "rehearsal:hello.json", "Say hello"]);
    assert_eq!(session.command(&["verify"]).output().unwrap().status.code(), Some(0));
    let again = session.command(&["doctor", "--salvage"]).output().unwrap();
    assert_eq!(String::from_utf8(again.stdout).unwrap(), "nothing to mend\n2 runs whole\n");
}
