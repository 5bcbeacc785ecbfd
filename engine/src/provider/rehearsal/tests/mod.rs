//! Whole scripts in, whole streams out, in virtual time.

use std::sync::Arc;

use futures_util::StreamExt;
use model::message::{AssistantMessage, Block, Message, StopReason, ToolCall};
use model::{Millis, RunId};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::provider::{Origin, Prepared, Update, UpdateKind};
use crate::tool::ToolSpec;

mod answers;
mod failures;
mod files;
mod requests;

/// The call of this turn and attempt in the run `11...`.
fn request(turn: u32, attempt: u32) -> Request {
    let prompt = "say {{turn}}";
    let message = Message::user(prompt, Millis(0));
    Request {
        origin: Arc::new(Origin {
            run: RunId([0x11; 16]),
            session: "main".into(),
            custom_id: "fix-17".into(),
            prompt: prompt.into(),
            workspace: "/tmp/w".into(),
        }),
        turn,
        attempt,
        model: "script".into(),
        profile: None,
        thinking: "off".into(),
        system: None,
        messages: vec![Arc::new(Prepared { message, hash: [7; 32] })],
        tools: Arc::new([]),
        spool: None,
        recording: None,
    }
}

fn rehearsal(script: Value) -> Rehearsal {
    Rehearsal::from_value(&script).unwrap()
}

/// A rehearsal of one turn.
fn one(turn: Value) -> Rehearsal {
    rehearsal(json!({ "turns": [turn] }))
}

/// What a call brings, with the time since the call in milliseconds. The time of a message is left out.
async fn timed(stream: BoxStream<'static, StreamEvent>) -> Vec<(u128, StreamEvent)> {
    let start = Instant::now();
    stream.map(|event| (start.elapsed().as_millis(), without_time(event))).collect().await
}

async fn events(rehearsal: &Rehearsal, request: Request) -> Vec<StreamEvent> {
    let events = timed(rehearsal.stream(request, CancellationToken::new())).await;
    events.into_iter().map(|(_, event)| event).collect()
}

/// The message that ends a call.
async fn answer(rehearsal: &Rehearsal, request: Request) -> AssistantMessage {
    match events(rehearsal, request).await.pop() {
        Some(StreamEvent::Done(message)) => *message,
        other => panic!("{other:?}"),
    }
}

/// The failure that ends a call.
async fn failed(rehearsal: &Rehearsal, request: Request) -> Failure {
    match events(rehearsal, request).await.pop() {
        Some(StreamEvent::Failed(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

fn without_time(mut event: StreamEvent) -> StreamEvent {
    if let StreamEvent::Done(message) = &mut event {
        assert!(message.at > Millis(0));
        message.at = Millis(0);
    }
    event
}

fn update(kind: UpdateKind, content_index: usize, delta: &str) -> StreamEvent {
    StreamEvent::Update(Update { kind, content_index, delta: delta.into(), call: None })
}

fn call_end(content_index: usize, call: ToolCall) -> StreamEvent {
    let kind = UpdateKind::ToolCallEnd;
    StreamEvent::Update(Update { kind, content_index, delta: String::new(), call: Some(call) })
}

fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    let arguments = JsonText::from(&arguments);
    ToolCall { id: id.into(), name: name.into(), arguments, is_duplicate: false }
}

fn thinking(text: &str) -> Block {
    Block::Thinking { text: text.into(), signature: None }
}

fn message(content: Vec<Block>, usage: Usage, stop_reason: StopReason) -> AssistantMessage {
    AssistantMessage {
        content,
        api: "rehearsal".into(),
        provider: "rehearsal".into(),
        model: "script".into(),
        response_id: None,
        turn_id: None,
        usage,
        stop_reason,
        error_message: None,
        is_tainted: false,
        at: Millis(0),
    }
}

fn done(message: AssistantMessage) -> StreamEvent {
    StreamEvent::Done(Box::new(message))
}

/// The answer of a call that was aborted after `content` had arrived.
fn aborted(content: Vec<Block>, usage: Usage) -> StreamEvent {
    let message = message(content, usage, StopReason::Aborted);
    done(AssistantMessage { error_message: Some("aborted".into()), ..message })
}

fn used(input: u64, output: u64) -> Usage {
    Usage { input, output, ..Usage::default() }
}
