//! The settings that a run keeps.
//!
//! Owns the answer for whoever stands outside of the engine. `[profiles]` are never among them.

use model::RunId;
use store::Store;

use crate::config::{Config, Error as Unreadable};
use crate::configs::stored;
use crate::driver::read_first;
use crate::error::Error;
use crate::job::JobFacts;

/// The settings that a run started with and goes by. None for a run of a journal that kept none: it goes by those in
/// force. Fails if they are not where the run's first record says.
pub fn settings(store: &dyn Store, run: RunId) -> Result<Option<Config>, Error> {
    let facts = JobFacts::of(&read_first(store, run)?.submission)
        .map_err(|error| Error::Job(format!("run {run}: {error}")))?;
    let Some(hash) = facts.config else { return Ok(None) };
    let lost = || Unreadable::Snapshot { reason: format!("{hash} is not in the journal") };
    Ok(Some(stored(store, hash)?.ok_or_else(lost)?))
}
