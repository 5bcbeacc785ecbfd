//! What became of model calls that did not bring an answer.
//!
//! Owns one row a failed attempt, as a person reads it. It must never decide anew: the record says what was decided.

use model::guard::retry::{Action, CompactCause, Decision};
use model::input::Failure;
use model::state::Core;
use model::{Fact, Millis, Phase, RunId};
use serde::Serialize;
use store::{Store, Stream};

use super::{core_of, present};
use crate::driver::decode_moved;
use crate::error::Error;
use crate::keys;

/// A model call that did not bring an answer, and what followed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttemptRow {
    /// Ordinal of the turn, from 0.
    pub turn: u32,
    /// Ordinal of the try within the turn, from 0.
    pub attempt: u32,
    /// When it ended.
    #[serde(serialize_with = "present::time")]
    pub at: Millis,
    /// The model that was asked.
    pub model: String,
    /// Position of the profile in the model's list.
    pub profile: u8,
    /// The kind of failure.
    pub failure: &'static str,
    /// The provider's words.
    pub message: String,
    /// The branch of the retry guard that applied; none if nothing is tried again in this run.
    pub branch: Option<&'static str>,
    /// What followed.
    pub followed: String,
    /// The wait before the next call, in seconds.
    pub wait_s: f64,
}

impl AttemptRow {
    /// The call that `before` had under way; none if it had none.
    pub(super) fn of(
        before: &Core,
        failure: &Failure,
        decision: Option<&Decision>,
        at: Millis,
    ) -> Option<Self> {
        let Phase::Stream { turn, attempt, .. } = before.phase else { return None };
        let wait_ms = decision.map_or(0, |decision| decision.action.wait_ms());
        Some(Self {
            turn,
            attempt,
            at,
            model: before.model.to_string(),
            profile: before.retries.profile,
            failure: failure.kind.name(),
            message: failure.message.to_string(),
            branch: decision.map(|decision| decision.branch.name()),
            followed: decision
                .map_or_else(|| "the run ended".to_owned(), |decision| followed(&decision.action)),
            wait_s: wait_ms as f64 / 1e3,
        })
    }
}

/// The model call that the newest record of a run says has failed; none if that record says something else. Costs two
/// records, however long the run is.
pub fn failed_now(store: &dyn Store, run: RunId) -> Result<Option<AttemptRow>, Error> {
    let key = keys::run_key(run);
    let Some(newest) = store.load(key)?.head else { return Ok(None) };
    let mut records = store.read_journal(Stream::Run(key), newest.seq.saturating_sub(1), 2)?;
    let (Some(record), Some(before)) = (records.pop(), records.pop()) else { return Ok(None) };
    let Some(moved) = decode_moved(run, record.payload)? else { return Ok(None) };
    let Fact::ModelFailed { failure, .. } = &moved.input.fact else { return Ok(None) };
    let before = core_of(run, &before)?;
    let at = Millis(record.at_ms);
    Ok(before.and_then(|before| AttemptRow::of(&before, failure, moved.decision.as_ref(), at)))
}

/// Branch and action in a few words: `same_model_rate_limit: again in 10 s`.
pub(super) fn decided(decision: &Decision) -> String {
    format!("{}: {}", decision.branch.name(), followed(&decision.action))
}

fn followed(action: &Action) -> String {
    let seconds = |ms: &u64| format!("{} s", *ms as f64 / 1e3);
    match action {
        Action::Retry { wait_ms: 0 } => "again at once".to_owned(),
        Action::Retry { wait_ms } => format!("again in {}", seconds(wait_ms)),
        Action::Compact(CompactCause::Overflow) => "a summary, because the context does not fit".to_owned(),
        Action::Compact(CompactCause::Timeout) => "a summary, because the context is large".to_owned(),
        Action::Truncate => "again with large tool results cut".to_owned(),
        Action::RefreshKey => "again with the key fetched anew".to_owned(),
        Action::LowerThinking { from, to } => {
            format!("again with thinking {} instead of {}", to.name(), from.name())
        }
        Action::RotateProfile { profile } => format!("again with profile {profile}"),
        Action::Fallback { model } => format!("model {model} instead"),
        Action::RestartChain { model: Some(model), wait_ms } => {
            format!("the list of models from {model} on, in {}", seconds(wait_ms))
        }
        Action::RestartChain { model: None, wait_ms } => format!("the model anew in {}", seconds(wait_ms)),
        Action::Revise => "one more pass".to_owned(),
        Action::Proceed => "the run went on".to_owned(),
        Action::End(liveness) => format!("the run ended: {}", liveness.outcome().name()),
    }
}
