//! Batches: a file of jobs, run to its end, with one result line for each.
//!
//! Owns the way from a jobs file to a results file. A job is known by the names of its batch and of itself, so whoever
//! runs the same file again continues it. It must never decide what a run does: it submits, follows and writes down.

mod ending;
mod error;
mod halt;
mod joblog;
mod jobs;
mod known;
mod lines;
mod results;
mod run;
mod shared;
#[cfg(test)]
mod tests;

pub use crate::budgets::charged;
pub use crate::keys::batch_run as run_of;
pub(crate) use ending::Committed;
pub use ending::{ResultLine, TokenUsage};
pub use error::Error;
pub use halt::Halt;
pub use jobs::{BadLine, BatchJob, Defaults, JobsFile, LINE_BYTES_MAX};
pub use known::{Standing, Survey, survey};
pub use results::Mended;
pub use run::{BatchRun, NewCaps, Options, Progress, Summary};
pub use shared::{SharedWorkspace, shared_workspaces};
