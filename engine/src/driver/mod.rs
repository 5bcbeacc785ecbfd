//! Drives one run: effects → perform → advance → commit → publish.
//!
//! Owns the loop and nothing else: what follows from an outcome is `model`'s, how an effect is performed is in the files
//! beside this one. No effect is performed before the barrier that covers the state it follows from.

mod commit;
mod context;
mod hooks;
mod inbox;
mod load;
mod model_call;
mod perform;
mod recover;
mod tool_call;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use model::encode::Encoded;
use model::inbox::Control;
use model::input::Failure;
use model::phase::StreamStage;
use model::{Effect, Fact, Label, Millis, Phase, RunId, RunState};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

pub(crate) use load::{decode_moved, inbox_message, load_state, read_first, session_context};

use self::context::Context;
use self::inbox::Inbox;
use self::model_call::{ModelCall, ModelNews};
use self::tool_call::{PlannedCall, ToolUpdate, ToolUpdates};
use crate::error::Error;
use crate::fold::Fold;
use crate::job::JobFacts;
use crate::provider::{Origin, Request};
use crate::runs::{Rest, Watched};
use crate::shared::Shared;
use crate::sink::EventSink;

/// What became of an effect.
struct Performed {
    effect: Effect,
    fact: Fact,
}

/// What an embedding program attaches to a run that it drives itself.
#[derive(Clone, Default)]
pub(crate) struct Attached {
    /// Takes every event, awaited.
    pub(crate) sink: Option<Arc<dyn EventSink>>,
    /// Cancelled by the program to abort the run.
    pub(crate) abort: Option<Abort>,
}

/// An abort by the embedding program.
#[derive(Clone, Debug)]
pub struct Abort {
    /// Cancelled to abort.
    pub token: CancellationToken,
    /// Why.
    pub reason: String,
    /// The run is handed to another; nobody is told of an interruption.
    pub is_handoff: bool,
}

/// One run and everything that is under way for it.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    watched: Arc<Watched>,
    attached: Attached,
    run: RunId,
    submitted_at: Millis,
    facts: Arc<JobFacts>,
    origin: Arc<Origin>,

    state: RunState,
    encoded: Encoded,
    effects: Vec<Effect>,
    fold: Fold,
    context: Context,
    inbox: Inbox,

    /// Effects under way.
    active: Vec<Effect>,
    performing: FuturesUnordered<BoxFuture<'static, Performed>>,
    model: Option<ModelCall>,
    request: Option<Request>,
    /// Why the request whose intent was committed cannot be made.
    refused_request: Option<Failure>,
    plans: Vec<PlannedCall>,
    /// Partial results of tools; made when a call is followed.
    updates: Option<ToolUpdates>,
    /// Cancelled when the run is to end: whatever is under way ends soon.
    cancel: CancellationToken,
    deadline: Option<(Millis, Pin<Box<Sleep>>)>,
    /// What happened since the last barrier, to be told again if that barrier fails.
    known: Vec<(Effect, Fact)>,
    /// Directories of calls whose result waits for its barrier.
    left_over: Vec<std::path::PathBuf>,
    is_stopping: bool,
    sink_failure: Option<String>,
}

/// Longest wait for a model call or a tool to end by itself after an abort; then it is dropped.
const ABORT_GRACE: Duration = Duration::from_millis(100);

impl Driver {
    /// Moves the run until it rests.
    pub(crate) async fn drive(&mut self) -> Result<Rest, Error> {
        loop {
            if !self.is_stopping && self.shared.stop.is_cancelled() {
                self.stop();
            }
            if let Some(rest) = self.rest() {
                return self.sink_failure.take().map_or(Ok(rest), |failure| Err(Error::Sink(failure)));
            }
            if self.shared.drain.is_cancelled() && !self.is_stopping && self.is_between_turns() {
                self.stop();
            }
            if let Some(fact) = self.next_decision() {
                self.step(None, fact).await?;
            } else if self.is_stopping && self.active.is_empty() {
                self.step(None, Fact::Stopped).await?;
                return Ok(Rest::Stopped);
            } else if let Some(Performed { effect, fact }) = Box::pin(self.perform()).await? {
                self.step(Some(effect), fact).await?;
            } else {
                self.wait().await?;
            }
        }
    }

    /// Where the run rests, if it does.
    fn rest(&self) -> Option<Rest> {
        match &self.state.core.phase {
            Phase::Done { outcome, reason } => {
                Some(Rest::Done { outcome: *outcome, reason: reason.as_ref().map(Label::to_string) })
            }
            Phase::Parked { reason, .. } if !self.has_control() => Some(Rest::Parked(reason.clone())),
            // A run that only waits for a timer needs no driver; one that a program drives itself keeps it.
            Phase::Stream { stage: StreamStage::Backoff { until }, .. } => {
                let is_attached = self.attached.sink.is_some() || self.attached.abort.is_some();
                let must_wait = *until > self.shared.clock.now() && !self.has_control() && !self.is_stopping;
                (must_wait && !is_attached).then_some(Rest::Waiting { until: *until })
            }
            _ => None,
        }
    }

    /// No model call and no tool of a turn is under way, nor paid for without its result being committed.
    fn is_between_turns(&self) -> bool {
        match &self.state.core.phase {
            Phase::Queued | Phase::InjectPending { .. } => true,
            Phase::Stream { stage: StreamStage::Ready | StreamStage::Backoff { .. }, .. } => true,
            Phase::Stream { stage: StreamStage::InFlight | StreamStage::Open, .. }
            | Phase::Dispatch { .. }
            | Phase::ExecuteTools { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. }
            | Phase::Parked { .. }
            | Phase::Done { .. } => false,
        }
    }

    fn has_control(&self) -> bool {
        self.inbox.has_control(&self.state.core.cursors)
    }

    /// A cancel, a person's decision or the deadline: they go before whatever the phase would do next.
    fn next_decision(&mut self) -> Option<Fact> {
        if let Some(fact) = self.abort_of_program() {
            return Some(fact);
        }
        if let Some((position, control)) = self.inbox.next_control(&self.state.core.cursors) {
            return Some(control_fact(position, control));
        }
        let core = &self.state.core;
        let is_counting = core.abort.is_none() && core.deadline.paused_since.is_none();
        let is_past = core.deadline.at.is_some_and(|at| at <= self.shared.clock.now());
        (is_counting && is_past).then_some(Fact::DeadlinePassed)
    }

    fn abort_of_program(&self) -> Option<Fact> {
        let core = &self.state.core;
        if core.abort.is_some() {
            return None;
        }
        let reason = match (&self.sink_failure, &self.attached.abort) {
            (Some(failure), _) => (failure.as_str(), false),
            (None, Some(abort)) if abort.token.is_cancelled() => (abort.reason.as_str(), abort.is_handoff),
            (None, _) => return None,
        };
        let (reason, is_handoff) = reason;
        Some(Fact::CancelRequested { position: None, reason: Label::from(reason), is_handoff })
    }

    /// Commits what follows from a fact, and lets it take effect on what is under way. On the heap: a run that waits
    /// does not keep room for it.
    fn step(&mut self, effect: Option<Effect>, fact: Fact) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.step_now(effect, fact))
    }

    async fn step_now(&mut self, effect: Option<Effect>, fact: Fact) -> Result<(), Error> {
        // An abort by the program is older than whatever it has interrupted.
        if !matches!(fact, Fact::CancelRequested { .. })
            && let Some(cancel) = self.abort_of_program()
        {
            self.apply(None, cancel).await?;
        }
        if effect.as_ref().is_some_and(|effect| !self.effects.contains(effect)) {
            return Ok(());
        }
        self.apply(effect, fact).await?;
        if self.state.core.abort.is_some() {
            self.cancel.cancel();
        }
        self.active.retain(|effect| self.effects.contains(effect));
        Ok(())
    }

    /// Waits for the next thing to happen, and takes it in.
    async fn wait(&mut self) -> Result<(), Error> {
        self.arm_deadline();
        let abort = self.attached.abort.as_ref().map(|abort| abort.token.clone());
        let is_aborting = self.state.core.abort.is_some();
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled(), if !self.is_stopping => self.stop(),
            () = cancelled(abort.as_ref()), if abort.is_some() && !is_aborting => {}
            Some(update) = next_update(&mut self.updates), if self.updates.is_some() => {
                Box::pin(self.publish_tool_update(update)).await;
            }
            Some(performed) = self.performing.next(), if !self.performing.is_empty() => {
                Box::pin(self.flush_tool_updates()).await;
                self.step(Some(performed.effect), performed.fact).await?;
            }
            news = next_news(&mut self.model, &self.cancel), if self.model.is_some() => {
                Box::pin(self.take_news(news)).await?;
            }
            () = self.watched.inbox.notified() => self.read_inbox()?,
            () = elapsed(&mut self.deadline), if self.deadline.is_some() && !is_aborting => {}
        }
        Ok(())
    }

    /// The engine stops: a model call is given up, a tool in the process is waited for, nothing new is started.
    fn stop(&mut self) {
        self.is_stopping = true;
        self.model = None;
        self.active.retain(|effect| matches!(effect, Effect::RunTool { .. }));
    }

    /// The whole name of the model in force; the state keeps the beginning of a long one.
    fn model_name(&self) -> &str {
        let model = &self.state.core.model;
        let whole = self.facts.model.as_deref().filter(|_| *model == self.fold.submission().model);
        whole.unwrap_or(model.as_str())
    }

    fn arm_deadline(&mut self) {
        let Some(at) = self.state.core.deadline.at else {
            self.deadline = None;
            return;
        };
        if self.deadline.as_ref().is_none_or(|(armed, _)| *armed != at) {
            let left = Duration::from_millis(at.since(self.shared.clock.now()));
            self.deadline = Some((at, Box::pin(tokio::time::sleep(left))));
        }
    }
}

fn control_fact(position: u64, control: Control) -> Fact {
    match control {
        Control::Cancel { reason } => {
            Fact::CancelRequested { position: Some(position), reason, is_handoff: false }
        }
        Control::Approve { turn, call, decision } => Fact::ApprovalGiven { position, turn, call, decision },
        Control::Resolve { turn, call, resolution, reason } => {
            Fact::Resolved { position, turn, call, resolution, reason }
        }
        Control::Release => Fact::Released { position: Some(position) },
        Control::Extend(by) => Fact::Extended { position, by },
    }
}

async fn cancelled(token: Option<&CancellationToken>) {
    if let Some(token) = token {
        token.cancelled().await;
    }
}

async fn elapsed(deadline: &mut Option<(Millis, Pin<Box<Sleep>>)>) {
    if let Some((_, sleep)) = deadline {
        sleep.as_mut().await;
        *deadline = None;
    }
}

async fn next_update(updates: &mut Option<ToolUpdates>) -> Option<ToolUpdate> {
    match updates {
        Some((_, updates)) => updates.recv().await,
        None => None,
    }
}

async fn next_news(model: &mut Option<ModelCall>, cancel: &CancellationToken) -> ModelNews {
    match model {
        Some(call) => call.next(cancel).await,
        None => ModelNews::Nothing,
    }
}
