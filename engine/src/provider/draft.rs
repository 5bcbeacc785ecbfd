//! An answer in the making: the same for every protocol.
//!
//! Owns the blocks as they grow, the parts told on the way, and what a finished stream amounts to. It must
//! never take an answer for complete that its protocol did not end.

use std::collections::VecDeque;

use model::input::FailureKind;
use model::message::{AssistantMessage, StopReason, ToolCall, Usage};
use model::{Block, JsonText};
use serde_json::Value;

use super::fault::Fault;
use super::{Update, UpdateKind};

/// The most blocks of one answer.
const BLOCKS_MAX: usize = 1_024;

/// The most bytes of an answer's content: room for it in one journal frame.
const CONTENT_BYTES_MAX: usize = 8 << 20;

/// What an estimate takes for one token, in bytes of text.
pub(super) const TOKEN_BYTES: u64 = 4;

/// Why the model ended its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It was done, or asks for tools.
    Stop,
    /// The output limit, or the window, was reached.
    Length,
    /// The model or a filter refused, in these words.
    Refused(String),
}

/// An answer in the making.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pieces: Vec<Piece>,
    updates: VecDeque<Update>,
    content_bytes: usize,
    /// The provider's id of the response.
    pub(super) response_id: Option<String>,
    /// The number of the newest event, in a protocol that numbers them.
    pub(super) sequence: Option<u64>,
    /// The response was reached again: an event that was told before may come again, and none may be left out.
    pub(super) is_rejoined: bool,
    /// The provider has given up the response: there is no more of it.
    pub(super) is_given_up: bool,
    /// Tokens as the provider counts them; none before it has said anything of them.
    pub(super) usage: Option<Usage>,
    /// Why it ended, once that is known.
    pub(super) ending: Option<Ending>,
    /// The protocol's own end mark has arrived.
    pub(super) is_over: bool,
}

/// One block as it grows.
#[derive(Debug)]
struct Piece {
    kind: Kind,
    is_open: bool,
}

#[derive(Debug)]
enum Kind {
    Text(String),
    Thinking { text: String, signature: String },
    Call { id: String, name: String, arguments: String },
    Other(JsonText),
}

impl Draft {
    /// Begins a text; answers its index.
    pub(super) fn open_text(&mut self) -> Result<usize, Fault> {
        self.open(Kind::Text(String::new()), Some(UpdateKind::TextStart))
    }

    /// Begins a piece of thinking; answers its index.
    pub(super) fn open_thinking(&mut self) -> Result<usize, Fault> {
        let kind = Kind::Thinking { text: String::new(), signature: String::new() };
        self.open(kind, Some(UpdateKind::ThinkingStart))
    }

    /// Begins a call; answers its index.
    pub(super) fn open_call(&mut self, id: &str, name: &str) -> Result<usize, Fault> {
        self.note_bytes(id.len() + name.len())?;
        let kind = Kind::Call { id: id.to_owned(), name: name.to_owned(), arguments: String::new() };
        self.open(kind, Some(UpdateKind::ToolCallStart))
    }

    /// Adds a block that is kept as it came.
    pub(super) fn add_other(&mut self, value: &Value) -> Result<(), Fault> {
        let json = JsonText::from(value);
        self.note_bytes(json.as_str().len())?;
        let index = self.open(Kind::Other(json), None)?;
        self.close(index);
        Ok(())
    }

    /// Adds to the text, the thinking or the arguments at `index`.
    pub(super) fn push(&mut self, index: usize, delta: &str) -> Result<(), Fault> {
        if delta.is_empty() {
            return Ok(());
        }
        self.note_bytes(delta.len())?;
        let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.is_open) else {
            return Err(Fault::broken("a part of a block that is not open"));
        };
        let kind = match &mut piece.kind {
            Kind::Text(text) => {
                text.push_str(delta);
                UpdateKind::TextDelta
            }
            Kind::Thinking { text, .. } => {
                text.push_str(delta);
                UpdateKind::ThinkingDelta
            }
            Kind::Call { arguments, .. } => {
                arguments.push_str(delta);
                UpdateKind::ToolCallDelta
            }
            Kind::Other(_) => return Ok(()),
        };
        self.tell(kind, index, delta.to_owned(), None);
        Ok(())
    }

    /// Adds to the signature of the thinking at `index`.
    pub(super) fn sign(&mut self, index: usize, more: &str) -> Result<(), Fault> {
        self.note_bytes(more.len())?;
        if let Some(Piece { kind: Kind::Thinking { signature, .. }, .. }) = self.pieces.get_mut(index) {
            signature.push_str(more);
        }
        Ok(())
    }

    /// A later part of the protocol names what an earlier one left open.
    pub(super) fn name_call(&mut self, index: usize, id: &str, name: &str) {
        if let Some(Piece { kind: Kind::Call { id: old_id, name: old_name, .. }, .. }) =
            self.pieces.get_mut(index)
        {
            for (old, new) in [(old_id, id), (old_name, name)] {
                if old.is_empty() {
                    new.clone_into(old);
                }
            }
        }
    }

    /// True if nothing was added to the block at `index` yet.
    pub(super) fn is_blank(&self, index: usize) -> bool {
        self.pieces.get(index).is_none_or(|piece| match &piece.kind {
            Kind::Text(text) | Kind::Thinking { text, .. } | Kind::Call { arguments: text, .. } => {
                text.is_empty()
            }
            Kind::Other(_) => false,
        })
    }

    /// Ends the block at `index`; again is nothing.
    pub(super) fn close(&mut self, index: usize) {
        let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.is_open) else { return };
        piece.is_open = false;
        let (kind, whole, call) = match &piece.kind {
            Kind::Text(text) => (UpdateKind::TextEnd, text.clone(), None),
            Kind::Thinking { text, .. } => (UpdateKind::ThinkingEnd, text.clone(), None),
            Kind::Call { id, name, arguments } => {
                (UpdateKind::ToolCallEnd, String::new(), Some(call(id, name, arguments)))
            }
            Kind::Other(_) => return,
        };
        self.tell(kind, index, whole, call);
    }

    /// Ends every block.
    pub(super) fn close_all(&mut self) {
        (0..self.pieces.len()).for_each(|index| self.close(index));
    }

    /// The parts that were not told yet, oldest first.
    pub(super) fn updates(&mut self) -> impl Iterator<Item = Update> + '_ {
        self.updates.drain(..)
    }

    /// What the stream amounts to now that no more comes: the content and how it ended, or why it is no
    /// answer.
    pub(super) fn conclude(&self) -> Result<(StopReason, Option<String>), Fault> {
        let Some(ending) = self.ending.as_ref().filter(|_| self.is_over) else {
            let is_silent = self.pieces.is_empty() && self.response_id.is_none() && self.usage.is_none();
            return Err(match is_silent {
                true => Fault::new(FailureKind::Missing, "the stream ended without an answer"),
                false => Fault::new(FailureKind::Connection, "the answer broke off"),
            });
        };
        let has = |is: fn(&Kind) -> bool| self.pieces.iter().any(|piece| is(&piece.kind));
        let is_visible = |kind: &Kind| matches!(kind, Kind::Text(text) if !text.trim().is_empty());
        match ending {
            Ending::Refused(words) => Ok((StopReason::Error, Some(words.clone()))),
            Ending::Length => Ok((StopReason::Length, None)),
            Ending::Stop if has(|kind| matches!(kind, Kind::Call { .. })) => Ok((StopReason::ToolUse, None)),
            Ending::Stop if has(is_visible) => Ok((StopReason::Stop, None)),
            Ending::Stop if has(|kind| matches!(kind, Kind::Thinking { .. } | Kind::Other(_))) => {
                Err(Fault::new(FailureKind::ReasoningOnly, "the answer holds reasoning only"))
            }
            Ending::Stop => Err(Fault::new(FailureKind::Empty, "the answer is empty")),
        }
    }

    /// The blocks so far. Calls only if the answer is complete: half of one may be another call.
    pub(super) fn content(&self, keeps_calls: bool) -> Vec<Block> {
        let kept = self.pieces.iter().filter(|piece| keeps_calls || !matches!(piece.kind, Kind::Call { .. }));
        kept.map(|piece| match &piece.kind {
            Kind::Text(text) => Block::Text(text.clone()),
            Kind::Thinking { text, signature } => {
                let signature = Some(signature.clone()).filter(|signature| !signature.is_empty());
                Block::Thinking { text: text.clone(), signature }
            }
            Kind::Call { id, name, arguments } => Block::ToolCall(call(id, name, arguments)),
            Kind::Other(value) => Block::Other(value.clone()),
        })
        .collect()
    }

    /// What the call used: as the provider says, and no less than what has arrived. `sent` are the tokens of
    /// the request by estimate, for a server that says nothing.
    pub(super) fn usage(&self, sent: u64) -> Usage {
        match self.usage {
            Some(usage) if self.is_over => usage,
            Some(usage) => Usage { output: usage.output.max(self.output_estimate()), ..usage },
            None => Usage { input: sent, output: self.output_estimate(), ..Usage::default() },
        }
    }

    fn output_estimate(&self) -> u64 {
        (self.content_bytes as u64).div_ceil(TOKEN_BYTES)
    }

    fn open(&mut self, kind: Kind, told: Option<UpdateKind>) -> Result<usize, Fault> {
        let index = self.pieces.len();
        if index == BLOCKS_MAX {
            return Err(Fault::broken(format_args!("an answer of more than {BLOCKS_MAX} blocks")));
        }
        self.pieces.push(Piece { kind, is_open: true });
        if let Some(told) = told {
            self.tell(told, index, String::new(), None);
        }
        Ok(index)
    }

    fn note_bytes(&mut self, more: usize) -> Result<(), Fault> {
        self.content_bytes = self.content_bytes.saturating_add(more);
        if self.content_bytes > CONTENT_BYTES_MAX {
            return Err(Fault::broken(format_args!("an answer of more than {CONTENT_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn tell(&mut self, kind: UpdateKind, content_index: usize, delta: String, call: Option<ToolCall>) {
        self.updates.push_back(Update { kind, content_index, delta, call });
    }
}

/// The message of an answer by `api`, `provider` and `model`, which is everything but its content.
pub(super) fn blank_message(api: &str, provider: &str, model: &str) -> AssistantMessage {
    AssistantMessage {
        api: api.to_owned(),
        provider: provider.to_owned(),
        model: model.to_owned(),
        ..AssistantMessage::default()
    }
}

/// The arguments as the model wrote them: text that is no JSON stays a text, for the tool's schema to refuse.
fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    let value = match arguments.trim() {
        "" => Value::Object(serde_json::Map::new()),
        text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(arguments.to_owned())),
    };
    ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: JsonText::from(&value),
        is_duplicate: false,
    }
}
