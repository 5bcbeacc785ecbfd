//! The stream of an answer by Anthropic's Messages.
//!
//! Owns the meaning of each event. It must never end an answer before `message_stop`.

use serde_json::Value;

use crate::provider::classify;
use crate::provider::draft::{Draft, Ending};
use crate::provider::fault::Fault;
use crate::provider::fields::{number, object, text};
use crate::provider::reader::{Decode, data};
use crate::provider::sse::Event;

/// Where the stream is.
#[derive(Debug, Default)]
pub(in crate::provider) struct Decoder {
    /// The blocks of the protocol that grow: their index there, and where they grow.
    open: Vec<(u64, Growing)>,
}

#[derive(Clone, Debug)]
enum Growing {
    /// In the draft at this index. A call may have brought its input whole.
    Piece { index: usize, input: Option<String> },
    /// Kept as it came.
    Sealed,
}

impl Decode for Decoder {
    fn take(&mut self, event: &Event, draft: &mut Draft) -> Result<(), Fault> {
        if event.data.is_empty() {
            return Ok(());
        }
        let value = data(event)?;
        match text(&value, "type") {
            "message_start" => {
                let message = value.get("message").unwrap_or(&Value::Null);
                draft.response_id = Some(text(message, "id")).filter(|id| !id.is_empty()).map(str::to_owned);
                note_usage(draft, message);
            }
            "content_block_start" => self.start(&value, draft)?,
            "content_block_delta" => self.grow(&value, draft)?,
            "content_block_stop" => self.stop(number(&value, "index"), draft)?,
            "message_delta" => {
                note_usage(draft, &value);
                let delta = value.get("delta").unwrap_or(&Value::Null);
                if let Some(reason) = delta.get("stop_reason").and_then(Value::as_str) {
                    draft.ending = Some(ending(reason));
                }
            }
            "message_stop" => {
                draft.close_all();
                draft.is_over = true;
            }
            "error" => return Err(classify::event(&value)),
            // Not every server repeats the name of the event in it.
            _ if event.name == "error" => return Err(classify::event(&value)),
            // `ping`, and what later versions add.
            _ => {}
        }
        Ok(())
    }
}

impl Decoder {
    fn start(&mut self, value: &Value, draft: &mut Draft) -> Result<(), Fault> {
        let block = value.get("content_block").unwrap_or(&Value::Null);
        let growing = match text(block, "type") {
            "text" => {
                let index = draft.open_text()?;
                draft.push(index, text(block, "text"))?;
                Growing::Piece { index, input: None }
            }
            "thinking" => {
                let index = draft.open_thinking()?;
                draft.push(index, text(block, "thinking"))?;
                draft.sign(index, text(block, "signature"))?;
                Growing::Piece { index, input: None }
            }
            "tool_use" => {
                let index = draft.open_call(text(block, "id"), text(block, "name"))?;
                Growing::Piece { index, input: object(block, "input").map(Value::to_string) }
            }
            _ => {
                draft.add_other(block)?;
                Growing::Sealed
            }
        };
        self.open.push((number(value, "index").unwrap_or(0), growing));
        Ok(())
    }

    fn grow(&mut self, value: &Value, draft: &mut Draft) -> Result<(), Fault> {
        let at = number(value, "index").unwrap_or(0);
        let Some((_, growing)) = self.open.iter().rev().find(|(index, _)| *index == at) else {
            return Err(Fault::broken("a part of a block that it did not begin"));
        };
        let Growing::Piece { index, .. } = growing else { return Ok(()) };
        let delta = value.get("delta").unwrap_or(&Value::Null);
        match text(delta, "type") {
            "text_delta" => draft.push(*index, text(delta, "text")),
            "thinking_delta" => draft.push(*index, text(delta, "thinking")),
            "input_json_delta" => draft.push(*index, text(delta, "partial_json")),
            "signature_delta" => draft.sign(*index, text(delta, "signature")),
            // Citations, and what later versions add.
            _ => Ok(()),
        }
    }

    fn stop(&mut self, at: Option<u64>, draft: &mut Draft) -> Result<(), Fault> {
        let place = self.open.iter().rposition(|(index, _)| Some(*index) == at);
        let Some((_, Growing::Piece { index, input })) = place.map(|place| self.open.swap_remove(place))
        else {
            return Ok(());
        };
        if let Some(input) = input.filter(|_| draft.is_blank(index)) {
            draft.push(index, &input)?;
        }
        draft.close(index);
        Ok(())
    }
}

fn ending(reason: &str) -> Ending {
    match reason {
        "max_tokens" | "model_context_window_exceeded" => Ending::Length,
        "refusal" => Ending::Refused("refusal: the model declined to answer".to_owned()),
        _ => Ending::Stop,
    }
}

/// Counts are those of the whole answer so far; a later event may leave out what an earlier one said.
fn note_usage(draft: &mut Draft, value: &Value) {
    let Some(counts) = value.get("usage").filter(|usage| usage.is_object()) else { return };
    let usage = draft.usage.get_or_insert_default();
    for (field, key) in [
        (&mut usage.input, "input_tokens"),
        (&mut usage.output, "output_tokens"),
        (&mut usage.cache_read, "cache_read_input_tokens"),
        (&mut usage.cache_write, "cache_creation_input_tokens"),
    ] {
        *field = number(counts, key).unwrap_or(*field);
    }
}
