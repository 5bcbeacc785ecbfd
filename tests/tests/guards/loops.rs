//! Tool loops: a rehearsal for each detector, run as a job of a batch, and what came of it.
//!
//! The rehearsals are in `tests/cases/loops`, named for what they show.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use engine::batch::{BatchRun, Defaults, JobsFile, Options, ResultLine};
use engine::provider::Rehearsal;
use engine::query::{self, BlockedLoop};
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job, Rest};
use model::guard::loops::ToolKind;
use model::{Message, Outcome, RunId, ToolResult};
use serde_json::json;

const BATCH: &str = "loops";

/// What became of a job: its outcome, turns, tool calls that ran, and the loop that its last calls were blocked for.
type Seen = (String, u64, u64, Option<(String, u64)>);

/// Always says the same.
struct Constant(ToolSpec);

#[async_trait]
impl Tool for Constant {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        Ok(ToolResult::text("still running").with_details(&json!({ "status": "running" })))
    }
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/loops")
}

/// An engine whose models are the rehearsals.
fn engine(dir: &Path) -> Engine {
    let spec = |name| ToolSpec::new(name, "Looks.", json!({ "type": "object", "properties": {} }));
    let mut builder = Engine::builder(dir.join("data"))
        .without_commands()
        .tool(Constant(spec("process")))
        .tool(Constant(spec("build_status").kind(ToolKind::CommandStatus)));
    for name in names() {
        let file = cases().join(format!("{name}.json"));
        builder = builder.provider(name, Rehearsal::open(&file, None).unwrap());
    }
    builder.open().unwrap()
}

fn names() -> Vec<String> {
    let files = std::fs::read_dir(cases()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> =
        files.map(|file| file.file_stem().unwrap().to_string_lossy().into()).collect();
    names.sort();
    names
}

/// Runs all rehearsals as one batch; answers what became of each, and its run.
async fn run_all(engine: &Engine, dir: &Path) -> BTreeMap<String, (RunId, Seen)> {
    let tools = ["ls", "find", "read", "write", "process", "build_status"];
    let is_run = |name: &String| name != "interrupted";
    let line = |name: String| {
        format!("{}\n", json!({ "custom_id": name, "prompt": "go", "model": name, "tools": tools }))
    };
    let jobs: String = names().into_iter().filter(is_run).map(line).collect();
    std::fs::write(dir.join("jobs.jsonl"), jobs).unwrap();
    let options = Options {
        batch: BATCH.to_owned(),
        jobs: dir.join("jobs.jsonl"),
        results: dir.join("results.jsonl"),
        ..Options::default()
    };
    let defaults = Defaults { batch: BATCH.to_owned(), cwd: dir.to_owned(), model: None };
    let mut batch =
        BatchRun::open(engine, JobsFile::read(&options.jobs, &defaults).unwrap(), options).unwrap();
    batch.start().await.unwrap();
    batch.follow(Duration::from_secs(1), |_| {}).await.unwrap();
    batch.finish().unwrap();
    let results = std::fs::read_to_string(dir.join("results.jsonl")).unwrap();
    let seen = |line: &str| {
        let ResultLine { custom_id, run, outcome, turns, tool_calls, .. } =
            serde_json::from_str(line).unwrap();
        let run: RunId = run.parse().unwrap();
        let blocked = query::show(&**engine.store(), run).unwrap().guards.blocked_loop;
        let blocked = blocked.map(|BlockedLoop { detector, count }| (detector, count));
        (custom_id, (run, (outcome, turns, tool_calls, blocked)))
    };
    results.lines().map(seen).collect()
}

/// Texts of the results that the model was told, oldest first.
fn told(engine: &Engine, run: RunId) -> Vec<String> {
    let transcript = query::transcript(&**engine.store(), run).unwrap();
    let results = transcript.iter().filter(|entry| matches!(&*entry.message, Message::ToolResult(_)));
    results.map(|entry| entry.message.joined_text()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_detector_ends_its_rehearsal() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let all = run_all(&engine, dir.path()).await;
    let ended = |outcome: &str, turns, tool_calls, blocked: Option<(&str, u64)>| {
        let blocked = blocked.map(|(detector, count)| (detector.to_owned(), count));
        (outcome.to_owned(), turns, tool_calls, blocked)
    };
    // The first critical loop blocks its batch, the second ends the run: 20 calls run, the 21st and 22nd do not.
    let expected = [
        ("argument_churn", ended("completed", 19, 18, None)),
        ("declared_poll", ended("failed", 22, 20, Some(("known_poll_no_progress", 21)))),
        ("generic_repeat", ended("failed", 22, 20, Some(("generic_repeat", 21)))),
        // Ten calls of one answer are blocked for the 20 before them, and count.
        ("global_circuit_breaker", ended("failed", 22, 20, Some(("global_circuit_breaker", 30)))),
        ("invalid_arguments", ended("failed", 22, 0, Some(("generic_repeat", 21)))),
        ("known_poll_no_progress", ended("failed", 22, 20, Some(("known_poll_no_progress", 21)))),
        // The 20th call is blocked, the other action runs once more, and the blocked one comes again.
        ("ping_pong", ended("failed", 22, 20, Some(("blocked_repeat", 1)))),
        ("recovery", ended("completed", 23, 21, None)),
        ("unknown_tool_repeat", ended("failed", 12, 0, Some(("blocked_repeat", 1)))),
    ];
    let seen: BTreeMap<String, Seen> =
        all.iter().map(|(name, (_, seen))| (name.clone(), seen.clone())).collect();
    assert_eq!(seen, expected.map(|(name, seen)| (name.to_owned(), seen)).into());

    let run = |name: &str| all[name].0;
    // Where the last block is another detector's, the first one's words are in the transcript.
    let first_blocked =
        |name: &str, at: usize| told(&engine, run(name))[at].lines().next().unwrap().to_owned();
    assert!(first_blocked("ping_pong", 19).starts_with("Blocked (ping_pong): 20 calls in a row"));
    assert!(first_blocked("unknown_tool_repeat", 10).starts_with("Blocked (unknown_tool_repeat): "));
    let warnings = |name: &str| query::show(&**engine.store(), run(name)).unwrap().guards.loop_warnings;
    assert_eq!((warnings("argument_churn"), warnings("unknown_tool_repeat")), (1, 0));

    let why = query::why(&**engine.store(), run("generic_repeat"), false).unwrap();
    let sentence = "It failed after 22 turns: a second critical tool loop; the loop detector generic_repeat blocked its \
                    last calls at a count of 21.";
    assert_eq!((why.sentence.as_str(), why.command), (sentence, None));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_is_told_who_counted_what_and_what_it_may_do() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let all = run_all(&engine, dir.path()).await;
    let texts = told(&engine, all["generic_repeat"].0);
    let expected = [
        "Blocked (generic_repeat): `ls` came to the same outcome 20 times. Doing it again will not change that: try \
         other arguments or another tool, or answer with what you have.\n\nThis call was not run. Do not make it again \
         as it is, a second loop ends this run: think about the task anew, then answer, ask, or go on with another \
         tool or other arguments.",
        "Blocked (generic_repeat): `ls` came to the same outcome 21 times. Doing it again will not change that: try \
         other arguments or another tool, or answer with what you have.\n\nThis call was not run. It is the second \
         critical loop of this run, which ends now.",
    ];
    assert_eq!(texts[20..], expected);
    let others = &told(&engine, all["global_circuit_breaker"].0)[21..30];
    let other = "This call was not run, because another call of the same answer was blocked (`ls`: generic_repeat, \
                 counted 20). Think about the task anew before the next step. You may make this call again without the \
                 other one, or answer, or ask.";
    assert_eq!(others, [other; 9]);
    engine.close().await.unwrap();
}

/// A run that goes on without a prompt of its own has no second chance left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_continuation_keeps_that_a_critical_loop_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let tools = ["ls"];
    std::fs::create_dir(dir.path().join("ws")).unwrap();
    let job = Job::new("go").model("interrupted").tools(tools).workspace(dir.path().join("ws"));
    let first = engine.submit(Job { session: Some("s".to_owned()), ..job.clone() }).await.unwrap();
    let is_seen = |run| query::show(&**engine.store(), run).unwrap().guards.critical_tool_loop_seen;
    while !is_seen(first.id) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.cancel("enough", None).await.unwrap();
    assert!(matches!(first.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Cancelled, .. }));

    let continued = engine.agent_loop_continue(first.id).await.unwrap();
    let reason = Some("a second critical tool loop".to_owned());
    assert_eq!(continued.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Failed, reason });
    let view = query::show(&**engine.store(), continued.id).unwrap();
    assert_eq!((view.counters.tool_calls, view.row.turns), (20, 21));

    // A prompt gives the model its chance back.
    let prompted = engine.submit(Job { session: Some("s".to_owned()), ..job }).await.unwrap();
    while told(&engine, prompted.id).len() < 21 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(query::show(&**engine.store(), prompted.id).unwrap().reason, None);
    prompted.cancel("enough", None).await.unwrap();
    assert!(matches!(prompted.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Cancelled, .. }));
    engine.close().await.unwrap();
}
