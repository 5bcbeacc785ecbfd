//! A store that notes how long the durable commits of runs take.
//!
//! Owns the clock around a commit. It must never change what the store below answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use store::{
    Commit, Durability, Epoch, Error, JournalStore, Loaded, Pairs, Purge, Purged, Record, RunKey, Seq, Store,
    Stream, Ticket,
};
use tokio::sync::watch;

use super::blocking;
use super::meter::Latencies;
use crate::runs::lock;

/// How long whoever uses a store may take to let go of it, and how often that is looked at.
const LET_GO_MAX: Duration = Duration::from_secs(10);
const LET_GO_LOOK: Duration = Duration::from_millis(1);

/// What was noted.
pub(super) struct Times {
    commits: Mutex<Latencies>,
    /// Sequence of the newest transition, and how many there were since this was made.
    newest: watch::Sender<(u64, u64)>,
    /// Bytes of what transitions say and put, as given.
    unique_bytes: Arc<AtomicU64>,
}

impl Times {
    pub(super) fn new(unique_bytes: Arc<AtomicU64>) -> Self {
        Self { commits: Mutex::default(), newest: watch::Sender::new((0, 0)), unique_bytes }
    }

    /// Returns once the run has made so many transitions.
    pub(super) async fn until(&self, transitions: u64) {
        self.until_so(|(newest, _)| *newest >= transitions).await;
    }

    /// Returns once so many transitions were made since this was made.
    pub(super) async fn until_moves(&self, moves: u64) {
        self.until_so(|(_, made)| *made >= moves).await;
    }

    pub(super) fn transitions(&self) -> u64 {
        self.newest.borrow().0
    }

    pub(super) fn moves(&self) -> u64 {
        self.newest.borrow().1
    }

    /// What was noted since it was last taken.
    pub(super) fn take(&self) -> Latencies {
        std::mem::take(&mut *lock(&self.commits))
    }

    async fn until_so(&self, is_so: impl FnMut(&(u64, u64)) -> bool) {
        // The sender is here, so the channel is open.
        let _ = self.newest.subscribe().wait_for(is_so).await;
    }

    fn note(&self, commit: &Commit) {
        let puts = commit.puts.iter().map(|put| put.key.len() + put.value.as_ref().map_or(0, Vec::len));
        let bytes = commit.payload.len() + puts.sum::<usize>();
        self.unique_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The store.
pub(super) struct Timed {
    store: Arc<JournalStore>,
    times: Arc<Times>,
}

impl Timed {
    pub(super) fn new(store: Arc<JournalStore>, times: Arc<Times>) -> Self {
        Self { store, times }
    }
}

/// Leaves a store as a kill does, once whoever still uses it has let go.
pub(super) async fn abandon(mut journal: Arc<JournalStore>) -> Result<(), crate::Error> {
    let started = Instant::now();
    loop {
        match Arc::try_unwrap(journal) {
            Ok(store) => {
                return blocking(move || {
                    drop(store);
                    Ok(())
                })
                .await;
            }
            Err(shared) if started.elapsed() < LET_GO_MAX => journal = shared,
            Err(_) => return Err(crate::Error::Setup("the measured store is still in use".to_owned())),
        }
        tokio::time::sleep(LET_GO_LOOK).await;
    }
}

impl Store for Timed {
    fn commit(&self, commit: Commit) -> Ticket {
        let Stream::Run(_) = commit.stream else { return self.store.commit(commit) };
        self.times.note(&commit);
        let (seq, is_durable) = (commit.expect_seq, commit.durability == Durability::Durable);
        let begun = Instant::now();
        let committed = self.store.commit(commit);
        let (answer, ticket) = Ticket::channel();
        let times = Arc::clone(&self.times);
        tokio::spawn(async move {
            let committed = committed.await;
            if is_durable && seq > 0 {
                lock(&times.commits).note(begun.elapsed());
            }
            let is_done = committed.is_ok();
            // A dropped ticket wants no answer.
            let _ = answer.send(committed);
            if is_done {
                times.newest.send_modify(|(newest, made)| (*newest, *made) = (seq, *made + 1));
            }
        });
        ticket
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

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Pairs, Error> {
        self.store.scan(prefix, after, limit)
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        self.store.purge(runs)
    }
}
