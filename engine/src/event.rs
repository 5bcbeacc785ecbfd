//! Agent events: what observers see.
//!
//! Owns the ten kinds of the reference family and their JSON. An event must never say more than the journal holds,
//! except the two kinds of live updates.

use std::sync::Arc;

use model::message::AssistantMessage;
use model::{Message, Millis, RunId, ToolResult};
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::job::ModelFacts;
use crate::provider::Update;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// The run starts.
    AgentStart,
    /// The run ends.
    AgentEnd {
        /// Every message of the run, in order.
        messages: Vec<Arc<Message>>,
    },
    /// A turn starts.
    TurnStart,
    /// A turn ends.
    TurnEnd {
        /// The answer of the turn.
        message: Option<Arc<Message>>,
        /// The results of its calls, in the order of the calls.
        results: Vec<Arc<Message>>,
    },
    /// A message starts.
    MessageStart {
        /// The message as far as it is known.
        message: Arc<Message>,
    },
    /// A part of an answer arrived. Live only.
    MessageUpdate {
        /// The answer so far.
        message: Arc<Message>,
        /// The part.
        update: Update,
    },
    /// A message is complete.
    MessageEnd {
        /// The message.
        message: Arc<Message>,
    },
    /// A call is looked at.
    ToolExecutionStart {
        /// The call.
        call: CallView,
    },
    /// A tool tells how far it is. Live only.
    ToolExecutionUpdate {
        /// The call.
        call: CallView,
        /// What it has so far.
        partial: ToolResult,
    },
    /// A call has its result.
    ToolExecutionEnd {
        /// The call.
        call: CallView,
        /// The result.
        result: ToolResult,
        /// Its body was started.
        is_started: bool,
        /// Its arguments were not valid.
        is_invalid: bool,
    },
}

/// A call as events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallView {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments as the model wrote them.
    pub args: Value,
}

/// Where an event of the journal is: the record, and which of its events. Readers continue after a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Sequence of the record.
    pub seq: u64,
    /// Ordinal of the event in the record, from 0.
    pub n: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.seq, self.n)
    }
}

impl std::str::FromStr for Place {
    type Err = String;

    /// `SEQ` or `SEQ.N`; without `N`, the last event of the record is meant.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |_| format!("`{text}` is not a place; expected SEQ or SEQ.N, for example 12.3");
        match text.split_once('.') {
            None => Ok(Self { seq: text.parse().map_err(bad)?, n: u32::MAX }),
            Some((seq, n)) => Ok(Self { seq: seq.parse().map_err(bad)?, n: n.parse().map_err(bad)? }),
        }
    }
}

/// An event with its run, place and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped {
    /// The run.
    pub run: RunId,
    /// Its place; none for live updates.
    pub place: Option<Place>,
    /// The attempt that it belongs to; a reader drops updates of a superseded one.
    pub attempt: u32,
    /// When it happened.
    pub at: Millis,
    /// The event.
    pub event: AgentEvent,
}

impl AgentEvent {
    /// The name in `type`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AgentStart => "agent_start",
            Self::AgentEnd { .. } => "agent_end",
            Self::TurnStart => "turn_start",
            Self::TurnEnd { .. } => "turn_end",
            Self::MessageStart { .. } => "message_start",
            Self::MessageUpdate { .. } => "message_update",
            Self::MessageEnd { .. } => "message_end",
            Self::ToolExecutionStart { .. } => "tool_execution_start",
            Self::ToolExecutionUpdate { .. } => "tool_execution_update",
            Self::ToolExecutionEnd { .. } => "tool_execution_end",
        }
    }

    /// The event's own fields, `type` first.
    pub fn to_json(&self) -> Value {
        let list = |messages: &[Arc<Message>]| -> Value {
            messages.iter().map(|message| message.to_json()).collect()
        };
        let mut out = json!({ "type": self.name() });
        match self {
            Self::AgentStart | Self::TurnStart => {}
            Self::AgentEnd { messages } => out["messages"] = list(messages),
            Self::TurnEnd { message, results } => {
                out["message"] = message.as_ref().map_or(Value::Null, |message| message.to_json());
                out["toolResults"] = list(results);
            }
            Self::MessageStart { message } | Self::MessageEnd { message } => {
                out["message"] = message.to_json()
            }
            Self::MessageUpdate { message, update } => {
                out["assistantMessageEvent"] = update_to_json(update);
                out["message"] = message.to_json();
            }
            Self::ToolExecutionStart { call } => call.write(&mut out),
            Self::ToolExecutionUpdate { call, partial } => {
                call.write(&mut out);
                out["partialResult"] = partial.to_json();
            }
            Self::ToolExecutionEnd { call, result, is_started, is_invalid } => {
                out["toolCallId"] = call.id.as_str().into();
                out["toolName"] = call.tool.as_str().into();
                out["result"] = result.to_json();
                out["isError"] = result.is_error.into();
                out["executionStarted"] = (*is_started).into();
                if *is_invalid {
                    out["errorKind"] = "argument-validation".into();
                }
            }
        }
        out
    }
}

impl CallView {
    fn write(&self, out: &mut Value) {
        out["toolCallId"] = self.id.as_str().into();
        out["toolName"] = self.tool.as_str().into();
        out["args"] = self.args.clone();
    }
}

impl Stamped {
    /// One line of `--json` output: the event's fields, then its run, place, attempt and time.
    pub fn to_json(&self) -> Value {
        let mut out = self.event.to_json();
        out["run"] = self.run.to_string().into();
        if let Some(place) = self.place {
            out["seq"] = place.seq.into();
            out["n"] = place.n.into();
        }
        out["attempt"] = self.attempt.into();
        out["at"] = rfc3339(self.at).into();
        out
    }
}

fn update_to_json(update: &Update) -> Value {
    let mut out = json!({ "type": update.kind.name(), "contentIndex": update.content_index });
    match &update.call {
        Some(call) => {
            out["toolCall"] = json!({
                "type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments.value(),
            });
        }
        None => out["delta"] = update.delta.as_str().into(),
    }
    out
}

/// An answer of which nothing is known yet but whose it is and when it was opened.
pub(crate) fn opening(model: &str, served: Option<&ModelFacts>, at: Millis) -> AssistantMessage {
    let ModelFacts { api, provider, model, is_unpriced: _ } =
        served.cloned().unwrap_or_else(|| ModelFacts { model: model.to_owned(), ..ModelFacts::default() });
    AssistantMessage {
        content: Vec::new(),
        api,
        provider,
        model,
        response_id: None,
        turn_id: None,
        usage: model::message::Usage::default(),
        stop_reason: model::message::StopReason::Stop,
        error_message: None,
        is_tainted: false,
        at,
    }
}
