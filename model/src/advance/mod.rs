//! The state machine: `advance(state, input)`.
//!
//! Owns every decision of the loop. It is total: every input in every phase gets an answer, at worst
//! [`Rejected`]. It must never do I/O, ask a clock, or panic.
//!
//! Reading order: this file dispatches by phase; one file a phase holds what each input does there; `flow`
//! holds the checkpoints that phases share (top of a turn, end of a turn, abort).

mod batch;
mod batch_pump;
mod compact;
mod dispatch;
mod finalize;
mod flow;
mod inject;
mod parked;
mod queued;
mod stream;

use crate::effect::Effect;
use crate::guard::crashes;
use crate::ids::{Label, Millis};
use crate::input::{Fact, Input, Suspicion};
use crate::message::{Message, ToolResult};
use crate::phase::{ParkReason, Phase};
use crate::record::{Content, Mark, Moved};
use crate::state::{Abort, AbortCause, CallStatus, Owner, RunState};

/// What a transition led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The next state.
    pub state: RunState,
    /// What became visible, in order.
    pub marks: Vec<Mark>,
    /// Messages that the transition itself made.
    pub made: Vec<Message>,
    /// Results that the transition itself made, by index of the call.
    pub results: Vec<(u32, ToolResult)>,
}

impl Step {
    /// The journal's record of this step, and the state.
    pub fn into_record(self, input: Input) -> (RunState, Moved) {
        let Self { state, marks, made, results } = self;
        (state, Moved { input, marks, made, results })
    }
}

/// The input has no meaning in the phase; the state stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{input} has no meaning in phase {phase}")]
pub struct Rejected {
    /// The phase, as printed.
    pub phase: String,
    /// Name of the input.
    pub input: &'static str,
}

/// What follows from one input.
pub fn advance(state: RunState, input: &Input) -> Result<Step, Rejected> {
    let phase = state.core.phase.clone();
    let mut mover = Mover::new(state, input);
    let is_legal = mover.is_asked(&input.fact)
        && match &phase {
            Phase::Queued => mover.queued(&input.fact),
            Phase::InjectPending { turn, inject } => mover.inject(*turn, *inject, &input.fact),
            Phase::Stream { turn, attempt, stage } => mover.stream(*turn, *attempt, *stage, &input.fact),
            Phase::Dispatch { turn, stage } => mover.dispatch(*turn, *stage, &input.fact),
            Phase::ExecuteTools { turn, stage } => mover.execute(*turn, *stage, &input.fact),
            Phase::Finalize { turn, stage, wants_more, is_steered } => {
                let next = turn.saturating_add(1);
                let turn_end = TurnEnd { next, wants_more: *wants_more, is_steered: *is_steered };
                mover.finalize(turn_end, *stage, &input.fact)
            }
            Phase::Compact { turn, attempt, stage } => mover.compact(*turn, *attempt, *stage, &input.fact),
            Phase::Parked { reason, from } => mover.parked(reason, from, &input.fact),
            Phase::Done { .. } => ILLEGAL,
        };
    match is_legal {
        LEGAL => Ok(mover.finish()),
        ILLEGAL => Err(Rejected { phase: phase.to_string(), input: input.fact.name() }),
    }
}

/// The input had a meaning.
const LEGAL: bool = true;
/// The input had none; whatever the mover did is dropped.
const ILLEGAL: bool = false;

/// What a turn leaves for the checkpoints after it.
#[derive(Clone, Copy)]
struct TurnEnd {
    /// Ordinal of the turn that would follow.
    next: u32,
    /// The batch wants another model call.
    wants_more: bool,
    /// A poll has already found steering.
    is_steered: bool,
}

/// The fields of [`crate::input::Fact::CancelRequested`].
struct CancelRequest<'a> {
    position: Option<u64>,
    reason: &'a Label,
    is_handoff: bool,
}

/// A transition being made.
struct Mover<'a> {
    state: RunState,
    input: &'a Input,
    at: Millis,
    marks: Vec<Mark>,
    made: Vec<Message>,
    results: Vec<(u32, ToolResult)>,
    /// What the run on trial had under way.
    tried: Option<Vec<Effect>>,
}

impl<'a> Mover<'a> {
    fn new(mut state: RunState, input: &'a Input) -> Self {
        // Time never decreases within a run, whatever the machine's clock does.
        let at = state.core.clock.max(input.at);
        state.core.clock = at;
        state.core.seq = state.core.seq.saturating_add(1);
        let tried = state.core.crashes.is_tried.then(|| state.effects());
        Self { state, input, at, marks: Vec::new(), made: Vec::new(), results: Vec::new(), tried }
    }

    fn finish(mut self) -> Step {
        self.end_trial();
        self.state.core.crashes.is_stopped = self.input.fact == Fact::Stopped;
        let Self { state, marks, made, results, .. } = self;
        Step { state, marks, made, results }
    }

    /// A run is on trial until what it had under way is over.
    fn end_trial(&mut self) {
        if let Some(before) = self.tried.take()
            && crashes::is_past(&before, &self.state.effects())
        {
            self.state.core.crashes.is_tried = false;
        }
    }

    /// The run has ended the engine too often: it is held back, unless it is ending anyway.
    fn quarantine(&mut self) -> bool {
        if self.is_aborting() || self.state.core.crashes.verdict().is_none() {
            return ILLEGAL;
        }
        self.park(ParkReason::Quarantine);
        LEGAL
    }

    /// A hook's answer counts only while that very question is open; every other fact is judged by its phase.
    fn is_asked(&self, fact: &Fact) -> bool {
        let Fact::HookReturned { hook, .. } = fact else { return LEGAL };
        self.state.effects().contains(&Effect::RunHook(*hook))
    }

    fn enter(&mut self, phase: Phase) {
        self.state.core.phase = phase;
    }

    fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    /// Shows a message from start to end.
    fn show(&mut self, content: Content) {
        self.mark(Mark::MessageStart(content));
        self.mark(Mark::MessageEnd(content));
    }

    /// Ends an assistant message, which starts here unless its start was already shown.
    fn show_answer(&mut self, content: Content) {
        if !self.state.core.open.message {
            self.mark(Mark::MessageStart(content));
        }
        self.state.core.open.message = false;
        self.mark(Mark::MessageEnd(content));
    }

    fn make(&mut self, message: Message) -> Content {
        let index = u32::try_from(self.made.len()).unwrap_or(u32::MAX);
        self.made.push(message);
        Content::Made(index)
    }

    fn open_turn(&mut self) {
        if !self.state.core.open.turn {
            self.mark(Mark::TurnStart);
            self.state.core.open.turn = true;
        }
    }

    fn close_turn(&mut self) {
        self.mark(Mark::TurnEnd);
        self.state.core.open.turn = false;
    }

    /// The phase waits for a person. The time until then does not count against the deadline.
    fn park(&mut self, reason: ParkReason) {
        let from = Box::new(self.state.core.phase.clone());
        self.state.core.deadline.paused_since = Some(self.at);
        self.enter(Phase::Parked { reason, from });
    }

    /// Something that the run needs is not there. A run that is ending waits for nobody.
    fn miss(&mut self, what: &Label) {
        if !self.is_aborting() {
            self.park(ParkReason::Missing(what.clone()));
        }
    }

    /// Returns to the phase that was parked.
    fn unpark(&mut self, from: &Phase) {
        let deadline = &mut self.state.core.deadline;
        if let Some(since) = deadline.paused_since.take() {
            deadline.at = deadline.at.map(|at| at.plus(self.at.since(since)));
        }
        self.enter(from.clone());
    }

    fn is_aborting(&self) -> bool {
        self.state.core.abort.is_some()
    }

    /// Notes that somebody wants the run to end. The first cause stands.
    fn note_cancel(&mut self, cancel: &CancelRequest<'_>) {
        self.take_control(cancel.position);
        let cause = if cancel.is_handoff { AbortCause::Handoff } else { AbortCause::Cancel };
        self.state.core.abort.get_or_insert(Abort { cause, reason: cancel.reason.clone() });
    }

    /// Notes that the run's time is over. The first cause stands.
    fn note_deadline(&mut self) {
        let abort = Abort { cause: AbortCause::Deadline, reason: Label::from("the deadline passed") };
        self.state.core.abort.get_or_insert(abort);
    }

    /// Moves the cursor over the decisions of the inbox.
    fn take_control(&mut self, position: Option<u64>) {
        if let Some(position) = position {
            let cursor = &mut self.state.core.cursors.control;
            *cursor = (*cursor).max(position.saturating_add(1));
        }
    }

    /// A decision that came too late: its place in the inbox is passed, so that it is not read again, and
    /// nothing changes.
    fn take_stale(&mut self, position: Option<u64>) {
        self.take_control(position);
    }

    /// Notes the new owner of the run, and what is to be thought of the end of the old one. After a reboot the absence
    /// of a mark proves nothing about a started call, and what commands wrote may not have reached the disk.
    fn note_owner(&mut self, epoch: u64, boot_id: [u8; 16], suspicion: Suspicion) {
        self.state.judge(suspicion);
        if self.state.core.owner.boot_id != boot_id {
            for call in self.state.batch.iter_mut().flat_map(|batch| &mut batch.calls) {
                if call.status == CallStatus::Started {
                    call.marks.set_other_boot(true);
                }
            }
            let files = &mut self.state.core.files;
            files.lost_since = files.lost_since.or(files.unsynced_since.take());
        }
        self.state.core.owner = Owner { epoch, boot_id };
    }
}
