//! The entry points of the reference family: three thin layers over the driver.
//!
//! Owns signatures. `run_loop` appends to the caller's list; `run_agent_loop` awaits an event sink; `agent_loop` answers
//! an event stream. Each runs on an engine in memory; a stored run is continued with [`Engine::agent_loop_continue`].

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::Stream;
use model::{Message, Role};
use tokio::sync::mpsc;

use crate::driver::{Abort, Attached};
use crate::engine::Engine;
use crate::error::{Error, TranscriptNotContinuable};
use crate::event::{AgentEvent, Stamped};
use crate::handle::RunHandle;
use crate::job::Job;
use crate::runs::{Rest, lock};
use crate::sink::EventSink;

/// Events of a stream that may wait for its reader; then the run waits.
const STREAM_EVENTS_MAX: usize = 64;

/// What a loop runs with: an engine, usually in memory, and the job's settings beside its messages.
#[derive(Clone)]
pub struct LoopConfig {
    /// Where it runs.
    pub engine: Engine,
    /// Model, tools, workspace, limits. Its messages are those of the call.
    pub job: Job,
    /// Aborts it.
    pub abort: Option<Abort>,
}

/// How a loop ended, and what it added.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopEnd {
    /// Where the run rests.
    pub rest: Rest,
    /// The messages that it added, in order.
    pub messages: Vec<Arc<Message>>,
}

/// The core: runs the prompts on a transcript and appends what comes of it to the caller's list.
pub async fn run_loop(
    config: &LoopConfig,
    prompts: Vec<Message>,
    transcript: &mut Vec<Message>,
    sink: Option<Arc<dyn EventSink>>,
) -> Result<LoopEnd, Error> {
    let gathered = Arc::new(Gathering { new: Mutex::default(), next: sink });
    // What a source gives at one poll belongs together.
    let job = Job {
        prompts,
        base: transcript.clone(),
        retries: Some(false),
        drains_all: true,
        ..config.job.clone()
    };
    let attached =
        Attached { sink: Some(Arc::clone(&gathered) as Arc<dyn EventSink>), abort: config.abort.clone() };
    let handle = config.engine.submit_attached(job, attached).await?;
    let rest = handle.outcome().await?;
    let messages = std::mem::take(&mut *lock(&gathered.new));
    transcript.extend(messages.iter().map(|message| Message::clone(message)));
    if let Rest::Failed(reason) = rest {
        return Err(Error::Stopped(reason));
    }
    Ok(LoopEnd { rest, messages })
}

/// Runs prompts on a transcript; every event is awaited. The transcript stays as it is.
pub async fn run_agent_loop(
    config: &LoopConfig,
    prompts: Vec<Message>,
    transcript: &[Message],
    sink: Arc<dyn EventSink>,
) -> Result<LoopEnd, Error> {
    run_loop(config, prompts, &mut transcript.to_vec(), Some(sink)).await
}

/// Continues a bare transcript; every event is awaited. One that is empty or ends in an assistant message is rejected
/// before any event.
pub async fn run_agent_loop_continue(
    config: &LoopConfig,
    transcript: &[Message],
    sink: Arc<dyn EventSink>,
) -> Result<LoopEnd, Error> {
    check_continuable(transcript.iter())?;
    run_loop(config, Vec::new(), &mut transcript.to_vec(), Some(sink)).await
}

/// Runs prompts on a transcript; the events are a stream with back-pressure. A failure still ends in `agent_end`.
pub fn agent_loop(
    config: &LoopConfig,
    prompts: Vec<Message>,
    transcript: Vec<Message>,
) -> impl Stream<Item = Stamped> + Send + use<> {
    let (sender, receiver) = mpsc::channel(STREAM_EVENTS_MAX);
    let config = config.clone();
    tokio::spawn(async move {
        let sink = Arc::new(Channel { sender: sender.clone() });
        let ended = run_loop(&config, prompts, &mut transcript.clone(), Some(sink)).await;
        if let Err(error) = ended {
            for event in failure_events(&config, &error) {
                // The reader is gone: nobody waits for the end.
                let _ = sender.send(event).await;
            }
        }
    });
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((event, receiver))
    })
}

/// Continues a bare transcript as a stream. Rejected, without a stream, if it is empty or ends in an assistant message.
pub fn agent_loop_continue(
    config: &LoopConfig,
    transcript: Vec<Message>,
) -> Result<impl Stream<Item = Stamped> + Send + use<>, TranscriptNotContinuable> {
    check_continuable(transcript.iter())?;
    Ok(agent_loop(config, Vec::new(), transcript))
}

/// Rejects a transcript that no model can be asked to continue. Only the last message is looked at.
pub fn check_continuable<'a>(
    messages: impl DoubleEndedIterator<Item = &'a Message>,
) -> Result<(), TranscriptNotContinuable> {
    let mut messages = messages.rev();
    match messages.next() {
        None => Err(TranscriptNotContinuable { last_role: None, dangling_calls: Vec::new() }),
        Some(Message::Assistant(last)) => Err(TranscriptNotContinuable {
            last_role: Some(Role::Assistant),
            dangling_calls: last.calls().map(|call| call.id.clone()).collect(),
        }),
        Some(Message::User(_) | Message::ToolResult(_) | Message::Custom(_)) => Ok(()),
    }
}

impl Engine {
    /// Continues a stored run, whatever phase it is in. A run that has ended is a bare transcript: it is rejected if it
    /// ends in an assistant message, and otherwise continued by a new run of its session.
    pub async fn agent_loop_continue(&self, run: model::RunId) -> Result<RunHandle, Error> {
        let loaded = crate::driver::load_state(&**self.store(), run)?;
        let (state, _) = loaded.ok_or_else(|| Error::NoSuchRun(run.to_string()))?;
        if !matches!(state.core.phase, model::Phase::Done { .. }) {
            self.resume(Some(&[run]))?;
            return Ok(self.handle(run));
        }
        let entries = crate::driver::session_context(&**self.store(), run)?;
        check_continuable(entries.iter().map(|entry| &*entry.message))?;
        let store = &**self.store();
        let (job, kept) = crate::job::continuation(store, run)?;
        let settings = self.shared.configs.of_run(store, kept)?;
        self.submit_with(job, &settings, crate::driver::Attached::default()).await
    }
}

struct Gathering {
    new: Mutex<Vec<Arc<Message>>>,
    next: Option<Arc<dyn EventSink>>,
}

#[async_trait]
impl EventSink for Gathering {
    async fn emit(&self, event: Stamped) -> Result<(), String> {
        if let AgentEvent::MessageEnd { message } = &event.event {
            lock(&self.new).push(Arc::clone(message));
        }
        match &self.next {
            Some(next) => next.emit(event).await,
            None => Ok(()),
        }
    }
}

struct Channel {
    sender: mpsc::Sender<Stamped>,
}

#[async_trait]
impl EventSink for Channel {
    async fn emit(&self, event: Stamped) -> Result<(), String> {
        self.sender.send(event).await.map_err(|_| "the event stream was dropped".to_owned())
    }
}

/// What a stream ends with when the engine itself failed: the failure as an answer, and the end.
fn failure_events(config: &LoopConfig, error: &Error) -> Vec<Stamped> {
    let at = config.engine.now();
    let failed = model::message::AssistantMessage {
        content: vec![model::Block::Text(String::new())],
        stop_reason: model::message::StopReason::Error,
        error_message: Some(error.to_string()),
        ..crate::event::opening(config.job.model.as_deref().unwrap_or_default(), None, at)
    };
    let message = Arc::new(Message::Assistant(Box::new(failed)));
    let events = [
        AgentEvent::MessageStart { message: Arc::clone(&message) },
        AgentEvent::MessageEnd { message: Arc::clone(&message) },
        AgentEvent::TurnEnd { message: Some(Arc::clone(&message)), results: Vec::new() },
        AgentEvent::AgentEnd { messages: vec![message] },
    ];
    let stamp = |event| Stamped { run: model::RunId::default(), place: None, attempt: 0, at, event };
    events.into_iter().map(stamp).collect()
}
