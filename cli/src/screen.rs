//! A run as it is watched: events become text, as they arrive.
//!
//! Owns what `run` shows. Answers go to stdout, everything else to stderr, so that a pipe gets the answers alone. It
//! must never show a part of an answer twice.

use std::io::{self, Stderr, Write};

use engine::provider::UpdateKind;
use engine::{AgentEvent, Stamped};
use model::message::StopReason;
use model::{Message, ToolResult};

use crate::output::{Output, Style};
use crate::text::{clean, gist};

/// Where the events of one run are shown.
pub(crate) struct Screen {
    output: Output,
    stderr: Stderr,
    style: Style,
    is_json: bool,
    /// What is on the screen of the answer under way.
    shown: String,
    /// Attempt that it is of.
    attempt: u32,
    /// The cursor is not at the beginning of a line.
    is_midline: bool,
    is_thinking: bool,
    has_answered: bool,
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
            attempt: 0,
            is_midline: false,
            is_thinking: false,
            has_answered: false,
        }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: &Stamped) -> io::Result<()> {
        if self.is_json {
            self.output.json(&event.to_json())?;
            return self.output.flush();
        }
        match &event.event {
            AgentEvent::MessageUpdate { update, .. } if self.output.is_terminal => {
                self.begin_attempt(event.attempt)?;
                match update.kind {
                    UpdateKind::TextStart => self.begin_text(),
                    UpdateKind::TextDelta => self.answer(&update.delta),
                    UpdateKind::ThinkingDelta => self.think(&update.delta),
                    UpdateKind::TextEnd
                    | UpdateKind::ThinkingStart
                    | UpdateKind::ThinkingEnd
                    | UpdateKind::ToolCallStart
                    | UpdateKind::ToolCallDelta
                    | UpdateKind::ToolCallEnd => Ok(()),
                }
            }
            AgentEvent::MessageEnd { message } => self.message(message),
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

    /// Says something beside the answers, on a line of its own.
    pub(crate) fn note(&mut self, line: &str) -> io::Result<()> {
        self.end_line()?;
        // With stderr gone, the answers are all there is.
        let _ = writeln!(self.stderr, "{line}");
        Ok(())
    }

    /// How words look beside the answers.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    fn message(&mut self, message: &Message) -> io::Result<()> {
        match message {
            Message::Assistant(answer) => {
                self.has_answered = true;
                let text = clean(&message.joined_text());
                let shown = std::mem::take(&mut self.shown);
                match text.strip_prefix(&shown) {
                    Some(rest) => self.print(rest)?,
                    // Parts of it were lost on the way.
                    None => {
                        self.end_line()?;
                        self.print(&text)?;
                    }
                }
                self.end_line()?;
                match (&answer.error_message, answer.stop_reason) {
                    (Some(error), StopReason::Error | StopReason::Aborted) => {
                        let line = self.style.bad(gist(error));
                        self.note(&line)
                    }
                    (Some(_) | None, _) => Ok(()),
                }
            }
            // The prompts are known; what comes later was sent by somebody else.
            Message::User(_) if self.has_answered => {
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

    fn begin_attempt(&mut self, attempt: u32) -> io::Result<()> {
        if self.attempt != attempt && !self.shown.is_empty() {
            let line = self.style.dim("the answer broke off; the model is asked again");
            self.note(&line)?;
            self.shown.clear();
        }
        self.attempt = attempt;
        Ok(())
    }

    /// Text blocks of one answer stand on lines of their own.
    fn begin_text(&mut self) -> io::Result<()> {
        if self.shown.is_empty() { Ok(()) } else { self.answer("\n") }
    }

    fn answer(&mut self, delta: &str) -> io::Result<()> {
        let delta = clean(delta);
        self.print(&delta)?;
        self.shown.push_str(&delta);
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
