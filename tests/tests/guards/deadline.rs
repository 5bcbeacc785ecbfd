//! The deadline, and the time that a tool may take.

use std::sync::Arc;
use std::time::Duration;

use engine::config::{Config, Tool as ToolSettings};
use engine::harness::{Context, Harness};
use engine::provider::IDLE_TIMEOUT;
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Job, Rest, RunHandle};
use model::input::{Extension, RecoveryClass};
use model::{Message, Millis, Outcome, ParkReason, ToolResult};
use serde_json::{Value, json};

use crate::stage::{START, Stage, job, rehearsal};

const HOUR_MS: u64 = 3_600_000;

fn timed_out() -> Rest {
    Rest::Done { outcome: Outcome::TimedOut, reason: Some("the deadline passed".to_owned()) }
}

fn completed() -> Rest {
    Rest::Done { outcome: Outcome::Completed, reason: None }
}

/// A stage whose model answers once, after so long.
fn answering_after(ms: u64) -> Stage {
    Stage::new(rehearsal(&json!([{ "text": "done", "delay_ms": ms }])).idle_timeout(None))
}

fn deadline_of(stage: &Stage, run: &RunHandle) -> Option<u64> {
    stage.state(run.id).core.deadline.at.map(|at| at.since(START))
}

#[tokio::test(start_paused = true)]
async fn a_run_has_48_hours_unless_it_says_otherwise() {
    let stage = answering_after(100 * HOUR_MS);
    let run = stage.open().submit(job()).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), timed_out());
    assert_eq!(stage.elapsed_ms(), 48 * HOUR_MS);
    let stage = answering_after(100 * HOUR_MS);
    let run = stage.open().submit(Job { timeout_s: Some(0), ..job() }).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), completed());
    assert_eq!(stage.elapsed_ms(), 100 * HOUR_MS);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_move_it() {
    let stage = answering_after(47 * HOUR_MS);
    let engine = stage.open();
    let run = engine.submit(job()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(40 * HOUR_MS)).await;
    engine.stop().await;
    let engine = stage.open();
    assert_eq!(deadline_of(&stage, &run), Some(48 * HOUR_MS));
    tokio::time::sleep(Duration::from_millis(2 * HOUR_MS)).await;
    engine.resume(None).unwrap();
    assert_eq!(engine.handle(run.id).outcome().await.unwrap(), timed_out());
    assert_eq!(stage.elapsed_ms(), 48 * HOUR_MS);
    // One that passes while no engine lives ends the run as soon as there is one.
    let stage = answering_after(47 * HOUR_MS);
    let engine = stage.open();
    let run = engine.submit(job()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(HOUR_MS)).await;
    engine.stop().await;
    tokio::time::sleep(Duration::from_millis(50 * HOUR_MS)).await;
    let engine = stage.open();
    engine.resume(None).unwrap();
    assert_eq!(engine.handle(run.id).outcome().await.unwrap(), timed_out());
}

/// The model is overloaded: the run waits 2 s before it asks again.
fn overloaded() -> Stage {
    Stage::rehearsing(&json!([{ "text": "done", "fail": [{ "kind": "overloaded" }] }]))
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_backoff() {
    let stage = overloaded();
    let run = stage.open().submit(Job { timeout_s: Some(1), ..job() }).await.unwrap();
    assert_eq!((run.outcome().await.unwrap(), stage.elapsed_ms()), (timed_out(), 1_000));
}

#[tokio::test(start_paused = true)]
async fn a_backoff_that_a_cancel_has_ended_is_waited_for_by_nobody() {
    let stage = overloaded();
    let engine = stage.open();
    let run = engine.submit(job()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    run.cancel("enough", None).await.unwrap();
    engine.rested().await;
    let rest = run.outcome().await.unwrap();
    assert!(matches!(rest, Rest::Done { outcome: Outcome::Cancelled, .. }), "{rest:?}");
    assert!(stage.elapsed_ms() < 1_000, "{} ms", stage.elapsed_ms());
}

#[tokio::test(start_paused = true)]
async fn it_stands_still_while_a_person_is_waited_for_and_an_extension_moves_it() {
    let stage = answering_after(HOUR_MS);
    let engine = stage.open();
    let run = engine.submit(Job { max_tokens: Some(1), ..job() }).await.unwrap();
    assert!(matches!(run.outcome().await.unwrap(), Rest::Parked(ParkReason::Budget(_))));
    tokio::time::sleep(Duration::from_millis(72 * HOUR_MS)).await;
    run.extend(Extension { tokens: 10_000, ..Extension::default() }, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(deadline_of(&stage, &run), Some((48 + 72) * HOUR_MS));
    run.extend(Extension { time_ms: HOUR_MS, ..Extension::default() }, None).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), completed());
    assert_eq!(deadline_of(&stage, &run), Some((48 + 72 + 1) * HOUR_MS));
}

/// Makes a summary in so long.
struct Summariser(Duration);

#[async_trait::async_trait]
impl Context for Summariser {
    fn can_summarise(&self) -> bool {
        true
    }

    async fn summarise(&self, _messages: &[Arc<engine::provider::Prepared>]) -> Result<String, String> {
        tokio::time::sleep(self.0).await;
        Ok("what was said".to_owned())
    }
}

/// A run with a history whose first call overflows, and a summary that takes so long.
async fn compacting(timeout_s: u64, summary: Duration) -> (Stage, RunHandle) {
    let turn = json!({ "text": "done", "delay_ms": 0, "fail": [{ "kind": "context_overflow" }] });
    let stage = Stage::rehearsing(&json!([turn]));
    let harness = Harness { context: Some(Arc::new(Summariser(summary))), ..Harness::default() };
    let engine = stage.builder().harness(harness).open().unwrap();
    let said = |n: i64| Message::user(format!("part {n}"), Millis(START.0 + n));
    let job = Job { timeout_s: Some(timeout_s), base: (0..4).map(said).collect(), ..job() };
    let run = engine.submit(job).await.unwrap();
    (stage, run)
}

#[tokio::test(start_paused = true)]
async fn a_summary_in_the_making_gets_one_extension() {
    let (stage, run) = compacting(60, Duration::from_secs(100)).await;
    assert_eq!(run.outcome().await.unwrap(), completed());
    assert_eq!(stage.elapsed_ms(), 100_000);
    let deadline = stage.state(run.id).core.deadline;
    assert_eq!((deadline.at, deadline.was_extended), (Some(START.plus(240_000)), true));
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_takes_too_long_is_given_up() {
    let (stage, run) = compacting(0, Duration::from_secs(10_000)).await;
    let Rest::Done { outcome, .. } = run.outcome().await.unwrap() else { panic!("it rests") };
    assert_eq!((outcome, stage.elapsed_ms()), (Outcome::Blocked, 180_000));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_during_a_compaction_ends_in_timed_out_when_the_extension_is_used_up() {
    let (stage, run) = compacting(60, Duration::from_secs(100)).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(stage.state(run.id).core.deadline.was_extended);
    run.engine().stop().await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    let harness = Harness { context: Some(Arc::new(Summariser(Duration::ZERO))), ..Harness::default() };
    let engine = stage.builder().harness(harness).open().unwrap();
    engine.resume(None).unwrap();
    assert_eq!(engine.handle(run.id).outcome().await.unwrap(), timed_out());
}

/// A tool that never ends.
struct Endless(ToolSpec);

#[async_trait::async_trait]
impl Tool for Endless {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_in_the_process_is_ended_and_the_model_is_told() {
    let calls = json!([{ "tool": "dig", "args": {} }, { "tool": "drill", "args": {} }]);
    let stage = Stage::rehearsing(&json!([{ "calls": calls }, { "text": "done" }]));
    let spec = |name| ToolSpec::new(name, "Never ends.", json!({})).class(RecoveryClass::ReadOnly);
    let slow = ToolSettings { timeout_s: Some(300), ..ToolSettings::default() };
    let config = Config { tools: Arc::new([("drill".to_owned(), slow)].into()), ..Config::default() };
    let builder = stage.builder().config(config).tool(Endless(spec("dig"))).tool(Endless(spec("drill")));
    let engine = builder.open().unwrap();
    let run = engine.submit(job().tools(["dig", "drill"])).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), completed());
    assert_eq!(stage.elapsed_ms(), 300_000);
    let transcript = engine::query::transcript(&*stage.store, run.id).unwrap();
    let told = |message: &&Value| message["role"] == "toolResult";
    let transcript = serde_json::to_value(transcript).unwrap();
    let results: Vec<(&Value, &Value)> = transcript
        .as_array()
        .unwrap()
        .iter()
        .filter(told)
        .map(|message| (&message["isError"], &message["content"][0]["text"]))
        .collect();
    let gave_up = |s: u32| {
        json!(format!(
            "The call took longer than {s} s and was given up. What it had done until then stands."
        ))
    };
    assert_eq!(results, [(&json!(true), &gave_up(120)), (&json!(true), &gave_up(300))]);
    assert_eq!(IDLE_TIMEOUT, Duration::from_secs(120));
}
