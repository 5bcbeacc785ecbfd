//! The status of a run: its phase in one word, and what it waits for in one phrase.
//!
//! Owns the words that `ls` shows and filters by. It must never say more than the committed state does.

use std::str::FromStr;

use model::phase::{ParkReason, StreamStage};
use model::state::{Batch, CallStatus};
use model::{Outcome, Phase, RunState};
use serde::{Deserialize, Serialize};

use super::names::call_name;
use crate::clock::rfc3339;

/// A run's phase in one word. The final ones are the outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waits for its lane.
    Queued,
    /// Holds a slot, or will as soon as an engine drives it.
    Running,
    /// Waits for a timer only.
    Waiting,
    /// Needs a person.
    Parked,
    /// Did what was asked.
    Completed,
    /// Gave up.
    Failed,
    /// Needs action outside.
    Blocked,
    /// Was cancelled.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
}

impl Status {
    /// Every status, in the order of a run's life.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::Running,
        Self::Waiting,
        Self::Parked,
        Self::Completed,
        Self::Failed,
        Self::Blocked,
        Self::Cancelled,
        Self::TimedOut,
    ];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::Completed => Outcome::Completed.name(),
            Self::Failed => Outcome::Failed.name(),
            Self::Blocked => Outcome::Blocked.name(),
            Self::Cancelled => Outcome::Cancelled.name(),
            Self::TimedOut => Outcome::TimedOut.name(),
        }
    }

    /// The status of a run in this phase.
    pub fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Queued => Self::Queued,
            Phase::Stream { stage: StreamStage::Backoff { .. }, .. } => Self::Waiting,
            Phase::InjectPending { .. }
            | Phase::Stream { .. }
            | Phase::Dispatch { .. }
            | Phase::ExecuteTools { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. } => Self::Running,
            Phase::Parked { .. } => Self::Parked,
            Phase::Done { outcome, .. } => match outcome {
                Outcome::Completed => Self::Completed,
                Outcome::Failed => Self::Failed,
                Outcome::Blocked => Self::Blocked,
                Outcome::Cancelled => Self::Cancelled,
                Outcome::TimedOut => Self::TimedOut,
            },
        }
    }
}

impl Status {
    /// The run has ended: the status is its outcome.
    pub fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Blocked | Self::Cancelled | Self::TimedOut => true,
            Self::Queued | Self::Running | Self::Waiting | Self::Parked => false,
        }
    }
}

impl FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|status| status.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a status; expected one of {names}")
        })
    }
}

/// What the run waits for beside its own work, in one phrase; none if it waits for nothing.
pub(super) fn waiting_for(state: &RunState) -> Option<String> {
    match &state.core.phase {
        Phase::Queued => Some("its lane".to_owned()),
        Phase::Stream { stage: StreamStage::Backoff { until }, .. } => {
            Some(format!("until {}", rfc3339(*until)))
        }
        Phase::Parked { reason, .. } => Some(match reason {
            ParkReason::Approval => of_calls("approval", state, CallStatus::AwaitingApproval),
            ParkReason::UnknownOutcome => of_calls("unknown outcome", state, CallStatus::Unknown),
            ParkReason::Quarantine | ParkReason::Budget(_) | ParkReason::Missing(_) => reason.to_string(),
        }),
        // Other calls of the batch may still run.
        Phase::ExecuteTools { .. } => {
            [("approval", CallStatus::AwaitingApproval), ("unknown outcome", CallStatus::Unknown)]
                .into_iter()
                .find(|(_, status)| !calls_in(state, *status).is_empty())
                .map(|(what, status)| of_calls(what, state, status))
        }
        Phase::InjectPending { .. }
        | Phase::Stream { .. }
        | Phase::Dispatch { .. }
        | Phase::Finalize { .. }
        | Phase::Compact { .. }
        | Phase::Done { .. } => None,
    }
}

fn of_calls(what: &str, state: &RunState, status: CallStatus) -> String {
    let turn = turn_of(&state.core.phase).unwrap_or_default();
    let calls = calls_in(state, status);
    let names: Vec<String> = calls.iter().map(|call| call_name(state.core.run, turn, *call)).collect();
    format!("{what} of {}", names.join(", "))
}

/// Indices of the calls in flight that are in this status.
pub(super) fn calls_in(state: &RunState, status: CallStatus) -> Vec<u16> {
    let calls = state.batch.as_ref().map_or(&[][..], |Batch { calls, .. }| calls);
    (0u16..).zip(calls).filter(|(_, call)| call.status == status).map(|(index, _)| index).collect()
}

/// Ordinal of the turn that a phase is in; for a parked run, of the phase it returns to.
pub(super) fn turn_of(phase: &Phase) -> Option<u32> {
    match phase {
        Phase::InjectPending { turn, .. }
        | Phase::Stream { turn, .. }
        | Phase::Dispatch { turn, .. }
        | Phase::ExecuteTools { turn, .. }
        | Phase::Finalize { turn, .. }
        | Phase::Compact { turn, .. } => Some(*turn),
        Phase::Parked { from, .. } => turn_of(from),
        Phase::Queued | Phase::Done { .. } => None,
    }
}
