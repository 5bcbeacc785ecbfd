//! The first place in which two JSON values differ.
//!
//! Owns the order in which they are looked through, and how a place and its values are told. Pure.

use std::fmt;

use serde_json::Value;

/// The most characters of a value that are told.
const SHOWN_CHARS_MAX: usize = 48;

/// Characters of a text that are told before the place where it differs.
const LEAD_CHARS: usize = 12;

/// A place in which two values differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// A JSON pointer (RFC 6901); empty for the whole.
    pub(super) pointer: String,
    /// What was recorded there, in a few words.
    pub(super) recorded: String,
    /// What is there now.
    pub(super) present: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointer, recorded, present } = self;
        write!(f, "{pointer}: recorded {recorded}, now {present}")
    }
}

/// The first difference in the order in which the recorded value was written. What is only there now comes
/// after what was recorded.
pub(super) fn first(recorded: &Value, present: &Value) -> Option<Difference> {
    let mut place = Vec::new();
    let (recorded, present) = find(Some(recorded), Some(present), &mut place)?;
    let at = match (recorded, present) {
        (Some(Value::String(recorded)), Some(Value::String(present))) => alike(recorded, present),
        (_, _) => 0,
    };
    let pointer = place.iter().map(|token| format!("/{}", token.replace('~', "~0").replace('/', "~1")));
    Some(Difference {
        pointer: pointer.collect(),
        recorded: shown(recorded, at),
        present: shown(present, at),
    })
}

type Pair<'a> = (Option<&'a Value>, Option<&'a Value>);

/// The values that differ first; `place` leads to them.
fn find<'a>(
    recorded: Option<&'a Value>,
    present: Option<&'a Value>,
    place: &mut Vec<String>,
) -> Option<Pair<'a>> {
    let mut step = |token: String, recorded: Option<&'a Value>, present: Option<&'a Value>| {
        place.push(token);
        let found = find(recorded, present, place);
        if found.is_none() {
            place.pop();
        }
        found
    };
    match (recorded, present) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            old.keys().chain(added).find_map(|key| step(key.clone(), old.get(key), new.get(key)))
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => (0..old.len().max(new.len()))
            .find_map(|index| step(index.to_string(), old.get(index), new.get(index))),
        (recorded, present) if recorded == present => None,
        (recorded, present) => Some((recorded, present)),
    }
}

/// How many characters two texts have in common at their beginning.
fn alike(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count()
}

/// A value in a few words; of a long text, the part around its `at`th character.
fn shown(value: Option<&Value>, at: usize) -> String {
    let cut = |text: &str, from: usize| {
        let is_short = text.chars().nth(SHOWN_CHARS_MAX).is_none();
        let from = if is_short { 0 } else { from };
        let lead = if from > 0 { "…" } else { "" };
        let part: String = text.chars().skip(from).take(SHOWN_CHARS_MAX).collect();
        let tail = if text.chars().nth(from + SHOWN_CHARS_MAX).is_some() { "…" } else { "" };
        format!("{lead}{part}{tail}")
    };
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) => Value::from(cut(text, at.saturating_sub(LEAD_CHARS))).to_string(),
        Some(other) => cut(&other.to_string(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(recorded: &Value, present: &Value) -> Option<String> {
        first(recorded, present).map(|difference| difference.to_string())
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let recorded =
            json!({ "model": "m", "messages": [{ "role": "user", "content": "what is here" }], "n": 1 });
        let changed = |change: fn(&mut Value)| {
            let mut present = recorded.clone();
            change(&mut present);
            told(&recorded, &present)
        };
        assert_eq!(changed(|_| {}), None);
        let rows = [
            (
                changed(|value| value["messages"][0]["content"] = "what was here".into()),
                "/messages/0/content: recorded \"what is here\", now \"what was here\"",
            ),
            (
                changed(|value| value["messages"] = json!([])),
                r#"/messages/0: recorded {"role":"user","content":"what is here"}, now nothing"#,
            ),
            (changed(|value| value["n"] = json!("1")), "/n: recorded 1, now \"1\""),
            (changed(|value| value["a/b~c"] = json!(null)), "/a~1b~0c: recorded nothing, now null"),
            (
                changed(|value| {
                    value["n"] = json!(2);
                    value["model"] = json!("other");
                }),
                "/model: recorded \"m\", now \"other\"",
            ),
        ];
        for (found, expected) in rows {
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[test]
    fn the_order_of_fields_is_no_difference() {
        assert_eq!(told(&json!({ "a": 1, "b": 2 }), &json!({ "b": 2, "a": 1 })), None);
    }

    #[test]
    fn a_long_text_is_told_around_its_first_difference() {
        let recorded = json!(format!("{}żółć{}", "a".repeat(100), "b".repeat(100)));
        let present = json!(format!("{}żółw", "a".repeat(100)));
        let expected = format!(
            ": recorded \"…{}żółć{}…\", now \"…{}żółw\"",
            "a".repeat(9),
            "b".repeat(35),
            "a".repeat(9)
        );
        assert_eq!(told(&recorded, &present), Some(expected));
    }
}
