//! The request of Chat Completions.
//!
//! Owns its spelling. Content without pictures is a plain string, which every server that speaks the protocol
//! accepts.

use serde_json::{Value, json};

use crate::provider::ask::Ask;
use crate::provider::conversation::{Answered, Part, Said, Turn};
use model::guard::retry::ThinkingLevel;

/// Between two texts of one message.
const TEXT_BREAK: &str = "\n\n";

/// Stands in a result whose pictures follow as a message.
const SEE_BELOW: &str = "(the pictures follow)";

/// The request as JSON.
pub(in crate::provider) fn body(ask: &Ask<'_>) -> Value {
    let mut messages: Vec<Value> = Vec::new();
    messages.extend(ask.system().map(|system| json!({ "role": "system", "content": system })));
    for turn in &ask.conversation.0 {
        match turn {
            Turn::User { results, parts } => {
                messages.extend(results.iter().map(result));
                let pictures =
                    results.iter().flat_map(|result| &result.parts).filter(|part| is_picture(part));
                let parts: Vec<&Part> = pictures.chain(parts).collect();
                if !parts.is_empty() {
                    messages.push(json!({ "role": "user", "content": content(&parts) }));
                }
            }
            Turn::Model(said) => messages.push(answer(said)),
        }
    }
    let mut body = json!({
        "model": ask.name(), "stream": true, "stream_options": { "include_usage": true },
        "messages": messages,
    });
    // Elsewhere the older name is the one that is known.
    let output_max = if ask.is_vendors() { "max_completion_tokens" } else { "max_tokens" };
    body[output_max] = ask.output_max().into();
    let tools: Vec<Value> = ask
        .request
        .tools
        .iter()
        .map(|tool| {
            let function = json!({
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            });
            json!({ "type": "function", "function": function })
        })
        .collect();
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    if ask.is_forced() {
        body["tool_choice"] = "required".into();
    }
    match ask.thinking() {
        ThinkingLevel::Off => {}
        level @ (ThinkingLevel::Minimal
        | ThinkingLevel::Low
        | ThinkingLevel::Medium
        | ThinkingLevel::High
        | ThinkingLevel::XHigh) => {
            body["reasoning_effort"] = level.name().into();
        }
    }
    body
}

fn is_picture(part: &Part) -> bool {
    matches!(part, Part::Picture { .. })
}

fn joined<'a>(parts: impl IntoIterator<Item = &'a Part>) -> String {
    let texts: Vec<&str> = parts
        .into_iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Picture { .. } => None,
        })
        .collect();
    texts.join(TEXT_BREAK)
}

fn content(parts: &[&Part]) -> Value {
    if !parts.iter().any(|part| is_picture(part)) {
        return joined(parts.iter().copied()).into();
    }
    parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Picture { data, media_type } => json!({
                "type": "image_url", "image_url": { "url": format!("data:{media_type};base64,{data}") },
            }),
        })
        .collect()
}

/// A result is text alone here; its pictures follow in the next message of the person.
fn result(result: &Answered) -> Value {
    let text = Some(joined(&result.parts)).filter(|text| !text.is_empty());
    json!({
        "role": "tool", "tool_call_id": result.id, "content": text.unwrap_or_else(|| SEE_BELOW.to_owned()),
    })
}

fn answer(said: &[Said]) -> Value {
    let (mut texts, mut calls): (Vec<&str>, Vec<Value>) = (Vec::new(), Vec::new());
    for part in said {
        match part {
            Said::Text(text) => texts.push(text),
            Said::Call { id, name, arguments } => calls.push(json!({
                "id": id, "type": "function",
                "function": { "name": name, "arguments": arguments.to_string() },
            })),
            // This protocol has no place for it.
            Said::Thinking { .. } | Said::Sealed { .. } => {}
        }
    }
    let content = Some(texts.join(TEXT_BREAK)).filter(|text| !text.is_empty());
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}
