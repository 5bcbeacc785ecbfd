//! What can be accepted for a run from outside.
//!
//! Owns the shape of an inbox item. An item is never changed or marked: the run's cursors say what was taken.

use serde::{Deserialize, Serialize};

use crate::ids::Label;
use crate::input::{Approval, Extension, Resolution};
use crate::message::Message;

/// One accepted item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A message for the running work.
    Steering(Message),
    /// A message for when the run would otherwise end.
    FollowUp(Message),
    /// A person's decision.
    Control(Control),
}

/// A person's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// End the run.
    Cancel {
        /// Why.
        reason: Label,
    },
    /// Decide on a call that needs approval.
    Approve {
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// The decision.
        decision: Approval,
    },
    /// Decide on a call whose outcome is unknown.
    Resolve {
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// The decision.
        resolution: Resolution,
        /// Why.
        reason: Label,
    },
    /// Let a parked run go on.
    Release,
    /// Raise limits.
    Extend(Extension),
}
