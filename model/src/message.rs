//! Messages of the transcript, and their JSON shape in the reference family.
//!
//! Owns what a message is. It must never hold provider grammar: converting for a provider is the engine's
//! work.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ids::{JsonText, Millis};

/// One message of a transcript.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// What a person, or a program on their behalf, said.
    User(UserMessage),
    /// What the model answered, or what stands in for an answer that failed or was aborted.
    Assistant(Box<AssistantMessage>),
    /// The result of one tool call.
    ToolResult(Box<ToolResultMessage>),
    /// A message of the application itself.
    Custom(CustomMessage),
}

/// The role of a message, as the loop sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// See [`Message::User`].
    User,
    /// See [`Message::Assistant`].
    Assistant,
    /// See [`Message::ToolResult`].
    ToolResult,
    /// See [`Message::Custom`].
    Custom,
}

impl Role {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::ToolResult => "toolResult",
            Self::Custom => "custom",
        }
    }
}

/// A user message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMessage {
    /// Text and images.
    pub content: Vec<Block>,
    /// When it was accepted.
    pub at: Millis,
}

/// A model's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// Text, thinking and tool calls, in the model's order.
    pub content: Vec<Block>,
    /// Protocol that produced it, for example `anthropic-messages` or `rehearsal`.
    pub api: String,
    /// Name of the provider.
    pub provider: String,
    /// Name of the model.
    pub model: String,
    /// The provider's id of the response.
    pub response_id: Option<String>,
    /// Identity of a turn that has no response id.
    pub turn_id: Option<String>,
    /// Tokens and cost.
    pub usage: Usage,
    /// Why the answer ended.
    pub stop_reason: StopReason,
    /// What went wrong, when the stop reason is `error` or `aborted`.
    pub error_message: Option<String>,
    /// Made while untrusted network content was in the turn.
    pub is_tainted: bool,
    /// When it was complete.
    pub at: Millis,
}

/// The result of one tool call, as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResultMessage {
    /// The call that it answers.
    pub call_id: String,
    /// The tool's name as called.
    pub tool: String,
    /// What the tool returned.
    pub result: ToolResult,
    /// When it entered the transcript.
    pub at: Millis,
}

/// A message of the application, opaque to the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustomMessage {
    /// The application's name for this kind of message.
    pub custom_type: String,
    /// Text and images.
    pub content: Vec<Block>,
    /// Shown to a person.
    pub is_displayed: bool,
    /// The application's own data.
    pub details: JsonText,
    /// When it was made.
    pub at: Millis,
}

/// One part of a message's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// Plain text.
    Text(String),
    /// A picture.
    Image {
        /// Base64 of the bytes.
        data: String,
        /// Media type, for example `image/png`.
        media_type: String,
    },
    /// The model's reasoning.
    Thinking {
        /// The visible part.
        text: String,
        /// The provider's signature, kept byte for byte.
        signature: Option<String>,
    },
    /// A request to run a tool.
    ToolCall(ToolCall),
    /// A kind of content that this version does not know, kept as it came.
    Other(JsonText),
}

/// A model's request to run one tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in its message (a repeated id is renamed `id~2`).
    pub id: String,
    /// The tool's name as the model wrote it.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: JsonText,
    /// The model used this id before in the same message; such a call does not run.
    pub is_duplicate: bool,
}

/// What a tool returned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Text and images for the model.
    pub content: Vec<Block>,
    /// Data for programs; never sent to the model.
    pub details: JsonText,
    /// The call failed.
    pub is_error: bool,
    /// Asks the loop to stop after this batch.
    pub terminates: bool,
    /// Holds content from the network.
    pub is_network: bool,
}

impl ToolResult {
    /// A result with one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::Text(text.into())], ..Self::default() }
    }

    /// An error result with one text.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// The same with other details.
    pub fn with_details(self, details: &Value) -> Self {
        Self { details: details.into(), ..self }
    }

    /// All text blocks, joined by newlines.
    pub fn joined_text(&self) -> String {
        joined_text(&self.content)
    }

    /// `{content, details}`, the shape that events carry.
    pub fn to_json(&self) -> Value {
        json!({ "content": blocks_to_json(&self.content), "details": self.details.value() })
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StopReason {
    /// The model was done.
    #[default]
    Stop,
    /// The output limit was reached.
    Length,
    /// The model asks for tools.
    ToolUse,
    /// The call failed.
    Error,
    /// The call was aborted.
    Aborted,
}

impl StopReason {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolUse => "toolUse",
            Self::Error => "error",
            Self::Aborted => "aborted",
        }
    }
}

/// Tokens of one or more model calls, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were not cached.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens read from a cache.
    pub cache_read: u64,
    /// Input tokens written to a cache.
    pub cache_write: u64,
    /// Cost in micro-dollars.
    pub usd_micros: u64,
}

impl Usage {
    /// Input and output tokens together.
    pub fn tokens(&self) -> u64 {
        self.input
            .saturating_add(self.output)
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            usd_micros: self.usd_micros.saturating_add(other.usd_micros),
        }
    }

    fn to_json(self) -> Value {
        json!({
            "input": self.input, "output": self.output, "cacheRead": self.cache_read,
            "cacheWrite": self.cache_write, "totalTokens": self.tokens(),
            "cost": { "total": self.usd_micros as f64 / 1e6 },
        })
    }
}

impl Message {
    /// A user message with one text.
    pub fn user(text: impl Into<String>, at: Millis) -> Self {
        Self::User(UserMessage { content: vec![Block::Text(text.into())], at })
    }

    /// The message's role.
    pub fn role(&self) -> Role {
        match self {
            Self::User(_) => Role::User,
            Self::Assistant(_) => Role::Assistant,
            Self::ToolResult(_) => Role::ToolResult,
            Self::Custom(_) => Role::Custom,
        }
    }

    /// The message's content.
    pub fn content(&self) -> &[Block] {
        match self {
            Self::User(message) => &message.content,
            Self::Assistant(message) => &message.content,
            Self::ToolResult(message) => &message.result.content,
            Self::Custom(message) => &message.content,
        }
    }

    /// All text blocks, joined by newlines.
    pub fn joined_text(&self) -> String {
        joined_text(self.content())
    }

    /// The shape that agent events and `transcript --json` carry.
    pub fn to_json(&self) -> Value {
        match self {
            Self::User(message) => json!({
                "role": "user", "content": blocks_to_json(&message.content), "timestamp": message.at.0,
            }),
            Self::Assistant(message) => message.to_json(),
            Self::ToolResult(message) => {
                let mut out = json!({
                    "role": "toolResult", "toolCallId": message.call_id, "toolName": message.tool,
                    "content": blocks_to_json(&message.result.content),
                    "details": message.result.details.value(),
                    "isError": message.result.is_error, "timestamp": message.at.0,
                });
                if message.result.is_network {
                    out["__openclaw"] = json!({ "resultContentSource": "network" });
                }
                out
            }
            Self::Custom(message) => json!({
                "role": "custom", "customType": message.custom_type,
                "content": blocks_to_json(&message.content), "display": message.is_displayed,
                "details": message.details.value(), "timestamp": message.at.0,
            }),
        }
    }
}

impl AssistantMessage {
    /// The tool calls, in the model's order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            Block::Text(_) | Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => None,
        })
    }

    fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), "assistant".into());
        out.insert("content".into(), blocks_to_json(&self.content));
        out.insert("api".into(), self.api.as_str().into());
        out.insert("provider".into(), self.provider.as_str().into());
        out.insert("model".into(), self.model.as_str().into());
        out.insert("usage".into(), self.usage.to_json());
        out.insert("stopReason".into(), self.stop_reason.name().into());
        if let Some(text) = &self.error_message {
            out.insert("errorMessage".into(), text.as_str().into());
        }
        if let Some(id) = &self.response_id {
            out.insert("responseId".into(), id.as_str().into());
        }
        if let Some(id) = &self.turn_id {
            out.insert("turnId".into(), id.as_str().into());
        }
        if self.is_tainted {
            out.insert("__openclaw".into(), json!({ "turnTainted": true }));
        }
        out.insert("timestamp".into(), self.at.0.into());
        Value::Object(out)
    }
}

/// The JSON shape of a content list.
pub fn blocks_to_json(blocks: &[Block]) -> Value {
    Value::Array(blocks.iter().map(Block::to_json).collect())
}

fn joined_text(blocks: &[Block]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            Block::Image { .. } | Block::Thinking { .. } | Block::ToolCall(_) | Block::Other(_) => None,
        })
        .collect();
    texts.join("\n")
}

impl Block {
    fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }),
            Self::Image { data, media_type } => {
                json!({ "type": "image", "data": data, "mimeType": media_type })
            }
            Self::Thinking { text, signature: None } => json!({ "type": "thinking", "thinking": text }),
            Self::Thinking { text, signature: Some(signature) } => {
                json!({ "type": "thinking", "thinking": text, "thinkingSignature": signature })
            }
            Self::ToolCall(call) => json!({
                "type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments.value(),
            }),
            Self::Other(value) => value.value(),
        }
    }
}
