//! Stores around the real one: one that makes the order of disk operations repeatable, and broken ones.
//!
//! Owns nothing of what the journal does; each forwards to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use store::{
    Commit, Durability, Epoch, Error, Hash, Head, JournalStore, Loaded, Receipt, Record, RunKey, Seq, Store,
    Stream, Ticket,
};

use crate::chronicle::Chronicle;
use crate::disk::PoweredDisk;

/// How commits reach the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each commit is written before its submitter goes on: the same operations in the same order, every time.
    Stepwise,
    /// As in production: what waits together is written together.
    Free,
    /// Broken: what should be durable is answered before it is, and nothing is ever waited for.
    Hasty,
    /// Broken: whoever commits is taken for the newest owner.
    Unfenced,
}

/// A journal at a pace.
pub struct Paced {
    journal: Arc<JournalStore>,
    pace: Pace,
    /// Commits that a hasty store has answered and not written.
    owed: Mutex<Vec<Commit>>,
    /// The newest owner's epoch.
    newest: AtomicU64,
    /// Who notes what was answered, and the disk below.
    watch: Option<(Arc<Chronicle>, Arc<PoweredDisk>)>,
}

impl Paced {
    /// The journal at this pace.
    pub fn new(journal: Arc<JournalStore>, pace: Pace) -> Self {
        Self { journal, pace, owed: Mutex::default(), newest: AtomicU64::new(0), watch: None }
    }

    /// The same, and what it answers is noted.
    pub fn watched(self, chronicle: Arc<Chronicle>, disk: Arc<PoweredDisk>) -> Self {
        Self { watch: Some((chronicle, disk)), ..self }
    }

    /// Sends and waits for the answer; what holds before and after it is noted.
    fn step(&self, durability: Durability, send: impl FnOnce() -> Ticket) -> Ticket {
        let Some((chronicle, disk)) = &self.watch else {
            let ticket = send();
            self.wait();
            return ticket;
        };
        chronicle.note(disk, Some(&self.journal));
        let ticket = send();
        self.wait();
        // Everything sent before is answered.
        let answer = ticket.now_or_never().unwrap_or(Err(Error::Closed));
        chronicle.answered(durability, &answer);
        chronicle.note(disk, Some(&self.journal));
        Ticket::ready(answer)
    }

    fn commit_hastily(&self, commit: Commit) -> Ticket {
        let head = Head { seq: commit.expect_seq, hash: Hash::default() };
        self.pay();
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).push(commit);
        Ticket::ready(Ok(Receipt { head, position: 0 }))
    }

    /// Writes what was answered before, so that the next reader finds it.
    fn pay(&self) {
        let owed = std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        for commit in owed {
            drop(self.journal.commit(Commit { durability: Durability::Ordered, ..commit }));
        }
        self.wait();
    }

    /// Returns once everything that was sent before is answered.
    fn wait(&self) {
        // A store that has failed has answered too.
        let _ = self.journal.load(RunKey([0; 16]));
    }
}

impl Store for Paced {
    fn commit(&self, commit: Commit) -> Ticket {
        match self.pace {
            Pace::Free => self.journal.commit(commit),
            Pace::Stepwise => self.step(commit.durability, || self.journal.commit(commit)),
            Pace::Unfenced => {
                let epoch = Epoch(self.newest.load(Ordering::Relaxed));
                let ticket = self.journal.commit(Commit { epoch, ..commit });
                self.wait();
                ticket
            }
            Pace::Hasty if commit.expect_seq > 0 => self.commit_hastily(commit),
            // The time of this machine stands still: it must not be waited for.
            Pace::Hasty => {
                let ticket = self.journal.commit(commit);
                self.wait();
                ticket
            }
        }
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        match self.pace {
            Pace::Stepwise => self.step(Durability::Durable, || self.journal.push_inbox(item, consumed)),
            Pace::Free | Pace::Hasty | Pace::Unfenced => self.journal.push_inbox(item, consumed),
        }
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.pay();
        self.journal.load(run)
    }

    fn claim(&self) -> Result<Epoch, Error> {
        let epoch = self.journal.claim()?;
        self.newest.fetch_max(epoch.0, Ordering::Relaxed);
        Ok(epoch)
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.journal.read_journal(stream, from, limit)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.journal.read_transcript(stream, from, limit)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.journal.scan(prefix, after, limit)
    }

    fn purge(&self, runs: &[store::Purge]) -> Result<store::Purged, Error> {
        self.journal.purge(runs)
    }
}
