//! How sure a sum of money is.
//!
//! Owns the word beside each amount. It must never change an amount: what is not known counts nothing, and the
//! word says so.

use model::Label;
use model::message::Usage;
use model::state::{Core, Spent};
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

    /// Of calls of one model that have used this, and of which so many were lost. What used nothing costs
    /// nothing.
    pub(super) fn of_calls(facts: &JobFacts, model: &Label, used: Usage, lost: u64) -> Self {
        if used.tokens() > 0 && facts.served(model).is_some_and(|served| served.is_unpriced) {
            Self::Unknown
        } else if lost > 0 {
            Self::Estimated
        } else {
            Self::Counted
        }
    }

    /// Of a whole run: every model counts that it has come to.
    pub(crate) fn of_run(facts: &JobFacts, core: &Core) -> Self {
        let Spent { usage, calls_lost: lost, .. } = core.spent;
        let chain = core.retries.chain;
        let all = facts.candidates.len();
        let come_to = if chain.restarts > 0 { all } else { all.min(usize::from(chain.fallback) + 1) };
        let asked = facts.candidates.iter().take(come_to);
        let asked =
            asked.map(|candidate| Self::of_calls(facts, &Label::from(&*candidate.model), usage, lost));
        asked.chain([Self::of_calls(facts, &core.model, usage, lost)]).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Api, Config, Defaults, Model, Price, Usd};
    use crate::driver::read_first;
    use crate::query::{Snapshot, show};
    use crate::{BatchCaps, Engine, Job};

    /// An engine with a model of a price, and one without; nobody listens where they are served.
    fn engine() -> Engine {
        let served = |price| Model {
            base_url: Some("http://127.0.0.1:1".to_owned()),
            model: Some("vendors-name".to_owned()),
            price,
            ..Model::new(Api::OpenaiChat)
        };
        let models = [
            ("free".to_owned(), served(Some(Price::default()))),
            ("local".to_owned(), served(None)),
            (ODD.to_owned(), served(None)),
        ];
        let defaults = Defaults {
            model: Some("free".to_owned()),
            fallback: vec!["local".to_owned()],
            ..Defaults::default()
        };
        let config =
            Config { models: Arc::new(models.into()), defaults: Arc::new(defaults), ..Config::default() };
        Engine::memory().config(config).open().unwrap()
    }

    fn job(model: &str, max_usd: Option<u64>) -> Job {
        let max_usd = max_usd.map(Usd::from_micros);
        Job { max_usd, retries: Some(false), ..Job::new("go").model(model).tools(Vec::<String>::new()) }
    }

    /// A name that TOML wants in quotes.
    const ODD: &str = "o/d d";

    const REFUSAL: &str = "model `local` has no price, so a cap in dollars would not stop it; say what a \
                           million tokens cost (models.local.price = { input = 0, output = 0 } if nothing), \
                           or cap tokens instead";

    #[tokio::test]
    async fn a_cap_in_dollars_needs_the_price_of_every_model_that_may_be_asked() {
        let engine = engine();
        let refusal = |job: &Job| engine.check(job).err().map(|error| error.to_string());
        assert_eq!(refusal(&job("local", None)), None);
        assert_eq!(refusal(&job("local", Some(1))), Some(REFUSAL.to_owned()));
        let of_odd = refusal(&job(ODD, Some(1))).unwrap();
        assert!(
            of_odd.contains("(models.\"o/d d\".price = { input = 0, output = 0 } if nothing)"),
            "{of_odd}"
        );
        // The default model leads to its fallback.
        assert_eq!(refusal(&job("free", Some(1))), Some(REFUSAL.to_owned()));
        assert_eq!(refusal(&job("free", Some(0))), None);
        let of_batch = Job { batch: Some("night".to_owned()), ..job("local", None) };
        assert_eq!(engine.check_priced(&of_batch).unwrap_err().to_string(), REFUSAL);
        let caps = BatchCaps { usd_micros: 1, ..BatchCaps::default() };
        engine.cap_batch("night", caps, std::path::Path::new("jobs")).await.unwrap();
        assert_eq!(refusal(&of_batch), Some(REFUSAL.to_owned()));
    }

    #[tokio::test]
    async fn what_a_model_without_a_price_cost_is_unknown_if_it_has_used_anything() {
        let engine = engine();
        let store = &**engine.store();
        let used = Usage { input: 9, ..Usage::default() };
        for (model, expected) in [("local", UsdIs::Unknown), ("free", UsdIs::Counted)] {
            let run = engine.submit(job(model, None)).await.unwrap();
            run.outcome().await.unwrap();
            // Nobody listened: nothing was used.
            assert_eq!(show(store, run.id).unwrap().spending.usd_is, UsdIs::Counted);
            let facts = JobFacts::of(&read_first(store, run.id).unwrap().submission).unwrap();
            let core = Snapshot::load(store, run.id).unwrap().core().clone();
            let core = Core { spent: Spent { usage: used, ..core.spent }, ..core };
            assert_eq!(UsdIs::of_run(&facts, &core), expected, "{model}");
            assert_eq!(UsdIs::of_calls(&facts, &core.model, used, 1), expected.max(UsdIs::Estimated));
        }
    }
}
