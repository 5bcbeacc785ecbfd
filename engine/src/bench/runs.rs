//! Runs through the whole engine: a model without latency, a tool that answers at once.
//!
//! Owns the clock around them. It stops when every run has ended and sled has reached the last commit.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::Outcome;
use store::Stats;

use super::blocking;
use super::meter::{Used, Work};
use super::session::{self, Echo, MODEL, ROUNDS, Turns};
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::provider::Rehearsal;
use crate::runs::{Rest, lock};

/// What many runs did and used.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) runs: u64,
    /// One-tool turns.
    pub(super) turns: Work,
    pub(super) transitions: u64,
    pub(super) cpu: Duration,
    pub(super) barriers: u64,
    pub(super) journal_bytes: u64,
    pub(super) written_bytes: u64,
}

/// Keeps `width` runs going for so long, in an engine of their own.
pub(super) async fn load(dir: &Path, width: usize, time: Duration) -> Result<Load, Error> {
    let turns = Arc::new(Mutex::new(Turns::default()));
    let mut config = Config::default();
    let slots = u32::try_from(width).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    Arc::make_mut(&mut config.defaults).concurrency = slots;
    let rehearsal =
        Rehearsal::from_value(&session::script()).map_err(|error| Error::Setup(error.to_string()))?;
    let engine = Engine::builder(dir)
        .without_commands()
        .config(config)
        .tool(Echo::new(Arc::clone(&turns)))
        .provider(MODEL, rehearsal)
        .open()?;
    let before = stats(&engine);
    let used = Used::now();
    let end = Instant::now() + time;
    let working: Vec<_> =
        (0..width).map(|_| tokio::spawn(work(engine.clone(), Arc::clone(&turns), end))).collect();
    let mut runs = 0;
    for worker in working {
        let lost = |error| Error::Setup(format!("a worker was lost: {error}"));
        runs += worker.await.map_err(lost)??;
    }
    if let Some(journal) = engine.journal().cloned() {
        blocking(move || Ok(journal.settle()?)).await?;
    }
    let (elapsed, cpu, written_bytes) = (used.elapsed(), used.cpu(), used.written_bytes());
    let after = stats(&engine);
    engine.close().await?;
    let latencies = std::mem::take(&mut lock(&turns).latencies);
    Ok(Load {
        runs,
        turns: Work { count: runs * u64::from(ROUNDS), elapsed, latencies },
        transitions: after.frames - before.frames,
        cpu,
        barriers: after.barriers - before.barriers,
        journal_bytes: after.bytes - before.bytes,
        written_bytes,
    })
}

/// Submits a run, waits for its end, and so on until `end`; answers how many there were.
async fn work(engine: Engine, turns: Arc<Mutex<Turns>>, end: Instant) -> Result<u64, Error> {
    let mut runs = 0;
    while Instant::now() < end {
        let run = engine.submit(session::job()).await?;
        let rest = run.outcome().await?;
        if !matches!(rest, Rest::Done { outcome: Outcome::Completed, .. }) {
            return Err(Error::Setup(format!("a measured run did not complete: {rest:?}")));
        }
        runs += 1;
        lock(&turns).forget(run.id);
    }
    Ok(runs)
}

fn stats(engine: &Engine) -> Stats {
    let none = Stats { barriers: 0, bytes: 0, groups: 0, frames: 0 };
    engine.journal().map_or(none, |journal| journal.stats())
}
