//! What happened: the inputs of the state machine.
//!
//! Owns the past tense. Every outside fact or decision that changes control flow is an input, so it is journaled and
//! replays without asking again. It must never hold a sender, a handle or anything that cannot be written down.

mod call;
mod hook;
mod model_call;
mod person;
mod submission;

pub use call::{CallPlan, CallVerdict, OnUnknown, Recovered, RecoveryClass};
pub use hook::{Hook, HookAnswer, HookCall, Intervention, NextTurn};
pub use model_call::{Failure, FailureKind, Request, Routes};
pub use person::{Approval, Extension, Resolution};
pub use submission::{Admission, DrainedItem, Submission};

use serde::{Deserialize, Serialize};

use crate::guard::budget::Shortage;
use crate::ids::{Label, Millis};
use crate::message::{AssistantMessage, Message, ToolResult, Usage};
use crate::phase::EntryRef;

/// One input: what happened, when, and what the inbox held at that moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// When it happened. Never earlier than the input before it; an earlier one counts as that one's time.
    pub at: Millis,
    /// What waits in the inbox. A checkpoint that finds nothing waiting is passed without a transition of its
    /// own.
    pub waiting: Waiting,
    /// What happened.
    pub fact: Fact,
}

/// What waits in a run's inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// At least one steering message.
    pub steering: bool,
    /// At least one follow-up message.
    pub follow_up: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// The run's lane is free.
    Admitted(Box<Admission>),
    /// A source was asked; what it gave is in the inbox.
    Polled,
    /// The inbox was read for the messages that the phase injects.
    Drained {
        /// The messages, in order of acceptance.
        items: Vec<DrainedItem>,
    },
    /// The request of a model call was built.
    RequestPrepared(Request),
    /// The first byte of the answer arrived.
    StreamOpened,
    /// The model answered. The message went through [`crate::answer::settle`].
    ModelAnswered {
        /// The answer.
        message: Box<AssistantMessage>,
    },
    /// The model call failed.
    ModelFailed {
        /// What the call came to.
        failure: Failure,
        /// What else could be asked at that moment.
        routes: Routes,
    },
    /// The model call was lost with the engine that made it; the same attempt is made again.
    ModelInterrupted {
        /// What is known of its use; none: it counts as reserved.
        usage: Option<Usage>,
    },
    /// The calls of the answer were resolved and validated.
    BatchAdmitted {
        /// One entry a call, at most [`crate::limits::CALLS_MAX`].
        calls: Vec<CallPlan>,
        /// Calls of the answer, those beyond the limit included.
        total: u32,
        /// The calls run one after another.
        is_sequential: bool,
    },
    /// A hook answered.
    HookReturned {
        /// Which one, and on what.
        hook: HookCall,
        /// Its answer.
        answer: HookAnswer,
    },
    /// A call has a result.
    ToolReturned {
        /// Index of the call.
        call: u16,
        /// Its result.
        result: ToolResult,
        /// How the result is known, when the engine that started the call did not see it end.
        recovered: Option<Recovered>,
    },
    /// A call may have run, and nobody knows.
    ToolUnknown {
        /// Index of the call.
        call: u16,
        /// What is to be done about it.
        policy: OnUnknown,
    },
    /// A person decided on a call that needs approval.
    ApprovalGiven {
        /// Position of the decision in the inbox.
        position: u64,
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// The decision.
        decision: Approval,
    },
    /// A person decided on a call whose outcome is unknown.
    Resolved {
        /// Position of the decision in the inbox.
        position: u64,
        /// Turn of the call.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// The decision.
        resolution: Resolution,
        /// Why.
        reason: Label,
    },
    /// A wait is over.
    TimerFired,
    /// The deadline passed.
    DeadlinePassed,
    /// Somebody cancelled the run.
    CancelRequested {
        /// Position of the request in the inbox; none for an abort by the embedding program.
        position: Option<u64>,
        /// Why.
        reason: Label,
        /// The run is handed to another; nobody is told of an interruption.
        is_handoff: bool,
    },
    /// A new owner took the run.
    Resumed {
        /// The owner's epoch.
        epoch: u64,
        /// The machine's boot.
        boot_id: [u8; 16],
        /// What the end of the old owner makes of it.
        suspicion: Suspicion,
    },
    /// The owner stopped by request, with nobody to blame.
    Stopped,
    /// It is known what a summary is to replace.
    CompactionPlanned {
        /// The first message that stays as it is.
        first_kept: EntryRef,
    },
    /// A summary was made.
    Compacted {
        /// What replaces the planned part of the context.
        summary: Message,
    },
    /// No summary could be made.
    CompactFailed {
        /// Why.
        reason: Label,
    },
    /// Something that the run needs was not found at resume.
    Missing {
        /// What.
        what: Label,
    },
    /// A person let a parked run go on.
    Released {
        /// Position of the request in the inbox; none if the missing thing was found again.
        position: Option<u64>,
    },
    /// A person raised limits.
    Extended {
        /// Position of the request in the inbox.
        position: u64,
        /// What is added.
        by: Extension,
    },
    /// A model call was refused by a budget that runs share.
    BudgetRefused(Shortage),
    /// The run was found to end the engine again and again.
    Quarantined,
}

/// What the end of a run's old owner makes of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Suspicion {
    /// The owner ended as it was asked to, or with its machine: nobody is to blame.
    None,
    /// The owner ended uncleanly: whoever had something under way may have done it.
    Shared,
    /// The owner ended uncleanly, as others had just before: the run is resumed as the only suspect.
    Alone,
}

impl Fact {
    /// The fact's name, as `journal` prints it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Admitted(_) => "admitted",
            Self::Polled => "polled",
            Self::Drained { .. } => "drained",
            Self::RequestPrepared(_) => "request_prepared",
            Self::StreamOpened => "stream_opened",
            Self::ModelAnswered { .. } => "model_answered",
            Self::ModelFailed { .. } => "model_failed",
            Self::ModelInterrupted { .. } => "model_interrupted",
            Self::BatchAdmitted { .. } => "batch_admitted",
            Self::HookReturned { .. } => "hook_returned",
            Self::ToolReturned { .. } => "tool_returned",
            Self::ToolUnknown { .. } => "tool_unknown",
            Self::ApprovalGiven { .. } => "approval_given",
            Self::Resolved { .. } => "resolved",
            Self::TimerFired => "timer_fired",
            Self::DeadlinePassed => "deadline_passed",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::Resumed { .. } => "resumed",
            Self::Stopped => "stopped",
            Self::CompactionPlanned { .. } => "compaction_planned",
            Self::Compacted { .. } => "compacted",
            Self::CompactFailed { .. } => "compact_failed",
            Self::Missing { .. } => "missing",
            Self::Released { .. } => "released",
            Self::Extended { .. } => "extended",
            Self::BudgetRefused(_) => "budget_refused",
            Self::Quarantined => "quarantined",
        }
    }

    /// The result of a call that the fact brings, with the call's index.
    pub fn result(&self) -> Option<(u32, &ToolResult)> {
        if let Self::ToolReturned { call, result, .. } = self {
            return Some((u32::from(*call), result));
        }
        if let Self::HookReturned {
            hook: HookCall { call: Some(call), .. },
            answer: HookAnswer::Result(result),
        } = self
        {
            return Some((u32::from(*call), result));
        }
        None
    }

    /// The messages that take the place of the context before them, if the fact brings such.
    pub fn base(&self) -> Option<&[Message]> {
        if let Self::Compacted { summary } = self {
            return Some(std::slice::from_ref(summary));
        }
        if let Self::HookReturned { answer: HookAnswer::Next(next), .. } = self {
            return next.context.as_deref();
        }
        None
    }

    /// The assistant message that the fact brings.
    pub fn answer(&self) -> Option<&AssistantMessage> {
        if let Self::ModelAnswered { message } = self {
            return Some(message);
        }
        if let Self::ModelFailed { failure: Failure { partial, .. }, .. } = self {
            return partial.as_deref();
        }
        None
    }
}
