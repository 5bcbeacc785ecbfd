//! Drives one run: effects → perform → advance → commit → publish.
//!
//! Owns the loop and nothing else: what follows from an outcome is `model`'s, how an effect is performed is in the files
//! beside this one. No effect is performed before the barrier that covers the state it follows from.

mod asleep;
mod budget;
mod commit;
mod context;
mod durable;
mod hooks;
mod inbox;
mod load;
mod model_call;
mod perform;
mod profile;
mod recover;
mod spool;
mod tool_call;

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use model::encode::Encoded;
use model::inbox::Control;
use model::input::RecoveryClass;
use model::phase::StreamStage;
use model::{Effect, Fact, Label, Millis, ParkReason, Phase, RunId, RunState};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

pub(crate) use asleep::Asleep;
pub(crate) use load::{decode_moved, inbox_message, load_state, read_first, session_context};

use self::context::Context;
use self::inbox::Inbox;
use self::model_call::{ModelCall, ModelNews};
use self::tool_call::{PlannedCall, Takeover, ToolUpdate, ToolUpdates};
use crate::budgets::{BatchBudget, Reservation};
use crate::config::Config;
use crate::error::Error;
use crate::fold::Fold;
use crate::job::JobFacts;
use crate::provider::{Origin, Recording, Request};
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

impl Attached {
    /// A program drives the run itself.
    pub(crate) fn is_some(&self) -> bool {
        self.sink.is_some() || self.abort.is_some()
    }
}

/// Why a driver returns.
pub(crate) enum Paused {
    /// Nothing moves the run by itself.
    Rests(Left),
    /// Its model has not answered yet, and nothing else is under way.
    Sleeps(Asleep),
}

/// What a driver leaves behind.
pub(crate) struct Left {
    /// Where the run rests.
    pub(crate) rest: Rest,
    /// The items of its inbox that the driver has seen.
    pub(crate) inbox_len: u64,
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
    /// The settings that the run started with.
    kept: Arc<Config>,
    /// What the run shares with its batch.
    budget: Option<Arc<BatchBudget>>,
    /// Held while a call is asked for or in flight.
    reservation: Option<Reservation>,
    origin: Arc<Origin>,
    /// Where its model calls are recorded, if they are.
    recording: Option<Arc<Recording>>,

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
    /// Position of the profile that the session uses, among those of the requested model; looked up when the first
    /// request of this driver is prepared.
    session_profile: Option<u8>,
    /// Name of the profile that pays for the call under way.
    paying: Option<Arc<str>>,
    plans: Vec<PlannedCall>,
    /// Calls that a former owner started, by turn and index.
    takeovers: Vec<((u32, u16), Takeover)>,
    /// Partial results of tools; made when a call is followed.
    updates: Option<ToolUpdates>,
    /// Cancelled when the run is to end: whatever is under way ends soon.
    cancel: CancellationToken,
    deadline: Option<(Millis, Pin<Box<Sleep>>)>,
    /// What happened since the last barrier, to be told again if the next one fails.
    unsynced: Vec<(Effect, Fact)>,
    /// What a failed barrier took back, to be told again in this order.
    untold: Vec<(Effect, Fact)>,
    /// Directories of calls whose result waits for its barrier.
    left_over: Vec<std::path::PathBuf>,
    /// What is missing to take up the call of a dead engine; the run is not taken over before it is there.
    awaited: Option<Label>,
    /// A call was taken up: what is missing is looked for once its answer is committed.
    has_to_look: bool,
    is_stopping: bool,
    /// The engine stops, and its model call is left to the next one.
    is_leaving_call: bool,
    sink_failure: Option<String>,
    /// Held until the driver waits for the first time.
    loading: Option<OwnedSemaphorePermit>,
    /// The driver stays in memory while it waits for its model.
    seat: Option<OwnedSemaphorePermit>,
}

/// What a driver waited for.
enum Happened {
    /// The engine stops.
    Stop,
    /// The program's abort or the deadline, which the loop looks at by itself.
    Due,
    /// A tool told a part of its result.
    Updated(ToolUpdate),
    /// An effect was performed.
    Performed(Performed),
    /// The model's stream told something.
    Told(ModelNews),
    /// Something was accepted into the inbox.
    Accepted,
}

/// Longest wait for a model call or a tool to end by itself after an abort; then it is dropped.
const ABORT_GRACE: Duration = Duration::from_millis(100);

/// The reason of an abort that has none.
const UNNAMED_ABORT: &str = "Agent run aborted";

impl Driver {
    /// Moves the run until it rests or sleeps.
    pub(crate) async fn drive(&mut self) -> Result<Paused, Error> {
        loop {
            if !self.is_stopping && self.shared.stop.is_cancelled() {
                self.stop();
            }
            if self.state.core.owner != self.shared.owner() {
                // A failed barrier took back that the run is ours, and what was settled with it.
                Box::pin(self.settle()).await?;
            }
            if self.has_to_look && self.model.is_none() && !self.is_stopping {
                self.has_to_look = false;
                Box::pin(self.look_for_missing(false)).await?;
            }
            if let Some(rest) = self.rest() {
                let left = Paused::Rests(Left { rest, inbox_len: self.inbox.len() });
                return self.sink_failure.take().map_or(Ok(left), |failure| Err(Error::Sink(failure)));
            }
            if self.shared.drain.is_cancelled() && !self.is_stopping && self.is_between_turns() {
                self.stop();
            }
            if let Some(fact) = self.next_decision() {
                self.step(None, fact).await?;
            } else if self.is_stopping && self.active.is_empty() {
                if !self.is_leaving_call {
                    self.step(None, Fact::Stopped).await?;
                }
                return Ok(Paused::Rests(Left { rest: Rest::Stopped, inbox_len: self.inbox.len() }));
            } else if let Some(Performed { effect, fact }) = Box::pin(self.perform()).await? {
                self.step(Some(effect), fact).await?;
            } else {
                // What it had to commit before it could wait, it has committed: the next one may be loaded.
                self.loading = None;
                self.arm_deadline();
                let happened = match self.next().now_or_never() {
                    Some(happened) => happened,
                    None => match self.fall_asleep() {
                        Some(asleep) => return Ok(Paused::Sleeps(asleep)),
                        None => self.next().await,
                    },
                };
                self.take_in(happened).await?;
            }
        }
    }

    /// Where the run rests, if it does.
    fn rest(&self) -> Option<Rest> {
        let phase = &self.state.core.phase;
        if let Phase::Done { outcome, reason } = phase {
            return Some(Rest::Done { outcome: *outcome, reason: reason.as_ref().map(Label::to_string) });
        }
        if self.has_control() {
            return None;
        }
        if let Some(what) = &self.awaited {
            return Some(Rest::Parked(ParkReason::Missing(what.clone())));
        }
        if let Phase::Parked { reason, .. } = phase {
            return Some(Rest::Parked(reason.clone()));
        }
        // A run that only waits for a timer needs no driver; one that a program drives itself keeps it.
        if let Phase::Stream { stage: StreamStage::Backoff { until }, .. } = phase
            && *until > self.shared.clock.now()
            && !self.is_past_deadline()
            && !self.is_stopping
            && !self.attached.is_some()
        {
            return Some(Rest::Waiting { until: *until });
        }
        None
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

    /// A cancel, a person's decision, the deadline or a quarantine: they go before whatever the phase would do next.
    fn next_decision(&mut self) -> Option<Fact> {
        if let Some(fact) = self.abort_of_program() {
            return Some(fact);
        }
        if let Some((position, control)) = self.inbox.next_control(&self.state.core.cursors) {
            return Some(control_fact(position, control));
        }
        if self.is_past_deadline() {
            return Some(Fact::DeadlinePassed);
        }
        let core = &self.state.core;
        let is_held = core.abort.is_none() && core.crashes.verdict().is_some() && self.is_under_way();
        is_held.then_some(Fact::Quarantined)
    }

    /// The run is to end for its deadline, and is not ending yet.
    fn is_past_deadline(&self) -> bool {
        let core = &self.state.core;
        let is_counting = core.abort.is_none() && core.deadline.paused_since.is_none();
        is_counting && core.deadline.at.is_some_and(|at| at <= self.shared.clock.now())
    }

    /// The run has begun, and neither waits for a person nor has ended.
    fn is_under_way(&self) -> bool {
        !matches!(self.state.core.phase, Phase::Queued | Phase::Parked { .. } | Phase::Done { .. })
    }

    fn abort_of_program(&self) -> Option<Fact> {
        let core = &self.state.core;
        // A run that is called shows its prompts before it is aborted.
        if core.abort.is_some() || matches!(core.phase, Phase::Queued) {
            return None;
        }
        let reason = match (&self.sink_failure, &self.attached.abort) {
            (Some(failure), _) => (failure.as_str(), false),
            (None, Some(abort)) if abort.token.is_cancelled() => (abort.reason.as_str(), abort.is_handoff),
            (None, _) => return None,
        };
        let (reason, is_handoff) = reason;
        let reason = if reason.is_empty() { UNNAMED_ABORT } else { reason };
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
        if let Some(effect) = &effect {
            if !self.effects.contains(effect) {
                return Ok(());
            }
            // It is performed again if it follows from the next state too: polls of two checkpoints look alike.
            self.active.retain(|active| active != effect);
        }
        self.apply(effect, fact).await?;
        if self.state.core.abort.is_some() {
            self.cancel.cancel();
        }
        self.active.retain(|effect| self.effects.contains(effect));
        Ok(())
    }

    /// Waits for the next thing to happen. May be dropped at any moment: what has happened then happens again.
    async fn next(&mut self) -> Happened {
        let abort = self.attached.abort.as_ref().map(|abort| abort.token.clone());
        let is_aborting = self.state.core.abort.is_some();
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled(), if !self.is_stopping => Happened::Stop,
            () = cancelled(abort.as_ref()), if abort.is_some() && !is_aborting => Happened::Due,
            Some(update) = next_update(&mut self.updates), if self.updates.is_some() => Happened::Updated(update),
            Some(performed) = self.performing.next(), if !self.performing.is_empty() => {
                Happened::Performed(performed)
            }
            news = next_news(&mut self.model, &self.cancel), if self.model.is_some() => Happened::Told(news),
            () = self.watched.inbox.notified() => Happened::Accepted,
            () = elapsed(&mut self.deadline), if self.deadline.is_some() && !is_aborting => Happened::Due,
        }
    }

    /// Takes in what has happened.
    async fn take_in(&mut self, happened: Happened) -> Result<(), Error> {
        match happened {
            Happened::Stop => self.stop(),
            Happened::Due => {}
            Happened::Updated(update) => Box::pin(self.publish_tool_update(update)).await,
            Happened::Performed(performed) => {
                Box::pin(self.flush_tool_updates()).await;
                self.step(Some(performed.effect), performed.fact).await?;
            }
            Happened::Told(news) => Box::pin(self.take_news(news)).await?,
            Happened::Accepted => self.read_inbox()?,
        }
        Ok(())
    }

    /// More than one call is in flight.
    fn has_siblings(&self) -> bool {
        self.state.batch.as_ref().is_some_and(|batch| batch.calls.len() > 1)
    }

    /// The engine stops: a model call is given up unless the next engine finds its answer, a tool in the process is
    /// waited for, nothing new is started. What outlives the engine runs on.
    fn stop(&mut self) {
        self.is_stopping = true;
        self.is_leaving_call = self.model.take().is_some_and(|call| call.is_lasting);
        self.active.retain(
            |effect| matches!(effect, Effect::RunTool { class, .. } if *class != RecoveryClass::Adoptable),
        );
    }

    /// What the run keeps, with the profiles in force.
    fn config(&self) -> Config {
        self.shared.configs.now(&self.kept)
    }

    /// The whole name of the model in force; the state keeps the beginning of a long one.
    fn model_name(&self) -> &str {
        let model = &self.state.core.model;
        if let Some(candidate) = self.facts.candidate(model) {
            return &candidate.model;
        }
        let whole = self.facts.model.as_deref().filter(|_| *model == self.fold.submission().model);
        let is_it = |name: &&String| Label::from(name.as_str()) == *model;
        let fallback = || self.kept.defaults.fallback.iter().find(is_it).map(String::as_str);
        whole.or_else(fallback).unwrap_or(model.as_str())
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

/// Everything that became ready together begins before the first of it is taken in: calls are launched together, and
/// one that answers at once does not put the others off.
async fn let_siblings_begin(has_siblings: bool) {
    let mut must_wait = has_siblings;
    std::future::poll_fn(|context| {
        if std::mem::take(&mut must_wait) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
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
