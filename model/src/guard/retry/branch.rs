//! The words of the decision: what came, what else could be asked, which branch applies, what is done.
//!
//! Owns names and shapes; which branch applies is decided beside.

use serde::{Deserialize, Serialize};

use super::liveness::Liveness;
use super::thinking::ThinkingLevel;
use crate::ids::{Label, Millis};
use crate::input::{Failure, FailureKind, Routes};
use crate::state::LastBatch;

/// What a model call, or a question around it, came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome<'a> {
    /// The hook before the run said no.
    HookBlocked,
    /// The calls that followed a compaction were one and the same.
    LoopAfterCompaction,
    /// No summary could be made of a context that does not fit.
    CompactionFailed,
    /// The call failed, or its answer cannot be used.
    Failed(&'a Failure),
    /// The hook at the end asked for one more pass.
    RevisionAsked,
    /// The answer can be used.
    Answered,
}

/// What the decision may look at beside the counters.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// When it came.
    pub at: Millis,
    /// What else could be asked at that moment.
    pub routes: &'a Routes,
    /// Thinking level of the call; none for one that is not in the list.
    pub thinking: Option<ThinkingLevel>,
    /// Summaries can be made.
    pub compacts: bool,
    /// A call of this run that may not run twice was started.
    pub has_side_effects: bool,
    /// The call batch before this call.
    pub last_batch: LastBatch,
    /// Tokens of the request: as the provider counted them, else as they were estimated.
    pub prompt_tokens: u64,
}

/// What was decided, as it is journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The branch that applied.
    pub branch: Branch,
    /// What follows.
    pub action: Action,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The same call again.
    Retry {
        /// The wait before it in milliseconds, 0 for none.
        wait_ms: u64,
    },
    /// A summary first, then the same call.
    Compact(CompactCause),
    /// The same call with its large tool results cut.
    Truncate,
    /// The same call with its key fetched anew.
    RefreshKey,
    /// The same call with less thinking.
    LowerThinking {
        /// The level that failed.
        from: ThinkingLevel,
        /// The level to try.
        to: ThinkingLevel,
    },
    /// The same model with another profile.
    RotateProfile {
        /// Its position.
        profile: u8,
    },
    /// Another model.
    Fallback {
        /// Its name.
        model: Label,
    },
    /// The list of models from its beginning.
    RestartChain {
        /// The model that the run was asked for; none: it is in use.
        model: Option<Label>,
        /// The wait before it in milliseconds.
        wait_ms: u64,
    },
    /// One more pass over a finished answer.
    Revise,
    /// The run goes on with the answer.
    Proceed,
    /// The run ends.
    End(Liveness),
}

/// Why a summary is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompactCause {
    /// The context does not fit.
    Overflow,
    /// A call with a large context took too long.
    Timeout,
}

/// Which branch applied; the order is that in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// The hook before the run said no.
    HookBlock,
    /// The loop has survived a compaction.
    CompactionLoop,
    /// The fault is on this side.
    LocalFault,
    /// Too many idle timeouts in a row.
    IdleBreaker,
    /// A timeout with a large context: a summary.
    TimeoutCompaction,
    /// A request larger than what may be asked in a minute.
    RequestTooLarge,
    /// An overflow: a summary.
    OverflowCompaction,
    /// An overflow: large tool results are cut.
    OverflowTruncation,
    /// An overflow, and no summary can be made.
    CompactionFailure,
    /// An overflow, and nothing is left to try.
    ContextOverflow,
    /// A refused key: it is fetched anew.
    AuthRefresh,
    /// The order of roles is not accepted.
    RoleOrdering,
    /// An image is too large.
    ImageSize,
    /// The request is not accepted as it is.
    Format,
    /// An unsupported thinking level: a lower one.
    ThinkingFallback,
    /// A passing failure: a short wait.
    PassingRetry,
    /// The connection dropped after a settled call batch: it goes on from there.
    TransportDrop,
    /// An error without details: again.
    SilentRetry,
    /// Errors without details, again and again: another model.
    SilentFailover,
    /// A rate limit that is soon over: a wait.
    SameModelRateLimit,
    /// Another profile.
    ProfileRotation,
    /// An idle call with nobody else to ask: once more.
    SameModelIdle,
    /// Another model.
    ModelFallback,
    /// Every model is overloaded: all of them again.
    OverloadChain,
    /// An answer with reasoning only: again.
    ReasoningOnly,
    /// No answer at all: again.
    Missing,
    /// An empty answer: again.
    Empty,
    /// A summary was made before the answer: again.
    CompactionContinuation,
    /// The turn has no answer.
    IncompleteTurn,
    /// The error stands.
    Surfaced,
    /// One more pass was asked for.
    FinalizeRevision,
    /// The answer can be used.
    Success,
    /// A retry was due, and no charge is left.
    RetryLimit,
}

impl Branch {
    /// The name used in journals, results and docs.
    pub fn name(self) -> &'static str {
        match self {
            Self::HookBlock => "hook_block",
            Self::CompactionLoop => "compaction_loop_persisted",
            Self::LocalFault => "local_fault",
            Self::IdleBreaker => "idle_breaker",
            Self::TimeoutCompaction => "timeout_compaction",
            Self::RequestTooLarge => "request_too_large",
            Self::OverflowCompaction => "overflow_compaction",
            Self::OverflowTruncation => "overflow_truncation",
            Self::CompactionFailure => "compaction_failure",
            Self::ContextOverflow => "context_overflow",
            Self::AuthRefresh => "auth_refresh",
            Self::RoleOrdering => "role_ordering",
            Self::ImageSize => "image_size",
            Self::Format => "format",
            Self::ThinkingFallback => "thinking_fallback",
            Self::PassingRetry => "passing_retry",
            Self::TransportDrop => "transport_drop",
            Self::SilentRetry => "silent_retry",
            Self::SilentFailover => "silent_failover",
            Self::SameModelRateLimit => "same_model_rate_limit",
            Self::ProfileRotation => "profile_rotation",
            Self::SameModelIdle => "same_model_idle",
            Self::ModelFallback => "model_fallback",
            Self::OverloadChain => "overload_chain",
            Self::ReasoningOnly => "reasoning_only",
            Self::Missing => "missing",
            Self::Empty => "empty",
            Self::CompactionContinuation => "compaction_continuation",
            Self::IncompleteTurn => "incomplete_turn",
            Self::Surfaced => "surfaced",
            Self::FinalizeRevision => "finalize_revision",
            Self::Success => "success",
            Self::RetryLimit => "retry_limit",
        }
    }

    /// The reason of the failure is remembered for the decision at the limit.
    pub(super) fn merges_reason(self) -> bool {
        self == Self::SameModelRateLimit || self == Self::ProfileRotation || self == Self::SameModelIdle
    }
}

impl Action {
    /// The model is asked again.
    pub fn is_retry(&self) -> bool {
        match self {
            Self::Retry { .. }
            | Self::Compact(_)
            | Self::Truncate
            | Self::RefreshKey
            | Self::LowerThinking { .. }
            | Self::RotateProfile { .. }
            | Self::Fallback { .. }
            | Self::RestartChain { .. }
            | Self::Revise => true,
            Self::Proceed | Self::End(_) => false,
        }
    }

    /// The wait before the next call, in milliseconds.
    pub fn wait_ms(&self) -> u64 {
        match self {
            Self::Retry { wait_ms } | Self::RestartChain { wait_ms, .. } => *wait_ms,
            Self::Compact(_)
            | Self::Truncate
            | Self::RefreshKey
            | Self::LowerThinking { .. }
            | Self::RotateProfile { .. }
            | Self::Fallback { .. }
            | Self::Revise
            | Self::Proceed
            | Self::End(_) => 0,
        }
    }
}

impl CallOutcome<'_> {
    /// What follows is charged if it is a retry. The retry that a summary was to be made for was charged already.
    pub(super) fn is_charged(&self) -> bool {
        *self != CallOutcome::CompactionFailed
    }

    /// The kind of failure, if it is one.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failed(failure) => Some(failure.kind),
            Self::HookBlocked
            | Self::LoopAfterCompaction
            | Self::CompactionFailed
            | Self::RevisionAsked
            | Self::Answered => None,
        }
    }
}
