//! The request of Responses.
//!
//! Owns its spelling. Nothing that the provider keeps is relied on for the next request: reasoning comes back sealed, and
//! is sent again. It keeps an answer in the background, which could not be found again otherwise.

use serde_json::{Value, json};

use crate::config::Model;
use crate::provider::ask::Ask;
use crate::provider::conversation::{Answered, Part, Said, Turn};
use crate::provider::fields::text;
use model::guard::retry::ThinkingLevel;

/// Vendor's models that have no reasoning, and refuse to be asked for it.
const UNREASONING: [&str; 3] = ["gpt-3", "gpt-4", "chatgpt-"];

/// The most bytes of the key that keeps a session's requests on one cache.
const CACHE_KEY_BYTES_MAX: usize = 64;

/// The request as JSON.
pub(in crate::provider) fn body(ask: &Ask<'_>) -> Value {
    let input: Vec<Value> = ask.conversation.0.iter().flat_map(items).collect();
    let mut body =
        json!({ "model": ask.name(), "stream": true, "store": ask.model.background, "input": input });
    if ask.model.background {
        body["background"] = true.into();
    }
    if let Some(system) = ask.system() {
        body["instructions"] = system.into();
    }
    body["max_output_tokens"] = ask.output_max().into();
    let tools: Vec<Value> = ask
        .request
        .tools
        .iter()
        .map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": tool.parameters, "strict": false,
            })
        })
        .collect();
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    if ask.is_forced() {
        body["tool_choice"] = "required".into();
    }
    let level = ask.thinking();
    if level != ThinkingLevel::Off {
        body["reasoning"] = json!({ "effort": level.name(), "summary": "auto" });
    }
    if has_reasoning(ask.model) || level != ThinkingLevel::Off {
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    let session = &ask.request.origin.session;
    if ask.is_vendors() && !session.is_empty() && session.len() <= CACHE_KEY_BYTES_MAX {
        body["prompt_cache_key"] = session.as_str().into();
    }
    body
}

/// True for a vendor's model whose answers hold sealed reasoning without being told to think.
pub(in crate::provider) fn has_reasoning(model: &Model) -> bool {
    let name = model.model.as_deref().unwrap_or_default();
    model.base_url.is_none() && !UNREASONING.iter().any(|older| name.starts_with(older))
}

fn items(turn: &Turn) -> Vec<Value> {
    match turn {
        Turn::User { results, parts } => {
            let mut items: Vec<Value> = results.iter().map(result).collect();
            if !parts.is_empty() {
                let content: Vec<Value> = parts.iter().map(part).collect();
                items.push(json!({ "type": "message", "role": "user", "content": content }));
            }
            items
        }
        Turn::Model(said) => {
            let mut items: Vec<Value> = Vec::new();
            for part in said {
                items.extend(item(part));
            }
            items
        }
    }
}

fn part(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "input_text", "text": text }),
        Part::Picture { data, media_type } => json!({
            "type": "input_image", "detail": "auto",
            "image_url": format!("data:{media_type};base64,{data}"),
        }),
    }
}

/// A result is a plain string unless it has pictures; not every server takes a list.
fn result(result: &Answered) -> Value {
    let texts: Option<Vec<&str>> = (result.parts.iter())
        .map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Picture { .. } => None,
        })
        .collect();
    let output: Value = match texts {
        Some(texts) => texts.join("\n\n").into(),
        None => result.parts.iter().map(part).collect(),
    };
    json!({ "type": "function_call_output", "call_id": result.id, "output": output })
}

fn item(said: &Said) -> Option<Value> {
    match said {
        Said::Text(text) => Some(json!({
            "type": "message", "role": "assistant",
            "content": [{ "type": "output_text", "text": text }],
        })),
        Said::Thinking { signature, .. } => reasoning(signature),
        Said::Call { id, name, arguments } => Some(json!({
            "type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string(),
        })),
        Said::Sealed { .. } => None,
    }
}

/// The item that a signature holds, without what only an answer may say of it. One that is not sealed would
/// have to be found at the provider, which keeps nothing.
fn reasoning(signature: &str) -> Option<Value> {
    let item: Value = serde_json::from_str(signature).ok()?;
    let sealed = Some(text(&item, "encrypted_content")).filter(|sealed| !sealed.is_empty())?;
    let summary = item.get("summary").filter(|summary| summary.is_array()).cloned();
    let mut kept = json!({
        "type": "reasoning", "summary": summary.unwrap_or_else(|| json!([])), "encrypted_content": sealed,
    });
    let id = text(&item, "id");
    if !id.is_empty() {
        kept["id"] = id.into();
    }
    Some(kept)
}
