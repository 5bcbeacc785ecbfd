//! What one call will answer, known before anything is sent.
//!
//! Owns the way from a turn of the script to the parts and the end of an answer: a function of script and
//! request alone. It must never wait, look at a clock or remember a call.

use std::num::NonZeroUsize;
use std::sync::Arc;

use model::JsonText;
use model::Label;
use model::input::{Failure, FailureKind};
use model::message::{Block, StopReason, ToolCall, Usage};

use super::digest::tokens;
use super::script::{Args, Call, Fail, Script, Turn};
use super::variables::Variables;
use crate::config::Price;
use crate::provider::price::priced;
use crate::provider::{Request, UpdateKind};

/// One call, planned.
#[derive(Debug)]
pub(super) struct Plan {
    /// Before the first byte, or before the failure when there is none.
    pub(super) delay_ms: u64,
    /// Characters in a chunk; all in one if absent.
    pub(super) chunk_chars: Option<NonZeroUsize>,
    /// Between two chunks.
    pub(super) chunk_ms: u64,
    /// Whether a first byte arrives at all.
    pub(super) is_opened: bool,
    /// What arrives, in order.
    pub(super) parts: Vec<Part>,
    /// The last part breaks off: its end never arrives.
    pub(super) is_broken: bool,
    /// What ends the stream.
    pub(super) ending: Ending,
    /// What it costs.
    pub(super) meter: Meter,
}

/// What ends a stream.
#[derive(Debug)]
pub(super) enum Ending {
    /// The answer is complete.
    Done(StopReason),
    /// The call fails.
    Failed(Box<Failure>),
    /// Nothing more arrives, until somebody ends the call.
    Silence,
}

/// One part of an answer: a content block.
#[derive(Debug)]
pub(super) enum Part {
    /// Reasoning.
    Thinking(String),
    /// Visible text.
    Text(String),
    /// A tool call.
    Call(ToolCall),
}

/// Counts tokens, and what they cost.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    /// What the script says.
    given: Option<Usage>,
    /// Tokens of the request.
    input: u64,
    /// What tokens cost.
    price: Option<Arc<Price>>,
}

impl Plan {
    /// The plan for `request`, which has `input` tokens.
    pub(super) fn new(script: &Script, request: &Request, input: u64, price: Option<Arc<Price>>) -> Self {
        let Some(turn) = script.turn(request.turn) else {
            let failure = Box::new(no_turn(request.turn, script.turns.len()));
            let meter = Meter { given: None, input, price };
            return Self::without_parts(&Turn::default(), Ending::Failed(failure), meter);
        };
        let by_calls = if turn.calls.is_empty() { StopReason::Stop } else { StopReason::ToolUse };
        let meter = Meter { given: turn.usage, input, price };
        let mut plan = Self::without_parts(turn, Ending::Done(turn.stop.unwrap_or(by_calls)), meter);
        let vars = Variables(request);
        match usize::try_from(request.attempt).ok().and_then(|attempt| turn.fail.get(attempt)) {
            None => plan.add_answer(turn, vars),
            Some(fail) => plan.add_failure(turn, fail, vars),
        }
        plan
    }

    /// The name of what ends the stream: a stop reason or a kind of failure.
    pub(super) fn outcome(&self) -> &'static str {
        match &self.ending {
            Ending::Done(stop_reason) => stop_reason.name(),
            Ending::Failed(failure) => failure.kind.name(),
            Ending::Silence => FailureKind::Idle.name(),
        }
    }

    /// What the call uses if nothing ends it before its time.
    pub(super) fn usage(&self) -> Usage {
        self.meter.usage(&self.parts)
    }

    fn without_parts(turn: &Turn, ending: Ending, meter: Meter) -> Self {
        Self {
            delay_ms: turn.delay_ms,
            chunk_chars: turn.chunk_chars,
            chunk_ms: turn.chunk_ms,
            is_opened: false,
            parts: Vec::with_capacity(
                usize::from(!turn.thinking.is_empty())
                    + usize::from(!turn.text.is_empty())
                    + turn.calls.len(),
            ),
            is_broken: false,
            ending,
            meter,
        }
    }

    fn add_answer(&mut self, turn: &Turn, vars: Variables<'_>) {
        self.is_opened = true;
        self.add(Part::Thinking(vars.fill(&turn.thinking)));
        self.add(Part::Text(vars.fill(&turn.text)));
        for (index, call) in turn.calls.iter().enumerate() {
            self.parts.push(Part::Call(tool_call(call, index, vars)));
        }
    }

    /// Adds a part unless there is nothing in it.
    fn add(&mut self, part: Part) {
        if !part.text().is_empty() {
            self.parts.push(part);
        }
    }

    /// What arrives before a failure: the beginning of the answer if the script asks for it, and for the
    /// kinds that are answers without text, the answer.
    fn add_failure(&mut self, turn: &Turn, fail: &Fail, vars: Variables<'_>) {
        let is_answer = fail.kind == FailureKind::Empty || fail.kind == FailureKind::ReasoningOnly;
        self.is_opened = is_answer || fail.after_chars.is_some();
        if self.is_opened && fail.kind != FailureKind::Empty {
            self.add(Part::Thinking(vars.fill(&turn.thinking)));
        }
        if let Some(chars) = fail.after_chars {
            let mut text = vars.fill(&turn.text);
            text.truncate(end_of(&text, chars));
            self.is_broken = !text.is_empty();
            self.add(Part::Text(text));
        }
        if fail.kind == FailureKind::Idle {
            self.ending = Ending::Silence;
            return;
        }
        let failure = Failure {
            retry_after_ms: fail.retry_after_ms,
            had_text: self.is_broken,
            usage: if self.is_opened { self.meter.usage(&self.parts) } else { Usage::default() },
            ..failure(fail.kind, &vars.fill(&fail.message))
        };
        self.ending = Ending::Failed(Box::new(failure));
    }
}

impl Part {
    /// The text that arrives in chunks; for a call its arguments.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Thinking(text) | Self::Text(text) => text,
            Self::Call(call) => call.arguments.as_str(),
        }
    }

    /// The updates for its start, for each chunk and for its end.
    pub(super) fn kinds(&self) -> [UpdateKind; 3] {
        match self {
            Self::Thinking(_) => {
                [UpdateKind::ThinkingStart, UpdateKind::ThinkingDelta, UpdateKind::ThinkingEnd]
            }
            Self::Text(_) => [UpdateKind::TextStart, UpdateKind::TextDelta, UpdateKind::TextEnd],
            Self::Call(_) => [UpdateKind::ToolCallStart, UpdateKind::ToolCallDelta, UpdateKind::ToolCallEnd],
        }
    }

    /// What is left of it when only `bytes` of its text arrived. A call without its end is none.
    pub(super) fn cut(self, bytes: usize) -> Option<Self> {
        let cut = |mut text: String| {
            text.truncate(bytes);
            (!text.is_empty()).then_some(text)
        };
        match self {
            Self::Thinking(text) => cut(text).map(Self::Thinking),
            Self::Text(text) => cut(text).map(Self::Text),
            Self::Call(_) => None,
        }
    }
}

impl From<Part> for Block {
    fn from(part: Part) -> Self {
        match part {
            Part::Thinking(text) => Self::Thinking { text, signature: None },
            Part::Text(text) => Self::Text(text),
            Part::Call(call) => Self::ToolCall(call),
        }
    }
}

impl Meter {
    /// The tokens of a call that brought `parts`: as the script says for the whole answer, or by estimate.
    pub(super) fn usage(&self, parts: &[Part]) -> Usage {
        let usage = self.given.unwrap_or_else(|| {
            let bytes = parts.iter().map(|part| match part {
                Part::Thinking(text) | Part::Text(text) => text.len(),
                Part::Call(call) => call.name.len() + call.arguments.as_str().len(),
            });
            let output = tokens(bytes.sum::<usize>() as u64);
            Usage { input: self.input, output, ..Usage::default() }
        });
        priced(self.price.as_deref(), usage)
    }
}

/// A failure about which only its kind and some words are known.
pub(super) fn failure(kind: FailureKind, message: &str) -> Failure {
    Failure {
        kind,
        message: Label::from(message),
        retry_after_ms: None,
        had_text: false,
        usage: Usage::default(),
        partial: None,
    }
}

/// Words that fit a label.
fn no_turn(turn: u32, count: usize) -> Failure {
    let turns = if count == 1 { "turn" } else { "turns" };
    let message = format!("no turn {turn}, the rehearsal has {count} {turns}: add it or set `after`");
    failure(FailureKind::Script, &message)
}

/// Where the first `chars` characters of `text` end.
pub(super) fn end_of(text: &str, chars: usize) -> usize {
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// Calls without an id are numbered within their turn, from 0.
fn tool_call(call: &Call, index: usize, vars: Variables<'_>) -> ToolCall {
    ToolCall {
        id: match &call.id {
            Some(id) => vars.fill(id),
            None => format!("call-{}-{index}", vars.0.turn),
        },
        name: vars.fill(&call.tool),
        arguments: match &call.args {
            Args::Fixed(text) => text.clone(),
            Args::Varying(value) => JsonText::from(&vars.fill_value(value)),
        },
        is_duplicate: false,
    }
}
