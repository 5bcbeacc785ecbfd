//! What each turn of a run took: calls, tokens, money.
//!
//! Owns the rows of the table, and the row that stands for the turns before them, so that all rows add up to what the run
//! has used. It counts differences of committed states; it must never price anything.

use model::Label;
use model::message::Usage;
use model::state::{Core, Spent};
use serde::Serialize;

use super::money::UsdIs;
use super::present;
use super::show::UsageView;
use crate::job::JobFacts;

/// What one turn took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TurnRow {
    /// Ordinal of the turn, from 0.
    pub turn: u32,
    /// The model that was asked last.
    pub model: String,
    /// Name of the profile that paid last; none for a model without profiles.
    pub profile: Option<String>,
    /// Tries of its model call.
    pub attempts: u32,
    /// Model calls made, lost ones included.
    pub model_calls: u64,
    /// Model calls whose answer was lost.
    pub calls_lost: u64,
    /// What the lost ones count, which is what was reserved for them.
    pub lost: LostView,
    /// Tokens, lost calls included.
    pub usage: UsageView,
    /// Dollars, lost calls included.
    #[serde(serialize_with = "present::dollars")]
    pub usd: u64,
    /// How sure that is.
    pub usd_is: UsdIs,
    /// Names of the tools that its answer called, in the order of the calls.
    pub tools: Vec<String>,
}

/// What lost calls count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LostView {
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Dollars.
    #[serde(serialize_with = "present::dollars")]
    pub usd: u64,
}

/// What the turns took together that are before the first row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EarlierTurns {
    /// How many they are.
    pub turns: u32,
    /// Model calls made, lost ones included.
    pub model_calls: u64,
    /// Model calls whose answer was lost.
    pub calls_lost: u64,
    /// Tokens, lost calls included.
    pub usage: UsageView,
    /// Dollars, lost calls included.
    #[serde(serialize_with = "present::dollars")]
    pub usd: u64,
    /// How sure that is.
    pub usd_is: UsdIs,
}

/// One turn as it is read, record by record.
#[derive(Debug, Default)]
pub(super) struct Turn {
    model: Label,
    profile: u8,
    attempts: u32,
    model_calls: u64,
    calls_lost: u64,
    usage: Usage,
    lost: Usage,
    pub(super) tools: Vec<String>,
}

impl Turn {
    /// Counts what happened between two committed states of the turn.
    pub(super) fn count(&mut self, before: &Core, after: &Core, attempt: Option<u32>) {
        let made = after.spent.model_calls.saturating_sub(before.spent.model_calls);
        let lost = after.spent.calls_lost.saturating_sub(before.spent.calls_lost);
        let used = less(after.spent.usage, before.spent.usage);
        self.model_calls += made;
        self.calls_lost += lost;
        self.usage = self.usage.plus(used);
        if lost > 0 {
            self.lost = self.lost.plus(used);
        }
        if made > 0
            && let Some(attempt) = attempt
        {
            self.model = after.model.clone();
            self.profile = after.retries.profile;
            self.attempts = attempt.saturating_add(1);
        }
    }

    /// The row as it is shown.
    pub(super) fn row(self, turn: u32, facts: &JobFacts) -> TurnRow {
        TurnRow {
            turn,
            profile: facts.profile(&self.model, self.profile).map(str::to_owned),
            attempts: self.attempts,
            model_calls: self.model_calls,
            calls_lost: self.calls_lost,
            lost: LostView { tokens: self.lost.tokens(), usd: self.lost.usd_micros },
            usage: UsageView::from(self.usage),
            usd: self.usage.usd_micros,
            usd_is: UsdIs::of_calls(facts, &self.model, self.usage, self.calls_lost),
            model: self.model.to_string(),
            tools: self.tools,
        }
    }
}

impl EarlierTurns {
    /// What a run has used beside its rows; none if the rows begin with its first turn.
    pub(super) fn before(rows: &[TurnRow], core: &Core, facts: &JobFacts) -> Option<Self> {
        let turns = rows.first().map_or(0, |first| first.turn);
        let sum = |of: fn(&TurnRow) -> u64| rows.iter().map(of).sum::<u64>();
        let Spent { model_calls, calls_lost, usage, .. } = core.spent;
        let shown = rows.iter().fold(Usage::default(), |sum, row| sum.plus(row.used()));
        let rest = less(usage, shown);
        (turns > 0).then(|| Self {
            turns,
            model_calls: model_calls.saturating_sub(sum(|row| row.model_calls)),
            calls_lost: calls_lost.saturating_sub(sum(|row| row.calls_lost)),
            usage: UsageView::from(rest),
            usd: rest.usd_micros,
            usd_is: UsdIs::of_run(facts, core),
        })
    }
}

impl TurnRow {
    fn used(&self) -> Usage {
        let UsageView { input, output, cache_read, cache_write } = self.usage;
        Usage { input, output, cache_read, cache_write, usd_micros: self.usd }
    }
}

fn less(usage: Usage, by: Usage) -> Usage {
    Usage {
        input: usage.input.saturating_sub(by.input),
        output: usage.output.saturating_sub(by.output),
        cache_read: usage.cache_read.saturating_sub(by.cache_read),
        cache_write: usage.cache_write.saturating_sub(by.cache_write),
        usd_micros: usage.usd_micros.saturating_sub(by.usd_micros),
    }
}

#[cfg(test)]
mod tests {
    use model::RunId;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{Config, Defaults, Price};
    use crate::driver::read_first;
    use crate::provider::Rehearsal;
    use crate::query::{RunView, Snapshot, show};
    use crate::{Engine, Job};

    fn engine(script: &Value) -> Engine {
        let usd = |text: &str| text.parse().unwrap();
        let price = Price { input: usd("3"), output: usd("15"), ..Price::default() };
        let defaults = Defaults { loop_detection: false, ..Defaults::default() };
        let config = Config { defaults: defaults.into(), ..Config::default() };
        let model = Rehearsal::from_value(script).unwrap().price(Some(price));
        Engine::memory().config(config).provider("m", model).open().unwrap()
    }

    /// All rows as one.
    fn sum(view: &RunView) -> (u64, u64, Usage) {
        let rows = view.turn_table.iter().map(|row| (row.model_calls, row.calls_lost, row.used()));
        let earlier = view.earlier_turns.iter().map(|earlier| {
            let UsageView { input, output, cache_read, cache_write } = earlier.usage;
            let usage = Usage { input, output, cache_read, cache_write, usd_micros: earlier.usd };
            (earlier.model_calls, earlier.calls_lost, usage)
        });
        rows.chain(earlier).fold((0, 0, Usage::default()), |(made, lost, used), row| {
            (made + row.0, lost + row.1, used.plus(row.2))
        })
    }

    fn totals(view: &RunView) -> (u64, u64, Usage) {
        let UsageView { input, output, cache_read, cache_write } = view.spending.usage;
        let usage = Usage { input, output, cache_read, cache_write, usd_micros: view.spending.usd };
        (view.counters.model_calls, view.counters.calls_lost, usage)
    }

    async fn ended(engine: &Engine, turns: u64) -> RunId {
        let job = Job { max_turns: Some(turns), ..Job::new("go").model("m").tools(["ls"]) };
        let run = engine.submit(job).await.unwrap();
        run.outcome().await.unwrap();
        run.id
    }

    #[tokio::test]
    async fn the_rows_add_up_to_what_the_run_has_used_however_long_it_is() {
        let usage = json!({ "input": 100, "output": 7, "cache_read": 5, "cache_write": 3 });
        let calls = json!([{ "tool": "ls", "args": {} }]);
        let script = json!({ "turns": [
            { "calls": calls, "usage": usage, "fail": [{ "kind": "empty" }] },
            { "calls": calls, "usage": usage },
        ], "after": "repeat" });
        let engine = engine(&script);
        let store = &**engine.store();
        for (turns, shown) in [(1, 1), (3, 3), (1_200, 1_023)] {
            let run = ended(&engine, turns).await;
            let view = show(store, run).unwrap();
            assert_eq!(sum(&view), totals(&view), "{turns} turns");
            let earlier = view.earlier_turns.as_ref().map_or(0, |earlier| earlier.turns);
            assert_eq!((view.turn_table.len(), u64::from(earlier)), (shown, turns - shown as u64));
            assert!(view.spending.usd > 0);
        }
    }

    #[tokio::test]
    async fn a_call_that_is_lost_is_told_with_what_it_counts() {
        let engine = engine(&json!({ "turns": [{ "text": "done" }] }));
        let store = &**engine.store();
        let run = ended(&engine, 1).await;
        let core = Snapshot::load(store, run).unwrap().core().clone();
        let facts = JobFacts::of(&read_first(store, run).unwrap().submission).unwrap();
        let reserve = Usage { input: 4, output: 6, usd_micros: 9, ..Usage::default() };
        let spent = |model_calls, calls_lost, usage| Core {
            spent: Spent { model_calls, calls_lost, usage, ..Spent::default() },
            ..core.clone()
        };
        let states = [
            spent(0, 0, Usage::default()),
            spent(1, 0, Usage::default()),
            spent(1, 1, reserve),
            spent(2, 1, reserve),
            spent(2, 1, reserve.plus(reserve)),
        ];
        let mut turn = Turn::default();
        for pair in states.windows(2) {
            turn.count(&pair[0], &pair[1], Some(0));
        }
        let row = turn.row(4, &facts);
        assert_eq!((row.model_calls, row.calls_lost, row.usd, row.usd_is), (2, 1, 18, UsdIs::Estimated));
        assert_eq!((row.lost, row.attempts), (LostView { tokens: 10, usd: 9 }, 1));
    }
}
