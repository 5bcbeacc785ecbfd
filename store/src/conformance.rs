//! The store's contract as checks: every promise of the `Store` trait, by name, for every implementation.
//!
//! Owns what must hold after each call. It must never ask for more than the contract says: positions may have
//! gaps (a store writes frames of its own), epochs may start anywhere, hashes are the implementation's.

mod concurrency;
mod inbox;
mod purges;
mod random;
mod reads;
mod requires;
mod writes;

use crate::{
    Commit, Durability, Epoch, Error, Hash, Put, Receipt, Record, RecordKind, Require, RunKey, Seq, Store,
    Stream,
};

pub use random::compare;

/// One promise: holds on a store that nobody has used, with the epoch of a fresh claim.
type Check = fn(&dyn Store, Epoch) -> Result<(), Error>;

/// Runs every check, each on a store of its own.
///
/// # Panics
///
/// When the store breaks a promise; the message names it.
pub fn run_all(make: &mut dyn FnMut() -> Box<dyn Store>) {
    let groups =
        [writes::CHECKS, requires::CHECKS, inbox::CHECKS, reads::CHECKS, purges::CHECKS, concurrency::CHECKS];
    for (promise, check) in groups.into_iter().flatten() {
        let store = make();
        let answer = store.claim().and_then(|epoch| check(store.as_ref(), epoch));
        assert_eq!(answer, Ok(()), "{promise}");
    }
}

/// A run's key for tests.
pub const fn run_key(number: u8) -> RunKey {
    RunKey([number; 16])
}

/// The plainest durable commit on a stream; its payload and time tell its place.
pub fn commit(epoch: Epoch, stream: Stream, expect_seq: Seq) -> Commit {
    Commit {
        stream,
        expect_seq,
        epoch,
        at_ms: 1_000 + expect_seq as i64,
        logic_version: 3,
        kind: RecordKind { code: 5, carries_messages: false, ends_stream: false },
        payload: format!("{stream:?} {expect_seq}").into_bytes(),
        puts: Vec::new(),
        state_hash: Hash([expect_seq as u8; 32]),
        requires: Vec::new(),
        durability: Durability::Durable,
    }
}

fn put(key: &[u8], value: &[u8]) -> Put {
    Put { key: key.to_vec(), value: Some(value.to_vec()) }
}

fn delete(key: &[u8]) -> Put {
    Put { key: key.to_vec(), value: None }
}

fn absent(key: &[u8]) -> Require {
    Require::Absent { key: key.to_vec() }
}

fn ceiling(key: &[u8], add: i64, max: u64) -> Require {
    Require::Ceiling { key: key.to_vec(), add, max }
}

fn run(number: u8) -> Stream {
    Stream::Run(run_key(number))
}

fn inbox(number: u8) -> Stream {
    Stream::Inbox(run_key(number))
}

/// Commits and waits.
fn accepted(store: &dyn Store, commit: Commit) -> Result<Receipt, Error> {
    store.commit(commit).wait()
}

/// The whole of a stream.
fn journal(store: &dyn Store, stream: Stream) -> Result<Vec<Record>, Error> {
    store.read_journal(stream, 0, usize::MAX)
}

/// Asserts that a stream has so many records: nothing refused was written.
fn assert_untouched(store: &dyn Store, stream: Stream, records: usize) -> Result<(), Error> {
    assert_eq!(journal(store, stream)?.len(), records, "records of {stream:?}");
    Ok(())
}

/// Key and value pairs.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn pairs(expected: &[(&[u8], &[u8])]) -> Pairs {
    expected.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::MemoryStore;
    use crate::faulty::Faulty;

    #[test]
    fn memory_keeps_every_promise() {
        run_all(&mut || Box::new(MemoryStore::new()));
    }

    #[test]
    fn faulty_without_faults_keeps_every_promise() {
        run_all(&mut || Box::new(Faulty::new(MemoryStore::new())));
    }

    proptest! {
        #[test]
        fn faulty_without_faults_answers_like_memory(bytes in vec(any::<u8>(), 0..600)) {
            compare(&bytes, &MemoryStore::new(), &Faulty::new(MemoryStore::new()));
        }
    }
}
