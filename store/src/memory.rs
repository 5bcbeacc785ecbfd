//! A store in memory: the oracle that every other implementation is compared with.
//!
//! Owns the plainest reading of the contract: one lock, no threads, everything durable at once. It must never
//! be clever: when it and the journal disagree, this file is the one that a person can check by reading.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::keys::{add_to_counter, admit, lower_bound, read_counter, run_prefix};
use crate::limits::INBOX_ITEMS_MAX;
use crate::{
    Commit, Durability, Epoch, Error, Hash, Head, Loaded, Purge, Purged, Put, Receipt, Record, RecordKind,
    Require, RunKey, Seq, Store, Stream, Ticket,
};

/// A store that lives as long as the value does.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    epoch: u64,
    frames: u64,
    streams: HashMap<Stream, Vec<Record>>,
    /// Streams of which some record was the end.
    ended: HashSet<Stream>,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Runs that are gone, with their last records.
    purged: HashMap<RunKey, Head>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn commit(&self, commit: Commit) -> Ticket {
        Ticket::ready(self.lock().commit(commit))
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        Ticket::ready(self.lock().push_inbox(item, consumed))
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        let inner = self.lock();
        Ok(Loaded {
            head: inner.head(Stream::Run(run)),
            inbox_len: inner.next_seq(Stream::Inbox(run)),
            is_ended: inner.is_ended(run),
            values: inner.scan(&run_prefix(run), None, usize::MAX),
        })
    }

    fn claim(&self) -> Result<Epoch, Error> {
        let mut inner = self.lock();
        inner.epoch += 1;
        Ok(Epoch(inner.epoch))
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        Ok(self.lock().read(stream, from, limit, |_| true))
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        Ok(self.lock().read(stream, from, limit, |record| record.kind.carries_messages))
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        Ok(self.lock().scan(prefix, after, limit))
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        self.lock().purge(runs)
    }
}

impl Inner {
    fn commit(&mut self, commit: Commit) -> Result<Receipt, Error> {
        self.check_writer(&commit)?;
        let next = self.next_seq(commit.stream);
        if commit.expect_seq != next {
            return Err(Error::Conflict { stream: commit.stream, expected: commit.expect_seq, next });
        }
        let sums = self.check_requires(&commit.requires)?;
        if let Stream::Run(run) = commit.stream
            && self.purged.contains_key(&run)
        {
            return Err(Error::Ended { run });
        }
        Ok(self.append(commit, sums))
    }

    /// The requirements come before the state of the inbox: an item that is sent again with its idempotency
    /// key is a duplicate, whatever has become of the run since.
    fn push_inbox(&mut self, item: Commit, consumed: u64) -> Result<Receipt, Error> {
        self.check_writer(&item)?;
        let len = self.next_seq(item.stream);
        let Stream::Inbox(run) = item.stream else {
            return Err(Error::Conflict { stream: item.stream, expected: item.expect_seq, next: len });
        };
        let sums = self.check_requires(&item.requires)?;
        if self.is_ended(run) {
            return Err(Error::Ended { run });
        }
        if len.saturating_sub(consumed) >= INBOX_ITEMS_MAX {
            return Err(Error::InboxFull { run, max: INBOX_ITEMS_MAX });
        }
        Ok(self.append(Commit { expect_seq: len, durability: Durability::Durable, ..item }, sums))
    }

    fn purge(&mut self, runs: &[Purge]) -> Result<Purged, Error> {
        if let Some(live) = runs.iter().find(|purge| self.has(purge.run) && !self.is_ended(purge.run)) {
            return Err(Error::NotEnded { run: live.run });
        }
        runs.iter().try_for_each(|purge| admit(&purge.puts))?;
        let mut purged = Purged::default();
        for Purge { run, puts, requires } in runs {
            let known = self.head(Stream::Run(*run)).filter(|_| !self.purged.contains_key(run));
            let Some(head) = known.filter(|_| self.check_requires(requires).is_ok()) else { continue };
            self.streams.remove(&Stream::Run(*run));
            self.streams.remove(&Stream::Inbox(*run));
            self.values.retain(|key, _| !key.starts_with(&run_prefix(*run)));
            self.apply(puts);
            self.purged.insert(*run, head);
            purged.runs += 1;
        }
        Ok(purged)
    }

    fn has(&self, run: RunKey) -> bool {
        self.head(Stream::Run(run)).is_some()
    }

    fn check_writer(&self, commit: &Commit) -> Result<(), Error> {
        if commit.epoch.0 < self.epoch {
            return Err(Error::Fenced { got: commit.epoch.0, current: self.epoch });
        }
        admit(&commit.puts)
    }

    /// Checks every requirement in order, and answers the puts that follow from them.
    fn check_requires(&self, requires: &[Require]) -> Result<Vec<Put>, Error> {
        let mut sums: Vec<Put> = Vec::new();
        for require in requires {
            match require {
                Require::Absent { key } => {
                    if let Some(value) = self.values.get(key) {
                        return Err(Error::Duplicate { value: value.clone() });
                    }
                }
                Require::Holds { key, value } => {
                    if self.values.get(key) != value.as_ref() {
                        return Err(Error::Changed { key: key.clone() });
                    }
                }
                Require::InboxLen { run, len: seen } => {
                    let len = self.next_seq(Stream::Inbox(*run));
                    if *seen != len {
                        return Err(Error::InboxMoved { run: *run, seen: *seen, len });
                    }
                }
                Require::Ceiling { key, add, max } => {
                    let earlier =
                        sums.iter().rev().find(|sum| sum.key == *key).and_then(|sum| sum.value.as_ref());
                    let current = read_counter(earlier.or_else(|| self.values.get(key)).map(Vec::as_slice));
                    let sum = add_to_counter(current, *add, *max);
                    let sum =
                        sum.ok_or(Error::Ceiling { key: key.clone(), current, add: *add, max: *max })?;
                    sums.push(Put { key: key.clone(), value: Some(sum.to_le_bytes().to_vec()) });
                }
            }
        }
        Ok(sums)
    }

    fn append(&mut self, commit: Commit, sums: Vec<Put>) -> Receipt {
        let puts: Vec<Put> = commit.puts.into_iter().chain(sums).collect();
        self.apply(&puts);
        if commit.kind.ends_stream {
            self.ended.insert(commit.stream);
        }
        let records = self.streams.entry(commit.stream).or_default();
        let mut record = Record {
            stream: commit.stream,
            head: Head { seq: commit.expect_seq, hash: Hash::default() },
            prev_hash: records.last().map(|record| record.head.hash).unwrap_or_default(),
            epoch: commit.epoch,
            at_ms: commit.at_ms,
            logic_version: commit.logic_version,
            kind: commit.kind,
            payload: Some(commit.payload),
            puts,
            state_hash: commit.state_hash,
            barrier: true,
        };
        record.head.hash = header_hash(&record);
        let head = record.head;
        records.push(record);
        let position = self.frames;
        self.frames += 1;
        Receipt { head, position }
    }

    fn apply(&mut self, puts: &[Put]) {
        for put in puts {
            match &put.value {
                Some(value) => self.values.insert(put.key.clone(), value.clone()),
                None => self.values.remove(&put.key),
            };
        }
    }

    /// Head of a stream, that of a purged run included.
    fn head(&self, stream: Stream) -> Option<Head> {
        let purged = || match stream {
            Stream::Run(run) => self.purged.get(&run).copied(),
            Stream::Own(_) | Stream::Inbox(_) => None,
        };
        self.records(stream).last().map(|record| record.head).or_else(purged)
    }

    fn records(&self, stream: Stream) -> &[Record] {
        self.streams.get(&stream).map_or(&[], Vec::as_slice)
    }

    fn next_seq(&self, stream: Stream) -> Seq {
        self.head(stream).map_or(0, |head| head.seq + 1)
    }

    fn is_ended(&self, run: RunKey) -> bool {
        self.ended.contains(&Stream::Run(run))
    }

    fn read(
        &self,
        stream: Stream,
        from: Seq,
        limit: usize,
        is_wanted: impl Fn(&Record) -> bool,
    ) -> Vec<Record> {
        let records =
            self.records(stream).iter().filter(|record| record.head.seq >= from && is_wanted(record));
        records.take(limit).cloned().collect()
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let pairs = self.values.range::<[u8], _>((lower_bound(prefix, after), Bound::Unbounded));
        let pairs = pairs.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Hash of all that a record says, as the chain of its stream links it. The journal salts payloads and has a
/// layout of its own, so the two never give the same hash; what they share is what a hash depends on.
fn header_hash(record: &Record) -> Hash {
    let (tag, name) = match &record.stream {
        Stream::Own(number) => (0, std::slice::from_ref(number)),
        Stream::Run(run) => (1, run.0.as_slice()),
        Stream::Inbox(run) => (2, run.0.as_slice()),
    };
    let RecordKind { code, carries_messages, ends_stream } = record.kind;
    let mut header = vec![tag];
    header.extend_from_slice(name);
    header.extend_from_slice(&record.head.seq.to_le_bytes());
    header.extend_from_slice(&record.epoch.0.to_le_bytes());
    header.extend_from_slice(&record.at_ms.to_le_bytes());
    header.extend_from_slice(&record.logic_version.to_le_bytes());
    header.extend_from_slice(&[code, u8::from(carries_messages), u8::from(ends_stream)]);
    header.extend_from_slice(&record.prev_hash.0);
    header.extend_from_slice(blake3::hash(record.payload.as_deref().unwrap_or_default()).as_bytes());
    header.extend_from_slice(&puts_hash(&record.puts).0);
    header.extend_from_slice(&record.state_hash.0);
    Hash(*blake3::hash(&header).as_bytes())
}

fn puts_hash(puts: &[Put]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for put in puts {
        for part in [Some(&put.key), put.value.as_ref()] {
            hasher.update(&part.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
            hasher.update(part.map_or(&[], Vec::as_slice));
        }
    }
    Hash(*hasher.finalize().as_bytes())
}
