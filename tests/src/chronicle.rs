//! What the client had been told, and what the world had seen, at every moment of a disk's past.
//!
//! Owns the notes that say what must still hold after a cut. It must never judge an image.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::{Durability, Error, JournalStore, Receipt};

use crate::disk::PoweredDisk;
use crate::image::Stale;
use crate::world::World;

/// How often sled's files are copied, in notes.
const COPY_EVERY: usize = 90;

/// A moment at which a cut may come.
#[derive(Clone)]
pub struct Note {
    /// How much the disk had been told.
    pub told: usize,
    /// Frames that the client knows to be durable.
    pub acknowledged: u64,
    /// Stages of the scenario that were done.
    pub done: usize,
    /// The world.
    pub world: Arc<World>,
}

/// The notes of one disk, over all processes on it.
pub struct Chronicle {
    dir: PathBuf,
    world: Arc<World>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    notes: Vec<Note>,
    acknowledged: u64,
    done: usize,
    stale: Stale,
}

impl Chronicle {
    /// A chronicle of a store in `dir`, of which so many frames are known to be durable.
    pub fn new(dir: &Path, world: &Arc<World>, acknowledged: u64) -> Arc<Self> {
        let kept = Kept { acknowledged, ..Kept::default() };
        Arc::new(Self { dir: dir.to_owned(), world: Arc::clone(world), kept: Mutex::new(kept) })
    }

    /// Notes what holds now. Must be called inside the runtime of the process, while nothing is written. A store that is
    /// open lets sled come to rest before its files are copied, so that the copies are the same every time.
    pub fn note(&self, disk: &PoweredDisk, open: Option<&JournalStore>) {
        let mut kept = self.lock();
        let (told, acknowledged, done) = (disk.count(), kept.acknowledged, kept.done);
        kept.notes.push(Note { told, acknowledged, done, world: self.world.copy() });
        if kept.notes.len().is_multiple_of(COPY_EVERY) {
            // One that can no longer is copied as it is.
            let _ = open.map(JournalStore::settle);
            kept.stale.take(told, &self.dir);
        }
    }

    /// A store was opened with so many frames: they are durable, and so is the record of the opening.
    pub fn opened(&self, frames: u64) {
        let mut kept = self.lock();
        kept.acknowledged = kept.acknowledged.max(frames + 1);
    }

    /// A commit was answered.
    pub fn answered(&self, durability: Durability, answer: &Result<Receipt, Error>) {
        let mut kept = self.lock();
        if let (Durability::Durable, Ok(receipt)) = (durability, answer) {
            kept.acknowledged = kept.acknowledged.max(receipt.position + 1);
        }
    }

    /// So many stages are done.
    pub fn done(&self, done: usize) {
        self.lock().done = done;
    }

    /// Every note, in order.
    pub fn notes(&self) -> Vec<Note> {
        self.lock().notes.clone()
    }

    /// sled's files at some of the notes.
    pub fn stale(&self) -> Stale {
        self.lock().stale.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
