//! A run as it is watched: events become text, as they arrive.
//!
//! Owns what `run` shows. Answers go to stdout, everything else to stderr, so that a pipe gets the answers alone. It
//! must never show a part of an answer twice.

use std::io::{self, Stderr, Write};

use engine::provider::UpdateKind;
use engine::{AgentEvent, Stamped};
use model::{Message, Millis, ToolResult};

use crate::output::{Output, Style};
use crate::text::{clean, fault, gist};

/// Where the events of one run are shown.
pub(crate) struct Screen {
    output: Output,
    stderr: Stderr,
    style: Style,
    is_json: bool,
    /// What is on the screen of the answer under way.
    shown: String,
    /// When the newest answer ended: what was streamed until then may arrive later, and is on the screen already.
    ended_at: Option<Millis>,
    /// The cursor is not at the beginning of a line.
    is_midline: bool,
    is_thinking: bool,
    /// What went wrong, as the newest answer says it.
    shown_error: Option<String>,
}

impl Screen {
    /// A screen; with `is_json`, one JSON value a line.
    pub(crate) fn new(output: Output, is_json: bool) -> Self {
        let stderr = io::stderr();
        Self {
            output,
            style: Style::of(&stderr),
            stderr,
            is_json,
            shown: String::new(),
            ended_at: None,
            is_midline: false,
            is_thinking: false,
            shown_error: None,
        }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: &Stamped) -> io::Result<()> {
        if self.is_json {
            self.output.json(&event.to_json())?;
            return self.output.flush();
        }
        match &event.event {
            AgentEvent::MessageUpdate { message, update } if self.output.is_terminal => match update.kind {
                _ if self.ended_at >= Some(event.at) => Ok(()),
                UpdateKind::ThinkingDelta => self.think(&update.delta),
                UpdateKind::TextDelta => self.answer(message),
                UpdateKind::TextStart
                | UpdateKind::TextEnd
                | UpdateKind::ThinkingStart
                | UpdateKind::ThinkingEnd
                | UpdateKind::ToolCallStart
                | UpdateKind::ToolCallDelta
                | UpdateKind::ToolCallEnd => Ok(()),
            },
            AgentEvent::MessageEnd { message } => self.message(message, event.at),
            AgentEvent::ToolExecutionStart { call } => {
                let args = gist(&call.args.to_string());
                let line = format!("{} {}", self.style.bold(&call.tool), self.style.dim(args));
                self.note(&line)
            }
            AgentEvent::ToolExecutionEnd { call, result, .. } => self.tool_end(&call.tool, result),
            AgentEvent::AgentStart
            | AgentEvent::AgentEnd { .. }
            | AgentEvent::TurnStart
            | AgentEvent::TurnEnd { .. }
            | AgentEvent::MessageStart { .. }
            | AgentEvent::MessageUpdate { .. }
            | AgentEvent::ToolExecutionUpdate { .. } => Ok(()),
        }
    }

    /// Says to a person, on a line of its own, why nothing happens for a while.
    pub(crate) fn aside(&mut self, words: &str) -> io::Result<()> {
        if self.is_json {
            return Ok(());
        }
        let line = self.style.dim(clean(words));
        self.note(&line)
    }

    /// Says something beside the answers, on a line of its own.
    pub(crate) fn note(&mut self, line: &str) -> io::Result<()> {
        match self.end_line() {
            // Whoever has enough of the answers is told the rest all the same.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // With stderr gone, the answers are all there is.
        let _ = writeln!(self.stderr, "{line}");
        Ok(())
    }

    /// How words look beside the answers.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// True if the newest answer on the screen says all of this, which may be cut and begin with the kind of error.
    pub(crate) fn has_shown(&self, reason: &str) -> bool {
        let Some(shown) = &self.shown_error else { return false };
        let reason = reason.trim_end_matches('…');
        let words = reason.split_once(": ").map_or(reason, |(_, words)| words);
        [reason, words].iter().any(|said| shown.starts_with(said))
    }

    fn message(&mut self, message: &Message, at: Millis) -> io::Result<()> {
        match message {
            Message::Assistant(answer) => {
                self.answer(message)?;
                self.end_line()?;
                self.shown.clear();
                self.ended_at = Some(at);
                self.shown_error.clone_from(&answer.error_message);
                answer.error_message.iter().try_for_each(|error| {
                    let line = self.style.bad(fault(error));
                    self.note(&line)
                })
            }
            // The prompts are known; what comes later was sent by somebody else.
            Message::User(_) if self.ended_at.is_some() => {
                let line = self.style.dim(format!("> {}", gist(&message.joined_text())));
                self.note(&line)
            }
            Message::User(_) | Message::ToolResult(_) | Message::Custom(_) => Ok(()),
        }
    }

    fn tool_end(&mut self, tool: &str, result: &ToolResult) -> io::Result<()> {
        if !result.is_error {
            return Ok(());
        }
        let line = self.style.bad(format!("{tool} failed: {}", gist(&result.joined_text())));
        self.note(&line)
    }

    /// Shows what is new of an answer.
    fn answer(&mut self, message: &Message) -> io::Result<()> {
        let text = clean(&message.joined_text());
        match text.strip_prefix(&self.shown) {
            Some(rest) => self.print(rest)?,
            None => {
                let line = self.style.dim("the answer broke off; this is another one");
                self.note(&line)?;
                self.print(&text)?;
            }
        }
        self.shown = text;
        Ok(())
    }

    fn print(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.is_thinking {
            self.end_line()?;
        }
        self.output.text(text)?;
        self.is_midline = !text.ends_with('\n');
        self.output.flush()
    }

    fn think(&mut self, delta: &str) -> io::Result<()> {
        if !self.is_thinking {
            self.end_line()?;
        }
        self.is_thinking = true;
        self.is_midline = !delta.ends_with('\n');
        let _ = write!(self.stderr, "{}", self.style.dim(clean(delta)));
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.is_midline && self.is_thinking {
            let _ = writeln!(self.stderr);
        } else if self.is_midline {
            self.output.text("\n")?;
        }
        self.is_midline = false;
        self.is_thinking = false;
        self.output.flush()
    }
}
