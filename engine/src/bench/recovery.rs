//! Recovery at scale: many runs in flight when an engine dies, and how soon the next one has accounted for all.
//!
//! Owns the two deaths: a kill, after which sled is used as it is found, and a power cut, after which it is rebuilt from
//! the journal. A run counts as accounted for once it stands in the report of the resume; as taken over once its next
//! owner is committed.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use model::input::Failure;
use model::message::Usage;
use serde::Serialize;
use serde_json::json;
use store::{JournalStore, Options};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::meter::rss_bytes_max;
use super::report::tenths;
use super::timed::{Timed, Times, abandon};
use super::{Place, blocking, failed};
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::job::Job;
use crate::provider::{Intent, ModelProvider, Request, StreamEvent};
use crate::query::{Filter, RunRow, Status, list};

/// Runs in flight that the whole measurement has.
pub const RUNS: usize = 10_000;
/// Longest time until all are accounted for after a kill.
const KILL_MS_MAX: f64 = 2_000.0;
/// The same after a power cut.
const CUT_MS_MAX: f64 = 5_000.0;
/// Longest time for rebuilding sled.
const REBUILD_MS_MAX: f64 = 3_000.0;
/// Name of the model.
const MODEL: &str = "silent";

/// How soon an engine was back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovered {
    /// Opening the store; after a power cut this is the rebuild.
    pub store_ms: f64,
    /// Until the report of the resume named every run.
    pub accounted_ms: f64,
    /// Until every run's new owner was durable.
    pub taken_over_ms: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecoveryReport {
    /// Runs in flight.
    pub runs: usize,
    /// After a kill.
    pub after_kill: Recovered,
    /// After a power cut.
    pub after_power_cut: Recovered,
    /// A further open found the same runs in the same states.
    pub is_stable: bool,
    /// The most memory that was resident at once.
    pub rss_bytes: u64,
}

/// Measures with so many runs on the disk of `dir`, in a directory of its own there that is removed again. `say` is told
/// each step. Must be called inside a runtime; the engines get runtimes of their own, which die with them.
pub async fn recovery(dir: &Path, runs: usize, mut say: impl FnMut(&str)) -> Result<RecoveryReport, Error> {
    let place = Place::make(dir)?;
    let world = World { dir: place.0.join("recovery"), runs };
    say(&format!("starting {runs} runs"));
    let life = world.open().await?;
    life.submit(runs).await?;
    life.die().await?;
    say("killed; recovering");
    let after_kill = world.recover().await?;
    world.crash().await?;
    let state = world.dir.join("state");
    std::fs::rename(&state, world.dir.join("state.lost")).map_err(|error| failed("move", &state, &error))?;
    say("without the state, as after a power cut; recovering");
    let after_power_cut = world.recover().await?;
    say("opening twice more");
    let (first, second) = (world.look().await?, world.look().await?);
    let is_running = |row: &RunRow| row.status == Status::Running;
    let is_stable = first.len() == runs && first.iter().all(is_running) && first == second;
    Ok(RecoveryReport { runs, after_kill, after_power_cut, is_stable, rss_bytes: rss_bytes_max() })
}

impl RecoveryReport {
    /// Nothing that was to hold does not.
    pub fn holds(&self) -> bool {
        self.gates().iter().all(|(_, holds)| *holds)
    }

    /// The object that scripts read.
    pub fn to_json(&self) -> serde_json::Value {
        json!(self)
    }

    fn gates(&self) -> [(String, bool); 4] {
        let (kill, cut) = (&self.after_kill, &self.after_power_cut);
        let below = |what: &str, ms: f64, max: f64| (format!("{what}: {ms} ms (less than {max})"), ms < max);
        [
            below("all accounted for after a kill", kill.accounted_ms, KILL_MS_MAX),
            below("all accounted for after a power cut", cut.accounted_ms, CUT_MS_MAX),
            below("sled rebuilt", cut.store_ms, REBUILD_MS_MAX),
            ("a further restart changes nothing".to_owned(), self.is_stable),
        ]
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {:>12} {:>14} {:>16}", "", "store ms", "accounted ms", "taken over ms")?;
        for (name, recovered) in
            [("after a kill", self.after_kill), ("after a power cut", self.after_power_cut)]
        {
            let Recovered { store_ms, accounted_ms, taken_over_ms } = recovered;
            writeln!(f, "{name:<18} {store_ms:>12.1} {accounted_ms:>14.1} {taken_over_ms:>16.1}")?;
        }
        writeln!(f, "\nruns in flight {}, most resident memory {} MiB\n", self.runs, self.rss_bytes >> 20)?;
        self.gates().iter().try_for_each(|(words, holds)| {
            writeln!(f, "{:<11} {words}", if *holds { "holds" } else { "FAILS" })
        })
    }
}

/// The directory, from one engine to the next.
struct World {
    dir: PathBuf,
    runs: usize,
}

/// One engine, and the runtime that it dies with.
struct Life {
    runtime: Runtime,
    engine: Engine,
    times: Arc<Times>,
    journal: Arc<JournalStore>,
    /// Model calls that are under way.
    calls: watch::Receiver<usize>,
}

impl World {
    /// Opens the store, and an engine on it.
    async fn open(&self) -> Result<Life, Error> {
        let dir = self.dir.clone();
        let journal = blocking(move || Ok(Arc::new(JournalStore::open(&dir, Options::default())?))).await?;
        self.open_on(journal)
    }

    fn open_on(&self, journal: Arc<JournalStore>) -> Result<Life, Error> {
        let no_runtime = |error| Error::Setup(format!("no runtime for an engine: {error}"));
        let runtime = Builder::new_multi_thread().enable_all().build().map_err(no_runtime)?;
        let times = Arc::new(Times::new(Arc::default()));
        let mut config = Config::default();
        let slots = u32::try_from(self.runs).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        Arc::make_mut(&mut config.defaults).concurrency = slots;
        let (sender, calls) = watch::channel(0);
        let engine = Engine::builder(&self.dir)
            .without_commands()
            .config(config)
            .store(Arc::new(Timed::new(Arc::clone(&journal), Arc::clone(&times))))
            .provider(MODEL, Silent(sender))
            .open();
        match engine {
            Ok(engine) => Ok(Life { runtime, engine, times, journal, calls }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Opens what a death has left, resumes it, and stops it.
    async fn recover(&self) -> Result<Recovered, Error> {
        let ms = |started: Instant| tenths(started.elapsed().as_secs_f64() * 1000.0);
        let (started, dir) = (Instant::now(), self.dir.clone());
        let journal = blocking(move || Ok(Arc::new(JournalStore::open(&dir, Options::default())?))).await?;
        let store_ms = ms(started);
        let life = self.open_on(journal)?;
        let engine = life.engine.clone();
        let resumed = life.runtime.spawn(async move {
            let resumed = engine.resume(None)?.len();
            Ok::<_, Error>((resumed, engine.report().len()))
        });
        let (resumed, reported) = joined(resumed.await)??;
        let accounted_ms = ms(started);
        if resumed != self.runs || reported < self.runs {
            return Err(Error::Setup(format!("{resumed} of {} runs were resumed", self.runs)));
        }
        life.times.until_moves(self.runs as u64).await;
        let taken_over_ms = ms(started);
        life.until_called(self.runs).await;
        life.stop().await?;
        Ok(Recovered { store_ms, accounted_ms, taken_over_ms })
    }

    /// Lets the runs go on, and lets the engine die with their calls under way.
    async fn crash(&self) -> Result<(), Error> {
        let life = self.open().await?;
        let engine = life.engine.clone();
        let resumed = life.runtime.spawn(async move { engine.resume(None).map(drop) });
        joined(resumed.await)??;
        life.until_called(self.runs).await;
        life.die().await
    }

    /// Opens what a death has left and looks at it.
    async fn look(&self) -> Result<Vec<RunRow>, Error> {
        let life = self.open().await?;
        let store = Arc::clone(life.engine.store());
        let rows = blocking(move || list(&*store, &Filter { limit: usize::MAX, ..Filter::default() })).await;
        life.die().await?;
        rows
    }
}

impl Life {
    /// Submits so many runs, and waits until the model of each is called.
    async fn submit(&self, runs: usize) -> Result<(), Error> {
        let engine = self.engine.clone();
        let submitted = self.runtime.spawn(async move {
            let job = |number| Job::new(format!("job {number}")).model(MODEL).tools::<String>([]);
            engine.submit_all((0..runs).map(job)).await.into_iter().try_for_each(|run| run.map(drop))
        });
        joined::<Result<(), Error>>(submitted.await)??;
        self.until_called(runs).await;
        Ok(())
    }

    async fn until_called(&self, runs: usize) {
        // The sender is in the engine, which is here.
        let _ = self.calls.clone().wait_for(|calls| *calls >= runs).await;
    }

    /// Ends as asked to: a second death in a row would have the next engine resume its suspects one at a time.
    async fn stop(self) -> Result<(), Error> {
        let engine = self.engine.clone();
        joined(self.runtime.spawn(async move { engine.stop().await }).await)?;
        self.die().await
    }

    /// Ends as a process does that is killed: no task of it goes on, nothing is closed.
    async fn die(self) -> Result<(), Error> {
        let Self { runtime, engine, times: _, journal, calls: _ } = self;
        drop(engine);
        runtime.shutdown_background();
        abandon(journal).await
    }
}

fn joined<T>(ended: Result<T, tokio::task::JoinError>) -> Result<T, Error> {
    ended.map_err(|error| Error::Setup(format!("a measurement was lost: {error}")))
}

/// A model that is called and never answers.
struct Silent(watch::Sender<usize>);

impl ModelProvider for Silent {
    fn prepare(&self, _request: &Request) -> Result<Intent, Failure> {
        Ok(Intent { hash: [0; 32], converter_version: 0, reserve: Usage::default() })
    }

    fn stream(&self, _request: Request, _abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        self.0.send_modify(|calls| *calls += 1);
        futures_util::stream::pending().boxed()
    }
}
