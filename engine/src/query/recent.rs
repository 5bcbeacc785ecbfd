//! The newest records of a run, read for what its state does not keep: names of calls, reasons, turns.
//!
//! Owns one bounded look at the end of a chain: what it costs does not grow with the run.

use std::collections::{BTreeMap, VecDeque};

use model::input::{Failure, HookAnswer};
use model::message::{AssistantMessage, ToolCall};
use model::state::Core;
use model::{Fact, Millis, Moved, Phase, ToolResult};
use serde::Serialize;
use store::{Store, Stream};

use super::attempts::{AttemptRow, decided};
use super::status::turn_of;
use super::turns::Turn;
use super::{PAGE, Snapshot, core_of};
use crate::driver::decode_moved;
use crate::error::Error;
use crate::keys;

/// Records that are looked at: some hundreds of turns, and any batch with the answer that it belongs to.
const RECORDS_MAX: u64 = 4096;

/// Failed attempts that are shown: as many as a run may have charges.
const ATTEMPTS_MAX: usize = 160;

/// What the newest records say.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The newest turns.
    pub(super) turns: BTreeMap<u32, Turn>,
    /// Why the newest model call failed and what was decided, if no answer came since.
    pub(super) failure: Option<String>,
    /// The newest model calls that did not bring an answer.
    pub(super) attempts: VecDeque<AttemptRow>,
    /// The loop that the newest batch was blocked for.
    pub(super) blocked_loop: Option<BlockedLoop>,
    answer: Option<Box<AssistantMessage>>,
    asked: BTreeMap<u16, String>,
}

/// Why a batch was blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockedLoop {
    /// Name of the detector.
    pub detector: String,
    /// How often the action was seen, by the detector's own count.
    pub count: u64,
}

impl Recent {
    pub(super) fn read(store: &dyn Store, snapshot: &Snapshot) -> Result<Self, Error> {
        let run = snapshot.run;
        let start = snapshot.head.seq.saturating_sub(RECORDS_MAX);
        let mut recent = Self::default();
        let mut before: Option<Core> = None;
        let mut next = start;
        // What was committed since the snapshot is not part of its totals.
        while next <= snapshot.head.seq {
            let records = store.read_journal(Stream::Run(keys::run_key(run)), next, PAGE)?;
            let Some(last) = records.last() else { break };
            next = last.head.seq.saturating_add(1);
            for record in records.into_iter().filter(|record| record.head.seq <= snapshot.head.seq) {
                let after = core_of(run, &record)?;
                let moved = decode_moved(run, record.payload)?;
                if let (Some(before), Some(after)) = (&before, &after) {
                    recent.count(before, after);
                    if let Some(moved) = moved {
                        recent.note_failure(before, &moved, after.clock);
                        recent.note(*moved, &after.phase);
                    }
                }
                before = after;
            }
        }
        if start > 0 {
            // The beginning of the first turn was not seen.
            recent.turns.pop_first();
        }
        Ok(recent)
    }

    /// A call of the newest batch.
    pub(super) fn call(&self, index: u16) -> Option<&ToolCall> {
        self.answer.as_ref()?.calls().nth(usize::from(index))
    }

    /// Why a person is asked about a call of the newest batch.
    pub(super) fn asked(&self, index: u16) -> Option<&str> {
        self.asked.get(&index).map(String::as_str)
    }

    fn count(&mut self, before: &Core, after: &Core) {
        let Some(turn) = turn_of(&before.phase) else { return };
        let attempt = if let Phase::Stream { attempt, .. } = before.phase { Some(attempt) } else { None };
        self.turns.entry(turn).or_default().count(before, after, attempt);
    }

    fn note(&mut self, moved: Moved, after: &Phase) {
        if let Some(blocked) = moved.results.iter().find_map(|(_, result)| blocked_loop(result)) {
            self.blocked_loop = Some(blocked);
        }
        if let Fact::ModelAnswered { message } = moved.input.fact {
            self.answered(message, after);
        } else if let Fact::HookReturned { hook, answer: HookAnswer::Ask(reason) } = &moved.input.fact
            && let Some(call) = hook.call
        {
            self.asked.insert(call, reason.to_string());
        }
    }

    fn note_failure(&mut self, before: &Core, moved: &Moved, at: Millis) {
        let Fact::ModelFailed { failure, .. } = &moved.input.fact else { return };
        let decision = moved.decision.as_ref();
        let text = failure_text(failure);
        self.failure = Some(match decision {
            Some(decision) => format!("{text} ({})", decided(decision)),
            None => text,
        });
        self.attempts.extend(AttemptRow::of(before, failure, decision, at));
        if self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.pop_front();
        }
    }

    fn answered(&mut self, message: Box<AssistantMessage>, after: &Phase) {
        self.failure = None;
        if let Phase::Dispatch { turn, .. } = after {
            self.turns.entry(*turn).or_default().tools =
                message.calls().map(|call| call.name.clone()).collect();
            self.answer = Some(message);
            self.asked.clear();
            self.blocked_loop = None;
        }
    }
}

/// Kind and words of a failure.
pub(super) fn failure_text(failure: &Failure) -> String {
    let words = failure.message.to_string();
    if words.is_empty() {
        failure.kind.name().to_owned()
    } else {
        format!("{}: {words}", failure.kind.name())
    }
}

fn blocked_loop(result: &ToolResult) -> Option<BlockedLoop> {
    if result.details.is_empty_object() {
        return None;
    }
    let details = result.details.value();
    let intervention = details.get("intervention")?;
    let detector = intervention.get("detector")?.as_str()?.to_owned();
    Some(BlockedLoop { detector, count: intervention.get("count")?.as_u64()? })
}
