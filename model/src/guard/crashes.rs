//! Crash loops: does this run end the engine again and again?
//!
//! Owns suspicion, blame and verdict, over [`Crashes`] and the committed phase. Suspected is who had an effect inside
//! the engine's process when it ended uncleanly. After a second unclean end in a row the engine resumes suspects one at
//! a time; whoever is on trial when it ends once more is blamed. It must never count an end that was asked for, nor
//! choose who is resumed when: that is the engine's.

use serde::{Deserialize, Serialize};

use super::loops::ActionKey;
use crate::effect::Effect;
use crate::input::{RecoveryClass, Suspicion};
use crate::phase::{Phase, StreamStage};
use crate::state::RunState;

/// Unclean ends in a row after which suspects are resumed one at a time.
pub const UNCLEAN_ENDS_AT: u8 = 2;
/// Blames in one phase of one turn that quarantine a run.
pub const BLAMES_IN_PHASE_MAX: u8 = 3;
/// Blames without a completed turn that quarantine a run.
pub const BLAMES_SINCE_TURN_MAX: u8 = 5;
/// Unclean ends that may leave the same call unknown; so many quarantine a run.
pub const LOST_CALL_MAX: u8 = 2;
/// Calls of unknown outcome that a run remembers.
pub const LOST_CALLS_MAX: usize = 6;

/// What a run is blamed for, and what may be blamed on it next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crashes {
    /// Where the newest blame found it.
    pub place: Option<Place>,
    /// Blames there, in a row.
    pub in_phase: u8,
    /// Blames since the last completed turn.
    pub since_turn: u8,
    /// It is on trial: if the engine ends uncleanly before what is under way is over, this run did it.
    pub is_tried: bool,
    /// Its owner stopped by request: nothing of it is under way.
    pub is_stopped: bool,
    /// Calls that an unclean end left unknown, at most [`LOST_CALLS_MAX`].
    pub lost: Vec<LostCall>,
}

/// A phase of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Ordinal of the turn, from 0.
    pub turn: u32,
    /// The phase.
    pub phase: PhaseKind,
}

/// A phase that may have something under way in the engine's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseKind {
    /// Messages are injected.
    Inject,
    /// The model is asked.
    Stream,
    /// A batch is admitted.
    Dispatch,
    /// Calls run.
    ExecuteTools,
    /// The end of a turn is decided.
    Finalize,
    /// A summary is made.
    Compact,
}

/// A call that an unclean end left unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCall {
    /// Tool and arguments, whatever the call's id.
    pub call: ActionKey,
    /// Unclean ends that left it unknown.
    pub times: u8,
    /// Epoch of the owner that found it so; calls of one batch that are alike count once.
    pub epoch: u64,
}

/// Why a run is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was blamed again and again in one phase of one turn.
    InPhase {
        /// How often.
        times: u8,
        /// Where.
        place: Place,
    },
    /// It was blamed again and again without completing a turn.
    WithoutTurn {
        /// How often.
        times: u8,
    },
    /// The same call was left unknown again.
    LostCall {
        /// How often.
        times: u8,
    },
}

impl Crashes {
    /// Why the run is to be held back, if it is.
    pub fn verdict(&self) -> Option<Verdict> {
        if let Some(lost) = self.lost.iter().find(|lost| lost.times >= LOST_CALL_MAX) {
            return Some(Verdict::LostCall { times: lost.times });
        }
        if let Some(place) = self.place.filter(|_| self.in_phase >= BLAMES_IN_PHASE_MAX) {
            return Some(Verdict::InPhase { times: self.in_phase, place });
        }
        (self.since_turn >= BLAMES_SINCE_TURN_MAX).then_some(Verdict::WithoutTurn { times: self.since_turn })
    }

    fn blame(&mut self, place: Option<Place>) {
        self.in_phase = if self.place == place { self.in_phase.saturating_add(1) } else { 1 };
        self.place = place;
        self.since_turn = self.since_turn.saturating_add(1);
    }

    /// A turn was completed: the run gets on. What became of its calls is still unknown.
    pub(crate) fn complete_turn(&mut self) {
        (self.place, self.in_phase, self.since_turn) = (None, 0, 0);
    }

    /// The outcome of a call is unknown. What runs under a supervisor is lost without any fault of the engine's.
    pub(crate) fn lose(&mut self, call: ActionKey, class: RecoveryClass, epoch: u64) {
        if class == RecoveryClass::Adoptable {
            return;
        }
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.call == call) {
            lost.times = lost.times.saturating_add(u8::from(lost.epoch != epoch));
            lost.epoch = epoch;
            return;
        }
        // The first ones stay: of many calls that are lost together again and again, one known to the end is enough.
        self.lost.truncate(LOST_CALLS_MAX - 1);
        self.lost.push(LostCall { call, times: 1, epoch });
    }

    /// A person has said what became of a call.
    pub(crate) fn find(&mut self, call: ActionKey) {
        self.lost.retain(|lost| lost.call != call);
    }
}

impl RunState {
    /// Something of the run was under way in its owner's process, unless the owner has stopped it. Of a call that waits
    /// for its first byte nothing is there yet: thousands may sleep so, whatever ends the engine.
    pub fn is_suspect(&self) -> bool {
        let is_asleep = matches!(self.core.phase, Phase::Stream { stage: StreamStage::InFlight, .. });
        let is_idle = is_asleep || self.core.crashes.is_stopped;
        !is_idle && self.effects().iter().any(Effect::is_in_engine)
    }

    /// A new owner resumes the run: blames it if it was on trial, and puts it on trial if it is resumed alone.
    pub(crate) fn judge(&mut self, suspicion: Suspicion) {
        let is_suspect = match suspicion {
            Suspicion::None => false,
            Suspicion::Shared | Suspicion::Alone => self.is_suspect(),
        };
        let place = Place::of(&self.core.phase);
        let crashes = &mut self.core.crashes;
        if is_suspect && crashes.is_tried {
            crashes.blame(place);
        }
        crashes.is_tried = is_suspect && suspicion == Suspicion::Alone;
    }
}

impl Place {
    fn of(phase: &Phase) -> Option<Self> {
        let (turn, phase) = match phase {
            Phase::InjectPending { turn, .. } => (turn, PhaseKind::Inject),
            Phase::Stream { turn, .. } => (turn, PhaseKind::Stream),
            Phase::Dispatch { turn, .. } => (turn, PhaseKind::Dispatch),
            Phase::ExecuteTools { turn, .. } => (turn, PhaseKind::ExecuteTools),
            Phase::Finalize { turn, .. } => (turn, PhaseKind::Finalize),
            Phase::Compact { turn, .. } => (turn, PhaseKind::Compact),
            Phase::Queued | Phase::Parked { .. } | Phase::Done { .. } => return None,
        };
        Some(Self { turn: *turn, phase })
    }
}

/// What was under way is over: nothing of it is left, or something else has begun.
pub(crate) fn is_past(before: &[Effect], after: &[Effect]) -> bool {
    let under_way = |effects: &[Effect]| -> Vec<Effect> {
        effects.iter().filter(|effect| effect.is_in_engine()).map(work).collect()
    };
    let (before, after) = (under_way(before), under_way(after));
    after.is_empty() || after.iter().any(|effect| !before.contains(effect))
}

/// The effect that stands for a piece of work: one that was lost is prepared again first.
fn work(effect: &Effect) -> Effect {
    match effect {
        Effect::PrepareRequest { turn, attempt } => Effect::CallModel { turn: *turn, attempt: *attempt },
        Effect::Compact { .. } => Effect::PlanCompaction,
        Effect::AwaitLane
        | Effect::Poll { .. }
        | Effect::Drain { .. }
        | Effect::CallModel { .. }
        | Effect::Sleep { .. }
        | Effect::ResolveBatch { .. }
        | Effect::RunHook(_)
        | Effect::RunTool { .. }
        | Effect::PlanCompaction
        | Effect::AwaitApproval { .. }
        | Effect::AwaitPerson => effect.clone(),
    }
}

impl std::fmt::Display for Verdict {
    /// As it stands after "held back because".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InPhase { times, place: Place { turn, phase } } => write!(
                f,
                "the engine ended uncleanly {times} times while this run was tried alone, always in {} of turn {turn}",
                phase.name()
            ),
            Self::WithoutTurn { times } => write!(
                f,
                "the engine ended uncleanly {times} times while this run was tried alone, with no turn completed"
            ),
            Self::LostCall { times } => write!(
                f,
                "the engine ended uncleanly {times} times while it ran the same call, of which nobody knows the \
                 outcome"
            ),
        }
    }
}

impl PhaseKind {
    /// The name of the phase.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inject => "inject_pending",
            Self::Stream => "stream",
            Self::Dispatch => "dispatch",
            Self::ExecuteTools => "execute_tools",
            Self::Finalize => "finalize",
            Self::Compact => "compact",
        }
    }
}
