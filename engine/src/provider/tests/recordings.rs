//! Recorded responses of two servers: every answer, and every way of cutting one off.

use std::fmt::Write;

use model::input::{Failure, FailureKind};
use model::message::AssistantMessage;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{APIS, assert_reviewed, body, reader, recorded};
use crate::config::Api;
use crate::provider::fault::Fault;
use crate::provider::{Update, UpdateKind};

/// Cuts of each recording.
const CUTS: usize = 1_000;

const RECORDINGS: [(Api, &[&str]); 3] = [
    (
        Api::AnthropicMessages,
        &[
            "aimock-anthropic-tools",
            "aimock-anthropic-text",
            "llama-anthropic-tools",
            "llama-anthropic-text",
            "llama-anthropic-error",
        ],
    ),
    (
        Api::OpenaiChat,
        &["aimock-chat-tools", "aimock-chat-text", "llama-chat-tools", "llama-chat-text", "llama-chat-error"],
    ),
    (
        Api::OpenaiResponses,
        &[
            "aimock-responses-tools",
            "aimock-responses-text",
            "llama-responses-tools",
            "llama-responses-text",
            "llama-responses-error",
        ],
    ),
];

/// What a body amounts to when it arrives in these chunks, and what was told of it on the way.
fn read<'a>(
    api: Api,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Result<AssistantMessage, Failure>, Vec<Update>) {
    let mut reader = reader(api);
    let mut updates = Vec::new();
    for chunk in chunks {
        let pushed = reader.push(chunk);
        updates.extend(reader.updates());
        if let Err(fault) = pushed {
            return (Err(reader.failed(fault)), updates);
        }
    }
    (reader.conclude(), updates)
}

fn all() -> impl Iterator<Item = (Api, &'static str, Vec<u8>)> {
    RECORDINGS
        .into_iter()
        .flat_map(|(api, names)| names.iter().map(move |name| (api, *name, body(&recorded(name)))))
}

#[test]
fn every_recording_is_read_as_reviewed() {
    let mut table = String::new();
    for (api, name, body) in all() {
        let (outcome, updates) = read(api, [body.as_slice()]);
        writeln!(table, "== {name}: {} updates\n{outcome:#?}\n", updates.len()).unwrap();
    }
    assert_reviewed("answers.txt", &table);
}

/// What each beginning of a body amounts to, `ends` in ascending order. The body arrives in the pieces
/// between them.
fn beginnings(api: Api, body: &[u8], ends: &[usize]) -> Vec<Result<AssistantMessage, Failure>> {
    let (mut reader, mut at, mut refused) = (reader(api), 0, None);
    let mut outcomes = Vec::with_capacity(ends.len());
    for end in ends {
        let pushed = reader.push(&body[at..*end]);
        refused = refused.or(pushed.err().map(|fault| reader.failed(fault)));
        outcomes.push(refused.clone().map_or_else(|| reader.conclude(), Err));
        at = *end;
    }
    outcomes
}

#[test]
fn a_cut_response_is_complete_or_broken_off_and_never_another_answer() {
    let mut random = StdRng::seed_from_u64(6);
    for (api, name, body) in all() {
        let (whole, _) = read(api, [body.as_slice()]);
        let mut ends: Vec<usize> = (0..CUTS).map(|_| random.random_range(0..=body.len())).collect();
        ends.sort_unstable();
        let is_broken = |outcome: &Result<AssistantMessage, Failure>| {
            let kind = outcome.as_ref().err().map(|failure| failure.kind);
            matches!(kind, Some(FailureKind::Connection | FailureKind::Missing))
        };
        let outcomes = beginnings(api, &body, &ends);
        let (broken, other): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_broken);
        assert!(!broken.is_empty(), "{name}");
        assert_eq!(other, vec![whole; CUTS - broken.len()], "{name}");
    }
}

#[test]
fn only_the_bytes_of_the_end_mark_make_an_answer_complete() {
    for (api, mark) in APIS.into_iter().zip(["message_stop", "[DONE]", "response.completed"]) {
        for (_, name, body) in all().filter(|(of, name, _)| *of == api && !name.ends_with("error")) {
            let mark = body.windows(mark.len()).position(|window| window == mark.as_bytes()).unwrap();
            let ends: Vec<usize> = (0..=body.len()).collect();
            let first = beginnings(api, &body, &ends).iter().position(Result::is_ok);
            assert!(first > Some(mark), "{name}: complete after {first:?} bytes, the mark is at {mark}");
        }
    }
}

#[test]
fn the_updates_of_a_recording_add_up_to_its_answer() {
    for (api, name, body) in all().filter(|(_, name, _)| !name.ends_with("error")) {
        let (outcome, updates) = read(api, body.chunks(7));
        assert_eq!(updates, read(api, [body.as_slice()]).1, "{name}: told the same however it is cut");
        let message = outcome.unwrap();
        for (index, block) in message.content.iter().enumerate() {
            let of = |kind| updates.iter().filter(move |u| u.content_index == index && u.kind == kind);
            let sum = |kind| of(kind).map(|update| update.delta.as_str()).collect::<String>();
            match block {
                model::Block::Text(text) => {
                    assert_eq!(
                        (&sum(UpdateKind::TextDelta), &sum(UpdateKind::TextEnd)),
                        (text, text),
                        "{name}"
                    );
                }
                model::Block::Thinking { text, .. } => {
                    assert_eq!(&sum(UpdateKind::ThinkingDelta), text, "{name}")
                }
                model::Block::ToolCall(call) => {
                    let ends: Vec<_> =
                        of(UpdateKind::ToolCallEnd).map(|update| update.call.as_ref()).collect();
                    assert_eq!(ends, vec![Some(call)], "{name}");
                }
                model::Block::Image { .. } | model::Block::Other(_) => panic!("{name}: {block:?}"),
            }
        }
    }
}

/// What one protocol tells in these events, each a line of data.
fn told(api: Api, data: &[&str]) -> Result<AssistantMessage, Failure> {
    let stream: String = data.iter().map(|data| format!("data: {data}\n\n")).collect();
    read(api, [stream.as_bytes()]).0
}

#[test]
fn what_anthropic_seals_and_signs_is_kept_byte_for_byte() {
    let message = told(
        Api::AnthropicMessages,
        &[
            r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":3,"cache_read_input_tokens":5,"cache_creation_input_tokens":7,"output_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"EpAB+/=="}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":"Eo+/"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":"9=="}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"later_delta","x":1}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"later_event","x":1}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"ls"}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
            r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_2","name":"ls","input":{"path":"a"}}}"#,
            r#"{"type":"content_block_stop","index":3}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":11}}"#,
            r#"{"type":"message_stop"}"#,
        ],
    )
    .unwrap();
    let sealed = serde_json::json!({ "type": "redacted_thinking", "data": "EpAB+/==" });
    let expected = vec![
        model::Block::Other(model::JsonText::from(&sealed)),
        model::Block::Thinking { text: String::new(), signature: Some("Eo+/9==".to_owned()) },
        super::call("toolu_1", "ls", serde_json::json!({})),
        super::call("toolu_2", "ls", serde_json::json!({ "path": "a" })),
    ];
    assert_eq!(message.content, expected);
    let usage = message.usage;
    assert_eq!((usage.input, usage.cache_read, usage.cache_write, usage.output), (3, 5, 7, 11));
}

/// The stop reason and the words of an answer, or the kind and the words of a failure.
fn verdict(api: Api, data: &[&str]) -> String {
    match told(api, data) {
        Ok(message) => {
            format!("{}: {}", message.stop_reason.name(), message.error_message.unwrap_or_default())
        }
        Err(failure) => format!("{}! {}", failure.kind.name(), failure.message),
    }
}

fn assert_verdicts<const N: usize>(rows: [(String, &str); N]) {
    for (actual, expected) in rows {
        assert_eq!(actual, expected);
    }
}

#[test]
fn every_way_in_which_messages_ends_has_its_meaning() {
    let ended = |reason: &str| {
        let delta = format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}"}}}}"#);
        let begin = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}"#;
        verdict(Api::AnthropicMessages, &[begin, &delta, r#"{"type":"message_stop"}"#])
    };
    let told = |data: &[&str]| verdict(Api::AnthropicMessages, data);
    assert_verdicts([
        (ended("end_turn"), "stop: "),
        (ended("stop_sequence"), "stop: "),
        (ended("max_tokens"), "length: "),
        (ended("model_context_window_exceeded"), "length: "),
        (ended("refusal"), "error: refusal: the model declined to answer"),
        (
            told(&[r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#]),
            "overloaded! Overloaded",
        ),
        (
            told(&[r#"{"type":"content_block_delta","index":3,"delta":{}}"#]),
            "server_error! the server sent a part of a block that it did not begin",
        ),
        (told(&[]), "missing! the stream ended without an answer"),
    ]);
}

#[test]
fn every_way_in_which_chat_completions_ends_has_its_meaning() {
    let told = |data: &[&str]| verdict(Api::OpenaiChat, data);
    let ended = |reason: &str| {
        let chunk = format!(r#"{{"choices":[{{"delta":{{"content":"hi"}},"finish_reason":"{reason}"}}]}}"#);
        told(&[&chunk, "[DONE]"])
    };
    assert_verdicts([
        (ended("stop"), "stop: "),
        (ended("length"), "length: "),
        (ended("content_filter"), "error: content_filter: the answer was withheld"),
        (
            told(&[r#"{"choices":[{"delta":{"refusal":"No."},"finish_reason":"stop"}]}"#, "[DONE]"]),
            "error: refusal: No.",
        ),
        (told(&[r#"{"error":{}}"#]), "silent! "),
        (told(&["{"]), "server_error! the server sent no JSON: EOF while parsing an object at line 1 c…"),
        (told(&["[DONE]"]), "missing! the stream ended without an answer"),
        (
            told(&[r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"id":"x"}"#, "[DONE]"]),
            "empty! the answer is empty",
        ),
        (
            told(&[r#"{"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":"stop"}]}"#, "[DONE]"]),
            "reasoning_only! the answer holds reasoning only",
        ),
        (
            told(&[r#"{"choices":[{"delta":{"content":"hi"}}]}"#, "[DONE]"]),
            "connection! the answer broke off",
        ),
    ]);
}

#[test]
fn every_way_in_which_responses_ends_has_its_meaning() {
    let ended = |kind: &str, response: &str| {
        let delta = r#"{"type":"response.output_text.delta","output_index":0,"delta":"hi"}"#;
        let end = format!(r#"{{"type":"response.{kind}","response":{response}}}"#);
        verdict(Api::OpenaiResponses, &[delta, &end])
    };
    assert_verdicts([
        (ended("completed", r#"{"status":"completed"}"#), "stop: "),
        (ended("incomplete", r#"{"incomplete_details":{"reason":"max_output_tokens"}}"#), "length: "),
        (
            ended("incomplete", r#"{"incomplete_details":{"reason":"content_filter"}}"#),
            "error: content_filter: the answer was withheld",
        ),
        (
            ended("failed", r#"{"error":{"code":"rate_limit_exceeded","message":"slow down"}}"#),
            "rate_limit! slow down",
        ),
    ]);
}

#[test]
fn calls_of_servers_that_leave_out_what_they_can_are_read() {
    let message = told(
        Api::OpenaiChat,
        &[
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"name":"a","arguments":"{\"x\":"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"1}"}},{"id":"own","function":{"name":"b","arguments":{"y":2}}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"id":"c3","function":{"name":"c","arguments":"not json"}}]},"finish_reason":"stop"}]}"#,
            "[DONE]",
        ],
    );
    let expected = vec![
        super::call("call_0", "a", serde_json::json!({ "x": 1 })),
        super::call("own", "b", serde_json::json!({ "y": 2 })),
        super::call("c3", "c", serde_json::json!("not json")),
    ];
    assert_eq!(message.map(|message| message.content), Ok(expected));
}

#[test]
fn an_answer_is_bounded() {
    let part = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(1 << 20));
    let parts = vec![part.as_str(); 9];
    let limits = [
        verdict(Api::OpenaiChat, &parts),
        verdict(
            Api::AnthropicMessages,
            &vec![r#"{"type":"content_block_start","content_block":{"type":"text"}}"#; 1_025],
        ),
        verdict(Api::OpenaiResponses, &{
            let items: Vec<String> = (0..1_025)
                .map(|n| format!(r#"{{"type":"response.output_item.done","output_index":{n},"item":{{"type":"message"}}}}"#))
                .collect();
            items.leak().iter().map(String::as_str).collect::<Vec<&str>>()
        }),
    ];
    let words = [
        "an answer of more than 8388608 bytes",
        "an answer of more than 1024 blocks",
        "more than 1024 items",
    ];
    assert_eq!(
        limits,
        words.map(|words| format!(
            "server_error! {}",
            model::Label::from(Fault::broken(words).words.as_str())
        ))
    );
}
