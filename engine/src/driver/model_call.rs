//! A model call under way: its stream, what has arrived, how it ends.
//!
//! Owns the time between the durable intent and the committed answer. It must never ask again: a retry is a new intent.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, ready};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use model::answer::{settle, unusable};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason, Usage};
use model::phase::StreamStage;
use model::{Block, Effect, Fact, Message, Millis, Phase};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use super::{ABORT_GRACE, Driver};
use crate::crash_point;
use crate::error::Error;
use crate::event::{AgentEvent, Stamped, opening};
use crate::job::ModelFacts;
use crate::provider::{ModelProvider, StreamEvent, Update, UpdateKind};
use crate::report::Found;
use crate::runs::Live;
use crate::spool::Spool;

/// A call under way.
pub(super) struct ModelCall {
    turn: u32,
    attempt: u32,
    /// The model's name, and when the call began.
    model: String,
    at: Millis,
    /// How its answer will be named, if that is known.
    served: Option<Box<ModelFacts>>,
    stream: BoxStream<'static, StreamEvent>,
    /// What has arrived; none before the first part.
    partial: Option<Box<AssistantMessage>>,
    /// The first byte has arrived, and nobody was told yet.
    is_opening: bool,
    /// The longest silence.
    idle_timeout: Option<Duration>,
    /// When the silence gets too long; none while there is news.
    watchdog: Option<Pin<Box<Sleep>>>,
    /// What the call is charged if nobody learns what it used.
    reserved: Usage,
    /// Where the raw response is kept, if it is.
    spool: Option<Box<Spool>>,
    /// The next engine finds the answer when the call is dropped.
    pub(super) is_lasting: bool,
    /// How its answer is found if all goes well, of a dead engine's call; none once that is known.
    pub(super) sought: Option<Found>,
}

/// What the stream told.
pub(crate) enum ModelNews {
    /// No call is under way.
    Nothing,
    /// The first byte is there, and no more yet.
    Opened,
    /// A part arrived.
    Update(Update),
    /// The answer is complete.
    Answered(Box<AssistantMessage>),
    /// The call failed.
    Failed(Failure),
    /// What a dead engine had asked for was not found.
    Lost,
}

impl ModelCall {
    /// The effect that it performs.
    pub(super) fn effect(&self) -> Effect {
        Effect::CallModel { turn: self.turn, attempt: self.attempt }
    }

    /// What comes next. After an abort the stream has a moment to end by itself.
    pub(super) async fn next(&mut self, cancel: &CancellationToken) -> ModelNews {
        tokio::select! {
            biased;
            news = poll_fn(|context| self.poll(context)) => news,
            () = grace_after(cancel) => ModelNews::Answered(Box::new(self.aborted())),
        }
    }

    /// What comes next, if it is there.
    pub(super) fn poll(&mut self, context: &mut task::Context<'_>) -> Poll<ModelNews> {
        loop {
            let event = match self.stream.poll_next_unpin(context) {
                Poll::Ready(event) => event,
                // Nobody hears of an opening that is followed by the whole answer at once.
                Poll::Pending if std::mem::take(&mut self.is_opening) => {
                    return Poll::Ready(ModelNews::Opened);
                }
                Poll::Pending => {
                    ready!(self.poll_silence(context));
                    return Poll::Ready(ModelNews::Failed(self.fallen_silent()));
                }
            };
            self.watchdog = None;
            return Poll::Ready(match event {
                Some(StreamEvent::Opened) => {
                    self.is_opening = true;
                    continue;
                }
                Some(StreamEvent::Update(update)) => {
                    grow(self.partial(), &update);
                    ModelNews::Update(update)
                }
                Some(StreamEvent::Done(message)) => ModelNews::Answered(message),
                Some(StreamEvent::Failed(failure)) => ModelNews::Failed(failure),
                Some(StreamEvent::Lost) => ModelNews::Lost,
                None => {
                    let words = "the stream ended without an answer";
                    ModelNews::Failed(Failure::new(FailureKind::Missing, words))
                }
            });
        }
    }

    /// The answer so far.
    fn partial(&mut self) -> &mut AssistantMessage {
        self.partial.get_or_insert_with(|| Box::new(opening(&self.model, self.served.as_deref(), self.at)))
    }

    fn aborted(&mut self) -> AssistantMessage {
        AssistantMessage {
            stop_reason: StopReason::Aborted,
            error_message: Some("aborted".to_owned()),
            usage: self.reserved,
            ..self.partial().clone()
        }
    }

    /// Ready when the call has been silent for too long. Whoever waits again goes on with the same silence.
    fn poll_silence(&mut self, context: &mut task::Context<'_>) -> Poll<()> {
        let Some(timeout) = self.idle_timeout else { return Poll::Pending };
        let watchdog = self.watchdog.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        watchdog.as_mut().poll(context)
    }

    fn fallen_silent(&self) -> Failure {
        let is_text = |block: &Block| matches!(block, Block::Text(text) if !text.trim().is_empty());
        let seconds = self.idle_timeout.unwrap_or_default().as_secs_f64();
        Failure {
            had_text: self.partial.iter().flat_map(|partial| &partial.content).any(is_text),
            usage: self.reserved,
            ..Failure::new(FailureKind::Idle, &format!("nothing arrived for {seconds} s"))
        }
    }
}

async fn grace_after(cancel: &CancellationToken) {
    cancel.cancelled().await;
    // On the heap: nearly no call gets here.
    Box::pin(tokio::time::sleep(ABORT_GRACE)).await;
}

impl Driver {
    /// Starts the call whose intent is durable.
    pub(super) async fn call_model(&mut self, turn: u32, attempt: u32) -> Result<Option<Fact>, Error> {
        let request = match self.request.take() {
            Some(request) => request,
            None => self.request(turn, attempt, self.state.core.retries.profile).await,
        };
        let provider = match self.shared.models.resolve(&request.model, &self.config()) {
            Ok(provider) => provider,
            Err(error) => {
                let failure = Failure::new(FailureKind::ModelNotFound, &error.to_string());
                return Ok(Some(self.call_failed(failure)));
            }
        };
        let spool = request.spool.clone();
        self.paying = request.profile.as_deref().map(Arc::from);
        let stream = provider.stream(request, self.cancel.clone());
        self.model = Some(self.under_way((turn, attempt), &*provider, stream, spool));
        Ok(None)
    }

    /// A call of the model in force, which has just begun or was taken up.
    pub(super) fn under_way(
        &self,
        (turn, attempt): (u32, u32),
        provider: &dyn ModelProvider,
        stream: BoxStream<'static, StreamEvent>,
        spool: Option<Spool>,
    ) -> ModelCall {
        ModelCall {
            turn,
            attempt,
            model: self.model_name().to_owned(),
            at: self.shared.clock.now(),
            served: self.facts.served(&self.state.core.model).cloned().map(Box::new),
            stream,
            partial: None,
            is_opening: false,
            idle_timeout: provider.idle_timeout(),
            watchdog: None,
            reserved: self.state.core.spent.reserved,
            spool: spool.map(Box::new),
            is_lasting: provider.has_lasting_responses(),
            sought: None,
        }
    }

    /// Takes in what the stream told.
    pub(crate) async fn take_news(&mut self, news: ModelNews) -> Result<(), Error> {
        self.note_found(&news);
        match news {
            ModelNews::Nothing => Ok(()),
            ModelNews::Opened => self.open_stream().await,
            ModelNews::Update(update) => self.publish_update(update).await,
            ModelNews::Answered(message) => {
                let turn = self.turn();
                let message = Box::new(settle(&self.state, turn, *message));
                let fact = match unusable(&message).filter(|_| self.state.core.wants.retries) {
                    Some(failure) => self.call_failed(failure),
                    None => Fact::ModelAnswered { message },
                };
                self.end_call(fact).await
            }
            ModelNews::Failed(failure) => {
                let fact = self.call_failed(failure);
                self.end_call(fact).await
            }
            ModelNews::Lost => {
                let Some(call) = self.model.take() else { return Ok(()) };
                self.forget_spool(call.turn, call.attempt);
                self.step(Some(call.effect()), Fact::ModelInterrupted { usage: None }).await
            }
        }
    }

    /// A failed call, with what else could be asked now.
    pub(super) fn call_failed(&self, mut failure: Failure) -> Fact {
        let settled = |answer: Box<AssistantMessage>| Box::new(settle(&self.state, self.turn(), *answer));
        failure.partial = failure.partial.map(settled);
        let routes = self.routes(&failure);
        Fact::ModelFailed { failure, routes }
    }

    async fn end_call(&mut self, fact: Fact) -> Result<(), Error> {
        let Some(mut call) = self.model.take() else { return Ok(()) };
        if let Fact::ModelAnswered { .. } = fact {
            crash_point::reach("before the answer's commit");
        }
        if let Some(spool) = call.spool.take() {
            self.leave_spool(*spool, &fact).await;
        }
        // A sink sees the start of an answer before its end even if both arrive at once.
        if call.is_opening && self.attached.sink.is_some() {
            self.open_stream().await?;
        }
        self.step(Some(call.effect()), fact).await
    }

    async fn open_stream(&mut self) -> Result<(), Error> {
        if let Some(call) = &mut self.model {
            call.is_opening = false;
        }
        // A call that was taken up may have been opened by a former owner.
        if let Phase::Stream { stage: StreamStage::Open, .. } = self.state.core.phase {
            return Ok(());
        }
        self.step(None, Fact::StreamOpened).await
    }

    /// Passes a part of the answer on, to whoever follows it live.
    async fn publish_update(&mut self, update: Update) -> Result<(), Error> {
        if self.attached.sink.is_none() && !self.watched.has_listeners() {
            return Ok(());
        }
        if self.model.as_ref().is_some_and(|call| call.is_opening) {
            self.open_stream().await?;
        }
        let Some(call) = &mut self.model else { return Ok(()) };
        let message = Arc::new(Message::Assistant(Box::new(call.partial().clone())));
        let event = AgentEvent::MessageUpdate { message, update };
        self.publish_live(event).await;
        Ok(())
    }

    pub(super) async fn publish_live(&mut self, event: AgentEvent) {
        let attempt = if let Phase::Stream { attempt, .. } = self.state.core.phase { attempt } else { 0 };
        let stamped = Stamped { run: self.run, place: None, attempt, at: self.shared.clock.now(), event };
        self.watched.update(Live { after: self.state.core.seq, update: stamped.clone() });
        self.emit(stamped).await;
    }

    /// Ordinal of the turn that the run is in.
    pub(super) fn turn(&self) -> u32 {
        match &self.state.core.phase {
            Phase::Stream { turn, .. }
            | Phase::Dispatch { turn, .. }
            | Phase::ExecuteTools { turn, .. }
            | Phase::Finalize { turn, .. }
            | Phase::InjectPending { turn, .. }
            | Phase::Compact { turn, .. } => *turn,
            Phase::Queued | Phase::Parked { .. } | Phase::Done { .. } => 0,
        }
    }
}

/// Adds a part to the answer so far.
fn grow(partial: &mut AssistantMessage, update: &Update) {
    let index = update.content_index;
    let blank = || Block::Text(String::new());
    while partial.content.len() <= index {
        partial.content.push(blank());
    }
    let Some(slot) = partial.content.get_mut(index) else { return };
    match update.kind {
        UpdateKind::TextStart => *slot = blank(),
        UpdateKind::TextDelta => {
            if let Block::Text(text) = slot {
                text.push_str(&update.delta);
            } else {
                *slot = Block::Text(update.delta.clone());
            }
        }
        UpdateKind::ThinkingStart => *slot = Block::Thinking { text: String::new(), signature: None },
        UpdateKind::ThinkingDelta => {
            if let Block::Thinking { text, .. } = slot {
                text.push_str(&update.delta);
            }
        }
        UpdateKind::ToolCallEnd => {
            if let Some(call) = &update.call {
                *slot = Block::ToolCall(call.clone());
            }
        }
        UpdateKind::TextEnd
        | UpdateKind::ThinkingEnd
        | UpdateKind::ToolCallStart
        | UpdateKind::ToolCallDelta => {}
    }
}
