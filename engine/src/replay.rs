//! Replay: folds a run's journal through `advance` and compares.
//!
//! Owns the proof that the committed states follow from the inputs. It folds; it must never read a stored state.

use model::encode::Encoded;
use model::record::LOGIC_VERSION;
use model::{Millis, Record, RunId, RunState, advance};
use store::{Hash, Store, Stream};

use crate::error::Error;
use crate::keys;

/// Records read at once.
const PAGE: usize = 256;

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Records folded.
    pub records: u64,
    /// The first difference, if there is one.
    pub difference: Option<Difference>,
    /// The state after the last record that was folded.
    pub state: Option<RunState>,
}

/// Where the fold and the journal part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Sequence of the record.
    pub seq: u64,
    /// What differs.
    pub what: String,
    /// The record was made by another version of the logic: the versions differ, the journal is not damaged.
    pub is_other_version: bool,
}

/// Folds the records of a run up to `until` (all, if none).
pub fn replay(store: &dyn Store, run: RunId, until: Option<u64>) -> Result<Replay, Error> {
    let mut replay = Replay { records: 0, difference: None, state: None };
    let mut encoded: Option<Encoded> = None;
    let mut next = 0;
    loop {
        let records = store.read_journal(Stream::Run(keys::run_key(run)), next, PAGE)?;
        let Some(last) = records.last() else { break };
        next = last.head.seq.saturating_add(1);
        for record in records {
            if until.is_some_and(|until| record.head.seq > until) {
                return Ok(replay);
            }
            let what = fold(&mut replay.state, &mut encoded, run, &record)?;
            replay.records += 1;
            if let Some(what) = what {
                let is_other_version = record.logic_version != LOGIC_VERSION;
                replay.difference = Some(Difference { seq: record.head.seq, what, is_other_version });
                return Ok(replay);
            }
        }
    }
    if replay.records == 0 {
        return Err(Error::NoSuchRun(run.to_string()));
    }
    Ok(replay)
}

/// Folds one record; answers how it differs from what the journal says.
fn fold(
    state: &mut Option<RunState>,
    encoded: &mut Option<Encoded>,
    run: RunId,
    record: &store::Record,
) -> Result<Option<String>, Error> {
    let Some(payload) = &record.payload else {
        return Ok(Some("the input was redacted; nothing after it can be folded".to_owned()));
    };
    let decoded = Record::from_bytes(payload).map_err(|source| Error::Decode { run, source })?;
    let (before, moved) = match (state.take(), decoded) {
        (None, Record::Submitted(submission)) => {
            let first = RunState::new(&submission, Millis(record.at_ms));
            let (hashes, _) = Encoded::all(&first);
            let differs = hash_differs(&hashes, record);
            *state = Some(first);
            *encoded = Some(hashes);
            return Ok(differs);
        }
        (Some(before), Record::Moved(moved)) => (before, moved),
        (None, Record::Moved(_)) => return Ok(Some("the first record is not a submission".to_owned())),
        (Some(_), Record::Submitted(_)) => return Ok(Some("a second submission".to_owned())),
    };
    let step = match advance(before.clone(), &moved.input) {
        Ok(step) => step,
        Err(rejected) => return Ok(Some(rejected.to_string())),
    };
    let Some(hashes) = encoded else { return Ok(Some("no state to compare".to_owned())) };
    hashes.update(&before, &step.state);
    let differs = hash_differs(hashes, record).or_else(|| {
        let same = step.marks == moved.marks && step.made == moved.made && step.results == moved.results;
        (!same).then(|| "what became visible is not what the journal says".to_owned())
    });
    *state = Some(step.state);
    Ok(differs)
}

fn hash_differs(encoded: &Encoded, record: &store::Record) -> Option<String> {
    let found = Hash(encoded.state_hash());
    (found != record.state_hash)
        .then(|| format!("the state is {found} when folded, {} in the journal", record.state_hash))
}
