//! Exit statuses: what the end of a command says to a script.
//!
//! Owns the one mapping from outcomes and errors to numbers. It must never be bypassed.

use std::process::ExitCode;

use engine::Rest;
use engine::control::Kind;
use model::Outcome;

/// An exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done.
    Done,
    /// A run failed or is blocked.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// `verify` or `replay` found damage or a difference.
    Damage,
    /// No such run, or it has ended.
    NoRun,
    /// A run was cancelled.
    Cancelled,
    /// A run timed out.
    TimedOut,
    /// A run needs a decision.
    Parked,
    /// The store is locked, read-only, full, damaged, newer or behind.
    Store,
    /// A fault of the program.
    Internal,
    /// Stopped by SIGINT; runs are left resumable.
    Interrupted,
    /// Stopped by SIGTERM, or by `sprag stop`; runs are left resumable.
    Terminated,
}

impl Status {
    /// The first that applies decides for several runs.
    const PRECEDENCE: [Self; 7] = [
        Self::Internal,
        Self::Store,
        Self::Damage,
        Self::Failed,
        Self::Parked,
        Self::TimedOut,
        Self::Cancelled,
    ];

    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Damage => 3,
            Self::NoRun => 4,
            Self::Cancelled => 5,
            Self::TimedOut => 6,
            Self::Parked => 7,
            Self::Store => 8,
            Self::Internal => 70,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// The status of several runs together.
    pub(crate) fn of_all(each: impl IntoIterator<Item = Self>) -> Self {
        let found: Vec<Self> = each.into_iter().collect();
        Self::PRECEDENCE.into_iter().find(|status| found.contains(status)).unwrap_or(Self::Done)
    }

    /// The status of a run that has ended.
    pub(crate) fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Completed => Self::Done,
            Outcome::Failed | Outcome::Blocked => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::TimedOut => Self::TimedOut,
        }
    }

    /// The status of a run that nothing moves any more. None: it stands in its session's lane behind one that needs a
    /// person.
    pub(crate) fn of_rest(rest: Option<&Rest>) -> Self {
        match rest {
            Some(Rest::Done { outcome, .. }) => Self::of_outcome(*outcome),
            Some(Rest::Parked(_) | Rest::Waiting { .. }) | None => Self::Parked,
            Some(Rest::Stopped) => Self::Terminated,
            Some(Rest::Failed(_)) => Self::Internal,
        }
    }

    /// The status of a refusal.
    pub(crate) fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::Request => Self::Usage,
            Kind::Run => Self::NoRun,
            Kind::Busy => Self::Failed,
            Kind::Store => Self::Store,
            Kind::Internal => Self::Internal,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        status.code().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_of_several_runs_decides() {
        let cases = [
            (vec![], Status::Done),
            (vec![Status::Done, Status::Cancelled], Status::Cancelled),
            (vec![Status::Cancelled, Status::TimedOut], Status::TimedOut),
            (vec![Status::TimedOut, Status::Parked], Status::Parked),
            (vec![Status::Parked, Status::Failed], Status::Failed),
            (vec![Status::Failed, Status::Internal, Status::Done], Status::Internal),
        ];
        for (each, expected) in cases {
            assert_eq!(Status::of_all(each.clone()), expected, "{each:?}");
        }
    }
}
