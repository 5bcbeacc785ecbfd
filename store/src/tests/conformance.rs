//! The shared suite, and memory as the oracle.

use std::path::Path;

use proptest::prelude::*;

use super::{open, options, temp_dir};
use crate::conformance::{compare, run_all};
use crate::{
    Commit, Epoch, Error, JournalStore, Loaded, MemoryStore, Purge, Purged, Record, RunKey, Seq, Store,
    Stream, Ticket,
};

/// A store that takes its directory with it.
struct Temporary {
    store: JournalStore,
    _dir: tempfile::TempDir,
}

impl Temporary {
    fn new() -> Self {
        let dir = temp_dir();
        Self { store: open(dir.path()), _dir: dir }
    }
}

impl Store for Temporary {
    fn commit(&self, commit: Commit) -> Ticket {
        self.store.commit(commit)
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        self.store.push_inbox(item, consumed)
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.store.load(run)
    }

    fn claim(&self) -> Result<Epoch, Error> {
        self.store.claim()
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.store.read_journal(stream, from, limit)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.store.read_transcript(stream, from, limit)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.store.scan(prefix, after, limit)
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        self.store.purge(runs)
    }
}

#[test]
fn the_journal_keeps_every_promise() {
    run_all(&mut || Box::new(Temporary::new()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_journal_answers_like_memory(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        compare(&bytes, &MemoryStore::new(), &Temporary::new());
    }

    /// The state is equal key by key to the one that is rebuilt from the journal.
    #[test]
    fn the_state_is_rebuilt_equal(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let dir = temp_dir();
        let store = open(dir.path());
        compare(&bytes, &MemoryStore::new(), &store);
        store.close().unwrap();
        let before = everything(dir.path());
        std::fs::remove_dir_all(dir.path().join("state")).unwrap();
        prop_assert_eq!(everything(dir.path()), before);
    }
}

/// All values, the heads of streams included but for the store's own, which each open moves.
fn everything(dir: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = JournalStore::open(dir, options(std::sync::Arc::new(crate::fs::RealFs))).unwrap();
    let mut pairs = store.scan(&[], None, usize::MAX).unwrap();
    pairs.extend(store.scan(&[1, 1], None, usize::MAX).unwrap());
    pairs.extend(store.scan(&[1, 2], None, usize::MAX).unwrap());
    store.close().unwrap();
    pairs
}
