//! How sure a sum of money is.
//!
//! Owns the word beside each amount. It must never change an amount: what is not known counts nothing, and the word says
//! so.

use model::Label;
use model::state::Core;
use serde::{Deserialize, Serialize};

use crate::job::JobFacts;

/// How sure an amount of money is; of several, the least sure holds for their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsdIs {
    /// Every token that a provider counted, at the price of its model.
    #[default]
    Counted,
    /// Calls were lost, and count what was reserved for them: the most that they can have cost.
    Estimated,
    /// A model was asked that has no price: what it cost is not in the amount.
    Unknown,
}

impl UsdIs {
    /// Nothing has to be said of the amount.
    pub fn is_counted(&self) -> bool {
        *self == Self::Counted
    }

    /// Of calls of one model, of which so many were lost.
    pub(super) fn of_calls(facts: &JobFacts, model: &Label, lost: u64) -> Self {
        if facts.served(model).is_some_and(|served| served.is_unpriced) {
            Self::Unknown
        } else if lost > 0 {
            Self::Estimated
        } else {
            Self::Counted
        }
    }

    /// Of a whole run: every model counts that it has come to.
    pub(crate) fn of_run(facts: &JobFacts, core: &Core) -> Self {
        let lost = core.spent.calls_lost;
        let chain = core.retries.chain;
        let all = facts.candidates.len();
        let come_to = if chain.restarts > 0 { all } else { all.min(usize::from(chain.fallback) + 1) };
        let asked = facts.candidates.iter().take(come_to);
        let asked = asked.map(|candidate| Self::of_calls(facts, &Label::from(&*candidate.model), lost));
        asked.chain([Self::of_calls(facts, &core.model, lost)]).max().unwrap_or_default()
    }
}
