//! Stream: one model call, from the request to the answer, to its loss or to its failure.
//!
//! Owns what an answer or a lost call means; what is done about a failure is in `retry`. It must never count a call twice: the intent counts
//! it.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover, TurnEnd};
use crate::answer::is_settled;
use crate::guard::budget::shortage_of_call;
use crate::ids::Label;
use crate::input::{Fact, Request};
use crate::message::{AssistantMessage, StopReason, Usage};
use crate::phase::{DispatchStage, Outcome, ParkReason, Phase, StreamStage};
use crate::record::{Content, Mark};
use crate::state::{Core, LastBatch};

impl Mover<'_> {
    pub(super) fn stream(&mut self, turn: u32, attempt: u32, stage: StreamStage, fact: &Fact) -> bool {
        let (is_called, is_waiting) = match stage {
            StreamStage::Ready => (false, false),
            StreamStage::InFlight | StreamStage::Open => (true, false),
            StreamStage::Backoff { .. } => (false, true),
        };
        match fact {
            Fact::RequestPrepared(request) if stage == StreamStage::Ready => {
                self.request_prepared(turn, attempt, request);
            }
            Fact::BudgetRefused(shortage) if stage == StreamStage::Ready => {
                self.park(ParkReason::Budget(*shortage));
            }
            Fact::StreamOpened if stage == StreamStage::InFlight => self.opened(turn, attempt),
            Fact::ModelAnswered { message } if is_called && is_settled(message) => {
                self.answered(turn, message)
            }
            // A request that is not built, or that nobody may pay for, fails before the call is made: it counts for nothing.
            Fact::ModelFailed { failure, routes }
                if (is_called || stage == StreamStage::Ready)
                    && failure.partial.as_deref().is_none_or(is_settled) =>
            {
                self.failed(turn, attempt, failure, routes);
            }
            Fact::ModelInterrupted { usage } if is_called => self.interrupted(turn, attempt, *usage),
            Fact::TimerFired if is_waiting => {
                self.enter(Phase::Stream { turn, attempt, stage: StreamStage::Ready });
            }
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.abort_unless_called(is_called);
            }
            Fact::DeadlinePassed => {
                self.note_deadline();
                self.abort_unless_called(is_called);
            }
            Fact::Resumed { epoch, boot_id, suspicion } => {
                self.note_owner(*epoch, *boot_id, *suspicion);
                // A call that was in flight is found to be lost first.
                if !is_called {
                    self.tell_lost_files();
                }
            }
            Fact::Quarantined => return self.quarantine(),
            Fact::Stopped => self.lose_call(turn, attempt, is_called),
            Fact::Missing { what } => {
                self.lose_call(turn, attempt, is_called);
                self.miss(what);
            }
            Fact::Extended { position, by } => self.extend(*position, *by),
            Fact::ApprovalGiven { position, .. } | Fact::Resolved { position, .. } => {
                self.take_stale(Some(*position))
            }
            Fact::Released { position } => self.take_stale(*position),
            Fact::Admitted(_)
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
            | Fact::TimerFired
            | Fact::CompactionPlanned { .. }
            | Fact::Compacted { .. }
            | Fact::CompactFailed { .. } => return ILLEGAL,
        }
        LEGAL
    }

    /// A call in flight is ended by its owner, which reports what came of it.
    fn abort_unless_called(&mut self, is_called: bool) {
        if !is_called {
            self.abort();
        }
    }

    /// Nobody will tell any more what came of a call in flight.
    fn lose_call(&mut self, turn: u32, attempt: u32, is_called: bool) {
        if is_called {
            self.interrupted(turn, attempt, None);
        }
    }

    /// The intent: counted and reserved before anything leaves the process.
    fn request_prepared(&mut self, turn: u32, attempt: u32, request: &Request) {
        let Core { limits, spent, .. } = &mut self.state.core;
        if let Some(shortage) = shortage_of_call(limits, spent, request.reserve) {
            return self.park(ParkReason::Budget(shortage));
        }
        spent.model_calls = spent.model_calls.saturating_add(1);
        spent.reserved = request.reserve;
        self.state.core.retries.profile = request.profile;
        self.enter(Phase::Stream { turn, attempt, stage: StreamStage::InFlight });
    }

    fn opened(&mut self, turn: u32, attempt: u32) {
        if !self.state.core.open.message {
            self.mark(Mark::MessageStart(Content::Opening));
            self.state.core.open.message = true;
        }
        self.enter(Phase::Stream { turn, attempt, stage: StreamStage::Open });
    }

    pub(super) fn settle(&mut self, usage: Usage) {
        let spent = &mut self.state.core.spent;
        spent.usage = spent.usage.plus(usage);
        spent.reserved = Usage::default();
    }

    fn answered(&mut self, turn: u32, message: &AssistantMessage) {
        self.settle(message.usage);
        self.show_answer(Content::Answer);
        match message.stop_reason {
            StopReason::Error if self.is_aborting() => self.end_interrupted(),
            StopReason::Error => {
                self.end_failed(Outcome::Failed, Label::from(message.error_message.as_deref().unwrap_or("")));
            }
            StopReason::Aborted => self.answer_aborted(message),
            StopReason::Stop | StopReason::Length | StopReason::ToolUse => {
                self.state.core.retries.note_answer();
                self.state.core.last_batch = LastBatch::None;
                let spent = &mut self.state.core.spent;
                spent.turns = spent.turns.saturating_add(1);
                if message.stop_reason == StopReason::ToolUse && message.calls().next().is_some() {
                    self.enter(Phase::Dispatch { turn, stage: DispatchStage::Resolve });
                } else {
                    self.close_turn();
                    let next = turn.saturating_add(1);
                    self.after_turn(TurnEnd { next, wants_more: false, is_steered: false }, false);
                }
            }
        }
    }

    /// The stream itself says that it was aborted. Only an abort of ours is told to the next run.
    fn answer_aborted(&mut self, message: &AssistantMessage) {
        if !self.is_aborting() {
            let reason = message.error_message.as_deref().unwrap_or("the model's answer was aborted");
            return self.end_failed(Outcome::Failed, Label::from(reason));
        }
        self.close_turn();
        self.interrupt();
        self.mark(Mark::AgentEnd);
        self.enter_aborted();
    }

    /// The call failed while the run was being aborted: the next run is told of the failure alone.
    pub(super) fn end_interrupted(&mut self) {
        self.close_turn();
        self.mark(Mark::AgentEnd);
        self.enter_aborted();
    }

    /// The call is lost, and nobody knows what it cost: it is charged as reserved. The same attempt is made
    /// again.
    fn interrupted(&mut self, turn: u32, attempt: u32, usage: Option<Usage>) {
        let spent = &mut self.state.core.spent;
        spent.calls_lost = spent.calls_lost.saturating_add(1);
        let usage = usage.unwrap_or(spent.reserved);
        self.settle(usage);
        self.enter(Phase::Stream { turn, attempt, stage: StreamStage::Ready });
        if self.is_aborting() {
            self.abort();
        } else {
            self.tell_lost_files();
        }
    }
}
