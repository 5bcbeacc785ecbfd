//! The shapes of a job line.
//!
//! Owns the fields of each: ours, and those of two providers' batch files, told apart by what a line holds. An unknown
//! field of ours is an error: a typing mistake must not silently start a job without its limit.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::message::{AssistantMessage, StopReason, Usage, UserMessage};
use model::{Block, Message, Millis};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::config::Usd;
use crate::job::Job;

/// Why a line is bad, and where.
#[derive(Debug)]
pub(super) struct Reason {
    /// The byte in the line, from 1.
    pub(super) column: usize,
    /// What is wrong.
    pub(super) reason: String,
}

impl Reason {
    pub(super) fn of(error: serde_json::Error) -> Self {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let reason = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        Self { column: error.column().max(1), reason }
    }
}

/// A line's job with its id.
pub(super) struct Parsed {
    pub(super) custom_id: String,
    pub(super) job: Job,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnLine {
    #[serde(deserialize_with = "not_empty")]
    custom_id: String,
    #[serde(deserialize_with = "not_empty")]
    prompt: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    session: Option<String>,
    #[serde(default)]
    workspace: Option<PathBuf>,
    #[serde(default)]
    tools: Option<Vec<String>>,
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    timeout_s: Option<u64>,
    #[serde(default)]
    max_turns: Option<u64>,
    #[serde(default, deserialize_with = "dollars")]
    max_usd: Option<Usd>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// A line in our own shape.
pub(super) fn own(text: &str) -> Result<Parsed, Reason> {
    let line: OwnLine = serde_json::from_str(text).map_err(Reason::of)?;
    let job = Job {
        model: line.model,
        session: line.session,
        workspace: line.workspace,
        tools: line.tools,
        system: line.system,
        timeout_s: line.timeout_s,
        max_turns: line.max_turns,
        max_usd: line.max_usd,
        max_tokens: line.max_tokens,
        labels: line.labels,
        ..Job::new(line.prompt)
    };
    Ok(Parsed { custom_id: line.custom_id, job })
}

/// True for a line of a provider's batch file.
pub(super) fn is_of_provider(value: &Value) -> bool {
    value.get("prompt").is_none() && (value.get("body").is_some() || value.get("params").is_some())
}

/// `custom_id`, `method`, `url` and `body`, or `custom_id` and `params`.
#[derive(Deserialize)]
struct ProviderLine {
    #[serde(deserialize_with = "not_empty")]
    custom_id: String,
    #[serde(alias = "params")]
    body: Body,
}

#[derive(Deserialize)]
struct Body {
    model: String,
    messages: Vec<Said>,
    #[serde(default)]
    system: Option<Content>,
}

#[derive(Deserialize)]
struct Said {
    role: SaidBy,
    content: Content,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SaidBy {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or a list of parts with `type` text")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Part {
    Text { text: String },
}

impl Content {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                let texts: Vec<String> = parts.into_iter().map(|Part::Text { text }| text).collect();
                texts.join("\n")
            }
        }
    }
}

/// A line in a provider's shape: the last user messages are the prompts, what stands before them is the transcript.
pub(super) fn of_provider(text: &str) -> Result<Parsed, Reason> {
    let line: ProviderLine = serde_json::from_str(text).map_err(Reason::of)?;
    let mut system: Vec<String> = line.body.system.map(Content::into_text).into_iter().collect();
    let mut said = Vec::new();
    for Said { role, content } in line.body.messages {
        match role {
            SaidBy::System | SaidBy::Developer => system.push(content.into_text()),
            SaidBy::User | SaidBy::Assistant => said.push((role, content.into_text())),
        }
    }
    let asked = said.iter().rev().take_while(|(role, _)| *role == SaidBy::User).count();
    if asked == 0 {
        let column = text.find("\"messages\"").unwrap_or_default() + 1;
        let reason = "the last of `messages` is not one of the user: nothing is asked".to_owned();
        return Err(Reason { column, reason });
    }
    let prompts = said.split_off(said.len() - asked);
    let messages = |said: Vec<(SaidBy, String)>| said.into_iter().map(message).collect();
    let job = Job {
        prompts: messages(prompts),
        base: messages(said),
        model: Some(line.body.model),
        system: (!system.is_empty()).then(|| system.join("\n\n")),
        ..Job::default()
    };
    Ok(Parsed { custom_id: line.custom_id, job })
}

fn message((role, text): (SaidBy, String)) -> Message {
    let content = vec![Block::Text(text)];
    match role {
        SaidBy::Assistant => Message::Assistant(Box::new(AssistantMessage {
            content,
            api: String::new(),
            provider: String::new(),
            model: String::new(),
            response_id: None,
            turn_id: None,
            usage: Usage::default(),
            stop_reason: StopReason::Stop,
            error_message: None,
            is_tainted: false,
            at: Millis::default(),
        })),
        SaidBy::System | SaidBy::Developer | SaidBy::User => {
            Message::User(UserMessage { content, at: Millis::default() })
        }
    }
}

fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.trim().is_empty() {
        Err(de::Error::custom("expected a text, got an empty one"))
    } else {
        Ok(text)
    }
}

/// Dollars as a number or as a text; exact either way.
fn dollars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Usd>, D::Error> {
    let text = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text,
        other @ (Value::Bool(_) | Value::Array(_) | Value::Object(_)) => other.to_string(),
    };
    text.parse().map(Some).map_err(de::Error::custom)
}
