//! Hour 48: one run, driven to many transitions, must cost at its end what it cost at its beginning.
//!
//! Owns the course of the run and what is measured at each power of ten. Its model is a rehearsal and its clock is
//! virtual, its disk is real. Between two points its store is left as a kill leaves it and opened again, with nothing
//! of its files in the page cache, so far as the system lets go of it. A bare disk is written and synced once a turn, so
//! that both see the same moods of the machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use model::input::{Hook, NextTurn, RecoveryClass};
use model::{Message, Millis, ToolResult};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use store::{JournalStore, Options};

use super::long_report::{LongPoint, LongReport};
use super::meter::{Latencies, rss_bytes_max};
use super::raw::RawDisk;
use super::timed::{Timed, Times, abandon};
use super::{Place, blocking};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::error::Error;
use crate::harness::{Harness, HookContext, Hooks, TurnView};
use crate::job::Job;
use crate::provider::Rehearsal;
use crate::runs::lock;
use crate::tool::{CallContext, Tool, ToolSpec};

/// Transitions that the whole measurement drives.
pub const TRANSITIONS: u64 = 1_000_000;
/// The first point.
const FIRST_POINT: u64 = 1_000;
/// Turns after which a summary takes the place of the context.
const TURNS_KEPT: u32 = 200;
/// Bytes that the bare disk gets with each sync: about what a transition takes.
const RAW_BYTES: usize = 1_024;
/// How far the virtual clock moves with each look at it: a million transitions are about two days.
const TICK_MS: i64 = 40;
/// Name of the model.
const MODEL: &str = "long";
/// Name of the tool.
const TOOL: &str = "note";

/// Drives one run to so many transitions on the disk of `dir`, in a directory of its own there that is removed again.
/// `say` is told each point as it is reached. Must be called inside a runtime.
pub async fn long(
    dir: &Path,
    transitions: u64,
    mut say: impl FnMut(&LongPoint),
) -> Result<LongReport, Error> {
    let place = Place::make(dir)?;
    let course = Course::new(&place.0)?;
    let mut driven = course.open()?;
    let run = driven.engine.submit(job()).await?.id;
    let mut points = Vec::new();
    for stop in stops(transitions) {
        driven.times.until(stop).await;
        driven.engine.stop().await;
        let mut point = course.point(&driven)?;
        driven.let_go().await?;
        let (cooled, reopened) = (course.clone(), course.clone());
        blocking(move || cooled.cool()).await?;
        let started = Instant::now();
        driven = blocking(move || reopened.open()).await?;
        let before = driven.times.moves();
        driven.engine.resume(Some(&[run]))?;
        // The first says who owns it now; with the second it goes on.
        driven.times.until_moves(before + 2).await;
        point.resume_ms = super::report::tenths(started.elapsed().as_secs_f64() * 1000.0);
        say(&point);
        points.push(point);
    }
    driven.engine.stop().await;
    driven.let_go().await?;
    Ok(LongReport::of(points))
}

/// The points: each power of ten, and the end.
fn stops(transitions: u64) -> Vec<u64> {
    let powers = std::iter::successors(Some(FIRST_POINT), |point| point.checked_mul(10));
    powers.take_while(|point| *point < transitions).chain([transitions.max(FIRST_POINT)]).collect()
}

fn job() -> Job {
    let job = Job::new("Go on until you are told to stop.").model(MODEL).tools([TOOL]);
    Job { timeout_s: Some(0), max_turns: Some(0), ..job }
}

/// What stays the same from one engine of the run to the next.
#[derive(Clone)]
struct Course {
    dir: PathBuf,
    raw: Arc<Mutex<RawDisk>>,
    raw_times: Arc<Mutex<Latencies>>,
    clock: Arc<AtomicI64>,
    unique_bytes: Arc<AtomicU64>,
}

/// An engine that drives the run.
struct Driven {
    engine: Engine,
    times: Arc<Times>,
    journal: Arc<JournalStore>,
}

impl Course {
    fn new(dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            raw: Arc::new(Mutex::new(RawDisk::open(&dir.join("raw"), RAW_BYTES)?)),
            dir: dir.join("long"),
            raw_times: Arc::default(),
            clock: Arc::new(AtomicI64::new(super::session::NOW.0)),
            unique_bytes: Arc::default(),
        })
    }

    fn open(&self) -> Result<Driven, Error> {
        let journal = Arc::new(JournalStore::open(&self.dir, Options::default())?);
        let times = Arc::new(Times::new(Arc::clone(&self.unique_bytes)));
        let rehearsal = Rehearsal::from_value(&script()).map_err(|error| Error::Setup(error.to_string()))?;
        let engine = Engine::builder(&self.dir)
            .without_commands()
            .store(Arc::new(Timed::new(Arc::clone(&journal), Arc::clone(&times))))
            .clock(Virtual(Arc::clone(&self.clock)))
            .tool(Note::new(self))
            .provider(MODEL, rehearsal)
            .harness(Harness { hooks: Some(Arc::new(Summary)), ..Harness::default() })
            .open()?;
        Ok(Driven { engine, times, journal })
    }

    /// Figures of the transitions since the point before.
    fn point(&self, driven: &Driven) -> Result<LongPoint, Error> {
        driven.journal.settle()?;
        let mut commits = driven.times.take();
        let mut raw = std::mem::take(&mut *lock(&self.raw_times));
        let state_bytes = disk_bytes(&self.dir.join("state"));
        Ok(LongPoint {
            transitions: driven.times.transitions(),
            commit_p50_us: commits.percentile_us(50),
            commit_p99_us: commits.percentile_us(99),
            raw_p50_us: raw.percentile_us(50),
            raw_p99_us: raw.percentile_us(99),
            rss_bytes: rss_bytes_max(),
            state_bytes,
            disk_bytes: state_bytes + disk_bytes(&self.dir.join("journal")),
            unique_bytes: self.unique_bytes.load(Ordering::Relaxed),
            resume_ms: 0.0,
        })
    }

    /// Asks the system to let go of what it keeps of the files in memory.
    fn cool(&self) -> Result<(), Error> {
        each_file(&self.dir, &mut |path, _| {
            if let Ok(file) = std::fs::File::open(path) {
                // What is not written back yet stays: a sync writes it.
                let _ = file.sync_all();
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
            }
        });
        Ok(())
    }
}

impl Driven {
    /// Leaves the store as a kill does.
    async fn let_go(self) -> Result<(), Error> {
        let Self { engine, times: _, journal } = self;
        drop(engine);
        abandon(journal).await
    }
}

/// Bytes of the files below a directory: segments have all their space from the start.
fn disk_bytes(dir: &Path) -> u64 {
    let mut bytes = 0;
    each_file(dir, &mut |_, metadata| bytes += metadata.len());
    bytes
}

fn each_file(dir: &Path, visit: &mut impl FnMut(&Path, &std::fs::Metadata)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(found) if found.is_dir() => each_file(&entry.path(), visit),
            Ok(found) if found.is_file() => visit(&entry.path(), &found),
            Ok(_) | Err(_) => {}
        }
    }
}

/// A clock that moves a little with each look at it.
struct Virtual(Arc<AtomicI64>);

impl Clock for Virtual {
    fn now(&self) -> Millis {
        Millis(self.0.fetch_add(TICK_MS, Ordering::Relaxed))
    }
}

/// Puts a summary in place of the context every so many turns.
struct Summary;

#[async_trait]
impl Hooks for Summary {
    fn wanted(&self) -> &[Hook] {
        &[Hook::PrepareNextTurn]
    }

    async fn prepare_next_turn(
        &self,
        context: HookContext<'_>,
        _turn: &TurnView<'_>,
    ) -> Result<NextTurn, String> {
        let is_due = (context.call.turn + 1).is_multiple_of(TURNS_KEPT);
        let summary = || Message::user("What was done so far is noted; go on.", super::session::NOW);
        Ok(NextTurn { context: is_due.then(|| vec![summary()]), ..NextTurn::default() })
    }
}

/// One tool round, repeated for ever. Each asks for something else, so that no loop detector has reason to speak.
fn script() -> serde_json::Value {
    let call = json!({ "tool": TOOL, "args": { "command": "note {{turn}}" } });
    json!({ "turns": [{ "thinking": "go on", "text": "Noted.", "calls": [call] }], "after": "repeat" })
}

/// Writes to the bare disk, and notes how long that took.
struct Note {
    spec: ToolSpec,
    raw: Arc<Mutex<RawDisk>>,
    times: Arc<Mutex<Latencies>>,
}

impl Note {
    fn new(course: &Course) -> Self {
        let parameters = json!({ "type": "object", "properties": { "command": { "type": "string" } } });
        let spec = ToolSpec::new(TOOL, "Notes something.", parameters).class(RecoveryClass::ReadOnly);
        Self { spec, raw: Arc::clone(&course.raw), times: Arc::clone(&course.raw_times) }
    }
}

#[async_trait]
impl Tool for Note {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        let raw = Arc::clone(&self.raw);
        let took = blocking(move || lock(&raw).append()).await.map_err(|error| error.to_string())?;
        lock(&self.times).note(took);
        Ok(ToolResult::text(format!("done: {}", call.args["command"])))
    }
}
