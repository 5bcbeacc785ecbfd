//! Scenarios: what a client wants of an engine, told once, run in every life until it is done.
//!
//! Owns the description and nothing that happens.

use engine::Job;
use model::input::Hook;
use serde_json::{Value, json};

use crate::tools::TOOLS;

/// One life of the process, as planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Submits what was not submitted, resumes, and answers questions until every run has ended.
    Finish,
    /// The same until every run rests, and answers no question.
    Rest,
    /// Resumes nothing, and cancels every run.
    Cancel,
}

/// What the end of a cut run has in common with that of the uncut one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// Every message.
    Transcript,
    /// How it ended: what it was doing when it was cancelled depends on the moment.
    Outcome,
}

/// What is asked right after the first submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// A steering message.
    Steer(&'static str),
    /// A follow-up.
    FollowUp(&'static str),
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What the model says.
    pub script: Value,
    /// What is submitted, in this order, each under its own key.
    pub jobs: Vec<Job>,
    /// What is asked of the first run before it moves.
    pub early: Vec<Early>,
    /// The lives of the process, if nothing cuts them.
    pub stages: Vec<Stage>,
    /// The hooks that the harness wants.
    pub hooks: Vec<Hook>,
    /// The harness makes summaries.
    pub summarises: bool,
    /// What is compared.
    pub same: Same,
}

impl Scenario {
    /// A scenario of one job that runs to its end. What an answer costs does not depend on the words before it.
    pub fn new(name: &'static str, mut turns: Value) -> Self {
        for turn in turns.as_array_mut().into_iter().flatten() {
            turn["usage"] = json!({"input": 10, "output": 5});
        }
        Self {
            name,
            script: json!({ "turns": turns }),
            jobs: vec![job("first")],
            early: Vec::new(),
            stages: vec![Stage::Finish],
            hooks: Vec::new(),
            summarises: false,
            same: Same::Transcript,
        }
    }
}

/// A job whose run has the same id in every world.
pub fn job(name: &str) -> Job {
    Job {
        batch: Some("scenario".to_owned()),
        custom_id: Some(name.to_owned()),
        timeout_s: Some(0),
        session: Some("session".to_owned()),
        ..Job::new(format!("do {name}")).model("m").tools(TOOLS.map(|(name, _)| name))
    }
}

/// A call in a rehearsal.
pub fn call(tool: &str, args: Value) -> Value {
    json!({ "tool": tool, "args": args })
}
