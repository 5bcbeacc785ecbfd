//! In what state a run is left when nothing follows any more.
//!
//! Owns the way from that state to the run's outcome. A cancel or a deadline that came first wins: the caller looks at
//! them before it asks.

use serde::{Deserialize, Serialize};

use crate::phase::Outcome;

/// The state in which a decision leaves a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Liveness {
    /// It did what was asked.
    Working,
    /// Its context could not be made ready for the next call.
    Paused,
    /// It needs action outside.
    Blocked,
    /// The turn ended without an answer.
    Abandoned,
    /// Something on this side is wrong: a script, a hook, the transcript; or it goes in circles. Beyond the
    /// reference's four.
    Broken,
}

impl Liveness {
    /// How a run ends in this state.
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Working => Outcome::Completed,
            Self::Blocked => Outcome::Blocked,
            Self::Paused | Self::Abandoned | Self::Broken => Outcome::Failed,
        }
    }

    /// The name used in records and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Paused => "paused",
            Self::Blocked => "blocked",
            Self::Abandoned => "abandoned",
            Self::Broken => "broken",
        }
    }
}
