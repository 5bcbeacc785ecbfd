//! Live updates are where they belong among the events, whatever the pace of the reader.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use model::{Millis, ToolResult};
use serde_json::{Value, json};

use crate::provider::Rehearsal;
use crate::tool::{CallContext, Tool, ToolSpec};
use crate::{Engine, EventReader, Job, RunHandle, Stamped, TimerClock};

/// A tool that tells how far it is, five times, ten milliseconds apart.
struct Count(ToolSpec);

#[async_trait]
impl Tool for Count {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, context: CallContext) -> Result<ToolResult, String> {
        for step in 0..5 {
            let _ = context.updates.send(ToolResult::text(step.to_string())).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(ToolResult::text("counted"))
    }
}

/// Two turns, each answered in chunks ten milliseconds apart, with a call between them; the first fails once
/// half way.
fn script() -> Value {
    let text = "0123456789abcdefghij";
    let fails = json!([{ "kind": "connection", "after_chars": 10 }]);
    let calls = json!([{ "tool": "count", "args": {} }]);
    json!({ "turns": [
        { "text": text, "chunk_chars": 2, "chunk_ms": 10, "fail": fails, "calls": calls },
        { "text": text, "chunk_chars": 2, "chunk_ms": 10 },
    ] })
}

async fn started(builder: crate::builder::Builder) -> RunHandle {
    let count = Count(ToolSpec::new("count", "counts", json!({ "type": "object" })));
    let engine = builder
        .provider("m", Rehearsal::from_value(&script()).unwrap())
        .clock(TimerClock::starting_at(Millis(0)))
        .tool(count)
        .open()
        .unwrap();
    engine.submit(Job::new("hello").model("m").tools(["count"])).await.unwrap()
}

/// Reads to the end, with a pause after each event.
async fn read(run: &RunHandle, pause_ms: u64) -> Vec<Stamped> {
    let mut events = pin!(run.events(None).unwrap());
    let mut read = Vec::new();
    while let Some(event) = events.next().await {
        read.push(event.unwrap());
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
    read
}

/// Every update stands between the start and the end of what it is about, and grows; without the updates, the
/// events are those of the journal.
fn check(run: &RunHandle, read: &[Stamped]) {
    let (mut open_answer, mut open_call, mut longest) = (false, false, (0, 0));
    for event in read {
        let value = event.to_json();
        let is_answer = value["message"]["role"] == "assistant";
        match event.event.name() {
            "message_start" => (open_answer, longest) = (is_answer, (0, 0)),
            "message_end" => open_answer = false,
            "tool_execution_start" => open_call = true,
            "tool_execution_end" => open_call = false,
            "tool_execution_update" => assert!(open_call),
            "message_update" => {
                let length = value["message"]["content"].to_string().len();
                assert!(open_answer && (event.attempt, length) >= longest, "{value}");
                longest = (event.attempt, length);
            }
            _ => {}
        }
    }
    let placed: Vec<Stamped> = read.iter().filter(|event| event.place.is_some()).cloned().collect();
    let store = Arc::clone(run.engine().store());
    assert_eq!(placed, EventReader::open(store, run.id, None).unwrap().read().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_any_pace_sees_updates_within_what_they_are_about() {
    for pause_ms in [0, 1, 7, 25, 60, 2_000] {
        let run = started(Engine::memory()).await;
        check(&run, &read(&run, pause_ms).await);
    }
}

#[tokio::test(start_paused = true)]
async fn updates_wait_until_the_start_of_their_answer_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let run = started(Engine::builder(dir.path()).without_commands()).await;
    check(&run, &read(&run, 1).await);
    run.engine().clone().close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_keeps_up_sees_every_update() {
    let run = started(Engine::memory()).await;
    let mut names: Vec<(&str, usize)> = Vec::new();
    for event in read(&run, 0).await {
        let name = event.event.name();
        match names.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => names.push((name, 1)),
        }
    }
    let expected = [
        ("agent_start", 1),
        ("turn_start", 1),
        ("message_start", 1),
        ("message_end", 1),
        ("message_start", 1),
        ("message_update", 21),
        ("message_end", 1),
        ("tool_execution_start", 1),
        ("tool_execution_update", 5),
        ("tool_execution_end", 1),
        ("message_start", 1),
        ("message_end", 1),
        ("turn_end", 1),
        ("turn_start", 1),
        ("message_start", 1),
        ("message_update", 12),
        ("message_end", 1),
        ("turn_end", 1),
        ("agent_end", 1),
    ];
    assert_eq!(names, expected);
}
