//! `doctor models` beside an engine at work: what works, what does not, and what a script is told.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use serde_json::{Value, json};
use support::{ENDLESS, HELLO, Session};

#[test]
fn models_are_tried_beside_an_engine_and_nothing_is_journaled() {
    let session = Session::new();
    session.file("good.json", HELLO);
    session.file("endless.json", ENDLESS);
    let rehearsal = |name: &str| format!("[models.{name}]\napi = \"rehearsal\"\nfile = \"{name}.json\"\n");
    session
        .file("sprag.toml", &(rehearsal("good") + "[models.vendor]\napi = \"openai-chat\"\nmodel = \"m\"\n"));
    let mut engine = session.start(&["run", "--model", "rehearsal:endless.json", "Go on"]);
    session.wait_for("turn 1, attempt 0, in_flight");
    let runs = || String::from_utf8(session.command(&["ls", "--json"]).output().unwrap().stdout).unwrap();
    let before = runs();

    let tried = |arguments: &[&str]| {
        let output =
            session.command(&[&["doctor", "models", "--json"], arguments].concat()).output().unwrap();
        let trials: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let of = |trial: &Value| json!([trial["model"], trial["works"], trial["fault"], trial["next"]]);
        let trials = trials.as_array().into_iter().flatten().map(of).collect::<Vec<_>>();
        (output.status.code(), trials, String::from_utf8(output.stderr).unwrap())
    };
    let good = json!(["good", true, null, null]);
    let keyless = json!(["vendor", false, "key_missing", "set the variable OPENAI_API_KEY"]);
    assert_eq!(tried(&["good"]), (Some(0), vec![good.clone()], String::new()));
    assert_eq!(tried(&[]), (Some(1), vec![good, keyless], String::new()));
    let unknown = "error: model `god` is not configured, did you mean `good`?\n".to_owned();
    assert_eq!(tried(&["god"]), (Some(2), vec![], unknown));

    let table = session.command(&["doctor", "models"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let fields: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    let words = "key_missing: the variable OPENAI_API_KEY holds no key";
    assert_eq!(fields[0][..4], ["good", "rehearsal", "-", "works"]);
    assert_eq!(fields[1][..4], ["vendor", "openai-chat", "-", words]);
    assert_eq!(runs(), before);
    engine.kill().unwrap();
    engine.wait().unwrap();
}
