//! The scripted parts of a scenario: model, tools, hooks, sources. Each writes its line, then does as its script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use engine::harness::{
    BatchBlock, BatchCall, Gate, HookContext, Hooks, Permission, ResultPatch, Sources, TurnView,
};
use engine::provider::{Intent, ModelProvider, Request, StreamEvent, Update, UpdateKind};
use engine::tool::{CallContext, Preparation, Tool, ToolSpec};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use model::input::{Failure, FailureKind, Hook, NextTurn};
use model::message::{AssistantMessage, StopReason, ToolCall, Usage};
use model::{Block, JsonText, Message, Millis, Role, RunId, ToolResult};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::harness::{execution, no_arguments, user};
use crate::log::Log;

// ---- the model ------------------------------------------------------------------------------------------------------

/// One answer of the model.
#[derive(Clone)]
pub enum Reply {
    /// It says this, after these parts.
    Says { answer: AssistantMessage, parts: Vec<UpdateKind> },
    /// It says this much, then nothing until it is aborted.
    Hangs(AssistantMessage),
    /// It fails before its first byte.
    Fails(&'static str),
    /// It fails after its first byte.
    Breaks(&'static str),
}

fn says(stop_reason: StopReason, content: Vec<Block>) -> Reply {
    let answer = AssistantMessage {
        content,
        model: "m".to_owned(),
        response_id: Some("r".to_owned()),
        stop_reason,
        at: Millis(1),
        ..AssistantMessage::default()
    };
    Reply::Says { answer, parts: Vec::new() }
}

/// A plain answer.
pub fn text(text: &str) -> Reply {
    says(StopReason::Stop, vec![Block::Text(text.to_owned())])
}

/// An answer that calls tools without arguments: id and name.
pub fn calls(calls: &[(&str, &str)]) -> Reply {
    says(StopReason::ToolUse, calls.iter().map(|(id, name)| call(id, name, &serde_json::json!({}))).collect())
}

/// A call as a block of an answer.
pub fn call(id: &str, name: &str, args: &Value) -> Block {
    Block::ToolCall(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: JsonText::from(args),
        is_duplicate: false,
    })
}

impl Reply {
    fn map(self, change: impl FnOnce(&mut AssistantMessage)) -> Self {
        match self {
            Self::Says { mut answer, parts } => {
                change(&mut answer);
                Self::Says { answer, parts }
            }
            Self::Hangs(_) | Self::Fails(_) | Self::Breaks(_) => self,
        }
    }

    pub fn stop_reason(self, stop_reason: StopReason) -> Self {
        self.map(|answer| answer.stop_reason = stop_reason)
    }

    pub fn content(self, content: Vec<Block>) -> Self {
        self.map(|answer| answer.content = content)
    }

    pub fn error(self, text: &str) -> Self {
        self.map(|answer| answer.error_message = Some(text.to_owned()))
    }

    pub fn ids(self, response: Option<&str>, turn: Option<&str>) -> Self {
        self.map(|answer| {
            answer.response_id = response.map(str::to_owned);
            answer.turn_id = turn.map(str::to_owned);
        })
    }

    pub fn parts(self, kinds: &[UpdateKind]) -> Self {
        match self {
            Self::Says { answer, .. } => Self::Says { answer, parts: kinds.to_vec() },
            Self::Hangs(_) | Self::Fails(_) | Self::Breaks(_) => self,
        }
    }

    /// The answer never ends by itself.
    pub fn hangs(self) -> Self {
        match self {
            Self::Says { answer, .. } => Self::Hangs(answer),
            Self::Hangs(_) | Self::Fails(_) | Self::Breaks(_) => self,
        }
    }

    /// The message, for a transcript that a scenario starts from.
    pub fn message(self) -> Message {
        match self {
            Self::Says { answer, .. } | Self::Hangs(answer) => Message::Assistant(Box::new(answer)),
            Self::Fails(text) | Self::Breaks(text) => user(text),
        }
    }
}

#[derive(Clone)]
pub struct ScriptedModel {
    log: Arc<Log>,
    /// How many calls were made, and the answers that are left.
    replies: Arc<Mutex<(u32, VecDeque<Reply>)>>,
}

impl ScriptedModel {
    pub fn new(log: &Arc<Log>, replies: &[Reply]) -> Self {
        Self { log: Arc::clone(log), replies: Arc::new(Mutex::new((0, replies.to_vec().into()))) }
    }
}

impl ModelProvider for ScriptedModel {
    fn prepare(&self, _request: &Request) -> Result<Intent, Failure> {
        Ok(Intent { hash: [0; 32], converter_version: 0, reserve: Usage::default() })
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let roles: String = request.messages.iter().map(|prepared| role(&prepared.message)).collect();
        let (number, reply) = {
            let mut replies = self.replies.lock().unwrap();
            replies.0 += 1;
            (replies.0, replies.1.pop_front())
        };
        let model = if request.model == "m" { "MODEL" } else { request.model.as_str() };
        self.log.note(&format!("{model}#{number}(ctx={roles})"));
        let tools: Vec<&str> = request.tools.iter().map(|spec| spec.name.as_str()).collect();
        self.log.whisper(&format!("#{number} thinks {}, has {}", request.thinking, tools.join(",")));
        let events = match reply {
            None => vec![StreamEvent::Failed(failure("the script has no such answer"))],
            Some(Reply::Fails(text)) => vec![StreamEvent::Failed(failure(text))],
            Some(Reply::Breaks(text)) => vec![StreamEvent::Opened, StreamEvent::Failed(failure(text))],
            Some(Reply::Says { answer, parts }) => {
                let updates = parts.into_iter().map(|kind| StreamEvent::Update(update(kind)));
                let done = StreamEvent::Done(Box::new(answer));
                std::iter::once(StreamEvent::Opened).chain(updates).chain([done]).collect()
            }
            Some(Reply::Hangs(answer)) => {
                let answer = AssistantMessage { stop_reason: StopReason::Aborted, ..answer };
                let opened = futures_util::stream::iter([StreamEvent::Opened]);
                let aborted = futures_util::stream::once(async move {
                    abort.cancelled().await;
                    StreamEvent::Done(Box::new(answer))
                });
                return opened.chain(aborted).boxed();
            }
        };
        futures_util::stream::iter(events).boxed()
    }
}

fn role(message: &Message) -> &'static str {
    match message.role() {
        Role::User => "u",
        Role::Assistant => "a",
        Role::ToolResult => "tr",
        Role::Custom => "c",
    }
}

fn update(kind: UpdateKind) -> Update {
    Update { kind, content_index: 0, delta: "a".to_owned(), call: None }
}

fn failure(text: &str) -> Failure {
    Failure::new(FailureKind::Unknown, text)
}

// ---- tools ----------------------------------------------------------------------------------------------------------

/// A tool and what its calls do.
#[derive(Clone)]
pub struct Body {
    pub name: &'static str,
    parameters: Value,
    result: Result<ToolResult, String>,
    waits_for: Option<&'static str>,
    waits_for_cancel: bool,
    updates: usize,
    prepares: Option<Result<ToolResult, String>>,
    is_sequential: bool,
    is_network: bool,
}

/// A tool whose calls answer this text.
pub fn tool(name: &'static str, text: &str) -> Body {
    Body {
        name,
        parameters: no_arguments(),
        result: Ok(ToolResult::text(text)),
        waits_for: None,
        waits_for_cancel: false,
        updates: 0,
        prepares: None,
        is_sequential: false,
        is_network: false,
    }
}

impl Body {
    pub fn parameters(self, parameters: Value) -> Self {
        Self { parameters, ..self }
    }

    pub fn fails(self, text: &str) -> Self {
        Self { result: Err(text.to_owned()), ..self }
    }

    /// Its result asks the loop to stop.
    pub fn terminates(self) -> Self {
        Self { result: self.result.map(|result| ToolResult { terminates: true, ..result }), ..self }
    }

    /// Its calls end after a line that starts so.
    pub fn waits_for(self, line: &'static str) -> Self {
        Self { waits_for: Some(line), ..self }
    }

    /// Its calls end when they are cancelled.
    pub fn waits_for_cancel(self) -> Self {
        Self { waits_for_cancel: true, ..self }
    }

    /// Its calls tell so often how far they are, and once after they have ended.
    pub fn updates(self, updates: usize) -> Self {
        Self { updates, ..self }
    }

    /// Its calls are answered before they run.
    pub fn prepares(self, result: Result<ToolResult, String>) -> Self {
        Self { prepares: Some(result), ..self }
    }

    pub fn sequential(self) -> Self {
        Self { is_sequential: true, ..self }
    }

    pub fn network(self) -> Self {
        Self { is_network: true, ..self }
    }
}

pub struct ScriptedTool {
    log: Arc<Log>,
    spec: ToolSpec,
    body: Body,
}

impl ScriptedTool {
    pub fn new(log: &Arc<Log>, body: Body) -> Self {
        let spec = ToolSpec {
            execution: execution(body.is_sequential),
            is_network: body.is_network,
            ..ToolSpec::new(body.name, "", body.parameters.clone())
        };
        Self { log: Arc::clone(log), spec, body }
    }
}

#[async_trait]
impl Tool for ScriptedTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare(&self, args: Value) -> Result<Preparation, String> {
        match &self.body.prepares {
            None => Ok(Preparation::Args(args)),
            Some(result) => result.clone().map(Preparation::Immediate),
        }
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        self.log.body_of(&call.call_id, self.body.name);
        for _ in 0..self.body.updates {
            call.updates.send(ToolResult::text("so far")).await.map_err(|error| error.to_string())?;
        }
        if let Some(line) = self.body.waits_for {
            self.log.written(line).await;
        }
        if self.body.waits_for_cancel {
            call.cancel.cancelled().await;
        }
        if self.body.updates > 0 {
            let (late, log) = (call.updates.clone(), Arc::clone(&self.log));
            tokio::spawn(async move {
                log.written("tool_end").await;
                late.send(ToolResult::text("too late")).await
            });
        }
        self.body.result.clone()
    }
}

// ---- hooks ----------------------------------------------------------------------------------------------------------

/// What a hook answers instead of nothing.
#[derive(Clone)]
pub enum Answer {
    Block(&'static str),
    Fails(&'static str),
    /// The batch goes in circles, since the call with this index.
    Circles(u16),
    Stop,
    Next(NextTurn),
    Patch(ResultPatch),
}

pub struct ScriptedHooks {
    log: Arc<Log>,
    wanted: Vec<Hook>,
    answers: Mutex<Vec<(&'static str, Answer)>>,
}

impl ScriptedHooks {
    pub fn new(log: &Arc<Log>, wanted: &[Hook], answers: &[(&'static str, Answer)]) -> Self {
        Self { log: Arc::clone(log), wanted: wanted.to_vec(), answers: Mutex::new(answers.to_vec()) }
    }

    /// Writes the hook's line. Each answer is given once.
    fn ask(&self, line: &str) -> Result<Option<Answer>, String> {
        self.log.note(line);
        let mut answers = self.answers.lock().unwrap();
        let found = answers.iter().position(|(at, _)| *at == line);
        match found.map(|index| answers.remove(index).1) {
            Some(Answer::Fails(text)) => Err(text.to_owned()),
            answer => Ok(answer),
        }
    }
}

#[async_trait]
impl Hooks for ScriptedHooks {
    fn wanted(&self) -> &[Hook] {
        &self.wanted
    }

    async fn before_agent_run(&self, _: HookContext<'_>, _: &[Message]) -> Result<Gate, String> {
        Ok(match self.ask("HOOK:beforeAgentRun()")? {
            Some(Answer::Block(reason)) => Gate::Block(reason.to_owned()),
            _ => Gate::Allow,
        })
    }

    async fn before_tool_batch(
        &self,
        _: HookContext<'_>,
        calls: &[BatchCall],
    ) -> Result<Option<BatchBlock>, String> {
        let ids: Vec<&str> = calls.iter().map(|call| call.call.id.as_str()).collect();
        Ok(match self.ask(&format!("HOOK:beforeToolBatch({})", ids.join(",")))? {
            Some(Answer::Circles(index)) => Some(BatchBlock {
                index,
                detector: "generic_repeat".to_owned(),
                count: 20,
                reason: "REASON".to_owned(),
                action_key: "k".to_owned(),
            }),
            _ => None,
        })
    }

    async fn before_tool_call(&self, _: HookContext<'_>, call: &BatchCall) -> Result<Permission, String> {
        Ok(match self.ask(&format!("HOOK:beforeToolCall({})", call.call.id))? {
            Some(Answer::Block(reason)) => Permission::Block(reason.to_owned()),
            _ => Permission::Allow,
        })
    }

    async fn after_tool_call(
        &self,
        _: HookContext<'_>,
        call: &BatchCall,
        _: &ToolResult,
    ) -> Result<ResultPatch, String> {
        Ok(patch(self.ask(&format!("HOOK:afterToolCall({})", call.call.id))?))
    }

    async fn after_tool_outcome(
        &self,
        _: HookContext<'_>,
        call: &BatchCall,
        _: &ToolResult,
    ) -> Result<ResultPatch, String> {
        self.log.whisper(&format!("{} was called with {}", call.call.id, call.args));
        Ok(patch(self.ask(&format!("HOOK:afterToolOutcome({})", call.call.id))?))
    }

    async fn prepare_next_turn(&self, _: HookContext<'_>, _: &TurnView<'_>) -> Result<NextTurn, String> {
        Ok(match self.ask("HOOK:prepareNextTurn()")? {
            Some(Answer::Next(next)) => next,
            _ => NextTurn::default(),
        })
    }

    async fn should_stop_after_turn(&self, _: HookContext<'_>, _: &TurnView<'_>) -> Result<bool, String> {
        Ok(matches!(self.ask("HOOK:shouldStopAfterTurn()")?, Some(Answer::Stop)))
    }
}

fn patch(answer: Option<Answer>) -> ResultPatch {
    match answer {
        Some(Answer::Patch(patch)) => patch,
        _ => ResultPatch::default(),
    }
}

// ---- sources --------------------------------------------------------------------------------------------------------

pub struct ScriptedSources {
    log: Arc<Log>,
    steering: Mutex<VecDeque<Vec<&'static str>>>,
    follow_up: Mutex<VecDeque<Vec<&'static str>>>,
    withdrawn: Vec<&'static str>,
}

impl ScriptedSources {
    pub fn new(
        log: &Arc<Log>,
        steering: &[Vec<&'static str>],
        follow_up: &[Vec<&'static str>],
        withdrawn: &[&'static str],
    ) -> Self {
        Self {
            log: Arc::clone(log),
            steering: Mutex::new(steering.to_vec().into()),
            follow_up: Mutex::new(follow_up.to_vec().into()),
            withdrawn: withdrawn.to_vec(),
        }
    }

    fn next(&self, kind: &str, queue: &Mutex<VecDeque<Vec<&'static str>>>) -> Vec<Message> {
        let texts = queue.lock().unwrap().pop_front().unwrap_or_default();
        self.log.note(&format!("POLL:{kind} -> {}", texts.len()));
        texts.into_iter().map(message).collect()
    }
}

/// A message that a source gives; text in brackets makes it a custom one.
fn message(text: &'static str) -> Message {
    match text.strip_prefix('[') {
        None => user(text),
        Some(text) => Message::Custom(model::message::CustomMessage {
            custom_type: text.trim_end_matches(']').to_owned(),
            content: vec![Block::Text(text.to_owned())],
            is_displayed: false,
            details: JsonText::empty(),
            at: Millis(1),
        }),
    }
}

#[async_trait]
impl Sources for ScriptedSources {
    async fn steering(&self, _: RunId) -> Vec<Message> {
        self.next("steering", &self.steering)
    }

    async fn follow_up(&self, _: RunId) -> Vec<Message> {
        self.next("followup", &self.follow_up)
    }

    async fn is_withdrawn(&self, _: RunId, message: &Message) -> bool {
        self.withdrawn.contains(&message.joined_text().as_str())
    }
}
