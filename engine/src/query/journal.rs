//! The transitions of a run, one row a record, and the items of its inbox.
//!
//! Owns `journal`: what each record says in one line. It reads records as they are; it must never fold them.

use std::collections::VecDeque;

use model::inbox::Item;
use model::{Millis, Record, RunId};
use serde::Serialize;
use store::{Hash, Store, Stream};

use super::attempts::decided;
use super::facts::{counted, decision, details, short};
use super::{PAGE, Snapshot, core_of, present};
use crate::error::Error;
use crate::keys;

/// One record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JournalRow {
    /// Its sequence.
    pub seq: u64,
    /// When it happened.
    #[serde(serialize_with = "present::time")]
    pub at: Millis,
    /// The phase before it; none for the first record.
    pub before: Option<String>,
    /// The phase after it.
    pub after: Option<String>,
    /// What happened.
    pub input: &'static str,
    /// More of what happened, in a few words.
    pub details: String,
    /// A barrier covers it.
    pub barrier: bool,
    /// Epoch of its writer.
    pub epoch: u64,
    /// Its hash.
    #[serde(serialize_with = "present::text")]
    pub hash: Hash,
}

/// One item of a run's inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InboxRow {
    /// Its position.
    pub position: u64,
    /// When it was accepted.
    #[serde(serialize_with = "present::time")]
    pub at: Millis,
    /// What it is.
    pub item: &'static str,
    /// More of what it is, in a few words.
    pub details: String,
    /// The run has taken it.
    pub is_taken: bool,
}

/// The records of a run, read page by page.
pub struct JournalRows<'a> {
    store: &'a dyn Store,
    run: RunId,
    next: u64,
    /// The first row that is shown.
    from: u64,
    before: Option<String>,
    ready: VecDeque<JournalRow>,
    has_ended: bool,
}

/// The records of a run from `from` on, in order.
pub fn journal(store: &dyn Store, run: RunId, from: u64) -> Result<JournalRows<'_>, Error> {
    if store.read_journal(Stream::Run(keys::run_key(run)), 0, 1)?.is_empty() {
        return Err(Error::NoSuchRun(run.to_string()));
    }
    // The record before the first one shown tells the phase that it starts from.
    let next = from.saturating_sub(1);
    Ok(JournalRows { store, run, next, from, before: None, ready: VecDeque::new(), has_ended: false })
}

impl Iterator for JournalRows<'_> {
    type Item = Result<JournalRow, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.has_ended {
            if let Err(error) = self.read_page() {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl JournalRows<'_> {
    fn read_page(&mut self) -> Result<(), Error> {
        let records = self.store.read_journal(Stream::Run(keys::run_key(self.run)), self.next, PAGE)?;
        let Some(last) = records.last() else {
            self.has_ended = true;
            return Ok(());
        };
        self.next = last.head.seq.saturating_add(1);
        for record in records {
            let row = self.row(&record)?;
            self.before.clone_from(&row.after);
            if row.seq >= self.from {
                self.ready.push_back(row);
            }
        }
        Ok(())
    }

    fn row(&self, record: &store::Record) -> Result<JournalRow, Error> {
        let decode = |payload: &Vec<u8>| {
            Record::from_bytes(payload).map_err(|source| Error::Decode { run: self.run, source })
        };
        let (input, details) = match record.payload.as_ref().map(decode).transpose()? {
            None => ("redacted", String::new()),
            Some(Record::Submitted(submission)) => {
                let prompts = counted(submission.prompts.len(), "prompt");
                ("submitted", format!("{prompts}, model {}", submission.model))
            }
            Some(Record::Moved(moved)) => {
                let details = details(&moved.input.fact);
                let decided = moved.decision.as_ref().map(decided);
                let parts = [Some(details).filter(|details| !details.is_empty()), decided];
                let parts: Vec<String> = parts.into_iter().flatten().collect();
                (moved.input.fact.name(), parts.join(" -> "))
            }
        };
        Ok(JournalRow {
            seq: record.head.seq,
            at: Millis(record.at_ms),
            before: self.before.clone(),
            after: core_of(self.run, record)?.map(|core| core.phase.to_string()),
            input,
            details,
            barrier: record.barrier,
            epoch: record.epoch.0,
            hash: record.head.hash,
        })
    }
}

/// What was accepted for a run, in order.
pub fn inbox_rows(store: &dyn Store, run: RunId) -> Result<Vec<InboxRow>, Error> {
    let taken = Snapshot::load(store, run)?.core().cursors;
    let mut rows = Vec::new();
    let mut next = 0;
    loop {
        let records = store.read_journal(Stream::Inbox(keys::run_key(run)), next, PAGE)?;
        let Some(last) = records.last() else { return Ok(rows) };
        next = last.head.seq.saturating_add(1);
        for record in records {
            let Some(payload) = record.payload else { continue };
            let item = Item::from_bytes(&payload).map_err(|source| Error::Decode { run, source })?;
            let position = record.head.seq;
            let (item, details, cursor) = match &item {
                Item::Steering(message) => ("steering", short(&message.joined_text()), taken.steering),
                Item::FollowUp(message) => ("follow_up", short(&message.joined_text()), taken.follow_up),
                Item::Control(control) => {
                    let (name, details) = decision(control);
                    (name, details, taken.control)
                }
            };
            let at = Millis(record.at_ms);
            rows.push(InboxRow { position, at, item, details, is_taken: position < cursor });
        }
    }
}
