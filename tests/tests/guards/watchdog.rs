//! The watchdog: a call that has been silent for too long is ended, whatever its provider does.

use std::time::Duration;

use engine::provider::{Intent, ModelProvider, Request, StreamEvent, Update, UpdateKind};
use engine::{Job, Rest};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::Usage;
use model::{Fact, Moved, Outcome, Record, RunId};
use serde_json::json;
use store::{RunKey, Store, Stream};
use tokio_util::sync::CancellationToken;

use crate::stage::{Stage, job, rehearsal};

/// A provider that hears of no abort: it says a word each `every`, so often, and then nothing any more.
struct Deaf {
    every: Duration,
    words: usize,
}

impl ModelProvider for Deaf {
    fn prepare(&self, _request: &Request) -> Result<Intent, Failure> {
        let reserve = Usage { input: 10, output: 90, usd_micros: 7, ..Usage::default() };
        Ok(Intent { hash: [1; 32], converter_version: 1, reserve })
    }

    fn stream(&self, _request: Request, _abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let every = self.every;
        let word = move |_| async move {
            tokio::time::sleep(every).await;
            let kind = UpdateKind::TextDelta;
            StreamEvent::Update(Update { kind, content_index: 0, delta: "so ".to_owned(), call: None })
        };
        stream::iter(0..self.words).then(word).chain(stream::pending()).boxed()
    }
}

/// Every failed call of a run.
fn failures(stage: &Stage, run: RunId) -> Vec<Failure> {
    let records = stage.store.read_journal(Stream::Run(RunKey(run.0)), 0, 1000).unwrap();
    let failure = |payload: Vec<u8>| match Record::from_bytes(&payload).unwrap() {
        Record::Moved(moved) => match *moved {
            Moved { input: model::Input { fact: Fact::ModelFailed { failure, .. }, .. }, .. } => {
                Some(failure)
            }
            Moved { .. } => None,
        },
        Record::Submitted(_) => None,
    };
    records.into_iter().filter_map(|record| failure(record.payload?)).collect()
}

fn untried() -> Job {
    Job { retries: Some(false), ..job() }
}

fn idle(seconds: u64, had_text: bool, usage: Usage) -> Failure {
    Failure {
        kind: FailureKind::Idle,
        message: format!("nothing arrived for {seconds} s").as_str().into(),
        retry_after_ms: None,
        had_text,
        usage,
        partial: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_first_event_is_ended_after_120_s() {
    let stage = Stage::rehearsing(&json!([{ "text": "said", "fail": [{ "kind": "idle" }] }]));
    let run = stage.open().submit(untried()).await.unwrap();
    let Rest::Done { outcome, reason } = run.outcome().await.unwrap() else { panic!("it rests") };
    assert_eq!((outcome, reason.as_deref()), (Outcome::Failed, Some("idle: nothing arrived for 120 s")));
    assert_eq!(stage.elapsed_ms(), 120_000);
    let reserved = Usage { input: 1, output: 1_024, ..Usage::default() };
    assert_eq!(failures(&stage, run.id), [idle(120, false, reserved)]);
    // Nobody learned what it used: it counts as reserved.
    assert_eq!(stage.state(run.id).core.spent.usage, reserved);
}

#[tokio::test(start_paused = true)]
async fn text_that_arrived_before_the_silence_is_told() {
    let turn = json!({ "text": "said", "delay_ms": 500, "fail": [{ "kind": "idle", "after_chars": 2 }] });
    let model = rehearsal(&json!([turn])).idle_timeout(Duration::from_secs(300));
    let stage = Stage::new(model);
    let run = stage.open().submit(untried()).await.unwrap();
    run.outcome().await.unwrap();
    assert_eq!(stage.elapsed_ms(), 300_500);
    let reserved = Usage { input: 1, output: 1_024, ..Usage::default() };
    assert_eq!(failures(&stage, run.id), [idle(300, true, reserved)]);
}

#[tokio::test(start_paused = true)]
async fn every_event_arms_it_again_and_no_provider_can_forget_it() {
    let stage = Stage::new(Deaf { every: Duration::from_secs(119), words: 100 });
    let run = stage.open().submit(untried()).await.unwrap();
    run.outcome().await.unwrap();
    assert_eq!(stage.elapsed_ms(), 100 * 119_000 + 120_000);
    let reserved = Usage { input: 10, output: 90, usd_micros: 7, ..Usage::default() };
    assert_eq!(failures(&stage, run.id), [idle(120, true, reserved)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_watchdog_a_call_may_be_silent_for_days() {
    let turn = json!({ "text": "done", "delay_ms": 40 * 3_600_000 });
    let stage = Stage::new(rehearsal(&json!([turn])).idle_timeout(None));
    let run = stage.open().submit(untried()).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Completed, reason: None });
}

#[tokio::test(start_paused = true)]
async fn an_idle_call_is_tried_again() {
    let turn = json!({ "text": "said", "fail": [{ "kind": "idle" }] });
    let stage = Stage::rehearsing(&json!([turn]));
    let run = stage.open().submit(job()).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Completed, reason: None });
    assert_eq!(stage.state(run.id).core.spent.model_calls, 2);
}

#[tokio::test(start_paused = true)]
async fn cancel_and_deadline_end_a_deaf_call_within_100_ms() {
    let deaf = || Stage::new(Deaf { every: Duration::from_secs(1), words: 100 });
    let stage = deaf();
    let run = stage.open().submit(job()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    run.cancel("enough", None).await.unwrap();
    let cancelled = Rest::Done { outcome: Outcome::Cancelled, reason: Some("enough".to_owned()) };
    assert_eq!(run.outcome().await.unwrap(), cancelled);
    assert!(stage.elapsed_ms() <= 5_600, "{} ms", stage.elapsed_ms());
    // It had begun: what it used is not known.
    assert_eq!(stage.state(run.id).core.spent.usage.tokens(), 100);

    let stage = deaf();
    let run = stage.open().submit(Job { timeout_s: Some(5), ..job() }).await.unwrap();
    let timed_out = Rest::Done { outcome: Outcome::TimedOut, reason: Some("the deadline passed".to_owned()) };
    assert_eq!(run.outcome().await.unwrap(), timed_out);
    assert!(stage.elapsed_ms() <= 5_100, "{} ms", stage.elapsed_ms());
}
