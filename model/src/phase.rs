//! The phases of a run, and the narrower states inside each.
//!
//! Owns where a run can be. Data lives in the variant that needs it; it must never hold what can be derived.

use serde::{Deserialize, Serialize};

use crate::guard::budget::Shortage;
use crate::ids::{Label, Millis, RunId};

/// Where a run is. What happens next is a function of this and the rest of the committed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its lane.
    Queued,
    /// Messages move from the inbox to the transcript.
    InjectPending {
        /// Ordinal of the turn that they open, from 0.
        turn: u32,
        /// What is being injected.
        inject: Inject,
    },
    /// One model call.
    Stream {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Ordinal of the try within the turn, from 0.
        attempt: u32,
        /// How far the call is.
        stage: StreamStage,
    },
    /// The calls of an answer are resolved, validated and admitted as one batch.
    Dispatch {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// How far it is.
        stage: DispatchStage,
    },
    /// The batch runs; the calls are in `RunState::batch`.
    ExecuteTools {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Where the batch waits.
        stage: BatchStage,
    },
    /// The turn has ended; hooks and polls decide what follows.
    Finalize {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// The question being asked.
        stage: FinalizeStage,
        /// The batch wants another model call.
        wants_more: bool,
        /// A poll has already found steering.
        is_steered: bool,
    },
    /// A summary is being made; the transcript stays intact until it commits.
    Compact {
        /// Ordinal of the turn that goes on afterwards, from 0.
        turn: u32,
        /// The attempt that goes on afterwards.
        attempt: u32,
        /// How far it is.
        stage: CompactStage,
    },
    /// Needs a person.
    Parked {
        /// Why.
        reason: ParkReason,
        /// The phase it returns to; never `Parked` or `Done`.
        from: Box<Phase>,
    },
    /// Ended. Absorbs every input.
    Done {
        /// How.
        outcome: Outcome,
        /// Why, unless it completed.
        reason: Option<Label>,
    },
}

/// What is being injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inject {
    /// The hook that may refuse the run is asked, before its prompts are shown to anybody.
    BeforeRun,
    /// The run's own prompts.
    Prompts,
    /// The first steering poll, after the prompts.
    FirstPoll,
    /// Steering messages.
    Steering {
        /// What the run goes on with if every message turns out to be withdrawn.
        wants_more: bool,
    },
    /// Follow-up messages, taken only when the run would otherwise end.
    FollowUp,
}

/// How far a model call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamStage {
    /// The request is to be built.
    Ready,
    /// The intent is durable; the request may have been sent.
    InFlight,
    /// The first byte of the answer was seen.
    Open,
    /// Waits before the next attempt.
    Backoff {
        /// When the wait ends.
        until: Millis,
    },
}

/// How far the admission of a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DispatchStage {
    /// The calls are to be resolved and validated.
    Resolve,
    /// The batch hook is asked.
    Hook,
}

/// What a batch waits for. Calls that run are in the batch itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchStage {
    /// Sequential: steering is asked before this call is looked at.
    PollBefore {
        /// Index of the call.
        call: u16,
    },
    /// A hook that prepares this call, or judges its refusal.
    Prepare {
        /// Index of the call.
        call: u16,
    },
    /// Sequential: steering is asked when this call is ready to run.
    PollReady {
        /// Index of the call.
        call: u16,
    },
    /// Parallel: steering is asked once, when all calls are prepared.
    PollLaunch,
    /// Calls run, or wait for a person.
    Running,
}

/// The question asked after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinalizeStage {
    /// The hook that prepares the next turn.
    PrepareNext,
    /// The hook that may stop the run.
    ShouldStop,
    /// Steering, after the turn.
    PollSteering,
    /// Follow-ups, when nothing else is to be done.
    PollFollowUp,
    /// Steering once more, when there was no follow-up.
    PollLast,
    /// The hook that may ask for a revision.
    BeforeFinalize,
}

/// The place of a message among all transcripts: the record that brought it in, and which of that record's
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryRef {
    /// The run whose record it is.
    pub run: RunId,
    /// Sequence of the record.
    pub seq: u64,
    /// Which message of that record, from 0.
    pub n: u32,
}

/// How far a compaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompactStage {
    /// The plan is to be made.
    Ready,
    /// A summary of everything before `first_kept` is being made.
    InFlight {
        /// The first message that stays as it is.
        first_kept: EntryRef,
    },
}

/// Why a run needs a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ParkReason {
    /// Calls wait for approval.
    Approval,
    /// The outcome of a call is not known.
    UnknownOutcome,
    /// The run is suspected of ending the engine.
    Quarantine,
    /// The next step would pass a cap.
    Budget(Shortage),
    /// Something that the run needs is not there; the label names it.
    Missing(Label),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It did what was asked, as far as the model says.
    Completed,
    /// It gave up.
    Failed,
    /// It needs action outside before it could be tried again.
    Blocked,
    /// A person or a program cancelled it.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
}

impl Outcome {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

impl ParkReason {
    /// The name used everywhere; what it is about, if anything, follows it in texts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::UnknownOutcome => "unknown outcome",
            Self::Quarantine => "quarantine",
            Self::Budget(_) => "budget",
            Self::Missing(_) => "missing",
        }
    }
}

impl std::fmt::Display for ParkReason {
    /// `approval`, `budget: tokens`, `missing: the key`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Approval | Self::UnknownOutcome | Self::Quarantine => f.write_str(self.name()),
            Self::Budget(shortage) => write!(f, "{}: {shortage}", self.name()),
            Self::Missing(label) => write!(f, "{}: {label}", self.name()),
        }
    }
}

impl std::fmt::Display for Phase {
    /// `stream(turn 2, attempt 0, in_flight)`: what `journal` and `show` print.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Queued => f.write_str("queued"),
            Self::InjectPending { turn, inject } => {
                write!(f, "inject_pending(turn {turn}, {})", inject.name())
            }
            Self::Stream { turn, attempt, stage } => {
                write!(f, "stream(turn {turn}, attempt {attempt}, {})", stage.name())
            }
            Self::Dispatch { turn, stage } => write!(f, "dispatch(turn {turn}, {})", stage.name()),
            Self::ExecuteTools { turn, stage } => write!(f, "execute_tools(turn {turn}, {})", stage.name()),
            Self::Finalize { turn, stage, .. } => write!(f, "finalize(turn {turn}, {})", stage.name()),
            Self::Compact { turn, stage, .. } => write!(f, "compact(turn {turn}, {})", stage.name()),
            Self::Parked { reason, from } => write!(f, "parked({reason}, from {from})"),
            Self::Done { outcome, .. } => write!(f, "done({})", outcome.name()),
        }
    }
}

impl Phase {
    /// The variant's name alone.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InjectPending { .. } => "inject_pending",
            Self::Stream { .. } => "stream",
            Self::Dispatch { .. } => "dispatch",
            Self::ExecuteTools { .. } => "execute_tools",
            Self::Finalize { .. } => "finalize",
            Self::Compact { .. } => "compact",
            Self::Parked { .. } => "parked",
            Self::Done { .. } => "done",
        }
    }
}

impl Inject {
    fn name(self) -> &'static str {
        match self {
            Self::BeforeRun => "before_run",
            Self::Prompts => "prompts",
            Self::FirstPoll => "first_poll",
            Self::Steering { .. } => "steering",
            Self::FollowUp => "follow_up",
        }
    }
}

impl StreamStage {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::InFlight => "in_flight",
            Self::Open => "open",
            Self::Backoff { .. } => "backoff",
        }
    }
}

impl DispatchStage {
    fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Hook => "hook",
        }
    }
}

impl BatchStage {
    fn name(self) -> &'static str {
        match self {
            Self::PollBefore { .. } => "poll_before",
            Self::Prepare { .. } => "prepare",
            Self::PollReady { .. } => "poll_ready",
            Self::PollLaunch => "poll_launch",
            Self::Running => "running",
        }
    }
}

impl FinalizeStage {
    fn name(self) -> &'static str {
        match self {
            Self::PrepareNext => "prepare_next",
            Self::ShouldStop => "should_stop",
            Self::PollSteering => "poll_steering",
            Self::PollFollowUp => "poll_follow_up",
            Self::PollLast => "poll_last",
            Self::BeforeFinalize => "before_finalize",
        }
    }
}

impl CompactStage {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::InFlight { .. } => "in_flight",
        }
    }
}
