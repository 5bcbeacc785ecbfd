//! The committed state of a run.
//!
//! Owns every fact that decides what happens next. It is bounded by construction and holds no transcript; it
//! must never hold anything whose size a model or a tool chooses.

use serde::{Deserialize, Serialize};

use crate::guard::crashes::Crashes;
use crate::guard::loops::{CallFacts, Warnings, Window};
use crate::guard::retry::Retries;
use crate::ids::{Label, Millis, RunId};
use crate::input::{Hook, RecoveryClass, Submission};
use crate::message::Usage;
use crate::phase::{EntryRef, Phase};

/// The committed state of a run, in the parts in which it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunState {
    /// Phase, counters, cursors.
    pub core: Core,
    /// The calls in flight; none outside of a batch.
    pub batch: Option<Batch>,
    /// The loop detectors' history.
    pub window: Window,
    /// Warnings that were already given.
    pub warnings: Warnings,
}

/// Phase, counters, cursors: what changes with every transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The run.
    pub run: RunId,
    /// Where it is.
    pub phase: Phase,
    /// Number of transitions so far; the sequence of the newest record.
    pub seq: u64,
    /// Time of the newest input.
    pub clock: Millis,
    /// Its owner's epoch and the machine's boot.
    pub owner: Owner,
    /// What the embedding program takes part in.
    pub wants: Wants,
    /// Caps.
    pub limits: Limits,
    /// The wall-clock deadline.
    pub deadline: Deadline,
    /// What was used so far.
    pub spent: Spent,
    /// Retry counters.
    pub retries: Retries,
    /// A critical tool loop was seen in this run; the next one ends it.
    pub critical_tool_loop_seen: bool,
    /// How much of the inbox was taken.
    pub cursors: Cursors,
    /// What commands wrote, and whether it is on the disk.
    pub files: Files,
    /// The record that the model's context begins with.
    pub context_from: ContextFrom,
    /// Model and thinking level in force.
    pub model: Label,
    /// Thinking level in force.
    pub thinking: Label,
    /// The open ends of the event stream.
    pub open: OpenEnds,
    /// Untrusted network content is in the turn.
    pub is_tainted: bool,
    /// An abort that was asked for and not yet carried out.
    pub abort: Option<Abort>,
    /// Unclean ends of the engine that it is blamed for.
    pub crashes: Crashes,
}

/// Who works on the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Epoch of the engine.
    pub epoch: u64,
    /// Boot of its machine.
    pub boot_id: [u8; 16],
}

/// What the embedding program takes part in. A hook that is not wanted is never asked and costs no
/// transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// One bit a hook, see [`Wants::hook`].
    pub hooks: u16,
    /// It is asked at every poll: it has sources, or it drives the run itself and may abort there.
    pub has_sources: bool,
    /// It can make summaries.
    pub compacts: bool,
    /// Failed model calls are tried again.
    pub retries: bool,
    /// The files of commands are on the disk before their results count.
    pub syncs_files: bool,
    /// The loop detectors work.
    pub loop_detection: bool,
    /// Each poll takes every message that waits, not one.
    pub drains_all: bool,
}

impl Wants {
    /// True if the hook is to be asked.
    pub fn hook(self, hook: Hook) -> bool {
        self.hooks & Self::bit(hook) != 0
    }

    /// The same with this hook asked.
    pub fn with_hook(self, hook: Hook) -> Self {
        Self { hooks: self.hooks | Self::bit(hook), ..self }
    }

    fn bit(hook: Hook) -> u16 {
        match hook {
            Hook::BeforeAgentRun => 1,
            Hook::BeforeToolBatch => 1 << 1,
            Hook::BeforeToolCall => 1 << 2,
            Hook::AfterToolCall => 1 << 3,
            Hook::AfterToolOutcome => 1 << 4,
            Hook::PrepareNextTurn => 1 << 5,
            Hook::ShouldStopAfterTurn => 1 << 6,
            Hook::BeforeFinalize => 1 << 7,
        }
    }
}

/// Caps of a run; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall-clock time, in milliseconds, waiting for a person not counted.
    pub time_ms: u64,
    /// Turns.
    pub turns: u64,
    /// Model calls.
    pub calls: u64,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Micro-dollars.
    pub usd_micros: u64,
}

/// The wall-clock deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// When it passes; none means never.
    pub at: Option<Millis>,
    /// A person has been waited for since then; that time is added to the deadline.
    pub paused_since: Option<Millis>,
    /// The one extension for a timeout during compaction was given.
    pub was_extended: bool,
}

/// What was used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Turns that have a complete answer.
    pub turns: u64,
    /// Model calls made, lost ones included.
    pub model_calls: u64,
    /// Model calls whose answer was lost in a crash.
    pub calls_lost: u64,
    /// Tool calls whose body was started.
    pub tool_calls: u64,
    /// Tokens and money, lost calls as reserved.
    pub usage: Usage,
    /// Reserved by the call in flight.
    pub reserved: Usage,
}

/// How much of the inbox was taken: for each kind, one more than the position of the newest item taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursors {
    /// Steering messages.
    pub steering: u64,
    /// Follow-up messages.
    pub follow_up: u64,
    /// Decisions: cancel, approval, resolution, release, extension.
    pub control: u64,
}

/// What commands wrote, and whether it is on the disk. A command is as durable as it made itself; only a crash of the
/// machine can tell the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Commands may have written since then what is not on the disk yet.
    pub unsynced_since: Option<Millis>,
    /// The machine went down, files written since then may be missing, and the model was not told yet.
    pub lost_since: Option<Millis>,
}

/// Where the model's context begins: the messages of a base record, then every transcript entry from `first`
/// on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFrom {
    /// Sequence of this run's record that holds the base (a summary, or a context put in place by a hook).
    pub base: Option<u64>,
    /// The first entry after the base; none: the start of the session.
    pub first: Option<EntryRef>,
    /// The session's previous run.
    pub previous: Option<RunId>,
}

/// The open ends of the event stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenEnds {
    /// A `turn_start` has no `turn_end` yet.
    pub turn: bool,
    /// An assistant's `message_start` has no `message_end` yet.
    pub message: bool,
}

/// An abort that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// Who or what asked.
    pub cause: AbortCause,
    /// Why.
    pub reason: Label,
}

/// What asked for an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortCause {
    /// Somebody cancelled.
    Cancel,
    /// The run is handed to another; there is no interruption message.
    Handoff,
    /// The deadline passed.
    Deadline,
    /// The outcome of a call is unknown, and the configuration says to fail.
    UnknownOutcome,
}

/// The calls of one answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The calls, at most [`crate::limits::CALLS_MAX`].
    pub calls: Vec<Call>,
    /// Calls of the answer, those beyond the limit included.
    pub total: u32,
    /// How they run.
    pub mode: BatchMode,
    /// The batch hook was asked, so an abort does not cut short the first call's preparation.
    pub is_vetted: bool,
    /// A poll of this batch found steering.
    pub is_steered: bool,
}

/// How the calls of a batch run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchMode {
    /// All at once.
    Parallel,
    /// One after another.
    Sequential,
    /// Not at all: a critical loop was found.
    Intervened {
        /// It was not the first of the run, which therefore ends.
        is_terminal: bool,
    },
}

/// One call in flight. Its name and arguments are in the transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// How far it is.
    pub status: CallStatus,
    /// What the loop detectors compare.
    pub facts: CallFacts,
    /// What may be done about it after a crash.
    pub class: RecoveryClass,
    /// What its result says.
    pub marks: CallMarks,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallStatus {
    /// Did not run.
    Planned(Plan),
    /// Did not run; a person is asked whether it may.
    AwaitingApproval,
    /// May have run.
    Started,
    /// Has a result, which a hook is looking at.
    Judged {
        /// The hook.
        hook: Judge,
        /// How the call ends.
        then: Ending,
    },
    /// Ran, or may have; nobody knows.
    Unknown,
    /// Has its result, which nothing changes any more.
    Ended(Ending),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It ran.
    Done,
    /// It did not run, because something else was more urgent.
    Skipped,
    /// It did not run, because it could not or was not allowed to.
    Blocked,
}

/// How far a call that did not run is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// Nobody has looked at it yet.
    Waiting,
    /// The hook is asked whether it may run.
    Asking,
    /// It may run.
    Ready,
    /// It will not run; its result is already in the journal.
    Refused,
}

/// The hook that looks at a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Judge {
    /// The one for calls that ran.
    AfterToolCall,
    /// The one for every call.
    AfterToolOutcome,
}

/// What a call's result says, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallMarks(u16);

impl CallMarks {
    const STARTED: u16 = 1;
    const TERMINATES: u16 = 1 << 1;
    const NETWORK: u16 = 1 << 2;
    const OTHER_BOOT: u16 = 1 << 3;
    const INVALID: u16 = 1 << 4;
    const SHOWN: u16 = 1 << 5;
    const APPROVED: u16 = 1 << 6;
    const ANSWERED: u16 = 1 << 7;
    const IMMEDIATE: u16 = 1 << 8;

    fn with(self, bit: u16, is_set: bool) -> Self {
        Self(if is_set { self.0 | bit } else { self.0 & !bit })
    }

    /// Its body was started.
    pub fn is_started(self) -> bool {
        self.0 & Self::STARTED != 0
    }

    /// Its result asks the loop to stop.
    pub fn terminates(self) -> bool {
        self.0 & Self::TERMINATES != 0
    }

    /// Its result holds network content.
    pub fn is_network(self) -> bool {
        self.0 & Self::NETWORK != 0
    }

    /// It was started on another boot of the machine: the absence of a mark proves nothing.
    pub fn is_of_other_boot(self) -> bool {
        self.0 & Self::OTHER_BOOT != 0
    }

    /// Its arguments were not valid.
    pub fn is_invalid(self) -> bool {
        self.0 & Self::INVALID != 0
    }

    /// Its `tool_execution_start` was shown.
    pub fn is_shown(self) -> bool {
        self.0 & Self::SHOWN != 0
    }

    /// A person has approved it.
    pub fn is_approved(self) -> bool {
        self.0 & Self::APPROVED != 0
    }

    /// Its result message is in the transcript.
    pub fn is_answered(self) -> bool {
        self.0 & Self::ANSWERED != 0
    }

    /// Its tool answered while preparing, without running.
    pub fn is_immediate(self) -> bool {
        self.0 & Self::IMMEDIATE != 0
    }

    pub(crate) fn set_immediate(&mut self, is_set: bool) {
        *self = self.with(Self::IMMEDIATE, is_set);
    }

    pub(crate) fn set_started(&mut self, is_set: bool) {
        *self = self.with(Self::STARTED, is_set);
    }

    pub(crate) fn set_terminates(&mut self, is_set: bool) {
        *self = self.with(Self::TERMINATES, is_set);
    }

    pub(crate) fn set_network(&mut self, is_set: bool) {
        *self = self.with(Self::NETWORK, is_set);
    }

    pub(crate) fn set_other_boot(&mut self, is_set: bool) {
        *self = self.with(Self::OTHER_BOOT, is_set);
    }

    pub(crate) fn set_invalid(&mut self, is_set: bool) {
        *self = self.with(Self::INVALID, is_set);
    }

    pub(crate) fn set_shown(&mut self, is_set: bool) {
        *self = self.with(Self::SHOWN, is_set);
    }

    pub(crate) fn set_approved(&mut self, is_set: bool) {
        *self = self.with(Self::APPROVED, is_set);
    }

    pub(crate) fn set_answered(&mut self, is_set: bool) {
        *self = self.with(Self::ANSWERED, is_set);
    }
}

impl BatchMode {
    /// Nothing of the batch runs.
    pub fn is_intervened(self) -> bool {
        match self {
            Self::Intervened { .. } => true,
            Self::Parallel | Self::Sequential => false,
        }
    }
}

impl CallStatus {
    /// The call has its result, which nothing changes any more.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Ended(_) => true,
            Self::Planned(_)
            | Self::AwaitingApproval
            | Self::Started
            | Self::Judged { .. }
            | Self::Unknown => false,
        }
    }

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planned(_) => "planned",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Started => "started",
            Self::Judged { .. } => "judged",
            Self::Unknown => "unknown",
            Self::Ended(Ending::Done) => "done",
            Self::Ended(Ending::Skipped) => "skipped",
            Self::Ended(Ending::Blocked) => "blocked",
        }
    }
}

impl RunState {
    /// The state of a run that was just submitted.
    pub fn new(submission: &Submission, at: Millis) -> Self {
        let limits = submission.limits;
        Self {
            core: Core {
                run: submission.run,
                phase: Phase::Queued,
                seq: 0,
                clock: at,
                owner: submission.owner,
                wants: submission.wants,
                limits,
                deadline: Deadline {
                    at: (limits.time_ms > 0).then(|| at.plus(limits.time_ms)),
                    ..Deadline::default()
                },
                spent: Spent::default(),
                retries: Retries::new(),
                critical_tool_loop_seen: false,
                cursors: Cursors::default(),
                files: Files::default(),
                context_from: ContextFrom::default(),
                model: submission.model.clone(),
                thinking: submission.thinking.clone(),
                open: OpenEnds::default(),
                is_tainted: false,
                abort: None,
                crashes: Crashes::default(),
            },
            batch: None,
            window: Window::default(),
            warnings: Warnings::default(),
        }
    }
}
