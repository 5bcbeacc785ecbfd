//! What follows a failed model call.
//!
//! Owns the retry counters and the one decision about them. A retry re-issues the model call; it must never
//! touch a committed tool result. The idle breaker lives here because it is fed by the same outcomes.

use serde::{Deserialize, Serialize};

use crate::input::{Failure, FailureKind};

/// Most charges of one run with one profile: 24 + 8 a profile, at least 32.
pub const CHARGES_MAX: u16 = 32;
/// Idle timeouts in a row, without progress, that end a run.
pub const IDLE_BREAKER_MAX: u8 = 5;
/// Retries of one kind of passing failure in a row.
const PASSING_MAX: u8 = 3;
/// Retries after silent errors in one run.
const SILENT_MAX: u8 = 3;
/// Retries after answers with reasoning only in one run.
const REASONING_ONLY_MAX: u8 = 2;
/// Retries after an empty or a missing answer in one run.
const EMPTY_MAX: u8 = 1;
/// Compactions after an overflow in one run.
const OVERFLOW_COMPACTIONS_MAX: u8 = 3;
/// First wait after a passing failure, in milliseconds; it doubles.
const BACKOFF_BASE_MS: u64 = 2_000;
/// Wait after a rate limit, in milliseconds, for each retry so far and one more.
const RATE_LIMIT_STEP_MS: u64 = 10_000;
/// Longest wait after a rate limit, in milliseconds. A provider that asks for more is not waited for.
const RATE_LIMIT_WAIT_MAX_MS: u64 = 60_000;

/// Counters of a run's retries. They never fall, except that `passing` starts again after an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retries {
    /// What the budget counts: one at the run's start, one a retry.
    pub charges: u16,
    /// Passing failures in a row.
    pub passing: u8,
    /// Silent errors.
    pub silent: u8,
    /// Answers with reasoning only.
    pub reasoning_only: u8,
    /// Missing answers.
    pub missing: u8,
    /// Empty answers.
    pub empty: u8,
    /// Rate limits waited for in a row.
    pub rate_limit: u8,
    /// Compactions after an overflow.
    pub overflow_compactions: u8,
    /// Compactions after a timeout.
    pub timeout_compactions: u8,
    /// Revisions asked for by the finalisation hook.
    pub finalize_revisions: u8,
    /// Idle timeouts in a row without progress.
    pub idle_breaker: u8,
    /// Thinking levels already tried, a bit each.
    pub attempted_thinking: u8,
    /// Position in the list of fallback models.
    pub fallback: u8,
    /// Position in the list of profiles.
    pub profile: u8,
    /// Outcomes still watched after a compaction.
    pub post_compaction_left: u8,
    /// What the next request says to the model in addition.
    pub instruction: Option<Instruction>,
}

/// What a request says to the model in addition to the transcript, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    /// The last answer had thinking but nothing visible.
    ReasoningOnly,
    /// The last answer was empty.
    Empty,
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
        }
    }
}

/// What follows a failed model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same call again, after a wait.
    Retry {
        /// The wait in milliseconds, 0 for none.
        wait_ms: u64,
    },
    /// The context must become smaller first.
    Compact,
    /// The run fails.
    Fail,
    /// The run needs action outside.
    Block,
}

impl Retries {
    /// The counters of a run that starts: one charge.
    pub fn new() -> Self {
        Self { charges: 1, ..Self::default() }
    }

    /// Notes an answer.
    pub fn note_answer(&mut self) {
        self.passing = 0;
        self.rate_limit = 0;
        self.instruction = None;
        self.idle_breaker = idle_breaker(self.idle_breaker, false, true);
    }
}

/// One step of the idle breaker: the count after an outcome.
pub fn idle_breaker(count: u8, is_idle_timeout: bool, has_progress: bool) -> u8 {
    match (is_idle_timeout, has_progress) {
        (true, false) => count.saturating_add(1),
        (true | false, true) => 0,
        (false, false) => count,
    }
}

/// Decides what follows `failure`, and counts it. `can_compact` says that summaries can be made.
pub fn decide(retries: &mut Retries, failure: &Failure, can_compact: bool) -> Next {
    let is_idle = failure.kind == FailureKind::Idle;
    retries.idle_breaker = idle_breaker(retries.idle_breaker, is_idle, failure.had_text);
    if retries.idle_breaker >= IDLE_BREAKER_MAX || retries.charges >= CHARGES_MAX {
        return Next::Block;
    }
    let next = by_kind(retries, failure, can_compact);
    if let Next::Retry { .. } | Next::Compact = next {
        retries.charges = retries.charges.saturating_add(1);
    }
    next
}

fn by_kind(retries: &mut Retries, failure: &Failure, can_compact: bool) -> Next {
    match failure.kind {
        FailureKind::RateLimit => rate_limit(retries, failure.retry_after_ms.unwrap_or(0)),
        FailureKind::Overloaded
        | FailureKind::ServerError
        | FailureKind::Timeout
        | FailureKind::Idle
        | FailureKind::Connection => passing(retries),
        FailureKind::Silent => counted(&mut retries.silent, SILENT_MAX),
        FailureKind::Missing => counted(&mut retries.missing, EMPTY_MAX),
        FailureKind::ReasoningOnly => {
            retries.instruction = Some(Instruction::ReasoningOnly);
            counted(&mut retries.reasoning_only, REASONING_ONLY_MAX)
        }
        FailureKind::Empty => {
            retries.instruction = Some(Instruction::Empty);
            counted(&mut retries.empty, EMPTY_MAX)
        }
        FailureKind::ContextOverflow => {
            if can_compact && retries.overflow_compactions < OVERFLOW_COMPACTIONS_MAX {
                retries.overflow_compactions += 1;
                Next::Compact
            } else {
                Next::Block
            }
        }
        FailureKind::Auth
        | FailureKind::AuthPermanent
        | FailureKind::Billing
        | FailureKind::ModelNotFound
        | FailureKind::SessionExpired
        | FailureKind::TlsCertificate
        | FailureKind::RoleOrdering
        | FailureKind::ImageSize => Next::Block,
        FailureKind::Format
        | FailureKind::ThinkingUnsupported
        | FailureKind::Script
        | FailureKind::Unknown => Next::Fail,
    }
}

fn counted(counter: &mut u8, max: u8) -> Next {
    if *counter >= max {
        return Next::Fail;
    }
    *counter += 1;
    Next::Retry { wait_ms: 0 }
}

fn passing(retries: &mut Retries) -> Next {
    if retries.passing >= PASSING_MAX {
        return Next::Fail;
    }
    let wait_ms = BACKOFF_BASE_MS << retries.passing;
    retries.passing += 1;
    Next::Retry { wait_ms }
}

fn rate_limit(retries: &mut Retries, retry_after_ms: u64) -> Next {
    if retries.rate_limit >= PASSING_MAX || retry_after_ms > RATE_LIMIT_WAIT_MAX_MS {
        return Next::Block;
    }
    let own_ms = RATE_LIMIT_STEP_MS * (u64::from(retries.rate_limit) + 1);
    retries.rate_limit += 1;
    Next::Retry { wait_ms: own_ms.min(RATE_LIMIT_WAIT_MAX_MS).max(retry_after_ms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Label;
    use crate::message::Usage;

    fn failure(kind: FailureKind, retry_after_ms: Option<u64>) -> Failure {
        Failure {
            kind,
            message: Label::from(""),
            retry_after_ms,
            had_text: false,
            usage: Usage::default(),
            partial: None,
        }
    }

    #[test]
    fn rate_limit_waits_as_the_reference() {
        let mut retries = Retries::new();
        let mut wait = |after| decide(&mut retries, &failure(FailureKind::RateLimit, after), false);
        assert_eq!(wait(None), Next::Retry { wait_ms: 10_000 });
        assert_eq!(wait(None), Next::Retry { wait_ms: 20_000 });
        assert_eq!(wait(Some(45_000)), Next::Retry { wait_ms: 45_000 });
        assert_eq!(wait(None), Next::Block);
    }

    #[test]
    fn the_breaker_counts_idle_calls_in_a_row() {
        let run =
            |steps: &[(bool, bool)]| steps.iter().fold(0, |count, step| idle_breaker(count, step.0, step.1));
        assert_eq!(run(&[(true, false); 5]), 5);
        assert_eq!(
            run(&[(true, false), (true, false), (true, false), (true, false), (false, false), (true, false)]),
            5
        );
        assert_eq!(
            run(&[(true, false), (true, false), (true, false), (true, false), (true, true), (true, false)]),
            1
        );
    }

    /// What follows each of the first failures of one kind, up to the first that ends the run: waits in
    /// seconds.
    fn waits(kind: FailureKind, can_compact: bool) -> (Vec<Option<u64>>, Next) {
        let mut retries = Retries::new();
        let mut waits = Vec::new();
        loop {
            match decide(&mut retries, &failure(kind, None), can_compact) {
                Next::Retry { wait_ms } => waits.push(Some(wait_ms / 1_000)),
                Next::Compact => waits.push(None),
                end @ (Next::Fail | Next::Block) => {
                    assert_eq!(usize::from(retries.charges), waits.len() + 1, "every retry is charged");
                    return (waits, end);
                }
            }
        }
    }

    #[test]
    fn every_kind_of_failure_has_its_own_cap() {
        use FailureKind as Kind;
        let retried = |seconds: &[u64]| seconds.iter().copied().map(Some).collect::<Vec<_>>();
        for kind in Kind::ALL {
            let expected = match kind {
                Kind::RateLimit => (retried(&[10, 20, 30]), Next::Block),
                Kind::Overloaded | Kind::ServerError | Kind::Timeout | Kind::Idle | Kind::Connection => {
                    (retried(&[2, 4, 8]), Next::Fail)
                }
                Kind::Silent => (retried(&[0, 0, 0]), Next::Fail),
                Kind::ReasoningOnly => (retried(&[0, 0]), Next::Fail),
                Kind::Empty | Kind::Missing => (retried(&[0]), Next::Fail),
                Kind::ContextOverflow => (vec![None; 3], Next::Block),
                Kind::Auth
                | Kind::AuthPermanent
                | Kind::Billing
                | Kind::ModelNotFound
                | Kind::SessionExpired
                | Kind::TlsCertificate
                | Kind::RoleOrdering
                | Kind::ImageSize => (vec![], Next::Block),
                Kind::Format | Kind::ThinkingUnsupported | Kind::Script | Kind::Unknown => {
                    (vec![], Next::Fail)
                }
            };
            assert_eq!(waits(kind, true), expected, "{}", kind.name());
        }
        assert_eq!(waits(Kind::ContextOverflow, false), (vec![], Next::Block));
    }

    #[test]
    fn a_kind_does_not_use_up_the_count_of_another() {
        let mut retries = Retries::new();
        let kinds = [FailureKind::Empty, FailureKind::Missing, FailureKind::Silent, FailureKind::Connection];
        for kind in kinds {
            let next = decide(&mut retries, &failure(kind, None), false);
            assert!(matches!(next, Next::Retry { .. }), "{}: {next:?}", kind.name());
        }
        assert_eq!(retries.instruction, Some(Instruction::Empty));
        retries.note_answer();
        assert_eq!(
            retries,
            Retries { charges: 5, empty: 1, missing: 1, silent: 1, ..Retries::default() },
            "an answer forgets what passed and the instruction, and nothing else"
        );
    }

    #[test]
    fn the_budget_of_charges_ends_a_run_whatever_the_kind() {
        let mut retries = Retries::new();
        let mut next = Next::Fail;
        for _ in 0..CHARGES_MAX {
            next = decide(&mut retries, &failure(FailureKind::Connection, None), false);
            retries.note_answer();
        }
        assert_eq!((next, retries.charges), (Next::Block, CHARGES_MAX));
    }

    #[test]
    fn the_fifth_idle_call_without_progress_ends_a_run() {
        let mut retries = Retries { idle_breaker: IDLE_BREAKER_MAX - 1, ..Retries::new() };
        let with_text = Failure { had_text: true, ..failure(FailureKind::Idle, None) };
        assert_eq!(decide(&mut retries.clone(), &with_text, false), Next::Retry { wait_ms: 2_000 });
        assert_eq!(decide(&mut retries, &failure(FailureKind::Idle, None), false), Next::Block);
    }

    #[test]
    fn silent_errors_are_tried_three_times() {
        let mut retries = Retries::new();
        let answers: Vec<Next> =
            (0..4).map(|_| decide(&mut retries, &failure(FailureKind::Silent, None), false)).collect();
        let retry = Next::Retry { wait_ms: 0 };
        assert_eq!(answers, vec![retry, retry, retry, Next::Fail]);
        assert_eq!(retries.charges, 4);
    }
}
