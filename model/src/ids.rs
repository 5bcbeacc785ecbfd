//! Names of things: run ids, labels cut to a bound, canonical JSON text, times.
//!
//! Owns the small value types that every other file uses. It must never make an id: ids come from outside or
//! derive from a run id and a sequence.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Millis(pub i64);

impl Millis {
    /// The time `ms` milliseconds later.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Milliseconds from `earlier` to `self`, 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

/// Identifies one run for ever: 16 bytes chosen at submission, printed as 32 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let bad = || BadRunId { text: text.chars().take(64).collect() };
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| bad())?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// A text that is not a run id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a run id; expected 32 hexadecimal digits")]
pub struct BadRunId {
    /// The text, cut.
    pub text: String,
}

/// A name or reason of at most [`Label::BYTES_MAX`] bytes; a longer one is cut and keeps the hash of the
/// whole, so that two different long names never look equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Label {
    text: String,
    cut: Option<[u8; 8]>,
}

impl Label {
    /// The most bytes of text that a label keeps.
    pub const BYTES_MAX: usize = 64;

    /// The text, cut at a character boundary if it was longer than the bound.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        if text.len() <= Self::BYTES_MAX {
            return Self { text: text.to_owned(), cut: None };
        }
        let end = (0..=Self::BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(text.as_bytes()).as_bytes();
        Self { text: text[..end].to_owned(), cut: Some([a, b, c, d, e, f, g, h]) }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.cut.is_some() { f.write_str("…") } else { Ok(()) }
    }
}

/// A JSON value as canonical text: keys sorted, no white space. It is kept as text because the journal's
/// encoding is not self-describing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JsonText(String);

impl JsonText {
    /// The empty object.
    pub fn empty() -> Self {
        Self("{}".to_owned())
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value. The text is canonical JSON by construction; bytes that are not (a damaged decode) read as
    /// null.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }

    /// True for `{}`, the default of details and arguments.
    pub fn is_empty_object(&self) -> bool {
        self.0 == "{}"
    }
}

impl Default for JsonText {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<&serde_json::Value> for JsonText {
    fn from(value: &serde_json::Value) -> Self {
        Self(sorted(value).to_string())
    }
}

fn sorted(value: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Object(fields) => {
            let mut entries: Vec<_> = fields.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            Value::Object(entries.into_iter().map(|(key, item)| (key.clone(), sorted(item))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_distinct() {
        let long = "é".repeat(100);
        let other = format!("{}x", "é".repeat(99));
        assert_eq!(Label::from(long.as_str()).as_str().len(), 64);
        assert_ne!(Label::from(long.as_str()), Label::from(other.as_str()));
        assert_eq!(Label::from("short").as_str(), "short");
    }

    #[test]
    fn json_text_is_canonical() {
        let value: serde_json::Value =
            serde_json::from_str(r#"{ "b": [ {"z":1,"a":2} ], "a": null }"#).unwrap();
        assert_eq!(JsonText::from(&value).as_str(), r#"{"a":null,"b":[{"a":2,"z":1}]}"#);
    }

    #[test]
    fn run_ids_print_and_parse() {
        let id = RunId([0xab; 16]);
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
        assert!("xyz".parse::<RunId>().is_err());
    }
}
