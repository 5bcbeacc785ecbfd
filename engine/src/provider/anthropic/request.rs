//! The request of Anthropic's Messages.
//!
//! Owns its spelling, where its cache begins, and how much thinking each level is.

use serde_json::{Value, json};

use crate::provider::ask::Ask;
use crate::provider::conversation::{Answered, Part, Said, Turn};
use model::guard::retry::ThinkingLevel;

/// The least and the usual budgets of thinking, in tokens.
const BUDGET_MIN: u64 = 1_024;

/// Models that are given a budget of thinking; later ones decide themselves how much an effort needs.
const BUDGETED: [&str; 9] = [
    "claude-2",
    "claude-3",
    "claude-opus-4-0",
    "claude-opus-4-1",
    "claude-opus-4-2",
    "claude-opus-4-5",
    "claude-sonnet-4-2",
    "claude-sonnet-4-5",
    "claude-haiku-4",
];

/// How many of the last turns of a person end a stretch that is cached: the newest, and the one before it,
/// which the call before has written.
const CACHED_TURNS: usize = 2;

/// The request as JSON.
pub(in crate::provider) fn body(ask: &Ask<'_>) -> Value {
    let mut body = json!({
        "model": ask.name(), "max_tokens": ask.output_max(), "stream": true, "messages": messages(ask),
    });
    if let Some(system) = ask.system() {
        body["system"] = json!([cached(json!({ "type": "text", "text": system }))]);
    }
    let mut tools: Vec<Value> = (ask.request.tools.iter())
        .map(|tool| {
            json!({ "name": tool.name, "description": tool.description, "input_schema": tool.parameters })
        })
        .collect();
    if let Some(last) = tools.pop() {
        tools.push(cached(last));
        body["tools"] = tools.into();
    }
    if ask.is_forced() {
        body["tool_choice"] = json!({ "type": "any" });
    }
    if let Some((thinking, effort)) = thinking(ask) {
        body["thinking"] = thinking;
        if let Some(effort) = effort {
            body["output_config"] = json!({ "effort": effort });
        }
    }
    body
}

fn cached(mut block: Value) -> Value {
    block["cache_control"] = json!({ "type": "ephemeral" });
    block
}

fn messages(ask: &Ask<'_>) -> Vec<Value> {
    let turns = &ask.conversation.0;
    let person_turns = turns.iter().filter(|turn| matches!(turn, Turn::User { .. })).count();
    let mut left = person_turns;
    turns
        .iter()
        .map(|turn| match turn {
            Turn::User { results, parts } => {
                left -= 1;
                let mut blocks: Vec<Value> =
                    results.iter().map(result).chain(parts.iter().map(part)).collect();
                if left < CACHED_TURNS
                    && let Some(last) = blocks.pop()
                {
                    blocks.push(cached(last));
                }
                json!({ "role": "user", "content": blocks })
            }
            Turn::Model(said) => {
                json!({ "role": "assistant", "content": said.iter().map(block).collect::<Vec<_>>() })
            }
        })
        .collect()
}

fn part(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Picture { data, media_type } => json!({
            "type": "image", "source": { "type": "base64", "media_type": media_type, "data": data },
        }),
    }
}

fn result(result: &Answered) -> Value {
    let content: Vec<Value> = result.parts.iter().map(part).collect();
    let mut block = json!({ "type": "tool_result", "tool_use_id": result.id, "content": content });
    if result.is_error {
        block["is_error"] = true.into();
    }
    block
}

fn block(said: &Said) -> Value {
    match said {
        Said::Text(text) => json!({ "type": "text", "text": text }),
        Said::Thinking { text, signature } => {
            json!({ "type": "thinking", "thinking": text, "signature": signature })
        }
        Said::Sealed { data } => json!({ "type": "redacted_thinking", "data": data }),
        Said::Call { id, name, arguments } => {
            json!({ "type": "tool_use", "id": id, "name": name, "input": arguments })
        }
    }
}

/// What the request says of thinking, and the effort beside it. None: nothing.
fn thinking(ask: &Ask<'_>) -> Option<(Value, Option<&'static str>)> {
    let (budget, effort) = match ask.thinking() {
        ThinkingLevel::Off => return None,
        ThinkingLevel::Minimal => (BUDGET_MIN, "low"),
        ThinkingLevel::Low => (4_096, "low"),
        ThinkingLevel::Medium => (10_240, "medium"),
        ThinkingLevel::High => (20_480, "high"),
        ThinkingLevel::XHigh => (32_768, "max"),
    };
    let name = ask.name();
    let is_budgeted = !name.starts_with("claude-") || BUDGETED.iter().any(|older| name.starts_with(older));
    if !is_budgeted {
        return Some((json!({ "type": "adaptive" }), Some(effort)));
    }
    let budget = budget.min(ask.output_max() / 2);
    let is_possible = budget >= BUDGET_MIN && !is_amid_foreign_calls(&ask.conversation.0);
    is_possible.then(|| (json!({ "type": "enabled", "budget_tokens": budget }), None))
}

/// True if results come back to an answer that does not begin with thinking of this model: another model gave
/// it, and with a budget of thinking it would be refused.
fn is_amid_foreign_calls(turns: &[Turn]) -> bool {
    match turns {
        [.., Turn::Model(said), Turn::User { results, .. }] if !results.is_empty() => {
            !matches!(said.first(), Some(Said::Thinking { .. } | Said::Sealed { .. }))
        }
        _ => false,
    }
}
