//! What happened: the inputs of the state machine.
//!
//! Owns the past tense. Every outside fact or decision that changes control flow is an input, so it is
//! journaled and replays without asking again. It must never hold a sender, a handle or anything that cannot
//! be written down.

use serde::{Deserialize, Serialize};

use crate::guard::loops::{CallFacts, Window};
use crate::ids::{JsonText, Label, Millis, RunId};
use crate::message::{AssistantMessage, Message, ToolResult, Usage};
use crate::phase::EntryRef;
use crate::state::{Limits, Owner, Wants};

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
    ModelFailed(Failure),
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
            Self::ModelFailed(_) => "model_failed",
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
        }
    }

    /// The result of a call that the fact brings, with the call's index.
    pub fn result(&self) -> Option<(u32, &ToolResult)> {
        match self {
            Self::ToolReturned { call, result, .. } => Some((u32::from(*call), result)),
            Self::HookReturned {
                hook: HookCall { call: Some(call), .. },
                answer: HookAnswer::Result(result),
            } => Some((u32::from(*call), result)),
            Self::HookReturned { .. }
            | Self::Admitted(_)
            | Self::Polled
            | Self::Drained { .. }
            | Self::RequestPrepared(_)
            | Self::StreamOpened
            | Self::ModelAnswered { .. }
            | Self::ModelFailed(_)
            | Self::ModelInterrupted { .. }
            | Self::BatchAdmitted { .. }
            | Self::ToolUnknown { .. }
            | Self::ApprovalGiven { .. }
            | Self::Resolved { .. }
            | Self::TimerFired
            | Self::DeadlinePassed
            | Self::CancelRequested { .. }
            | Self::Resumed { .. }
            | Self::Stopped
            | Self::CompactionPlanned { .. }
            | Self::Compacted { .. }
            | Self::CompactFailed { .. }
            | Self::Missing { .. }
            | Self::Released { .. }
            | Self::Extended { .. } => None,
        }
    }

    /// The messages that take the place of the context before them, if the fact brings such.
    pub fn base(&self) -> Option<&[Message]> {
        match self {
            Self::Compacted { summary } => Some(std::slice::from_ref(summary)),
            Self::HookReturned { answer: HookAnswer::Next(next), .. } => next.context.as_deref(),
            Self::HookReturned { .. }
            | Self::ToolReturned { .. }
            | Self::Admitted(_)
            | Self::Polled
            | Self::Drained { .. }
            | Self::RequestPrepared(_)
            | Self::StreamOpened
            | Self::ModelAnswered { .. }
            | Self::ModelFailed(_)
            | Self::ModelInterrupted { .. }
            | Self::BatchAdmitted { .. }
            | Self::ToolUnknown { .. }
            | Self::ApprovalGiven { .. }
            | Self::Resolved { .. }
            | Self::TimerFired
            | Self::DeadlinePassed
            | Self::CancelRequested { .. }
            | Self::Resumed { .. }
            | Self::Stopped
            | Self::CompactionPlanned { .. }
            | Self::CompactFailed { .. }
            | Self::Missing { .. }
            | Self::Released { .. }
            | Self::Extended { .. } => None,
        }
    }

    /// The assistant message that the fact brings.
    pub fn answer(&self) -> Option<&AssistantMessage> {
        if let Self::ModelAnswered { message } = self {
            return Some(message);
        }
        if let Self::ModelFailed(Failure { partial, .. }) = self {
            return partial.as_deref();
        }
        None
    }
}

/// What a run starts from, known when its lane is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The session's previous run; its transcript comes first.
    pub previous: Option<RunId>,
    /// The previous run's loop window.
    pub window: Option<Window>,
    /// The transcript so far ends in network content.
    pub is_tainted: bool,
}

/// One message read from the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedItem {
    /// Position in the inbox; for the run's own prompts, index in its submission.
    pub position: u64,
    /// It is a user message, which clears the taint of the turn.
    pub is_user: bool,
    /// It was withdrawn and is not to be injected.
    pub is_withdrawn: bool,
}

/// The intent of a model call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Hash of the request.
    pub hash: [u8; 32],
    /// Version of the converter that built it.
    pub converter_version: u16,
    /// What the transform hook left out, as ids of messages (`seq`, `n`); none if it was not asked or made
    /// new text.
    pub edits: Option<Vec<(u64, u32)>>,
    /// The most that the call may use; settled when the answer is known.
    pub reserve: Usage,
}

/// Why a model call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind, which decides what follows.
    pub kind: FailureKind,
    /// The provider's words, cut.
    pub message: Label,
    /// What the provider asked to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Visible text arrived before it failed.
    pub had_text: bool,
    /// What is known of its use.
    pub usage: Usage,
    /// The answer so far, when it ended in an error of its own and is to stand in the transcript. It went
    /// through [`crate::answer::settle`].
    pub partial: Option<Box<AssistantMessage>>,
}

/// Kinds of failed model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// Too many requests.
    RateLimit,
    /// The provider is overloaded.
    Overloaded,
    /// The provider failed.
    ServerError,
    /// The call took too long.
    Timeout,
    /// Nothing arrived for too long.
    Idle,
    /// The connection broke.
    Connection,
    /// The key was refused.
    Auth,
    /// The key was refused for good.
    AuthPermanent,
    /// The account cannot pay.
    Billing,
    /// No such model.
    ModelNotFound,
    /// The request was not accepted as it is.
    Format,
    /// The request is larger than the model's context.
    ContextOverflow,
    /// An answer with nothing visible in it.
    Empty,
    /// An answer with reasoning only.
    ReasoningOnly,
    /// No answer at all.
    Missing,
    /// An error without details.
    Silent,
    /// The roles of the messages are in an order that is not accepted.
    RoleOrdering,
    /// An image is too large.
    ImageSize,
    /// The thinking level is not supported.
    ThinkingUnsupported,
    /// The provider's session has ended.
    SessionExpired,
    /// The certificate was not accepted.
    TlsCertificate,
    /// The script of a rehearsal has no such turn, or cannot be used.
    Script,
    /// Anything else.
    Unknown,
}

impl FailureKind {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 23] = [
        Self::RateLimit,
        Self::Overloaded,
        Self::ServerError,
        Self::Timeout,
        Self::Idle,
        Self::Connection,
        Self::Auth,
        Self::AuthPermanent,
        Self::Billing,
        Self::ModelNotFound,
        Self::Format,
        Self::ContextOverflow,
        Self::Empty,
        Self::ReasoningOnly,
        Self::Missing,
        Self::Silent,
        Self::RoleOrdering,
        Self::ImageSize,
        Self::ThinkingUnsupported,
        Self::SessionExpired,
        Self::TlsCertificate,
        Self::Script,
        Self::Unknown,
    ];

    /// The name used in rehearsals, logs and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Idle => "idle",
            Self::Connection => "connection",
            Self::Auth => "auth",
            Self::AuthPermanent => "auth_permanent",
            Self::Billing => "billing",
            Self::ModelNotFound => "model_not_found",
            Self::Format => "format",
            Self::ContextOverflow => "context_overflow",
            Self::Empty => "empty",
            Self::ReasoningOnly => "reasoning_only",
            Self::Missing => "missing",
            Self::Silent => "silent",
            Self::RoleOrdering => "role_ordering",
            Self::ImageSize => "image_size",
            Self::ThinkingUnsupported => "thinking_unsupported",
            Self::SessionExpired => "session_expired",
            Self::TlsCertificate => "tls_certificate",
            Self::Script => "script",
            Self::Unknown => "unknown",
        }
    }
}

/// One call of a batch, resolved and validated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallPlan {
    /// The call's id, for details.
    pub id: Label,
    /// The tool's name as called, for texts.
    pub tool: Label,
    /// What the loop detectors compare.
    pub facts: CallFacts,
    /// What may be done about the call after a crash.
    pub class: RecoveryClass,
    /// Whether it may run.
    pub verdict: CallVerdict,
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallVerdict {
    /// Its tool exists and its arguments are valid.
    Valid,
    /// No such tool.
    Unknown,
    /// The arguments do not fit the tool's schema; the text says how.
    Invalid(String),
    /// The tool could not be found or prepared; the text says why.
    Refused(String),
    /// Its id was used before in the same answer.
    Duplicate,
    /// The tool answered while preparing, without running.
    Immediate(ToolResult),
}

/// What may be done about a call that may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecoveryClass {
    /// Changes nothing: run again.
    ReadOnly,
    /// Run again with the same idempotency key.
    Keyed,
    /// Its process and result outlive the engine.
    Adoptable,
    /// The tool can ask the world whether it happened.
    Probe,
    /// Never again.
    AtMostOnce,
}

/// How the result of a call that crashed is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Recovered {
    /// It was run again.
    Repeated,
    /// The world was asked: it had happened.
    Probed,
    /// It was still running.
    Adopted,
    /// Its exit record was read.
    Collected,
}

/// What follows when the outcome of a call is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnUnknown {
    /// Ask a person.
    Ask,
    /// Tell the model.
    Tell,
    /// End the run.
    Fail,
}

/// A person's decision on a call that needs approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    /// It may run.
    Approve,
    /// It may not; the reason goes to the model.
    Deny(Label),
}

/// A person's decision on a call whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Resolution {
    /// It ran, and succeeded.
    Ran,
    /// It ran, and failed.
    Failed,
    /// Run it again.
    Retry,
    /// What it did was undone.
    Undone,
}

/// What a person adds to a run's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Added to the deadline, in milliseconds.
    pub time_ms: u64,
    /// Added to the money limit, in micro-dollars.
    pub usd_micros: u64,
    /// Added to the token limit.
    pub tokens: u64,
    /// Added to the limit of model calls.
    pub calls: u64,
    /// Added to the limit of turns.
    pub turns: u64,
}

/// One call of a hook. Its key is the run with this: the same after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HookCall {
    /// Which hook.
    pub hook: Hook,
    /// Turn that it is asked in.
    pub turn: u32,
    /// Index of the call that it is asked about, if it is about one.
    pub call: Option<u16>,
}

/// The hooks of a harness that change control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hook {
    /// May refuse the run.
    BeforeAgentRun,
    /// May block a whole batch.
    BeforeToolBatch,
    /// May allow, block or hold one call.
    BeforeToolCall,
    /// May replace the result of a call that ran.
    AfterToolCall,
    /// May replace the result of any call.
    AfterToolOutcome,
    /// May replace context, model or thinking level.
    PrepareNextTurn,
    /// May stop the run.
    ShouldStopAfterTurn,
    /// May ask for one more pass.
    BeforeFinalize,
}

/// A hook's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookAnswer {
    /// Nothing to change: allow, keep, go on.
    Proceed,
    /// The hook failed; the text says how.
    Failed(String),
    /// `before_agent_run`, `before_tool_call`: no, for this reason.
    Block(String),
    /// `before_tool_call`: ask a person.
    Ask(Label),
    /// `before_tool_batch`: a critical loop.
    Intervene(Intervention),
    /// `after_tool_call`, `after_tool_outcome`: the result as it now is.
    Result(ToolResult),
    /// `prepare_next_turn`: what changes.
    Next(NextTurn),
    /// `should_stop_after_turn`: yes.
    Stop,
    /// `before_finalize`: one more pass, for this reason.
    Revise(String),
}

/// A critical loop that blocks a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervention {
    /// Index of the call that triggered it.
    pub call: u16,
    /// The text for the model.
    pub reason: String,
    /// The details that the results carry under `intervention`.
    pub details: JsonText,
}

/// What `prepare_next_turn` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTurn {
    /// Replaces the context.
    pub context: Option<Vec<Message>>,
    /// Replaces the model.
    pub model: Option<Label>,
    /// Replaces the thinking level.
    pub thinking: Option<Label>,
}

/// What is submitted: the first record of every run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The run.
    pub run: RunId,
    /// Its first owner.
    pub owner: Owner,
    /// Key of the session that it belongs to.
    pub session: String,
    /// The prompts, in order. Empty for a continuation.
    pub prompts: Vec<Message>,
    /// Messages that stand before the prompts in a run that starts from a transcript of elsewhere.
    pub base: Vec<Message>,
    /// Name of the model.
    pub model: Label,
    /// Thinking level.
    pub thinking: Label,
    /// What the embedding program takes part in.
    pub wants: Wants,
    /// Caps.
    pub limits: Limits,
    /// The rest of the job, as canonical JSON of the engine: workspace, tools, labels, configuration
    /// snapshot.
    pub job: JsonText,
}
