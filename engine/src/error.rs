//! The engine's own failures. What is part of a run is an input and journaled; this is what is not.
//!
//! Owns one enum for the library's callers. It must never stand for an outcome of a run.

use model::RunId;
use model::encode::DecodeError;

use crate::config;
use crate::fold::Dangling;
use crate::models::ModelError;

/// Why the engine did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Stored bytes do not decode.
    #[error("run {run}: {source}")]
    Decode {
        /// The run.
        run: RunId,
        /// The decoder's words.
        source: DecodeError,
    },
    /// The stored health of a profile does not decode.
    #[error(transparent)]
    Profile(DecodeError),
    /// The settings that a run started with are not readable.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// A record points at something that is not there.
    #[error(transparent)]
    Dangling(#[from] Dangling),
    /// No provider answers for the job's model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The job cannot be accepted as it is.
    #[error("{0}")]
    Job(String),
    /// No such run.
    #[error("no run {0}; `sprag ls` lists the runs there are")]
    NoSuchRun(String),
    /// A name that does not say which run or call is meant.
    #[error("{0}")]
    Name(String),
    /// The run has ended; nothing can be accepted for it.
    #[error("run {0} has ended; start a new run in its session instead")]
    RunEnded(RunId),
    /// The run is not in a state for this decision.
    #[error("{0}")]
    Decision(String),
    /// The transcript cannot be continued.
    #[error(transparent)]
    NotContinuable(#[from] TranscriptNotContinuable),
    /// The embedding program's event sink failed.
    #[error("the event sink failed: {0}")]
    Sink(String),
    /// The engine could not go on with the run, for a reason of its own; the run continues when it is resumed.
    #[error("{0}")]
    Stopped(String),
    /// The engine itself is wrong.
    #[error("internal error: {0}; please report it with the output of `sprag journal`")]
    Internal(String),
    /// The builder was given something that does not fit.
    #[error("{0}")]
    Setup(String),
}

/// A transcript that no model can be asked to continue: it is empty, or it ends in an assistant message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct TranscriptNotContinuable {
    /// Role of the last message; none if there is no message.
    pub last_role: Option<model::Role>,
    /// Ids of tool calls that have no result.
    pub dangling_calls: Vec<String>,
}

impl TranscriptNotContinuable {
    fn sentence(&self) -> String {
        let dangling = match self.dangling_calls.as_slice() {
            [] => String::new(),
            calls => format!(" and has calls without results ({})", calls.join(", ")),
        };
        match self.last_role {
            None => "cannot continue: the transcript is empty; start a run with a prompt".to_owned(),
            Some(role) => format!(
                "cannot continue: the transcript ends in a message of role {}{dangling}; add a user message first",
                role.name()
            ),
        }
    }
}
