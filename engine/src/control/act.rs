//! What can be done to a run from outside.
//!
//! Owns the list of acts and how each is done; the owner does it for a client, and a command without an owner does it
//! on the engine that it opens for it. It must never acknowledge before the act is durable.

use model::input::{Approval, Extension, Resolution};
use model::{Label, Message, RunId};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::error::Error;

/// An act on one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// A message for the running work.
    Steer {
        /// The message.
        text: String,
    },
    /// A message for when the run would otherwise end.
    FollowUp {
        /// The message.
        text: String,
    },
    /// Ends the run.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Lets a call run that waits for approval.
    Approve {
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
    },
    /// Refuses a call that waits for approval.
    Deny {
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// Why; the model is told.
        reason: String,
    },
    /// Says what became of a call whose outcome is unknown.
    Resolve {
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// What became of it.
        resolution: Resolution,
        /// Why.
        reason: String,
    },
    /// Lets a parked run go on.
    Release,
    /// Raises limits.
    Extend(Extension),
}

impl Act {
    /// The name used everywhere.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Steer { .. } => "steer",
            Self::FollowUp { .. } => "follow_up",
            Self::Cancel { .. } => "cancel",
            Self::Approve { .. } => "approve",
            Self::Deny { .. } => "deny",
            Self::Resolve { .. } => "resolve",
            Self::Release => "release",
            Self::Extend(_) => "extend",
        }
    }

    /// Does it. Once this is `Ok` the act is durable; with the same key it is done once.
    pub async fn perform(&self, engine: &Engine, run: RunId, key: &str) -> Result<(), Error> {
        let handle = engine.handle(run);
        let key = Some(key);
        match self {
            Self::Steer { text } => handle.steer(message(text, engine)?, key).await,
            Self::FollowUp { text } => handle.follow_up(message(text, engine)?, key).await,
            Self::Cancel { reason } => handle.cancel(reason, key).await,
            Self::Approve { turn, call } => handle.decide(*turn, *call, Approval::Approve, key).await,
            Self::Deny { turn, call, reason } => {
                let decision = Approval::Deny(Label::from(reason.as_str()));
                handle.decide(*turn, *call, decision, key).await
            }
            Self::Resolve { turn, call, resolution, reason } => {
                handle.resolve(*turn, *call, *resolution, reason, key).await
            }
            Self::Release => handle.release(key).await,
            Self::Extend(by) => handle.extend(*by, key).await,
        }
    }
}

/// A message that says something.
fn message(text: &str, engine: &Engine) -> Result<Message, Error> {
    if text.trim().is_empty() {
        return Err(Error::Job("the message is empty; say what the model is to be told".to_owned()));
    }
    Ok(Message::user(text, engine.now()))
}
