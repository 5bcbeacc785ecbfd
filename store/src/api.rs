//! The store's contract: plain data types, the [`Store`] trait, and its one error enum.
//!
//! Owns the vocabulary that every implementation shares. It must never hold I/O.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Identifies one run to the store: 16 opaque bytes chosen by the engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RunKey(pub [u8; 16]);

impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A chain of records. Each stream has its own sequence numbers, from 0, and its own hash chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Stream {
    /// One of the store's own streams: 0 holds opens and closes, others are free for the engine's shared facts.
    Own(u8),
    /// The transitions of one run.
    Run(RunKey),
    /// What was accepted for one run from outside, in order of arrival.
    Inbox(RunKey),
}

impl Stream {
    /// The run that it belongs to; none for the store's own.
    pub fn run(self) -> Option<RunKey> {
        match self {
            Self::Run(run) | Self::Inbox(run) => Some(run),
            Self::Own(_) => None,
        }
    }
}

/// Position of a record in its stream, from 0.
pub type Seq = u64;

/// Fencing token: the store's open counter. A larger one is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Epoch(pub u64);

/// A blake3 hash.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Sequence and hash of the newest record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// Sequence number of the newest record.
    pub seq: Seq,
    /// Hash of that record's header.
    pub hash: Hash,
}

/// One change of the committed state. `value: None` deletes. Keys start with the engine's own tag byte (ASCII letter);
/// keys that start with a byte below 0x20 are reserved for the store. Values are at most [`crate::limits`] 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Put {
    /// The key.
    pub key: Vec<u8>,
    /// The new value, or none to delete the key.
    pub value: Option<Vec<u8>>,
}

/// What a record is, as far as the store must know. `code` is the engine's own and is only carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordKind {
    /// The engine's own code for the kind of input, shown by raw listings.
    pub code: u8,
    /// The record brought messages into the transcript; `read_transcript` returns only such records.
    pub carries_messages: bool,
    /// The stream ends with this record: its inbox refuses every later push with [`Error::Ended`].
    pub ends_stream: bool,
}

/// Keys and their values, in key order.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A precondition that the writer checks at the moment of linking, against everything accepted before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Require {
    /// No value under this key (an idempotency key); otherwise [`Error::Duplicate`] with the value found.
    Absent {
        /// The key that must be absent.
        key: Vec<u8>,
    },
    /// Exactly this value under this key, or none; otherwise [`Error::Changed`].
    Holds {
        /// The key.
        key: Vec<u8>,
        /// What the caller has seen there.
        value: Option<Vec<u8>>,
    },
    /// The run's inbox holds exactly this many items, consumed ones included; otherwise [`Error::InboxMoved`].
    InboxLen {
        /// The run whose inbox is meant.
        run: RunKey,
        /// The number of items that the caller has seen.
        len: u64,
    },
    /// A counter (8 bytes, little endian u64, absent = 0) plus `add` stays within `max`; the writer stores the sum as
    /// part of the commit's puts. Otherwise [`Error::Ceiling`]. A counter does not fall below 0.
    Ceiling {
        /// Key of the counter.
        key: Vec<u8>,
        /// What this commit adds; what it takes away if negative.
        add: i64,
        /// The largest sum allowed.
        max: u64,
    },
}

/// When a commit's ticket resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the barrier that covers it: it survives power loss.
    Durable,
    /// Once it is linked and in order; it becomes durable with the next barrier and may be void if that fails.
    Ordered,
}

/// One transition, ready to be linked and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The stream that it extends.
    pub stream: Stream,
    /// The sequence number that it must get (0 for a new stream); otherwise [`Error::Conflict`].
    pub expect_seq: Seq,
    /// Fencing token of the writer; an older one than the store's is [`Error::Fenced`].
    pub epoch: Epoch,
    /// When it happened, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Version of the logic that made it.
    pub logic_version: u16,
    /// What the store must know of it.
    pub kind: RecordKind,
    /// The bytes that say what happened (the store puts 16 bytes of salt before them).
    pub payload: Vec<u8>,
    /// The changes of the committed state, applied in order.
    pub puts: Vec<Put>,
    /// Hash of the state after this transition, as computed by the caller.
    pub state_hash: Hash,
    /// Preconditions; all must hold, or nothing is written.
    pub requires: Vec<Require>,
    /// When the ticket resolves.
    pub durability: Durability,
}

/// What a commit became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The stream's head after it.
    pub head: Head,
    /// Its place among all frames of the store, from 0.
    pub position: u64,
}

/// A record as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stream that it belongs to.
    pub stream: Stream,
    /// Its sequence number and hash.
    pub head: Head,
    /// Hash of the record before it (all zero for the first).
    pub prev_hash: Hash,
    /// Epoch of its writer.
    pub epoch: Epoch,
    /// When it happened, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Version of the logic that made it.
    pub logic_version: u16,
    /// What the store knows of it.
    pub kind: RecordKind,
    /// The payload without its salt; none if it was redacted.
    pub payload: Option<Vec<u8>>,
    /// The puts that it caused.
    pub puts: Vec<Put>,
    /// Hash of the state after it.
    pub state_hash: Hash,
    /// A barrier covers it: written by a group whose commit was (also) durable.
    pub barrier: bool,
}

/// A run to forget, and what else changes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The run. It must have ended.
    pub run: RunKey,
    /// Changes of the committed state that are made at the same moment; the values under the run's own prefix go by
    /// themselves.
    pub puts: Vec<Put>,
    /// What must hold at that moment; otherwise the run stays.
    pub requires: Vec<Require>,
}

/// What a purge gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Runs that were there and are gone.
    pub runs: u64,
    /// Bytes of the journal that were given back.
    pub bytes: u64,
}

/// A run as the store holds it, for its new owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Head of the run's stream; none if there is no such run.
    pub head: Option<Head>,
    /// Number of items that its inbox has ever accepted.
    pub inbox_len: u64,
    /// The run's stream has ended.
    pub is_ended: bool,
    /// Every committed value whose key starts with `Store::run_prefix`, key order.
    pub values: Pairs,
}

/// The answer to a commit, awaited or blocked on. Dropping it changes nothing about the commit.
#[derive(Debug)]
pub struct Ticket(oneshot::Receiver<Result<Receipt, Error>>);

impl Ticket {
    /// A ticket and the sender that resolves it.
    pub fn channel() -> (oneshot::Sender<Result<Receipt, Error>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }

    /// A ticket that is already resolved.
    pub fn ready(answer: Result<Receipt, Error>) -> Self {
        let (sender, ticket) = Self::channel();
        // The receiver is alive: it is inside `ticket`.
        let _ = sender.send(answer);
        ticket
    }

    /// Waits on this thread. Must not be called inside an async runtime.
    pub fn wait(self) -> Result<Receipt, Error> {
        self.0.blocking_recv().unwrap_or(Err(Error::Closed))
    }
}

impl Future for Ticket {
    type Output = Result<Receipt, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}

/// A durable log of streams with the committed state that they imply.
///
/// Reads see what is durable; a read after an awaited durable commit sees that commit.
pub trait Store: Send + Sync {
    /// Links and writes one commit. Once the ticket of a durable commit is `Ok`, the commit and everything accepted
    /// before it survive power loss. On `Err` nothing of this commit was written, or it is void.
    fn commit(&self, commit: Commit) -> Ticket;

    /// Accepts one item for a run from outside: a durable commit on `Stream::Inbox` with the next position there as
    /// its `expect_seq` (the given one is ignored). Refused with [`Error::Ended`] once the run's stream has ended,
    /// and with [`Error::InboxFull`] past 1,000 items that no `consumed` covers.
    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket;

    /// The newest committed state of a run, ordered commits included. Once it returns, later commits of this epoch
    /// continue exactly from what was returned.
    fn load(&self, run: RunKey) -> Result<Loaded, Error>;

    /// Takes over: returns the epoch to commit with. Once it returns, every commit of an older epoch is refused.
    fn claim(&self) -> Result<Epoch, Error>;

    /// The durable records of a stream from `from` on, at most `limit`, in order. Empty past the end.
    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error>;

    /// Like `read_journal`, but only records that carry messages.
    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error>;

    /// Committed values (ordered commits included) with `prefix`, keys after `after` if given, at most `limit`, in
    /// key order.
    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Pairs, Error>;

    /// Forgets runs that have ended. Once it returns, their records and those of their inboxes are gone, with every
    /// value under their prefixes; their bytes are given back. Each run stays known as one that has ended: it can never
    /// begin again, and its inbox refuses every push. All else is as it was: every other value holds, whichever run put
    /// it, and the chain of what stays verifies. One run that has not ended refuses all with [`Error::NotEnded`]; runs
    /// that are not there, or whose requirements do not hold, are passed over. May take long; commits go on meanwhile.
    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error>;
}

/// Why the store did not do as asked. Nothing acknowledged is ever lost by any of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The writer's epoch is older than the store's.
    #[error("fenced: epoch {got} was superseded by {current}")]
    Fenced {
        /// The epoch that the commit carried.
        got: u64,
        /// The store's epoch.
        current: u64,
    },
    /// The stream is not where the writer thought.
    #[error("conflict on {stream:?}: expected seq {expected}, next is {next}")]
    Conflict {
        /// The stream in question.
        stream: Stream,
        /// The sequence number that the commit asked for.
        expected: Seq,
        /// The sequence number that comes next.
        next: Seq,
    },
    /// An item was accepted that the writer had not seen.
    #[error("the inbox of {run:?} holds {len} items, not {seen}")]
    InboxMoved {
        /// The run in question.
        run: RunKey,
        /// The items that the writer had seen.
        seen: u64,
        /// The items that there are.
        len: u64,
    },
    /// The idempotency key is known; `value` is what is stored under it.
    #[error("the key is already used")]
    Duplicate {
        /// The value stored under the key.
        value: Vec<u8>,
    },
    /// The value is not the one that the writer had seen.
    #[error("the value of the key {key:02x?} has changed")]
    Changed {
        /// The key.
        key: Vec<u8>,
    },
    /// A counter would pass its ceiling.
    #[error("ceiling: {current} + {add} would pass {max}")]
    Ceiling {
        /// Key of the counter.
        key: Vec<u8>,
        /// The counter now.
        current: u64,
        /// What the commit adds.
        add: i64,
        /// The ceiling.
        max: u64,
    },
    /// The run has ended; its inbox accepts nothing more.
    #[error("run {run:?} has ended")]
    Ended {
        /// The run in question.
        run: RunKey,
    },
    /// Only runs that have ended are purged.
    #[error("run {run:?} has not ended: it is not purged; cancel it first")]
    NotEnded {
        /// The run in question.
        run: RunKey,
    },
    /// The inbox holds as many items as it may.
    #[error("the inbox of {run:?} is full ({max} items); wait until the run has taken some")]
    InboxFull {
        /// The run in question.
        run: RunKey,
        /// The limit.
        max: u64,
    },
    /// Accepted but not durable when a barrier failed: the commit does not exist. Load again and go on.
    #[error("void: a failed barrier took back what was not durable")]
    Void,
    /// The disk is full. Nothing was acknowledged; the store goes on by itself when space is back.
    #[error("no space left on the disk of {path}; free some, the store continues by itself")]
    NoSpace {
        /// The directory of the store.
        path: PathBuf,
    },
    /// An I/O error of the disk.
    #[error("{operation} {path} failed: {message}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's words.
        message: String,
    },
    /// The directory cannot be written.
    #[error("{path} is read-only; make it writable or choose another directory with --data")]
    ReadOnly {
        /// The directory of the store.
        path: PathBuf,
    },
    /// Another live process holds the store.
    #[error("{path} is held by process {pid} ({command}); stop it, or use another directory with --data")]
    Locked {
        /// The directory of the store.
        path: PathBuf,
        /// The holder's process id.
        pid: u32,
        /// The holder's command line.
        command: String,
    },
    /// The file system is not a local one.
    #[error("{path} is on a network file system ({kind}); use a local directory with --data")]
    NotLocal {
        /// The directory of the store.
        path: PathBuf,
        /// The file system's name.
        kind: String,
    },
    /// Written by a newer version.
    #[error(
        "{what} has format version {found}, this program reads up to {supported}; use a sprag that reads version {found}"
    )]
    Newer {
        /// What was read.
        what: String,
        /// The version found.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// Bytes that were durable have changed.
    #[error("damage in {segment} at offset {offset}: {reason}")]
    Damaged {
        /// The segment file.
        segment: PathBuf,
        /// Byte offset in it.
        offset: u64,
        /// What is wrong there, with the run and sequence number as far as known.
        reason: String,
    },
    /// The state says that more was acknowledged than the journal holds.
    #[error(
        "the journal ends at frame {journal}, but {state} frames were acknowledged: data is missing; restore the \
         journal directory from a copy, do not continue"
    )]
    Behind {
        /// Frames in the journal.
        journal: u64,
        /// Frames that the state had applied.
        state: u64,
    },
    /// A commit is larger than the store takes.
    #[error("{what} is {got} bytes, at most {max} fit")]
    TooLarge {
        /// Which part is too large.
        what: &'static str,
        /// Its size in bytes.
        got: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}
