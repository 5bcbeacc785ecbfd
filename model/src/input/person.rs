//! What a person decides.

use serde::{Deserialize, Serialize};

use crate::ids::Label;

/// A person's decision on a call that needs approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    /// It may run.
    Approve,
    /// It may not; the reason goes to the model.
    Deny(Label),
}

/// A person's decision on a call whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Resolution {
    /// It ran, and succeeded.
    Ran,
    /// It ran, and failed.
    Failed,
    /// Run it again.
    Retry,
    /// What it did was undone.
    Undone,
}

/// What a person adds to a run's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Added to the deadline, in milliseconds.
    pub time_ms: u64,
    /// Added to the money limit, in micro-dollars.
    pub usd_micros: u64,
    /// Added to the token limit.
    pub tokens: u64,
    /// Added to the limit of model calls.
    pub calls: u64,
    /// Added to the limit of turns.
    pub turns: u64,
}
