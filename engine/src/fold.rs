//! Reads a run's records: what entered the transcript, and what observers saw.
//!
//! Owns the one way from records to messages and events; the driver, `events` and `transcript` share it. It must never
//! call `advance`: records say themselves what they made visible.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::guard::retry::Action;
use model::input::{HookAnswer, Submission};
use model::message::{AssistantMessage, ToolCall, ToolResultMessage};
use model::phase::EntryRef;
use model::{Content, Fact, Label, Mark, Message, Moved, RunId, ToolResult};

use crate::event::{AgentEvent, CallView, Place, Stamped, opening};
use crate::job::JobFacts;

/// A message that entered the transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where it came in.
    pub at: EntryRef,
    /// The message.
    pub message: Arc<Message>,
}

/// What one record made visible.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Messages that entered the transcript, in order.
    pub entries: Vec<Entry>,
    /// Events, in order; empty unless asked for.
    pub events: Vec<Stamped>,
}

/// A run being read, record by record from its first.
#[derive(Debug)]
pub struct Fold {
    submission: Arc<Submission>,
    is_eventful: bool,
    attempt: u32,
    /// The model in force.
    model: Label,
    answer: Option<Arc<AssistantMessage>>,
    answer_entry: Option<Arc<Message>>,
    results: BTreeMap<u32, ToolResult>,
    turn_results: Vec<Arc<Message>>,
    messages: Vec<Arc<Message>>,
}

/// A record that points at something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} of run {run} shows {what}, which the journal does not hold; run `sprag verify {run}`")]
pub struct Dangling {
    /// The run.
    pub run: RunId,
    /// Sequence of the record.
    pub seq: u64,
    /// What is missing.
    pub what: String,
}

impl Fold {
    /// Starts after the first record of a run.
    pub fn new(submission: Arc<Submission>, is_eventful: bool) -> Self {
        Self {
            model: submission.model.clone(),
            submission,
            is_eventful,
            attempt: 0,
            answer: None,
            answer_entry: None,
            results: BTreeMap::new(),
            turn_results: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// What the run was submitted with.
    pub fn submission(&self) -> &Arc<Submission> {
        &self.submission
    }

    /// The newest answer of the run.
    pub fn answer(&self) -> Option<&Arc<AssistantMessage>> {
        self.answer.as_ref()
    }

    /// A call of the newest answer.
    pub fn call(&self, index: u32) -> Option<&ToolCall> {
        self.answer.as_ref()?.calls().nth(usize::try_from(index).ok()?)
    }

    /// The newest result of a call of the newest answer.
    pub fn result(&self, index: u32) -> Option<&ToolResult> {
        self.results.get(&index)
    }

    /// Reads the next record. `inbox` finds the message at a position of the run's inbox.
    pub fn apply(
        &mut self,
        seq: u64,
        record: &Moved,
        inbox: &dyn Fn(u64) -> Option<Message>,
    ) -> Result<Shown, Dangling> {
        self.take(record);
        let mut shown = Shown::default();
        let mut entries = 0;
        for (n, mark) in (0u32..).zip(&record.marks) {
            if let Mark::MessageEnd(content) = mark {
                let message = self.message(seq, *content, record, inbox)?;
                self.keep(*content, &message);
                let at = EntryRef { run: self.submission.run, seq, n: entries };
                shown.entries.push(Entry { at, message });
                entries += 1;
            }
            if self.is_eventful {
                let event = self.event(seq, *mark, record, inbox, shown.entries.last())?;
                shown.events.push(Stamped {
                    run: self.submission.run,
                    place: Some(Place { seq, n }),
                    attempt: self.attempt,
                    at: record.input.at,
                    event,
                });
            }
            if *mark == Mark::TurnEnd {
                self.turn_results.clear();
                self.answer_entry = None;
            }
        }
        self.note_model(record);
        Ok(shown)
    }

    /// The beginning of an answer of the model in force, named as the whole answer will be.
    fn opening(&self, at: model::Millis) -> AssistantMessage {
        let facts = JobFacts::of(&self.submission).ok();
        let served = facts.as_ref().and_then(|facts| facts.served(&self.model));
        opening(self.model.as_str(), served, at)
    }

    /// Takes over what the record brings for later ones.
    fn take(&mut self, record: &Moved) {
        if let Fact::ModelAnswered { message } = &record.input.fact {
            self.answer = Some(Arc::from(message.clone()));
            self.results.clear();
            self.attempt = 0;
        } else if let Fact::ModelFailed { .. } = &record.input.fact {
            self.attempt = self.attempt.saturating_add(1);
        }
        if let Some((call, result)) = record.input.fact.result() {
            self.results.insert(call, result.clone());
        }
        for (call, result) in &record.results {
            self.results.insert(*call, result.clone());
        }
    }

    /// Follows the model in force.
    fn note_model(&mut self, record: &Moved) {
        let decided = record.decision.as_ref().map(|decision| &decision.action);
        if let Some(Action::Fallback { model } | Action::RestartChain { model: Some(model), .. }) = decided {
            self.model = model.clone();
        }
        if let Fact::HookReturned { answer: HookAnswer::Next(next), .. } = &record.input.fact
            && let Some(model) = &next.model
        {
            self.model = model.clone();
        }
    }

    fn keep(&mut self, content: Content, message: &Arc<Message>) {
        match content {
            Content::Result(_) => self.turn_results.push(Arc::clone(message)),
            Content::Answer | Content::Made(_) => {
                if let Message::Assistant(_) = message.as_ref() {
                    self.answer_entry = Some(Arc::clone(message));
                }
            }
            Content::Prompt(_) | Content::Inbox(_) | Content::Opening => {}
        }
        if self.is_eventful {
            self.messages.push(Arc::clone(message));
        }
    }

    fn message(
        &self,
        seq: u64,
        content: Content,
        record: &Moved,
        inbox: &dyn Fn(u64) -> Option<Message>,
    ) -> Result<Arc<Message>, Dangling> {
        let dangling = |what: String| Dangling { run: self.submission.run, seq, what };
        let at = record.input.at;
        let found = match content {
            Content::Prompt(index) => {
                usize::try_from(index).ok().and_then(|index| self.submission.prompts.get(index)).cloned()
            }
            Content::Inbox(position) => inbox(position),
            Content::Opening => Some(Message::Assistant(Box::new(self.opening(at)))),
            Content::Answer => {
                record.input.fact.answer().map(|message| Message::Assistant(Box::new(message.clone())))
            }
            Content::Made(index) => {
                usize::try_from(index).ok().and_then(|index| record.made.get(index)).cloned()
            }
            Content::Result(call) => self.result_message(call, at),
        };
        found.map(Arc::new).ok_or_else(|| dangling(format!("{content:?}")))
    }

    fn result_message(&self, call: u32, at: model::Millis) -> Option<Message> {
        let ToolCall { id, name, .. } = self.call(call)?;
        let result = self.results.get(&call)?.clone();
        let message = ToolResultMessage { call_id: id.clone(), tool: name.clone(), result, at };
        Some(Message::ToolResult(Box::new(message)))
    }

    fn event(
        &self,
        seq: u64,
        mark: Mark,
        record: &Moved,
        inbox: &dyn Fn(u64) -> Option<Message>,
        last: Option<&Entry>,
    ) -> Result<AgentEvent, Dangling> {
        let dangling = |what: String| Dangling { run: self.submission.run, seq, what };
        Ok(match mark {
            Mark::AgentStart => AgentEvent::AgentStart,
            Mark::TurnStart => AgentEvent::TurnStart,
            Mark::MessageStart(content) => {
                AgentEvent::MessageStart { message: self.message(seq, content, record, inbox)? }
            }
            Mark::MessageEnd(content) => {
                let entry = last.ok_or_else(|| dangling(format!("{content:?}")))?;
                AgentEvent::MessageEnd { message: Arc::clone(&entry.message) }
            }
            Mark::ToolStart { call } => AgentEvent::ToolExecutionStart {
                call: self.view(call).ok_or_else(|| dangling(format!("call {call}")))?,
            },
            Mark::ToolEnd { call, is_started, is_invalid } => AgentEvent::ToolExecutionEnd {
                call: self.view(call).ok_or_else(|| dangling(format!("call {call}")))?,
                result: self.results.get(&call).cloned().ok_or_else(|| dangling(format!("result {call}")))?,
                is_started,
                is_invalid,
            },
            Mark::TurnEnd => {
                AgentEvent::TurnEnd { message: self.answer_entry.clone(), results: self.turn_results.clone() }
            }
            Mark::AgentEnd => AgentEvent::AgentEnd { messages: self.messages.clone() },
        })
    }

    /// A call of the newest answer, as events name it.
    pub fn view(&self, index: u32) -> Option<CallView> {
        let call = self.call(index)?;
        Some(CallView { id: call.id.clone(), tool: call.name.clone(), args: call.arguments.value() })
    }
}
