//! One job in a batch, with virtual time: what became of its model calls, as text.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use engine::batch::{BatchRun, Defaults, JobsFile, Options, ResultLine};
use engine::config::{Api, Config, Model, Profile};
use engine::harness::{Context, Gate, HookContext, Hooks, TurnView};
use engine::provider::{Prepared, Rehearsal};
use engine::query::{self, AttemptRow, JournalRow};
use engine::{Engine, Harness, TimerClock};
use model::input::Hook;
use model::{Message, Millis, RunId};
use serde_json::json;

use super::rows::{Row, Setup};

/// What a row's batch came to.
pub(crate) struct Story {
    /// Names of the branches that were taken, in order.
    pub(crate) branches: Vec<&'static str>,
    /// A line each failed call, and how the run ended.
    pub(crate) text: String,
}

/// Runs the batch of one job to its end.
pub(crate) fn drive(row: &Row, script: &Path) -> Story {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(story(&row.setup, script))
}

async fn story(setup: &Setup, script: &Path) -> Story {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("calls");
    let spare = Rehearsal::from_value(&json!({ "turns": [], "after": "stop" })).unwrap();
    let engine = Engine::memory()
        .config(config(setup))
        .clock(TimerClock::starting_at(Millis(1_767_225_600_000)))
        .provider("m", Rehearsal::open(script, Some(log.clone())).unwrap())
        .provider("spare", spare)
        .harness(harness(setup))
        .open()
        .unwrap();
    let jobs = dir.path().join("jobs.jsonl");
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("large.txt"), "0123456789 is one line\n".repeat(1_800)).unwrap();
    let line = json!({
        "custom_id": "one", "prompt": "please", "model": "m", "workspace": work, "tools": ["ls", "read", "write"],
    });
    std::fs::write(&jobs, format!("{line}\n")).unwrap();
    let results = dir.path().join("results.jsonl");
    let options = Options { batch: "b".to_owned(), jobs, results: results.clone(), ..Options::default() };
    let defaults = Defaults { batch: "b".to_owned(), ..Defaults::default() };
    let file = JobsFile::read(&options.jobs, &defaults).unwrap();
    let mut batch = BatchRun::open(&engine, file, options).unwrap();
    batch.start().await.unwrap();
    batch.follow(Duration::from_secs(60), |_| {}).await.unwrap();
    let summary = batch.finish().unwrap();
    let result: ResultLine = serde_json::from_str(std::fs::read_to_string(&results).unwrap().trim()).unwrap();
    let billed = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    tell(&engine, summary.jobs[0].1, &result, billed)
}

/// A line each failed call or other decision, then the end.
fn tell(engine: &Engine, run: RunId, result: &ResultLine, billed: usize) -> Story {
    let view = query::show(&**engine.store(), run).unwrap();
    let mut story = Story { branches: Vec::new(), text: String::new() };
    for AttemptRow { turn, attempt, failure, message, branch, followed, .. } in &view.attempts {
        let words = if message.is_empty() { String::new() } else { format!(" \"{message}\"") };
        let branch = branch.unwrap_or("-");
        story.text += &format!("{turn}.{attempt} {failure}{words} -> {branch}: {followed}\n");
        story.branches.push(branch);
    }
    // What is decided elsewhere: at a hook, at a compaction, at a result.
    let rows = query::journal(&**engine.store(), run, 0).unwrap();
    for JournalRow { input, details, .. } in rows.map(Result::unwrap) {
        let names = model::guard::retry::Branch::all().map(model::guard::retry::Branch::name);
        let taken = names.into_iter().find(|name| details.contains(&format!("{name}: ")));
        if let Some(name) = taken.filter(|_| input != "model_failed") {
            story.text += &format!("{input} -> {details}\n");
            story.branches.push(name);
        }
    }
    let ResultLine { outcome, text, error, model_calls, turns, .. } = result;
    let took = view.row.updated_at.since(view.row.started_at);
    assert_eq!(view.counters.retries.charges.checked_sub(1).map(u64::from), Some(charged(&story)));
    assert!(view.counters.retries.charges <= view.counters.retries.budget);
    story.text += &format!(
        "= {outcome} after {model_calls} calls ({billed} billed to m), {turns} turns, {} s: {}\n",
        took as f64 / 1e3,
        error.as_deref().unwrap_or(text),
    );
    story
}

/// Every decision but an end and a switch that found no charge left is charged.
fn charged(story: &Story) -> u64 {
    story.text.lines().filter(|line| line.contains(" -> ") && !line.contains("the run ended")).count() as u64
}

/// The waits between the failed calls of a run whose engine dies after so long in the first wait, and is not opened again
/// for so long.
pub(crate) fn waits_the_remainder(script: &Path, dies_after_ms: u64, is_dead_ms: u64) -> Vec<u64> {
    const START: Millis = Millis(1_767_225_600_000);
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let open = |at: Millis| {
        Engine::builder(dir.path())
            .without_commands()
            .clock(TimerClock::starting_at(at))
            .provider("m", Rehearsal::open(script, None).unwrap())
            .open()
            .unwrap()
    };
    let dying = runtime();
    let (run, dies_at) = dying.block_on(async {
        let engine = open(START);
        let run = engine.submit(engine::Job::new("please").model("m").tools(["ls"])).await.unwrap();
        while query::counts(&**engine.store(), None).unwrap().waiting == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let failed_at = query::show(&**engine.store(), run.id).unwrap().attempts[0].at;
        let dies_at = failed_at.plus(dies_after_ms);
        tokio::time::sleep(Duration::from_millis(dies_at.since(engine.now()))).await;
        (run.id, dies_at)
    });
    drop(dying);
    runtime().block_on(async {
        let engine = open(dies_at.plus(is_dead_ms));
        engine.resume(None).unwrap()[0].outcome().await.unwrap();
        let attempts = query::show(&**engine.store(), run).unwrap().attempts;
        engine.close().await.unwrap();
        attempts.windows(2).map(|pair| pair[1].at.since(pair[0].at)).collect()
    })
}

fn config(setup: &Setup) -> Config {
    let mut config = Config::default();
    let defaults = Arc::make_mut(&mut config.defaults);
    defaults.model = Some("m".to_owned());
    defaults.fallback = setup.fallback.iter().map(|name| (*name).to_owned()).collect();
    if let Some(thinking) = setup.thinking {
        defaults.thinking = thinking;
    }
    let profiles: Vec<String> = (0..setup.profiles).map(|at| format!("p{at}")).collect();
    for name in &profiles {
        let profile = Profile::ApiKeyCmd("echo key".to_owned());
        Arc::make_mut(&mut config.profiles).insert(name.clone(), profile);
    }
    let model = Model { context_window: setup.context_window, profiles, ..Model::new(Api::Rehearsal) };
    Arc::make_mut(&mut config.models).insert("m".to_owned(), model);
    config
}

fn harness(setup: &Setup) -> Harness {
    Harness {
        hooks: setup.hook.map(|hook| Arc::new(OneHook([hook])) as Arc<dyn Hooks>),
        context: setup.summary.map(|summary| Arc::new(Summary(summary)) as Arc<dyn Context>),
        ..Harness::default()
    }
}

/// A hook that refuses a run, or asks for a revision of every answer.
struct OneHook([Hook; 1]);

#[async_trait]
impl Hooks for OneHook {
    fn wanted(&self) -> &[Hook] {
        &self.0
    }

    async fn before_agent_run(&self, _: HookContext<'_>, _: &[Message]) -> Result<Gate, String> {
        Ok(Gate::Block("not today".to_owned()))
    }

    async fn before_finalize(&self, _: HookContext<'_>, _: &TurnView<'_>) -> Result<Option<String>, String> {
        Ok(Some("be clearer".to_owned()))
    }
}

/// A summariser that always says the same.
struct Summary(Result<&'static str, &'static str>);

#[async_trait]
impl Context for Summary {
    fn can_summarise(&self) -> bool {
        true
    }

    async fn summarise(&self, _: &[Arc<Prepared>]) -> Result<String, String> {
        self.0.map(str::to_owned).map_err(str::to_owned)
    }
}
