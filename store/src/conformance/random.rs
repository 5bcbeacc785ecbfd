//! Random operations on two stores, whose answers must be the same.
//!
//! Owns the reading of bytes as operations (every byte string is a sequence of them, so a fuzzer and a
//! property test can share it) and what of an answer is comparable: not hashes, positions and barriers, which
//! are each store's own, and epochs only by their distance from the first.

use std::collections::HashMap;

use super::{Pairs, absent, accepted, ceiling, commit, delete, put, run_key};
use crate::{
    Commit, Durability, Epoch, Error, Purge, Put, Record, RecordKind, Require, Seq, Store, Stream, run_prefix,
};

/// Runs what `bytes` say on both stores, which nobody has used.
///
/// # Panics
///
/// When an answer differs; the message has both and the operation.
pub fn compare(bytes: &[u8], left: &dyn Store, right: &dyn Store) {
    let mut drivers = [Driver::new(left), Driver::new(right)];
    let mut bytes = Bytes(bytes);
    for number in 0.. {
        let Some(operation) = Operation::read(&mut bytes) else { break };
        let [left, right] = drivers.each_mut().map(|driver| driver.perform(&operation));
        assert_eq!(left, right, "operation {number}, {operation:?}");
    }
}

/// Bytes that are read one after another; past the end they are zero.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number below `end`.
    fn below(&mut self, end: u8) -> u8 {
        self.next().unwrap_or(0) % end
    }

    /// True once in `times`.
    fn once_in(&mut self, times: u8) -> bool {
        self.below(times) == times - 1
    }
}

/// How an attempted commit differs from one that is sure to be taken.
#[derive(Clone, Debug)]
struct Write {
    stream: Stream,
    is_late: bool,
    is_fenced: bool,
    kind: RecordKind,
    puts: Vec<Put>,
    requires: Vec<Require>,
    durability: Durability,
}

#[derive(Clone, Debug)]
enum Operation {
    Commit(Write),
    Push { item: Write, consumed: u64 },
    Load(u8),
    Purge(u8),
    Claim,
    ReadJournal { stream: Stream, from: Seq, limit: usize },
    ReadTranscript { stream: Stream, from: Seq, limit: usize },
    Scan { prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize },
}

/// Keys in play: some of each of two runs, two idempotency keys, two counters.
fn key(number: u8) -> Vec<u8> {
    match number % 8 {
        0..=3 => [run_prefix(run_key(number % 2)).as_slice(), &[b'a' + number / 2]].concat(),
        4..=5 => vec![b'k', number],
        _ => vec![b'c', number],
    }
}

fn read_stream(bytes: &mut Bytes<'_>) -> Stream {
    match bytes.below(5) {
        0 => Stream::Own(7),
        number @ 1..=2 => Stream::Inbox(run_key(number % 2)),
        number => Stream::Run(run_key(number % 2)),
    }
}

fn read_put(bytes: &mut Bytes<'_>) -> Put {
    let key = key(bytes.below(6));
    if bytes.once_in(3) { delete(&key) } else { put(&key, &[bytes.below(9)]) }
}

/// What lies under a run's prefix is put by the run alone.
fn may_put(stream: Stream, put: &Put) -> bool {
    let foreign = (0..2).map(run_key).filter(|run| stream.run() != Some(*run));
    foreign.into_iter().all(|run| !put.key.starts_with(&run_prefix(run)))
}

fn read_require(bytes: &mut Bytes<'_>) -> Require {
    match bytes.below(3) {
        0 => absent(&key(4 + bytes.below(2))),
        1 => Require::InboxLen { run: run_key(bytes.below(2)), len: u64::from(bytes.below(4)) },
        _ => ceiling(&key(6 + bytes.below(2)), i64::from(bytes.below(8)) - 3, 20),
    }
}

impl Write {
    fn read(bytes: &mut Bytes<'_>, stream: Stream) -> Self {
        let kind = RecordKind {
            code: bytes.below(200),
            carries_messages: bytes.once_in(2),
            ends_stream: matches!(stream, Stream::Run(_)) && bytes.once_in(12),
        };
        Self {
            stream,
            is_late: bytes.once_in(8),
            is_fenced: bytes.once_in(16),
            kind,
            puts: (0..bytes.below(4)).map(|_| read_put(bytes)).filter(|put| may_put(stream, put)).collect(),
            requires: (0..bytes.below(3)).map(|_| read_require(bytes)).collect(),
            durability: if bytes.once_in(2) { Durability::Ordered } else { Durability::Durable },
        }
    }
}

impl Operation {
    fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        let (from, limit) = (
            |bytes: &mut Bytes<'_>| Seq::from(bytes.below(6)),
            |bytes: &mut Bytes<'_>| usize::from(bytes.below(6)),
        );
        Some(match bytes.next()? % 12 {
            0..=3 => Self::Commit({
                let stream =
                    if bytes.once_in(4) { Stream::Own(7) } else { Stream::Run(run_key(bytes.below(2))) };
                Write::read(bytes, stream)
            }),
            4..=5 => {
                let stream = Stream::Inbox(run_key(bytes.below(2)));
                Self::Push { consumed: u64::from(bytes.below(3)), item: Write::read(bytes, stream) }
            }
            6 => Self::Load(bytes.below(2)),
            7 if bytes.once_in(4) => Self::Claim,
            7 if bytes.once_in(4) => Self::Purge(bytes.below(2)),
            7 | 8 => Self::ReadJournal { stream: read_stream(bytes), from: from(bytes), limit: limit(bytes) },
            9 => Self::ReadTranscript { stream: read_stream(bytes), from: from(bytes), limit: limit(bytes) },
            _ => Self::Scan {
                prefix: [key(0)[..1].to_vec(), run_prefix(run_key(1)).to_vec(), b"k".to_vec(), b"c".to_vec()]
                    [usize::from(bytes.below(4))]
                .clone(),
                after: bytes.once_in(2).then(|| key(bytes.below(8))),
                limit: limit(bytes),
            },
        })
    }
}

/// What two stores must agree on.
#[derive(Debug, PartialEq)]
enum Answer {
    Seq(Seq),
    Epoch(u64),
    Loaded { head: Option<Seq>, inbox_len: u64, is_ended: bool, values: Pairs },
    Records(Vec<Comparable>),
    Pairs(Pairs),
    Refused(Error),
}

/// A record without what is each store's own.
#[derive(Debug, PartialEq)]
struct Comparable {
    stream: Stream,
    seq: Seq,
    epoch: u64,
    at_ms: i64,
    kind: RecordKind,
    payload: Option<Vec<u8>>,
    puts: Vec<Put>,
}

struct Driver<'a> {
    store: &'a dyn Store,
    /// The first epoch, and the current one.
    first: Epoch,
    epoch: Epoch,
    next: HashMap<Stream, Seq>,
}

impl<'a> Driver<'a> {
    fn new(store: &'a dyn Store) -> Self {
        let epoch = store.claim().unwrap_or(Epoch(0));
        Self { store, first: epoch, epoch, next: HashMap::new() }
    }

    fn perform(&mut self, operation: &Operation) -> Answer {
        self.ask(operation).unwrap_or_else(|error| Answer::Refused(self.relative(error)))
    }

    fn ask(&mut self, operation: &Operation) -> Result<Answer, Error> {
        match operation {
            Operation::Commit(write) => {
                let commit = self.commit(write);
                self.taken(write.stream, self.store.commit(commit).wait().map(|receipt| receipt.head.seq))
            }
            Operation::Push { item, consumed } => {
                let commit = self.commit(item);
                let answer = self.store.push_inbox(commit, *consumed).wait();
                self.taken(item.stream, answer.map(|receipt| receipt.head.seq))
            }
            Operation::Load(number) => {
                let loaded = self.store.load(run_key(*number))?;
                let head = loaded.head.map(|head| head.seq);
                let (inbox_len, is_ended, values) = (loaded.inbox_len, loaded.is_ended, loaded.values);
                Ok(Answer::Loaded { head, inbox_len, is_ended, values })
            }
            Operation::Purge(number) => {
                let puts = vec![put(&key(4), b"purged")];
                let purged = self.store.purge(&[Purge { run: run_key(*number), puts, requires: vec![] }])?;
                Ok(Answer::Seq(purged.runs))
            }
            Operation::Claim => {
                self.epoch = self.store.claim()?;
                Ok(Answer::Epoch(self.epoch.0 - self.first.0))
            }
            Operation::ReadJournal { stream, from, limit } => {
                self.barrier()?;
                self.store.read_journal(*stream, *from, *limit).map(|records| self.comparable(records))
            }
            Operation::ReadTranscript { stream, from, limit } => {
                self.barrier()?;
                self.store.read_transcript(*stream, *from, *limit).map(|records| self.comparable(records))
            }
            Operation::Scan { prefix, after, limit } => {
                self.store.scan(prefix, after.as_deref(), *limit).map(Answer::Pairs)
            }
        }
    }

    /// Makes what was ordered readable.
    fn barrier(&mut self) -> Result<(), Error> {
        let next = self.next.entry(Stream::Own(9)).or_default();
        accepted(self.store, commit(self.epoch, Stream::Own(9), *next))?;
        *next += 1;
        Ok(())
    }

    fn commit(&self, write: &Write) -> Commit {
        let next = self.next.get(&write.stream).copied().unwrap_or(0);
        let epoch = if write.is_fenced { Epoch(self.first.0.saturating_sub(1)) } else { self.epoch };
        Commit {
            kind: write.kind,
            puts: write.puts.clone(),
            requires: write.requires.clone(),
            durability: write.durability,
            ..commit(epoch, write.stream, next + u64::from(write.is_late))
        }
    }

    fn taken(&mut self, stream: Stream, answer: Result<Seq, Error>) -> Result<Answer, Error> {
        let seq = answer?;
        self.next.insert(stream, seq + 1);
        Ok(Answer::Seq(seq))
    }

    fn comparable(&self, records: Vec<Record>) -> Answer {
        let comparable = |record: Record| Comparable {
            stream: record.stream,
            seq: record.head.seq,
            epoch: record.epoch.0 - self.first.0,
            at_ms: record.at_ms,
            kind: record.kind,
            payload: record.payload,
            puts: record.puts,
        };
        Answer::Records(records.into_iter().map(comparable).collect())
    }

    /// The error with its epochs as distances from the first one: a fenced commit carried the one before it.
    fn relative(&self, error: Error) -> Error {
        if let Error::Fenced { got, current } = error {
            return Error::Fenced { got: self.first.0 - got, current: current - self.first.0 };
        }
        error
    }
}
