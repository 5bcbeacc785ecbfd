//! The grammar of a request of Chat Completions.
//!
//! Owns what a provider would refuse. It looks at the JSON as it will be sent, and nothing else.

use serde_json::Value;

use crate::provider::fields::{list, text};
use crate::provider::grammar::{self, Calls, prose};
use crate::provider::violation::Violation;

/// Refuses what a provider would refuse.
pub(in crate::provider) fn check(body: &Value) -> Result<(), Violation> {
    let messages = list(body, "messages");
    let mut calls = Calls::default();
    let mut before = "";
    for (at, message) in messages.iter().enumerate() {
        let role = grammar::role(message);
        if role != "tool" {
            calls.settled()?;
        }
        match (before, role) {
            ("", "system") => prose(text(message, "content"), at)?,
            ("" | "system" | "assistant" | "tool", "user") => user(message, at)?,
            ("user" | "tool", "assistant") => assistant(message, at, &mut calls)?,
            ("assistant" | "tool", "tool") => {
                prose(text(message, "content"), at)?;
                calls.result(text(message, "tool_call_id"))?;
            }
            _ => return Err(Violation::RoleOrder { at }),
        }
        before = role;
    }
    calls.settled()?;
    match before {
        "user" | "tool" => {}
        "" | "system" => return Err(Violation::NoMessages),
        _ => return Err(Violation::RoleOrder { at: messages.len() - 1 }),
    }
    grammar::tools(list(body, "tools").iter().map(|tool| text(&tool["function"], "name")))
}

fn user(message: &Value, at: usize) -> Result<(), Violation> {
    let Some(parts) = message.get("content").and_then(Value::as_array) else {
        return prose(text(message, "content"), at);
    };
    if parts.is_empty() {
        return Err(Violation::EmptyBlock { at });
    }
    parts.iter().try_for_each(|part| match text(part, "type") {
        "text" => prose(text(part, "text"), at),
        "image_url" => grammar::picture_url(text(&part["image_url"], "url"), at),
        _ => Err(Violation::MisplacedBlock { at }),
    })
}

fn assistant<'a>(message: &'a Value, at: usize, calls: &mut Calls<'a>) -> Result<(), Violation> {
    let made = list(message, "tool_calls");
    // Without content there are calls.
    if made.is_empty() || !message["content"].is_null() {
        prose(text(message, "content"), at)?;
    }
    for call in made {
        let (id, function) = (text(call, "id"), &call["function"]);
        calls.call(id, text(function, "name"))?;
        grammar::arguments(text(function, "arguments"), id)?;
    }
    Ok(())
}
