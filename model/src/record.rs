//! What the journal keeps of a transition: the input, and what it made visible.
//!
//! Owns the payload of every record of a run, so that events and transcripts are read from the journal alone.
//! It must never need `advance` to be read.

use serde::{Deserialize, Serialize};

use crate::guard::retry::Decision;
use crate::input::{Input, Submission};
use crate::message::{Message, ToolResult};

/// Version of the payload's encoding.
pub const RECORD_VERSION: u8 = 1;

/// Version of the logic: raised whenever `advance` may answer differently.
pub const LOGIC_VERSION: u16 = 1;

/// One record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The first one.
    Submitted(Box<Submission>),
    /// Every other one.
    Moved(Box<Moved>),
}

/// A transition as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// What happened.
    pub input: Input,
    /// What it made visible, in order.
    pub marks: Vec<Mark>,
    /// Messages that the transition itself made.
    pub made: Vec<Message>,
    /// Results that the transition itself made, by index of the call.
    pub results: Vec<(u32, ToolResult)>,
    /// What was decided about a model call that did not bring an answer.
    pub decision: Option<Decision>,
}

/// An agent event without its content, which is found where the mark points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// The run starts.
    AgentStart,
    /// A turn starts.
    TurnStart,
    /// A message starts.
    MessageStart(Content),
    /// A message is complete and in the transcript.
    MessageEnd(Content),
    /// A call is looked at.
    ToolStart {
        /// Index of the call.
        call: u32,
    },
    /// A call has its result: the newest one that the journal holds for it.
    ToolEnd {
        /// Index of the call.
        call: u32,
        /// Its body was started.
        is_started: bool,
        /// Its arguments were not valid.
        is_invalid: bool,
    },
    /// A turn ends.
    TurnEnd,
    /// The run ends.
    AgentEnd,
}

/// Where the content of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Prompt of the submission, by index.
    Prompt(u64),
    /// Item of the inbox, by position.
    Inbox(u64),
    /// An answer of which nothing is known yet.
    Opening,
    /// The answer in this record's input.
    Answer,
    /// Message of this record's `made`, by index.
    Made(u32),
    /// The newest result of a call, by index.
    Result(u32),
}

impl Moved {
    /// The record brings messages into the transcript, or holds a base of the context.
    pub fn carries_messages(&self) -> bool {
        self.marks.iter().any(|mark| match mark {
            Mark::MessageEnd(_) | Mark::ToolEnd { .. } => true,
            Mark::AgentStart
            | Mark::TurnStart
            | Mark::MessageStart(_)
            | Mark::ToolStart { .. }
            | Mark::TurnEnd
            | Mark::AgentEnd => false,
        }) || self.input.fact.result().is_some()
            || self.input.fact.base().is_some()
            || !self.results.is_empty()
    }
}
