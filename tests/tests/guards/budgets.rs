//! Budgets of a run and of a batch: reserved before a call, settled after it, never passed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::batch::{self, BatchRun, Defaults, JobsFile, NewCaps, Options, Summary};
use engine::config::{Price, Usd};
use engine::{BatchCaps, CapReached, Engine, Job, JournalView, Replay, Rest, query};
use model::input::Extension;
use model::{Budget, Charge, Outcome, ParkReason, RunId, Scope, Shortage};
use proptest::prelude::*;
use serde_json::{Value, json};
use store::{MemoryStore, RunKey, Store, Stream};
use tests::life::Machine;
use tests::power::{Blow, Power};
use tests::scenario::Scenario;
use tests::world::World;

use crate::stage::{Stage, job, rehearsal};

const RUNS: usize = 8;
const BATCH: &str = "night";

fn completed() -> Rest {
    Rest::Done { outcome: Outcome::Completed, reason: None }
}

fn short(scope: Scope, budget: Budget, lacks: u64) -> Rest {
    Rest::Parked(ParkReason::Budget(Shortage { budget, scope, lacks }))
}

/// Two turns of 15 tokens, which cost 105 micro-dollars; each call reserves 110 tokens and some 1,520 micro-dollars.
fn priced() -> Stage {
    let usd = |text: &str| text.parse::<Usd>().unwrap();
    let price = Price { input: usd("3"), output: usd("15"), ..Price::default() };
    let usage = json!({ "input": 10, "output": 5 });
    let turns = json!([
        { "calls": [{ "tool": "none", "args": {} }], "usage": usage },
        { "text": "done", "usage": usage },
    ]);
    Stage::new(rehearsal(&turns).price(Some(price)).output_tokens_max(100))
}

#[tokio::test(start_paused = true)]
async fn each_budget_parks_names_its_command_and_goes_on_when_it_is_raised() {
    let usd = |micros| Some(Usd::from_micros(micros));
    let cases = [
        (Job { max_calls: Some(1), ..job() }, Budget::Calls, 1, "--calls 1"),
        (Job { max_turns: Some(1), ..job() }, Budget::Turns, 1, "--turns 1"),
        (Job { max_tokens: Some(120), ..job() }, Budget::Tokens, 5, "--tokens 120"),
        (Job { max_usd: usd(1_600), ..job() }, Budget::Usd, 26, "--usd 0.0016"),
    ];
    for (job, budget, lacks, flag) in cases {
        let stage = priced();
        let engine = stage.open();
        let run = engine.submit(job).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), short(Scope::Run, budget, lacks));
        let why = query::why(&*stage.store, run.id, true).unwrap();
        assert_eq!(why.command, Some(format!("sprag extend {} {flag}", run.id)));
        let nothing = run.extend(Extension::default(), None).await.unwrap_err().to_string();
        assert!(nothing.starts_with("nothing is added"), "{nothing}");
        let time = Extension { time_ms: 1, ..Extension::default() };
        run.extend(time, None).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), short(Scope::Run, budget, lacks));
        let by = match budget {
            Budget::Turns => Extension { turns: 1, ..Extension::default() },
            Budget::Calls => Extension { calls: 1, ..Extension::default() },
            Budget::Tokens => Extension { tokens: lacks, ..Extension::default() },
            Budget::Usd => Extension { usd_micros: lacks, ..Extension::default() },
        };
        run.extend(by, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(run.outcome().await.unwrap(), completed());
    }
}

#[tokio::test(start_paused = true)]
async fn what_raises_or_releases_nothing_is_refused() {
    let stage = priced();
    let engine = stage.open();
    let run = engine.submit(Job { max_calls: Some(1), timeout_s: Some(0), ..job() }).await.unwrap();
    run.outcome().await.unwrap();
    let tokens = Extension { calls: 1, tokens: 9, ..Extension::default() };
    let id = run.id;
    let refused = [
        run.extend(tokens, None).await.unwrap_err().to_string(),
        run.extend(Extension { time_ms: 1, ..Extension::default() }, None).await.unwrap_err().to_string(),
        run.release(None).await.unwrap_err().to_string(),
    ];
    let expected = [
        format!("run {id} has no limit on tokens, so there is nothing to raise; see `sprag show {id}`"),
        format!("run {id} has no limit on time, so there is nothing to raise; see `sprag show {id}`"),
        format!(
            "run {id} is parked (budget: calls), and a release does not change that; see `sprag why {id}`"
        ),
    ];
    assert_eq!(refused, expected);
    let calls = Extension { calls: 1, ..Extension::default() };
    run.extend(calls, Some("k")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(run.outcome().await.unwrap(), completed());
    let other = engine.submit(job()).await.unwrap();
    let running = other.release(None).await.unwrap_err().to_string();
    let text = format!("run {} is not parked, so there is nothing to release; see `sprag why {0}`", other.id);
    assert_eq!(running, text);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_lost_stays_charged_as_reserved() {
    let turn = json!({ "text": "done", "delay_ms": 60_000, "usage": { "input": 10, "output": 5 } });
    let stage = Stage::new(rehearsal(&json!([turn])).output_tokens_max(100));
    let engine = stage.open();
    let run = engine.submit(in_batch(0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let reserved = Charge { calls: 1, tokens: 110, usd_micros: 0 };
    let used = || batch::charged(&*stage.store, BATCH).unwrap();
    // The engine is gone without a word.
    assert_eq!((Charge::of(&stage.state(run.id).core.spent), used()), (reserved, reserved));
    let engine_of_later = stage.open();
    engine_of_later.resume(None).unwrap();
    assert_eq!(engine_of_later.handle(run.id).outcome().await.unwrap(), completed());
    let both = Charge { calls: 2, tokens: 110 + 15, usd_micros: 0 };
    assert_eq!((Charge::of(&stage.state(run.id).core.spent), used()), (both, both));
    drop(engine);
}

fn in_batch(n: usize) -> Job {
    Job { batch: Some(BATCH.to_owned()), custom_id: Some(format!("job-{n}")), ..job() }
}

/// Turns of 15 tokens each, some slower than others; a call reserves some more than 100.
fn racing_turns() -> Value {
    let turn = |n: u64| {
        json!({ "calls": [{ "tool": "none", "args": {} }], "delay_ms": 3 + n * 7,
                                "usage": { "input": 10, "output": 5 } })
    };
    json!([turn(0), turn(1), { "text": "done", "usage": { "input": 10, "output": 5 } }])
}

/// The counters are the sum over the runs, and were never past the cap.
fn check(store: &dyn Store, runs: &[RunId], cap: u64) -> Result<Charge, String> {
    let mut sum = Charge::default();
    for run in runs {
        // A run that was not accepted has used nothing.
        let Ok(Replay { state: Some(state), .. }) = engine::replay(store, *run, None) else { continue };
        let Charge { calls, tokens, usd_micros } = Charge::of(&state.core.spent);
        sum.calls += calls;
        sum.tokens += tokens;
        sum.usd_micros += usd_micros;
        let records = store.read_journal(Stream::Run(RunKey(run.0)), 0, 10_000).map_err(|e| e.to_string())?;
        for put in records.iter().flat_map(|record| &record.puts).filter(|put| put.key[0] == b'u') {
            let counter = u64::from_le_bytes(put.value.as_deref().unwrap().try_into().unwrap());
            if counter > cap {
                return Err(format!("a counter stood at {counter}, the cap is {cap}"));
            }
        }
    }
    let counted = batch::charged(store, BATCH).map_err(|error| error.to_string())?;
    if counted == sum { Ok(sum) } else { Err(format!("{counted:?} is counted, the runs have {sum:?}")) }
}

fn tokens(cap: u64) -> BatchCaps {
    BatchCaps { tokens: cap, ..BatchCaps::default() }
}

async fn rests(engine: &Engine, runs: &[RunId]) -> Vec<Rest> {
    let mut rests = Vec::new();
    for run in runs {
        rests.push(engine.handle(*run).outcome().await.unwrap());
    }
    rests
}

async fn race(cap: u64) -> (Arc<MemoryStore>, Engine, Vec<RunId>, Vec<Rest>) {
    let model = rehearsal(&racing_turns()).output_tokens_max(100);
    let store = Arc::new(MemoryStore::new());
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    let engine = Engine::memory().store(shared).provider("m", model).open().unwrap();
    engine.cap_batch(BATCH, tokens(cap), Path::new("")).await.unwrap();
    let mut runs = Vec::new();
    for run in engine.submit_all((0..RUNS).map(in_batch)).await {
        runs.push(run.unwrap().id);
    }
    let rests = rests(&engine, &runs).await;
    (store, engine, runs, rests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_waits_for_what_the_others_give_back_before_it_is_parked() {
    // All of it and one reservation: together the eight reserve more than twice as much.
    let cap = RUNS as u64 * 3 * 15 + 150;
    let (store, _engine, runs, rests) = race(cap).await;
    assert_eq!(rests, vec![completed(); RUNS]);
    let all = Charge { calls: RUNS as u64 * 3, tokens: RUNS as u64 * 45, usd_micros: 0 };
    assert_eq!(check(&*store, &runs, cap), Ok(all));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_racing_runs_never_pass_the_cap_and_go_on_when_it_is_raised() {
    let cap = 290;
    let (store, engine, runs, rests_under_cap) = race(cap).await;
    let is_parked =
        |rest: &&Rest| matches!(rest, Rest::Parked(ParkReason::Budget(short)) if short.scope == Scope::Batch);
    let parked = rests_under_cap.iter().filter(is_parked).count();
    assert!(parked > 0 && rests_under_cap.iter().all(|rest| is_parked(&rest) || *rest == completed()));
    let charge = check(&*store, &runs, cap).unwrap();
    assert!(charge.tokens > cap - 150 && charge.tokens <= cap, "{charge:?}");
    // A lower cap holds for new calls, a higher one lets the parked runs go on.
    engine.cap_batch(BATCH, tokens(10), Path::new("")).await.unwrap();
    engine.resume(None).unwrap();
    engine.rested().await;
    assert_eq!(check(&*store, &runs, cap), Ok(charge));
    engine.cap_batch(BATCH, tokens(2_000), Path::new("")).await.unwrap();
    engine.resume(None).unwrap();
    engine.rested().await;
    assert_eq!(rests(&engine, &runs).await, vec![completed(); RUNS]);
    assert_eq!(check(&*store, &runs, 2_000).unwrap().tokens, RUNS as u64 * 45);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_room_can_be_cancelled_timed_out_and_stopped() {
    let turn = json!({ "text": "done", "delay_ms": 60_000, "usage": { "input": 10, "output": 5 } });
    let stage = Stage::new(rehearsal(&json!([turn])).output_tokens_max(100));
    let engine = stage.open();
    engine.cap_batch(BATCH, tokens(150), Path::new("")).await.unwrap();
    let jobs = [in_batch(0), in_batch(1), Job { timeout_s: Some(30), ..in_batch(2) }, in_batch(3)];
    let mut runs = Vec::new();
    for job in jobs {
        runs.push(engine.submit(job).await.unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    runs[1].cancel("enough", None).await.unwrap();
    assert!(matches!(runs[1].outcome().await.unwrap(), Rest::Done { outcome: Outcome::Cancelled, .. }));
    assert_eq!(stage.elapsed_ms(), 40);
    assert!(matches!(runs[2].outcome().await.unwrap(), Rest::Done { outcome: Outcome::TimedOut, .. }));
    assert_eq!(stage.elapsed_ms(), 30_020);
    engine.stop().await;
    assert_eq!(
        (runs[0].outcome().await.unwrap(), runs[3].outcome().await.unwrap()),
        (Rest::Stopped, Rest::Stopped)
    );
    // The stop has lost the call in flight: what it reserved is gone for good.
    let engine = stage.open();
    engine.resume(None).unwrap();
    engine.rested().await;
    let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
    assert_eq!(check(&*stage.store, &ids, 150), Ok(Charge { calls: 1, tokens: 110, usd_micros: 0 }));
    assert_eq!(engine.handle(ids[3]).outcome().await.unwrap(), short(Scope::Batch, Budget::Tokens, 70));
}

/// A life of the process: the batch is capped, submitted and resumed until every run rests.
async fn live(machine: &Machine, world: &Arc<World>, dir: &Path, cap: u64) -> Result<(), String> {
    let mut turns = racing_turns();
    let mut scenario = Scenario::new("race", json!([]));
    scenario.script = json!({ "turns": turns.take() });
    let opened = machine.open(&scenario, world, dir)?;
    let engine = opened.engine.clone();
    engine.cap_batch(BATCH, tokens(cap), Path::new("")).await.map_err(|error| error.to_string())?;
    for run in engine.submit_all((0..RUNS).map(in_batch)).await {
        run.map_err(|error| error.to_string())?;
    }
    engine.resume(None).map_err(|error| error.to_string())?;
    engine.rested().await;
    opened.close(world).await
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_death_passes_the_cap_or_loses_count(
        cap in prop::sample::select(vec![1_100_u64, 4_000, 9_000, 40_000]),
        cuts in prop::collection::vec((0..400_usize, prop::sample::select(vec![Blow::Before, Blow::After, Blow::Torn])), 1..5),
    ) {
        let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
        let runs: Vec<RunId> = (0..RUNS).map(|n| engine::batch::run_of(BATCH, &format!("job-{n}"))).collect();
        for (at, blow) in cuts {
            let machine = Machine::new(Power::failing(at, blow));
            machine.live(&world, async || live(&machine, &world, dir.path(), cap).await);
            if let Ok(view) = JournalView::open(dir.path()) {
                check(&view, &runs, cap).map_err(TestCaseError::fail)?;
            }
        }
        let machine = Machine::new(Power::steady());
        let worked = machine.live(&world, async || live(&machine, &world, dir.path(), cap).await);
        prop_assert_eq!(worked, tests::life::Worked::Finished);
        let view = JournalView::open(dir.path()).unwrap();
        check(&view, &runs, cap).map_err(TestCaseError::fail)?;
        for run in runs {
            let state = engine::replay(&view, run, None).unwrap().state.unwrap();
            prop_assert_eq!(state.core.spent.reserved, model::message::Usage::default());
        }
    }
}

fn options(dir: &Path, caps: NewCaps) -> Options {
    Options {
        batch: BATCH.to_owned(),
        jobs: dir.join("jobs.jsonl"),
        results: dir.join("results.jsonl"),
        caps,
        ..Options::default()
    }
}

async fn run_batch(engine: &Engine, dir: &Path, caps: NewCaps) -> Summary {
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: PathBuf::from(dir), model: None };
    let options = options(dir, caps);
    let file = JobsFile::read(&options.jobs, &defaults).unwrap();
    let mut batch = BatchRun::open(engine, file, options).unwrap();
    batch.start().await.unwrap();
    batch.follow(Duration::from_secs(1), |_| {}).await.unwrap();
    batch.finish().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_same_batch_with_a_higher_cap_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let line =
        |n: usize| format!("{}\n", json!({ "custom_id": format!("j{n}"), "prompt": "go", "model": "m" }));
    std::fs::write(dir.join("jobs.jsonl"), (0..4).map(line).collect::<String>()).unwrap();
    let stage = Stage::rehearsing(&json!([{ "text": "done" }]));
    let calls = |calls| NewCaps { calls: Some(calls), ..NewCaps::default() };

    let summary = run_batch(&stage.open(), &dir, calls(3)).await;
    let reached = CapReached { budget: Budget::Calls, used: 3, cap: 3, enough: 6 };
    assert_eq!((summary.progress.done, summary.progress.parked), (3, 1));
    assert_eq!(summary.cap_reached, Some(reached));
    let parked = summary.jobs.iter().find(|(.., standing)| standing.shortage_of_batch().is_some()).unwrap().1;
    let why = query::why(&*stage.store, parked, false).unwrap();
    let sentence = "Its batch night has used 3 of 3 model calls, and the next call would pass the cap.";
    let command = format!("sprag batch run {}/jobs.jsonl --batch night --max-calls 6", dir.display());
    assert_eq!((why.sentence.as_str(), why.command), (sentence, Some(command)));

    // Without a word about it the cap stays; a higher one lets the job go on.
    let again = run_batch(&stage.open(), &dir, NewCaps::default()).await;
    assert_eq!((again.progress.done, again.cap_reached), (3, Some(reached)));
    let raised = run_batch(&stage.open(), &dir, calls(6)).await;
    assert_eq!((raised.progress.done, raised.cap_reached), (4, None));
    let results = std::fs::read_to_string(dir.join("results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 4);
}
