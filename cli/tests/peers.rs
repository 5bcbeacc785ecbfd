//! The built binary and providers that others wrote: a kill in the middle of an answer, a batch of a real model.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

#[allow(
    dead_code,
    unreachable_pub,
    reason = "a module of the crate of tests, whose contents are not needed here"
)]
#[path = "../../tests/src/peers.rs"]
mod peers;
mod support;

use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::Session;

const APIS: [&str; 3] = ["anthropic-messages", "openai-chat", "openai-responses"];
/// The longest that a test waits for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn run(session: &Session, arguments: &[&str]) -> Output {
    session.command(arguments).output().unwrap()
}

/// What a command prints with `--json`.
fn json_of(session: &Session, arguments: &[&str]) -> Value {
    let output = run(session, &[arguments, &["--json"]].concat());
    let said = || format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said()))
}

fn succeeds(session: &Session, arguments: &[&str]) {
    let output = run(session, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
}

/// The configuration of a model for each protocol, named after it.
fn models(base_url: &str, model: &str, more: &str) -> String {
    let table = |api| {
        format!("[models.{api}]\napi = \"{api}\"\nbase_url = \"{base_url}\"\nmodel = \"{model}\"\n{more}\n")
    };
    APIS.map(table).concat()
}

/// The runs of the store, each as the list says.
fn runs(session: &Session) -> Vec<Value> {
    json_of(session, &["ls"]).as_array().unwrap().clone()
}

/// Files of raw responses.
fn spooled(session: &Session) -> Vec<PathBuf> {
    let files =
        |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files(session.data().join("spool")).flat_map(files).collect()
}

/// Waits until a part of the second turn's answer is on disk.
fn wait_for_a_part(session: &Session, victim: &mut Child) {
    let deadline = Instant::now() + PATIENCE;
    let has_part = |file: &PathBuf| {
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        file.ends_with("1.0")
            && kept.split_once("\n\n").is_some_and(|(_, body)| body.matches("data:").count() > 5)
    };
    while !spooled(session).iter().any(has_part) {
        assert_eq!(victim.try_wait().unwrap(), None, "the run has ended too soon");
        assert!(Instant::now() < deadline, "no part of an answer arrived: {:?}", spooled(session));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_is_killed_in_an_answer_makes_as_many_calls_as_it_says() {
    let Some(aimock) = peers::aimock() else { return };
    for api in APIS {
        let session = Session::new();
        let test = format!("killed-{api}");
        session.file("sprag.toml", &models(&aimock.of_test(&test), "killed", ""));
        let mut victim = session.start(&["run", "--model", api, "--tools", "write", "Write it down"]);
        wait_for_a_part(&session, &mut victim);
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert_eq!(aimock.witnessed(&test).len(), 2, "{api}");

        let run_id = session.newest();
        succeeds(&session, &["resume"]);
        let view = json_of(&session, &["show", &run_id]);
        let counters = &view["counters"];
        let facts =
            json!([view["status"], counters["model_calls"], counters["calls_lost"], counters["tool_calls"]]);
        assert_eq!(facts, json!(["completed", 3, 1, 1]), "{api}");
        let requests = aimock.witnessed(&test);
        assert_eq!(requests.len(), 3, "{api}");
        // The lost call was made again as it was.
        assert_eq!(requests[2]["body"], requests[1]["body"], "{api}");
        assert_eq!(std::fs::read_to_string(session.work().join("a.txt")).unwrap(), "once");
        succeeds(&session, &["replay", &run_id]);
        succeeds(&session, &["verify"]);
    }
}

#[test]
fn a_run_that_was_recorded_is_replayed_without_its_provider() {
    let Some(aimock) = peers::aimock() else { return };
    for api in APIS {
        let session = Session::new();
        let test = format!("recorded-{api}");
        session.file("sprag.toml", &models(&aimock.of_test(&test), "tools", ""));
        session.file("main.rs", "");
        let told = ["--tools", "ls,find", "What is there?"];
        let recording = session.work().with_file_name("recording").display().to_string();
        succeeds(&session, &[&["run", "--model", api, "--record", &recording], &told[..]].concat());
        let replay = format!("replay:{recording}");
        succeeds(&session, &[&["run", "--model", &replay], &told[..]].concat());
        assert_eq!(aimock.witnessed(&test).len(), 2, "{api}");
        succeeds(&session, &["doctor", "models", &replay]);
    }
}

#[test]
fn a_batch_of_a_real_model_calls_tools_until_its_cap_and_can_be_cancelled() {
    let Some(llama) = peers::llama() else { return };
    let session = Session::new();
    let must_call = "tool_choice = \"required\"\nmax_output = 64";
    session.file("sprag.toml", &models(&llama.address, "smollm2", must_call));
    let jobs = |api| {
        let calls = json!({ "custom_id": format!("calls-{api}"), "model": api, "prompt": "List the files.",
            "tools": ["ls"], "max_turns": 2 });
        let talks = json!({ "custom_id": format!("talks-{api}"), "model": api, "tools": [],
            "prompt": "Write a short poem about the sea." });
        format!("{calls}\n{talks}\n")
    };
    session.file("jobs.jsonl", &APIS.map(jobs).concat());
    let batch = ["batch", "run", "jobs.jsonl", "--results", "results.jsonl"];
    let output = run(&session, &batch);
    assert_eq!(output.status.code(), Some(7), "{output:?}");

    // A model may also talk until it is cut, whatever it must; then its run is complete.
    let parked: Vec<Value> = runs(&session).into_iter().filter(|run| run["status"] == "parked").collect();
    for row in &parked {
        let id = row["run"].as_str().unwrap();
        let view = json_of(&session, &["show", id]);
        let counters = &view["counters"];
        let journal = run(&session, &["journal", id]);
        let returned = String::from_utf8_lossy(&journal.stdout).matches("\ttool_returned\tcall ").count();
        // The second answer was given to a transcript with the first call and its result.
        let answers =
            counters["model_calls"].as_u64().unwrap() - view["attempts"].as_array().unwrap().len() as u64;
        assert_eq!((&row["turns"], answers, &counters["calls_lost"]), (&json!(2), 2, &json!(0)), "{view}");
        assert_eq!(counters["tool_calls"], json!(returned), "{view}");
        assert!(returned > 0, "{view}");
        succeeds(&session, &["cancel", id]);
    }
    let output = run(&session, &batch);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    for row in runs(&session) {
        succeeds(&session, &["replay", row["run"].as_str().unwrap()]);
    }
    succeeds(&session, &["verify"]);

    let results = std::fs::read_to_string(session.work().join("results.jsonl")).unwrap();
    let results: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = |outcome: &str| results.iter().filter(|result| result["outcome"] == outcome).count();
    assert_eq!(
        (ended("cancelled"), ended("completed")),
        (parked.len(), 2 * APIS.len() - parked.len()),
        "{results:?}"
    );
}

#[test]
fn the_doctor_says_which_models_of_the_peers_work() {
    let (Some(aimock), Some(llama)) = (peers::aimock(), peers::llama()) else { return };
    let tried = |config: &str| {
        let session = Session::new();
        session.file("sprag.toml", config);
        let output = run(&session, &["doctor", "models", "--json"]);
        let trials: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), trials.iter().map(|trial| trial["fault"].clone()).collect::<Vec<_>>())
    };
    assert_eq!(tried(&models(&aimock.of_test("doctor"), "text", "")), (0, vec![Value::Null; 3]));
    assert_eq!(aimock.witnessed("doctor").len(), 3);
    let (status, faults) = tried(&models(&aimock.of_test("doctor-cut"), "cut", ""));
    assert_eq!((status, faults.iter().filter(|fault| **fault == "connection").count()), (1, 1), "{faults:?}");
    assert_eq!(tried(&models(&llama.address, "smollm2", "")), (0, vec![Value::Null; 3]));
}
