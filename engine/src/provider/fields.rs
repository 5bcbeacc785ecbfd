//! Fields of JSON that somebody else wrote.
//!
//! Owns leniency: a field that is absent, null or of another type reads as its default. It must never fail.

use model::message::Usage;
use serde_json::Value;

/// The text at `key`; empty if there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The whole number at `key`.
pub(super) fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// The list at `key`; empty if there is none.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The object at `key`, if there is one with something in it.
pub(super) fn object<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| value.as_object().is_some_and(|fields| !fields.is_empty()))
}

/// Tokens as both protocols of OpenAI count them: what was read from the cache is part of the input.
pub(super) fn usage(value: &Value, input: &str, output: &str) -> Usage {
    let details = value.get(format!("{input}_details")).unwrap_or(&Value::Null);
    let whole = number(value, input).unwrap_or(0);
    let cache_read = number(details, "cached_tokens").unwrap_or(0).min(whole);
    Usage {
        input: whole - cache_read,
        output: number(value, output).unwrap_or(0),
        cache_read,
        ..Usage::default()
    }
}
