//! Retention: what a purge of nine runs in ten gives back, and how long commits wait meanwhile.
//!
//! Owns the runs that are purged and the one that goes on. The store is used alone, as the other measurements of it do.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use store::{Epoch, JournalStore, Options, Purge, RunKey, Store};

use super::meter::Latencies;
use super::report::{hundredths, tenths};
use super::store::Shape;
use super::{Place, blocking};
use crate::error::Error;

/// Runs that the whole measurement has.
pub const PURGED_RUNS: usize = 10_000;
/// Commits of each.
const COMMITS: u64 = 20;
/// Runs that are written at once.
const WRITERS: usize = 64;
/// How long the run that goes on commits alone.
const ALONE: Duration = Duration::from_secs(3);
/// The longest that a commit may wait for a purge.
const DELAY_MS_MAX: f64 = 50.0;
/// The least part of their bytes that purged runs give back.
const GIVEN_BACK_MIN: f64 = 0.9;

/// How long commits took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// Commits.
    pub count: usize,
    /// Half of them took so many microseconds at most.
    pub p50_us: f64,
    /// 99 of 100 did.
    pub p99_us: f64,
    /// The longest, in milliseconds.
    pub most_ms: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RetentionReport {
    /// Runs that were purged.
    pub runs: u64,
    /// Bytes of the journal that they took.
    pub bytes: u64,
    /// What became free of them, the records of the purge itself counted against it.
    pub given_back: f64,
    /// How long the purge took.
    pub purge_ms: f64,
    /// Commits of another run before the purge.
    pub alone: Waits,
    /// The same while it went on.
    pub beside: Waits,
}

/// Measures with so many runs, of which nine in ten are purged, on the disk of `dir`, in a directory of its own there that
/// is removed again. `say` is told each step. Must be called inside a runtime.
pub async fn retention(dir: &Path, runs: usize, mut say: impl FnMut(&str)) -> Result<RetentionReport, Error> {
    let place = Place::make(dir)?;
    let store = Arc::new(JournalStore::open(&place.0.join("retention"), Options::default())?);
    let (epoch, shape) = (store.claim()?, Arc::new(Shape::new()));
    say(&format!("writing {runs} runs"));
    for writers in (0..runs).collect::<Vec<_>>().chunks(WRITERS) {
        let written = writers
            .iter()
            .map(|index| tokio::spawn(ended(Arc::clone(&store), Arc::clone(&shape), *index, epoch)));
        for written in written.collect::<Vec<_>>() {
            written.await.map_err(|error| Error::Setup(format!("a writer was lost: {error}")))??;
        }
    }
    let settled = Arc::clone(&store);
    blocking(move || Ok(settled.settle()?)).await?;
    let doomed: Vec<RunKey> = (0..runs).filter(|index| index % 10 != 0).map(super::store::run).collect();
    let bytes = store.footprint(&doomed.iter().copied().collect())?;
    say("committing alone");
    let other = super::store::run(runs);
    let end = Arc::new(AtomicBool::new(false));
    let timer = tokio::spawn({
        let end = Arc::clone(&end);
        async move {
            tokio::time::sleep(ALONE).await;
            end.store(true, Ordering::Relaxed);
        }
    });
    let (next, alone) = commits(&store, &shape, (other, 0, epoch), &end).await?;
    timer.await.map_err(|error| Error::Setup(format!("a timer was lost: {error}")))?;
    say("purging");
    end.store(false, Ordering::Relaxed);
    let (spent, started) = (store.stats().bytes, Instant::now());
    let purging = {
        let (store, end) = (Arc::clone(&store), Arc::clone(&end));
        let purges: Vec<Purge> =
            doomed.into_iter().map(|run| Purge { run, puts: Vec::new(), requires: Vec::new() }).collect();
        tokio::task::spawn_blocking(move || {
            let purged = store.purge(&purges);
            end.store(true, Ordering::Relaxed);
            purged
        })
    };
    let (last, beside) = commits(&store, &shape, (other, next, epoch), &end).await?;
    let purged = purging.await.map_err(|error| Error::Setup(format!("the purge was lost: {error}")))??;
    let purge_ms = tenths(started.elapsed().as_secs_f64() * 1000.0);
    // What was written meanwhile beside the run that goes on.
    let own = store.footprint(&[other].into())? * (last - next) / last.max(1);
    let spent = (store.stats().bytes - spent).saturating_sub(own);
    blocking(move || Ok(store.close()?)).await?;
    let given_back = hundredths(purged.bytes.saturating_sub(spent) as f64 / bytes.max(1) as f64);
    let [alone, beside] = [alone, beside].map(Waits::of);
    Ok(RetentionReport { runs: purged.runs, bytes, given_back, purge_ms, alone, beside })
}

/// Writes a run to its end.
async fn ended(store: Arc<JournalStore>, shape: Arc<Shape>, index: usize, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..COMMITS {
        let mut commit = shape.commit(super::store::run(index), seq, epoch);
        commit.kind.ends_stream = seq + 1 == COMMITS;
        store.commit(commit).await?;
    }
    Ok(())
}

/// Commits for a run, one after the other, until `end`; answers its next sequence number.
async fn commits(
    store: &JournalStore,
    shape: &Shape,
    (run, first, epoch): (RunKey, u64, Epoch),
    end: &AtomicBool,
) -> Result<(u64, Latencies), Error> {
    let (mut latencies, mut seq) = (Latencies::default(), first);
    while !end.load(Ordering::Relaxed) {
        let begun = Instant::now();
        store.commit(shape.commit(run, seq, epoch)).await?;
        latencies.note(begun.elapsed());
        seq += 1;
    }
    Ok((seq, latencies))
}

impl Waits {
    fn of(mut latencies: Latencies) -> Self {
        Self {
            count: latencies.count(),
            p50_us: tenths(latencies.percentile_us(50)),
            p99_us: tenths(latencies.percentile_us(99)),
            most_ms: tenths(latencies.percentile_us(100) / 1000.0),
        }
    }
}

impl RetentionReport {
    /// Nothing that was to hold does not.
    pub fn holds(&self) -> bool {
        self.gates().iter().all(|(_, holds)| *holds)
    }

    /// The object that scripts read.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    fn gates(&self) -> [(String, bool); 2] {
        let delay_ms = tenths((self.beside.most_ms - self.alone.most_ms).max(0.0));
        [
            (
                format!("part of their bytes given back: {} (at least {GIVEN_BACK_MIN})", self.given_back),
                self.given_back >= GIVEN_BACK_MIN,
            ),
            (
                format!(
                    "longest commit beside the purge, over the longest alone: {delay_ms} ms (at most {DELAY_MS_MAX})"
                ),
                delay_ms <= DELAY_MS_MAX,
            ),
        ]
    }
}

impl fmt::Display for RetentionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>9} {:>10} {:>10} {:>10}", "commits", "number", "p50 us", "p99 us", "most ms")?;
        for (name, Waits { count, p50_us, p99_us, most_ms }) in
            [("alone", self.alone), ("beside", self.beside)]
        {
            writeln!(f, "{name:<12} {count:>9} {p50_us:>10.1} {p99_us:>10.1} {most_ms:>10.1}")?;
        }
        let (runs, mib, seconds) = (self.runs, self.bytes >> 20, self.purge_ms / 1000.0);
        writeln!(f, "\npurged {runs} runs of {mib} MiB in {seconds:.1} s\n")?;
        self.gates().iter().try_for_each(|(words, holds)| {
            writeln!(f, "{:<11} {words}", if *holds { "holds" } else { "FAILS" })
        })
    }
}
