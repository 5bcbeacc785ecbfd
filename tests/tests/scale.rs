//! A batch of many runs that is killed while all wait for their model: none is lost track of.
//!
//! The engine that is killed runs in a process of its own: this test binary, started again with a directory in its
//! environment.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::Engine;
use engine::batch::{BatchRun, Defaults, JobsFile, Options, Standing};
use model::encode::Part;
use model::{Phase, RunState};
use serde_json::json;
use store::{JournalStore, Pairs, Store};
use tests::silent::{Silent, engine, until};

/// Jobs of the batch.
const JOBS: usize = 1_000;
/// Most time for them to be under way again. The bar is two seconds for ten times as many, optimised.
const ACCOUNTED_MAX: Duration = Duration::from_secs(60);
/// Names the directory of the engine that is to be killed.
const VICTIM: &str = "SPRAG_TEST_SCALE_VICTIM";
const BATCH: &str = "many";

fn options(dir: &Path) -> Options {
    Options {
        batch: BATCH.to_owned(),
        jobs: dir.join("jobs.jsonl"),
        results: dir.join("results.jsonl"),
        ..Options::default()
    }
}

fn open_batch(dir: &Path, engine: &Engine) -> BatchRun {
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: dir.to_owned(), model: None };
    let file = JobsFile::read(&dir.join("jobs.jsonl"), &defaults).unwrap();
    BatchRun::open(engine, file, options(dir)).unwrap()
}

/// The process that is killed; without its directory, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(dir) = std::env::var_os(VICTIM) else { return };
    let dir = Path::new(&dir);
    let calls = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("calls")).unwrap();
    let engine = engine(&dir.join("data"), Silent::new(&Arc::default(), Some(calls)));
    let mut batch = open_batch(dir, &engine);
    batch.start().await.unwrap();
    batch.follow(Duration::from_secs(1), |_| {}).await.unwrap();
}

/// Runs the batch in another process until so many calls were made in all, and kills it.
async fn killed_after(dir: &Path, calls: u64) -> Duration {
    let start = Instant::now();
    let mut victim = victim_of(dir);
    let made = || std::fs::metadata(dir.join("calls")).map_or(0, |calls| calls.len());
    until("setting the batch going", ACCOUNTED_MAX, || made() >= calls).await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(made(), calls, "a call was made twice in one life");
    start.elapsed()
}

fn victim_of(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--quiet"])
        .env(VICTIM, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Everything that the store in a killed engine's directory holds; opening and leaving it again changes nothing.
fn pairs(dir: &Path) -> Pairs {
    let read = || {
        let store = JournalStore::open(&dir.join("data"), store::Options::default()).unwrap();
        store.scan(b"", None, usize::MAX).unwrap()
    };
    let pairs = read();
    assert_eq!(read(), pairs);
    pairs
}

/// The cores of runs apart from what a new owner writes into them, and everything else as it is.
fn without_owner(pairs: Pairs) -> BTreeMap<Vec<u8>, Result<RunState, Vec<u8>>> {
    let masked = |(key, value): (Vec<u8>, Vec<u8>)| {
        // What the batch has used, since each lost call is charged, and which engines ended uncleanly.
        if matches!(key.first(), Some(b'u' | b'v')) {
            return (key, Err(Vec::new()));
        }
        let is_core = key.first() == Some(&b'r') && key.last() == Some(&Part::Core.code());
        let state = is_core.then(|| RunState::decode(|part| (part == Part::Core).then(|| value.clone())));
        let Some(Ok(Some(mut state))) = state else { return (key, Err(value)) };
        assert!(matches!(state.core.phase, Phase::Stream { .. }), "{}", state.core.phase);
        let core = &mut state.core;
        (core.seq, core.clock, core.owner) = Default::default();
        (core.spent, core.crashes) = Default::default();
        (key, Ok(state))
    };
    pairs.into_iter().map(masked).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_batch_is_accounted_for_and_a_second_restart_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job =
        |job| json!({ "custom_id": format!("job-{job:04}"), "prompt": "go", "model": "m", "tools": [] });
    let jobs: String = (0..JOBS).map(|number| format!("{}\n", job(number))).collect();
    std::fs::write(dir.join("jobs.jsonl"), jobs).unwrap();
    let calls = JOBS as u64;

    killed_after(dir, calls).await;
    let took = killed_after(dir, 2 * calls).await;
    println!("all in flight again after {took:?}");
    let first = without_owner(pairs(dir));
    killed_after(dir, 3 * calls).await;
    let second = without_owner(pairs(dir));
    assert_eq!(first.values().filter(|value| value.is_ok()).count(), JOBS);
    let changed = first.iter().filter(|(key, value)| second.get(*key) != Some(*value)).count();
    assert_eq!((changed, second.len()), (0, first.len()));

    let begun = Arc::default();
    let engine = engine(&dir.join("data"), Silent::new(&begun, None));
    let mut batch = open_batch(dir, &engine);
    batch.start().await.unwrap();
    until("setting the batch going", ACCOUNTED_MAX, || begun.load(Ordering::Acquire) == JOBS).await;
    assert_eq!(engine.live_runs().unwrap().len(), JOBS);
    engine.stop().await;
    let summary = batch.finish().unwrap();
    engine.close().await.unwrap();
    assert_eq!(summary.jobs.len(), JOBS);
    let stopped = summary.jobs.iter().filter(|(_, _, standing)| *standing == Standing::Stopped).count();
    assert_eq!(stopped, JOBS);
}
