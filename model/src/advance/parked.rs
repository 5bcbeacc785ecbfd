//! Parked: the run needs a person. Only a decision, a cancel or an extension moves it.
//!
//! Owns which decision lifts which reason. Time spent here does not count against the deadline.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover};
use crate::guard::budget::{Scope, Shortage, relieves};
use crate::guard::crashes::Crashes;
use crate::input::Fact;
use crate::phase::{ParkReason, Phase, StreamStage};

impl Mover<'_> {
    pub(super) fn parked(&mut self, reason: &ParkReason, from: &Phase, fact: &Fact) -> bool {
        match fact {
            Fact::ApprovalGiven { position, turn, call, decision } => {
                self.take_control(Some(*position));
                self.decide_call(reason, from, *turn, |mover| mover.approval(*call, decision));
            }
            Fact::Resolved { position, turn, call, resolution, reason: why } => {
                self.take_control(Some(*position));
                self.decide_call(reason, from, *turn, |mover| mover.resolved(*call, *resolution, why));
            }
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.unpark(from);
                self.abort_parked(from);
            }
            Fact::Released { position } => {
                self.take_control(*position);
                match reason {
                    // What its batch may use is no fact of the run: the writer is asked again.
                    ParkReason::Budget(Shortage { scope: Scope::Batch, .. }) => self.unpark(from),
                    ParkReason::Quarantine => {
                        self.state.core.crashes = Crashes::default();
                        self.unpark(from);
                        self.go_on(from);
                    }
                    ParkReason::Missing(_) => {
                        self.unpark(from);
                        self.go_on(from);
                    }
                    // These wait for another kind of decision; the release is taken and changes nothing.
                    ParkReason::Approval
                    | ParkReason::UnknownOutcome
                    | ParkReason::Budget(Shortage { scope: Scope::Run, .. }) => {}
                }
            }
            Fact::Extended { position, by } => {
                self.extend(*position, *by);
                match reason {
                    ParkReason::Budget(shortage) if relieves(*by, *shortage) => self.unpark_budget(from),
                    ParkReason::Budget(_)
                    | ParkReason::Approval
                    | ParkReason::UnknownOutcome
                    | ParkReason::Quarantine
                    | ParkReason::Missing(_) => {}
                }
            }
            Fact::Resumed { epoch, boot_id, suspicion } => self.note_owner(*epoch, *boot_id, *suspicion),
            Fact::Stopped => {}
            // The time of a parked run stands still.
            Fact::DeadlinePassed
            | Fact::Admitted(_)
            | Fact::Polled
            | Fact::Drained { .. }
            | Fact::RequestPrepared(_)
            | Fact::BudgetRefused(_)
            | Fact::StreamOpened
            | Fact::ModelAnswered { .. }
            | Fact::ModelFailed { .. }
            | Fact::ModelInterrupted { .. }
            | Fact::BatchAdmitted { .. }
            | Fact::HookReturned { .. }
            | Fact::ToolReturned { .. }
            | Fact::ToolUnknown { .. }
            | Fact::Quarantined
            | Fact::TimerFired
            | Fact::CompactionPlanned { .. }
            | Fact::Compacted { .. }
            | Fact::CompactFailed { .. }
            | Fact::Missing { .. } => return ILLEGAL,
        }
        LEGAL
    }

    /// A decision on a call of the parked batch. It moves the batch only if the run waits for nothing else;
    /// one that came too late changes nothing.
    fn decide_call(
        &mut self,
        reason: &ParkReason,
        from: &Phase,
        of_turn: u32,
        decide: impl FnOnce(&mut Self) -> bool,
    ) {
        let Phase::ExecuteTools { turn, .. } = from else { return };
        if *turn != of_turn || !decide(self) {
            return;
        }
        match reason {
            ParkReason::Approval | ParkReason::UnknownOutcome => {
                self.unpark(from);
                self.go_on(from);
            }
            ParkReason::Quarantine | ParkReason::Budget(_) | ParkReason::Missing(_) => {}
        }
    }

    /// Moves a batch that decisions may have changed while it was parked; any other phase goes on by its
    /// effects.
    fn go_on(&mut self, from: &Phase) {
        match from {
            Phase::ExecuteTools { turn, .. } => self.pump(*turn),
            Phase::Stream { .. } => self.tell_lost_files(),
            Phase::Queued
            | Phase::InjectPending { .. }
            | Phase::Dispatch { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. }
            | Phase::Parked { .. }
            | Phase::Done { .. } => {}
        }
    }

    /// The cap is asked again: it may have been raised by less than what is short.
    fn unpark_budget(&mut self, from: &Phase) {
        self.unpark(from);
        if let Phase::Stream { turn, attempt: 0, stage: StreamStage::Ready } = from {
            self.stream_ready(*turn);
        }
    }

    /// Carries an abort out from the phase that was parked.
    fn abort_parked(&mut self, from: &Phase) {
        match from {
            Phase::ExecuteTools { turn, .. } => self.pump(*turn),
            Phase::Queued => {
                self.mark(crate::record::Mark::AgentStart);
                self.open_turn();
                self.abort();
            }
            // Carried out by the phase itself: prompts are shown first, and every call of an answer gets its
            // result.
            Phase::Dispatch { .. } | Phase::InjectPending { .. } => {}
            Phase::Stream { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. }
            | Phase::Parked { .. }
            | Phase::Done { .. } => self.abort(),
        }
    }
}
