//! How a job ended: its result line.
//!
//! Owns the fields of a result line and how they are read: from the run's committed state and the last records of its
//! chain, so that a line can be written again at any time and is the same.

use model::encode::Part;
use model::{Content, Mark, Message, Moved, Outcome, Phase, RunId, RunState};
use serde::{Deserialize, Serialize};
use store::{Record, Store, Stream};

use crate::clock::rfc3339;
use crate::driver::{decode_moved, read_first};
use crate::error::Error;
use crate::gc::Tomb;
use crate::job::{JobFacts, Meta};
use crate::keys;
use crate::query::UsdIs;

/// Records read at once, from the end of a chain.
const PAGE: u64 = 16;

/// Error of a line that was never written while its run was there.
const PURGED: &str = "the run was purged before this line was written; only its outcome is known";

/// One line of a results file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultLine {
    /// Id of the job.
    pub custom_id: String,
    /// Its run.
    pub run: String,
    /// How it ended.
    pub outcome: String,
    /// Text of the last assistant message.
    pub text: String,
    /// Turns that got a complete answer.
    pub turns: u64,
    /// Tool calls whose body was started.
    pub tool_calls: u64,
    /// Model calls made, lost ones included.
    pub model_calls: u64,
    /// Model calls whose answer was lost in a crash.
    pub calls_lost: u64,
    /// Tokens.
    pub usage: TokenUsage,
    /// Dollars.
    pub usd: f64,
    /// How sure that is; left out if every token was counted.
    #[serde(default, skip_serializing_if = "UsdIs::is_counted")]
    pub usd_is: UsdIs,
    /// When it was accepted; none if that is not known any more.
    pub started_at: Option<String>,
    /// When it ended; none if that is not known any more.
    pub ended_at: Option<String>,
    /// Why it ended; none if it completed.
    pub error: Option<String>,
    /// Hash of the record that ended it.
    pub journal_head: String,
}

/// Tokens by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Input tokens that were not cached.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
}

/// How one run ended, and its place among the ends of its batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) place: u64,
    pub(super) line: ResultLine,
}

/// What is committed of a run, and what was stored of its job.
pub(crate) struct Committed {
    pub(crate) state: RunState,
    pub(crate) meta: Meta,
}

impl Committed {
    /// The run's committed state; none if there is no such run. Costs one look at the state, never a barrier.
    pub(crate) fn of(store: &dyn Store, run: RunId) -> Result<Option<Self>, Error> {
        let values = store.scan(&store::run_prefix(keys::run_key(run)), None, usize::MAX)?;
        let value =
            |key: Vec<u8>| values.iter().find(|(found, _)| *found == key).map(|(_, value)| value.clone());
        let state = RunState::decode(|part: Part| value(keys::part(run, part)))
            .map_err(|source| Error::Decode { run, source })?;
        let meta = value(keys::meta(run)).and_then(|bytes| Meta::from_bytes(&bytes)).unwrap_or_default();
        Ok(state.map(|state| Self { state, meta }))
    }
}

impl Ending {
    /// How the run of a job ended; none if it has not.
    pub(super) fn read(
        store: &dyn Store,
        batch: &str,
        custom_id: &str,
        run: RunId,
    ) -> Result<Option<Self>, Error> {
        let Some(Committed { state, meta }) = Committed::of(store, run)? else { return Ok(None) };
        let core = &state.core;
        let Phase::Done { outcome, reason } = &core.phase else { return Ok(None) };
        let tail = Tail::read(store, core.run, core.seq)?;
        let facts = JobFacts::of(&read_first(store, run)?.submission)
            .map_err(|error| Error::Job(format!("run {run}: {error}")))?;
        let (place, spent) = (tail.place(batch), core.spent);
        let line = ResultLine {
            custom_id: custom_id.to_owned(),
            run: core.run.to_string(),
            outcome: outcome.name().to_owned(),
            text: tail.text,
            turns: spent.turns,
            tool_calls: spent.tool_calls,
            model_calls: spent.model_calls,
            calls_lost: spent.calls_lost,
            usage: TokenUsage {
                input: spent.usage.input,
                output: spent.usage.output,
                cache_read: spent.usage.cache_read,
                cache_write: spent.usage.cache_write,
            },
            usd: spent.usage.usd_micros as f64 / 1e6,
            usd_is: UsdIs::of_run(&facts, core),
            started_at: Some(rfc3339(model::Millis(meta.submitted_at_ms))),
            ended_at: Some(rfc3339(core.clock)),
            error: (*outcome != Outcome::Completed)
                .then(|| reason.as_ref().map_or_else(|| outcome.name().to_owned(), ToString::to_string)),
            journal_head: tail.head.to_string(),
        };
        Ok(Some(Self { place, line }))
    }

    /// What is left to say of a job whose run was purged before its line was written; none if it was not.
    pub(super) fn of_purged(store: &dyn Store, custom_id: &str, run: RunId) -> Result<Option<Self>, Error> {
        let Some(tomb) = Tomb::of(store, run)? else { return Ok(None) };
        let head = store.load(keys::run_key(run))?.head;
        let line = ResultLine {
            custom_id: custom_id.to_owned(),
            run: run.to_string(),
            outcome: tomb.outcome.name().to_owned(),
            text: String::new(),
            turns: 0,
            tool_calls: 0,
            model_calls: 0,
            calls_lost: 0,
            usage: TokenUsage::default(),
            usd: 0.0,
            usd_is: UsdIs::Unknown,
            started_at: None,
            ended_at: None,
            error: Some(PURGED.to_owned()),
            journal_head: head.map(|head| head.hash.to_string()).unwrap_or_default(),
        };
        Ok(Some(Self { place: 0, line }))
    }
}

/// The end of a chain.
struct Tail {
    head: store::Hash,
    puts: Vec<store::Put>,
    /// Of the last assistant message.
    text: String,
}

impl Tail {
    /// Reads back from the record that ended the run until an assistant message is found.
    fn read(store: &dyn Store, run: RunId, last: u64) -> Result<Self, Error> {
        let mut tail = Self { head: store::Hash::default(), puts: Vec::new(), text: String::new() };
        let mut end = last.saturating_add(1);
        while end > 0 {
            let start = end.saturating_sub(PAGE);
            let limit = usize::try_from(end - start).unwrap_or_default();
            let records = store.read_journal(Stream::Run(keys::run_key(run)), start, limit)?;
            for Record { head, payload, puts, .. } in records.into_iter().rev() {
                if head.seq == last {
                    (tail.head, tail.puts) = (head.hash, puts);
                }
                if let Some(text) = decode_moved(run, payload)?.and_then(|moved| assistant_text(&moved)) {
                    tail.text = text;
                    return Ok(tail);
                }
            }
            end = start;
        }
        Ok(tail)
    }

    /// The place that the store gave the end in its batch; 0 if it has none.
    fn place(&self, batch: &str) -> u64 {
        let key = keys::ends(batch);
        let sum = self.puts.iter().rev().find(|put| put.key == key).and_then(|put| put.value.as_deref());
        sum.and_then(|sum| sum.try_into().ok()).map_or(0, u64::from_le_bytes)
    }
}

/// Text of the last assistant message that the record brought into the transcript.
fn assistant_text(moved: &Moved) -> Option<String> {
    moved.marks.iter().rev().find_map(|mark| match mark {
        Mark::MessageEnd(Content::Answer) => {
            let answer = moved.input.fact.answer()?;
            Some(Message::Assistant(Box::new(answer.clone())).joined_text())
        }
        Mark::MessageEnd(Content::Made(index)) => {
            let made = moved.made.get(usize::try_from(*index).ok()?)?;
            matches!(made, Message::Assistant(_)).then(|| made.joined_text())
        }
        Mark::MessageEnd(Content::Prompt(_) | Content::Inbox(_) | Content::Opening | Content::Result(_))
        | Mark::AgentStart
        | Mark::TurnStart
        | Mark::MessageStart(_)
        | Mark::ToolStart { .. }
        | Mark::ToolEnd { .. }
        | Mark::TurnEnd
        | Mark::AgentEnd => None,
    })
}
