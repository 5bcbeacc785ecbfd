//! The counters of a run's retries, as they are committed.
//!
//! Owns what each branch counts and what starts a count again. A counter never falls otherwise.

use serde::{Deserialize, Serialize};

use super::branch::{Action, Branch, CallOutcome, Context, Decision};
use super::breaker::idle_breaker;
use super::decide::decide;
use super::failover::FailoverReason;
use super::thinking::ThinkingLevel;
use crate::guard::loops::CompactionWatch;
use crate::ids::Millis;
use crate::input::{Failure, FailureKind, Routes};

/// Charges of every run.
const CHARGES_BASE: u8 = 24;
/// Charges for each profile.
const CHARGES_A_PROFILE: u8 = 8;
/// The fewest charges that a run may have.
const CHARGES_MIN: u8 = 32;
/// The most charges that a run may have.
const CHARGES_MAX: u8 = 160;

/// What a run remembers of its failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retries {
    /// What the budget counts: one at the run's start, one a retry.
    pub charges: u8,
    /// The most charges; see [`charges_max`]. It grows when a model with more profiles is asked.
    pub budget: u8,
    /// What was done about failures of each kind; starts anew with each model.
    pub counts: Counts,
    /// The list of models.
    pub chain: Chain,
    /// Position of the profile in the model's list.
    pub profile: u8,
    /// Thinking levels.
    pub thinking: Thinking,
    /// The key was fetched anew for the call that comes or is under way.
    pub is_key_fresh: bool,
    /// A summary was made since the last answer.
    pub is_compacted: bool,
    /// The context holds a tool result that could be cut.
    pub has_large_results: bool,
    /// Why another call was made in place of the last one that failed.
    pub last_reason: Option<FailoverReason>,
    /// What the next request says to the model in addition.
    pub instruction: Option<Instruction>,
    /// The failures since the last answer.
    pub streak: Option<Streak>,
    /// The calls after the last compaction.
    pub watch: CompactionWatch,
}

/// One counter a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Passing failures waited for in a row.
    pub passing: u8,
    /// Drops of the connection that were gone on from.
    pub transport_drops: u8,
    /// Silent errors.
    pub silent: u8,
    /// Answers with reasoning only.
    pub reasoning_only: u8,
    /// Missing answers.
    pub missing: u8,
    /// Empty answers.
    pub empty: u8,
    /// Rate limits of one model waited for in a row.
    pub rate_limit: u8,
    /// Profiles changed because of a rate limit.
    pub rate_limit_rotations: u8,
    /// Overloads that asked for another profile.
    pub overload_rotations: u8,
    /// Idle calls made again at the same model.
    pub same_model_idle: u8,
    /// Compactions after an overflow.
    pub overflow_compactions: u8,
    /// Compactions after a timeout.
    pub timeout_compactions: u8,
    /// Answers asked for again because a compaction came before them.
    pub compaction_continuations: u8,
    /// Revisions asked for by the finalisation hook.
    pub finalize_revisions: u8,
    /// Large tool results are cut in every request: 1 once that was tried.
    pub truncations: u8,
    /// Idle timeouts in a row without progress.
    pub idle_breaker: u8,
}

/// Where the run is in its list of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// Models that were given up since the list was begun.
    pub fallback: u8,
    /// Times the whole list was asked again because all of it was overloaded.
    pub restarts: u8,
    /// A model was given up for another reason than overload: the list is not asked again.
    pub is_mixed: bool,
}

/// Thinking levels that were tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thinking {
    /// One bit a level; empty again with another profile.
    pub tried: u8,
    /// The level that was asked for, if a lower one is in force.
    pub requested: Option<ThinkingLevel>,
}

/// Failed calls since the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// The kind of the newest.
    pub kind: FailureKind,
    /// Failures of that kind in a row.
    pub times: u8,
    /// Failures of any kind.
    pub failures: u8,
    /// When the first of them came.
    pub since: Millis,
}

/// What a request says to the model in addition to the transcript, until it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    /// The last answer had thinking but nothing visible.
    ReasoningOnly,
    /// The last answer was empty.
    Empty,
    /// A summary was made before anything visible was answered.
    Compacted,
    /// A summary was made in the middle of the work.
    GoOn,
}

impl Instruction {
    /// The words.
    pub fn text(self) -> &'static str {
        match self {
            Self::ReasoningOnly => {
                "Your last answer held reasoning but nothing to read. Give the visible answer now; do not \
                 start over."
            }
            Self::Empty => "Your last answer was empty. Go on from here and give the visible answer.",
            Self::Compacted => {
                "The conversation was summarised before you gave a visible answer. Go on from the summary and \
                 give the final answer."
            }
            Self::GoOn => {
                "The older part of this conversation was summarised to make room. Go on from here; do not \
                 repeat what is already done."
            }
        }
    }
}

/// The most charges of a run whose model has so many profiles; none and one mean the same.
pub fn charges_max(profiles: u8) -> u8 {
    let of_profiles = profiles.max(1).saturating_mul(CHARGES_A_PROFILE);
    CHARGES_BASE.saturating_add(of_profiles).clamp(CHARGES_MIN, CHARGES_MAX)
}

impl Retries {
    /// The counters of a run that starts: one charge.
    pub fn new() -> Self {
        Self { charges: 1, budget: charges_max(0), ..Self::default() }
    }

    /// What follows from an outcome: notes it, decides, and counts the decision.
    pub fn judge(&mut self, outcome: &CallOutcome<'_>, context: &Context<'_>) -> Decision {
        if let CallOutcome::Failed(failure) = outcome {
            self.note_failure(failure, context);
        }
        let decision = decide(self, outcome, context);
        self.count(outcome, &decision);
        decision
    }

    /// Notes an answer.
    pub fn note_answer(&mut self) {
        self.counts.passing = 0;
        self.counts.rate_limit = 0;
        self.counts.idle_breaker = idle_breaker(self.counts.idle_breaker, false, true);
        self.is_key_fresh = false;
        self.is_compacted = false;
        self.instruction = None;
        self.streak = None;
    }

    /// Notes a compaction that was made: the calls after it are watched, and the work goes on.
    pub fn note_compaction(&mut self, is_mid_turn: bool) {
        self.is_compacted = true;
        self.watch = CompactionWatch::Armed;
        if is_mid_turn && self.instruction.is_none() {
            self.instruction = Some(Instruction::GoOn);
        }
    }

    fn note_failure(&mut self, failure: &Failure, context: &Context<'_>) {
        let Routes { profiles, has_large_results, .. } = context.routes;
        self.budget = self.budget.max(charges_max(*profiles));
        self.has_large_results = *has_large_results;
        self.thinking.tried |= context.thinking.map_or(0, ThinkingLevel::bit);
        let is_idle = failure.kind == FailureKind::Idle;
        self.counts.idle_breaker = idle_breaker(self.counts.idle_breaker, is_idle, failure.had_text);
        let before = self.streak;
        let times = before.filter(|streak| streak.kind == failure.kind).map_or(0, |streak| streak.times);
        self.streak = Some(Streak {
            kind: failure.kind,
            times: times.saturating_add(1),
            failures: before.map_or(0, |streak| streak.failures).saturating_add(1),
            since: before.map_or(context.at, |streak| streak.since),
        });
    }

    /// Counts a decision: its branch, its charge, and what starts again with it.
    fn count(&mut self, outcome: &CallOutcome<'_>, decision: &Decision) {
        let Decision { branch, action } = decision;
        if *branch != Branch::SameModelRateLimit {
            self.counts.rate_limit = 0;
        }
        self.is_key_fresh = *branch == Branch::AuthRefresh;
        if let Some(counter) = self.counts.of(*branch, outcome) {
            *counter = counter.saturating_add(1);
        }
        if action.is_retry() && outcome.is_charged() {
            // A switch of models with the last charge spent is not charged: the list of models bounds those.
            self.charges = self.charges.saturating_add(1).min(self.budget);
        }
        if branch.merges_reason() {
            self.last_reason = outcome.kind().and_then(FailoverReason::of).or(self.last_reason);
        }
        self.instruction = Instruction::of(*branch).or(self.instruction);
        match action {
            Action::LowerThinking { from, .. } => {
                self.thinking.requested.get_or_insert(*from);
            }
            Action::RotateProfile { profile } => self.advance_to(*profile),
            Action::Fallback { .. } => {
                let is_mixed = self.chain.is_mixed || outcome.kind() != Some(FailureKind::Overloaded);
                let chain = Chain { fallback: self.chain.fallback.saturating_add(1), is_mixed, ..self.chain };
                self.start_anew(Counts::default(), chain);
            }
            Action::RestartChain { .. } => {
                // What is overloaded was waited for: the short waits are not tried again.
                let counts = Counts { passing: self.counts.passing, ..Counts::default() };
                let restarts = self.chain.restarts.saturating_add(1);
                self.start_anew(counts, Chain { fallback: 0, restarts, ..self.chain });
            }
            Action::Retry { .. }
            | Action::Compact(_)
            | Action::Truncate
            | Action::RefreshKey
            | Action::Revise
            | Action::Proceed
            | Action::End(_) => {}
        }
    }

    /// Another profile: it is asked with the level that was asked for first.
    fn advance_to(&mut self, profile: u8) {
        self.profile = profile;
        self.thinking = Thinking::default();
    }

    /// Another model: everything but the budget and what is known of the run itself begins again.
    fn start_anew(&mut self, counts: Counts, chain: Chain) {
        let Self { charges, budget, streak, watch, is_compacted, has_large_results, .. } = *self;
        *self = Self {
            charges,
            budget,
            counts,
            chain,
            streak,
            watch,
            is_compacted,
            has_large_results,
            ..Self::default()
        };
    }
}

impl Counts {
    /// The counter of a branch.
    fn of(&mut self, branch: Branch, outcome: &CallOutcome<'_>) -> Option<&mut u8> {
        match branch {
            Branch::TimeoutCompaction => Some(&mut self.timeout_compactions),
            Branch::OverflowCompaction => Some(&mut self.overflow_compactions),
            Branch::OverflowTruncation => Some(&mut self.truncations),
            Branch::PassingRetry => Some(&mut self.passing),
            Branch::TransportDrop => Some(&mut self.transport_drops),
            Branch::SilentRetry => Some(&mut self.silent),
            Branch::SameModelRateLimit => Some(&mut self.rate_limit),
            Branch::ProfileRotation if outcome.kind() == Some(FailureKind::RateLimit) => {
                Some(&mut self.rate_limit_rotations)
            }
            Branch::ProfileRotation if outcome.kind() == Some(FailureKind::Overloaded) => {
                Some(&mut self.overload_rotations)
            }
            Branch::SameModelIdle => Some(&mut self.same_model_idle),
            Branch::ReasoningOnly => Some(&mut self.reasoning_only),
            Branch::Missing => Some(&mut self.missing),
            Branch::Empty => Some(&mut self.empty),
            Branch::CompactionContinuation => Some(&mut self.compaction_continuations),
            Branch::FinalizeRevision => Some(&mut self.finalize_revisions),
            Branch::HookBlock
            | Branch::CompactionLoop
            | Branch::LocalFault
            | Branch::IdleBreaker
            | Branch::RequestTooLarge
            | Branch::CompactionFailure
            | Branch::ContextOverflow
            | Branch::AuthRefresh
            | Branch::RoleOrdering
            | Branch::ImageSize
            | Branch::Format
            | Branch::ThinkingFallback
            | Branch::SilentFailover
            | Branch::ProfileRotation
            | Branch::ModelFallback
            | Branch::OverloadChain
            | Branch::IncompleteTurn
            | Branch::Surfaced
            | Branch::Success
            | Branch::RetryLimit => None,
        }
    }
}

impl Instruction {
    /// What the model is told when a branch asks it again.
    fn of(branch: Branch) -> Option<Self> {
        let told = [
            (Branch::ReasoningOnly, Self::ReasoningOnly),
            (Branch::Empty, Self::Empty),
            (Branch::CompactionContinuation, Self::Compacted),
        ];
        told.into_iter().find(|(of, _)| *of == branch).map(|(_, instruction)| instruction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_the_profiles_as_the_reference_s() {
        let vectors = [(0, 32), (1, 32), (2, 40), (3, 48), (5, 64), (17, 160), (40, 160), (255, 160)];
        for (profiles, max) in vectors {
            assert_eq!(charges_max(profiles), max, "{profiles} profiles");
        }
    }
}
