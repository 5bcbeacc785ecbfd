//! What can be saved of a damaged journal, and how: the runs that are whole go on, the others are named and forgotten.
//!
//! Owns what a torn run leaves in the engine's own lists. The order of writing is the store's. It must never run beside an
//! engine: the store refuses that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Millis, Outcome, RunId, RunState};
use serde::Serialize;
use store::{Mended, Put, Remains};

use crate::error::Error;
use crate::gc::{Tomb, continues};
use crate::job::Meta;
use crate::keys;
use crate::view::Picture;

/// What is left of a damaged journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Runs that are whole.
    pub whole: u64,
    /// Runs that miss records.
    pub torn: Vec<TornRun>,
    /// Records that are gone and that nothing names; none if nobody knows how many. All of a run may be among them.
    pub nameless: Option<u64>,
    /// Records behind the end of the journal that were acknowledged, as the state knows: what they did may be done again.
    pub beyond: u64,
}

/// A run that misses records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TornRun {
    /// Its id.
    pub run: String,
    /// Id of its job in its batch, if known.
    pub custom_id: Option<String>,
    /// Name of its batch, if known.
    pub batch: Option<String>,
    /// Key of its session, if known.
    pub session: Option<String>,
    /// Runs that have not ended and whose context has messages of this one: they go on without them.
    pub continued_by: Vec<String>,
    /// The last of its records before the first that is missing; none if that is its first.
    pub last_good: Option<u64>,
    /// The damaged segment.
    pub segment: PathBuf,
    /// The bad place in it.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
}

/// What a salvage did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The segments that were mended.
    pub segments: Vec<Mended>,
    /// What was lost, and how much was not.
    pub losses: Losses,
}

/// What a salvage of `DIR/journal` would find; none if nothing is to be mended.
pub fn losses(dir: &Path) -> Result<Option<Losses>, Error> {
    let remains = Remains::read(dir)?;
    if !remains.is_damaged() {
        return Ok(None);
    }
    Ok(Some(Losses::of(dir, &remains, &Picture::of(&remains)?)))
}

/// Mends the journal. Refused while an engine is at work.
pub fn salvage(dir: &Path, now: Millis) -> Result<Saved, Error> {
    let remains = Remains::read(dir)?;
    let losses = Losses::of(dir, &remains, &Picture::of(&remains)?);
    let salvaged = store::salvage(dir, now.0, &|remains| Ok(bury(remains, &Picture::of(remains)?)))?;
    Ok(Saved { segments: salvaged.segments, losses })
}

impl Losses {
    fn of(dir: &Path, remains: &Remains, picture: &Picture) -> Self {
        // A state that does not say knows of nothing more.
        let known = store::frames_known(dir).ok().flatten().unwrap_or_default();
        let readers = readers(remains, picture);
        let torn = remains.torn().iter().map(|(key, torn)| {
            let run = RunId(key.0);
            let meta = meta(picture, run);
            let known =
                |name: fn(&Meta) -> &String| meta.as_ref().map(name).filter(|name| !name.is_empty()).cloned();
            TornRun {
                run: run.to_string(),
                custom_id: known(|meta| &meta.custom_id),
                batch: known(|meta| &meta.batch),
                session: known(|meta| &meta.session),
                continued_by: readers.get(&run).into_iter().flatten().map(RunId::to_string).collect(),
                last_good: torn.last_good,
                segment: torn.place.segment.clone(),
                offset: torn.place.offset,
                reason: torn.place.reason.clone(),
            }
        });
        Self {
            whole: remains.whole(),
            torn: torn.collect(),
            nameless: remains.nameless(),
            beyond: known.saturating_sub(remains.frames()),
        }
    }
}

fn meta(picture: &Picture, run: RunId) -> Option<Meta> {
    picture.values.get(&keys::meta(run)).and_then(|bytes| Meta::from_bytes(bytes))
}

/// By torn run, those that have not ended and read its messages.
fn readers(remains: &Remains, picture: &Picture) -> BTreeMap<RunId, Vec<RunId>> {
    let is_torn = |run: &RunId| remains.torn().contains_key(&keys::run_key(*run));
    let continued = |run: &RunId| {
        let part = |part| picture.values.get(&keys::part(*run, part)).cloned();
        continues(*run, &RunState::decode(part).ok()??)
    };
    let live =
        picture.values.keys().filter(|key| key.starts_with(keys::LIVE)).filter_map(|key| keys::run_of(key));
    let mut readers = BTreeMap::<RunId, Vec<RunId>>::new();
    for run in live.filter(|run| !is_torn(run)) {
        let earlier = std::iter::successors(continued(&run), continued);
        if let Some(torn) = earlier.into_iter().find(is_torn) {
            readers.entry(torn).or_default().push(run);
        }
    }
    readers
}

/// Takes the torn runs out of the lists of runs, of sessions and of files. What stays known is that they failed.
fn bury(remains: &Remains, picture: &Picture) -> Vec<Put> {
    let is_torn =
        |run: Option<RunId>| run.is_some_and(|run| remains.torn().contains_key(&keys::run_key(run)));
    let lists = [keys::NEWEST, keys::LIVE, keys::BLOBS];
    let mut puts: Vec<Put> = Vec::new();
    for (key, value) in &picture.values {
        let is_listed = lists.iter().any(|list| key.starts_with(list)) && is_torn(keys::run_of(key));
        let is_newest =
            key.starts_with(keys::SESSIONS) && is_torn(value.as_slice().try_into().map(RunId).ok());
        if is_listed || is_newest {
            puts.push(Put { key: key.clone(), value: None });
        }
    }
    for run in remains.torn().keys().map(|key| RunId(key.0)) {
        let version = meta(picture, run).and_then(|meta| meta.version);
        let tomb = postcard::to_stdvec(&Tomb { outcome: Outcome::Failed, version });
        puts.push(Put { key: keys::purged(run), value: Some(tomb.unwrap_or_default()) });
    }
    puts
}
