//! The list of runs, and their number by status.
//!
//! Owns `ls`. A run costs one read of its committed state; the list must never read the journal.

use std::collections::BTreeMap;

use model::{Label, Millis, RunId};
use serde::{Deserialize, Serialize};
use store::Store;

use super::present;
use super::status::{Status, waiting_for};
use super::{PAGE, Snapshot};
use crate::error::Error;
use crate::job::{BATCH_CHARS_MAX, Meta};
use crate::keys;

/// Which runs are listed. The default lists the newest 100.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Only runs in this status.
    pub status: Option<Status>,
    /// Only runs of this batch.
    pub batch: Option<String>,
    /// Only runs of this session.
    pub session: Option<String>,
    /// Only runs that have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// The most runs; 0 for no limit.
    pub limit: usize,
}

impl Default for Filter {
    fn default() -> Self {
        Self { status: None, batch: None, session: None, labels: BTreeMap::new(), limit: 100 }
    }
}

/// A run in the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRow {
    /// The run.
    #[serde(serialize_with = "present::text")]
    pub run: RunId,
    /// Id of its job in its batch.
    pub custom_id: Option<String>,
    /// Name of its batch.
    pub batch: Option<String>,
    /// Key of its session.
    pub session: String,
    /// Its phase in one word.
    pub status: Status,
    /// Its phase in full.
    pub phase: String,
    /// The model in force.
    pub model: String,
    /// Turns that have a complete answer.
    pub turns: u64,
    /// When it was accepted.
    #[serde(serialize_with = "present::time")]
    pub started_at: Millis,
    /// When its state last changed.
    #[serde(serialize_with = "present::time")]
    pub updated_at: Millis,
    /// What it waits for, in one phrase.
    pub waiting_for: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Numbers of runs, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Wait for their lane.
    pub queued: u64,
    /// Run.
    pub running: u64,
    /// Wait for a timer.
    pub waiting: u64,
    /// Need a person.
    pub parked: u64,
    /// Did what was asked.
    pub completed: u64,
    /// Gave up.
    pub failed: u64,
    /// Need action outside.
    pub blocked: u64,
    /// Were cancelled.
    pub cancelled: u64,
    /// Passed their deadline.
    pub timed_out: u64,
}

impl RunRow {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let Snapshot { run, state, meta, .. } = snapshot;
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        Self {
            run: *run,
            custom_id: named(&meta.custom_id),
            batch: named(&meta.batch),
            session: meta.session.clone(),
            status: Status::of(&state.core.phase),
            phase: state.core.phase.to_string(),
            model: state.core.model.to_string(),
            turns: state.core.spent.turns,
            started_at: Millis(meta.submitted_at_ms),
            updated_at: state.core.clock,
            waiting_for: waiting_for(state),
            labels: meta.labels.iter().cloned().collect(),
        }
    }
}

impl Counts {
    /// The number of runs in one status.
    pub fn of(&self, status: Status) -> u64 {
        let mut counts = *self;
        *counts.slot(status)
    }

    /// The number of all runs.
    pub fn total(&self) -> u64 {
        Status::ALL.into_iter().map(|status| self.of(status)).sum()
    }

    fn slot(&mut self, status: Status) -> &mut u64 {
        match status {
            Status::Queued => &mut self.queued,
            Status::Running => &mut self.running,
            Status::Waiting => &mut self.waiting,
            Status::Parked => &mut self.parked,
            Status::Completed => &mut self.completed,
            Status::Failed => &mut self.failed,
            Status::Blocked => &mut self.blocked,
            Status::Cancelled => &mut self.cancelled,
            Status::TimedOut => &mut self.timed_out,
        }
    }
}

impl Filter {
    fn takes(&self, snapshot: &Snapshot) -> bool {
        let Snapshot { state, meta, .. } = snapshot;
        let has_label = |(name, value): (&String, &String)| {
            meta.labels.iter().any(|(found, held)| found == name && held == value)
        };
        self.status.is_none_or(|status| status == Status::of(&state.core.phase))
            && self.batch.as_deref().is_none_or(|batch| is_of_batch(meta, batch))
            && self.session.as_deref().is_none_or(|session| meta.session == Label::from(session).as_str())
            && self.labels.iter().all(has_label)
    }
}

/// The list keeps the beginning of a long name, so that is what is compared.
fn is_of_batch(meta: &Meta, batch: &str) -> bool {
    meta.batch.chars().eq(batch.chars().take(BATCH_CHARS_MAX))
}

/// The runs that the filter takes, newest first.
pub fn list(store: &dyn Store, filter: &Filter) -> Result<Vec<RunRow>, Error> {
    let mut rows = Vec::new();
    each_newest(store, |snapshot| {
        if filter.takes(&snapshot) {
            rows.push(RunRow::of(&snapshot));
        }
        filter.limit == 0 || rows.len() < filter.limit
    })?;
    Ok(rows)
}

/// How many runs are in which status, of one batch or of all.
pub fn counts(store: &dyn Store, batch: Option<&str>) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    each_newest(store, |snapshot| {
        if batch.is_none_or(|batch| is_of_batch(&snapshot.meta, batch)) {
            *counts.slot(Status::of(&snapshot.core().phase)) += 1;
        }
        true
    })?;
    Ok(counts)
}

/// Shows every run, newest first, until `visit` answers false.
fn each_newest(store: &dyn Store, mut visit: impl FnMut(Snapshot) -> bool) -> Result<(), Error> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = store.scan(keys::NEWEST, after.as_deref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(last.clone());
        for run in page.iter().filter_map(|(key, _)| keys::run_of(key)) {
            if !visit(Snapshot::load(store, run)?) {
                return Ok(());
            }
        }
    }
}
