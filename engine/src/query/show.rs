//! One run in full.
//!
//! Owns `show`: everything that a person or a script may ask of one run without reading its whole journal.

use std::path::PathBuf;

use model::guard::retry::{Counts, Retries};
use model::input::Submission;
use model::message::Usage;
use model::state::{Core, Cursors, Limits};
use model::{Message, Millis, ParkReason, Phase, RunId, RunState};
use serde::Serialize;
use serde_json::Value;
use store::{Hash, Store};

use super::attempts::AttemptRow;
use super::list::RunRow;
use super::money::UsdIs;
use super::names::{call_name, class_name};
use super::recent::{BlockedLoop, Recent};
use super::routes::RoutesView;
use super::status::turn_of;
use super::turns::{EarlierTurns, TurnRow};
use super::why::quarantine;
use super::{Snapshot, present};
use crate::config::SnapshotHash;
use crate::driver::read_first;
use crate::error::Error;
use crate::job::JobFacts;

/// Characters of a prompt that are shown.
const PROMPT_CHARS_MAX: usize = 500;

/// One run in full.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunView {
    /// What the list says of it.
    #[serde(flatten)]
    pub row: RunRow,
    /// What it was asked.
    #[serde(flatten)]
    pub job: JobView,
    /// Why it ended, unless it completed, or why it is held back.
    pub reason: Option<String>,
    /// What it may ask of models, and who pays.
    pub routes: RoutesView,
    /// What it has done.
    pub counters: Counters,
    /// How near the guards are.
    pub guards: Guards,
    /// Tokens and money.
    #[serde(flatten)]
    pub spending: Spending,
    /// Its caps.
    pub limits: LimitsView,
    /// Its deadline.
    pub deadline: DeadlineView,
    /// Where its chain is, and who continues it.
    #[serde(flatten)]
    pub chain: Chain,
    /// Its inbox.
    pub inbox: InboxView,
    /// The calls of the batch under way.
    pub calls: Vec<CallRow>,
    /// What the turns took that are before the table; none if it has them all.
    pub earlier_turns: Option<EarlierTurns>,
    /// The newest turns, oldest first: those of the last 4096 records.
    pub turn_table: Vec<TurnRow>,
    /// The newest model calls that did not bring an answer, oldest first, and what followed.
    pub attempts: Vec<AttemptRow>,
}

/// What a run was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobView {
    /// The beginning of its prompts' text.
    pub prompt: String,
    /// Thinking level in force.
    pub thinking: String,
    /// Directory that its tools work in.
    pub workspace: Option<PathBuf>,
    /// Names of its tools.
    pub tools: Vec<String>,
    /// Names the settings that it keeps; none if it goes by those in force.
    pub config: Option<SnapshotHash>,
}

/// What a run has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Transitions.
    pub transitions: u64,
    /// Model calls made, lost ones included.
    pub model_calls: u64,
    /// Model calls whose answer was lost.
    pub calls_lost: u64,
    /// Tool calls whose body was started.
    pub tool_calls: u64,
    /// Model calls tried again, and why.
    pub retries: RetryCounters,
}

/// Retries of a run. Each counter is for a kind of failure; those from `passing` on start anew with each model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RetryCounters {
    /// What the retry budget counts.
    pub charges: u8,
    /// The most charges.
    pub budget: u8,
    /// Models of the list that were given up.
    pub fallback: u8,
    /// Times that the list of models was asked again.
    pub chain_restarts: u8,
    /// Position in the list of profiles.
    pub profile: u8,
    /// What was done about failures of each kind.
    #[serde(flatten)]
    pub counts: Counts,
}

/// How near the guards are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Guards {
    /// A critical tool loop was seen; the next one ends the run.
    pub critical_tool_loop_seen: bool,
    /// Idle timeouts in a row without progress.
    pub idle_breaker: u8,
    /// Calls that the loop detectors remember.
    pub loop_window: usize,
    /// Loops that were warned of.
    pub loop_warnings: usize,
    /// The loop that its last calls were blocked for.
    pub blocked_loop: Option<BlockedLoop>,
    /// Unclean ends of the engine that it is blamed for since its last completed turn.
    pub crashes: u8,
    /// Untrusted network content is in the turn.
    pub is_tainted: bool,
}

/// Tokens and money.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spending {
    /// Tokens, lost calls as reserved.
    pub usage: UsageView,
    /// Dollars.
    #[serde(serialize_with = "present::dollars")]
    pub usd: u64,
    /// How sure that is.
    pub usd_is: UsdIs,
}

/// Tokens by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageView {
    /// Input tokens that were not cached.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
}

/// Caps; 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitsView {
    /// Wall-clock time in seconds, waiting for a person not counted.
    pub timeout_s: u64,
    /// Turns.
    pub turns: u64,
    /// Model calls.
    pub calls: u64,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Dollars.
    #[serde(serialize_with = "present::dollars")]
    pub usd: u64,
}

/// A deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeadlineView {
    /// When it passes; none means never.
    #[serde(serialize_with = "present::time_or_null")]
    pub at: Option<Millis>,
    /// It stands still since then, because a person is waited for.
    #[serde(serialize_with = "present::time_or_null")]
    pub paused_since: Option<Millis>,
}

/// Where a run's chain is, and who continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// Its newest record.
    pub heads: HeadView,
    /// Hash of the newest record: what a result line carries.
    #[serde(serialize_with = "present::text")]
    pub journal_head: Hash,
    /// Epoch of its owner.
    pub owner_epoch: u64,
}

/// The newest record of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeadView {
    /// Its sequence.
    pub seq: u64,
    /// Its hash.
    #[serde(serialize_with = "present::text")]
    pub hash: Hash,
}

/// An inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InboxView {
    /// Items ever accepted.
    pub accepted: u64,
    /// For each kind of item: one more than the position of the newest that was taken.
    pub taken: TakenView,
}

/// How much of an inbox was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TakenView {
    /// Steering messages.
    pub steering: u64,
    /// Follow-up messages.
    pub follow_up: u64,
    /// Decisions.
    pub control: u64,
}

/// A call of the batch under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallRow {
    /// Its name, `RUN/TURN.N`.
    pub call: String,
    /// The tool's name.
    pub tool: Option<String>,
    /// The call's id.
    pub id: Option<String>,
    /// The arguments as the model wrote them.
    pub args: Value,
    /// How far it is.
    pub status: &'static str,
    /// What may be done about it after a crash.
    pub class: &'static str,
    /// Why a person is asked.
    pub reason: Option<String>,
}

/// One run in full.
pub fn show(store: &dyn Store, run: RunId) -> Result<RunView, Error> {
    let snapshot = Snapshot::load(store, run)?;
    let mut recent = Recent::read(store, &snapshot)?;
    let core = snapshot.core();
    let submission = read_first(store, run)?.submission;
    let facts = JobFacts::of(&submission).map_err(|error| Error::Job(format!("run {run}: {error}")))?;
    let turn_table: Vec<TurnRow> =
        std::mem::take(&mut recent.turns).into_iter().map(|(turn, read)| read.row(turn, &facts)).collect();
    let earlier_turns = EarlierTurns::before(&turn_table, core, &facts);
    let usd_is = turn_table.iter().map(|row| row.usd_is);
    let usd_is = usd_is.chain(earlier_turns.iter().map(|earlier| earlier.usd_is)).max().unwrap_or_default();
    let reason = match &core.phase {
        Phase::Done { reason, .. } => reason.as_ref().map(ToString::to_string),
        Phase::Parked { reason: ParkReason::Quarantine, .. } => Some(quarantine(core)),
        Phase::Parked { .. }
        | Phase::Queued
        | Phase::InjectPending { .. }
        | Phase::Stream { .. }
        | Phase::Dispatch { .. }
        | Phase::ExecuteTools { .. }
        | Phase::Finalize { .. }
        | Phase::Compact { .. } => None,
    };
    Ok(RunView {
        row: RunRow::of(&snapshot),
        job: job(&submission, facts, core),
        reason,
        routes: RoutesView::of(store, run, core)?,
        counters: counters(core),
        guards: guards(&snapshot.state, &recent),
        spending: Spending {
            usage: UsageView::from(core.spent.usage),
            usd: core.spent.usage.usd_micros,
            usd_is,
        },
        limits: LimitsView::from(core.limits),
        deadline: DeadlineView { at: core.deadline.at, paused_since: core.deadline.paused_since },
        chain: Chain {
            heads: HeadView { seq: snapshot.head.seq, hash: snapshot.head.hash },
            journal_head: snapshot.head.hash,
            owner_epoch: core.owner.epoch,
        },
        inbox: InboxView { accepted: snapshot.inbox_len, taken: TakenView::from(core.cursors) },
        calls: calls(&snapshot.state, &recent),
        earlier_turns,
        turn_table,
        attempts: recent.attempts.into(),
    })
}

fn job(submission: &Submission, facts: JobFacts, core: &Core) -> JobView {
    let texts: Vec<String> = submission.prompts.iter().map(Message::joined_text).collect();
    JobView {
        prompt: texts.join("\n").chars().take(PROMPT_CHARS_MAX).collect(),
        thinking: core.thinking.to_string(),
        workspace: facts.workspace,
        tools: facts.tools.to_vec(),
        config: facts.config,
    }
}

fn counters(core: &Core) -> Counters {
    Counters {
        transitions: core.seq,
        model_calls: core.spent.model_calls,
        calls_lost: core.spent.calls_lost,
        tool_calls: core.spent.tool_calls,
        retries: RetryCounters::from(core.retries),
    }
}

fn guards(state: &RunState, recent: &Recent) -> Guards {
    Guards {
        critical_tool_loop_seen: state.core.critical_tool_loop_seen,
        idle_breaker: state.core.retries.counts.idle_breaker,
        loop_window: state.window.len(),
        loop_warnings: state.warnings.len(),
        blocked_loop: recent.blocked_loop.clone(),
        crashes: state.core.crashes.since_turn,
        is_tainted: state.core.is_tainted,
    }
}

fn calls(state: &RunState, recent: &Recent) -> Vec<CallRow> {
    let (Some(turn), Some(batch)) = (turn_of(&state.core.phase), &state.batch) else { return Vec::new() };
    let row = |(index, call): (u16, &model::state::Call)| {
        let asked = recent.call(index);
        CallRow {
            call: call_name(state.core.run, turn, index),
            tool: asked.map(|asked| asked.name.clone()),
            id: asked.map(|asked| asked.id.clone()),
            args: asked.map_or(Value::Null, |asked| asked.arguments.value()),
            status: call.status.name(),
            class: class_name(call.class),
            reason: recent.asked(index).map(str::to_owned),
        }
    };
    (0..).zip(&batch.calls).map(row).collect()
}

impl From<Retries> for RetryCounters {
    fn from(retries: Retries) -> Self {
        Self {
            charges: retries.charges,
            budget: retries.budget,
            fallback: retries.chain.fallback,
            chain_restarts: retries.chain.restarts,
            profile: retries.profile,
            counts: retries.counts,
        }
    }
}

impl From<Usage> for UsageView {
    fn from(usage: Usage) -> Self {
        let Usage { input, output, cache_read, cache_write, usd_micros: _ } = usage;
        Self { input, output, cache_read, cache_write }
    }
}

impl From<Limits> for LimitsView {
    fn from(limits: Limits) -> Self {
        let Limits { time_ms, turns, calls, tokens, usd_micros } = limits;
        Self { timeout_s: time_ms / 1000, turns, calls, tokens, usd: usd_micros }
    }
}

impl From<Cursors> for TakenView {
    fn from(cursors: Cursors) -> Self {
        let Cursors { steering, follow_up, control } = cursors;
        Self { steering, follow_up, control }
    }
}
