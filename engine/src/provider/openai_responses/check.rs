//! The grammar of a request of Responses.
//!
//! Owns what a provider would refuse. It looks at the JSON as it will be sent, and nothing else.

use serde_json::Value;

use crate::provider::fields::{list, text};
use crate::provider::grammar::{self, Calls, prose};
use crate::provider::violation::Violation;

/// Refuses what a provider would refuse.
pub(in crate::provider) fn check(body: &Value) -> Result<(), Violation> {
    let input = list(body, "input");
    let mut calls = Calls::default();
    // Reasoning leads to something: what it leads to must follow.
    let mut reasoning = None;
    let mut is_after_result = false;
    for (at, item) in input.iter().enumerate() {
        let is_result = text(item, "type") == "function_call_output";
        // The results of an answer come together.
        if std::mem::replace(&mut is_after_result, is_result) && !is_result {
            calls.settled()?;
        }
        let is_models = match text(item, "type") {
            "message" => message(item, at, &calls)?,
            "reasoning" => {
                if text(item, "encrypted_content").is_empty() || !item["summary"].is_array() {
                    return Err(Violation::Thinking { at });
                }
                reasoning = Some(at);
                continue;
            }
            "function_call" => {
                let id = text(item, "call_id");
                calls.call(id, text(item, "name"))?;
                grammar::arguments(text(item, "arguments"), id)?;
                true
            }
            "function_call_output" => {
                calls.result(text(item, "call_id"))?;
                output(&item["output"], at)?;
                false
            }
            _ => return Err(Violation::MisplacedBlock { at }),
        };
        if let Some(at) = reasoning.take().filter(|_| !is_models) {
            return Err(Violation::Thinking { at });
        }
    }
    calls.settled()?;
    let last = input.last().ok_or(Violation::NoMessages)?;
    let is_persons = text(last, "role") == "user" || text(last, "type") == "function_call_output";
    if !is_persons {
        return Err(Violation::RoleOrder { at: input.len() - 1 });
    }
    grammar::tools(list(body, "tools").iter().map(|tool| text(tool, "name")))
}

/// True if the message is the model's. Between a call and its result only other calls stand.
fn message(item: &Value, at: usize, calls: &Calls<'_>) -> Result<bool, Violation> {
    let content = list(item, "content");
    if content.is_empty() {
        return Err(Violation::EmptyBlock { at });
    }
    match grammar::role(item) {
        "user" => {
            calls.settled()?;
            content.iter().try_for_each(|block| part(block, at))?;
            Ok(false)
        }
        "assistant" => {
            for block in content {
                match text(block, "type") {
                    "output_text" => prose(text(block, "text"), at)?,
                    _ => return Err(Violation::MisplacedBlock { at }),
                }
            }
            Ok(true)
        }
        _ => Err(Violation::RoleOrder { at }),
    }
}

fn output(output: &Value, at: usize) -> Result<(), Violation> {
    match output {
        Value::String(text) => prose(text, at),
        Value::Array(parts) if !parts.is_empty() => parts.iter().try_for_each(|block| part(block, at)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(Violation::EmptyBlock { at })
        }
    }
}

fn part(block: &Value, at: usize) -> Result<(), Violation> {
    match text(block, "type") {
        "input_text" => prose(text(block, "text"), at),
        "input_image" => grammar::picture_url(text(block, "image_url"), at),
        _ => Err(Violation::MisplacedBlock { at }),
    }
}
