//! A tool call as it is admitted, and what may be known of it after a crash.
//!
//! Owns the recovery classes. A tool declares its class; nothing here guesses one.

use serde::{Deserialize, Serialize};

use crate::guard::loops::CallFacts;
use crate::ids::Label;
use crate::message::ToolResult;

/// One call of a batch, resolved and validated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPlan {
    /// The call's id, for details.
    pub id: Label,
    /// The tool's name as called, for texts.
    pub tool: Label,
    /// What the loop detectors compare.
    pub facts: CallFacts,
    /// What may be done about the call after a crash.
    pub class: RecoveryClass,
    /// Whether it may run.
    pub verdict: CallVerdict,
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallVerdict {
    /// Its tool exists and its arguments are valid.
    Valid,
    /// No such tool.
    Unknown,
    /// The arguments do not fit the tool's schema; the text says how.
    Invalid(String),
    /// The tool could not be found or prepared; the text says why.
    Refused(String),
    /// Its id was used before in the same answer.
    Duplicate,
    /// The tool answered while preparing, without running.
    Immediate(ToolResult),
}

/// What may be done about a call that may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecoveryClass {
    /// Changes nothing: run again.
    ReadOnly,
    /// Run again with the same idempotency key.
    Keyed,
    /// Its process and result outlive the engine.
    Adoptable,
    /// The tool can ask the world whether it happened.
    Probe,
    /// Never again.
    AtMostOnce,
}

/// How the result of a call that crashed is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Recovered {
    /// It was run again.
    Repeated,
    /// The world was asked: it had happened.
    Probed,
    /// It was still running.
    Adopted,
    /// Its exit record was read.
    Collected,
}

/// What follows when the outcome of a call is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnUnknown {
    /// Ask a person.
    Ask,
    /// Tell the model.
    Tell,
    /// End the run.
    Fail,
}
