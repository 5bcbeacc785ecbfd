//! The command line: whole sessions against reviewed texts, and what a running engine answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use support::{ENDLESS, HELLO, SLOW, Session, read_until, signal, status};

const COMMANDS: [&str; 23] = [
    "run",
    "resume",
    "stop",
    "ls",
    "show",
    "why",
    "transcript",
    "events",
    "journal",
    "steer",
    "follow-up",
    "cancel",
    "approve",
    "deny",
    "resolve",
    "release",
    "extend",
    "replay",
    "verify",
    "loops",
    "doctor",
    "bench",
    "gc",
];

#[test]
fn every_command_explains_itself_with_one_example() {
    let mut session = Session::new();
    session.sprag(&["--help"]);
    for command in COMMANDS {
        let help = session.sprag(&[command, "-h"]);
        assert_eq!(String::from_utf8_lossy(&help.stdout).matches("Example:").count(), 1, "{command}");
    }
    let help = session.sprag(&["batch", "run", "-h"]);
    assert_eq!(String::from_utf8_lossy(&help.stdout).matches("Example:").count(), 1, "batch run");
    let help = session.sprag(&["doctor", "models", "-h"]);
    assert_eq!(String::from_utf8_lossy(&help.stdout).matches("Example:").count(), 1, "doctor models");
    session.check("help.txt");
}

#[test]
fn a_run_can_be_read_in_every_way() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.sprag(&[
        "run",
        "--model",
        "rehearsal:hello.json",
        "--session",
        "s",
        "--label",
        "team=a",
        "Say hello",
    ]);
    let run = session.newest();
    session.sprag(&["ls"]);
    session.sprag(&["ls", "--json"]);
    session.sprag(&["ls", "--status", "parked"]);
    for command in ["show", "why", "transcript", "events", "journal", "replay", "verify"] {
        session.sprag(&[command, &run]);
        session.sprag(&[command, &run, "--json"]);
    }
    session.sprag(&["replay", &run, "--at", "5"]);
    session.sprag(&["replay", &run, "--at", "12"]);
    session.sprag(&["ls", "--limit", "0"]);
    session.sprag(&["events", &run, "--from", "9"]);
    assert_eq!(status(&session.command(&["show", &run[..6]]).output().unwrap()), "0");
    session.check("read.txt");
}

#[test]
fn events_are_the_same_from_events_replay_and_the_run_itself() {
    let session = Session::new();
    session.file("hello.json", HELLO);
    let lines = |arguments: &[&str]| -> Vec<String> {
        let output = session.command(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // Live updates have no place.
        text.lines().filter(|line| line.contains("\"seq\":")).map(str::to_owned).collect()
    };
    let watched = lines(&["run", "--json", "--model", "rehearsal:hello.json", "Say hello"]);
    let run = session.newest();
    assert_eq!(watched.len(), 20);
    assert_eq!(lines(&["events", &run, "--json"]), watched);
    assert_eq!(lines(&["replay", &run, "--events", "--json"]), watched);
    assert_eq!(lines(&["run", "--json", "--model", "rehearsal:hello.json", "--key", "k", "x"]).len(), 20);
    let again = lines(&["run", "--json", "--model", "rehearsal:hello.json", "--key", "k", "x"]);
    assert_eq!(again, lines(&["events", &session.newest(), "--json"]));
    assert_eq!(session.model_calls(), [(0, 0), (1, 0), (0, 0), (1, 0)]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_the_next_step() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.file("cut.json", r#"{"turns":["#);
    session.file("typo.json", r#"{"turns":[{"txt":"a"}]}"#);
    session.file("broken.toml", "[defaults]\nmax_turn = 3\n");
    let model = ["--model", "rehearsal:hello.json"];
    let with = |arguments: &[&'static str]| [&["run"][..], &model[..], arguments].concat();
    for arguments in [
        vec!["run", "--bogus", "x"],
        vec!["dance"],
        vec!["run", "x"],
        vec!["run", "--model", "nope", "x"],
        vec!["run", "--model", "rehearsal:cut.json", "x"],
        vec!["run", "--model", "rehearsal:typo.json", "x"],
        vec!["run", "--model", "rehearsal:gone.json", "x"],
        with(&["--workspace", "nowhere", "x"]),
        with(&["--tools", "hammer", "x"]),
        with(&["--timeout", "3y", "x"]),
        with(&["--thinking", "lots", "x"]),
        with(&["--max-usd", "lots", "x"]),
        with(&["--label", "x", "y"]),
        with(&["--record", "dir", "x"]),
        with(&[" "]),
        with(&["--config", "broken.toml", "x"]),
        with(&["--config", "gone.toml", "x"]),
        vec!["config", "show", "--origin"],
        vec!["ls", "--status", "dancing"],
        vec!["approve", "abc"],
        vec!["extend", "abc"],
        vec!["resolve", "abc/0.0", "--as", "ran"],
        // As `why` suggests it.
        vec!["resolve", "abc/0.0", "--as", "ran|failed|retry|undone", "--reason", "..."],
        vec!["events", "abc", "--from", "x"],
        vec!["loops", "gone.jsonl"],
        vec!["show", "abc"],
        vec!["why", "xyz"],
        vec!["steer", "abc", "x"],
        vec!["cancel", "abc"],
        vec!["transcript", "abc"],
        vec!["stop"],
        vec!["resume"],
        vec!["resume", "abc"],
        vec!["verify"],
        vec!["ls"],
    ] {
        session.sprag(&arguments);
    }
    assert_eq!(session.model_calls(), []);
    session.check("refused.txt");
}

#[test]
fn a_path_that_is_not_utf_8_is_refused_before_its_job_is_accepted() {
    let session = Session::new();
    session.file("hello.json", HELLO);
    session.file("jobs.jsonl", "{\"custom_id\":\"a\",\"prompt\":\"go\"}\n");
    let named = |name: &str| session.work().join(OsStr::from_bytes(&[name.as_bytes(), &[0xff]].concat()));
    let model = format!("rehearsal:{}", session.work().join("hello.json").display());
    let run = ["run", "--model", &model, "go"];
    fs::create_dir(named("nu")).unwrap();
    let mut in_workspace = session.command(&run);
    in_workspace.current_dir(named("nu"));
    let mut recorded = session.command(&run);
    recorded.arg("--record").arg(named("rec"));
    let mut batch = session.command(&["batch", "run", "jobs.jsonl", "--model", &model]);
    batch.env("SPRAG_DATA", named("data"));
    let refusals = [
        (in_workspace, "nu\u{fffd} is not UTF-8; use another workspace"),
        (recorded, "rec\u{fffd} is not UTF-8; name another directory to record in"),
        (batch, "data\u{fffd} is not UTF-8; use another data directory, or name a workspace for each job"),
    ];
    for (mut command, words) in refusals {
        let refused = command.output().unwrap();
        let said = String::from_utf8(refused.stderr.clone()).unwrap();
        assert_eq!(status(&refused), "2", "{said}");
        let place = session.work().display().to_string();
        assert!(said.contains(&format!("the path {place}/{words}")), "{said}");
    }
    assert!(!named("rec").exists());
    let listed = session.command(&["ls", "--json"]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().trim(), "[]");
}

#[test]
fn a_rehearsal_that_ends_fails_the_run_and_a_run_that_has_ended_takes_nothing() {
    let mut session = Session::new();
    session.file(
        "one.json",
        r#"{"turns":[{"text":"one","calls":[{"tool":"ls","args":{}}],"usage":{"input":9,"output":2}}]}"#,
    );
    session.sprag(&["run", "--model", "rehearsal:one.json", "x"]);
    let run = session.newest();
    for arguments in [
        vec!["why", &run],
        vec!["steer", &run, "x"],
        vec!["cancel", &run],
        vec!["resume", &run],
        vec!["approve", &format!("{run}/0.0")],
    ] {
        session.sprag(&arguments);
    }
    session.check("ended.txt");
}

#[test]
fn a_running_engine_is_asked_steered_followed_and_stopped() {
    let mut session = Session::new();
    session.file("endless.json", ENDLESS);
    let arguments = ["run", "--model", "rehearsal:endless.json", "--max-turns", "9", "go on"];
    let owner = session.start(&arguments);
    let run = session.wait_for("stream(turn 1, attempt 0, in_flight)");
    session.sprag(&["ls"]);
    session.sprag(&["why", &run]);
    session.sprag(&["steer", &run, "  "]);
    session.sprag(&["follow-up", &run, ""]);
    session.sprag(&["release", &run]);
    session.sprag(&["extend", &run, "--hours", "0"]);
    session.sprag(&["extend", &run, "--turns", "1", "--usd", "1"]);
    session.sprag(&["steer", &run, "faster", "--key", "s1"]);
    session.sprag(&["steer", &run, "faster", "--key", "s1"]);
    session.sprag(&["follow-up", &run, "then this", "--json", "--key", "f1"]);
    session.sprag(&["extend", &run, "--turns", "3", "--key", "e1"]);
    session.sprag(&["run", "--model", "rehearsal:endless.json", "another"]);
    session.sprag(&["resume"]);
    let mut following = session.start(&["events", &run, "--follow"]);
    let seen = read_until(&mut following, "7.4");
    session.sprag(&["stop"]);
    let mut followed = following.wait_with_output().unwrap();
    followed.stdout.splice(0..0, seen.into_bytes());
    session.note(&["events", &run, "--follow"], &followed);
    session.note(&arguments, &owner.wait_with_output().unwrap());
    session.sprag(&["why", &run]);
    session.sprag(&["cancel", &run, "--key", "c1"]);
    session.sprag(&["transcript", &run]);
    session.check("running.txt");
}

#[test]
fn a_budget_parks_a_run_and_the_command_it_names_lets_it_go_on() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.file(
        "sprag.toml",
        "[models.m]\napi = \"rehearsal\"\nfile = \"hello.json\"\nmax_output = 100\n\
         price = { input = 3.0, output = 15.0 }\n",
    );
    session.sprag(&["run", "--model", "m", "--max-usd", "0.0022", "Say hello"]);
    let run = session.newest();
    session.sprag(&["ls"]);
    session.sprag(&["extend", &run, "--hours", "1", "--key", "k1"]);
    session.sprag(&["resume"]);
    session.sprag(&["extend", &run, "--usd", "0.0022", "--key", "k2"]);
    session.sprag(&["extend", &run, "--usd", "0.0022", "--key", "k2"]);
    session.sprag(&["resume", &run]);
    session.sprag(&["journal", &run]);
    session.sprag(&["extend", &run, "--usd", "1", "--key", "k3"]);
    session.check("budget.txt");
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_the_model_is_told() {
    let session = Session::new();
    let call = r#"{"tool":"bash","args":{"command":"echo begun; sleep 300; echo late"}}"#;
    session.file("slow.json", &format!(r#"{{"turns":[{{"calls":[{call}]}},{{"text":"done"}}]}}"#));
    session.file("sprag.toml", "[tools.bash]\ntimeout_s = 1\n");
    let ended = session.command(&["run", "--model", "rehearsal:slow.json", "wait"]).output().unwrap();
    assert_eq!(status(&ended), "0");
    let told = session.command(&["transcript", &session.newest(), "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let result = told.as_array().unwrap().iter().find(|message| message["role"] == "toolResult").unwrap();
    assert_eq!((&result["isError"], &result["details"]["timedOut"]), (&true.into(), &true.into()));
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("begun\n") && !text.contains("late"), "{text}");
}

#[test]
fn a_follower_sees_the_end_of_a_run() {
    let session = Session::new();
    session.file("endless.json", ENDLESS);
    let owner = session.start(&["run", "--model", "rehearsal:endless.json", "go on"]);
    let run = session.wait_for("stream(turn 1, attempt 0, in_flight)");
    let mut following = session.start(&["events", &run, "--follow", "--json"]);
    read_until(&mut following, "turn_start");
    let cancelled = session.command(&["cancel", &run]).output().unwrap();
    assert_eq!(status(&cancelled), "0");
    let followed = following.wait_with_output().unwrap();
    let last = String::from_utf8(followed.stdout).unwrap().lines().last().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&last).unwrap()["type"], "agent_end");
    assert_eq!(followed.status.code(), Some(0));
    assert_eq!(status(&owner.wait_with_output().unwrap()), "5");
}

#[test]
fn a_killed_run_goes_on_without_repeating_what_was_done() {
    let mut session = Session::new();
    session.file("slow.json", SLOW);
    let arguments = ["run", "--model", "rehearsal:slow.json", "two steps"];
    let mut owner = session.start(&arguments);
    let run = session.wait_for("stream(turn 1, attempt 0, in_flight)");
    owner.kill().unwrap();
    session.note(&arguments, &owner.wait_with_output().unwrap());
    assert!(session.data().join("control.sock").exists());
    session.sprag(&["ls"]);
    session.sprag(&["why", &run]);
    session.sprag(&["events", &run, "--follow", "--from", "6"]);
    session.sprag(&["resume"]);
    session.sprag(&["ls"]);
    session.sprag(&["replay", &run]);
    session.sprag(&["verify"]);
    assert_eq!(session.model_calls().iter().filter(|call| **call == (0, 0)).count(), 1);
    session.check("killed.txt");
}

/// Five kills while an answer arrives: the batch goes on after each, and then holds the run back until somebody releases it.
#[test]
fn a_run_that_is_under_way_at_every_kill_is_quarantined() {
    let mut session = Session::new();
    session.file("slow.json", r#"{"turns":[{"text":"at last","chunk_chars":1,"chunk_ms":700}]}"#);
    session.file("jobs.jsonl", "{\"custom_id\":\"only\",\"prompt\":\"go\"}\n");
    let arguments = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:slow.json"];
    for life in 1..=5 {
        let mut owner = session.start(&arguments);
        session.wait_for_many("stream_opened", life);
        owner.kill().unwrap();
        owner.wait().unwrap();
    }
    session.sprag(&arguments);
    let run = session.newest();
    session.sprag(&["resume"]);
    session.sprag(&["why", &run]);
    session.sprag(&["release", &run]);
    session.sprag(&arguments);
    session.check("quarantined.txt");
}

#[test]
fn a_signal_stops_and_names_the_command_that_continues() {
    for (sent, name) in [(Signal::INT, "interrupted.txt"), (Signal::TERM, "terminated.txt")] {
        let mut session = Session::new();
        session.file("slow.json", SLOW);
        let arguments = ["run", "--model", "rehearsal:slow.json", "two steps"];
        let owner = session.start(&arguments);
        session.wait_for("stream(turn 1, attempt 0, in_flight)");
        signal(&owner, sent);
        session.note(&arguments, &owner.wait_with_output().unwrap());
        session.sprag(&["resume", "--json"]);
        session.check(name);
    }
}

#[test]
fn a_run_that_misses_something_parks_and_holds_up_its_session() {
    let mut session = Session::new();
    session.file("slow.json", SLOW);
    session.file("hello.json", HELLO);
    let owner = session.start(&["run", "--session", "s", "--model", "rehearsal:slow.json", "two steps"]);
    let run = session.wait_for("stream(turn 1, attempt 0, in_flight)");
    signal(&owner, Signal::INT);
    owner.wait_with_output().unwrap();
    let (script, away) = (session.work().join("slow.json"), session.work().join("away.json"));
    std::fs::rename(&script, &away).unwrap();
    session.sprag(&["resume"]);
    session.sprag(&["why", &run]);
    session.sprag(&["run", "--session", "s", "--model", "rehearsal:hello.json", "next"]);
    session.sprag(&["resume", "--json"]);
    std::fs::rename(&away, &script).unwrap();
    session.sprag(&["resume"]);
    session.sprag(&["ls"]);
    session.check("parked.txt");
}

#[test]
fn a_prompt_may_come_from_stdin() {
    let session = Session::new();
    session.file("echo.json", r#"{"turns":[{"text":"You said: {{prompt}}"}]}"#);
    let mut child = session
        .command(&["run", "--model", "rehearsal:echo.json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello there").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "You said: hello there\n");
}

#[test]
fn a_drain_lets_the_turn_end() {
    let mut session = Session::new();
    session.file(
        "turns.json",
        r#"{"turns":[{"text":"a","delay_ms":700,"calls":[{"tool":"ls","args":{}}]},{"text":"b","delay_ms":3600000}]}"#,
    );
    let arguments = ["run", "--model", "rehearsal:turns.json", "go"];
    let owner = session.start(&arguments);
    let run = session.wait_for("stream(turn 0, attempt 0, in_flight)");
    session.wait_for_owner();
    session.sprag(&["stop", "--drain"]);
    session.note(&arguments, &owner.wait_with_output().unwrap());
    session.sprag(&["why", &run]);
    assert_eq!(session.model_calls(), [(0, 0)]);
    session.check("drained.txt");
}

#[test]
fn a_command_outlives_its_engine_and_is_adopted() {
    let mut session = Session::new();
    session.file(
        "bash.json",
        r#"{"turns":[
          {"calls":[{"tool":"bash","args":{"command":"sleep 3; echo once >> ran.txt; cat ran.txt"}}],"usage":{"input":9}},
          {"text":"done","usage":{"input":9}}]}"#,
    );
    let arguments = ["run", "--model", "rehearsal:bash.json", "go"];
    let owner = session.start(&arguments);
    let run = session.wait_for("batch_admitted");
    session.sprag(&["stop"]);
    session.note(&arguments, &owner.wait_with_output().unwrap());
    session.sprag(&["resume"]);
    session.sprag(&["transcript", &run]);
    session.check("adopted.txt");
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let session = Session::new();
    session.file("hello.json", HELLO);
    session.command(&["run", "--model", "rehearsal:hello.json", "x"]).output().unwrap();
    let run = session.newest();
    for arguments in [vec!["ls"], vec!["events", &run, "--json"], vec!["journal", &run], vec!["show", &run]] {
        let mut child =
            session.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut words = String::new();
        child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!((child.wait().unwrap().code(), words.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_run_that_nobody_reads_any_more_is_left_as_a_signal_leaves_it() {
    let session = Session::new();
    session.file("slow.json", SLOW);
    let mut child = session.start(&["run", "--model", "rehearsal:slow.json", "x"]);
    drop(child.stdout.take());
    let run = session.wait_for("submitted");
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.ends_with(&format!("stopped; to continue: sprag resume {run}\n")), "{words}");
    assert_eq!(output.status.code(), Some(143), "{words}");
    let ended = session.command(&["resume"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn the_detectors_say_what_the_vectors_say() {
    let session = Session::new();
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cases/loop-vectors.jsonl");
    let output = session.command(&["loops", cases]).output().unwrap();
    let verdicts = String::from_utf8(output.stdout).unwrap();
    let text = std::fs::read_to_string(cases).unwrap();
    let wrong: Vec<(Value, Value)> = text
        .lines()
        .zip(verdicts.lines())
        .map(|(case, verdict)| {
            let case: Value = serde_json::from_str(case).unwrap();
            let mut expected = case["expect"].as_object().unwrap().clone();
            expected.extend(case["extra"].as_object().cloned().unwrap_or_default());
            expected.insert("id".to_owned(), case["id"].clone());
            let mut verdict: Value = serde_json::from_str(verdict).unwrap();
            // Ours alone.
            verdict.as_object_mut().unwrap().remove("blocked_repeat");
            (Value::Object(expected), verdict)
        })
        .filter(|(expected, verdict)| expected != verdict)
        .collect();
    assert_eq!(wrong, []);
    assert_eq!(verdicts.lines().count(), 553);
}

#[test]
fn a_transcript_is_a_history_for_the_detectors() {
    let mut session = Session::new();
    session.file(
        "round.json",
        r#"{"turns":[{"calls":[{"id":"c{{turn}}","tool":"ls","args":{}}]}],"after":"repeat"}"#,
    );
    session.command(&["run", "--model", "rehearsal:round.json", "--max-turns", "12", "x"]).output().unwrap();
    let run = session.newest();
    let transcript = session.command(&["transcript", &run, "--json"]).output().unwrap().stdout;
    std::fs::write(session.work().join("t.jsonl"), transcript).unwrap();
    session.file("bad.jsonl", "{\"id\":1,\"history\":[],\"next\":{\"tool\":\"ls\"}}\n\n{\"id\":2}\n");
    session.sprag(&["loops", "t.jsonl"]);
    session.sprag(&["loops", "bad.jsonl"]);
    session.check("loops.txt");
}
