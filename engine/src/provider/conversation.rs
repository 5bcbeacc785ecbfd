//! A transcript as any provider takes it: strict turns, every call with its result.
//!
//! Owns what of a transcript is told to a provider, and in which order; the spelling is each protocol's. The
//! same transcript gives the same conversation, and a longer one begins as the shorter did, so that caches
//! hold. It must never tell a provider what only another one could read: signatures and sealed blocks go back
//! to who made them.

use std::collections::HashMap;

use model::Block;
use model::Message;
use model::message::{AssistantMessage, StopReason, ToolCall, ToolResultMessage};
use serde_json::{Map, Value, json};

use super::call_ids::{CallIds, tool_name};
use super::fields::text;
use super::reader::Speaker;

/// Stands where a person must have said something and nothing readable is left of it.
pub(super) const CONTINUE: &str = "(continue)";

/// Stands in a result without content.
const NO_OUTPUT: &str = "(no output)";

/// Stands for a result that was never recorded.
const NO_RESULT: &str = "No result of this call was recorded.";

/// Media types of pictures that every provider takes.
pub(super) const PICTURES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// The most bytes of base64 of one picture.
pub(super) const PICTURE_BYTES_MAX: usize = 5 << 20;

/// The most pictures of one request; older ones are left out.
pub(super) const PICTURES_MAX: usize = 100;

/// Turns of a person and of the model, in strict alternation. The first and the last are a person's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Conversation(pub(super) Vec<Turn>);

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Turn {
    /// A person's: the results of all calls of the turn before, in the order of the calls, then what was
    /// said. Not both are empty.
    User { results: Vec<Answered>, parts: Vec<Part> },
    /// The model's; never empty, and never thinking alone.
    Model(Vec<Said>),
}

/// What a person or a tool says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// Text that is not blank.
    Text(String),
    /// A picture of an accepted type and size.
    Picture { data: String, media_type: String },
}

/// What the model says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    /// Text that is not blank.
    Text(String),
    /// Thinking that this very model signed.
    Thinking { text: String, signature: String },
    /// Thinking that this very model's provider sealed.
    Sealed { data: String },
    /// A call; its arguments are an object.
    Call { id: String, name: String, arguments: Value },
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answered {
    pub(super) id: String,
    pub(super) name: String,
    /// Never empty.
    pub(super) parts: Vec<Part>,
    pub(super) is_error: bool,
}

/// The conversation that `messages` amount to for `speaker`.
pub(super) fn conversation<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
    speaker: &Speaker,
) -> Conversation {
    let messages: Vec<&Message> = messages.into_iter().collect();
    let results = matched(&messages);
    let mut maker = Maker { speaker, ids: CallIds::default(), turns: Vec::new() };
    for (at, message) in messages.iter().enumerate() {
        match message {
            Message::User(user) => maker.say(parts(&user.content)),
            // What is not for the model was left out before; what is left is said as a person says it.
            Message::Custom(custom) => maker.say(parts(&custom.content)),
            Message::Assistant(answer) => maker.answer(answer, |call| results.get(&(at, call)).copied()),
            Message::ToolResult(_) => {}
        }
    }
    let mut turns = maker.turns;
    if !matches!(turns.last(), Some(Turn::User { .. })) {
        turns.push(person(CONTINUE));
    }
    leave_out_pictures(&mut turns);
    Conversation(turns)
}

/// The result of each call, by the places of answer and call: the first result with its id after it, and
/// before another call takes the id. Other results answer nothing.
fn matched<'a>(messages: &[&'a Message]) -> HashMap<(usize, usize), &'a ToolResultMessage> {
    let mut open: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut results = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        match message {
            Message::Assistant(answer) => {
                for (index, call) in answer.calls().enumerate() {
                    // Of two calls with one id in one answer, the first is the one that ran.
                    let is_taken = open.get(call.id.as_str()).is_some_and(|(taken, _)| *taken == at);
                    if !is_taken {
                        open.insert(&call.id, (at, index));
                    }
                }
            }
            Message::ToolResult(result) => {
                if let Some(place) = open.remove(result.call_id.as_str()) {
                    results.insert(place, &**result);
                }
            }
            Message::User(_) | Message::Custom(_) => {}
        }
    }
    results
}

struct Maker<'a> {
    speaker: &'a Speaker,
    ids: CallIds,
    turns: Vec<Turn>,
}

impl Maker<'_> {
    /// A person speaks, in a turn of their own or in one that has begun.
    fn say(&mut self, said: Vec<Part>) {
        match self.turns.last_mut() {
            Some(Turn::User { parts, .. }) => parts.extend(said),
            Some(Turn::Model(_)) | None if said.is_empty() => {}
            Some(Turn::Model(_)) | None => self.turns.push(Turn::User { results: Vec::new(), parts: said }),
        }
    }

    /// The model answered. Of an answer that failed only text and finished calls stand.
    fn answer<'m>(
        &mut self,
        answer: &AssistantMessage,
        result_of: impl Fn(usize) -> Option<&'m ToolResultMessage>,
    ) {
        let is_whole = !matches!(answer.stop_reason, StopReason::Error | StopReason::Aborted);
        let is_own = is_whole
            && answer.api == self.speaker.api.to_string()
            && answer.provider == self.speaker.provider
            && answer.model == self.speaker.model;
        let (mut said, mut results, mut call_index) = (Vec::new(), Vec::new(), 0);
        for block in &answer.content {
            match block {
                Block::Text(text) if !text.trim().is_empty() => said.push(Said::Text(text.clone())),
                Block::Thinking { text, signature: Some(signature) } if is_own => {
                    said.push(Said::Thinking { text: text.clone(), signature: signature.clone() });
                }
                Block::Other(value) if is_own => said.extend(sealed(&value.value())),
                Block::ToolCall(call) => {
                    let result = result_of(call_index);
                    call_index += 1;
                    if is_whole || result.is_some() {
                        let id = self.ids.next(&call.id);
                        results.push(answered(&id, call, result));
                        said.push(called(id, call));
                    }
                }
                Block::Text(_) | Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => {}
            }
        }
        let is_open = |said: &Said| matches!(said, Said::Thinking { .. } | Said::Sealed { .. });
        // Thinking leads to something; what led to nothing is not accepted.
        while said.pop_if(|last| is_open(last)).is_some() {}
        if said.is_empty() {
            return;
        }
        if !matches!(self.turns.last(), Some(Turn::User { .. })) {
            self.turns.push(person(CONTINUE));
        }
        self.turns.push(Turn::Model(said));
        if !results.is_empty() {
            self.turns.push(Turn::User { results, parts: Vec::new() });
        }
    }
}

fn person(text: &str) -> Turn {
    Turn::User { results: Vec::new(), parts: vec![Part::Text(text.to_owned())] }
}

/// Of the kinds of blocks that this version does not know, the one that must go back.
fn sealed(block: &Value) -> Option<Said> {
    let data = Some(text(block, "data")).filter(|data| !data.is_empty());
    data.filter(|_| text(block, "type") == "redacted_thinking")
        .map(|data| Said::Sealed { data: data.to_owned() })
}

fn called(id: String, call: &ToolCall) -> Said {
    let arguments = match call.arguments.value() {
        object @ Value::Object(_) => object,
        Value::Null => Value::Object(Map::new()),
        // The model wrote no object; it sees what it wrote.
        other @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            json!({ "arguments": other })
        }
    };
    Said::Call { id, name: tool_name(&call.name), arguments }
}

fn answered(id: &str, call: &ToolCall, result: Option<&ToolResultMessage>) -> Answered {
    let mut parts = result.map_or_else(Vec::new, |result| parts(&result.result.content));
    if parts.is_empty() {
        parts.push(Part::Text(if result.is_some() { NO_OUTPUT } else { NO_RESULT }.to_owned()));
    }
    let is_error = result.is_none_or(|result| result.result.is_error);
    Answered { id: id.to_owned(), name: tool_name(&call.name), parts, is_error }
}

/// What of a content a provider takes: text that is not blank, and pictures.
fn parts(content: &[Block]) -> Vec<Part> {
    content
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(Part::Text(text.clone())).filter(|_| !text.trim().is_empty()),
            Block::Image { data, media_type } => Some(picture(data, media_type)),
            Block::Thinking { .. } | Block::ToolCall(_) | Block::Other(_) => None,
        })
        .collect()
}

fn picture(data: &str, media_type: &str) -> Part {
    let left_out = |why: &str| Part::Text(format!("[a picture was left out: {why}]"));
    let (text, padding) = data.split_at(data.trim_end_matches('=').len());
    let is_base64 = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    if !PICTURES.contains(&media_type) {
        left_out("its type is not accepted")
    } else if data.len() > PICTURE_BYTES_MAX {
        left_out("it is too large")
    } else if text.is_empty() || !is_base64 || padding.len() > 2 || !data.len().is_multiple_of(4) {
        left_out("it is damaged")
    } else {
        Part::Picture { data: data.to_owned(), media_type: media_type.to_owned() }
    }
}

/// Keeps the newest pictures, as many as a request may hold.
fn leave_out_pictures(turns: &mut [Turn]) {
    let mut room = PICTURES_MAX;
    for turn in turns.iter_mut().rev() {
        let Turn::User { results, parts } = turn else { continue };
        let all = results.iter_mut().flat_map(|result| &mut result.parts).chain(parts);
        for part in all.rev().filter(|part| matches!(part, Part::Picture { .. })) {
            match room.checked_sub(1) {
                Some(left) => room = left,
                None => *part = Part::Text("[an older picture was left out]".to_owned()),
            }
        }
    }
}
