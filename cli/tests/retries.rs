//! Failed model calls through the built binary: how often a provider would have been billed, and how each job ended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use support::{Session, status};

/// Rehearsals of the docs that fail and do not wait: calls, outcome, and the error or the text.
const STORIES: [(&str, u64, &str, &str); 12] = [
    ("success", 1, "completed", "done"),
    ("silent_retry", 4, "completed", "done"),
    ("reasoning_only", 3, "completed", "done"),
    ("missing", 2, "completed", "done"),
    ("empty", 2, "completed", "done"),
    ("context_overflow", 1, "blocked", "context_overflow; start a fresh session"),
    ("role_ordering", 1, "blocked", "role_ordering; start a fresh session"),
    ("image_size", 1, "blocked", "image_size; send a smaller image"),
    ("format", 1, "failed", "format: tools.0: unknown field"),
    ("local_fault", 2, "failed", "script: no turn 1, the rehearsal has 1 turn: add it or set `afte…"),
    ("incomplete_turn", 2, "failed", "incomplete_turn: empty; verify what was done"),
    ("surfaced", 1, "blocked", "auth: invalid key; check the key"),
];

#[test]
fn every_failure_is_billed_as_often_as_the_guard_says() {
    let mut session = Session::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/retries");
    let job = |(name, ..): &(&str, u64, &str, &str)| {
        let model = format!("rehearsal:{}", examples.join(format!("{name}.rehearsal.json")).display());
        format!("{}\n", json!({ "custom_id": name, "prompt": "please", "model": model }))
    };
    session.file("jobs.jsonl", &STORIES.iter().map(job).collect::<String>());
    let output = session.sprag(&["batch", "run", "jobs.jsonl", "--results", "results.jsonl"]);
    assert_eq!(status(&output), "1");

    let billed = session.billed();
    let text = std::fs::read_to_string(session.work().join("results.jsonl")).unwrap();
    let results: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: BTreeMap<&str, (u64, u64, &str, &str)> = results.iter().map(story(&billed)).collect();
    let expected = STORIES.map(|(name, calls, outcome, words)| (name, (calls, calls, outcome, words)));
    assert_eq!(found, BTreeMap::from(expected));
}

/// Calls that were billed, calls that were counted, the outcome, and the error or the text.
fn story(billed: &BTreeMap<String, u64>) -> impl Fn(&Value) -> (&str, (u64, u64, &str, &str)) {
    |result| {
        let text = |name: &str| result[name].as_str();
        let calls = billed[text("run").unwrap()];
        let words = text("error").or(text("text")).unwrap();
        let counted = result["model_calls"].as_u64().unwrap();
        (text("custom_id").unwrap(), (calls, counted, text("outcome").unwrap(), words))
    }
}

#[test]
fn a_run_that_gave_up_shows_its_attempts_and_the_reason() {
    let mut session = Session::new();
    let fails = r#"{"turns":[{"text":"never","fail":[
        {"kind":"silent"},{"kind":"silent"},{"kind":"silent"},{"kind":"silent"}]}]}"#;
    session.file("m.json", fails);
    let output = session.sprag(&["run", "--model", "rehearsal:m.json", "please"]);
    assert_eq!(status(&output), "1");
    let run = session.newest();
    let shown = session.sprag(&["show", &run, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let attempt = |attempt: &Value| {
        let field = |name: &str| attempt[name].as_str().unwrap().to_owned();
        (attempt["attempt"].as_u64().unwrap(), field("failure"), field("branch"), field("followed"))
    };
    let again = |n| (n, "silent".to_owned(), "silent_retry".to_owned(), "again at once".to_owned());
    let end = (3, "silent".to_owned(), "incomplete_turn".to_owned(), "the run ended: failed".to_owned());
    let attempts: Vec<_> = shown["attempts"].as_array().unwrap().iter().map(attempt).collect();
    assert_eq!(attempts, [again(0), again(1), again(2), end]);
    let why = session.sprag(&["why", &run]);
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("incomplete_turn: silent 4 times over"), "{why}");
    let journal = session.sprag(&["journal", &run]);
    let journal = String::from_utf8(journal.stdout).unwrap();
    assert_eq!(journal.matches("silent_retry: again at once").count(), 3, "{journal}");
    let shown = session.sprag(&["show", &run]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains("branch incomplete_turn"));
}

#[test]
fn a_run_says_to_a_person_why_it_waits() {
    let session = Session::new();
    session
        .file("m.json", r#"{"turns":[{"text":"at last","fail":[{"kind":"overloaded","message":"busy"}]}]}"#);
    let words = |arguments: &[&str]| {
        let run = ["run", "--model", "rehearsal:m.json", "please"];
        let output = session.command(&[&run, arguments].concat()).output().unwrap();
        assert_eq!(status(&output), "0");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = words(&[]);
    let model = format!("rehearsal:{}", session.work().join("m.json").display());
    let waits = format!("no answer from {model} (overloaded: busy): again in 2 s");
    assert_eq!(said.lines().next(), Some(waits.as_str()));
    assert_eq!(said.matches("no answer").count(), 1, "{said}");
    assert!(!words(&["--json"]).contains("no answer"));
}
