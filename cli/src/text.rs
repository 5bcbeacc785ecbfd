//! Words for people, made from what programs get as JSON.
//!
//! Owns cutting and cleaning: nothing that a model or a tool says may move the cursor or fill the screen.

use engine::Note;
use serde_json::Value;

/// Characters of a text that stand for it in a line.
const GIST_CHARS_MAX: usize = 100;

/// Characters of what went wrong, which ends with what to do about it.
const FAULT_CHARS_MAX: usize = 500;

/// The text without control characters other than newline and tab.
pub(crate) fn clean(text: &str) -> String {
    let is_kept = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if is_kept(c) { c } else { '\u{fffd}' }).collect()
}

/// The beginning of a text, on one line.
pub(crate) fn gist(text: &str) -> String {
    line(text, GIST_CHARS_MAX)
}

/// What went wrong, on one line.
pub(crate) fn fault(text: &str) -> String {
    line(text, FAULT_CHARS_MAX)
}

fn line(text: &str, chars_max: usize) -> String {
    let mut words = text.split_whitespace();
    let mut out = String::new();
    for word in words.by_ref() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > chars_max * 4 {
            break;
        }
    }
    let out = clean(&out);
    match out.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}…", out.get(..at).unwrap_or_default()),
        None if words.next().is_some() => format!("{out}…"),
        None => out,
    }
}

/// A field that is a string; empty if there is none.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A value as a person reads it: strings without quotes, nothing for null.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => clean(text),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Object(fields) if fields.is_empty() => "-".to_owned(),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            items.iter().map(plain).collect::<Vec<_>>().join(", ")
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => clean(&value.to_string()),
    }
}

/// The text of a message's or a result's content.
pub(crate) fn content_text(content: &Value) -> String {
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = blocks.iter().filter_map(|block| block.get("text")?.as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// What is said of a recording that is not whole.
pub(crate) fn lost_words(reason: &str) -> String {
    format!("the recording is not whole ({reason}); the run is: record again in a new directory")
}

/// What was found of a run or of one of its calls.
pub(crate) fn note_line(note: &Note) -> String {
    let call = note.call.map(|(turn, call)| format!("/{turn}.{call}")).unwrap_or_default();
    let place = format!("{}{call}", note.run);
    format!("{:<9} {place}  {}", note.found.name(), note.reason)
}

/// A number with its noun.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The tokens of a prompt; those that went through a cache stand apart, for they have a price of their own.
pub(crate) fn tokens_in(input: u64, cached: u64) -> String {
    if cached == 0 { format!("{input} tokens") } else { format!("{input} + {cached} cached tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_stand_beside_the_others() {
        assert_eq!([tokens_in(837, 0), tokens_in(1, 1_559)], ["837 tokens", "1 + 1559 cached tokens"]);
    }
}
