//! The words of the control socket.
//!
//! Owns requests, replies and refusals as JSON. A change that an older peer would misunderstand raises [`PROTOCOL`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::act::Act;
use crate::error::Error;
use crate::gc::Retention;
use crate::query;

/// Version of the protocol. Both sides must have the same.
pub const PROTOCOL: u32 = 1;
/// The most bytes of a request, its newline included.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What a client asks. A run is named by its id or an unambiguous beginning of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first request of every client. Answered by [`Welcome`].
    Hello {
        /// The client's [`PROTOCOL`].
        protocol: u32,
        /// The client's version of Sprag.
        version: String,
    },
    /// Is anybody there? Answered by null.
    Ping,
    /// The list of runs.
    Ls {
        /// Which of them.
        filter: query::Filter,
    },
    /// One run in full.
    Show {
        /// The run.
        run: String,
    },
    /// What a run waits for.
    Why {
        /// The run.
        run: String,
    },
    /// The events of a run. Ends with true if the run has ended.
    Events {
        /// The run.
        run: String,
        /// The place after which to start, `SEQ` or `SEQ.N`; none: the first event.
        after: Option<String>,
        /// Go on, live updates included, until the run ends.
        follow: bool,
    },
    /// Act on a run. Answered by the run's id once the act is durable.
    Act {
        /// The run.
        run: String,
        /// Idempotency key: the same act under the same key is done once.
        key: String,
        /// What to do.
        act: Act,
    },
    /// Forget runs that have ended. Answered by [`crate::gc::Reclaimed`].
    Gc {
        /// Which of them.
        retention: Retention,
    },
    /// Stop the owner. Answered by [`Left`]; the connection is closed when the owner's process ends.
    Stop {
        /// Let open turns end first.
        drain: bool,
    },
}

/// What the owner answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// One event of a run; more follow, then one of the others.
    Event(Value),
    /// The request is done; what it asked for.
    Ok(Value),
    /// The request is refused.
    Error(Refusal),
}

/// The owner's answer to [`Request::Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The owner's [`PROTOCOL`].
    pub protocol: u32,
    /// The owner's version of Sprag.
    pub version: String,
    /// The owner's process.
    pub pid: u32,
}

/// The owner's answer to [`Request::Stop`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The owner's process.
    pub pid: u32,
    /// Runs that have not ended and can be resumed.
    pub left: usize,
    /// Commands of theirs that run on under supervisors: a resume adopts them, a cancel of their run ends them.
    pub commands: usize,
}

/// Why something was not done: a sentence for a person, and what a program may do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of reason.
    pub kind: Kind,
    /// The reason, with the next step.
    pub message: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What was asked for is not possible as it was written.
    Request,
    /// There is no such run or call, or it is past what was asked for.
    Run,
    /// There is no room for more; later there may be.
    Busy,
    /// The store cannot do it.
    Store,
    /// A fault of the program.
    Internal,
}

impl Kind {
    /// The kind of an error of the engine.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Store(error) => Self::of_store(error),
            Error::Decode { .. } | Error::Profile(_) | Error::Config(_) | Error::Dangling(_) => Self::Store,
            Error::NoSuchRun(_) | Error::RunEnded(_) | Error::Decision(_) | Error::NotContinuable(_) => {
                Self::Run
            }
            Error::Model(_) | Error::Job(_) | Error::Setup(_) | Error::Name(_) => Self::Request,
            Error::Sink(_) | Error::Stopped(_) | Error::Internal(_) => Self::Internal,
        }
    }

    /// The kind of an error of the store.
    pub fn of_store(error: &store::Error) -> Self {
        match error {
            store::Error::Ended { .. } | store::Error::NotEnded { .. } => Self::Run,
            store::Error::InboxFull { .. } => Self::Busy,
            store::Error::NotLocal { .. } | store::Error::TooLarge { .. } => Self::Request,
            store::Error::NoSpace { .. }
            | store::Error::Io { .. }
            | store::Error::ReadOnly { .. }
            | store::Error::Locked { .. }
            | store::Error::Newer { .. }
            | store::Error::Damaged { .. }
            | store::Error::Behind { .. }
            | store::Error::Closed => Self::Store,
            store::Error::Fenced { .. }
            | store::Error::Conflict { .. }
            | store::Error::InboxMoved { .. }
            | store::Error::Duplicate { .. }
            | store::Error::Changed { .. }
            | store::Error::Ceiling { .. }
            | store::Error::Void => Self::Internal,
        }
    }
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        Self { kind: Kind::of(error), message: error.to_string() }
    }
}

impl Refusal {
    /// A request that is not possible as it was written.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self { kind: Kind::Request, message: message.into() }
    }
}

impl Reply {
    /// An answer as JSON.
    pub(super) fn ok(answer: &impl Serialize) -> Self {
        match serde_json::to_value(answer) {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error(Refusal { kind: Kind::Internal, message: error.to_string() }),
        }
    }

    /// The reply as one line.
    pub(super) fn to_line(&self) -> Vec<u8> {
        // Fails only for maps whose keys are not strings, and there are none.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
