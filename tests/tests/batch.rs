//! A batch whose process is killed twenty times: every job ends once, every result line and every effect is there once.
//!
//! The engine runs in a process of its own: this test binary, started again with a directory in its environment. The
//! moments of the kills come from a seed, which is printed; `SPRAG_SEED` repeats one.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use engine::Engine;
use engine::batch::{BatchRun, Defaults, JobsFile, Options, ResultLine};
use engine::provider::Rehearsal;
use engine::tool::{CallContext, Probe, Tool, ToolSpec};
use model::input::RecoveryClass;
use model::{RunId, ToolResult};
use serde_json::{Value, json};
use store::{RunKey, Store, Stream};

const JOBS: usize = 50;
const TURNS: usize = 4;
const KILLS: usize = 20;
/// Names the directory of the engine that is to be killed.
const VICTIM: &str = "SPRAG_TEST_VICTIM";
const BATCH: &str = "ledgers";

/// Adds a line to the ledger, and can tell whether it did.
struct Ledger {
    spec: ToolSpec,
    file: PathBuf,
}

impl Ledger {
    fn new(file: PathBuf) -> Self {
        let parameters = json!({ "type": "object", "properties": { "entry": { "type": "string" } } });
        let spec = ToolSpec::new("ledger", "Adds a line to the ledger.", parameters);
        Self { spec: spec.class(RecoveryClass::Probe), file }
    }
}

#[async_trait]
impl Tool for Ledger {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        let entry = call.args["entry"].as_str().unwrap_or_default();
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.file)
            .map_err(|error| error.to_string())?;
        // One call of the system, so a kill leaves the whole line or nothing.
        file.write_all(format!("{} {entry}\n", call.idempotency_key).as_bytes())
            .map_err(|error| error.to_string())?;
        Ok(ToolResult::text("added"))
    }

    async fn probe(&self, call: &CallContext) -> Probe {
        let ledger = std::fs::read_to_string(&self.file).unwrap_or_default();
        let is_there = ledger.lines().any(|line| line.split(' ').next() == Some(&call.idempotency_key));
        if is_there { Probe::Ran(ToolResult::text("added")) } else { Probe::DidNotRun }
    }
}

fn engine(dir: &Path) -> Engine {
    let script = Rehearsal::open(&dir.join("script.json"), Some(dir.join("calls"))).unwrap();
    Engine::builder(dir.join("data"))
        .without_commands()
        .tool(Ledger::new(dir.join("ledger")))
        .provider("m", script)
        .open()
        .unwrap()
}

async fn run(dir: &Path) -> engine::batch::Summary {
    let engine = engine(dir);
    let options = Options {
        batch: BATCH.to_owned(),
        jobs: dir.join("jobs.jsonl"),
        results: dir.join("results.jsonl"),
        joblog: Some(dir.join("joblog")),
        ..Options::default()
    };
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: dir.to_owned(), model: None };
    let file = JobsFile::read(&options.jobs, &defaults).unwrap();
    let mut batch = BatchRun::open(&engine, file, options).unwrap();
    batch.start().await.unwrap();
    batch.follow(Duration::from_secs(1), |_| {}).await.unwrap();
    let summary = batch.finish().unwrap();
    engine.close().await.unwrap();
    summary
}

/// The process that is killed; without its directory, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        run(Path::new(&dir)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_survives_twenty_kills() {
    let mut random = Random::seeded();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_files(dir);
    for _ in 0..KILLS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--quiet"])
            .env(VICTIM, dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(random.below(250)));
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    let summary = run(dir).await;
    assert_eq!((summary.progress.done, summary.progress.failed), (JOBS as u64, 0));

    let results: Vec<ResultLine> = json_lines(&dir.join("results.jsonl"));
    let mut names: Vec<&str> = results.iter().map(|result| result.custom_id.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, (0..JOBS).map(name).collect::<Vec<_>>());
    for result in &results {
        assert_eq!(result.outcome, "completed");
        assert_eq!(result.text, format!("{} is done", result.custom_id));
        assert_eq!((result.turns, result.tool_calls), (TURNS as u64 + 1, TURNS as u64));
    }
    assert_eq!(places(dir, &results), (1..=JOBS as u64).collect::<Vec<_>>());
    check_joblog(dir, &results);
    check_ledger(dir);
    check_calls(dir, &results);
}

fn name(job: usize) -> String {
    format!("job-{job:02}")
}

fn write_files(dir: &Path) {
    let turn = |turn: usize| {
        let entry = format!("{{{{custom_id}}}} {turn}");
        json!({ "text": "", "delay_ms": 5, "calls": [{ "tool": "ledger", "args": { "entry": entry } }] })
    };
    let last = json!({ "text": "{{custom_id}} is done", "delay_ms": 5 });
    let turns: Vec<Value> = (0..TURNS).map(turn).chain([last]).collect();
    std::fs::write(dir.join("script.json"), json!({ "turns": turns }).to_string()).unwrap();
    let line = |id: String| json!({ "custom_id": id, "prompt": "add", "model": "m", "tools": ["ledger"] });
    let job = |job: usize| format!("{}\n", line(name(job)));
    std::fs::write(dir.join("jobs.jsonl"), (0..JOBS).map(job).collect::<String>()).unwrap();
}

fn json_lines<T: serde::de::DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The places that the store gave the ends, in the order of the result lines.
fn places(dir: &Path, results: &[ResultLine]) -> Vec<u64> {
    let store = engine::JournalView::open(&dir.join("data")).unwrap();
    let place = |result: &ResultLine| {
        let run = RunKey(result.run.parse::<RunId>().unwrap().0);
        let head = store.load(run).unwrap().head.unwrap();
        assert_eq!(head.hash.to_string(), result.journal_head);
        let last = store.read_journal(Stream::Run(run), head.seq, 1).unwrap().remove(0);
        let sum = last.puts.into_iter().find(|put| put.key.first() == Some(&b'e')).unwrap();
        u64::from_le_bytes(sum.value.unwrap().try_into().unwrap())
    };
    results.iter().map(place).collect()
}

/// One row a result, in the same order.
fn check_joblog(dir: &Path, results: &[ResultLine]) {
    let joblog = std::fs::read_to_string(dir.join("joblog")).unwrap();
    let commands: Vec<&str> = joblog.lines().skip(1).filter_map(|row| row.split('\t').next_back()).collect();
    assert_eq!(commands, results.iter().map(|result| result.custom_id.as_str()).collect::<Vec<_>>());
}

/// Each job has each of its lines once, in order.
fn check_ledger(dir: &Path) {
    let ledger = std::fs::read_to_string(dir.join("ledger")).unwrap();
    let mut entries: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in ledger.lines() {
        let [_, job, turn] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        entries.entry(job.to_owned()).or_default().push(turn.to_owned());
    }
    let turns: Vec<String> = (0..TURNS).map(|turn| turn.to_string()).collect();
    assert_eq!(entries, (0..JOBS).map(|job| (name(job), turns.clone())).collect());
}

/// A call was made again only if a kill had cut it off, and every such call is counted.
fn check_calls(dir: &Path, results: &[ResultLine]) {
    let mut made: HashMap<(String, u64, u64), u64> = HashMap::new();
    for call in json_lines::<Value>(&dir.join("calls")) {
        let number = |field: &str| call[field].as_u64().unwrap();
        let run = call["run"].as_str().unwrap().to_owned();
        *made.entry((run, number("turn"), number("attempt"))).or_default() += 1;
    }
    assert_eq!(made.len(), JOBS * (TURNS + 1));
    let again: u64 = made.values().map(|count| count - 1).sum();
    let lost: u64 = results.iter().map(|result| result.calls_lost).sum();
    let counted: u64 = results.iter().map(|result| result.model_calls).sum();
    assert!(again <= lost, "{again} calls were made again, {lost} were lost");
    assert_eq!(counted, made.len() as u64 + lost);
}

/// A small generator: the same seed gives the same moments.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let of_clock =
            || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64;
        let seed = std::env::var("SPRAG_SEED").map_or_else(|_| of_clock(), |seed| seed.parse().unwrap());
        println!("SPRAG_SEED={seed}");
        Self(seed | 1)
    }

    /// xorshift64 (Marsaglia 2003).
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
