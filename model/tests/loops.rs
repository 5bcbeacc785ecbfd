//! The loop detectors against the reference: every detector vector, every session vector, and what must hold
//! for any sequence of calls. The vectors are inputs and outputs of the reference; what we decide otherwise
//! is named in `session::decided_otherwise`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test states what it relies on")]

#[path = "loops/property.rs"]
mod property;
#[path = "loops/rules.rs"]
mod rules;
#[path = "loops/session.rs"]
mod session;
#[path = "loops/vectors.rs"]
mod vectors;

use std::path::Path;

use model::guard::loops::{CallFacts, OutcomeFacts, ToolKind, ToolOutcome, call_facts, classify};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What a call led to, as the vectors write it.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Result(Value),
    Error(String),
}

/// The lines of `tests/cases/{name}`.
fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases").join(name);
    let text = std::fs::read_to_string(&path).expect("the cases are part of the repository");
    text.lines().map(|line| serde_json::from_str(line).expect("one case a line")).collect()
}

fn facts(tool: &str, args: &Value) -> CallFacts {
    call_facts(tool, args, ToolKind::of_reference_name(tool))
}

fn outcome_facts(call: &CallFacts, outcome: &Outcome) -> OutcomeFacts {
    match outcome {
        Outcome::Result(result) => classify(call, ToolOutcome::Result(result)),
        Outcome::Error(text) => classify(call, ToolOutcome::Error(text)),
    }
}
