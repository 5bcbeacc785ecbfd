//! Questions about runs, answered from committed state and journal.
//!
//! Owns what `ls`, `show`, `why`, `transcript` and `journal` say: each answer serialises to exactly what
//! `--json` prints. It asks any store: an open one, one in memory, or a journal that is only read. It must
//! never write, nor call `advance`.

mod attempts;
mod doing;
mod facts;
mod find;
mod journal;
mod list;
mod money;
mod names;
mod present;
mod recent;
mod routes;
mod settings;
mod show;
mod status;
#[cfg(test)]
mod tests;
mod transcript;
mod turns;
mod why;
mod words;

pub use attempts::{AttemptRow, failed_now};
pub use find::{find_run, parse_call};
pub use journal::{InboxRow, JournalRow, JournalRows, inbox_rows, journal};
pub use list::{Counts, Filter, RunRow, counts, list};
pub use money::UsdIs;
pub use recent::BlockedLoop;
pub use routes::{CoolingRow, RoutesView};
pub use settings::settings;
pub use show::{
    CallRow, Chain, Counters, DeadlineView, Guards, HeadView, InboxView, JobView, LimitsView, RetryCounters,
    RunView, Spending, TakenView, UsageView, show,
};
pub use status::Status;
pub use transcript::{session_transcript, transcript};
pub use turns::{EarlierTurns, LostView, TurnRow};
pub use why::{Why, why};
pub use words::quoted;

use model::encode::Part;
use model::state::Core;
use model::{RunId, RunState};
use store::{Head, Store};

use crate::error::Error;
use crate::job::Meta;
use crate::keys;

/// Keys or records read at once.
const PAGE: usize = 256;

/// What is committed of a run at one moment.
struct Snapshot {
    run: RunId,
    state: RunState,
    meta: Meta,
    head: Head,
    inbox_len: u64,
}

impl Snapshot {
    /// The run's committed state; an error if there is no such run.
    fn load(store: &dyn Store, run: RunId) -> Result<Self, Error> {
        let loaded = store.load(keys::run_key(run))?;
        let value = |key: Vec<u8>| {
            loaded.values.iter().find(|(found, _)| *found == key).map(|(_, value)| value.clone())
        };
        let state = RunState::decode(|part| value(keys::part(run, part)))
            .map_err(|source| Error::Decode { run, source })?;
        let no_such_run = || Error::NoSuchRun(run.to_string());
        Ok(Self {
            run,
            state: state.ok_or_else(no_such_run)?,
            meta: value(keys::meta(run)).and_then(|bytes| Meta::from_bytes(&bytes)).unwrap_or_default(),
            head: loaded.head.ok_or_else(no_such_run)?,
            inbox_len: loaded.inbox_len,
        })
    }

    fn core(&self) -> &Core {
        &self.state.core
    }
}

/// The core of the state that a record put.
fn core_of(run: RunId, record: &store::Record) -> Result<Option<Core>, Error> {
    let key = keys::part(run, Part::Core);
    let core = record.puts.iter().find(|put| put.key == key).and_then(|put| put.value.clone());
    let state = RunState::decode(|part| core.clone().filter(|_| part == Part::Core));
    Ok(state.map_err(|source| Error::Decode { run, source })?.map(|state| state.core))
}
