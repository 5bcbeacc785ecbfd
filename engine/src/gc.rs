//! Retention: which runs that have ended are forgotten, and what goes with them.
//!
//! Owns the choice. A run is chosen if all that was asked for holds of it; it stays if a run that stays reads its context
//! from it, or if the next run of a session that has work would. It must never choose a run that has not ended: the store
//! refuses that too.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use model::{Millis, Outcome, Phase, RunId, RunState};
use serde::{Deserialize, Serialize};
use store::{Purge, Put, Require, Store};

use crate::batch::Committed;
use crate::driver::read_first;
use crate::engine::Engine;
use crate::error::Error;
use crate::job::JobFacts;
use crate::keys;
use crate::query::Status;

/// Keys read at once.
const PAGE: usize = 1024;
/// Digits of a blob's name.
const BLOB_DIGITS: usize = 64;

/// Which runs are forgotten: those that have ended and of which all of this holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// They ended at least so many milliseconds ago.
    pub older_than_ms: Option<u64>,
    /// They ended like this; empty: in any way.
    pub statuses: Vec<Status>,
    /// They are not among so many newest ones that ended like this.
    pub keep: Option<u64>,
    /// Only say what would go.
    pub is_dry_run: bool,
    /// Remove the workspaces that the engine made for them, too.
    pub takes_workspaces: bool,
}

/// What was given back, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Runs that are gone.
    pub runs: u64,
    /// Bytes of the journal.
    pub bytes: u64,
    /// Runs that stay although they were meant: a run that stays continues from them, or something has just begun to.
    pub held: u64,
    /// Nothing was done.
    pub is_dry_run: bool,
}

/// What stays known of a run that was purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tomb {
    pub(crate) outcome: Outcome,
    /// Version of its line, if it was a job of a batch.
    pub(crate) version: Option<[u8; 16]>,
}

impl Tomb {
    /// What is known of a purged run; none if it was not purged.
    pub(crate) fn of(store: &dyn Store, run: RunId) -> Result<Option<Self>, Error> {
        let found = store.scan(&keys::purged(run), None, 1)?;
        Ok(found.first().and_then(|(_, value)| postcard::from_bytes(value).ok()))
    }
}

impl Engine {
    /// Forgets runs that have ended. Commits go on meanwhile; once it returns, the bytes are given back.
    pub async fn gc(&self, retention: &Retention) -> Result<Reclaimed, Error> {
        let (engine, retention) = (self.clone(), retention.clone());
        let lost = |error: tokio::task::JoinError| Error::Internal(error.to_string());
        tokio::task::spawn_blocking(move || engine.gc_now(&retention)).await.map_err(lost)?
    }

    fn gc_now(&self, retention: &Retention) -> Result<Reclaimed, Error> {
        let store = &**self.store();
        let Choice { chosen, stay, held } = choose(store, retention, self.now())?;
        let mut reclaimed =
            Reclaimed { runs: chosen.len() as u64, bytes: 0, held, is_dry_run: retention.is_dry_run };
        let runs: Vec<RunId> = chosen.iter().map(|purge| RunId(purge.run.0)).collect();
        if retention.is_dry_run {
            if let Some(journal) = self.journal() {
                reclaimed.bytes = journal.footprint(&chosen.iter().map(|purge| purge.run).collect())?;
            }
            return Ok(reclaimed);
        }
        let purged = store.purge(&chosen)?;
        reclaimed.held += reclaimed.runs - purged.runs;
        (reclaimed.runs, reclaimed.bytes) = (purged.runs, purged.bytes);
        if let Some(dir) = &self.shared.dir {
            let in_use = if retention.takes_workspaces { workspaces(store, &stay)? } else { HashSet::new() };
            for run in runs {
                if Tomb::of(store, run)?.is_some() {
                    remove_files(dir, run, retention.takes_workspaces, &in_use);
                }
            }
            // A call under way may hold a file that no record names yet.
            if self.shared.stop.is_cancelled() && self.driving.is_idle() {
                self.sweep_blobs();
            }
        }
        Ok(reclaimed)
    }

    /// Removes the files in `DIR/blobs` that no run holds. No call may be under way.
    pub(crate) fn sweep_blobs(&self) {
        let Some(blobs) = self.shared.dir.as_ref().map(|dir| dir.join("blobs")) else { return };
        let Ok(entries) = std::fs::read_dir(blobs) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_blob = name.len() == BLOB_DIGITS && name.bytes().all(|digit| digit.is_ascii_hexdigit());
            let key = [keys::BLOBS, name.as_bytes()].concat();
            let held = if is_blob {
                self.store().scan(&key, None, 1).map(|held| !held.is_empty())
            } else {
                Ok(false)
            };
            if held == Ok(false) {
                // A file that cannot be removed now is tried again at the next open.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// What is to happen to the runs there are.
struct Choice {
    /// The oldest first: who continues from another is gone no earlier than it.
    chosen: Vec<Purge>,
    stay: Vec<RunId>,
    held: u64,
}

/// What the choice needs to know of a run.
struct Known {
    run: RunId,
    submitted_at: Millis,
    /// The run that its context continues from, if it reads it.
    continues: Option<RunId>,
    tomb: Option<Tomb>,
    is_chosen: bool,
}

fn choose(store: &dyn Store, retention: &Retention, now: Millis) -> Result<Choice, Error> {
    let mut known = known(store, retention, now)?;
    let places: HashMap<RunId, usize> = known.iter().enumerate().map(|(at, known)| (known.run, at)).collect();
    let meant = known.iter().filter(|known| known.is_chosen).count();
    let mut kept: Vec<RunId> = known.iter().filter(|known| !known.is_chosen).map(|known| known.run).collect();
    kept.extend(heads_of_lanes(store)?);
    while let Some(run) = kept.pop() {
        let Some(at) = places.get(&run) else { continue };
        let found = &mut known[*at];
        found.is_chosen = false;
        let next = found.continues.and_then(|run| places.get(&run));
        kept.extend(next.map(|at| &known[*at]).filter(|known| known.is_chosen).map(|known| known.run));
    }
    let mut extra = sessions(store, &known, &places)?;
    for (key, run) in blobs(store)? {
        extra.entry(run).or_default().puts.push(Put { key, value: None });
    }
    let mut choice = Choice { chosen: Vec::new(), stay: Vec::new(), held: 0 };
    for Known { run, submitted_at, tomb, is_chosen, .. } in known.into_iter().rev() {
        let Some(tomb) = tomb.filter(|_| is_chosen) else {
            choice.stay.push(run);
            continue;
        };
        let Extra { mut puts, requires } = extra.remove(&run).unwrap_or_default();
        puts.push(Put { key: keys::newest(submitted_at.0, run), value: None });
        let value = postcard::to_stdvec(&tomb).unwrap_or_default();
        puts.push(Put { key: keys::purged(run), value: Some(value) });
        choice.chosen.push(Purge { run: keys::run_key(run), puts, requires });
    }
    choice.held = (meant - choice.chosen.len()) as u64;
    Ok(choice)
}

/// Every run, newest first, and whether what was asked for holds of it.
fn known(store: &dyn Store, retention: &Retention, now: Millis) -> Result<Vec<Known>, Error> {
    let (mut runs, mut newer) = (Vec::new(), 0);
    each(store, keys::NEWEST, |key, _| {
        let Some(run) = keys::run_of(key) else { return Ok(()) };
        let Some(Committed { state, meta }) = Committed::of(store, run)? else { return Ok(()) };
        let core = &state.core;
        let status = Status::of(&core.phase);
        let outcome = if let Phase::Done { outcome, .. } = &core.phase { Some(*outcome) } else { None };
        let is_meant =
            outcome.is_some() && (retention.statuses.is_empty() || retention.statuses.contains(&status));
        let is_old = retention.older_than_ms.is_none_or(|age_ms| now.since(core.clock) >= age_ms);
        newer += u64::from(is_meant);
        let is_spare = retention.keep.is_none_or(|keep| newer > keep);
        runs.push(Known {
            run,
            submitted_at: Millis(meta.submitted_at_ms),
            continues: continues(run, &state),
            tomb: outcome.map(|outcome| Tomb { outcome, version: meta.version }),
            is_chosen: is_meant && is_old && is_spare,
        });
        Ok(())
    })?;
    Ok(runs)
}

/// The run of its session whose messages the context of a run begins with.
pub(crate) fn continues(run: RunId, state: &RunState) -> Option<RunId> {
    let from = state.core.context_from;
    let reaches = from.base.is_none() || from.first.is_some_and(|first| first.run != run);
    from.previous.filter(|_| reaches)
}

/// The newest runs of the sessions that have runs which have not ended: the next of these may continue from them.
fn heads_of_lanes(store: &dyn Store) -> Result<Vec<RunId>, Error> {
    let (mut lanes, mut heads) = (HashSet::new(), Vec::new());
    each(store, keys::LIVE, |_, lane| {
        lanes.extend(keys::Lane::try_from(lane).ok());
        Ok(())
    })?;
    for lane in lanes {
        let found = store.scan(&keys::session_of(lane), None, 1)?;
        heads.extend(found.into_iter().filter_map(|(_, run)| Some(RunId(run.try_into().ok()?))));
    }
    Ok(heads)
}

/// What a run's purge changes, and needs, beyond the run itself.
#[derive(Default)]
struct Extra {
    puts: Vec<Put>,
    requires: Vec<Require>,
}

/// A session whose newest run goes begins anew. Whoever is admitted to it meanwhile continues from that run: then it
/// stays, and so does what it continues from.
fn sessions(
    store: &dyn Store,
    known: &[Known],
    places: &HashMap<RunId, usize>,
) -> Result<HashMap<RunId, Extra>, Error> {
    let mut extra: HashMap<RunId, Extra> = HashMap::new();
    each(store, keys::SESSIONS, |key, value| {
        let newest = value.try_into().map(RunId).ok();
        let mut next = newest;
        while let Some(found) =
            next.and_then(|run| known.get(*places.get(&run)?)).filter(|known| known.is_chosen)
        {
            let extra = extra.entry(found.run).or_default();
            if newest == Some(found.run) {
                extra.puts.push(Put { key: key.to_vec(), value: None });
            }
            extra.requires.push(Require::Holds { key: key.to_vec(), value: Some(value.to_vec()) });
            next = found.continues;
        }
        Ok(())
    })?;
    Ok(extra)
}

/// The keys that say which file in `DIR/blobs` a run holds, each with the run.
fn blobs(store: &dyn Store) -> Result<Vec<(Vec<u8>, RunId)>, Error> {
    let mut blobs = Vec::new();
    each(store, keys::BLOBS, |key, _| {
        blobs.extend(keys::run_of(key).map(|run| (key.to_vec(), run)));
        Ok(())
    })?;
    Ok(blobs)
}

/// Visits every key with a prefix.
fn each(
    store: &dyn Store,
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = store.scan(prefix, after.as_deref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(last.clone());
        page.iter().try_for_each(|(key, value)| visit(key, value))?;
    }
}

/// The workspaces of runs that stay.
fn workspaces(store: &dyn Store, runs: &[RunId]) -> Result<HashSet<PathBuf>, Error> {
    let mut workspaces = HashSet::new();
    for run in runs {
        let facts = JobFacts::of(&read_first(store, *run)?.submission);
        workspaces.extend(facts.ok().and_then(|facts| facts.workspace));
    }
    Ok(workspaces)
}

/// Removes what a purged run left beside the journal. What cannot be removed is no reason to fail: nobody needs it.
fn remove_files(dir: &Path, run: RunId, takes_workspaces: bool, in_use: &HashSet<PathBuf>) {
    let _ = std::fs::remove_dir_all(keys::calls_dir(dir, run));
    let workspace = keys::own_workspace(dir, run);
    if takes_workspaces && !in_use.contains(&workspace) {
        let _ = std::fs::remove_dir_all(workspace);
    }
}
