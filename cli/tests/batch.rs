//! `batch run` as a person meets it: caps, parked jobs, stops and signals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{HELLO, SLOW, Session, signal, status};

#[test]
fn a_batch_stops_at_its_cap_and_goes_on_with_a_higher_one() {
    let mut session = Session::new();
    session.file("one.json", r#"{"turns":[{"text":"done","usage":{"input":10,"output":5}}]}"#);
    let line = |n: u8| format!("{{\"custom_id\":\"j{n}\",\"prompt\":\"go\"}}\n");
    session.file("jobs.jsonl", &(0..3).map(line).collect::<String>());
    let run = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:one.json", "--concurrency", "1"];
    let with = |more: &[&'static str]| [&run[..], more].concat();
    session.sprag(&with(&["--max-calls", "2"]));
    session.sprag(&["resume"]);
    session.sprag(&with(&["--max-tokens", "1", "--json"]));
    session.sprag(&with(&["--max-calls", "4", "--max-tokens", "0"]));
    session.check("cap.txt");
}

#[test]
fn a_batch_with_a_parked_job_ends_with_seven_and_says_who_shares_a_directory() {
    let mut session = Session::new();
    session.file("hello.json", HELLO);
    session.sprag(&["run", "--max-turns", "1", "--model", "rehearsal:hello.json", "two turns"]);
    let run = session.newest();
    session.file(
        "jobs.jsonl",
        r#"{"custom_id":"parks","prompt":"two turns","workspace":".","max_turns":1}
{"custom_id":"ends","prompt":"two turns"}
"#,
    );
    let batch = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:hello.json"];
    assert_eq!(session.sprag(&batch).status.code(), Some(7));
    assert_eq!(session.sprag(&batch).status.code(), Some(7));
    for parked in [run.clone(), session.parked("parks")] {
        session.sprag(&["extend", &parked, "--turns", "1"]);
    }
    session.sprag(&["resume"]);
    assert_eq!(session.sprag(&batch).status.code(), Some(0));
    session.check("batch_parked.txt");
}

#[test]
fn a_batch_that_is_asked_to_stop_says_what_is_left() {
    let mut session = Session::new();
    session.file("slow.json", r#"{"turns":[{"text":"at last","delay_ms":3600000}]}"#);
    session.file("jobs.jsonl", r#"{"custom_id":"a","prompt":"go"}"#);
    let batch = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:slow.json"];
    let owner = session.start(&batch);
    session.wait_for("stream(turn 0, attempt 0, in_flight)");
    session.wait_for_owner();
    session.sprag(&["stop"]);
    session.note(&batch, &owner.wait_with_output().unwrap());
    session.check("batch_stopped.txt");
}

#[test]
fn two_signals_at_once_leave_a_batch_that_goes_on() {
    let mut session = Session::new();
    session.file("slow.json", SLOW);
    session.file("jobs.jsonl", r#"{"custom_id":"a","prompt":"two turns"}"#);
    let batch = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:slow.json"];
    let owner = session.start(&batch);
    session.wait_for("stream(turn 1, attempt 0, in_flight)");
    signal(&owner, Signal::INT);
    signal(&owner, Signal::TERM);
    let code = owner.wait_with_output().unwrap().status.code();
    assert!(code == Some(130) || code == Some(143), "{code:?}");
    assert_eq!(session.sprag(&batch).status.code(), Some(0));
    assert_eq!(session.model_calls(), [(0, 0), (1, 0), (1, 0)]);
}

#[test]
fn a_batch_that_was_killed_says_what_became_of_its_calls() {
    let session = Session::new();
    session.file("slow.json", SLOW);
    session.file("jobs.jsonl", r#"{"custom_id":"a","prompt":"two turns"}"#);
    let batch = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:slow.json", "--json"];
    let mut owner = session.start(&batch);
    session.wait_for("stream(turn 1, attempt 0, in_flight)");
    owner.kill().unwrap();
    owner.wait().unwrap();
    let run = session.newest();
    let found = || {
        let output = session.command(&batch).output().unwrap();
        let end: Value = serde_json::from_slice(&output.stdout).unwrap();
        (String::from_utf8(output.stderr).unwrap(), end["found"].clone())
    };
    let (said, counts) = found();
    assert!(said.contains(&format!("repeated  {run}  a model call was in flight\n")), "{said}");
    assert_eq!((counts, found().1), (json!({ "repeated": 1 }), Value::Null));
}

#[test]
fn results_of_another_store_are_refused_before_anything_starts() {
    let session = Session::new();
    session.file("one.json", r#"{"turns":[{"text":"done","usage":{"input":10,"output":5}}]}"#);
    session.file("jobs.jsonl", r#"{"custom_id":"a","prompt":"go"}"#);
    let batch = ["batch", "run", "jobs.jsonl", "--model", "rehearsal:one.json"];
    assert_eq!(status(&session.command(&batch).output().unwrap()), "0");
    let results = session.work().join("jobs.results.jsonl");
    let before = std::fs::read_to_string(&results).unwrap();
    let (calls, run) = (session.model_calls(), session.newest());
    let refused = session.command(&[&batch[..], &["--data", "other"]].concat()).output().unwrap();
    let words = format!(
        "error: {} holds results of another store (run {run}); name another with --results, or the --data they came from\n",
        results.display()
    );
    assert_eq!((status(&refused), String::from_utf8(refused.stderr).unwrap()), ("2".to_owned(), words));
    assert_eq!((std::fs::read_to_string(&results).unwrap(), session.model_calls()), (before, calls));
}
