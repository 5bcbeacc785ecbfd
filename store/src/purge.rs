//! Forgets runs that have ended, and gives their bytes back.
//!
//! Owns the order of the steps, each of which may be the last before a crash:
//!
//! 1. One record on the store's own stream 0 ends what is known of some runs: it deletes their values, marks their
//!    heads as purged and names the segments that may hold frames of theirs. From here on the runs are gone for every
//!    reader; their bytes are not.
//! 2. Each of those segments is rewritten without the frames of purged runs, the oldest first; see `rewrite`.
//! 3. One record says that no segment is left to rewrite. Until then the next purge begins where this one ended.
//!
//! It must never take the writer long: what it asks of it is bounded, and all reading and copying is done by the thread
//! that purges.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use crate::heads::{self, StreamHead};
use crate::journal::{JournalStore, stream_head};
use crate::keys::{admit, run_prefix};
use crate::rewrite::rewrite;
use crate::state::State;
use crate::writer::{Message, OwnRecord};
use crate::{Error, Head, Purge, Purged, Put, Receipt, Record, Require, RunKey, Stream};

/// Code of the record that purges runs, on `Stream::Own(0)`.
pub const PURGED: u8 = 3;
/// Code of the record before a segment is replaced, on `Stream::Own(0)`; its payload is the segment's number and the
/// hash of its new file. Records of this code without payload put values again that dropped frames had put.
pub const REWRITTEN: u8 = 4;
/// Code of the record after the last segment of a purge, on `Stream::Own(0)`.
pub const RECLAIMED: u8 = 5;

/// Runs that one record purges: a few milliseconds of the writer's time.
const RUNS_MAX: usize = 64;

/// The runs that a record purges, with the last record of each.
pub fn purged_by(record: &Record) -> impl Iterator<Item = (RunKey, Head)> {
    let puts = if record.stream == Stream::Own(0) { record.puts.as_slice() } else { &[] };
    puts.iter().filter_map(heads::purged).filter_map(|(stream, head)| Some((stream.run()?, head)))
}

/// The body of `Store::purge`.
pub(crate) fn purge(store: &JournalStore, runs: &[Purge]) -> Result<Purged, Error> {
    let _alone = store.purging.lock().unwrap_or_else(PoisonError::into_inner);
    store.ask(Message::Flush)?;
    let mut known = Vec::with_capacity(runs.len());
    for purge in runs {
        admit(&purge.puts)?;
        let head = store.with_state(|state| stream_head(state, Stream::Run(purge.run)))?;
        match head {
            Some(head) if !head.is_ended => return Err(Error::NotEnded { run: purge.run }),
            Some(head) if !head.is_purged => known.push((purge, head)),
            Some(_) | None => {}
        }
    }
    let mut purged = 0;
    for slice in known.chunks(RUNS_MAX) {
        purged += forget(store, slice.to_vec())?;
    }
    Ok(Purged { runs: purged, bytes: reclaim(store)? })
}

/// Ends what is known of some runs, as far as their requirements hold. Answers how many it was.
fn forget(store: &JournalStore, mut runs: Vec<(&Purge, StreamHead)>) -> Result<u64, Error> {
    while !runs.is_empty() {
        let puts = store.with_state(|state| puts(state, &runs, &store.shared.catalog.segments()))?;
        let requires = runs.iter().flat_map(|(purge, _)| purge.requires.iter().cloned()).collect();
        match record(store, OwnRecord { code: PURGED, puts, requires, ..OwnRecord::default() }) {
            Ok(_) => return Ok(runs.len() as u64),
            Err(Error::Changed { key }) => runs.retain(|(purge, _)| !purge.needs(&key)),
            Err(error) => return Err(error),
        }
    }
    Ok(0)
}

impl Purge {
    /// It requires a value of this key.
    fn needs(&self, key: &[u8]) -> bool {
        self.requires.iter().any(|require| match require {
            Require::Holds { key: required, .. } => required == key,
            Require::Absent { .. } | Require::Ceiling { .. } | Require::InboxLen { .. } => false,
        })
    }
}

/// Commits a record of the store's own, and waits until sled has it: a purge must not be what other commits wait for
/// when sled is behind.
pub(crate) fn record(store: &JournalStore, record: OwnRecord) -> Result<Receipt, Error> {
    let receipt = store.ask(|answer| Message::Record(Box::new(record), answer))??;
    store.settle()?;
    Ok(receipt)
}

/// All that changes in the state when runs are purged. They have ended, so nothing else changes what is read here.
fn puts(state: &State, runs: &[(&Purge, StreamHead)], segments: &[u64]) -> Result<Vec<Put>, Error> {
    let delete = |key: Vec<u8>| Put { key, value: None };
    let (mut puts, mut to_rewrite) = (Vec::new(), BTreeSet::new());
    for (Purge { run, puts: others, .. }, head) in runs {
        let values = state.scan(&run_prefix(*run), None, usize::MAX)?;
        puts.extend(values.into_iter().map(|(key, _)| delete(key)));
        puts.extend(others.iter().cloned());
        puts.push(StreamHead { is_purged: true, ..*head }.to_put(Stream::Run(*run)));
        let inbox = stream_head(state, Stream::Inbox(*run))?;
        puts.extend(inbox.map(|_| delete(heads::key(Stream::Inbox(*run)))));
        for StreamHead { first_segment, last_segment, .. } in [Some(*head), inbox].into_iter().flatten() {
            let within = first_segment..=last_segment;
            to_rewrite.extend(segments.iter().copied().filter(|number| within.contains(number)));
        }
    }
    let to_rewrite =
        to_rewrite.into_iter().map(|number| Put { key: heads::to_rewrite(number), value: Some(vec![]) });
    Ok(puts.into_iter().chain(to_rewrite).collect())
}

/// Rewrites every segment that is named for it, those of an interrupted purge included. Answers the bytes given back.
fn reclaim(store: &JournalStore) -> Result<u64, Error> {
    let named = store.with_state(|state| state.scan(heads::TO_REWRITE, None, usize::MAX))?;
    let numbers: Vec<u64> = named.iter().filter_map(|(key, _)| heads::segment(key)).collect();
    if numbers.is_empty() {
        return Ok(0);
    }
    if store.shared.catalog.open_segment().is_some_and(|open| numbers.contains(&open)) {
        store.ask(Message::Seal)??;
    }
    let (mut bytes, mut puts) = (0, Vec::new());
    for number in numbers {
        if let Some(given_back) = rewrite(store, number)? {
            bytes += given_back;
            puts.push(Put { key: heads::to_rewrite(number), value: None });
        }
    }
    record(store, OwnRecord { code: RECLAIMED, puts, ..OwnRecord::default() })?;
    Ok(bytes)
}
