//! What is said of a store: in trouble, damaged, gone, swept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use store::Store as _;
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

/// Every command that needs the journal ends with 8, and names the version that is needed.
fn assert_newer(session: &Session, commands: &[&[&str]], what: &str) {
    let words = format!("{what} version 2, this program reads up to 1; use a sprag that reads version 2");
    for arguments in commands {
        let output = session.command(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.contains(&words)), (Some(8), true), "{arguments:?}: {said}");
    }
}

#[test]
fn a_segment_of_a_newer_version_is_refused_by_its_version() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    let run = ["run", "--model", "rehearsal:hello.json", "Say hello"];
    session.sprag(&run);
    let id = session.newest();
    // A head is its length, the checksum of its place and content, a tag and the version.
    let segment = session.data().join("journal/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[9] = 2;
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let place = [1u64.to_le_bytes(), 0u64.to_le_bytes()].concat();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&place), &bytes[8..8 + len]);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&segment, bytes).unwrap();
    let salvage = ["doctor", "--salvage"];
    let commands = [&run[..], &["resume"], &["ls"], &["show", &id], &["journal", &id], &["verify"], &salvage];
    assert_newer(&session, &commands, &format!("{} has format", segment.display()));
}

#[test]
fn a_record_of_a_newer_version_is_refused_by_its_version() {
    let session = Session::new();
    session.file("endless.json", ENDLESS);
    let mut owner = session.start(&["run", "--model", "rehearsal:endless.json", "Wait"]);
    session.wait_for_owner();
    signal(&owner, Signal::INT);
    owner.wait().unwrap();
    let id = session.newest();
    let run: model::RunId = id.parse().unwrap();
    // What a later program has written: the next record of the run, and the state after it.
    let store = store::JournalStore::open(&session.data(), store::Options::default()).unwrap();
    let loaded = store.load(store::RunKey(run.0)).unwrap();
    let newer = |bytes: &[u8]| [&[2], &bytes[1..]].concat();
    let newest = store.read_journal(store::Stream::Run(store::RunKey(run.0)), 0, usize::MAX).unwrap();
    let newest = newest.last().unwrap();
    let later = store::Commit {
        stream: newest.stream,
        expect_seq: newest.head.seq + 1,
        epoch: store.claim().unwrap(),
        at_ms: newest.at_ms,
        logic_version: newest.logic_version,
        kind: store::RecordKind { carries_messages: true, ..newest.kind },
        payload: newer(newest.payload.as_ref().unwrap()),
        puts: loaded
            .values
            .iter()
            .filter(|(key, _)| key.last() == Some(&b'c'))
            .map(|(key, value)| store::Put { key: key.clone(), value: Some(newer(value)) })
            .collect(),
        state_hash: newest.state_hash,
        requires: Vec::new(),
        durability: store::Durability::Durable,
    };
    store.commit(later).wait().unwrap();
    store.close().unwrap();
    assert_newer(&session, &[&["journal", &id], &["transcript", &id], &["replay", &id]], "a record has");
    assert_newer(&session, &[&["show", &id], &["resume"]], "has");
    // Its bytes are as they should be.
    assert_eq!(status(&session.command(&["verify"]).output().unwrap()), "0");
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
fn the_doctor_misses_an_end_that_is_gone_as_a_whole() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    let run = ["run", "--model", "rehearsal:hello.json", "Say hello"];
    session.sprag(&run);
    let segment = session.data().join("journal/00000001.seg");
    let whole = std::fs::read(&segment).unwrap();
    let before: Vec<_> =
        std::fs::read_dir(session.data()).unwrap().map(|entry| entry.unwrap().path()).collect();
    session.sprag(&run);
    // The segment of the second run never was, as far as the journal can tell.
    std::fs::remove_file(session.data().join("journal/00000002.seg")).unwrap();
    assert_eq!(std::fs::read(&segment).unwrap(), whole);
    assert_eq!(session.command(&["verify"]).output().unwrap().status.code(), Some(0));
    let refused = session.command(&run).output().unwrap();
    let words = String::from_utf8(refused.stderr).unwrap();
    let words = words.trim_end().strip_prefix("error: ").unwrap();
    assert_eq!(
        (refused.status.code(), words.starts_with("the journal ends at frame ")),
        (Some(8), true),
        "{words}"
    );
    let ill = session.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8(ill.stdout).unwrap();
    assert_eq!((ill.status.code(), text.contains(words)), (Some(8), true), "{text}\n{words}");
    let after: Vec<_> =
        std::fs::read_dir(session.data()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(after, before, "the doctor leaves nothing behind");
    // That is nothing a salvage could mend.
    let salvaged = session.command(&["doctor", "--salvage"]).output().unwrap();
    let text = String::from_utf8(salvaged.stdout).unwrap();
    let missing =
        "records that were acknowledged are missing at the end: what they did may be done again\nnext: ";
    assert_eq!((salvaged.status.code(), text.contains(missing)), (Some(8), true), "{text}");
    // Who has no copy goes on without.
    let rebuilt = session.command(&["doctor", "--rebuild"]).output().unwrap();
    let text = String::from_utf8(rebuilt.stdout).unwrap();
    assert!(text.contains("ok    state          built from ") && !text.contains("bad   state"), "{text}");
    assert_eq!(status(&session.command(&run).output().unwrap()), "0");
}

#[test]
fn a_salvage_beside_an_engine_is_refused_with_who_holds_the_directory() {
    let session = Session::new();
    session.file("endless.json", ENDLESS);
    let mut owner = session.start(&["run", "--model", "rehearsal:endless.json", "Wait"]);
    session.wait_for_owner();
    session.wait_for("stream(turn 1");
    let files = || std::fs::read(session.data().join("journal/00000001.seg")).unwrap();
    let before = files();
    let refused = session.command(&["doctor", "--salvage"]).output().unwrap();
    let words = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout), (Some(8), Vec::new()), "{words}");
    for holder in [owner.id().to_string(), "run --model rehearsal:endless.json Wait".to_owned()] {
        assert!(words.contains(&holder), "{holder}: {words}");
    }
    assert!(files() == before, "the journal was changed");
    signal(&owner, Signal::INT);
    owner.wait().unwrap();
}

#[test]
fn a_salvage_says_which_runs_go_on_without_the_messages_of_a_torn_one() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.file("endless.json", ENDLESS);
    let run = |session: &mut Session, prompt| {
        session.sprag(&["run", "--model", "rehearsal:hello.json", "--session", "s", prompt]);
        session.newest()
    };
    let first = run(&mut session, "first");
    let second = run(&mut session, "second");
    let arguments = ["run", "--model", "rehearsal:endless.json", "--session", "s", "third"];
    let mut owner = session.start(&arguments);
    session.wait_for_owner();
    let third = session.wait_for("stream(turn 1");
    signal(&owner, Signal::INT);
    owner.wait().unwrap();
    damage(&session, "I look around.");

    let ill = session.command(&["doctor"]).output().unwrap();
    let text = String::from_utf8(ill.stdout).unwrap();
    let losses =
        "2 runs are whole, 1 miss records; 1 that have not ended would go on without messages of these";
    assert_eq!((ill.status.code(), text.contains(losses)), (Some(3), true), "{text}");
    let saved = session.command(&["doctor", "--salvage"]).output().unwrap();
    let text = String::from_utf8(saved.stdout).unwrap();
    let goes_on = format!("run {third} goes on without the messages of run {first}\n");
    assert_eq!((saved.status.code(), text.ends_with(&goes_on)), (Some(0), true), "{text}");

    // What is whole reads as ever, and the session goes on from it.
    assert_eq!(status(&session.command(&["verify"]).output().unwrap()), "0");
    for whole in [&second, &third] {
        assert_eq!(status(&session.command(&["replay", whole]).output().unwrap()), "0");
    }
    assert_eq!(status(&session.command(&["cancel", &third]).output().unwrap()), "0");
    run(&mut session, "fourth");
    let shown = session.command(&["show", &session.newest(), "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["status"], "completed");
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
