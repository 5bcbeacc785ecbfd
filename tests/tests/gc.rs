//! Retention: what `gc` takes, what it must leave, and what stays known of a run that is gone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use engine::batch::{BatchRun, Defaults, JobsFile, Mended, Options};
use engine::gc::{Reclaimed, Retention};
use engine::provider::Rehearsal;
use engine::query::{self, Filter, Status};
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job, JournalView, Rest, RunHandle};
use model::{JsonText, Outcome, RunId, ToolResult};
use serde_json::{Value, json};

/// Answers with as much text as a tool that has something to say.
struct Talk(ToolSpec);

#[async_trait::async_trait]
impl Tool for Talk {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        Ok(ToolResult::text("and so on ".repeat(200)))
    }
}

/// Four tool rounds and an answer.
fn script() -> Value {
    let call = |round: u64| json!({ "calls": [{ "tool": "talk", "args": { "about": round } }] });
    let turns = (0..4).map(call).chain([json!({ "text": "That is all." })]);
    json!({ "turns": turns.collect::<Vec<_>>() })
}

fn open(dir: &Path) -> Engine {
    let asking = json!({ "turns": [{ "text": "never", "delay_ms": 3_600_000 }] });
    Engine::builder(dir)
        .without_commands()
        .tool(Talk(ToolSpec::new("talk", "Talks.", json!({ "type": "object" }))))
        .provider("m", Rehearsal::from_value(&script()).unwrap())
        .provider("endless", Rehearsal::from_value(&asking).unwrap())
        .open()
        .unwrap()
}

fn job(prompt: &str) -> Job {
    Job::new(prompt).model("m").tools(["talk"])
}

async fn ended(engine: &Engine, job: Job) -> RunId {
    let run = engine.submit(job).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Completed, reason: None });
    run.id
}

fn listed(engine: &Engine) -> Vec<RunId> {
    let rows = query::list(&**engine.store(), &Filter { limit: 1000, ..Filter::default() }).unwrap();
    rows.into_iter().map(|row| row.run).collect()
}

fn all() -> Retention {
    Retention { older_than_ms: Some(0), ..Retention::default() }
}

fn keep(keep: u64) -> Retention {
    Retention { keep: Some(keep), ..Retention::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_tenths_of_the_runs_give_nine_tenths_of_their_bytes_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let mut runs = Vec::new();
    for number in 0..50 {
        runs.push(ended(&engine, job(&format!("job {number}"))).await);
    }
    engine.close().await.unwrap();
    let journal = |engine: &Engine| {
        engine.journal().unwrap().footprint(&runs.iter().map(|run| store::RunKey(run.0)).collect()).unwrap()
    };

    let engine = open(dir.path());
    let before = journal(&engine);
    let kept = query::transcript(&**engine.store(), runs[49]).unwrap();
    let shown = query::show(&**engine.store(), runs[49]).unwrap();
    let told = engine.gc(&Retention { is_dry_run: true, ..keep(5) }).await.unwrap();
    assert_eq!((told.runs, told.held, listed(&engine).len()), (45, 0, 50));
    let done = engine.gc(&keep(5)).await.unwrap();
    assert_eq!((done.runs, done.held), (45, 0));
    assert!(done.bytes.abs_diff(told.bytes) * 50 < told.bytes, "{done:?}, {told:?}");
    // Journal bytes given back, records of the purge itself counted against them.
    let spent = engine.journal().unwrap().stats().bytes;
    assert!((done.bytes - spent) * 100 >= before * 9 / 10 * 90, "{done:?} of {before}, {spent} spent");
    assert_eq!(listed(&engine).len(), 5);
    assert_eq!(query::transcript(&**engine.store(), runs[49]).unwrap(), kept);
    assert_eq!(query::show(&**engine.store(), runs[49]).unwrap(), shown);
    assert_eq!(engine.gc(&keep(5)).await.unwrap(), Reclaimed::default());

    let view = JournalView::open(dir.path()).unwrap();
    assert_eq!(query::list(&view, &Filter::default()).unwrap().len(), 5);
    engine.close().await.unwrap();
    let report = store::verify(dir.path()).unwrap();
    assert_eq!((report.findings, report.purged.len()), (vec![], 45));
    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    let engine = open(dir.path());
    assert_eq!(listed(&engine).len(), 5);
    assert_eq!(query::transcript(&**engine.store(), runs[49]).unwrap(), kept);
    // They came with the first run, which is gone.
    assert_eq!(query::settings(&**engine.store(), runs[49]).unwrap(), Some(engine::Config::default()));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_have_not_ended_and_runs_of_other_outcomes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let done = ended(&engine, job("one")).await;
    let waits = engine.submit(Job::new("two").model("endless").tools(["talk"])).await.unwrap();
    let cancelled = engine.submit(Job::new("three").model("endless").tools(["talk"])).await.unwrap();
    cancelled.cancel("enough", None).await.unwrap();
    cancelled.outcome().await.unwrap();
    let completed = Retention { statuses: vec![Status::Completed], ..Retention::default() };
    let young = Retention { older_than_ms: Some(3_600_000), ..completed.clone() };
    assert_eq!(engine.gc(&young).await.unwrap().runs, 0);
    assert_eq!(engine.gc(&completed).await.unwrap().runs, 1);
    // Both were submitted within a millisecond, perhaps, and have no order then.
    let left = BTreeSet::from_iter(listed(&engine));
    assert_eq!(left, BTreeSet::from([cancelled.id, waits.id]));
    assert!(!listed(&engine).contains(&done));
    assert_eq!(engine.gc(&all()).await.unwrap().runs, 1);
    assert_eq!(listed(&engine), [waits.id]);
    // What it has done so far adds up, while it does more.
    let shown = query::show(&**engine.store(), waits.id).unwrap();
    let calls: u64 = shown.turn_table.iter().map(|row| row.model_calls).sum();
    assert_eq!(calls, shown.counters.model_calls);
    engine.close().await.unwrap();
    let engine = open(dir.path());
    assert_eq!(engine.live_runs().unwrap(), [waits.id]);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_kept_run_continues_from_is_kept_and_a_session_that_goes_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let mut runs = Vec::new();
    for prompt in ["first", "second", "third"] {
        runs.push(ended(&engine, job(prompt).session("talks")).await);
    }
    let alone = ended(&engine, job("alone")).await;
    let transcript = |run| query::session_transcript(&**engine.store(), run).unwrap();
    let whole = transcript(runs[2]);
    // The newest of all stays, and has nothing to do with the session.
    assert_eq!(
        engine.gc(&Retention { keep: Some(2), ..all() }).await.unwrap(),
        Reclaimed { held: 2, ..Reclaimed::default() }
    );
    assert_eq!(transcript(runs[2]), whole);
    // A run that waits in the session is going to continue from it.
    let next =
        engine.submit(Job::new("fourth").model("endless").tools(["talk"]).session("talks")).await.unwrap();
    assert_eq!(engine.gc(&all()).await.unwrap().runs, 1);
    assert!(!listed(&engine).contains(&alone));
    next.cancel("enough", None).await.unwrap();
    next.outcome().await.unwrap();
    let gone = engine.gc(&all()).await.unwrap();
    assert_eq!((gone.runs, gone.held, listed(&engine)), (4, 0, vec![]));
    let anew = ended(&engine, job("again").session("talks")).await;
    let messages = query::transcript(&**engine.store(), anew).unwrap();
    assert_eq!(transcript(anew), messages);
    engine.close().await.unwrap();
    assert_eq!(store::verify(dir.path()).unwrap().findings, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_done_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir.path().join("data"));
    let run = ended(&engine, job("once").key("k")).await;
    let jobs = dir.path().join("jobs.jsonl");
    std::fs::write(&jobs, r#"{"custom_id":"a","prompt":"go","model":"m","tools":["talk"]}"#).unwrap();
    let batch = || {
        let defaults = Defaults { batch: "b".to_owned(), cwd: dir.path().to_owned(), model: None };
        let options = Options {
            batch: "b".to_owned(),
            jobs: jobs.clone(),
            results: dir.path().join("results.jsonl"),
            ..Options::default()
        };
        let file = JobsFile::read(&options.jobs, &defaults).unwrap();
        BatchRun::open(&engine, file, options)
    };
    let mut first = batch().unwrap();
    first.start().await.unwrap();
    first.follow(Duration::from_secs(1), |_| {}).await.unwrap();
    let done = first.finish().unwrap();
    assert_eq!(engine.gc(&all()).await.unwrap().runs, 2);
    let frames = engine.journal().unwrap().stats().frames;
    let again = engine.submit(job("once").key("k")).await.map(|run: RunHandle| run.id);
    assert_eq!(again.unwrap_err().to_string(), engine::Error::RunEnded(run).to_string());
    let mut second = batch().unwrap();
    second.start().await.unwrap();
    second.follow(Duration::from_secs(1), |_| {}).await.unwrap();
    assert_eq!(second.finish().unwrap().jobs, done.jobs);
    assert_eq!(engine.journal().unwrap().stats().frames, frames);
    assert_eq!(listed(&engine), []);
    assert_eq!(std::fs::read_to_string(dir.path().join("results.jsonl")).unwrap().lines().count(), 1);
    // A line that a crash has kept from the file is written from what is left, and says so.
    std::fs::write(dir.path().join("results.jsonl"), "").unwrap();
    assert_eq!(batch().unwrap().mended().added, 1);
    let line = std::fs::read_to_string(dir.path().join("results.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let error = "the run was purged before this line was written; only its outcome is known";
    assert_eq!(
        (&line["custom_id"], &line["outcome"], &line["ended_at"], &line["error"]),
        (&json!("a"), &json!("completed"), &json!(null), &json!(error))
    );
    assert_eq!(batch().unwrap().mended(), &Mended::default(), "it is confirmed like any other");
    // Another version of the line is refused as ever.
    std::fs::write(&jobs, r#"{"custom_id":"a","prompt":"other","model":"m","tools":["talk"]}"#).unwrap();
    let refused = batch().map(drop).unwrap_err().to_string();
    assert!(refused.contains("purged"), "{refused}");
    engine.close().await.unwrap();
}

/// Answers with a result that names a file in `DIR/blobs`.
struct Large(ToolSpec);

const BLOB: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[async_trait::async_trait]
impl Tool for Large {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        Ok(ToolResult { details: JsonText::from(&json!({ "blob": BLOB })), ..ToolResult::text("much") })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_with_the_last_run_that_holds_them_and_workspaces_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let script = json!({ "turns": [{ "calls": [{ "tool": "large", "args": {} }] }, { "text": "done" }] });
    let open = || {
        Engine::builder(dir.path())
            .without_commands()
            .tool(Large(ToolSpec::new("large", "Says much.", json!({ "type": "object" }))))
            .provider("m", Rehearsal::from_value(&script).unwrap())
            .open()
            .unwrap()
    };
    let file = dir.path().join("blobs").join(BLOB);
    let job = |name: &str| Job {
        batch: Some("b".to_owned()),
        custom_id: Some(name.to_owned()),
        ..Job::new("go").model("m").tools(["large"])
    };
    let engine = open();
    std::fs::create_dir(dir.path().join("blobs")).unwrap();
    std::fs::write(&file, "much more").unwrap();
    let (one, two) = (ended(&engine, job("one")).await, ended(&engine, job("two")).await);
    let workspace = |run: RunId| dir.path().join("work").join(run.to_string());
    assert!(workspace(one).is_dir() && workspace(two).is_dir());
    assert_eq!(engine.gc(&keep(1)).await.unwrap().runs, 1);
    engine.close().await.unwrap();
    let engine = open();
    assert!(file.exists() && workspace(one).is_dir());
    assert_eq!(engine.gc(&Retention { takes_workspaces: true, ..all() }).await.unwrap().runs, 1);
    assert!(file.exists(), "a call may be under way that holds it");
    assert!(workspace(one).is_dir() && !workspace(two).exists());
    engine.close().await.unwrap();
    open().close().await.unwrap();
    assert!(!file.exists());
}
