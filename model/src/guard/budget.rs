//! Budgets: what a run may use, and what it lacks for the next step.
//!
//! Owns what counts against which cap. A call counts as reserved until its answer says what it used, so what is in
//! flight can never pass a cap. It must never ask what a call costs: that comes with the request.

use serde::{Deserialize, Serialize};

use crate::input::Extension;
use crate::message::Usage;
use crate::state::{Limits, Spent};

/// What is counted against a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Budget {
    /// Turns that got a complete answer.
    Turns,
    /// Model calls made, lost ones included.
    Calls,
    /// Tokens of all kinds.
    Tokens,
    /// Micro-dollars.
    Usd,
}

/// Whose cap it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The run's own.
    Run,
    /// That of the batch, which its runs share.
    Batch,
}

/// The next step would pass a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// What is short.
    pub budget: Budget,
    /// Whose cap it is.
    pub scope: Scope,
    /// What the cap lacks for the step, in the budget's unit.
    pub lacks: u64,
}

/// What a run counts against the budgets that it shares: used, and reserved by a call in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Model calls.
    pub calls: u64,
    /// Tokens.
    pub tokens: u64,
    /// Micro-dollars.
    pub usd_micros: u64,
}

impl Budget {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Calls => "calls",
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }
}

impl std::fmt::Display for Shortage {
    /// `tokens`, or `batch tokens`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.scope {
            Scope::Run => f.write_str(self.budget.name()),
            Scope::Batch => write!(f, "batch {}", self.budget.name()),
        }
    }
}

impl Charge {
    /// What a run counts so far.
    pub fn of(spent: &Spent) -> Self {
        let usage = spent.usage.plus(spent.reserved);
        Self { calls: spent.model_calls, tokens: usage.tokens(), usd_micros: usage.usd_micros }
    }
}

/// What a run lacks for a model call that may use `reserve`.
pub fn shortage_of_call(limits: &Limits, spent: &Spent, reserve: Usage) -> Option<Shortage> {
    let after = spent.usage.plus(reserve);
    let calls = spent.model_calls.saturating_add(1);
    shortage(Budget::Calls, calls, limits.calls)
        .or_else(|| shortage(Budget::Tokens, after.tokens(), limits.tokens))
        .or_else(|| shortage(Budget::Usd, after.usd_micros, limits.usd_micros))
}

/// What a run lacks for another turn.
pub fn shortage_of_turn(limits: &Limits, spent: &Spent) -> Option<Shortage> {
    shortage(Budget::Turns, spent.turns.saturating_add(1), limits.turns)
}

/// True if the extension raises the run's own cap that is short.
pub fn relieves(by: Extension, shortage: Shortage) -> bool {
    let added = match shortage.budget {
        Budget::Turns => by.turns,
        Budget::Calls => by.calls,
        Budget::Tokens => by.tokens,
        Budget::Usd => by.usd_micros,
    };
    shortage.scope == Scope::Run && added > 0
}

fn shortage(budget: Budget, wanted: u64, cap: u64) -> Option<Shortage> {
    let lacks = wanted.saturating_sub(cap);
    (cap > 0 && lacks > 0).then_some(Shortage { budget, scope: Scope::Run, lacks })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { time_ms: 0, turns: 2, calls: 3, tokens: 100, usd_micros: 50 };

    fn usage(output: u64, usd_micros: u64) -> Usage {
        Usage { output, usd_micros, ..Usage::default() }
    }

    fn short(budget: Budget, lacks: u64) -> Option<Shortage> {
        Some(Shortage { budget, scope: Scope::Run, lacks })
    }

    #[test]
    fn a_call_may_reach_a_cap_and_not_pass_it() {
        let spent = Spent { model_calls: 2, usage: usage(60, 30), ..Spent::default() };
        assert_eq!(shortage_of_call(&LIMITS, &spent, usage(40, 20)), None);
        assert_eq!(shortage_of_call(&LIMITS, &spent, usage(45, 20)), short(Budget::Tokens, 5));
        assert_eq!(shortage_of_call(&LIMITS, &spent, usage(40, 23)), short(Budget::Usd, 3));
        let spent = Spent { model_calls: 3, ..spent };
        assert_eq!(shortage_of_call(&LIMITS, &spent, usage(45, 23)), short(Budget::Calls, 1));
        assert_eq!(shortage_of_turn(&LIMITS, &Spent { turns: 1, ..spent }), None);
        assert_eq!(shortage_of_turn(&LIMITS, &Spent { turns: 2, ..spent }), short(Budget::Turns, 1));
    }

    #[test]
    fn without_caps_nothing_is_short() {
        let spent = Spent { turns: 9, model_calls: u64::MAX, ..Spent::default() };
        let reserve = usage(u64::MAX, u64::MAX);
        assert_eq!(shortage_of_call(&Limits::default(), &spent, reserve), None);
        assert_eq!(shortage_of_turn(&Limits::default(), &spent), None);
    }

    #[test]
    fn only_an_extension_of_what_is_short_relieves_it() {
        let of = |scope| Shortage { budget: Budget::Tokens, scope, lacks: 5 };
        let tokens = Extension { tokens: 1, ..Extension::default() };
        let others = Extension { time_ms: 1, usd_micros: 1, calls: 1, turns: 1, tokens: 0 };
        assert!(relieves(tokens, of(Scope::Run)));
        assert!(!relieves(others, of(Scope::Run)));
        assert!(!relieves(tokens, of(Scope::Batch)));
    }

    #[test]
    fn a_charge_is_what_was_used_and_what_is_reserved() {
        let spent = Spent { model_calls: 2, usage: usage(3, 30), reserved: usage(4, 40), ..Spent::default() };
        assert_eq!(Charge::of(&spent), Charge { calls: 2, tokens: 7, usd_micros: 70 });
    }
}
