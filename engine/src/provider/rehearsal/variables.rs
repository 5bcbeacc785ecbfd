//! The variables of a script, and how they are replaced.
//!
//! Owns their names and values. It must never look into a value that it put in: a prompt with `{{turn}}` in
//! it stays as it is.

use std::borrow::Cow;

use serde_json::Value;

use crate::provider::Request;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// The variables of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variables<'a>(pub(super) &'a Request);

/// Whether `text` needs a look at all.
pub(super) fn may_be_in(text: &str) -> bool {
    text.contains(OPEN)
}

impl Variables<'_> {
    /// `text` with its variables replaced. What is not a variable stays as it is.
    pub(super) fn fill(self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(OPEN) {
            let (before, here) = rest.split_at(at);
            filled.push_str(before);
            if let Some((value, after)) = self.leading(here) {
                filled.push_str(&value);
                rest = after;
            } else {
                filled.push_str(&here[..1]);
                rest = &here[1..];
            }
        }
        filled.push_str(rest);
        filled
    }

    /// `value` with the variables in its strings replaced, at any depth. Keys stay as they are.
    pub(super) fn fill_value(self, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, field)| (key.clone(), self.fill_value(field))).collect()
            }
        }
    }

    /// The value of the variable that `text` starts with, and what follows it.
    fn leading<'t>(&self, text: &'t str) -> Option<(Cow<'_, str>, &'t str)> {
        let text = text.strip_prefix(OPEN)?;
        let name_end = text.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
        let (name, rest) = text.split_at(name_end);
        Some((self.value(name)?, rest.strip_prefix(CLOSE)?))
    }

    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let Request { origin, turn, attempt, .. } = self.0;
        Some(match name {
            "custom_id" => origin.custom_id.as_str().into(),
            "prompt" => origin.prompt.as_str().into(),
            "run" => origin.run.to_string().into(),
            "session" => origin.session.as_str().into(),
            "workspace" => origin.workspace.as_str().into(),
            "turn" => turn.to_string().into(),
            "attempt" => attempt.to_string().into(),
            _ => return None,
        })
    }
}
