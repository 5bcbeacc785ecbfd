//! The layout of the committed state: which key holds what.
//!
//! Owns every key that the engine writes. All keys start with one letter; numbers in keys are big endian, so that key
//! order is number order.

use model::RunId;
use model::encode::Part;
use store::{RunKey, run_prefix};

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

/// A run that has not ended, in order of submission.
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

/// The run at the end of a `live` or `newest` key.
pub(crate) fn run_of(key: &[u8]) -> Option<RunId> {
    let tail = key.get(key.len().checked_sub(16)?..)?;
    Some(RunId(tail.try_into().ok()?))
}

/// The newest run of a session that was given its lane.
pub(crate) fn session(session: &str) -> Vec<u8> {
    hashed(b's', &[session])
}

/// The run that was submitted under an idempotency key.
pub(crate) fn submission(key: &str) -> Vec<u8> {
    hashed(b'k', &[key])
}

/// The inbox position that was given to an item under an idempotency key.
pub(crate) fn item(run: RunId, key: &str) -> Vec<u8> {
    hashed(b'i', &[&run.to_string(), key])
}

/// A letter and the hash of length-prefixed names: of fixed length whatever the names are.
fn hashed(letter: u8, names: &[&str]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    let mut key = vec![letter];
    key.extend_from_slice(hasher.finalize().as_bytes().get(..16).unwrap_or_default());
    key
}

/// The directory of one call, for a tool that keeps something of its own until the result is durable.
pub(crate) fn call_dir(dir: &std::path::Path, run: RunId, turn: u32, call: u16) -> std::path::PathBuf {
    calls_dir(dir, run).join(format!("{turn}.{call}"))
}

/// The directory of all calls of a run.
pub(crate) fn calls_dir(dir: &std::path::Path, run: RunId) -> std::path::PathBuf {
    dir.join("calls").join(run.to_string())
}
