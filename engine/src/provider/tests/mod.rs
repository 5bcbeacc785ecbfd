//! Providers, tried with bytes: recordings of servers that others wrote, requests as they are sent, hostile
//! peers.

mod background;
mod classify;
mod connection;
mod recordings;
mod replay;
mod requests;
mod transcripts;

use std::path::Path;
use std::sync::Arc;

use model::message::{AssistantMessage, StopReason, ToolCall, ToolResultMessage};
use model::{Block, JsonText, Message, Millis, ToolResult};
use serde_json::Value;

use super::reader::{Reader, Speaker};
use super::{Prepared, Request};
use crate::config::{Api, Model};
use crate::tool::ToolSpec;

const APIS: [Api; 3] = [Api::AnthropicMessages, Api::OpenaiChat, Api::OpenaiResponses];

fn speaker(api: Api) -> Speaker {
    Speaker { api, provider: "p".to_owned(), model: "m".to_owned() }
}

fn reader(api: Api) -> Reader {
    Reader::new(speaker(api), 100).unwrap()
}

/// A recorded response as it came over the wire, head and framing included.
fn recorded(name: &str) -> Vec<u8> {
    let file = format!("../tests/recorded/{name}.http");
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The body of a response whose transfer is chunked.
fn body(response: &[u8]) -> Vec<u8> {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let (mut rest, mut body) = (&response[end + 4..], Vec::new());
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
}

/// Compares with a reviewed file beside this one; `BLESS=1` writes it.
fn assert_reviewed(file: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/provider/tests").join(file);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{file} differs; run with BLESS=1 and read the diff\n{actual}");
}

fn configured(api: Api) -> Model {
    Model { model: Some("m".to_owned()), ..Model::new(api) }
}

fn request(messages: impl IntoIterator<Item = Message>, tools: &[&str]) -> Request {
    let prepared = |message| Arc::new(Prepared { message, hash: [0; 32] });
    let spec = |name: &&str| {
        let parameters = serde_json::json!({ "type": "object", "properties": {} });
        ToolSpec::new(*name, format!("does {name}"), parameters)
    };
    Request {
        origin: Arc::default(),
        turn: 0,
        attempt: 0,
        model: "configured".to_owned(),
        profile: None,
        thinking: "off".to_owned(),
        system: Some(Arc::from("Be exact.")),
        messages: messages.into_iter().map(prepared).collect(),
        tools: tools.iter().map(spec).collect(),
        spool: None,
        recording: None,
    }
}

fn user(content: Vec<Block>) -> Message {
    Message::User(model::message::UserMessage { content, at: Millis(0) })
}

fn text(text: &str) -> Block {
    Block::Text(text.to_owned())
}

fn call(id: &str, name: &str, arguments: Value) -> Block {
    Block::ToolCall(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: JsonText::from(&arguments),
        is_duplicate: false,
    })
}

/// An answer of the model that `speaker` says.
fn answer(api: Api, stop_reason: StopReason, content: Vec<Block>) -> Message {
    let Speaker { api, provider, model } = speaker(api);
    let api = api.to_string();
    Message::Assistant(Box::new(AssistantMessage {
        content,
        api,
        provider,
        model,
        stop_reason,
        ..AssistantMessage::default()
    }))
}

fn result(call_id: &str, result: ToolResult) -> Message {
    let (call_id, tool, at) = (call_id.to_owned(), "ls".to_owned(), Millis(0));
    Message::ToolResult(Box::new(ToolResultMessage { call_id, tool, result, at }))
}
