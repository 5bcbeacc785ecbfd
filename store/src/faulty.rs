//! A store that fails where a test says so.
//!
//! Owns a plan of faults by operation and count, and the counts. It must never change what the wrapped store
//! does with an operation that has no fault.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Commit, Epoch, Error, Loaded, Purge, Purged, Record, RunKey, Seq, Store, Stream, Ticket};

/// A method of [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Store::commit`]
    Commit,
    /// [`Store::push_inbox`]
    PushInbox,
    /// [`Store::load`]
    Load,
    /// [`Store::claim`]
    Claim,
    /// [`Store::read_journal`]
    ReadJournal,
    /// [`Store::read_transcript`]
    ReadTranscript,
    /// [`Store::scan`]
    Scan,
    /// [`Store::purge`]
    Purge,
}

/// Which operation a fault hits. Counts are from 0, over the life of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// The n-th operation of any kind.
    Any(u64),
    /// The n-th operation of one kind.
    Nth(Operation, u64),
}

/// What happens instead of the plain answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and this is the answer: [`Error::Void`], [`Error::NoSpace`], ...
    Before(Error),
    /// It is done, and yet this is the answer: the acknowledgement was lost.
    After(Error),
    /// It is not done and neither is anything that follows, as when the process dies here; all answer
    /// [`Error::Closed`].
    Halt,
}

/// A store with a plan of faults.
#[derive(Debug)]
pub struct Faulty<S> {
    store: S,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: HashMap<At, Fault>,
    counts: HashMap<Operation, u64>,
    total: u64,
    is_halted: bool,
}

impl<S: Store> Faulty<S> {
    /// Wraps a store; without faults it is that store.
    pub fn new(store: S) -> Self {
        Self { store, plan: Mutex::default() }
    }

    /// Adds a fault to the plan, or replaces the one that is there.
    pub fn inject(&self, at: At, fault: Fault) {
        self.lock().faults.insert(at, fault);
    }

    /// How many operations of a kind there have been, failed ones included.
    pub fn count(&self, operation: Operation) -> u64 {
        self.lock().counts.get(&operation).copied().unwrap_or(0)
    }

    /// How many operations of any kind there have been.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// Ends a halt: a new process has opened the store. Counts go on.
    pub fn restart(&self) {
        self.lock().is_halted = false;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self, operation: Operation, call: impl FnOnce(&S) -> Ticket) -> Ticket {
        let fault = self.lock().next(operation);
        match fault {
            None => call(&self.store),
            Some(Fault::Before(error)) => Ticket::ready(Err(error)),
            Some(Fault::After(error)) => {
                // Dropping a ticket changes nothing about its commit.
                drop(call(&self.store));
                Ticket::ready(Err(error))
            }
            Some(Fault::Halt) => Ticket::ready(Err(Error::Closed)),
        }
    }

    fn answer<T>(&self, operation: Operation, call: impl FnOnce(&S) -> Result<T, Error>) -> Result<T, Error> {
        let fault = self.lock().next(operation);
        match fault {
            None => call(&self.store),
            Some(Fault::Before(error)) => Err(error),
            Some(Fault::After(error)) => call(&self.store).and(Err(error)),
            Some(Fault::Halt) => Err(Error::Closed),
        }
    }
}

impl Plan {
    /// Counts an operation and answers its fault.
    fn next(&mut self, operation: Operation) -> Option<Fault> {
        let count = self.counts.entry(operation).or_default();
        let nth = *count;
        *count += 1;
        let any = self.total;
        self.total += 1;
        if self.is_halted {
            return Some(Fault::Halt);
        }
        let fault =
            self.faults.get(&At::Nth(operation, nth)).or_else(|| self.faults.get(&At::Any(any))).cloned();
        self.is_halted = fault == Some(Fault::Halt);
        fault
    }
}

impl<S: Store> Store for Faulty<S> {
    fn commit(&self, commit: Commit) -> Ticket {
        self.ticket(Operation::Commit, |store| store.commit(commit))
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        self.ticket(Operation::PushInbox, |store| store.push_inbox(item, consumed))
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.answer(Operation::Load, |store| store.load(run))
    }

    fn claim(&self) -> Result<Epoch, Error> {
        self.answer(Operation::Claim, S::claim)
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.answer(Operation::ReadJournal, |store| store.read_journal(stream, from, limit))
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.answer(Operation::ReadTranscript, |store| store.read_transcript(stream, from, limit))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.answer(Operation::Scan, |store| store.scan(prefix, after, limit))
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        self.answer(Operation::Purge, |store| store.purge(runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::conformance::{commit, run_key};

    const RUN: Stream = Stream::Run(run_key(1));

    #[test]
    fn a_fault_before_leaves_nothing_and_one_after_leaves_everything() {
        let store = Faulty::new(MemoryStore::new());
        store.inject(At::Nth(Operation::Commit, 0), Fault::Before(Error::Void));
        store.inject(At::Nth(Operation::Commit, 1), Fault::After(Error::NoSpace { path: "d".into() }));
        assert_eq!(store.commit(commit(Epoch(0), RUN, 0)).wait(), Err(Error::Void));
        assert_eq!(store.read_journal(RUN, 0, 9).unwrap().len(), 0);
        assert_eq!(store.commit(commit(Epoch(0), RUN, 0)).wait(), Err(Error::NoSpace { path: "d".into() }));
        assert_eq!(store.read_journal(RUN, 0, 9).unwrap().len(), 1);
        assert_eq!(store.commit(commit(Epoch(0), RUN, 1)).wait().unwrap().head.seq, 1);
        let counts = (store.count(Operation::Commit), store.count(Operation::ReadJournal), store.total());
        assert_eq!(counts, (3, 2, 5));
    }

    #[test]
    fn after_a_halt_nothing_happens_any_more() {
        let store = Faulty::new(MemoryStore::new());
        store.inject(At::Any(1), Fault::Halt);
        store.commit(commit(Epoch(0), RUN, 0)).wait().unwrap();
        assert_eq!(store.load(run_key(1)), Err(Error::Closed));
        assert_eq!(store.commit(commit(Epoch(0), RUN, 1)).wait(), Err(Error::Closed));
        assert_eq!(store.claim(), Err(Error::Closed));
        store.restart();
        assert_eq!(store.read_journal(RUN, 0, 9).unwrap().len(), 1);
    }
}
