//! The default store: the journal on disk, with sled's state beside it.
//!
//! Owns how a directory is opened and closed. A commit is hashed and encoded in its caller's thread, then
//! queued for the one writer; reads never wait for the writer, except `load`, which waits for what was queued
//! before it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use tokio::sync::oneshot;

use crate::catalog::{Catalog, Wanted};
use crate::frame::Point;
use crate::fs::{Fs, Mode, RealFs, error, sync_dir};
use crate::heads::{self, StreamHead};
use crate::keys::run_prefix;
use crate::limits::{SEGMENT_BYTES_FIRST, WRITER_QUEUE_MAX};
use crate::link::Submitted;
use crate::lock::Lock;
use crate::random::{RANDOM, Salts, boot_id};
use crate::recover::{repair, survey};
use crate::replay::replay;
use crate::segment::Preparer;
use crate::state::{Found, State, StateHealth, StateOptions};
use crate::tail::{Counters, Tail};
use crate::writer::{Message, Writer};
use crate::{
    Commit, Cut, Durability, Epoch, Error, Loaded, Pairs, Purge, Purged, Receipt, Record, RunKey, Seq, Store,
    Stream, Ticket, purge,
};

/// Name of the journal's directory in DIR.
pub(crate) const JOURNAL_DIR: &str = "journal";
/// Code of the record that starts an epoch, on `Stream::Own(0)`; its payload is the boot id.
pub const OPENED: u8 = 1;
/// Code of the record that ends a clean close, on `Stream::Own(0)`.
pub const CLOSED: u8 = 2;

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// The disk of the journal and of the state's mark.
    pub disk: Arc<dyn Fs>,
    /// How long ordered commits may stay without a barrier when nobody asks for one; none: until somebody
    /// does.
    pub linger: Option<Duration>,
    /// How long to try for a directory that another process holds.
    pub lock_wait: Duration,
    /// The time of opening, in milliseconds since the Unix epoch.
    pub opened_at_ms: i64,
    /// This boot of the machine: sled's files are trusted after a kill only if they are of the same one.
    pub boot_id: [u8; 16],
    /// Size in bytes of the first segment that this open makes; each further one is twice as large, up to a named limit.
    pub segment_bytes: u64,
    /// Make the next segment in the writer's thread: slower, but the order of disk operations is then always
    /// the same.
    pub inline_preparation: bool,
    /// Rebuild the state from the journal, whatever its mark says.
    pub rebuilds_state: bool,
    /// The state's limits.
    pub state: StateOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            disk: Arc::new(RealFs),
            linger: Some(Duration::from_millis(100)),
            lock_wait: Duration::ZERO,
            opened_at_ms: 0,
            boot_id: boot_id(),
            segment_bytes: SEGMENT_BYTES_FIRST,
            inline_preparation: false,
            rebuilds_state: false,
            state: StateOptions::default(),
        }
    }
}

/// What a store has written since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Barriers: `fdatasync`s of the journal for commits.
    pub barriers: u64,
    /// Bytes of groups, heads included.
    pub bytes: u64,
    /// Groups.
    pub groups: u64,
    /// Frames.
    pub frames: u64,
}

/// What an open found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// A torn tail that was cut: none of it was acknowledged.
    pub cut: Option<Cut>,
    /// Why the state was rebuilt from the journal, if it was.
    pub rebuilt: Option<String>,
    /// Frames in the journal when it was opened.
    pub frames: u64,
}

/// What the writer and readers share.
pub(crate) struct Shared {
    /// DIR.
    pub(crate) dir: PathBuf,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) salts: Salts,
    /// None once the store is closed.
    pub(crate) state: RwLock<Option<State>>,
}

/// A store in a directory. Dropping it without `close` leaves what a killed process would leave.
pub struct JournalStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Arc<dyn Fs>,
    sender: SyncSender<Message>,
    opening: Opening,
    /// None once the store is closed.
    held: Mutex<Option<Held>>,
    /// Held by who purges: one at a time.
    pub(crate) purging: Mutex<()>,
}

struct Held {
    writer: JoinHandle<()>,
    lock: Lock,
}

impl fmt::Debug for JournalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalStore").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

impl JournalStore {
    /// Opens or makes the store in `dir`. Once it returns, everything it will ever answer from the journal is
    /// durable, an epoch newer than every earlier one is durable too, and the state is equal to the journal.
    pub fn open(dir: &Path, options: Options) -> Result<Self, Error> {
        let lock = Lock::take(dir, options.lock_wait)?;
        let journal = dir.join(JOURNAL_DIR);
        let disk = Arc::clone(&options.disk);
        disk.open(&journal, Mode::Dir)
            .and_then(|_| sync_dir(&*disk, dir))
            .map_err(|failure| error("make", &journal, &failure))?;
        let survey = survey(&*disk, &journal)?;
        repair(&*disk, &journal, &survey)?;
        if survey.tail == Point::START {
            sync_ancestors(&*disk, dir)?;
        }
        let frames = survey.tail.position;
        if options.rebuilds_state {
            State::distrust(Arc::clone(&disk), dir)?;
        }
        let (state, found) = State::open(Arc::clone(&disk), dir, options.boot_id, options.state)?;
        let (applied, rebuilt) = match found {
            Found::Usable { applied } if applied > frames => {
                return Err(Error::Behind { journal: frames, state: applied });
            }
            Found::Usable { applied } => (applied, None),
            Found::Rebuild { reason } => (0, Some(reason)),
        };
        replay(&disk, &journal, &survey, applied, &state)?;
        let catalog = Arc::new(Catalog::new(Arc::clone(&disk), journal.clone()));
        // `repair` has sealed them all.
        survey.segments.iter().for_each(|segment| catalog.add(segment.number, segment.bytes, None));
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            catalog: Arc::clone(&catalog),
            counters: Arc::default(),
            salts: Salts::new().map_err(|failure| error("read", Path::new(RANDOM), &failure))?,
            state: RwLock::new(Some(state)),
        });
        let counters = Arc::clone(&shared.counters);
        let preparer = Preparer::new(Arc::clone(&disk), journal, options.inline_preparation);
        let tail = Tail::new(disk, preparer, catalog, counters, options.segment_bytes, survey.tail);
        let mut writer =
            Writer::new(Arc::clone(&shared), tail, options.linger, options.boot_id, options.opened_at_ms);
        writer.open_epoch()?;
        let (sender, receiver) = sync_channel(WRITER_QUEUE_MAX);
        let writer = thread::Builder::new()
            .name("journal-writer".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(|failure| error("start the writer of", dir, &failure))?;
        let opening = Opening { cut: survey.cut, rebuilt, frames };
        let held = Mutex::new(Some(Held { writer, lock }));
        Ok(Self { shared, disk: options.disk, sender, opening, held, purging: Mutex::default() })
    }

    /// What this open found.
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// What was written since this open.
    pub fn stats(&self) -> Stats {
        let Counters { barriers, bytes, groups, frames } = &*self.shared.counters;
        Stats {
            barriers: barriers.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
            groups: groups.load(Ordering::Relaxed),
            frames: frames.load(Ordering::Relaxed),
        }
    }

    /// About as many bytes of the journal as a purge of these runs would give back.
    pub fn footprint(&self, runs: &HashSet<RunKey>) -> Result<u64, Error> {
        self.shared.catalog.footprint(|stream| stream.run().is_some_and(|run| runs.contains(&run)))
    }

    /// How the state does; none once the store is closed.
    pub fn state_health(&self) -> Option<StateHealth> {
        self.with_state(|state| Ok(state.health())).ok()
    }

    /// Waits until sled holds everything that is durable.
    pub fn settle(&self) -> Result<(), Error> {
        self.with_state(|state| {
            state.settle();
            Ok(())
        })
    }

    /// Closes cleanly: what was accepted before is durable, the journal is sealed and sled's files may be
    /// used as found. Everything asked afterwards is `Closed`. A second close does nothing.
    pub fn close(&self) -> Result<(), Error> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Held { writer, lock }) = held else { return Ok(()) };
        let closed = self.ask(Message::Close).and_then(|closed| closed);
        let joined = writer.join().map_err(|_| Error::Closed);
        // The writer is gone, so a purge ends with its next step: after the lock nothing of it may reach the disk.
        drop(self.purging.lock().unwrap_or_else(PoisonError::into_inner));
        // Waits only for readers that are inside.
        let state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner).take();
        let state_closed = state.map_or(Ok(()), State::close);
        drop(lock);
        closed.and(joined).and(state_closed)
    }

    fn submit(&self, commit: Commit, consumed: Option<u64>) -> Ticket {
        let (answer, ticket) = Ticket::channel();
        match Submitted::new(commit, consumed, self.shared.salts.next(), answer) {
            Ok(submitted) => {
                // A closed queue drops the answer, which the ticket reports as `Closed`.
                let _ = self.sender.send(Message::Commit(Box::new(submitted)));
            }
            Err((error, answer)) => refuse(answer, error),
        }
        ticket
    }

    /// Asks the writer and waits for its answer.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Message) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        self.sender.send(question(answer)).map_err(|_| Error::Closed)?;
        answered.recv().map_err(|_| Error::Closed)
    }

    pub(crate) fn with_state<T>(&self, read: impl FnOnce(&State) -> Result<T, Error>) -> Result<T, Error> {
        let guard = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        read(guard.as_ref().ok_or(Error::Closed)?)
    }

    fn read(&self, wanted: &Wanted) -> Result<Vec<Record>, Error> {
        let head = self.with_state(|state| stream_head(state, wanted.stream))?;
        head.filter(|head| !head.is_purged).map_or(Ok(Vec::new()), |head| {
            self.shared.catalog.read(wanted, (head.first_segment, head.last_segment))
        })
    }
}

impl Drop for JournalStore {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Held { writer, lock }) = held {
            // The writer may be gone; its panic, if any, was reported by its own thread.
            let _ = self.sender.send(Message::Stop);
            let _ = writer.join();
            drop(self.shared.state.write().unwrap_or_else(PoisonError::into_inner).take());
            // Last: nobody may open the directory while anything of ours can still write to it.
            drop(lock);
        }
    }
}

impl Store for JournalStore {
    fn commit(&self, commit: Commit) -> Ticket {
        self.submit(commit, None)
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        self.submit(Commit { durability: Durability::Durable, ..item }, Some(consumed))
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.ask(Message::Flush)?;
        self.with_state(|state| {
            let heads = || -> Result<_, Error> {
                Ok((stream_head(state, Stream::Run(run))?, stream_head(state, Stream::Inbox(run))?))
            };
            let mut before = heads()?;
            loop {
                let values = state.scan(&run_prefix(run), None, usize::MAX)?;
                let after = heads()?;
                // Each commit of the run moves a head: with both where they were, the values are of this
                // moment.
                if before == after {
                    let (own, inbox) = after;
                    return Ok(Loaded {
                        head: own.map(|own| own.head),
                        inbox_len: inbox.map_or(0, |inbox| inbox.head.seq + 1),
                        is_ended: own.is_some_and(|own| own.is_ended),
                        values,
                    });
                }
                before = after;
            }
        })
    }

    fn claim(&self) -> Result<Epoch, Error> {
        self.ask(Message::Claim)?
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.read(&Wanted { stream, from, limit, only_messages: false })
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.read(&Wanted { stream, from, limit, only_messages: true })
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Pairs, Error> {
        let after = if prefix.is_empty() {
            Some(after.map_or(heads::LAST, |after| after.max(heads::LAST)))
        } else {
            after
        };
        self.with_state(|state| state.scan(prefix, after, limit))
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        purge::purge(self, runs)
    }
}

/// Syncs the directories above a new store: its own name must survive power loss as well.
fn sync_ancestors(disk: &dyn Fs, dir: &Path) -> Result<(), Error> {
    let dir = std::path::absolute(dir).map_err(|failure| error("find", dir, &failure))?;
    for ancestor in dir.ancestors().skip(1) {
        match sync_dir(disk, ancestor) {
            Ok(()) => {}
            // Not ours to read, so not ours to have made.
            Err(failure) if failure.kind() == io::ErrorKind::PermissionDenied => {}
            Err(failure) => return Err(error("sync", ancestor, &failure)),
        }
    }
    Ok(())
}

pub(crate) fn stream_head(state: &State, stream: Stream) -> Result<Option<StreamHead>, Error> {
    Ok(state.get(&heads::key(stream))?.and_then(|value| StreamHead::decode(&value)))
}

fn refuse(answer: oneshot::Sender<Result<Receipt, Error>>, error: Error) {
    // A dropped ticket wants no answer.
    let _ = answer.send(Err(error));
}
