//! When a batch gives up: `--halt fail=10%` or `--halt fail=N`.
//!
//! Owns the threshold. It counts over the whole batch, so that a crash does not start the count again.

use std::fmt;
use std::str::FromStr;

/// How many jobs may fail before the others are not started any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// So many jobs.
    Jobs(u64),
    /// So many percent of all jobs.
    Percent(u8),
}

impl Halt {
    /// True once that many of `total` jobs have failed.
    pub fn is_reached(self, failed: u64, total: u64) -> bool {
        match self {
            Self::Jobs(most) => failed >= most,
            Self::Percent(percent) => {
                failed > 0 && u128::from(failed) * 100 >= u128::from(total) * u128::from(percent)
            }
        }
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jobs(jobs) => write!(f, "fail={jobs}"),
            Self::Percent(percent) => write!(f, "fail={percent}%"),
        }
    }
}

impl FromStr for Halt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected fail=N or fail=P%, for example fail=10%, got `{text}`");
        let number = text.strip_prefix("fail=").ok_or_else(expected)?;
        match number.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| (1..=100).contains(percent))
                .map(Self::Percent)
                .ok_or_else(expected),
            None => number.parse().ok().filter(|jobs| *jobs > 0).map(Self::Jobs).ok_or_else(expected),
        }
    }
}
