//! The six detectors, in their order of priority. The first that finds something is the verdict. Pure
//! comparison of counts with thresholds: what is counted is in `streaks`.

use serde::{Deserialize, Serialize};

use super::call::{CallFacts, CallKind};
use super::hash::ToolHash;
use super::streaks::History;
use super::{BREAKER_AT, CRITICAL_AT, UNKNOWN_TOOL_AT, WARNING_AT};

/// Who found something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Detector {
    /// A tool keeps answering that the same tool is missing.
    UnknownToolRepeat,
    /// Anything that repeats without progress beyond every other limit.
    GlobalCircuitBreaker,
    /// A poll keeps showing the same.
    KnownPollNoProgress,
    /// Two actions take turns.
    PingPong,
    /// One action repeats.
    GenericRepeat,
    /// A few variants of arguments go around and all fail alike.
    ArgumentChurn,
    /// A call that was blocked comes again unchanged. Asked by admission only, after the six above.
    BlockedRepeat,
    /// Admission could not be decided, so the batch is blocked.
    LoopAdmissionFailure,
}

/// What a finding does to the call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Level {
    /// It runs, observers are told.
    Warning,
    /// It does not run, nor does its batch.
    Critical,
}

/// What a detector found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// What it does to the call.
    pub level: Level,
    /// Who found it.
    pub detector: Detector,
    /// How often it happened, by the detector's own count.
    pub count: u32,
    /// For an alternation, the tool of the other action.
    pub paired: Option<ToolHash>,
    /// The call is also one of a churn, so it is no sign of life. Only on warnings.
    pub is_churning: bool,
}

impl Detector {
    /// The name in events and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownToolRepeat => "unknown_tool_repeat",
            Self::GlobalCircuitBreaker => "global_circuit_breaker",
            Self::KnownPollNoProgress => "known_poll_no_progress",
            Self::PingPong => "ping_pong",
            Self::GenericRepeat => "generic_repeat",
            Self::ArgumentChurn => "argument_churn",
            Self::BlockedRepeat => "blocked_repeat",
            Self::LoopAdmissionFailure => "loop_admission_failure",
        }
    }
}

impl Level {
    /// The name in events and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl Finding {
    /// For a caller that cannot decide admission: what cannot be judged does not run.
    pub const ADMISSION_FAILURE: Self = Self::critical(Detector::LoopAdmissionFailure, 1);

    pub(super) const fn critical(detector: Detector, count: u32) -> Self {
        Self { level: Level::Critical, detector, count, paired: None, is_churning: false }
    }

    fn warning(detector: Detector, count: u32, is_churning: bool) -> Self {
        Self { level: Level::Warning, detector, count, paired: None, is_churning }
    }
}

/// The verdict on one more call after `history`. All counts but the alternation's are of calls before this
/// one.
pub(super) fn detect(history: History<'_>, call: &CallFacts) -> Option<Finding> {
    let unknown = history.unknown_streak(call);
    if unknown >= UNKNOWN_TOOL_AT {
        return Some(Finding::critical(Detector::UnknownToolRepeat, unknown));
    }
    let repeats = history.no_progress(call);
    if repeats >= BREAKER_AT {
        return Some(Finding::critical(Detector::GlobalCircuitBreaker, repeats));
    }
    let is_churning = || history.churn(call) >= WARNING_AT;
    let is_poll = matches!(call.kind, CallKind::Poll(_));
    if is_poll && repeats >= CRITICAL_AT {
        return Some(Finding::critical(Detector::KnownPollNoProgress, repeats));
    }
    if is_poll && repeats >= WARNING_AT {
        return Some(Finding::warning(Detector::KnownPollNoProgress, repeats, is_churning()));
    }
    if let Some(turns) = history.alternation(call).filter(|turns| turns.count >= WARNING_AT) {
        let finding = if turns.count >= CRITICAL_AT && turns.is_without_progress {
            Finding::critical(Detector::PingPong, turns.count)
        } else {
            Finding::warning(Detector::PingPong, turns.count, is_churning())
        };
        return Some(Finding { paired: Some(turns.paired), ..finding });
    }
    if repeats >= CRITICAL_AT {
        return Some(Finding::critical(Detector::GenericRepeat, repeats));
    }
    let churn = history.churn(call);
    if churn >= WARNING_AT {
        return Some(Finding::warning(Detector::ArgumentChurn, churn, true));
    }
    let recent = history.recent(call);
    (!is_poll && recent >= WARNING_AT).then(|| Finding::warning(Detector::GenericRepeat, recent, false))
}
