//! What a turn says, how it arrives, and what follows the last turn.

use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Time, kind and text of each event.
fn names(events: &[(u128, StreamEvent)]) -> Vec<String> {
    let name = |event: &StreamEvent| match event {
        StreamEvent::Opened => "opened".to_owned(),
        StreamEvent::Update(update) => format!("{} {}", update.kind.name(), update.delta),
        StreamEvent::Done(message) => message.stop_reason.name().to_owned(),
        StreamEvent::Failed(failure) => failure.kind.name().to_owned(),
        StreamEvent::Lost => "lost".to_owned(),
    };
    events.iter().map(|(at, event)| format!("{at} {}", name(event))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_turn_arrives_part_after_part() {
    let model = one(json!({
        "text": "hello", "thinking": "hm",
        "calls": [{ "tool": "read", "args": { "path": "b", "at": 1 } }, { "id": "mine", "tool": "ls" }],
    }));
    let read = call("call-0-0", "read", json!({ "path": "b", "at": 1 }));
    let ls = call("mine", "ls", json!({}));
    let content = vec![
        thinking("hm"),
        Block::Text("hello".into()),
        Block::ToolCall(read.clone()),
        Block::ToolCall(ls.clone()),
    ];
    let expected = vec![
        StreamEvent::Opened,
        update(UpdateKind::ThinkingStart, 0, ""),
        update(UpdateKind::ThinkingDelta, 0, "hm"),
        update(UpdateKind::ThinkingEnd, 0, "hm"),
        update(UpdateKind::TextStart, 1, ""),
        update(UpdateKind::TextDelta, 1, "hello"),
        update(UpdateKind::TextEnd, 1, "hello"),
        update(UpdateKind::ToolCallStart, 2, ""),
        update(UpdateKind::ToolCallDelta, 2, r#"{"at":1,"path":"b"}"#),
        call_end(2, read),
        update(UpdateKind::ToolCallStart, 3, ""),
        update(UpdateKind::ToolCallDelta, 3, "{}"),
        call_end(3, ls),
        done(message(content, used(3, 9), StopReason::ToolUse)),
    ];
    assert_eq!(events(&model, request(0, 0)).await, expected);
}

#[tokio::test(start_paused = true)]
async fn chunks_keep_their_pace() {
    let model = one(json!({
        "text": "añb", "thinking": "hm?", "calls": [{ "tool": "ls" }],
        "delay_ms": 100, "chunk_chars": 2, "chunk_ms": 10,
    }));
    let events = timed(model.stream(request(0, 0), CancellationToken::new())).await;
    let expected = [
        "100 opened",
        "100 thinking_start ",
        "100 thinking_delta hm",
        "110 thinking_delta ?",
        "110 thinking_end hm?",
        "110 text_start ",
        "120 text_delta añ",
        "130 text_delta b",
        "130 text_end añb",
        "130 toolcall_start ",
        "140 toolcall_delta {}",
        "140 toolcall_end ",
        "140 toolUse",
    ];
    assert_eq!(names(&events), expected);
}

#[tokio::test]
async fn variables_are_replaced_in_every_string_and_nowhere_else() {
    let model = rehearsal(json!({ "after": "repeat", "turns": [{
        "text": "{{custom_id}} {{session}} {{workspace}} {{run}} {{{turn}}} {{ turn }} {{other}} {{turn",
        "thinking": "{{prompt}}",
        "calls": [{
            "id": "c{{turn}}", "tool": "t{{attempt}}",
            "args": { "{{turn}}": ["{{turn}}", { "deep": "x{{attempt}}" }, 1, null] },
        }],
        "usage": {},
    }] }));
    let run = "11".repeat(16);
    let content = vec![
        thinking("say {{turn}}"),
        Block::Text(format!("fix-17 main /tmp/w {run} {{4}} {{{{ turn }}}} {{{{other}}}} {{{{turn")),
        Block::ToolCall(call("c4", "t2", json!({ "{{turn}}": ["4", { "deep": "x2" }, 1, null] }))),
    ];
    let expected = message(content, Usage::default(), StopReason::ToolUse);
    assert_eq!(answer(&model, request(4, 2)).await, expected);
}

#[tokio::test]
async fn the_script_may_say_why_an_answer_ends_and_what_it_costs() {
    let turn = json!({
        "text": "cut", "stop": "length",
        "usage": { "input": 1, "output": 2, "cache_read": 3, "cache_write": 4 },
    });
    let usage = Usage { input: 1, output: 2, cache_read: 3, cache_write: 4, usd_micros: 0 };
    let expected = message(vec![Block::Text("cut".into())], usage, StopReason::Length);
    assert_eq!(answer(&one(turn), request(0, 0)).await, expected);
    let cases = [
        (json!({ "text": "a" }), StopReason::Stop),
        (json!({ "calls": [{ "tool": "a" }] }), StopReason::ToolUse),
        (json!({ "calls": [{ "tool": "a" }], "stop": "stop" }), StopReason::Stop),
        (json!({ "text": "a", "stop": "toolUse" }), StopReason::ToolUse),
        (json!({}), StopReason::Stop),
    ];
    for (turn, stop_reason) in cases {
        assert_eq!(answer(&one(turn.clone()), request(0, 0)).await.stop_reason, stop_reason, "{turn}");
    }
}

#[tokio::test]
async fn the_last_turn_is_followed_as_the_script_says() {
    let turns = json!([{ "text": "first" }, { "text": "turn {{turn}}" }]);
    let said = async |after: &str, turn: u32| {
        let model = rehearsal(json!({ "turns": turns, "after": after }));
        match events(&model, request(turn, 0)).await.pop() {
            Some(StreamEvent::Done(message)) => Message::Assistant(message).joined_text(),
            Some(StreamEvent::Failed(failure)) => format!("{}: {}", failure.kind.name(), failure.message),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(said("fail", 1).await, "turn 1");
    assert_eq!(said("fail", 2).await, "script: no turn 2, the rehearsal has 2 turns: add it or set `after`");
    assert_eq!(said("stop", 2).await, "done");
    assert_eq!(said("repeat", 2).await, "turn 2");
    assert_eq!(said("repeat", 4_000_000_000).await, "turn 4000000000");
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_a_call_at_once_with_what_had_arrived() {
    let model = one(json!({
        "text": "abcdef", "calls": [{ "tool": "ls", "args": { "a": "bc" } }],
        "delay_ms": 100, "chunk_chars": 4, "chunk_ms": 10,
    }));
    let text = |text: &str| vec![Block::Text(text.into())];
    let cases = [
        (0, aborted(vec![], Usage::default())),
        (50, aborted(vec![], Usage::default())),
        (105, aborted(text("abcd"), used(3, 1))),
        (115, aborted(text("abcdef"), used(3, 2))),
        (125, aborted(text("abcdef"), used(3, 2))),
    ];
    for (abort_ms, expected) in cases {
        let abort = CancellationToken::new();
        if abort_ms == 0 {
            abort.cancel();
        }
        let stream = model.stream(request(0, 0), abort.clone());
        let (events, ()) = tokio::join!(timed(stream), async {
            tokio::time::sleep(Duration::from_millis(abort_ms)).await;
            abort.cancel();
        });
        assert_eq!(events.last(), Some(&(u128::from(abort_ms), expected)));
    }
}

#[test]
fn without_delays_a_call_is_ready_at_every_poll() {
    let model = one(json!({
        "text": "hello {{turn}}", "calls": [{ "tool": "read", "args": { "path": "{{custom_id}}" } }],
        "chunk_chars": 1,
    }));
    let mut stream = model.stream(request(0, 0), CancellationToken::new());
    let mut context = Context::from_waker(Waker::noop());
    let mut count = 0;
    while let Poll::Ready(event) = stream.poll_next_unpin(&mut context) {
        let Some(event) = event else { break };
        count += 1;
        assert_eq!(matches!(event, StreamEvent::Done(_)), count == 30, "{event:?}");
    }
    assert_eq!(count, 30);
}

fn any_script() -> impl Strategy<Value = Value> {
    let text = || "[a-zé {}]{0,12}(\\{\\{(turn|attempt|prompt|run)\\}\\})?";
    let call = (text(), text()).prop_map(|(tool, arg)| json!({ "tool": tool, "args": { "a": [arg] } }));
    let kind = select(vec!["missing", "empty", "timeout", "silent"]);
    let fail = (kind, 0_usize..9).prop_map(|(kind, chars)| json!({ "kind": kind, "after_chars": chars }));
    let calls = proptest::collection::vec(call, 0..3);
    let fails = proptest::collection::vec(fail, 0..2);
    let turn = (text(), text(), calls, fails, 1_usize..5, 0_u64..3).prop_map(
        |(text, thinking, calls, fail, chunk_chars, ms)| {
            json!({
                "text": text, "thinking": thinking, "calls": calls, "fail": fail,
                "chunk_chars": chunk_chars, "chunk_ms": ms, "delay_ms": ms,
            })
        },
    );
    (proptest::collection::vec(turn, 1..4), select(vec!["fail", "stop", "repeat"]))
        .prop_map(|(turns, after)| json!({ "turns": turns, "after": after }))
}

/// The content that the updates of a stream tell of. The chunks of a part make up its whole.
fn told(events: Vec<StreamEvent>) -> Vec<Block> {
    let mut content = Vec::new();
    let mut chunks = String::new();
    let mut end = |block, whole: &str, chunks: &mut String| {
        assert_eq!(std::mem::take(chunks), whole);
        content.push(block);
    };
    for event in events {
        let StreamEvent::Update(Update { kind, delta, call, .. }) = event else { continue };
        match kind {
            UpdateKind::TextStart | UpdateKind::ThinkingStart | UpdateKind::ToolCallStart => {
                assert_eq!(delta, "");
            }
            UpdateKind::TextDelta | UpdateKind::ThinkingDelta | UpdateKind::ToolCallDelta => chunks += &delta,
            UpdateKind::TextEnd => end(Block::Text(delta.clone()), &delta, &mut chunks),
            UpdateKind::ThinkingEnd => end(thinking(&delta), &delta, &mut chunks),
            UpdateKind::ToolCallEnd => {
                let call = call.unwrap();
                end(Block::ToolCall(call.clone()), call.arguments.as_str(), &mut chunks);
            }
        }
    }
    content
}

proptest! {
    #[test]
    fn an_answer_is_a_function_of_script_and_request(
        script in any_script(),
        (turn, attempt) in (0_u32..5, 0_u32..3),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let model = rehearsal(script.clone());
            let stream = |model: &Rehearsal| {
                timed(model.stream(request(turn, attempt), CancellationToken::new()))
            };
            let first = stream(&model).await;
            assert_eq!(stream(&model).await, first);
            assert_eq!(stream(&rehearsal(script)).await, first);
            let mut events: Vec<StreamEvent> = first.into_iter().map(|(_, event)| event).collect();
            if let Some(StreamEvent::Done(message)) = events.pop() {
                assert_eq!(told(events), message.content);
            }
        });
    }
}
