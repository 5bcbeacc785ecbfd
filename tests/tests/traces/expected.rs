//! What a scenario must lead to, from the two files of traces.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::harness::{Script, Trace};

/// A line of a file of traces.
#[derive(Clone, Debug, Deserialize)]
pub struct Expected {
    name: String,
    /// Why it is not as in the reference's file, or where it is described.
    #[serde(default)]
    why: String,
    #[serde(default)]
    events: Vec<String>,
    #[serde(default)]
    bodies: Vec<String>,
    returned: Option<Vec<String>>,
    rejected: Option<String>,
    r#final: Option<Value>,
    /// It cannot happen here.
    #[serde(default)]
    is_impossible: bool,
}

fn read(file: &str) -> BTreeMap<String, Expected> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(file);
    let text = std::fs::read_to_string(&path).expect("the traces are part of the repository");
    let lines = text.lines().map(|line| serde_json::from_str::<Expected>(line).expect("one trace a line"));
    lines.map(|expected| (id(&expected.name).to_owned(), expected)).collect()
}

/// The first word of a name.
fn id(name: &str) -> &str {
    name.split_whitespace().next().unwrap_or_default()
}

/// Runs a scenario and compares everything it led to.
pub fn check(script: Script) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let running = async { tokio::time::timeout(std::time::Duration::from_secs(3600), script.run()).await };
    let (trace, transcript) = runtime.block_on(running).expect("the scenario ends");
    let key = id(script.name);
    if std::env::var_os("SPRAG_PRINT_TRACES").is_some() {
        print(script.name, &trace);
    }
    let ours = read("our-traces.jsonl");
    let reference = read("loop-traces.jsonl");
    let expected = ours.get(key).or_else(|| reference.get(key)).unwrap_or_else(|| panic!("no trace {key}"));
    let expected_trace = Trace {
        events: expected.events.clone(),
        bodies: expected.bodies.iter().map(|body| comparable(body)).collect(),
        // The reference's façade answers nothing; what it would have answered is in its `agent_end`.
        returned: expected.returned.clone().or_else(|| trace.returned.clone()),
        rejected: expected.rejected.clone(),
    };
    let trace = Trace { bodies: trace.bodies.iter().map(|body| comparable(body)).collect(), ..trace };
    assert_eq!(
        trace,
        expected_trace,
        "{} {}\n{}",
        script.name,
        expected.why,
        first_difference(&trace.events, &expected_trace.events)
    );
    if let Some(messages) = &expected.r#final {
        let labels: Value = transcript.iter().map(crate::log::label).collect::<Vec<_>>().into();
        assert_eq!(labels, *messages, "{}", script.name);
    }
}

/// Where two lists of events part, with the three lines before.
fn first_difference(got: &[String], expected: &[String]) -> String {
    let at = (0..).find(|&at| got.get(at) != expected.get(at) || got.get(at).is_none()).unwrap_or_default();
    let rest = |lines: &[String], count| {
        lines.iter().skip(at.saturating_sub(3)).take(count).cloned().collect::<Vec<_>>().join("\n   ")
    };
    format!("got at {at}:\n   {}\nexpected:\n   {}", rest(got, 8), rest(expected, 8))
}

/// Of texts that are deliberately our own only that they are there is compared, and of details what they say.
fn comparable(body: &str) -> String {
    let own = format!("custom:{} :: ", model::TURN_ABORTED);
    if body.starts_with(&own) {
        return own;
    }
    let details = body.rsplit_once(" :: ").and_then(|(before, details)| {
        let value: Value = serde_json::from_str(details).ok().filter(Value::is_object)?;
        Some(format!("{before} :: {}", model::JsonText::from(&value).as_str()))
    });
    details.unwrap_or_else(|| body.to_owned())
}

fn print(name: &str, trace: &Trace) {
    let mut line = serde_json::json!({ "name": name, "events": trace.events, "bodies": trace.bodies });
    if let Some(returned) = &trace.returned {
        line["returned"] = returned.clone().into();
    }
    if let Some(rejected) = &trace.rejected {
        line["rejected"] = rejected.clone().into();
    }
    println!("TRACE {line}");
}

#[test]
fn every_difference_has_a_reason_and_every_trace_a_scenario() {
    let scenarios: String = [include_str!("given.rs"), include_str!("named.rs")].concat();
    let ours = read("our-traces.jsonl");
    for (key, expected) in ours.iter().chain(&read("loop-traces.jsonl")) {
        let is_impossible = ours.get(key).is_some_and(|ours| ours.is_impossible);
        assert!(is_impossible || scenarios.contains(&format!("\"{key} ")), "no scenario {key}");
        assert!(
            !ours.contains_key(key) || !ours[key].why.is_empty(),
            "{} differs without a reason",
            expected.name
        );
    }
}
