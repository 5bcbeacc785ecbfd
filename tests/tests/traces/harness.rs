//! A scripted run and its trace, in the notation of `tests/cases/loop-traces.jsonl`.
//!
//! Owns the way from a few lines of script to a list of lines: agent events as the awaited sink saw them, interleaved
//! with polls, model calls, hooks and tool bodies. It must never look at more than the public entry points show.

use std::sync::Arc;

use engine::harness::{Context, Sources};
use engine::tool::{Execution, Tool};
use engine::{
    Abort, Engine, Error, EventSink, Harness, Job, LoopConfig, LoopEnd, Stamped, run_agent_loop_continue,
    run_loop,
};
use model::input::Hook;
use model::{Message, Millis};
use serde_json::Value;

use crate::log::{Log, body, event_line, label};
use crate::parts::{Answer, Body, Reply, ScriptedHooks, ScriptedModel, ScriptedSources, ScriptedTool};

/// Finds a tool when a model first calls it.
type Resolver = fn(&str) -> Result<Option<Body>, String>;

/// One scenario. Everything that is not said takes no part.
#[derive(Clone, Default)]
pub struct Script {
    pub name: &'static str,
    pub prompts: Vec<Message>,
    pub base: Vec<Message>,
    pub replies: Vec<Reply>,
    pub tools: Vec<Body>,
    pub steering: Option<Vec<Vec<&'static str>>>,
    pub follow_up: Vec<Vec<&'static str>>,
    pub withdrawn: Vec<&'static str>,
    pub hooks: Vec<Hook>,
    pub answers: Vec<(&'static str, Answer)>,
    pub abort: Option<AbortAt>,
    pub sink_fails_at: Option<&'static str>,
    pub deferred: Option<Resolver>,
    pub is_sequential: bool,
    pub shown: Shown,
    pub continues: Continues,
}

/// When a run is aborted.
#[derive(Clone, Copy)]
pub struct AbortAt {
    /// As soon as this line is in the trace; before anything, if it is empty.
    pub line: &'static str,
    pub reason: &'static str,
    pub is_handoff: bool,
}

/// Which name of a call the line of its body has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Shown {
    #[default]
    Nothing,
    Calls,
    Tools,
}

/// Whether a run starts with its prompts, continues its base, or is continued after its end.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Continues {
    #[default]
    No,
    Base,
    AfterEnd,
}

/// What a scenario led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub events: Vec<String>,
    pub bodies: Vec<String>,
    pub returned: Option<Vec<String>>,
    pub rejected: Option<String>,
}

/// A scenario with the prompt `hi`.
pub fn script(name: &'static str) -> Script {
    Script { name, prompts: vec![user("hi")], ..Script::default() }
}

pub fn user(text: &str) -> Message {
    Message::user(text, Millis(1))
}

/// The result of a call, for a transcript that a scenario starts from.
pub fn result(id: &str, tool: &str, text: &str) -> Message {
    Message::ToolResult(Box::new(model::message::ToolResultMessage {
        call_id: id.to_owned(),
        tool: tool.to_owned(),
        result: model::ToolResult::text(text),
        at: Millis(1),
    }))
}

impl Script {
    pub fn prompts(self, texts: &[&str]) -> Self {
        Self { prompts: texts.iter().map(|text| user(text)).collect(), ..self }
    }

    /// A transcript that stands before the prompts.
    pub fn base(self, base: Vec<Message>) -> Self {
        Self { base, ..self }
    }

    /// Continues a bare transcript, without a prompt.
    pub fn continues(self, base: Vec<Message>) -> Self {
        Self { base, prompts: Vec::new(), continues: Continues::Base, ..self }
    }

    /// After its end, the transcript is continued by a second run.
    pub fn then_continues(self) -> Self {
        Self { continues: Continues::AfterEnd, ..self }
    }

    /// The model's answers, in order.
    pub fn model(self, replies: impl Into<Vec<Reply>>) -> Self {
        Self { replies: replies.into(), ..self }
    }

    pub fn tools(self, tools: impl Into<Vec<Body>>) -> Self {
        Self { tools: tools.into(), ..self }
    }

    /// There are sources, and they never have anything.
    pub fn polls(self) -> Self {
        self.steering(&[])
    }

    /// What each steering poll gives, in order; nothing afterwards.
    pub fn steering(self, steering: &[&[&'static str]]) -> Self {
        Self { steering: Some(steering.iter().map(|texts| texts.to_vec()).collect()), ..self }
    }

    /// What each follow-up poll gives, in order; nothing afterwards.
    pub fn follow_up(self, follow_up: &[&[&'static str]]) -> Self {
        let steering = Some(self.steering.unwrap_or_default());
        Self { steering, follow_up: follow_up.iter().map(|texts| texts.to_vec()).collect(), ..self }
    }

    /// Messages with this text are taken back before they are shown.
    pub fn withdrawn(self, withdrawn: &[&'static str]) -> Self {
        Self { withdrawn: withdrawn.to_vec(), ..self }
    }

    pub fn hooks(self, hooks: &[Hook]) -> Self {
        Self { hooks: hooks.to_vec(), ..self }
    }

    /// What a hook answers; `line` is its line in the trace.
    pub fn answer(mut self, line: &'static str, answer: Answer) -> Self {
        self.answers.push((line, answer));
        self
    }

    /// The run is aborted as soon as this line is in the trace.
    pub fn abort_at(self, line: &'static str, reason: &'static str) -> Self {
        Self { abort: Some(AbortAt { line, reason, is_handoff: false }), ..self }
    }

    /// The run is handed over as soon as this line is in the trace.
    pub fn handoff_at(self, line: &'static str) -> Self {
        Self { abort: Some(AbortAt { line, reason: "handed over", is_handoff: true }), ..self }
    }

    /// The sink refuses the event with this line.
    pub fn sink_fails_at(self, line: &'static str) -> Self {
        Self { sink_fails_at: Some(line), ..self }
    }

    /// Tools that are found when they are first called.
    pub fn deferred(self, find: fn(&str) -> Result<Option<Body>, String>) -> Self {
        Self { deferred: Some(find), ..self }
    }

    pub fn sequential(self) -> Self {
        Self { is_sequential: true, ..self }
    }

    /// Bodies of tools are lines of the trace, with the call's id.
    pub fn shows_calls(self) -> Self {
        Self { shown: Shown::Calls, ..self }
    }

    /// Bodies of tools are lines of the trace, with the tool's name.
    pub fn shows_tools(self) -> Self {
        Self { shown: Shown::Tools, ..self }
    }

    fn job(&self) -> Job {
        Job {
            model: Some("m".into()),
            tools: Some(self.tools.iter().map(|tool| tool.name.to_owned()).collect()),
            tool_execution: self.is_sequential.then_some(engine::config::ToolExecution::Sequential),
            ..Job::default()
        }
    }

    fn harness(&self, log: &Arc<Log>) -> Harness {
        let has_sources = self.steering.is_some() || !self.withdrawn.is_empty();
        let sources = has_sources.then(|| {
            Arc::new(ScriptedSources::new(
                log,
                self.steering.as_deref().unwrap_or_default(),
                &self.follow_up,
                &self.withdrawn,
            )) as Arc<dyn Sources>
        });
        let hooks = (!self.hooks.is_empty()).then(|| {
            Arc::new(ScriptedHooks::new(log, &self.hooks, &self.answers)) as Arc<dyn engine::harness::Hooks>
        });
        let context =
            self.deferred.map(|find| Arc::new(Deferred { find, log: Arc::clone(log) }) as Arc<dyn Context>);
        Harness { sources, hooks, context }
    }

    /// The loop that the scenario describes, and where its lines go.
    pub fn config(&self) -> (LoopConfig, Arc<Log>) {
        let log = Arc::new(Log::new(self.abort, self.shown));
        let model = ScriptedModel::new(&log, &self.replies);
        let builder =
            Engine::memory().provider("m", model.clone()).provider("n", model).harness(self.harness(&log));
        let builder = self
            .tools
            .iter()
            .fold(builder, |builder, body| builder.tool(ScriptedTool::new(&log, body.clone())));
        let engine = builder.open().expect("the script is a whole engine");
        let abort = self.abort.map(|abort| Abort {
            token: log.abort_token(),
            reason: abort.reason.to_owned(),
            is_handoff: abort.is_handoff,
        });
        (LoopConfig { engine, job: self.job(), abort }, log)
    }

    /// Runs the scenario and answers its trace and the whole transcript.
    pub async fn run(&self) -> (Trace, Vec<Message>) {
        let (config, log) = self.config();
        let sink = Arc::new(Recorder { log: Arc::clone(&log), fails_at: self.sink_fails_at });
        let mut transcript = self.base.clone();
        let mut ended = match self.continues {
            Continues::Base => {
                let ended = run_agent_loop_continue(&config, &transcript, sink.clone()).await;
                let new = ended.iter().flat_map(|end| &end.messages);
                transcript.extend(new.map(|message| Message::clone(message)));
                ended
            }
            Continues::No | Continues::AfterEnd => {
                run_loop(&config, self.prompts.clone(), &mut transcript, Some(sink.clone())).await
            }
        };
        if self.continues == Continues::AfterEnd {
            let config = LoopConfig { abort: None, ..config };
            ended = run_agent_loop_continue(&config, &transcript, sink).await;
            let new = ended.iter().flat_map(|end| &end.messages);
            transcript.extend(new.map(|message| Message::clone(message)));
        }
        (trace(&log, ended), transcript)
    }
}

fn trace(log: &Log, ended: Result<LoopEnd, Error>) -> Trace {
    let (returned, rejected) = match ended {
        Ok(end) => (Some(end.messages.iter().map(|message| label(message)).collect()), None),
        Err(Error::NotContinuable(refused)) => {
            let role = refused.last_role.map_or("none", model::Role::name);
            (None, Some(format!("not continuable: {role} {:?}", refused.dangling_calls)))
        }
        Err(error) => (None, Some(error.to_string())),
    };
    Trace { events: log.events(), bodies: log.bodies(), returned, rejected }
}

struct Recorder {
    log: Arc<Log>,
    fails_at: Option<&'static str>,
}

#[async_trait::async_trait]
impl EventSink for Recorder {
    async fn emit(&self, event: Stamped) -> Result<(), String> {
        let line = event_line(&event.event);
        if let engine::AgentEvent::MessageEnd { message } = &event.event {
            self.log.body(body(message));
        }
        self.log.note(&line);
        if self.fails_at == Some(line.as_str()) { Err("listener".to_owned()) } else { Ok(()) }
    }
}

struct Deferred {
    find: fn(&str) -> Result<Option<Body>, String>,
    log: Arc<Log>,
}

#[async_trait::async_trait]
impl Context for Deferred {
    /// Custom messages are not for the model.
    fn convert_to_llm(&self, message: &Message) -> Option<Message> {
        (message.role() != model::Role::Custom).then(|| message.clone())
    }

    fn resolve_tool(&self, name: &str) -> Result<Option<Arc<dyn Tool>>, String> {
        let found = (self.find)(name)?;
        Ok(found.map(|body| Arc::new(ScriptedTool::new(&self.log, body)) as Arc<dyn Tool>))
    }
}

/// Arguments that no tool of the scenarios declares.
pub fn no_arguments() -> Value {
    serde_json::json!({ "type": "object" })
}

/// How a tool's calls run.
pub fn execution(is_sequential: bool) -> Execution {
    if is_sequential { Execution::Sequential } else { Execution::Parallel }
}
