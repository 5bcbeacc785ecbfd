//! The store alone: writers that commit durably, each to a run of its own.
//!
//! Owns the shape of the commits, which is that of a run's. The clock stops when sled has reached the last
//! one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::LOGIC_VERSION;
use store::{
    Commit, Durability, Epoch, Hash, JournalStore, Options, Put, RecordKind, RunKey, Store, Stream,
    run_prefix,
};

use super::meter::{Latencies, Work};
use super::{blocking, session};
use crate::error::Error;

/// Commits that are made to learn how many bytes one takes.
const TRIAL: u64 = 256;

/// Writers on one store.
pub(super) struct Writers {
    store: Arc<JournalStore>,
    epoch: Epoch,
    shape: Arc<Shape>,
    /// The next sequence number of each writer's run.
    next: Vec<u64>,
}

/// What every commit brings.
pub(super) struct Shape {
    payload: Vec<u8>,
    core: Vec<u8>,
}

impl Writers {
    /// Opens a store in a new directory.
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let store = Arc::new(JournalStore::open(dir, Options::default())?);
        let epoch = store.claim()?;
        Ok(Self { store, epoch, shape: Arc::new(Shape::new()), next: Vec::new() })
    }

    /// Bytes that one commit takes in the journal, its share of a group of many included.
    pub(super) async fn frame_bytes(&mut self) -> Result<usize, Error> {
        let before = self.store.stats();
        let (run, first) = (run(0), self.next_of(0));
        let commits = (first..first + TRIAL).map(|seq| self.shape.commit(run, seq, self.epoch));
        let tickets: Vec<_> = commits.map(|commit| self.store.commit(commit)).collect();
        for ticket in tickets {
            ticket.await?;
        }
        self.set_next(0, first + TRIAL);
        let after = self.store.stats();
        Ok(usize::try_from((after.bytes - before.bytes) / TRIAL).unwrap_or(0))
    }

    /// Lets `width` writers commit for so long, each one commit after the other.
    pub(super) async fn slice(&mut self, width: usize, time: Duration, work: &mut Work) -> Result<(), Error> {
        let start = Instant::now();
        let writing: Vec<_> = (0..width)
            .map(|index| {
                let (store, shape, epoch) = (Arc::clone(&self.store), Arc::clone(&self.shape), self.epoch);
                let first = self.next_of(index);
                tokio::spawn(
                    async move { write(&store, &shape, (run(index), first, epoch), start + time).await },
                )
            })
            .collect();
        for (index, writer) in writing.into_iter().enumerate() {
            let lost = |error| Error::Setup(format!("a writer was lost: {error}"));
            let (next, latencies) = writer.await.map_err(lost)??;
            work.count += next - self.next_of(index);
            self.set_next(index, next);
            work.latencies.append(latencies);
        }
        let store = Arc::clone(&self.store);
        blocking(move || Ok(store.settle()?)).await?;
        work.elapsed += start.elapsed();
        Ok(())
    }

    /// Closes the store.
    pub(super) async fn close(self) -> Result<(), Error> {
        blocking(move || Ok(self.store.close()?)).await
    }

    fn next_of(&self, index: usize) -> u64 {
        self.next.get(index).copied().unwrap_or(0)
    }

    fn set_next(&mut self, index: usize, next: u64) {
        if self.next.len() <= index {
            self.next.resize(index + 1, 0);
        }
        if let Some(slot) = self.next.get_mut(index) {
            *slot = next;
        }
    }
}

/// Commits until `end`; answers the run's next sequence number.
async fn write(
    store: &JournalStore,
    shape: &Shape,
    (run, first, epoch): (RunKey, u64, Epoch),
    end: Instant,
) -> Result<(u64, Latencies), Error> {
    let mut latencies = Latencies::default();
    let mut seq = first;
    let mut begun = Instant::now();
    while begun < end {
        store.commit(shape.commit(run, seq, epoch)).await?;
        seq += 1;
        let now = Instant::now();
        latencies.note(now - begun);
        begun = now;
    }
    Ok((seq, latencies))
}

impl Shape {
    pub(super) fn new() -> Self {
        let (payload, core) = session::record_and_core();
        Self { payload, core }
    }

    pub(super) fn commit(&self, run: RunKey, seq: u64, epoch: Epoch) -> Commit {
        let mut key = run_prefix(run).to_vec();
        key.push(b'c');
        Commit {
            stream: Stream::Run(run),
            expect_seq: seq,
            epoch,
            at_ms: 0,
            logic_version: LOGIC_VERSION,
            kind: RecordKind { code: 1, carries_messages: true, ends_stream: false },
            payload: self.payload.clone(),
            puts: vec![Put { key, value: Some(self.core.clone()) }],
            state_hash: Hash([0x5a; 32]),
            requires: Vec::new(),
            durability: Durability::Durable,
        }
    }
}

/// The run of a writer. Runs of an engine lie far apart, and so do these.
pub(super) fn run(index: usize) -> RunKey {
    let hash = blake3::hash(&index.to_le_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(hash.as_bytes().get(..16).unwrap_or(&[0; 16]));
    RunKey(key)
}
