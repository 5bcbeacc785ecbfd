//! Crash loops: a tool that kills the engine each time it runs, among others that do nothing wrong.
//!
//! The engine runs in a process of its own: this test binary, started again with a directory in its environment. The
//! killer is a tool of that process, so whatever holds here was decided from what was committed before each death.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use engine::batch::{BatchRun, Defaults, JobsFile, Options, ResultLine};
use engine::config::{self, Config, OnUnknown};
use engine::provider::Rehearsal;
use engine::query::{self, RunView};
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, JournalView, Rest};
use model::input::RecoveryClass;
use model::{Message, Outcome, RunId, ToolResult};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

/// Names the directory of the engine that is to die.
const VICTIM: &str = "SPRAG_TEST_VICTIM";
const BATCH: &str = "guarded";
/// Longest time that anything here is waited for.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// More deaths than any loop here may take.
const DEATHS_MAX: usize = 9;
const SLEEPERS: usize = 1000;

/// Kills the engine, unless the file `harmless` is there.
struct Killer {
    spec: ToolSpec,
    dir: PathBuf,
}

impl Killer {
    fn new(name: &str, class: RecoveryClass, dir: &Path) -> Self {
        let parameters = json!({ "type": "object", "properties": {} });
        Self { spec: ToolSpec::new(name, "Kills.", parameters).class(class), dir: dir.to_owned() }
    }
}

#[async_trait]
impl Tool for Killer {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        if self.dir.join("harmless").exists() {
            return Ok(ToolResult::text("did no harm"));
        }
        // Whatever else the batch started has its result first.
        while call.args["last"] == true && others_run(&show(&self.dir, call.run)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        kill_process(getpid(), Signal::KILL).map_err(|error| error.to_string())?;
        std::future::pending().await
    }
}

/// More than the killer itself is under way.
fn others_run(view: &RunView) -> bool {
    view.calls.iter().filter(|call| call.status != "done").count() > 1
}

/// Adds a line to a file, and cannot tell afterwards whether it did.
struct Scribe {
    spec: ToolSpec,
    file: PathBuf,
}

#[async_trait]
impl Tool for Scribe {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&self.file).unwrap();
        file.write_all(format!("{}\n", call.idempotency_key).as_bytes()).unwrap();
        Ok(ToolResult::text("written"))
    }
}

/// Lasts until a file of its name is there.
struct Holder {
    spec: ToolSpec,
    dir: PathBuf,
}

#[async_trait]
impl Tool for Holder {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        until_there(&self.dir.join(call.args["name"].as_str().unwrap())).await;
        Ok(ToolResult::text("held"))
    }
}

fn holder(dir: &Path) -> Holder {
    let parameters = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let spec = ToolSpec::new("hold", "Lasts.", parameters).class(RecoveryClass::ReadOnly);
    Holder { spec, dir: dir.to_owned() }
}

fn scribe(dir: &Path) -> Scribe {
    let parameters = json!({ "type": "object", "properties": {} });
    Scribe { spec: ToolSpec::new("scribe", "Writes.", parameters), file: dir.join("written") }
}

/// An engine whose models are the scripts of the directory, under the names of their files.
fn engine(dir: &Path) -> Engine {
    let told = config::Tool { on_unknown: OnUnknown::Tell, ..config::Tool::default() };
    let tools = Arc::new(BTreeMap::from([("explode".to_owned(), told)]));
    let concurrency = NonZeroU32::new(2 * SLEEPERS as u32).unwrap();
    let defaults = Arc::new(config::Defaults { concurrency, ..config::Defaults::default() });
    let config = Config { tools, defaults, ..Config::default() };
    let options = store::Options { lock_wait: Duration::from_secs(5), ..store::Options::default() };
    let mut builder = Engine::builder(dir.join("data"))
        .config(config)
        .store_options(options)
        .supervisor(env!("CARGO_BIN_EXE_embedder"))
        .tool(Killer::new("kill", RecoveryClass::Keyed, dir))
        .tool(Killer::new("explode", RecoveryClass::AtMostOnce, dir))
        .tool(holder(dir))
        .tool(scribe(dir));
    for (name, script) in read_json(&dir.join("scripts.json")).as_object().unwrap() {
        builder = builder.provider(name, Rehearsal::from_value(script).unwrap());
    }
    builder.open().unwrap()
}

/// Releases the run that the file `release` names, and runs the batch until it rests or the file `stop` is there; then closes.
async fn run(dir: &Path) {
    let engine = engine(dir);
    let options = Options {
        batch: BATCH.to_owned(),
        jobs: dir.join("jobs.jsonl"),
        results: dir.join("results.jsonl"),
        ..Options::default()
    };
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: dir.to_owned(), model: None };
    let file = JobsFile::read(&options.jobs, &defaults).unwrap();
    let mut batch = BatchRun::open(&engine, file, options).unwrap();
    if let Ok(run) = fs::read_to_string(dir.join("release")) {
        fs::remove_file(dir.join("release")).unwrap();
        engine.handle(run.parse().unwrap()).release(None).await.unwrap();
    }
    batch.start().await.unwrap();
    let stop = dir.join("stop");
    tokio::select! {
        followed = batch.follow(Duration::from_secs(1), |_| {}) => followed.unwrap(),
        () = until_there(&stop) => engine.stop().await,
    }
    batch.finish().unwrap();
    engine.close().await.unwrap();
}

async fn until_there(file: &Path) {
    while !file.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The process that dies; without its directory, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        run(Path::new(&dir)).await;
    }
}

fn start(dir: &Path, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash_loops::victim", "--quiet"])
        .env(VICTIM, dir)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Starts the engine again until one ends cleanly; how many died before it.
fn deaths(dir: &Path) -> usize {
    for deaths in 0..DEATHS_MAX {
        if start(dir, &[]).wait().unwrap().success() {
            return deaths;
        }
    }
    panic!("the engine has died {DEATHS_MAX} times");
}

fn world(scripts: &Value, jobs: &[(&str, &str, &[&str])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("scripts.json"), scripts.to_string()).unwrap();
    let line = |(name, model, tools): &(&str, &str, &[&str])| {
        let job = json!({ "custom_id": name, "prompt": "go", "model": model, "tools": tools });
        format!("{job}\n")
    };
    fs::write(dir.path().join("jobs.jsonl"), jobs.iter().map(line).collect::<String>()).unwrap();
    dir
}

fn read_json(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Outcome of each job that has ended.
fn ended(dir: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dir.join("results.jsonl")).unwrap_or_default();
    let lines = text.lines().map(|line| serde_json::from_str::<ResultLine>(line).unwrap());
    lines.map(|line| (line.custom_id, line.outcome)).collect()
}

fn run_of(dir: &Path, custom_id: &str) -> RunId {
    jobs_of(dir)[custom_id]
}

/// The run of each job that was accepted; none before there is a store.
fn jobs_of(dir: &Path) -> BTreeMap<String, RunId> {
    let Ok(store) = JournalView::open(&dir.join("data")) else { return BTreeMap::new() };
    let rows = query::list(&store, &query::Filter { limit: usize::MAX, ..Default::default() }).unwrap();
    rows.into_iter().filter_map(|row| Some((row.custom_id?, row.run))).collect()
}

fn show(dir: &Path, run: RunId) -> RunView {
    query::show(&JournalView::open(&dir.join("data")).unwrap(), run).unwrap()
}

fn why(dir: &Path, run: RunId) -> query::Why {
    query::why(&JournalView::open(&dir.join("data")).unwrap(), run, false).unwrap()
}

/// A person lets the run go on, in an engine that nothing kills.
async fn release(dir: &Path, run: RunId) -> Vec<String> {
    fs::write(dir.join("harmless"), "").unwrap();
    let engine = engine(dir);
    let handle = engine.handle(run);
    handle.release(None).await.unwrap();
    engine.resume(None).unwrap();
    let rest = tokio::time::timeout(WAIT_MAX, handle.outcome()).await.unwrap().unwrap();
    assert_eq!(rest, Rest::Done { outcome: Outcome::Completed, reason: None });
    let transcript = query::transcript(&**engine.store(), run).unwrap();
    engine.close().await.unwrap();
    let results = transcript.iter().filter(|entry| matches!(&*entry.message, Message::ToolResult(_)));
    results.map(|entry| entry.message.joined_text()).collect()
}

#[test]
fn one_killer_among_a_thousand_sleepers_is_quarantined_alone() {
    let nap = |fail: Value| json!({ "turns": [{ "text": "slept", "delay_ms": 400, "fail": fail }] });
    let scripts = json!({
        "asleep": nap(json!([])),
        "in-backoff": nap(json!([{ "kind": "overloaded", "retry_after_ms": 400 }])),
        "deadly": { "turns": [{ "calls": [{ "tool": "kill", "args": {} }] }, { "text": "survived" }] },
    });
    let names: Vec<String> = (0..SLEEPERS).map(|n| format!("sleeper-{n:04}")).collect();
    let model = |n: usize| if n.is_multiple_of(2) { "asleep" } else { "in-backoff" };
    let mut jobs: Vec<(&str, &str, &[&str])> =
        names.iter().enumerate().map(|(n, name)| (name.as_str(), model(n), &[] as &[&str])).collect();
    jobs.insert(SLEEPERS / 2, ("killer", "deadly", &["kill"]));
    let dir = world(&scripts, &jobs);
    let dir = dir.path();
    // Two ends accuse nobody, three blame the killer, which is tried before all who only wait for a model.
    assert_eq!(deaths(dir), 5);
    let expected = names.iter().map(|name| (name.clone(), "completed".to_owned())).collect();
    assert_eq!(ended(dir), expected);
    let killer = run_of(dir, "killer");
    let held = why(dir, killer);
    let sentence = "It is held back, because the engine ended uncleanly 3 times while this run was tried alone, always \
                    in execute_tools of turn 0.";
    assert_eq!((held.sentence.as_str(), held.command), (sentence, Some(format!("sprag release {killer}"))));
    assert_eq!(show(dir, killer).row.status.name(), "parked");
}

/// Each answer asks for the killer under an id of its own, and is told that nobody knows what became of it.
#[test]
fn the_same_killer_under_a_new_id_is_quarantined() {
    let scripts = json!({
        "deadly": { "turns": [{ "calls": [{ "tool": "explode", "args": {} }] }], "after": "repeat" },
    });
    let dir = world(&scripts, &[("killer", "deadly", &["explode"])]);
    let dir = dir.path();
    assert_eq!(deaths(dir), 2);
    let view = show(dir, run_of(dir, "killer"));
    let reason =
        "the engine ended uncleanly 2 times while it ran the same call, of which nobody knows the outcome";
    assert_eq!((view.reason.as_deref(), view.row.status.name()), (Some(reason), "parked"));
    let ids: Vec<&str> =
        view.turn_table.iter().flat_map(|row| row.tools.iter().map(String::as_str)).collect();
    assert_eq!(ids, ["explode", "explode"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bystander_keeps_its_result_and_a_release_lets_the_run_go_on() {
    let calls = json!([{ "tool": "kill", "args": { "last": true } }, { "tool": "scribe", "args": {} }]);
    let scripts = json!({ "deadly": { "turns": [{ "calls": calls }, { "text": "survived" }] } });
    let dir = world(&scripts, &[("killer", "deadly", &["kill", "scribe"])]);
    let dir = dir.path();
    assert_eq!(deaths(dir), 5);
    let killer = run_of(dir, "killer");
    let statuses: Vec<&str> = show(dir, killer).calls.iter().map(|call| call.status).collect();
    assert_eq!(statuses, ["started", "done"]);
    // Whoever runs the file again is told the same, and nothing dies of it.
    assert_eq!((deaths(dir), ended(dir)), (0, BTreeMap::new()));

    assert_eq!(release(dir, killer).await, ["did no harm", "written"]);
    assert_eq!(fs::read_to_string(dir.join("written")).unwrap(), format!("{killer}/0.1\n"));
    assert_eq!(show(dir, killer).guards.crashes, 0);
    assert_eq!(
        (deaths(dir), ended(dir)),
        (0, BTreeMap::from([("killer".to_owned(), "completed".to_owned())]))
    );
}

/// A run that is told so goes on, kills again, and is quarantined again.
#[test]
fn a_release_gives_a_killer_another_round() {
    let scripts =
        json!({ "deadly": { "turns": [{ "calls": [{ "tool": "kill", "args": {} }] }, { "text": "so" }] } });
    let dir = world(&scripts, &[("killer", "deadly", &["kill"])]);
    let dir = dir.path();
    assert_eq!(deaths(dir), 5);
    let killer = run_of(dir, "killer");
    fs::write(dir.join("release"), killer.to_string()).unwrap();
    assert_eq!((deaths(dir), show(dir, killer).row.status.name()), (5, "parked"));
}

/// An end while the killer is being taken over counts as one of its ends, once.
#[test]
fn ends_of_the_recovery_itself_are_survived() {
    let scripts =
        json!({ "deadly": { "turns": [{ "calls": [{ "tool": "kill", "args": {} }] }, { "text": "so" }] } });
    let dir = world(&scripts, &[("killer", "deadly", &["kill"])]);
    let dir = dir.path();
    let mut killed = 0;
    for life in 0..DEATHS_MAX {
        let file = dir.join(format!("stopped-{life}"));
        let variables = [
            ("SPRAG_CRASH_POINT", "after the takeover's commit"),
            ("SPRAG_CRASH_FILE", file.to_str().unwrap()),
        ];
        // Every second engine dies as soon as it has taken the run over.
        let mut child = start(dir, if life % 2 == 1 { &variables } else { &[] });
        if life % 2 == 1 {
            wait_for("stop", || fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')));
            child.kill().unwrap();
        }
        if child.wait().unwrap().success() {
            break;
        }
        killed += 1;
    }
    assert_eq!((killed, show(dir, run_of(dir, "killer")).row.status.name()), (6, "parked"));
}

/// Three runs are under way at two ends; then they are tried in turn, beside one that is new.
#[test]
fn suspects_go_on_one_at_a_time_and_the_one_on_trial_is_blamed() {
    const RUNNING: &str = "running";
    let hold = json!({ "tool": "hold", "args": { "name": "{{custom_id}}" } });
    let scripts = json!({ "m": { "turns": [{ "calls": [hold] }, { "text": "done" }] } });
    let jobs: [(&str, &str, &[&str]); 3] =
        [("a", "m", &["hold"]), ("b", "m", &["hold"]), ("c", "m", &["hold"])];
    let dir = world(&scripts, &jobs);
    let dir = dir.path();
    let names = ["a", "b", "c"];
    // The epoch in which each job was last moved, how often it is blamed, and how it stands; which of them comes first is
    // a matter of the moment at which it was accepted.
    let standing = |name: &str| {
        let view = show(dir, *jobs_of(dir).get(name)?);
        Some((view.chain.owner_epoch, view.guards.crashes, view.row.status.name()))
    };
    let is_held =
        |name: &&str| show(dir, jobs_of(dir)[*name]).calls.iter().any(|call| call.status == "started");
    let kill_when = |wanted: [(u64, u8, &str); 3]| {
        let mut child = start(dir, &[]);
        wait_for("standing", || {
            let mut all = names.map(standing);
            all.sort_unstable();
            (all == wanted.map(Some)).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let mut child = start(dir, &[]);
    wait_for("calls", || (jobs_of(dir).len() == 3 && names.iter().all(is_held)).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    kill_when([(2, 0, RUNNING); 3]);
    // Each holds the next one back until its call is over.
    kill_when([(2, 0, RUNNING), (2, 0, RUNNING), (3, 0, RUNNING)]);
    let is_first = |name: &&str| standing(name).is_some_and(|(epoch, ..)| epoch == 3);
    let first = names.into_iter().find(is_first).unwrap();
    fs::write(dir.join(first), "").unwrap();
    kill_when([(2, 0, RUNNING), (4, 0, "completed"), (4, 0, RUNNING)]);
    // Blamed once, it goes first; the last one never came to its turn in that life.
    kill_when([(2, 0, RUNNING), (4, 0, "completed"), (5, 1, RUNNING)]);
    names.iter().for_each(|name| fs::write(dir.join(name), "").unwrap());
    let done = |name: &str| (name.to_owned(), "completed".to_owned());
    assert_eq!((deaths(dir), ended(dir)), (0, ["a", "b", "c"].map(done).into()));
}

#[test]
fn kills_from_elsewhere_accuse_nobody_who_waits_for_a_model() {
    let scripts = json!({ "slow": { "turns": [{ "text": "slept", "delay_ms": 60_000 }] } });
    let jobs: [(&str, &str, &[&str]); 3] = [("a", "slow", &[]), ("b", "slow", &[]), ("c", "slow", &[])];
    let dir = world(&scripts, &jobs);
    let dir = dir.path();
    for life in 1..=6 {
        let mut child = start(dir, &[]);
        wait_for("calls of all at once", || {
            let views: Vec<RunView> = jobs_of(dir).values().map(|run| show(dir, *run)).collect();
            let calls: Vec<u64> = views.iter().map(|view| view.counters.model_calls).collect();
            (calls == [life; 3]).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let blames: Vec<u8> = jobs_of(dir).values().map(|run| show(dir, *run).guards.crashes).collect();
    assert_eq!(blames, [0; 3]);
}

#[test]
fn deploys_and_kills_during_one_long_command_accuse_nobody() {
    let command = "until [ -e go ]; do sleep 0.02; done; echo ran >> ran; echo done";
    let turns =
        json!([{ "calls": [{ "tool": "bash", "args": { "command": command } }] }, { "text": "built" }]);
    let dir = world(&json!({ "builder": { "turns": turns } }), &[("build", "builder", &["bash"])]);
    let dir = dir.path();
    let mut owner = 0;
    for life in 0..8 {
        let mut child = start(dir, &[]);
        owner = wait_for("adopted command", || adopted(dir, owner));
        if life < 3 {
            fs::write(dir.join("stop"), "").unwrap();
            assert!(child.wait().unwrap().success());
            fs::remove_file(dir.join("stop")).unwrap();
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    let run = run_of(dir, "build");
    assert_eq!(show(dir, run).guards.crashes, 0);
    let workspace = show(dir, run).job.workspace.unwrap();
    fs::write(workspace.join("go"), "").unwrap();
    assert_eq!(
        (deaths(dir), ended(dir)),
        (0, BTreeMap::from([("build".to_owned(), "completed".to_owned())]))
    );
    assert_eq!(fs::read_to_string(workspace.join("ran")).unwrap(), "ran\n");
}

/// The epoch of an engine newer than `before` that waits for the command.
fn adopted(dir: &Path, before: u64) -> Option<u64> {
    let store = JournalView::open(&dir.join("data")).ok()?;
    let row = query::list(&store, &query::Filter::default()).ok()?.into_iter().next()?;
    let view = query::show(&store, row.run).ok()?;
    let is_running = view.calls.iter().any(|call| call.status == "started");
    let has_begun = dir.join("data/calls").join(row.run.to_string()).join("0.0/mark").exists();
    (is_running && has_begun && view.chain.owner_epoch > before).then_some(view.chain.owner_epoch)
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < WAIT_MAX, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
