//! Transcripts: the messages of a run, and of the session up to it.
//!
//! Owns their order. A compaction replaces what the model sees, never what a person reads here.

use std::sync::Arc;

use model::phase::EntryRef;
use model::{Message, RunId};
use serde::{Serialize, Serializer};
use store::{Store, Stream};

use super::{PAGE, Snapshot};
use crate::driver::{decode_moved, inbox_message, load_state, read_first};
use crate::error::Error;
use crate::fold::{Entry, Fold};
use crate::keys;

/// An entry looks like its message, in the shape that events carry.
impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message.to_json().serialize(serializer)
    }
}

/// The messages that entered the transcript in this run, its prompts included, in order.
pub fn transcript(store: &dyn Store, run: RunId) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    append(store, run, &mut entries)?;
    Ok(entries)
}

/// The messages of the session from its first run up to this run's newest message, with those that were
/// brought along from elsewhere.
pub fn session_transcript(store: &dyn Store, run: RunId) -> Result<Vec<Entry>, Error> {
    let mut runs = vec![run];
    let mut previous = Snapshot::load(store, run)?.core().context_from.previous;
    while let Some(run) = previous {
        let Some((state, _)) = load_state(store, run)? else {
            // It was purged: nothing that stays reads its context from it.
            break;
        };
        runs.push(run);
        previous = state.core.context_from.previous;
    }
    let mut entries = Vec::new();
    for run in runs.into_iter().rev() {
        let first = read_first(store, run)?;
        entries.extend((0..).zip(&first.submission.base).map(|(n, message)| entry(run, n, message)));
        append(store, run, &mut entries)?;
    }
    Ok(entries)
}

fn entry(run: RunId, n: u32, message: &Message) -> Entry {
    Entry { at: EntryRef { run, seq: 0, n }, message: Arc::new(message.clone()) }
}

fn append(store: &dyn Store, run: RunId, entries: &mut Vec<Entry>) -> Result<(), Error> {
    let mut fold = Fold::new(read_first(store, run)?.submission, false);
    let mut next = 1;
    loop {
        let records = store.read_transcript(Stream::Run(keys::run_key(run)), next, PAGE)?;
        let Some(last) = records.last() else { return Ok(()) };
        next = last.head.seq.saturating_add(1);
        for record in records {
            let seq = record.head.seq;
            let Some(moved) = decode_moved(run, record.payload)? else { continue };
            entries.extend(fold.apply(seq, &moved, &|at| inbox_message(store, run, at))?.entries);
        }
    }
}
