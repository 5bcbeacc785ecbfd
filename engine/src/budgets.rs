//! Budgets that the runs of a batch share.
//!
//! Owns the caps of each batch, and knows which reservations may still come back. What is used is counted by the store
//! alone: each transition adds to the counters of its batch what it adds to its run's own account, and a call whose
//! reservation would pass a cap is refused by the writer, whoever else asks at that moment. It must never count itself.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use model::state::Spent;
use model::{Budget, Charge, Scope, Shortage};
use serde::{Deserialize, Serialize};
use store::{Require, Store};
use tokio::sync::watch;

use crate::config::Usd;
use crate::error::Error;
use crate::keys;
use crate::runs::lock;
use crate::shared::Shared;

/// The most bytes of a jobs file's path that are kept, so that the value fits into the state.
const PATH_BYTES_MAX: usize = 3072;

/// The budgets that runs can share.
const SHARED: [Budget; 3] = [Budget::Calls, Budget::Tokens, Budget::Usd];

/// Caps of a whole batch; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCaps {
    /// Model calls.
    pub calls: u64,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// Micro-dollars.
    pub usd_micros: u64,
}

/// A cap that keeps the runs of a batch from their next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReached {
    /// What is short.
    pub budget: Budget,
    /// What was used of it, reservations of calls that were lost included.
    pub used: u64,
    /// The cap.
    pub cap: u64,
    /// A cap that lets a run go on: as much again, and no less than its next call needs.
    pub enough: u64,
}

/// What a store keeps of a batch, beside its runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchFacts {
    pub(crate) caps: BatchCaps,
    /// The file that its jobs were read from; empty if it came from none.
    pub(crate) jobs: String,
}

/// The budgets of an engine's batches, as far as its runs belong to any.
#[derive(Debug, Default)]
pub(crate) struct Budgets(Mutex<HashMap<String, Arc<BatchBudget>>>);

/// The budget of one batch.
#[derive(Debug)]
pub(crate) struct BatchBudget {
    caps: Mutex<BatchCaps>,
    counters: [(Budget, Vec<u8>); 3],
    calls: watch::Sender<Calls>,
}

/// The calls of a batch that this engine has under way.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    /// Calls that hold a reservation, or ask for one.
    reserving: usize,
    /// Reservations that were settled since the engine was opened.
    settled: u64,
}

/// The reservation of one call, from before its intent is committed until it is settled.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<BatchBudget>,
    /// How many had been settled when it was asked for.
    since: u64,
    is_refused: bool,
}

/// What follows when the writer has refused a reservation.
pub(crate) enum Refused {
    /// Something was settled meanwhile: it may fit now.
    Again,
    /// It may fit once the future is ready: other calls hold reservations, of which they may not need all.
    Wait(BoxFuture<'static, ()>),
    /// Nothing will come back: the budget is used up.
    Final,
}

impl BatchCaps {
    /// The cap on one budget, 0 for none; turns are each run's own.
    pub(crate) fn of(&self, budget: Budget) -> u64 {
        match budget {
            Budget::Turns => 0,
            Budget::Calls => self.calls,
            Budget::Tokens => self.tokens,
            Budget::Usd => self.usd_micros,
        }
    }
}

impl BatchFacts {
    /// What the store has of a batch.
    pub(crate) fn read(store: &dyn Store, batch: &str) -> Result<Self, Error> {
        let key = keys::batch(batch);
        let found = store.scan(&key, None, 1)?.into_iter().next();
        Ok(found.and_then(|(_, value)| postcard::from_bytes(&value).ok()).unwrap_or_default())
    }
}

/// What the runs of a batch count so far: used, and reserved by calls in flight.
pub fn charged(store: &dyn Store, batch: &str) -> Result<Charge, Error> {
    let of = |budget| read(store, &keys::used(batch, budget));
    Ok(Charge { calls: of(Budget::Calls)?, tokens: of(Budget::Tokens)?, usd_micros: of(Budget::Usd)? })
}

impl CapReached {
    /// How far a batch is that refused a call.
    pub(crate) fn of(store: &dyn Store, batch: &str, shortage: Shortage) -> Result<Self, Error> {
        let Shortage { budget, lacks, scope: _ } = shortage;
        let cap = BatchFacts::read(store, batch)?.caps.of(budget);
        let used = read(store, &keys::used(batch, budget))?;
        Ok(Self { budget, used, cap, enough: cap.saturating_add(cap.max(lacks)) })
    }

    /// The flag of `batch run` that raises the cap.
    pub fn flag(&self) -> String {
        format!("--max-{} {}", self.budget.name(), amount(self.budget, self.enough))
    }
}

impl std::fmt::Display for CapReached {
    /// `has used 9 of 10 model calls, and the next call would pass the cap`, or `has used 12 of 10 tokens, 2 past the cap`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, cap) = (amount(self.budget, self.used), amount(self.budget, self.cap));
        let what = match self.budget {
            Budget::Calls => "model calls",
            Budget::Turns | Budget::Tokens | Budget::Usd => self.budget.name(),
        };
        write!(f, "has used {used} of {cap} {what}, ")?;
        match self.used.saturating_sub(self.cap) {
            0 => f.write_str("and the next call would pass the cap"),
            past => write!(f, "{} past the cap", amount(self.budget, past)),
        }
    }
}

/// An amount as flags and texts have it.
pub(crate) fn amount(budget: Budget, amount: u64) -> String {
    match budget {
        Budget::Turns | Budget::Calls | Budget::Tokens => amount.to_string(),
        Budget::Usd => Usd::from_micros(amount).to_string(),
    }
}

impl Budgets {
    /// The budget of a batch.
    pub(crate) fn of(&self, store: &dyn Store, batch: &str) -> Result<Arc<BatchBudget>, Error> {
        let mut known = lock(&self.0);
        if let Some(budget) = known.get(batch) {
            return Ok(Arc::clone(budget));
        }
        let budget = Arc::new(BatchBudget {
            caps: Mutex::new(BatchFacts::read(store, batch)?.caps),
            counters: SHARED.map(|budget| (budget, keys::used(batch, budget))),
            calls: watch::Sender::default(),
        });
        known.insert(batch.to_owned(), Arc::clone(&budget));
        Ok(budget)
    }
}

/// Gives a batch its caps, durably; calls that are asked for from now on keep to them.
pub(crate) async fn cap(shared: &Shared, batch: &str, caps: BatchCaps, jobs: &Path) -> Result<(), Error> {
    let jobs = jobs.to_str().filter(|path| path.len() <= PATH_BYTES_MAX).unwrap_or_default().to_owned();
    let facts = postcard::to_stdvec(&BatchFacts { caps, jobs }).unwrap_or_default();
    let mut next = 0;
    loop {
        let commit = shared.fact(keys::BATCHES, next, keys::batch(batch), facts.clone());
        match shared.store.commit(commit).await {
            Ok(_) => break,
            Err(store::Error::Conflict { next: found, .. }) => next = found,
            Err(error) => return Err(error.into()),
        }
    }
    *lock(&shared.budgets.of(&*shared.store, batch)?.caps) = caps;
    Ok(())
}

impl BatchBudget {
    /// What a transition adds to the counters. Only the intent of a call is held against the caps: what it used is a
    /// fact, whatever it is.
    pub(crate) fn requires(&self, before: &Spent, after: &Spent, is_intent: bool) -> Vec<Require> {
        let (before, after) = (Charge::of(before), Charge::of(after));
        let caps = *lock(&self.caps);
        let require = |(budget, key): &(Budget, Vec<u8>)| {
            let (before, after) = (amount_of(before, *budget), amount_of(after, *budget));
            let add = difference(before, after);
            let cap = caps.of(*budget);
            let max = if is_intent && add > 0 && cap > 0 { cap } else { u64::MAX };
            (add != 0).then(|| Require::Ceiling { key: key.clone(), add, max })
        };
        self.counters.iter().filter_map(require).collect()
    }

    /// What a refused commit lacks; none if it was refused for another counter.
    pub(crate) fn shortage(&self, error: &store::Error) -> Option<Shortage> {
        let store::Error::Ceiling { key, current, add, max } = error else { return None };
        let (budget, _) = self.counters.iter().find(|(_, counter)| counter == key)?;
        let lacks = current.saturating_add_signed(*add).saturating_sub(*max);
        Some(Shortage { budget: *budget, scope: Scope::Batch, lacks })
    }

    /// True if what was short is below its cap now.
    pub(crate) fn has_room(&self, store: &dyn Store, short: Budget) -> Result<bool, Error> {
        let cap = lock(&self.caps).of(short);
        let counter = self.counters.iter().find(|(budget, _)| *budget == short);
        let used = counter.map_or(Ok(0), |(_, key)| read(store, key))?;
        Ok(cap == 0 || used < cap)
    }

    /// A call is about to ask for its reservation.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        self.calls.send_modify(|calls| calls.reserving += 1);
        Reservation { since: self.calls.borrow().settled, budget: Arc::clone(self), is_refused: false }
    }
}

impl Reservation {
    /// The writer has refused it, for this budget.
    ///
    /// Whoever waits is woken by each settlement, and when nobody is left that may settle: then the last to be refused
    /// finds that it is the last, so a budget that is used up parks every run in the end, and none too early.
    pub(crate) fn refused(mut self, budget: Budget) -> Refused {
        self.is_refused = true;
        let since = self.since;
        let mut calls = self.budget.calls.subscribe();
        drop(self);
        let now = *calls.borrow();
        if now.settled != since {
            return Refused::Again;
        }
        let may_come_back = match budget {
            Budget::Tokens | Budget::Usd => now.reserving > 0,
            // What was made stays made.
            Budget::Turns | Budget::Calls => false,
        };
        if !may_come_back {
            return Refused::Final;
        }
        Refused::Wait(Box::pin(async move {
            // The budget lives as long as the engine.
            let _ = calls.wait_for(|now| now.settled != since || now.reserving == 0).await;
        }))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.calls.send_modify(|calls| {
            calls.reserving = calls.reserving.saturating_sub(1);
            calls.settled += u64::from(!self.is_refused);
        });
    }
}

fn read(store: &dyn Store, counter: &[u8]) -> Result<u64, Error> {
    let found = store.scan(counter, None, 1)?.into_iter().next();
    Ok(found.and_then(|(_, value)| value.as_slice().try_into().ok()).map_or(0, u64::from_le_bytes))
}

fn amount_of(charge: Charge, budget: Budget) -> u64 {
    match budget {
        Budget::Turns => 0,
        Budget::Calls => charge.calls,
        Budget::Tokens => charge.tokens,
        Budget::Usd => charge.usd_micros,
    }
}

/// What leads from one amount to the other.
fn difference(before: u64, after: u64) -> i64 {
    let distance = i64::try_from(after.abs_diff(before)).unwrap_or(i64::MAX);
    if after < before { -distance } else { distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_past_a_cap_is_told() {
        let reached = |budget, used, cap| CapReached { budget, used, cap, enough: 2 * cap }.to_string();
        assert_eq!(
            reached(Budget::Tokens, 90, 100),
            "has used 90 of 100 tokens, and the next call would pass the cap"
        );
        assert_eq!(reached(Budget::Tokens, 120, 100), "has used 120 of 100 tokens, 20 past the cap");
        assert_eq!(reached(Budget::Usd, 2_500_000, 2_000_000), "has used 2.5 of 2 usd, 0.5 past the cap");
    }
}
