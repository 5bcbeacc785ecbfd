//! What a store knows of a file's jobs, before any of them is submitted.
//!
//! Owns the comparison: new, accepted, ended, or accepted as another version of its line. It must never write.

use std::path::Path;

use model::{Outcome, ParkReason, Phase, RunId, Scope, Shortage};
use store::Store;

use super::Error;
use super::ending::Committed;
use super::jobs::{BadLine, BatchJob, JobsFile};
use crate::driver::read_first;
use crate::engine::Engine;
use crate::gc::Tomb;
use crate::job::Job;
use crate::keys;

/// Characters of a prompt that name a version of a line.
const PROMPT_CHARS_MAX: usize = 40;

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It runs, or will.
    Going,
    /// It waits for a timer.
    Waiting,
    /// It needs a person, for this reason.
    Parked(ParkReason),
    /// The engine stopped before it ended.
    Stopped,
    /// The engine could not go on with it, for this reason of its own.
    Broken(String),
    /// It has ended.
    Ended(Outcome),
}

impl Standing {
    /// Where a run stands that no engine has moved yet.
    fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Done { outcome, .. } => Self::Ended(*outcome),
            Phase::Parked { reason, .. } => Self::Parked(reason.clone()),
            Phase::Queued
            | Phase::InjectPending { .. }
            | Phase::Stream { .. }
            | Phase::Dispatch { .. }
            | Phase::ExecuteTools { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. } => Self::Going,
        }
    }

    /// What the job's batch lacks for it to go on; none if it waits for something else, or for nothing.
    pub fn shortage_of_batch(&self) -> Option<Shortage> {
        match self {
            Self::Parked(ParkReason::Budget(shortage)) if shortage.scope == Scope::Batch => Some(*shortage),
            Self::Parked(_)
            | Self::Going
            | Self::Waiting
            | Self::Stopped
            | Self::Broken(_)
            | Self::Ended(_) => None,
        }
    }

    /// What a halt counts.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Ended(Outcome::Failed | Outcome::Blocked | Outcome::TimedOut) => true,
            Self::Ended(Outcome::Completed | Outcome::Cancelled) => false,
            Self::Going | Self::Waiting | Self::Parked(_) | Self::Stopped | Self::Broken(_) => false,
        }
    }
}

/// The jobs of a file, by what the store knows of them.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Jobs to submit.
    pub(super) fresh: Vec<Job>,
    /// Every job that can be run, in the file's order.
    pub(super) tracked: Vec<Tracked>,
    /// Jobs that were accepted and have not ended.
    pub(super) live: Vec<RunId>,
    /// Lines that cannot be run.
    pub(super) bad: Vec<BadLine>,
}

/// A job that is followed.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) custom_id: Box<str>,
    pub(super) run: RunId,
    pub(super) standing: Standing,
}

/// How many jobs are known, by what the store knows of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Not submitted yet.
    pub fresh: usize,
    /// Accepted, and not ended.
    pub live: usize,
    /// Ended.
    pub ended: usize,
    /// Lines that cannot be run.
    pub bad: Vec<BadLine>,
}

/// What a store knows of a file's jobs, without submitting any. `engine` says whether it would accept those that are new.
pub fn survey(
    store: &dyn Store,
    engine: &Engine,
    batch: &str,
    path: &Path,
    file: JobsFile,
) -> Result<Survey, Error> {
    let Known { fresh, tracked, live, bad } = Known::of(store, engine, batch, path, file)?;
    let (fresh, live) = (fresh.len(), live.len());
    Ok(Survey { fresh, live, ended: tracked.len() - fresh - live, bad })
}

impl Known {
    pub(super) fn of(
        store: &dyn Store,
        engine: &Engine,
        batch: &str,
        path: &Path,
        file: JobsFile,
    ) -> Result<Self, Error> {
        let tracked = Vec::with_capacity(file.jobs.len());
        let mut known = Self { bad: file.bad, tracked, ..Self::default() };
        for job in file.jobs {
            let line = job.line;
            if let Some(reason) = known.take(store, engine, batch, job)? {
                known.bad.push(BadLine { file: path.to_owned(), line, column: 1, reason });
            }
        }
        known.bad.sort_by_key(|line| line.line);
        Ok(known)
    }

    /// Takes a job in; answers why its line must be refused.
    fn take(
        &mut self,
        store: &dyn Store,
        engine: &Engine,
        batch: &str,
        job: BatchJob,
    ) -> Result<Option<String>, crate::Error> {
        let run = keys::batch_run(batch, &job.custom_id);
        if let Some(tomb) = Tomb::of(store, run)? {
            return Ok(self.take_purged(tomb, run, &job));
        }
        let standing = match Committed::of(store, run)? {
            None => {
                if let Err(error) = engine.check(&job.job) {
                    return Ok(Some(error.to_string()));
                }
                self.fresh.push(job.job);
                Standing::Going
            }
            Some(Committed { meta, .. }) if meta.version != job.job.version => {
                return changed(store, run, meta.version, &job).map(Some);
            }
            Some(Committed { state, .. }) => {
                let standing = Standing::of(&state.core.phase);
                if !matches!(standing, Standing::Ended(_)) {
                    self.live.push(run);
                }
                standing
            }
        };
        self.tracked.push(Tracked { custom_id: job.custom_id.into(), run, standing });
        Ok(None)
    }
}

impl Known {
    /// A job whose run was purged has ended, and is never run again.
    fn take_purged(&mut self, tomb: Tomb, run: RunId, job: &BatchJob) -> Option<String> {
        if tomb.version != job.job.version {
            return Some(format!(
                "job `{}` was accepted as another version, whose run was purged since; give the new one another \
                 custom_id",
                job.custom_id
            ));
        }
        let standing = Standing::Ended(tomb.outcome);
        self.tracked.push(Tracked { custom_id: job.custom_id.clone().into(), run, standing });
        None
    }
}

/// Names both versions of a job's line.
fn changed(
    store: &dyn Store,
    run: RunId,
    accepted: Option<[u8; 16]>,
    job: &BatchJob,
) -> Result<String, crate::Error> {
    let name = |version: Option<[u8; 16]>, prompts: &[model::Message]| {
        let digits: String = version.iter().flatten().take(6).map(|byte| format!("{byte:02x}")).collect();
        let prompt = prompts.last().map(model::Message::joined_text).unwrap_or_default();
        let words: String = prompt.chars().take(PROMPT_CHARS_MAX).collect();
        format!("{digits} ({words:?})")
    };
    let first = read_first(store, run)?;
    Ok(format!(
        "job `{}` was accepted as version {} and the line is now version {}; give the new one another custom_id, or \
         restore the line",
        job.custom_id,
        name(accepted, &first.submission.prompts),
        name(job.job.version, &job.job.prompts),
    ))
}
