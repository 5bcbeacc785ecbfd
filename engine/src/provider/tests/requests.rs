//! Requests as they are sent, whole and reviewed; what is not sent; what is reserved for a call.

use std::fmt::Write;
use std::sync::Arc;

use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason, Usage};
use model::{Block, JsonText, Message, ToolResult};
use serde_json::json;

use super::{APIS, answer, assert_reviewed, call, configured, request, result, text, user};
use crate::config::{Api, Config, Model, Price, Profile, ToolChoice};
use crate::provider::{Client, Intent, ModelProvider, Remote, Request};

fn remote(model: Model) -> Remote {
    Remote::new(model, Arc::default(), Client::new().unwrap()).unwrap()
}

fn transcript(api: Api) -> Vec<Message> {
    let signature = match api {
        Api::OpenaiResponses => {
            json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "EnC+/=", "status": null })
                .to_string()
        }
        Api::AnthropicMessages | Api::OpenaiChat | Api::Rehearsal | Api::Replay => "SiG+/=".to_owned(),
    };
    let redacted = JsonText::from(&json!({ "type": "redacted_thinking", "data": "DaTa+/=" }));
    let picture = Block::Image { data: "iVBORw0KGgo=".to_owned(), media_type: "image/png".to_owned() };
    let mut said = answer(
        api,
        StopReason::ToolUse,
        vec![
            Block::Thinking { text: "Look first.".to_owned(), signature: Some(signature) },
            Block::Other(redacted),
            text("I look."),
            call("call_1", "ls", json!({ "path": "." })),
            call("call_1~2", "read", json!("no object")),
        ],
    );
    if let Message::Assistant(said) = &mut said {
        said.provider = match api {
            Api::AnthropicMessages => "anthropic".to_owned(),
            Api::OpenaiChat | Api::OpenaiResponses | Api::Rehearsal | Api::Replay => "openai".to_owned(),
        };
    }
    let shown = ToolResult { content: vec![text("a.txt"), picture.clone()], ..ToolResult::default() };
    vec![
        user(vec![text("What is here?"), picture]),
        said,
        result("call_1", shown),
        result("call_1~2", ToolResult::error("path is required")),
        user(vec![text("Go on.")]),
    ]
}

fn bodies(thinking: &str, tools: &[&str]) -> String {
    let mut table = String::new();
    for api in APIS {
        let request = Request { thinking: thinking.to_owned(), ..request(transcript(api), tools) };
        let outgoing = remote(configured(api)).endpoint.outgoing(&request).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&outgoing.body).unwrap();
        writeln!(table, "POST {}\n{:?}\n{body:#}\n", outgoing.url, outgoing.headers).unwrap();
    }
    table
}

#[test]
fn a_request_is_spelled_as_reviewed() {
    assert_reviewed("requests.txt", &(bodies("high", &["ls", "read"]) + &bodies("off", &[])));
}

#[test]
fn an_address_is_completed() {
    let url = |api, base: &str| {
        let model = Model { base_url: Some(base.to_owned()), ..configured(api) };
        remote(model).endpoint.outgoing(&request([user(vec![text("hi")])], &[])).unwrap().url.to_string()
    };
    let rows = [
        (Api::AnthropicMessages, "http://h", "http://h/v1/messages"),
        (Api::AnthropicMessages, "http://h/v1/", "http://h/v1/messages"),
        (Api::AnthropicMessages, "https://h/anthropic", "https://h/anthropic/v1/messages"),
        (Api::OpenaiChat, "http://h:1", "http://h:1/v1/chat/completions"),
        (Api::OpenaiChat, "https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        (
            Api::OpenaiChat,
            "https://h/openai/v1?api-version=1",
            "https://h/openai/v1/chat/completions?api-version=1",
        ),
        (Api::OpenaiResponses, "http://h/v1", "http://h/v1/responses"),
    ];
    for (api, base, expected) in rows {
        assert_eq!(url(api, base), expected);
    }
}

#[test]
fn a_reserve_is_what_the_call_may_use_at_most() {
    let usd = |text: &str| text.parse().unwrap();
    let price = Price { input: usd("1"), output: usd("2"), ..Price::default() };
    let model = Model { max_output: Some(1_000), price: Some(price), ..configured(Api::OpenaiChat) };
    let picture = Block::Image { data: "A".repeat(4_000), media_type: "image/png".to_owned() };
    let remote = remote(model);
    let plain = remote.prepare(&request([user(vec![text("hi")])], &[])).unwrap();
    let pictured = remote.prepare(&request([user(vec![text("hi"), picture])], &[])).unwrap();
    let Intent { hash, converter_version, reserve } = plain;
    assert_eq!(
        hash,
        *blake3::hash(&remote.endpoint.outgoing(&request([user(vec![text("hi")])], &[])).unwrap().body)
            .as_bytes()
    );
    assert_eq!((converter_version, reserve.output, reserve.usd_micros), (1, 1_000, reserve.input + 2_000));
    let more = pictured.reserve.input - reserve.input;
    assert!((1_600..1_650).contains(&more), "a picture counts as one, not by its bytes: {more}");
}

#[test]
fn a_byte_that_is_not_ascii_may_be_a_token_and_a_prompt_is_no_shorter_than_the_last_one_counted() {
    let remote = remote(configured(Api::OpenaiChat));
    let input = |messages: Vec<Message>| remote.prepare(&request(messages, &[])).unwrap().reserve.input;
    let said = |words: &str| input(vec![user(vec![text(words)])]);
    let little = said("a");
    assert_eq!(said(&"a".repeat(401)) - little, 100);
    assert_eq!(said(&format!("a{}", "\u{4e2d}".repeat(100))) - little, 300);
    // A text that holds the escape, as the arguments of a call may: its second backslash is ASCII.
    assert_eq!(said(&format!("a{}", r"\u4e2d".repeat(100))) - little, 625);
    let usage = Usage { input: 1, cache_read: 1_500, cache_write: 59, ..Usage::default() };
    let answer = Message::Assistant(Box::new(AssistantMessage {
        content: vec![text("yes")],
        usage,
        stop_reason: StopReason::Stop,
        ..AssistantMessage::default()
    }));
    assert_eq!(input(vec![user(vec![text("hi")]), answer, user(vec![text("go")])]), 1_560);
}

#[test]
fn what_a_provider_would_refuse_is_not_sent() {
    let refused = |model: Model, request: &Request| -> (FailureKind, String) {
        let Failure { kind, partial, .. } = remote(model).prepare(request).unwrap_err();
        (kind, partial.unwrap().error_message.unwrap())
    };
    let asking = |tools: &[&str]| request([user(vec![text("hi")])], tools);
    let not_sent = |words: &str| format!("the request was not sent: {words}");
    for api in APIS {
        let twice = (FailureKind::Format, not_sent("tool name `ls` is not accepted or not unique"));
        assert_eq!(refused(configured(api), &asking(&["ls", "ls"])), twice);
    }
    let forced = Model { tool_choice: ToolChoice::Required, ..configured(Api::AnthropicMessages) };
    let thinking = Request { thinking: "high".to_owned(), ..asking(&["ls"]) };
    assert_eq!(refused(forced, &thinking).0, FailureKind::ThinkingUnsupported);
    let long = request([user(vec![text(&"x".repeat(33 << 20))])], &[]);
    let (kind, words) = refused(configured(Api::OpenaiChat), &long);
    assert_eq!(kind, FailureKind::ContextOverflow);
    assert!(words.ends_with("bytes; 33554432 are accepted"), "{words}");
}

#[test]
fn a_key_is_looked_for_where_the_configuration_says_and_the_vendors_only_at_the_vendor() {
    let none = |_: &str| None;
    let variable = |name: &str| Some(Profile::ApiKeyEnv(name.to_owned()));
    let profiles = [("work", "KEY_A"), ("spare", "KEY_B")]
        .map(|(name, key)| (name.to_owned(), Profile::ApiKeyEnv(key.to_owned())));
    let config = Config { profiles: Arc::new(profiles.into_iter().collect()), ..Config::default() };
    let account = |model: Model, profile: Option<&str>| {
        let client = Client::new().unwrap();
        Remote::new(model, Arc::clone(&config.profiles), client).map(|remote| remote.account(profile))
    };
    let elsewhere = |api| Model { base_url: Some("http://h".to_owned()), ..configured(api) };
    let both = Model { profiles: vec!["work".to_owned(), "spare".to_owned()], ..configured(Api::OpenaiChat) };
    assert_eq!(account(configured(Api::AnthropicMessages), None), Ok(variable("ANTHROPIC_API_KEY")));
    assert_eq!(account(configured(Api::OpenaiResponses), None), Ok(variable("OPENAI_API_KEY")));
    assert_eq!(
        account(elsewhere(Api::OpenaiChat), None),
        Ok(none("no key is sent to a server that names none"))
    );
    let named = Model { api_key_env: Some("OWN".to_owned()), ..elsewhere(Api::OpenaiChat) };
    assert_eq!(account(named, None), Ok(variable("OWN")));
    assert_eq!(account(both.clone(), None), Ok(variable("KEY_A")));
    assert_eq!(account(both, Some("spare")), Ok(variable("KEY_B")));
    let unknown = Model { profiles: vec!["gone".to_owned()], ..configured(Api::OpenaiChat) };
    let words = "profile `gone` is not configured; add a table [profiles.gone]";
    assert_eq!(account(unknown, None), Err(words.to_owned()));
}
