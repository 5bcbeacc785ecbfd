//! The committed state: what the journal's puts add up to, in sled, with an overlay of what sled does not
//! hold yet.
//!
//! Owns `DIR/state` and every use of sled. It can always be deleted and rebuilt from the journal, so it must
//! never hold anything that a journal frame does not, never make a commit wait for sled except through the
//! lag limit, and never be asked whether something is durable.
//!
//! Why reads are right at every moment:
//!
//! 1. Each put is in the overlay from `stage` until sled holds it, flushed. A reader asks the overlay first,
//!    so it sees the newest put whether sled has it or not.
//! 2. sled does not change while a reader is in it, and a reader copies what it needs from the overlay at the
//!    moment of entering. A scan therefore sees one moment, even if frames are pruned meanwhile: whatever was
//!    pruned before it entered is in sled, whatever was not is in its copy.
//! 3. Only released frames reach sled, and released frames are never void.
//! 4. When the disk is nearly full, sled waits for room while the overlay keeps all: a write that fails would
//!    take its reads with it.
//! 5. When sled stalls, fails or panics, it is not written again and the overlay keeps the newest value of
//!    every key put since, in-flight batch included: its size is bounded by the keys that there are, not by
//!    the number of transitions. Reads of other keys still ask sled, each on a thread of its own with a
//!    deadline. If sled does not answer even that, they are errors that say to open the store again; commits
//!    go on.

mod applier;
mod known;
mod overlay;
mod place;

use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::applier::{Shared, Stop};
use self::overlay::Pending;
use self::place::{Mark, Place};
use crate::fs::Fs;
use crate::keys::lower_bound;
use crate::{Error, Put};

pub use self::known::frames_known;

/// sled's own cache, as it counts: in memory a page takes about twice its size on disk. It holds the states of some three
/// thousand runs at work; what waits or has ended is read from the system's cache.
pub(crate) const CACHE_BYTES: u64 = 4 << 20;

/// Puts that may wait for sled before `release` blocks: a quarter of a second of its slowest measured rate.
pub(crate) const LAG_PUTS_MAX: usize = 32_768;

/// How long sled may take for a batch before the engine goes on without it.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(5);

/// How long a reader waits for a sled that was given up, before all readers are told that it does not answer.
pub(crate) const LAST_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Where sled holds the number of frames applied, in the same batch as their puts. Hidden from scans.
const APPLIED_KEY: &[u8] = &[0];

/// Key and value pairs, in key order.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A step that a test may hold, fail or make panic in sled's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SledStep {
    /// Applying a batch, on sled's thread; no reader is in sled meanwhile.
    Batch,
    /// Looking for room on the disk, on sled's thread; a failure means that there is none.
    FindRoom,
    /// Answering a reader after sled was given up.
    LastAnswer,
}

/// Called before each step.
pub type SledHook = Arc<dyn Fn(SledStep) -> io::Result<()> + Send + Sync>;

/// The state's limits, and the hook by which tests hold or break sled's thread.
#[derive(Clone)]
pub struct StateOptions {
    /// sled's cache, in bytes.
    pub cache_bytes: u64,
    /// Puts that may wait for sled before `release` blocks.
    pub lag_puts_max: usize,
    /// How long sled may make no progress before it is given up.
    pub stall_after: Duration,
    /// How long a reader waits for a sled that was given up.
    pub last_answer_wait: Duration,
    /// For tests: stands in for a sled that hangs or breaks.
    pub hook: Option<SledHook>,
}

impl Default for StateOptions {
    fn default() -> Self {
        Self {
            cache_bytes: CACHE_BYTES,
            lag_puts_max: LAG_PUTS_MAX,
            stall_after: STALL_AFTER,
            last_answer_wait: LAST_ANSWER_WAIT,
            hook: None,
        }
    }
}

/// What `open` found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The state is what the first `applied` frames of the journal add up to.
    Usable {
        /// Number of frames applied.
        applied: u64,
    },
    /// The state is empty: stage and release every frame of the journal.
    Rebuild {
        /// Why it could not be used.
        reason: String,
    },
}

/// How the state does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateHealth {
    /// Frames that sled holds.
    pub applied: u64,
    /// Durable frames that it does not hold yet.
    pub lag: u64,
    /// The disk has no room for sled: what it does not hold waits in memory until there is some.
    pub is_full: bool,
    /// Why sled is no longer used for writing, if so. The next open rebuilds.
    pub degraded: Option<String>,
}

/// The committed state. Dropping it without `close` is like being killed, but for the thread that may run on
/// a while.
pub(crate) struct State {
    shared: Arc<Shared>,
    db: sled::Db,
    place: Place,
    thread: JoinHandle<()>,
    /// sled did not answer a reader in time: no other one waits for it again.
    is_mute: AtomicBool,
    stop: StopOnDrop,
}

/// Tells sled's thread to end. It is not waited for: it may hang in sled.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop(Stop::Now);
    }
}

impl State {
    /// Whatever `DIR/state` holds, the next open moves it aside.
    pub(crate) fn distrust(disk: Arc<dyn Fs>, dir: &Path) -> Result<(), Error> {
        Place::new(disk, dir).clear_mark()
    }

    /// Opens `DIR/state`: as found only when its last writer closed it or died on this same boot; otherwise
    /// it is moved aside (the newest `state.aside-N` is kept) and is empty.
    pub(crate) fn open(
        disk: Arc<dyn Fs>,
        dir: &Path,
        boot_id: [u8; 16],
        options: StateOptions,
    ) -> Result<(Self, Found), Error> {
        let place = Place::new(disk, dir);
        let as_found = match unusable(&place, boot_id) {
            Some(reason) => Err(reason),
            None => {
                // Before sled may write: from here on the files are not what the last writer synced.
                place.write_mark(Mark::Open(boot_id))?;
                open_sled(&place, options.cache_bytes, read_applied)
            }
        };
        let (db, applied, found) = match as_found {
            Ok((db, applied)) => (db, applied, Found::Usable { applied }),
            Err(reason) => {
                place.clear_mark()?;
                place.move_aside()?;
                let (db, ()) = open_sled(&place, options.cache_bytes, |db| write_applied(db, 0))
                    .map_err(|message| Error::Io { operation: "opening", path: place.state(), message })?;
                place.write_mark(Mark::Open(boot_id))?;
                (db, 0, Found::Rebuild { reason })
            }
        };
        let shared = Arc::new(Shared::new(place.clone(), options, applied));
        let thread = thread::Builder::new().name("sled".to_owned()).spawn({
            let (shared, db) = (Arc::clone(&shared), db.clone());
            move || applier::run(&shared, &db)
        });
        let thread =
            thread.map_err(|error| place.failed("starting the thread of", &place.state(), &error))?;
        let stop = StopOnDrop(Arc::clone(&shared));
        Ok((Self { shared, db, place, thread, is_mute: AtomicBool::new(false), stop }, found))
    }

    /// Adds a linked frame's puts; `get` and `scan` see them at once. `position` is the frame's global
    /// number.
    pub(crate) fn stage(&self, position: u64, puts: Arc<[Put]>) {
        self.shared.lock().overlay.stage(position, puts);
    }

    /// Everything staged below `end` is durable: sled gets it, in order. Blocks while more than the named
    /// limit waits for a sled that works.
    pub(crate) fn release(&self, end: u64) {
        self.shared.release(end);
    }

    /// Takes back what was staged at positions >= `from`, none of which may have been released. Older values
    /// are visible again.
    pub(crate) fn void(&self, from: u64) {
        self.shared.lock().overlay.void(from);
    }

    /// The newest value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let inner = self.shared.lock();
        if let Some(value) = inner.overlay.get(key) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        // A put that comes while this waits to enter is newer than the question; either answer is right.
        let (inner, is_in) = self.shared.enter(inner);
        drop(inner);
        let key = key.to_vec();
        self.ask(is_in, move |db| Ok(db.get(key)?.map(|value| value.to_vec())))
    }

    /// The newest values of the keys that begin with `prefix`, after the key `after` if given, at most
    /// `limit`, in key order: all as of one moment.
    pub(crate) fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Pairs, Error> {
        let (inner, is_in) = self.shared.enter(self.shared.lock());
        let pending = inner.overlay.scan(prefix, after, limit);
        drop(inner);
        let (prefix, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        self.ask(is_in, move |db| {
            let start = lower_bound(&prefix, after.as_deref());
            let stored = db
                .range::<&[u8], _>((start, Bound::Unbounded))
                .take_while(|pair| pair.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix)))
                .filter(|pair| pair.as_ref().map_or(true, |(key, _)| key != APPLIED_KEY));
            merge(stored, pending, limit)
        })
    }

    /// Waits until sled holds everything released, is given up, or has no room on the disk.
    pub(crate) fn settle(&self) {
        self.shared.settle();
    }

    /// How far sled is, and whether it is still used.
    pub(crate) fn health(&self) -> StateHealth {
        self.shared.health()
    }

    /// Waits for sled, syncs its files and marks them as closed. A sled that was given up is left for the
    /// next open to move aside; that is no error, because the journal has everything.
    pub(crate) fn close(self) -> Result<(), Error> {
        let Self { shared, db, place, thread, is_mute: _, stop } = self;
        shared.settle();
        if shared.health().degraded.is_none() {
            shared.stop(Stop::Settled);
            // Its panics are caught inside: it ends with nothing to say.
            let _ = thread.join();
            let flushed = guarded(move || db.flush().map(drop));
            flushed.unwrap_or_else(|reason| shared.degrade(format!("sled failed at its close: {reason}")));
        }
        drop(stop);
        if let Some(reason) = shared.health().degraded {
            tracing::warn!(%reason, "closed without sled; the next open rebuilds the state");
            return place.clear_mark();
        }
        place.sync()?;
        place.write_mark(Mark::Closed)
    }

    /// Asks sled. A caller that `is_in` holds batches off until it has its answer; any other one asks a sled
    /// that was given up, on a thread of its own that it can leave behind.
    fn ask<T: Send + 'static>(
        &self,
        is_in: bool,
        query: impl FnOnce(&sled::Db) -> Result<T, sled::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let answer = if is_in {
            let answer = guarded(|| query(&self.db));
            self.shared.leave();
            answer.inspect_err(|reason| self.shared.degrade(format!("sled failed a reader: {reason}")))
        } else {
            self.ask_apart(query)
        };
        answer.map_err(|reason| Error::Io {
            operation: "reading",
            path: self.place.state(),
            message: format!("{reason}; open the store again to rebuild the state"),
        })
    }

    fn ask_apart<T: Send + 'static>(
        &self,
        query: impl FnOnce(&sled::Db) -> Result<T, sled::Error> + Send + 'static,
    ) -> Result<T, String> {
        if self.is_mute.load(Ordering::Relaxed) {
            return Err("sled does not answer".to_owned());
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let (shared, db) = (Arc::clone(&self.shared), self.db.clone());
        let asked = thread::Builder::new().name("sled-last-answers".to_owned()).spawn(move || {
            let answer = shared.hook(SledStep::LastAnswer).and_then(|()| guarded(|| query(&db)));
            // Nobody listens any more when the deadline has passed.
            let _ = sender.send(answer);
        });
        asked.map_err(|error| error.to_string())?;
        receiver.recv_timeout(self.shared.last_answer_wait()).unwrap_or_else(|_| {
            self.is_mute.store(true, Ordering::Relaxed);
            Err("sled does not answer".to_owned())
        })
    }
}

/// Why the state may not be used as found, if so.
fn unusable(place: &Place, boot_id: [u8; 16]) -> Option<String> {
    if !place.state().exists() {
        return Some("there is no state".to_owned());
    }
    match place.read_mark() {
        Some(Mark::Closed) => None,
        Some(Mark::Open(boot)) if boot == boot_id => None,
        Some(Mark::Open(_)) => Some("the machine went down while the state was open".to_owned()),
        None => Some("the state was given up, or is of another version".to_owned()),
    }
}

/// Opens sled and takes the first step on it.
fn open_sled<T>(
    place: &Place,
    cache_bytes: u64,
    first: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
) -> Result<(sled::Db, T), String> {
    guarded(|| {
        let db = place.open_sled(cache_bytes)?;
        let answer = first(&db)?;
        Ok((db, answer))
    })
}

fn read_applied(db: &sled::Db) -> Result<u64, sled::Error> {
    let stored =
        db.get(APPLIED_KEY)?.and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?)));
    stored.ok_or_else(|| sled::Error::Unsupported("the state holds no position".to_owned()))
}

fn write_applied(db: &sled::Db, applied: u64) -> Result<(), sled::Error> {
    db.insert(APPLIED_KEY, &applied.to_le_bytes())?;
    db.flush().map(drop)
}

/// What `step` answers, with sled's errors and panics alike as words.
fn guarded<T>(step: impl FnOnce() -> Result<T, sled::Error>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().copied();
            let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!("panic: {}", words.unwrap_or("no words")))
        }
    }
}

/// The first `limit` pairs of both sides in key order; where both have a key, `pending` decides.
fn merge(
    stored: impl Iterator<Item = Result<(sled::IVec, sled::IVec), sled::Error>>,
    pending: Vec<Pending>,
    limit: usize,
) -> Result<Pairs, sled::Error> {
    let mut merged = Vec::new();
    let (mut stored, mut pending) = (stored.peekable(), pending.into_iter().peekable());
    while merged.len() < limit {
        let stored_key = match stored.peek() {
            Some(Ok((key, _))) => Some(key),
            Some(Err(error)) => return Err(error.clone()),
            None => None,
        };
        let is_pending = match (stored_key, pending.peek()) {
            (Some(stored_key), Some((key, _))) => key.as_slice() <= stored_key.as_ref(),
            (None, pending) => pending.is_some(),
            (Some(_), None) => false,
        };
        if is_pending {
            let Some((key, value)) = pending.next() else { break };
            if stored_key.is_some_and(|stored_key| *stored_key == key) {
                stored.next();
            }
            merged.extend(value.map(|value| (key, value)));
        } else {
            let Some(pair) = stored.next() else { break };
            let (key, value) = pair?;
            merged.push((key.to_vec(), value.to_vec()));
        }
    }
    Ok(merged)
}

#[cfg(test)]
mod tests;
