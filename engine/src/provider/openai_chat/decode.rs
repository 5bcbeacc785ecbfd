//! The stream of an answer by Chat Completions.
//!
//! Owns the meaning of each chunk, also of servers that leave out or add fields. It must never end an answer
//! before `[DONE]`: the usage comes after the last choice.

use serde_json::Value;

use crate::provider::classify;
use crate::provider::draft::{Draft, Ending};
use crate::provider::fault::Fault;
use crate::provider::fields::{list, number, text, usage};
use crate::provider::reader::{Decode, data};
use crate::provider::sse::Event;

/// Where the stream is.
#[derive(Debug, Default)]
pub(in crate::provider) struct Decoder {
    /// The text or thinking that grows.
    prose: Option<(Prose, usize)>,
    /// The calls: their index in the protocol, and in the draft.
    calls: Vec<(u64, usize)>,
    /// What the model said instead of an answer.
    refusal: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prose {
    Text,
    Thinking,
}

impl Decode for Decoder {
    fn take(&mut self, event: &Event, draft: &mut Draft) -> Result<(), Fault> {
        match event.data.trim() {
            "" => return Ok(()),
            "[DONE]" => {
                self.end(draft);
                return Ok(());
            }
            _ => {}
        }
        let chunk = data(event)?;
        if event.name == "error" || chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(classify::event(&chunk));
        }
        if draft.response_id.is_none() {
            draft.response_id = Some(text(&chunk, "id")).filter(|id| !id.is_empty()).map(str::to_owned);
        }
        if let Some(counts) = chunk.get("usage").filter(|counts| counts.is_object()) {
            draft.usage = Some(usage(counts, "prompt_tokens", "completion_tokens"));
        }
        // Only one choice is asked for.
        let Some(choice) = list(&chunk, "choices").first() else { return Ok(()) };
        self.grow(choice.get("delta").unwrap_or(&Value::Null), draft)?;
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            draft.ending = Some(match reason {
                "length" => Ending::Length,
                "content_filter" => Ending::Refused("content_filter: the answer was withheld".to_owned()),
                _ => Ending::Stop,
            });
        }
        Ok(())
    }
}

impl Decoder {
    fn grow(&mut self, delta: &Value, draft: &mut Draft) -> Result<(), Fault> {
        for key in ["reasoning_content", "reasoning"] {
            let thinking = text(delta, key);
            if !thinking.is_empty() {
                self.prose(Prose::Thinking, thinking, draft)?;
                // A server that gives both means the same.
                break;
            }
        }
        match delta.get("content") {
            Some(Value::String(content)) => self.prose(Prose::Text, content, draft)?,
            Some(Value::Array(parts)) => {
                for part in parts {
                    self.prose(Prose::Text, text(part, "text"), draft)?;
                }
            }
            _ => {}
        }
        let refusal = text(delta, "refusal");
        self.refusal.push_str(refusal);
        self.prose(Prose::Text, refusal, draft)?;
        for call in list(delta, "tool_calls") {
            self.call(call, draft)?;
        }
        Ok(())
    }

    fn prose(&mut self, kind: Prose, more: &str, draft: &mut Draft) -> Result<(), Fault> {
        if more.is_empty() {
            return Ok(());
        }
        let index = match self.prose {
            Some((open, index)) if open == kind => index,
            before => {
                if let Some((_, index)) = before {
                    draft.close(index);
                }
                match kind {
                    Prose::Text => draft.open_text()?,
                    Prose::Thinking => draft.open_thinking()?,
                }
            }
        };
        self.prose = Some((kind, index));
        draft.push(index, more)
    }

    /// A call is begun by its first part; a part without an index goes on with the last one, unless it has an
    /// id.
    fn call(&mut self, part: &Value, draft: &mut Draft) -> Result<(), Fault> {
        let function = part.get("function").unwrap_or(&Value::Null);
        let (id, name) = (text(part, "id"), text(function, "name"));
        let last = self.calls.last().map(|(at, _)| *at);
        let at = match (number(part, "index"), last) {
            (Some(at), _) => at,
            (None, Some(last)) if id.is_empty() => last,
            (None, last) => last.map_or(0, |last| last.saturating_add(1)),
        };
        let known = self.calls.iter().find(|(known, _)| *known == at).map(|(_, index)| *index);
        let index = match known {
            Some(index) => {
                draft.name_call(index, id, name);
                index
            }
            None => {
                if let Some((_, index)) = self.prose.take() {
                    draft.close(index);
                }
                let index = draft.open_call(id, name)?;
                self.calls.push((at, index));
                index
            }
        };
        match function.get("arguments") {
            Some(Value::String(more)) => draft.push(index, more),
            Some(whole @ Value::Object(_)) => draft.push(index, &whole.to_string()),
            _ => Ok(()),
        }
    }

    fn end(&mut self, draft: &mut Draft) {
        for (at, index) in &self.calls {
            // Some servers give calls no ids; the loop needs one for each.
            draft.name_call(*index, &format!("call_{at}"), "");
        }
        if !self.refusal.is_empty() {
            draft.ending = Some(Ending::Refused(format!("refusal: {}", self.refusal)));
        }
        draft.close_all();
        draft.is_over = true;
    }
}
