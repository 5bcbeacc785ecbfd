//! The layout of the committed state: which key holds what.
//!
//! Owns every key that the engine writes. All keys start with one letter; numbers in keys are big endian, so that key
//! order is number order.

use crate::config::SnapshotHash;
use model::encode::Part;
use model::{Budget, RunId};
use store::{RunKey, Stream, run_prefix};

/// The run as the store names it.
pub(crate) fn run_key(run: RunId) -> RunKey {
    RunKey(run.0)
}

/// A part of a run's state.
pub(crate) fn part(run: RunId, part: Part) -> Vec<u8> {
    let mut key = run_prefix(run_key(run)).to_vec();
    key.push(part.code());
    key
}

/// What `ls` shows of a run beside its state, written once. Under the run's own prefix.
pub(crate) fn meta(run: RunId) -> Vec<u8> {
    let mut key = run_prefix(run_key(run)).to_vec();
    key.push(b'm');
    key
}

/// Prefix of the runs that have not ended.
pub(crate) const LIVE: &[u8] = b"l";

/// A run that has not ended, in order of submission. Its value is the lane of its session.
pub(crate) fn live(at_ms: i64, run: RunId) -> Vec<u8> {
    let mut key = LIVE.to_vec();
    key.extend_from_slice(&at_ms.to_be_bytes());
    key.extend_from_slice(&run.0);
    key
}

/// Prefix of all runs, newest first.
pub(crate) const NEWEST: &[u8] = b"t";

/// A run in the list of all, newest first.
pub(crate) fn newest(at_ms: i64, run: RunId) -> Vec<u8> {
    let mut key = NEWEST.to_vec();
    key.extend_from_slice(&(!at_ms).to_be_bytes());
    key.extend_from_slice(&run.0);
    key
}

/// The run at the end of a `live`, `newest` or `blob` key.
pub(crate) fn run_of(key: &[u8]) -> Option<RunId> {
    let tail = key.get(key.len().checked_sub(16)?..)?;
    Some(RunId(tail.try_into().ok()?))
}

/// The lane of a session: fixed in length, and different for different sessions.
pub(crate) type Lane = [u8; 16];

/// The lane of a session.
pub(crate) fn lane(session: &str) -> Lane {
    hash(&[session])
}

/// The newest run of a session that was given its lane.
pub(crate) fn session(session: &str) -> Vec<u8> {
    hashed(b's', &[session])
}

/// Prefix of the newest runs of sessions.
pub(crate) const SESSIONS: &[u8] = b"s";

/// The newest run of the session that has this lane.
pub(crate) fn session_of(lane: Lane) -> Vec<u8> {
    [SESSIONS, &lane].concat()
}

/// What stays known of a run that was purged.
pub(crate) fn purged(run: RunId) -> Vec<u8> {
    [b"g".as_slice(), &run.0].concat()
}

/// Prefix of the files in `DIR/blobs` that runs hold.
pub(crate) const BLOBS: &[u8] = b"f";

/// A file in `DIR/blobs`, by its name, that a run holds.
pub(crate) fn blob(name: &str, run: RunId) -> Vec<u8> {
    [BLOBS, name.as_bytes(), &run.0].concat()
}

/// Prefix of the profiles whose health is not that of one without failures.
pub(crate) const PROFILES: &[u8] = b"p";

/// The health of a profile.
pub(crate) fn profile(name: &str) -> Vec<u8> {
    hashed(b'p', &[name])
}

/// How many runs of a batch have ended. The store adds one with each end, so what the record of an end puts here is the
/// run's place among the ends of its batch, from 1.
pub(crate) fn ends(batch: &str) -> Vec<u8> {
    hashed(b'e', &[batch])
}

/// The store's stream of how engines live and end.
pub(crate) const ENGINES: Stream = Stream::Own(1);

/// The store's stream of what batches are given beside their jobs.
pub(crate) const BATCHES: Stream = Stream::Own(2);

/// The store's stream of the configurations that runs keep.
pub(crate) const SNAPSHOTS: Stream = Stream::Own(3);

/// The place of a snapshot in its stream, a big-endian number. The snapshot itself may be larger than a value.
pub(crate) fn snapshot(hash: SnapshotHash) -> Vec<u8> {
    [b"c".as_slice(), hash.as_bytes()].concat()
}

/// What a batch was given beside its jobs.
pub(crate) fn batch(batch: &str) -> Vec<u8> {
    hashed(b'b', &[batch])
}

/// What the runs of a batch have used of a budget, reservations included. The store adds what each commit adds.
pub(crate) fn used(batch: &str, budget: Budget) -> Vec<u8> {
    hashed(b'u', &[batch, budget.name()])
}

/// The id of a batch's job, which follows from its names.
pub fn batch_run(batch: &str, custom_id: &str) -> RunId {
    RunId(hash(&[batch, custom_id]))
}

/// The run that was submitted under an idempotency key.
pub(crate) fn submission(key: &str) -> Vec<u8> {
    hashed(b'k', &[key])
}

/// The inbox position that was given to an item under an idempotency key.
pub(crate) fn item(run: RunId, key: &str) -> Vec<u8> {
    hashed(b'i', &[&run.to_string(), key])
}

/// How the engines of this store have ended.
pub(crate) const LIVES: &[u8] = b"v";

/// A letter and the hash of length-prefixed names: of fixed length whatever the names are.
fn hashed(letter: u8, names: &[&str]) -> Vec<u8> {
    let mut key = vec![letter];
    key.extend_from_slice(&hash(names));
    key
}

/// The first 16 bytes of blake3 over length-prefixed names.
fn hash(names: &[&str]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    let mut first = [0; 16];
    hasher.finalize_xof().fill(&mut first);
    first
}

/// The workspace of a batch's job that names none: `DIR/work/H`, H being the digits of the run's id.
pub(crate) fn own_workspace(dir: &std::path::Path, run: RunId) -> std::path::PathBuf {
    dir.join("work").join(run.to_string())
}

/// The directory of one call, for a tool that keeps something of its own until the result is durable.
pub(crate) fn call_dir(dir: &std::path::Path, run: RunId, turn: u32, call: u16) -> std::path::PathBuf {
    calls_dir(dir, run).join(format!("{turn}.{call}"))
}

/// The directory of all calls of a run.
pub(crate) fn calls_dir(dir: &std::path::Path, run: RunId) -> std::path::PathBuf {
    dir.join("calls").join(run.to_string())
}
