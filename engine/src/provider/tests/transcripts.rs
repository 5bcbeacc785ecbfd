//! Any transcript becomes a request that its provider takes.
//!
//! The rules below are written from the providers' documentation and know nothing of how a request is made or
//! checked.

use std::collections::HashSet;

use model::message::{CustomMessage, StopReason};
use model::{Block, JsonText, Message, Millis, ToolResult};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{APIS, answer, call, configured, request, result, speaker, text, user};
use crate::config::Api;
use crate::provider::ask::Ask;
use crate::provider::conversation::{CONTINUE, Part, Said, Turn, conversation};
use crate::provider::{anthropic, openai_chat, openai_responses};

const PICTURE: &str = "iVBORw0KGgo=";

fn texts() -> impl Strategy<Value = String> {
    select(vec!["", " ", "\n\t", "hello", "żółć 🌞", "\u{0}"]).prop_map(str::to_owned)
}

fn ids() -> impl Strategy<Value = String> {
    let long = "x".repeat(70);
    select(vec![
        "a".to_owned(),
        "b".to_owned(),
        "a~2".to_owned(),
        String::new(),
        "call|fc_1".to_owned(),
        long,
    ])
}

fn blocks() -> impl Strategy<Value = Block> {
    let signature = prop_oneof![
        Just(None),
        Just(Some("sig==".to_owned())),
        Just(Some(r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}"#.to_owned())),
        Just(Some(r#"{"type":"reasoning"}"#.to_owned())),
    ];
    let arguments = select(vec![json!({}), json!({ "x": 1 }), json!("broken {"), Value::Null, json!([1])]);
    let name = select(vec!["ls", "no such tool", "", "a/b"]);
    let other = select(vec![
        json!({ "type": "redacted_thinking", "data": "d" }),
        json!({ "type": "redacted_thinking" }),
        json!({ "type": "later", "x": 1 }),
        Value::Null,
    ]);
    let data = select(vec![PICTURE, "", "?", "AAA", "===="]);
    let media_type = select(vec!["image/png", "image/tiff", ""]);
    prop_oneof![
        4 => texts().prop_map(Block::Text),
        1 => (data, media_type).prop_map(|(data, media_type)| Block::Image {
            data: data.to_owned(),
            media_type: media_type.to_owned(),
        }),
        2 => (texts(), signature).prop_map(|(text, signature)| Block::Thinking { text, signature }),
        3 => (ids(), name, arguments).prop_map(|(id, name, arguments)| call(&id, name, arguments)),
        1 => other.prop_map(|value| Block::Other(JsonText::from(&value))),
    ]
}

fn messages() -> impl Strategy<Value = Message> {
    let content = || prop::collection::vec(blocks(), 0..5);
    let stop = select(vec![
        StopReason::Stop,
        StopReason::ToolUse,
        StopReason::ToolUse,
        StopReason::Length,
        StopReason::Error,
        StopReason::Aborted,
    ]);
    let api = select(APIS.to_vec());
    prop_oneof![
        3 => content().prop_map(user),
        4 => (api, stop, content()).prop_map(|(api, stop, content)| answer(api, stop, content)),
        4 => (ids(), content(), any::<bool>()).prop_map(|(id, content, is_error)| {
            result(&id, ToolResult { content, is_error, ..ToolResult::default() })
        }),
        1 => content().prop_map(|content| Message::Custom(CustomMessage {
            custom_type: "note".to_owned(),
            content,
            is_displayed: true,
            details: JsonText::empty(),
            at: Millis(0),
        })),
    ]
}

/// The JSON that is sent for a transcript.
fn spelled(api: Api, messages: &[Message], thinking: &str) -> Value {
    let model = configured(api);
    let mut request = request(messages.to_vec(), &["ls"]);
    request.thinking = thinking.to_owned();
    let conversation = conversation(messages, &speaker(api));
    let ask = Ask { model: &model, request: &request, conversation: &conversation };
    match api {
        Api::AnthropicMessages => {
            let body = anthropic::body(&ask);
            assert_eq!(anthropic::check(&body), Ok(()), "{body:#}");
            body
        }
        Api::OpenaiChat => {
            let body = openai_chat::body(&ask);
            assert_eq!(openai_chat::check(&body), Ok(()), "{body:#}");
            body
        }
        Api::OpenaiResponses => {
            let body = openai_responses::body(&ask);
            assert_eq!(openai_responses::check(&body), Ok(()), "{body:#}");
            body
        }
        Api::Rehearsal | Api::Replay => unreachable!(),
    }
}

fn is_name(name: &Value, most: usize) -> bool {
    let name = name.as_str().unwrap();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=most).contains(&name.len()) && name.chars().all(plain)
}

fn is_said(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.chars().any(|c| !c.is_whitespace()))
}

fn is_data_url(url: &Value) -> bool {
    url == &json!(format!("data:image/png;base64,{PICTURE}"))
}

/// <https://docs.anthropic.com/en/api/messages>: turns alternate, each call is answered first thing in the
/// next turn.
fn obeys_anthropic(body: &Value) -> Result<(), String> {
    let messages = body["messages"].as_array().unwrap();
    let mut ids: HashSet<String> = HashSet::new();
    let mut due: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let is_user = message["role"] == "user";
        if is_user != (at % 2 == 0) || (!is_user && message["role"] != "assistant") {
            return Err(format!("turn {at} is of {}", message["role"]));
        }
        let blocks = message["content"].as_array().unwrap();
        let of = |kind: &str| blocks.iter().filter(|block| block["type"] == kind).collect::<Vec<_>>();
        let results: Vec<&str> =
            of("tool_result").iter().map(|b| b["tool_use_id"].as_str().unwrap()).collect();
        if is_user && (results != due || !blocks.iter().take(due.len()).all(|b| b["type"] == "tool_result")) {
            return Err(format!("turn {at}: {due:?} are due, {results:?} are there"));
        }
        due = of("tool_use").iter().map(|block| block["id"].as_str().unwrap()).collect();
        let is_known = |block: &Value| match (is_user, block["type"].as_str().unwrap()) {
            (_, "text") => is_said(&block["text"]),
            (true, "image") => {
                block["source"]["media_type"] == "image/png" && block["source"]["data"] == PICTURE
            }
            (true, "tool_result") => {
                block["content"].as_array().unwrap().iter().all(|part| match part["type"].as_str() {
                    Some("text") => is_said(&part["text"]),
                    Some("image") => part["source"]["data"] == PICTURE,
                    _ => false,
                })
            }
            (false, "thinking") => block["signature"] != "" && block["thinking"].is_string(),
            (false, "redacted_thinking") => block["data"] == "d",
            (false, "tool_use") => {
                block["input"].is_object()
                    && is_name(&block["name"], 64)
                    && is_name(&block["id"], 64)
                    && ids.insert(block["id"].to_string())
            }
            _ => false,
        };
        if blocks.is_empty() || !blocks.iter().all(is_known) {
            return Err(format!("turn {at} has a block that is not accepted"));
        }
        let last = blocks.last().unwrap()["type"].as_str().unwrap();
        if last.ends_with("thinking") {
            return Err(format!("turn {at} ends in thinking"));
        }
    }
    if messages.len().is_multiple_of(2) {
        return Err("the model's turn comes last".to_owned());
    }
    let breakpoints = body.to_string().matches("cache_control").count();
    if breakpoints > 4 { Err(format!("{breakpoints} cache breakpoints")) } else { Ok(()) }
}

/// <https://platform.openai.com/docs/api-reference/chat>: each call is answered by the `tool` messages right
/// after it.
fn obeys_chat(body: &Value) -> Result<(), String> {
    let messages = body["messages"].as_array().unwrap();
    let mut ids: HashSet<&str> = HashSet::new();
    let mut due: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap();
        if role == "tool" {
            if due.is_empty() || due.remove(0) != message["tool_call_id"] || !is_said(&message["content"]) {
                return Err(format!("message {at} is no result that is due"));
            }
            continue;
        }
        if !due.is_empty() {
            return Err(format!("{due:?} have no results before message {at}"));
        }
        let content = &message["content"];
        let is_fine = match role {
            "system" => at == 0 && is_said(content),
            "user" => match content.as_array() {
                Some(parts) => {
                    !parts.is_empty()
                        && parts.iter().all(|part| {
                            (part["type"] == "text" && is_said(&part["text"]))
                                || (part["type"] == "image_url" && is_data_url(&part["image_url"]["url"]))
                        })
                }
                None => is_said(content),
            },
            "assistant" => {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                due = message["tool_calls"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|call| call["id"].as_str().unwrap())
                    .collect();
                let are_fine = calls.iter().all(|call| {
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    call["type"] == "function"
                        && is_name(&call["id"], 40)
                        && is_name(&call["function"]["name"], 64)
                        && serde_json::from_str::<Value>(arguments).unwrap().is_object()
                });
                let are_new = due.iter().all(|id| ids.insert(id));
                are_fine && are_new && (is_said(content) || (content.is_null() && !calls.is_empty()))
            }
            _ => false,
        };
        if !is_fine {
            return Err(format!("message {at} is not accepted"));
        }
        if at > 0 && messages[at - 1]["role"] == role {
            return Err(format!("two messages of {role} in a row at {at}"));
        }
    }
    match messages.last().map(|message| message["role"].as_str().unwrap()) {
        Some("user" | "tool") if due.is_empty() => Ok(()),
        last => Err(format!("{last:?} comes last, {due:?} are due")),
    }
}

/// <https://platform.openai.com/docs/api-reference/responses>: each call has its output, reasoning leads to
/// something.
fn obeys_responses(body: &Value) -> Result<(), String> {
    let items = body["input"].as_array().unwrap();
    let mut ids: HashSet<&str> = HashSet::new();
    let mut due: Vec<&str> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let kind = item["type"].as_str().unwrap();
        let is_models = |item: &Value| {
            ["reasoning", "function_call"].iter().any(|kind| item["type"] == *kind)
                || item["role"] == "assistant"
        };
        let is_fine = match kind {
            "message" => {
                let (part, is_user) = (&item["content"], item["role"] == "user");
                let kind = if is_user { "input_text" } else { "output_text" };
                (!is_user || due.is_empty())
                    && !part.as_array().unwrap().is_empty()
                    && part.as_array().unwrap().iter().all(|part| {
                        (part["type"] == kind && is_said(&part["text"]))
                            || (is_user && part["type"] == "input_image" && is_data_url(&part["image_url"]))
                    })
            }
            "reasoning" => {
                let next = items.get(at + 1).unwrap_or(&Value::Null);
                item["encrypted_content"] == "e" && item["summary"].is_array() && is_models(next)
            }
            "function_call" => {
                let id = item["call_id"].as_str().unwrap();
                due.push(id);
                is_name(&item["call_id"], 64)
                    && is_name(&item["name"], 64)
                    && ids.insert(id)
                    && serde_json::from_str::<Value>(item["arguments"].as_str().unwrap()).unwrap().is_object()
            }
            "function_call_output" => {
                let is_due = !due.is_empty() && due.remove(0) == item["call_id"];
                is_due
                    && (is_said(&item["output"])
                        || item["output"].as_array().is_some_and(|parts| !parts.is_empty()))
            }
            _ => false,
        };
        if !is_fine {
            return Err(format!("item {at} is not accepted: {item}"));
        }
    }
    match items.last() {
        Some(last)
            if due.is_empty() && (last["role"] == "user" || last["type"] == "function_call_output") =>
        {
            Ok(())
        }
        last => Err(format!("{last:?} comes last, {due:?} are due")),
    }
}

fn obeys(api: Api, body: &Value) -> Result<(), String> {
    match api {
        Api::AnthropicMessages => obeys_anthropic(body),
        Api::OpenaiChat => obeys_chat(body),
        Api::OpenaiResponses => obeys_responses(body),
        Api::Rehearsal | Api::Replay => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_transcript_becomes_a_request_that_every_provider_takes(
        messages in prop::collection::vec(messages(), 0..14),
        thinking in select(vec!["off", "high"]),
    ) {
        for api in APIS {
            let body = spelled(api, &messages, thinking);
            prop_assert_eq!(obeys(api, &body), Ok(()), "{:#}", body);
        }
    }

    #[test]
    fn a_longer_transcript_begins_as_the_shorter_did(
        messages in prop::collection::vec(messages(), 0..10),
        more in prop::collection::vec(messages(), 0..4),
    ) {
        // Results that come late move to their calls, and the end is made fit: only what lies before is
        // stable.
        let is_new = |message: &Message| !matches!(message, Message::ToolResult(_));
        let longer: Vec<Message> = messages.iter().chain(more.iter().filter(|m| is_new(m))).cloned().collect();
        let speaker = speaker(Api::AnthropicMessages);
        let (short, long) = (conversation(&messages, &speaker).0, conversation(&longer, &speaker).0);
        let stable = short.len().saturating_sub(1);
        prop_assert_eq!(&short[..stable], &long[..stable]);
    }
}

#[test]
fn what_another_model_thought_and_sealed_is_dropped_and_its_calls_stand() {
    let thinking =
        |signature: &str| Block::Thinking { text: "hm".to_owned(), signature: Some(signature.to_owned()) };
    let messages = [
        user(vec![text("go")]),
        answer(
            Api::AnthropicMessages,
            StopReason::ToolUse,
            vec![thinking("s1"), text("a"), call("t~2", "ls", json!({}))],
        ),
        result("t~2", ToolResult::text("x")),
    ];
    let own = conversation(&messages, &speaker(Api::AnthropicMessages)).0;
    let foreign = conversation(&messages, &speaker(Api::OpenaiResponses)).0;
    let Turn::Model(said) = &own[1] else { panic!("{own:?}") };
    assert_eq!(said[0], Said::Thinking { text: "hm".to_owned(), signature: "s1".to_owned() });
    let Turn::Model(said) = &foreign[1] else { panic!("{foreign:?}") };
    assert_eq!(said[0], Said::Text("a".to_owned()));
    let Said::Call { id, .. } = &said[1] else { panic!("{said:?}") };
    assert!(id.starts_with("call_") && id.len() == 29, "{id}");
    assert_eq!(own[2], foreign[2], "the result is mapped as its call is");
}

#[test]
fn thinking_is_not_asked_for_amid_calls_that_another_model_made() {
    let messages = [
        user(vec![text("go")]),
        answer(Api::OpenaiChat, StopReason::ToolUse, vec![call("c", "ls", json!({}))]),
        result("c", ToolResult::text("x")),
    ];
    let amid = spelled(Api::AnthropicMessages, &messages, "high");
    assert_eq!(amid.get("thinking"), None);
    let after = [&messages[..], &[user(vec![text("next")])]].concat();
    assert_eq!(spelled(Api::AnthropicMessages, &after, "high").get("thinking"), None, "still in one turn");
    let fresh = spelled(Api::AnthropicMessages, &messages[..1], "high");
    assert_eq!(fresh["thinking"], json!({ "type": "enabled", "budget_tokens": 4_096 }));
}

#[test]
fn results_find_their_calls_and_holes_are_filled() {
    let error = |words: &str| Part::Text(words.to_owned());
    let messages = [
        answer(
            Api::OpenaiChat,
            StopReason::ToolUse,
            vec![call("a", "ls", json!({})), call("b", "ls", json!({}))],
        ),
        user(vec![text("meanwhile")]),
        result("b", ToolResult::default()),
        result("b", ToolResult::text("again")),
        result("stray", ToolResult::text("?")),
        user(vec![text(" ")]),
        answer(Api::OpenaiChat, StopReason::Aborted, vec![text("half"), call("c", "ls", json!({}))]),
        answer(Api::OpenaiChat, StopReason::Error, vec![text("")]),
    ];
    let turns = conversation(&messages, &speaker(Api::OpenaiChat)).0;
    let called = |id: &str| Said::Call { id: id.to_owned(), name: "ls".to_owned(), arguments: json!({}) };
    let answered = |id: &str, words: &str, is_error| crate::provider::conversation::Answered {
        id: id.to_owned(),
        name: "ls".to_owned(),
        parts: vec![error(words)],
        is_error,
    };
    let expected = vec![
        Turn::User { results: vec![], parts: vec![error(CONTINUE)] },
        Turn::Model(vec![called("a"), called("b")]),
        Turn::User {
            results: vec![
                answered("a", "No result of this call was recorded.", true),
                answered("b", "(no output)", false),
            ],
            parts: vec![error("meanwhile")],
        },
        Turn::Model(vec![Said::Text("half".to_owned())]),
        Turn::User { results: vec![], parts: vec![error(CONTINUE)] },
    ];
    assert_eq!(turns, expected);
}

#[test]
fn the_oldest_of_too_many_pictures_are_left_out() {
    let picture = || Block::Image { data: PICTURE.to_owned(), media_type: "image/png".to_owned() };
    let messages = [user((0..60).map(|_| picture()).collect()), user((0..60).map(|_| picture()).collect())];
    let turns = conversation(&messages, &speaker(Api::OpenaiChat)).0;
    let [Turn::User { parts, .. }] = turns.as_slice() else { panic!("{turns:?}") };
    let left_out = parts.iter().take_while(|part| matches!(part, Part::Text(_))).count();
    assert_eq!((left_out, parts.len()), (20, 120));
}
