//! Watches the first calls after a compaction. A run that had to forget most of what it knew, and at once
//! repeats one call with one result, will not get out of that by another compaction.

use serde::{Deserialize, Serialize};

use super::AFTER_COMPACTION_CALLS;
use super::call::CallFacts;
use super::hash::{ActionKey, ResultHash};
use super::outcome::OutcomeFacts;

/// The calls since the last compaction, as long as all of them were the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CompactionWatch {
    /// Nothing to watch for: no compaction, or enough calls since then that were not all the same.
    #[default]
    Idle,
    /// A compaction, and no finished call since.
    Armed,
    /// Only this call has come back since, this often.
    Repeating {
        /// Tool and arguments.
        key: ActionKey,
        /// What it came to; `None` if it was vetoed.
        result: Option<ResultHash>,
        /// How often, less than [`AFTER_COMPACTION_CALLS`].
        times: u8,
    },
}

impl CompactionWatch {
    /// What is left after `call` came to `outcome`, and whether the loop has survived the compaction, so that
    /// the run has to end.
    #[must_use]
    pub fn observe(self, call: &CallFacts, outcome: &OutcomeFacts) -> (Self, bool) {
        let result = match outcome {
            OutcomeFacts::Vetoed => None,
            OutcomeFacts::Settled(settled) => Some(settled.result),
        };
        let times = match self {
            Self::Armed => 1,
            Self::Repeating { key, result: same, times } if key == call.key && same == result => times + 1,
            Self::Repeating { .. } | Self::Idle => return (Self::Idle, false),
        };
        if times < AFTER_COMPACTION_CALLS {
            (Self::Repeating { key: call.key, result, times }, false)
        } else {
            (Self::Idle, true)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::guard::loops::{ToolKind, ToolOutcome, call_facts, classify};

    /// After which of `calls`, if any, the loop counts as having survived a compaction.
    fn survives(calls: &[(&str, &str)]) -> Option<usize> {
        let mut watch = CompactionWatch::Armed;
        for (at, (args, result)) in calls.iter().enumerate() {
            let call = call_facts("read", &json!(args), ToolKind::Plain);
            let outcome = classify(&call, ToolOutcome::Result(&Value::from(*result)));
            let is_surviving;
            (watch, is_surviving) = watch.observe(&call, &outcome);
            if is_surviving {
                return Some(at);
            }
        }
        None
    }

    #[test]
    fn three_equal_calls_right_after_a_compaction_are_one_too_many() {
        assert_eq!(survives(&[("a", "x"), ("a", "x")]), None);
        assert_eq!(survives(&[("a", "x"), ("a", "x"), ("a", "x")]), Some(2));
    }

    #[test]
    fn any_other_call_or_result_ends_the_watch() {
        assert_eq!(survives(&[("b", "x"), ("a", "x"), ("a", "x"), ("a", "x")]), None);
        assert_eq!(survives(&[("a", "y"), ("a", "x"), ("a", "x"), ("a", "x")]), None);
        assert_eq!(survives(&[("a", "x"), ("a", "x"), ("b", "x"), ("a", "x")]), None);
    }

    #[test]
    fn without_a_compaction_nothing_is_watched() {
        let call = call_facts("read", &json!(null), ToolKind::Plain);
        let idle = CompactionWatch::default();
        assert_eq!(idle.observe(&call, &OutcomeFacts::Vetoed), (CompactionWatch::Idle, false));
    }
}
