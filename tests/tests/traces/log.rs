//! The lines of a trace: how events and messages are written, and what happens when a line is.

use std::sync::Mutex;

use engine::AgentEvent;
use model::{Block, Message};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::{AbortAt, Shown};

/// The lines so far. A line may abort the run; tools may wait for one.
pub struct Log {
    lines: watch::Sender<Vec<(bool, String)>>,
    bodies: Mutex<Vec<String>>,
    abort: Option<&'static str>,
    token: CancellationToken,
    shown: Shown,
}

impl Log {
    pub fn new(abort: Option<AbortAt>, shown: Shown) -> Self {
        let token = CancellationToken::new();
        if abort.is_some_and(|abort| abort.line.is_empty()) {
            token.cancel();
        }
        Self {
            lines: watch::Sender::default(),
            bodies: Mutex::default(),
            abort: abort.map(|abort| abort.line),
            token,
            shown,
        }
    }

    pub fn abort_token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// A line of the trace.
    pub fn note(&self, line: &str) {
        self.write(line, true);
    }

    /// The body of a call; a line of the trace only if the scenario shows it.
    pub fn body_of(&self, call: &str, tool: &str) {
        match self.shown {
            Shown::Nothing => self.write(&format!("EXEC {call}"), false),
            Shown::Calls => self.write(&format!("EXEC {call}"), true),
            Shown::Tools => self.write(&format!("EXEC {tool}"), true),
        }
    }

    /// A line that is no part of the trace.
    pub fn whisper(&self, line: &str) {
        self.write(line, false);
    }

    /// True if a line was written, whether or not it is a part of the trace.
    pub fn has(&self, wanted: &str) -> bool {
        self.lines.borrow().iter().any(|(_, line)| line == wanted)
    }

    fn write(&self, line: &str, is_shown: bool) {
        self.lines.send_modify(|lines| lines.push((is_shown, line.to_owned())));
        if self.abort == Some(line) {
            self.token.cancel();
        }
    }

    /// The content of a message that is complete.
    pub fn body(&self, body: String) {
        self.bodies.lock().unwrap().push(body);
    }

    /// Waits until a line was written.
    pub async fn written(&self, wanted: &str) {
        let mut lines = self.lines.subscribe();
        let found = lines.wait_for(|lines| lines.iter().any(|(_, line)| line.starts_with(wanted))).await;
        assert!(found.is_ok(), "the log outlives its readers");
    }

    pub fn events(&self) -> Vec<String> {
        self.lines.borrow().iter().filter(|(is_shown, _)| *is_shown).map(|(_, line)| line.clone()).collect()
    }

    /// Every content once, in the order in which it was first seen.
    pub fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }
}

/// `user:hi`, `assistant:toolUse+calls`, `toolResult:1!err`.
pub fn label(message: &Message) -> String {
    match message {
        Message::User(_) => format!("user:{}", message.joined_text()),
        Message::Assistant(answer) => {
            let calls = if answer.calls().next().is_some() { "+calls" } else { "" };
            let identity = if answer.turn_id.is_some() { "+turnId" } else { "" };
            format!("assistant:{}{calls}{identity}", answer.stop_reason.name())
        }
        Message::ToolResult(result) => {
            format!("toolResult:{}{}", result.call_id, if result.result.is_error { "!err" } else { "" })
        }
        Message::Custom(custom) => format!("custom:{}", custom.custom_type),
    }
}

/// The label, the content, and the details or the error message.
pub fn body(message: &Message) -> String {
    let blocks: Vec<String> = message.content().iter().map(block).collect();
    let rest = match message {
        Message::ToolResult(result) if !result.result.details.is_empty_object() => {
            format!(" :: {}", result.result.details.value())
        }
        Message::Assistant(answer) => {
            answer.error_message.as_ref().map(|text| format!(" :: errorMessage={text}")).unwrap_or_default()
        }
        Message::User(_) | Message::ToolResult(_) | Message::Custom(_) => String::new(),
    };
    format!("{} :: {}{rest}", label(message), blocks.join("|"))
}

fn block(block: &Block) -> String {
    match block {
        Block::Text(text) => text.clone(),
        Block::ToolCall(call) => format!("<call {}>", call.id),
        Block::Image { .. } | Block::Thinking { .. } | Block::Other(_) => "?".to_owned(),
    }
}

/// One event as a line.
pub fn event_line(event: &AgentEvent) -> String {
    match event {
        AgentEvent::AgentStart | AgentEvent::TurnStart => event.name().to_owned(),
        AgentEvent::AgentEnd { messages } => {
            let labels: Vec<String> = messages.iter().map(|message| label(message)).collect();
            format!("agent_end[{}]", labels.join(", "))
        }
        AgentEvent::TurnEnd { message, results } => {
            let answer = message.as_ref().map(|message| label(message)).unwrap_or_default();
            let ids: Vec<&str> = results.iter().map(|result| call_id(result)).collect();
            format!("turn_end({answer}; results={})", ids.join(","))
        }
        AgentEvent::MessageStart { message } => format!("message_start({})", label(message)),
        AgentEvent::MessageUpdate { update, .. } => format!("message_update({})", update.kind.name()),
        AgentEvent::MessageEnd { message } => format!("message_end({})", label(message)),
        AgentEvent::ToolExecutionStart { call } => format!("tool_start({})", call.id),
        AgentEvent::ToolExecutionUpdate { call, .. } => format!("tool_update({})", call.id),
        AgentEvent::ToolExecutionEnd { call, result, is_started, is_invalid } => {
            let kind = if *is_invalid { "; kind=argument-validation" } else { "" };
            format!("tool_end({}; isError={}; started={is_started}{kind})", call.id, result.is_error)
        }
    }
}

fn call_id(message: &Message) -> &str {
    match message {
        Message::ToolResult(result) => &result.call_id,
        Message::User(_) | Message::Assistant(_) | Message::Custom(_) => "?",
    }
}
