//! The stream of an answer by Responses.
//!
//! Owns the meaning of each event. An item counts as the event that ends it tells it. It must never end an
//! answer before `response.completed` or `response.incomplete`.

use model::input::FailureKind;
use serde_json::{Value, json};

use crate::provider::classify;
use crate::provider::draft::{Draft, Ending};
use crate::provider::fault::Fault;
use crate::provider::fields::{list, number, text, usage};
use crate::provider::reader::{Decode, data};
use crate::provider::sse::Event;

/// The most items of one response.
const ITEMS_MAX: usize = 1_024;

/// Between two parts of one reasoning.
const PART_BREAK: &str = "\n\n";

/// Where the stream is.
#[derive(Debug, Default)]
pub(in crate::provider) struct Decoder {
    /// The parts that grow: their places in the protocol, and in the draft.
    parts: Vec<(Place, usize)>,
    /// The items, in the order in which they were first told of.
    items: Vec<Item>,
    /// What the model said instead of an answer.
    refusal: String,
}

/// What is known of an item.
#[derive(Debug)]
struct Item {
    /// Its index in the output; some servers leave it out.
    output_index: Option<u64>,
    /// Its id.
    id: String,
    has_ended: bool,
}

/// An item, by its place in `items`, and which of its parts. Reasoning is one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    item: usize,
    part: u64,
}

impl Decode for Decoder {
    fn take(&mut self, event: &Event, draft: &mut Draft) -> Result<(), Fault> {
        if event.data.is_empty() || event.data == "[DONE]" {
            return Ok(());
        }
        let value = data(event)?;
        if is_told(&value, draft)? {
            return Ok(());
        }
        match text(&value, "type") {
            "response.created" => {
                note_id(draft, &value);
                Ok(())
            }
            "response.output_item.added" => {
                let item = self.item(&value)?;
                self.begin(item, &value["item"], draft)
            }
            "response.output_text.delta"
            | "response.refusal.delta"
            | "response.reasoning_summary_part.added"
            | "response.reasoning_summary_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => self.grow(&value, draft),
            "response.output_item.done" => {
                let item = self.item(&value)?;
                self.finish(item, &value["item"], draft)
            }
            "response.completed" | "response.incomplete" => self.end(&value["response"], draft),
            "response.failed" => {
                draft.is_given_up = true;
                Err(classify::event(&value["response"]))
            }
            "response.cancelled" => {
                draft.is_given_up = true;
                Err(Fault::new(FailureKind::Connection, "the answer was cancelled at its provider"))
            }
            "error" => Err(classify::event(&value)),
            _ if event.name == "error" || value.get("error").is_some_and(Value::is_object) => {
                Err(classify::event(&value))
            }
            // What only repeats a delta, and what later versions add.
            _ => Ok(()),
        }
    }
}

impl Decoder {
    /// The item that an event is about: by its index, else by its id, else the newest.
    fn item(&mut self, value: &Value) -> Result<usize, Fault> {
        let output_index = number(value, "output_index");
        let id = [text(value, "item_id"), text(&value["item"], "id")].concat();
        let known = match output_index {
            Some(_) => self.items.iter().position(|item| item.output_index == output_index),
            None if id.is_empty() => self.items.len().checked_sub(1),
            None => self.items.iter().position(|item| item.id == id),
        };
        if let Some(known) = known {
            return Ok(known);
        }
        if self.items.len() == ITEMS_MAX {
            return Err(Fault::broken(format_args!("more than {ITEMS_MAX} items")));
        }
        self.items.push(Item { output_index, id, has_ended: false });
        Ok(self.items.len() - 1)
    }

    fn grow(&mut self, value: &Value, draft: &mut Draft) -> Result<(), Fault> {
        let item = self.item(value)?;
        let place = Place { item, part: number(value, "content_index").unwrap_or(0) };
        let delta = text(value, "delta");
        match text(value, "type") {
            "response.output_text.delta" => self.say(place, delta, draft),
            "response.refusal.delta" => {
                self.refusal.push_str(delta);
                self.say(place, delta, draft)
            }
            "response.reasoning_summary_part.added" => match number(value, "summary_index") {
                None | Some(0) => Ok(()),
                Some(_) => self.think(item, PART_BREAK, draft),
            },
            "response.function_call_arguments.delta" => {
                let index = self.index(Place { item, part: 0 });
                let index = index.ok_or_else(|| Fault::broken("a part of a call that it did not begin"))?;
                draft.push(index, delta)
            }
            _ => self.think(item, delta, draft),
        }
    }

    fn index(&self, place: Place) -> Option<usize> {
        self.parts.iter().find(|(known, _)| *known == place).map(|(_, index)| *index)
    }

    fn begin(&mut self, item: usize, value: &Value, draft: &mut Draft) -> Result<(), Fault> {
        if text(value, "type") == "function_call" {
            let index = draft.open_call(text(value, "call_id"), text(value, "name"))?;
            self.parts.push((Place { item, part: 0 }, index));
        }
        Ok(())
    }

    fn say(&mut self, place: Place, delta: &str, draft: &mut Draft) -> Result<(), Fault> {
        let index = match self.index(place) {
            Some(index) => index,
            None => {
                let index = draft.open_text()?;
                self.parts.push((place, index));
                index
            }
        };
        draft.push(index, delta)
    }

    fn think(&mut self, item: usize, delta: &str, draft: &mut Draft) -> Result<(), Fault> {
        let place = Place { item, part: 0 };
        let index = match self.index(place) {
            Some(index) => index,
            None => {
                let index = draft.open_thinking()?;
                self.parts.push((place, index));
                index
            }
        };
        draft.push(index, delta)
    }

    /// The end of an item. A server may tell all of it here and nothing before.
    fn finish(&mut self, item: usize, value: &Value, draft: &mut Draft) -> Result<(), Fault> {
        let is_again =
            self.items.get_mut(item).is_some_and(|item| std::mem::replace(&mut item.has_ended, true));
        if is_again {
            return Ok(());
        }
        let first = Place { item, part: 0 };
        match text(value, "type") {
            "message" => {
                for (part, content) in (0..).zip(list(value, "content")) {
                    let place = Place { item, part };
                    let whole = [text(content, "text"), text(content, "refusal")].concat();
                    if self.index(place).is_none() && !whole.is_empty() {
                        self.refusal.push_str(text(content, "refusal"));
                        self.say(place, &whole, draft)?;
                    }
                }
            }
            "reasoning" => {
                if self.index(first).is_none() {
                    let parts = list(value, "summary").iter().chain(list(value, "content"));
                    let texts: Vec<&str> = parts.map(|part| text(part, "text")).collect();
                    self.think(item, &texts.join(PART_BREAK), draft)?;
                }
                if let Some(index) = self.index(first) {
                    draft.sign(index, &value.to_string())?;
                }
            }
            "function_call" => {
                if self.index(first).is_none() {
                    self.begin(item, value, draft)?;
                }
                if let Some(index) = self.index(first).filter(|index| draft.is_blank(*index)) {
                    draft.push(index, text(value, "arguments"))?;
                }
            }
            _ => draft.add_other(value)?,
        }
        for (_, index) in self.parts.iter().filter(|(place, _)| place.item == item) {
            draft.close(*index);
        }
        Ok(())
    }

    fn end(&mut self, response: &Value, draft: &mut Draft) -> Result<(), Fault> {
        // A server that has told no item tells all of them here.
        if self.items.is_empty() {
            for (output_index, item) in (0u64..).zip(list(response, "output")) {
                let index = self.item(&json!({ "output_index": output_index }))?;
                self.finish(index, item, draft)?;
            }
        }
        if let Some(counts) = response.get("usage").filter(|counts| counts.is_object()) {
            draft.usage = Some(usage(counts, "input_tokens", "output_tokens"));
        }
        let incomplete = response.get("incomplete_details").unwrap_or(&Value::Null);
        draft.ending = Some(match text(incomplete, "reason") {
            _ if !self.refusal.is_empty() => Ending::Refused(format!("refusal: {}", self.refusal)),
            "content_filter" => Ending::Refused("content_filter: the answer was withheld".to_owned()),
            "max_output_tokens" => Ending::Length,
            _ if text(response, "status") == "incomplete" => Ending::Length,
            _ => Ending::Stop,
        });
        draft.close_all();
        draft.is_over = true;
        Ok(())
    }
}

/// True for an event that was told before; else it is the newest. Behind a seam each event has to be the next one of the
/// same response: an answer with a gap would be another answer.
fn is_told(value: &Value, draft: &mut Draft) -> Result<bool, Fault> {
    let broken = |words: String| Err(Fault::new(FailureKind::Connection, words));
    let id = text(&value["response"], "id");
    if let Some(begun) = &draft.response_id
        && draft.is_rejoined
        && !id.is_empty()
        && id != begun
    {
        return broken(format!("the rest of another response came, of {id:?}"));
    }
    let Some(number) = number(value, "sequence_number") else { return Ok(false) };
    if let Some(newest) = draft.sequence {
        if number <= newest {
            return Ok(true);
        }
        if draft.is_rejoined && number - newest > 1 {
            return broken(format!("event {number} of the answer came behind event {newest}"));
        }
    }
    draft.sequence = Some(number);
    Ok(false)
}

fn note_id(draft: &mut Draft, value: &Value) {
    let id = text(&value["response"], "id");
    draft.response_id = Some(id).filter(|id| !id.is_empty()).map(str::to_owned);
}
