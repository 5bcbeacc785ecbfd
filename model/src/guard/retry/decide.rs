//! The decision: a flat list of branches, of which the first that applies is taken.
//!
//! Owns the order of the branches and the condition of each. It must never count: what was decided is counted by
//! [`Retries::judge`]. The docs page of the guards has the list as a table, which a test compares with this file.

use super::backoff::{RATE_LIMIT_WAIT_MAX_MS, overload_chain_ms, passing_ms, same_model_rate_limit_ms};
use super::branch::{Action, Branch, CallOutcome, CompactCause, Context, Decision};
use super::breaker::IDLE_BREAKER_MAX;
use super::counters::{Counts, Retries};
use super::failover::{FailoverReason, Stage, Suspect, Verdict, verdict};
use super::liveness::Liveness;
use super::said::RateWindow;
use crate::input::{Failure, FailureKind};
use crate::limits::REVISIONS_MAX;
use crate::state::LastBatch;

/// Retries of one kind of passing failure in a row.
const PASSING_MAX: u8 = 3;
/// Drops of the connection after a settled call batch that a run goes on from.
const TRANSPORT_DROPS_MAX: u8 = 2;
/// Retries after errors without details.
const SILENT_MAX: u8 = 3;
/// Waits for one model after a rate limit, in a row.
const SAME_MODEL_RATE_LIMITS_MAX: u8 = 3;
/// Changes of profile after a rate limit, while another model is named.
const RATE_LIMIT_ROTATIONS_MAX: u8 = 1;
/// Changes of profile after an overload, while another model is named.
const OVERLOAD_ROTATIONS_MAX: u8 = 1;
/// Idle calls made again at the same model.
const SAME_MODEL_IDLES_MAX: u8 = 1;
/// Times that a list of overloaded models is asked again.
const OVERLOAD_CHAINS_MAX: u8 = 10;
/// Retries after answers with reasoning only.
const REASONING_ONLY_MAX: u8 = 2;
/// Retries after a missing answer.
const MISSING_MAX: u8 = 1;
/// Retries after an empty answer.
const EMPTY_MAX: u8 = 1;
/// Retries after a compaction that came before the answer.
const COMPACTION_CONTINUATIONS_MAX: u8 = 1;
/// Compactions after an overflow.
const OVERFLOW_COMPACTIONS_MAX: u8 = 3;
/// Compactions after a timeout.
const TIMEOUT_COMPACTIONS_MAX: u8 = 2;
/// A timeout is blamed on the context from this part of the model's window on, in percent.
const LARGE_CONTEXT_PERCENT: u64 = 65;

/// The condition of a branch; answers what is done if it applies.
type Applies<'a> = fn(&Case<'a>) -> Option<Action>;

/// The branches in order, with the condition of each.
fn branches<'a>() -> [(Branch, Applies<'a>); 32] {
    [
        (Branch::HookBlock, Case::hook_block),
        (Branch::CompactionLoop, Case::compaction_loop),
        (Branch::LocalFault, Case::local_fault),
        (Branch::IdleBreaker, Case::idle_breaker),
        (Branch::TimeoutCompaction, Case::timeout_compaction),
        (Branch::RequestTooLarge, Case::request_too_large),
        (Branch::OverflowCompaction, Case::overflow_compaction),
        (Branch::OverflowTruncation, Case::overflow_truncation),
        (Branch::CompactionFailure, Case::compaction_failure),
        (Branch::ContextOverflow, Case::context_overflow),
        (Branch::AuthRefresh, Case::auth_refresh),
        (Branch::RoleOrdering, Case::role_ordering),
        (Branch::ImageSize, Case::image_size),
        (Branch::Format, Case::format),
        (Branch::ThinkingFallback, Case::thinking_fallback),
        (Branch::PassingRetry, Case::passing_retry),
        (Branch::TransportDrop, Case::transport_drop),
        (Branch::SilentRetry, Case::silent_retry),
        (Branch::SilentFailover, Case::silent_failover),
        (Branch::SameModelRateLimit, Case::same_model_rate_limit),
        (Branch::ProfileRotation, Case::profile_rotation),
        (Branch::SameModelIdle, Case::same_model_idle),
        (Branch::ModelFallback, Case::model_fallback),
        (Branch::OverloadChain, Case::overload_chain),
        (Branch::ReasoningOnly, Case::reasoning_only),
        (Branch::Missing, Case::missing),
        (Branch::Empty, Case::empty),
        (Branch::CompactionContinuation, Case::compaction_continuation),
        (Branch::IncompleteTurn, Case::incomplete_turn),
        (Branch::Surfaced, Case::surfaced),
        (Branch::FinalizeRevision, Case::finalize_revision),
        (Branch::Success, Case::success),
    ]
}

/// What follows from an outcome. A retry that no charge is left for is replaced by the decision at the limit.
pub fn decide(retries: &Retries, outcome: &CallOutcome<'_>, context: &Context<'_>) -> Decision {
    let case = Case { retries, outcome, context };
    let taken = branches().into_iter().find_map(|(branch, applies)| Some((branch, applies(&case)?)));
    let (branch, action) = taken.unwrap_or((Branch::Success, Action::Proceed));
    let is_switch = matches!(action, Action::Fallback { .. });
    let needs_charge = action.is_retry() && !is_switch && outcome.is_charged();
    if needs_charge && retries.charges >= retries.budget {
        return Decision { branch: Branch::RetryLimit, action: case.at_limit(branch) };
    }
    Decision { branch, action }
}

impl Branch {
    /// Every branch in the order in which they are looked at; the limit comes last.
    pub fn all() -> impl Iterator<Item = Self> {
        branches().into_iter().map(|(branch, _)| branch).chain([Self::RetryLimit])
    }
}

/// One outcome to be judged.
struct Case<'a> {
    retries: &'a Retries,
    outcome: &'a CallOutcome<'a>,
    context: &'a Context<'a>,
}

const AT_ONCE: Action = Action::Retry { wait_ms: 0 };

impl Case<'_> {
    fn hook_block(&self) -> Option<Action> {
        (*self.outcome == CallOutcome::HookBlocked).then_some(Action::End(Liveness::Blocked))
    }

    fn compaction_loop(&self) -> Option<Action> {
        (*self.outcome == CallOutcome::LoopAfterCompaction).then_some(Action::End(Liveness::Broken))
    }

    fn local_fault(&self) -> Option<Action> {
        self.is(FailureKind::Script).then_some(Action::End(Liveness::Broken))
    }

    fn idle_breaker(&self) -> Option<Action> {
        let is_tripped = self.is(FailureKind::Idle) && self.counts().idle_breaker >= IDLE_BREAKER_MAX;
        is_tripped.then(|| self.at_limit(Branch::IdleBreaker))
    }

    fn timeout_compaction(&self) -> Option<Action> {
        let window = self.context.routes.context_window;
        let is_large =
            self.context.prompt_tokens.saturating_mul(100) > window.saturating_mul(LARGE_CONTEXT_PERCENT);
        let is_due = self.is_timed_out() && window > 0 && is_large && self.context.compacts;
        (is_due && self.counts().timeout_compactions < TIMEOUT_COMPACTIONS_MAX)
            .then_some(Action::Compact(CompactCause::Timeout))
    }

    fn request_too_large(&self) -> Option<Action> {
        let failure = self.failure()?;
        let is_about_size = self.is(FailureKind::ContextOverflow) || self.is(FailureKind::RateLimit);
        (is_about_size && failure.said.is_over_allowance).then_some(Action::End(Liveness::Blocked))
    }

    fn overflow_compaction(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::ContextOverflow) && self.context.compacts;
        (is_due && self.counts().overflow_compactions < OVERFLOW_COMPACTIONS_MAX)
            .then_some(Action::Compact(CompactCause::Overflow))
    }

    fn overflow_truncation(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::ContextOverflow) || self.is_compaction_failed();
        (is_due && self.retries.has_large_results && self.counts().truncations == 0)
            .then_some(Action::Truncate)
    }

    fn compaction_failure(&self) -> Option<Action> {
        self.is_compaction_failed().then_some(Action::End(Liveness::Blocked))
    }

    fn context_overflow(&self) -> Option<Action> {
        self.is(FailureKind::ContextOverflow).then_some(Action::End(Liveness::Blocked))
    }

    fn auth_refresh(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::Auth) && self.context.routes.can_refresh;
        (is_due && !self.retries.is_key_fresh).then_some(Action::RefreshKey)
    }

    fn role_ordering(&self) -> Option<Action> {
        self.is(FailureKind::RoleOrdering).then_some(Action::End(Liveness::Blocked))
    }

    fn image_size(&self) -> Option<Action> {
        self.is(FailureKind::ImageSize).then_some(Action::End(Liveness::Blocked))
    }

    fn format(&self) -> Option<Action> {
        self.is(FailureKind::Format).then_some(Action::End(Liveness::Broken))
    }

    fn thinking_fallback(&self) -> Option<Action> {
        let from = self.context.thinking.filter(|_| self.is(FailureKind::ThinkingUnsupported))?;
        let to = from.next_lower(self.retries.thinking.tried)?;
        Some(Action::LowerThinking { from, to })
    }

    fn passing_retry(&self) -> Option<Action> {
        let made = self.counts().passing;
        (self.is_passing() && made < PASSING_MAX).then(|| Action::Retry { wait_ms: passing_ms(made) })
    }

    fn transport_drop(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::Connection) && self.context.last_batch != LastBatch::None;
        (is_due && !self.had_text() && self.counts().transport_drops < TRANSPORT_DROPS_MAX).then_some(AT_ONCE)
    }

    fn silent_retry(&self) -> Option<Action> {
        let is_due = self.is_silent() && !self.had_text() && !self.context.has_side_effects;
        (is_due && self.counts().silent < SILENT_MAX).then_some(AT_ONCE)
    }

    fn silent_failover(&self) -> Option<Action> {
        let is_exhausted = self.is_silent() && self.counts().silent >= SILENT_MAX;
        let model = self.context.routes.next_model.clone().filter(|_| is_exhausted)?;
        Some(Action::Fallback { model })
    }

    fn same_model_rate_limit(&self) -> Option<Action> {
        let failure = self.failure().filter(|failure| is_short_rate_limit(failure))?;
        let Counts { rate_limit, rate_limit_rotations, .. } = *self.counts();
        let is_left =
            rate_limit < SAME_MODEL_RATE_LIMITS_MAX && rate_limit_rotations < RATE_LIMIT_ROTATIONS_MAX;
        let wait_ms = same_model_rate_limit_ms(rate_limit, failure.retry_after_ms);
        is_left.then_some(Action::Retry { wait_ms })
    }

    fn profile_rotation(&self) -> Option<Action> {
        let profile = self.context.routes.next_profile?;
        let Counts { rate_limit_rotations, overload_rotations, .. } = *self.counts();
        let is_used_up = self.has_fallback()
            && (self.is(FailureKind::RateLimit) && rate_limit_rotations >= RATE_LIMIT_ROTATIONS_MAX
                || self.is(FailureKind::Overloaded) && overload_rotations >= OVERLOAD_ROTATIONS_MAX);
        (self.failover(false)? == Verdict::RotateProfile && !is_used_up)
            .then_some(Action::RotateProfile { profile })
    }

    fn same_model_idle(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::Idle) && !self.has_fallback() && !self.had_text();
        (is_due && self.counts().same_model_idle < SAME_MODEL_IDLES_MAX).then_some(AT_ONCE)
    }

    fn model_fallback(&self) -> Option<Action> {
        match self.failover(true)? {
            Verdict::FallbackModel(_) => self.fallback(),
            Verdict::RotateProfile | Verdict::Surface | Verdict::Continue => None,
        }
    }

    fn overload_chain(&self) -> Option<Action> {
        let chain = self.retries.chain;
        let is_due = self.is(FailureKind::Overloaded) && !self.had_text() && !chain.is_mixed;
        let restart = || Action::RestartChain {
            model: self.context.routes.first_model.clone(),
            wait_ms: overload_chain_ms(chain.restarts),
        };
        (is_due && chain.restarts < OVERLOAD_CHAINS_MAX).then(restart)
    }

    fn reasoning_only(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::ReasoningOnly) && self.may_ask_for_another_answer();
        (is_due && self.counts().reasoning_only < REASONING_ONLY_MAX).then_some(AT_ONCE)
    }

    fn missing(&self) -> Option<Action> {
        (self.is(FailureKind::Missing) && self.counts().missing < MISSING_MAX).then_some(AT_ONCE)
    }

    fn empty(&self) -> Option<Action> {
        let is_due = self.is(FailureKind::Empty) && self.may_ask_for_another_answer();
        (is_due && self.counts().empty < EMPTY_MAX).then_some(AT_ONCE)
    }

    fn compaction_continuation(&self) -> Option<Action> {
        let is_due = self.is_unanswered() && self.retries.is_compacted && self.may_ask_for_another_answer();
        (is_due && self.counts().compaction_continuations < COMPACTION_CONTINUATIONS_MAX).then_some(AT_ONCE)
    }

    fn incomplete_turn(&self) -> Option<Action> {
        let is_silent = self.is_silent() && !self.had_text();
        (self.is_unanswered() || is_silent).then_some(Action::End(Liveness::Abandoned))
    }

    fn surfaced(&self) -> Option<Action> {
        self.failure().map(|_| Action::End(Liveness::Blocked))
    }

    fn finalize_revision(&self) -> Option<Action> {
        let is_due = *self.outcome == CallOutcome::RevisionAsked;
        (is_due && self.counts().finalize_revisions < REVISIONS_MAX).then_some(Action::Revise)
    }

    fn success(&self) -> Option<Action> {
        Some(Action::Proceed)
    }

    // ---- what the branches look at

    fn counts(&self) -> &Counts {
        &self.retries.counts
    }

    fn failure(&self) -> Option<&Failure> {
        match self.outcome {
            CallOutcome::Failed(failure) => Some(failure),
            CallOutcome::HookBlocked
            | CallOutcome::LoopAfterCompaction
            | CallOutcome::CompactionFailed
            | CallOutcome::RevisionAsked
            | CallOutcome::Answered => None,
        }
    }

    fn is(&self, kind: FailureKind) -> bool {
        self.outcome.kind() == Some(kind)
    }

    fn had_text(&self) -> bool {
        self.failure().is_some_and(|failure| failure.had_text)
    }

    fn is_compaction_failed(&self) -> bool {
        *self.outcome == CallOutcome::CompactionFailed
    }

    /// The call took too long, in silence or not.
    fn is_timed_out(&self) -> bool {
        self.is(FailureKind::Timeout) || self.is(FailureKind::Idle)
    }

    /// Time alone may mend it. An idle call has had its time.
    fn is_passing(&self) -> bool {
        self.is(FailureKind::Connection)
            || self.is(FailureKind::ServerError)
            || self.is(FailureKind::Overloaded)
            || self.is(FailureKind::Timeout)
    }

    fn is_silent(&self) -> bool {
        self.is(FailureKind::Silent) || self.is(FailureKind::Unknown)
    }

    /// The call has ended, without an answer that anybody can read.
    fn is_unanswered(&self) -> bool {
        self.is(FailureKind::Empty) || self.is(FailureKind::ReasoningOnly) || self.is(FailureKind::Missing)
    }

    /// The model may be asked for another final answer: nothing was done that such an answer could do again,
    /// and no call failed that it should speak of.
    fn may_ask_for_another_answer(&self) -> bool {
        !self.context.has_side_effects && self.context.last_batch != LastBatch::Failed
    }

    fn has_fallback(&self) -> bool {
        self.context.routes.next_model.is_some()
    }

    fn fallback(&self) -> Option<Action> {
        self.context.routes.next_model.clone().map(|model| Action::Fallback { model })
    }

    /// What failover says of a failed call.
    fn failover(&self, is_rotated: bool) -> Option<Verdict> {
        let failure = self.failure()?;
        let reason = FailoverReason::of(failure.kind);
        let suspect = Suspect { reason, has_fallback: self.has_fallback(), is_rotated };
        Some(verdict(stage_of(failure), suspect))
    }

    /// The decision when no charge is left, or the breaker has tripped, for a call that `branch` would have
    /// made again.
    fn at_limit(&self, branch: Branch) -> Action {
        let newest = self.outcome.kind().and_then(FailoverReason::of).filter(|_| branch.merges_reason());
        let reason = newest.or(self.retries.last_reason);
        let suspect = Suspect { reason, has_fallback: self.has_fallback(), is_rotated: true };
        match verdict(Stage::RetryLimit, suspect) {
            Verdict::FallbackModel(_) => self.fallback().unwrap_or(Action::End(Liveness::Blocked)),
            Verdict::RotateProfile | Verdict::Surface | Verdict::Continue => Action::End(Liveness::Blocked),
        }
    }
}

/// A connection that broke before anything arrived: the request was not handed over. Everything else is an
/// answer that ended in an error.
fn stage_of(failure: &Failure) -> Stage {
    let has_started = failure.had_text || failure.usage.tokens() > 0;
    if failure.kind == FailureKind::Connection && !has_started { Stage::Prompt } else { Stage::Assistant }
}

/// The rate limit is soon over: by the wait that was asked for, else by its words, else because a bare 429
/// counts as one.
fn is_short_rate_limit(failure: &Failure) -> bool {
    let is_short = match failure.retry_after_ms {
        Some(wait_ms) => wait_ms <= RATE_LIMIT_WAIT_MAX_MS,
        None => failure.said.window != RateWindow::Long,
    };
    failure.kind == FailureKind::RateLimit && is_short
}
