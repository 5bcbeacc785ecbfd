//! The grammar of a request of Anthropic's Messages.
//!
//! Owns what the provider would refuse. It looks at the JSON as it will be sent, and nothing else.

use serde_json::Value;

use crate::provider::fields::{list, object, text};
use crate::provider::grammar::{self, Calls, prose};
use crate::provider::violation::Violation;

/// Refuses what the provider would refuse.
pub(in crate::provider) fn check(body: &Value) -> Result<(), Violation> {
    let messages = list(body, "messages");
    if messages.is_empty() {
        return Err(Violation::NoMessages);
    }
    let mut calls = Calls::default();
    for (at, message) in messages.iter().enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        if grammar::role(message) != expected {
            return Err(Violation::RoleOrder { at });
        }
        let content = list(message, "content");
        if content.is_empty() {
            return Err(Violation::EmptyBlock { at });
        }
        match expected {
            "user" => user(content, at, &mut calls)?,
            _ => assistant(content, at, &mut calls)?,
        }
    }
    if messages.len().is_multiple_of(2) {
        return Err(Violation::RoleOrder { at: messages.len() - 1 });
    }
    grammar::tools(list(body, "tools").iter().map(|tool| text(tool, "name")))?;
    let is_forced = text(&body["tool_choice"], "type") == "any";
    if is_forced && body.get("thinking").is_some() {
        return Err(Violation::ForcedWhileThinking);
    }
    Ok(())
}

fn user(content: &[Value], at: usize, calls: &mut Calls<'_>) -> Result<(), Violation> {
    for block in content {
        match text(block, "type") {
            "tool_result" => {
                calls.result(text(block, "tool_use_id"))?;
                let parts = list(block, "content");
                if parts.is_empty() {
                    return Err(Violation::EmptyBlock { at });
                }
                parts.iter().try_for_each(|part| said(part, at))?;
            }
            _ => {
                // Results come first, and all of them.
                calls.settled()?;
                said(block, at)?;
            }
        }
    }
    calls.settled()
}

fn said(block: &Value, at: usize) -> Result<(), Violation> {
    match text(block, "type") {
        "text" => prose(text(block, "text"), at),
        "image" => {
            let source = &block["source"];
            grammar::picture(text(source, "media_type"), text(source, "data"), at)
        }
        _ => Err(Violation::MisplacedBlock { at }),
    }
}

fn assistant<'a>(content: &'a [Value], at: usize, calls: &mut Calls<'a>) -> Result<(), Violation> {
    let mut is_thinking_last = false;
    for block in content {
        is_thinking_last = false;
        match text(block, "type") {
            "text" => prose(text(block, "text"), at)?,
            "thinking" | "redacted_thinking" => {
                is_thinking_last = true;
                let seal = [text(block, "signature"), text(block, "data")];
                if seal.iter().all(|seal| seal.is_empty()) {
                    return Err(Violation::Thinking { at });
                }
            }
            "tool_use" => {
                let id = text(block, "id");
                calls.call(id, text(block, "name"))?;
                if block.get("input").is_none_or(|input| !input.is_object()) {
                    return Err(Violation::Arguments { id: id.to_owned() });
                }
            }
            _ => return Err(Violation::MisplacedBlock { at }),
        }
        if object(block, "cache_control").is_some() && is_thinking_last {
            return Err(Violation::Thinking { at });
        }
    }
    if is_thinking_last { Err(Violation::Thinking { at }) } else { Ok(()) }
}
