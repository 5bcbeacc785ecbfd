//! Jobs that would work in one directory at once.
//!
//! Owns the report at submission; what follows from it is for whoever submits. It must never refuse a job: two jobs may
//! well be meant to share.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use model::RunId;
use store::Store;

use super::jobs::JobsFile;
use crate::driver::read_first;
use crate::engine::each_live;
use crate::job::JobFacts;
use crate::keys;

/// A directory in which more than one session works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedWorkspace {
    /// The directory.
    pub workspace: PathBuf,
    /// Ids of the file's jobs.
    pub custom_ids: Vec<String>,
    /// Runs of other batches, or of none, that have not ended.
    pub runs: Vec<RunId>,
}

/// Who works in one directory.
#[derive(Default)]
struct Workers {
    custom_ids: Vec<String>,
    runs: Vec<RunId>,
    /// Sessions run one run at a time; a job without one is alone in its own.
    sessions: HashSet<String>,
}

/// The directories that jobs of the file, run as `batch`, share with each other or with runs of the store that have not
/// ended. A job without a workspace gets one of its own and is never among them.
pub fn shared_workspaces(
    file: &JobsFile,
    batch: &str,
    store: &dyn Store,
) -> Result<Vec<SharedWorkspace>, crate::Error> {
    let mut found: BTreeMap<PathBuf, Workers> = BTreeMap::new();
    for job in &file.jobs {
        if let Some(workspace) = &job.job.workspace {
            let session = job.job.session.clone();
            let own = || keys::batch_run(batch, &job.custom_id).to_string();
            let workers = found.entry(resolved(workspace)).or_default();
            workers.sessions.insert(session.unwrap_or_else(own));
            workers.custom_ids.push(job.custom_id.clone());
        }
    }
    if !found.is_empty() {
        let mut live = Vec::new();
        each_live(store, |run, _| live.push(run))?;
        for run in live {
            let submission = read_first(store, run)?.submission;
            let Ok(facts) = JobFacts::of(&submission) else { continue };
            let is_of_batch = facts.batch.as_deref() == Some(batch);
            let Some(workspace) = facts.workspace.filter(|_| !is_of_batch) else { continue };
            if let Some(workers) = found.get_mut(&resolved(&workspace)) {
                workers.sessions.insert(submission.session.clone());
                workers.runs.push(run);
            }
        }
    }
    let shared = found.into_iter().filter(|(_, workers)| workers.sessions.len() > 1);
    let named =
        |(workspace, Workers { custom_ids, runs, .. })| SharedWorkspace { workspace, custom_ids, runs };
    Ok(shared.map(named).collect())
}

/// The directory itself, whatever way leads to it.
fn resolved(workspace: &Path) -> PathBuf {
    workspace.canonicalize().unwrap_or_else(|_| workspace.to_owned())
}
