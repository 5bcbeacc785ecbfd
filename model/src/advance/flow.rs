//! The checkpoints that phases share: the top of a turn, the end of a turn, the end of a run, the abort.
//!
//! Owns the order of checkpoints. The names A1 to A5, S0 to S6 and F are those of the loop's description in
//! ARCHITECTURE.md. It must never look at a fact: callers have.

use super::{Mover, TurnEnd};
use crate::guard::budget::shortage_of_turn;
use crate::ids::{JsonText, Label, Millis};
use crate::input::{Extension, Hook};
use crate::message::{AssistantMessage, Block, CustomMessage, Message, StopReason, Usage};
use crate::phase::{FinalizeStage, Inject, Outcome, ParkReason, Phase, StreamStage};
use crate::record::Mark;
use crate::state::{AbortCause, Core};

/// What an interrupted run tells the model of the next one.
const INTERRUPTION: &str = "<turn_aborted>\nThe previous turn was stopped before it was finished. Commands \
                            that were started may still run, and calls that were stopped may have had a \
                            part of their effect.\n</turn_aborted>";

/// What ends a run whose second critical loop was found.
const TERMINATION: &str = "Sprag ended this run: tools were called in a critical loop again after a first \
                           warning. None of the blocked calls ran.";

/// What the model is told after a crash of the machine.
fn files_lost(since: Millis) -> String {
    let since = chrono::DateTime::from_timestamp_millis(since.0).unwrap_or_default();
    let since = since.format("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "The machine went down while this run was under way. Files that commands have written since {since} may be \
         missing, or as they were before: look before you rely on them. What `write` and `edit` have answered \
         for is there."
    )
}

impl Mover<'_> {
    /// A1, A2 and the caps, then the model call of `turn`.
    pub(super) fn stream_ready(&mut self, turn: u32) {
        if self.is_aborting() {
            return self.abort();
        }
        self.open_turn();
        self.tell_lost_files();
        self.enter(Phase::Stream { turn, attempt: 0, stage: StreamStage::Ready });
        let Core { limits, spent, .. } = &self.state.core;
        if let Some(shortage) = shortage_of_turn(limits, spent) {
            self.park(ParkReason::Budget(shortage));
        }
    }

    /// Before a model call: the model is told once which files a crash of the machine may have lost.
    pub(super) fn tell_lost_files(&mut self) {
        let Some(since) = self.state.core.files.lost_since.take() else { return };
        let content = self.make(Message::Custom(CustomMessage {
            custom_type: crate::FILES_LOST.to_owned(),
            content: vec![Block::Text(files_lost(since))],
            is_displayed: true,
            details: JsonText::empty(),
            at: self.at,
        }));
        self.show(content);
    }

    /// After `turn_end`: A3, the end of a run in a critical loop, and the hook that prepares the next turn.
    pub(super) fn after_turn(&mut self, turn_end: TurnEnd, is_terminal: bool) {
        self.state.core.crashes.complete_turn();
        if self.is_aborting() {
            self.abort();
        } else if is_terminal {
            self.end_looping_run();
        } else if self.state.core.wants.hook(Hook::PrepareNextTurn) {
            self.ask_after(turn_end, FinalizeStage::PrepareNext);
        } else {
            self.after_prepare(turn_end);
        }
    }

    /// A4, then the hook that may stop the run, unless a poll has already found steering.
    pub(super) fn after_prepare(&mut self, turn_end: TurnEnd) {
        if self.is_aborting() {
            self.abort();
        } else if turn_end.is_steered {
            self.after_steering_poll(turn_end);
        } else if self.state.core.wants.hook(Hook::ShouldStopAfterTurn) {
            self.ask_after(turn_end, FinalizeStage::ShouldStop);
        } else {
            self.poll_steering(turn_end);
        }
    }

    /// S5.
    pub(super) fn poll_steering(&mut self, turn_end: TurnEnd) {
        if self.state.core.wants.has_sources {
            self.ask_after(turn_end, FinalizeStage::PollSteering);
        } else {
            let is_steered = self.input.waiting.steering;
            self.after_steering_poll(TurnEnd { is_steered, ..turn_end });
        }
    }

    /// A5, then the steering that was found.
    pub(super) fn after_steering_poll(&mut self, turn_end: TurnEnd) {
        if self.is_aborting() {
            self.abort();
        } else if turn_end.is_steered {
            let inject = Inject::Steering { wants_more: turn_end.wants_more };
            self.enter(Phase::InjectPending { turn: turn_end.next, inject });
        } else {
            self.after_steering(turn_end);
        }
    }

    /// Nothing steers: the next model call if the batch wants one, else follow-ups.
    pub(super) fn after_steering(&mut self, turn_end: TurnEnd) {
        if turn_end.wants_more {
            self.stream_ready(turn_end.next);
        } else if self.state.core.wants.has_sources {
            self.ask_after(turn_end, FinalizeStage::PollFollowUp);
        } else {
            self.after_follow_up_poll(turn_end);
        }
    }

    /// F. Asked whether or not the run is aborting.
    pub(super) fn after_follow_up_poll(&mut self, turn_end: TurnEnd) {
        if self.input.waiting.follow_up {
            self.enter(Phase::InjectPending { turn: turn_end.next, inject: Inject::FollowUp });
        } else {
            self.poll_last(turn_end);
        }
    }

    /// S6, only when there was no follow-up.
    pub(super) fn poll_last(&mut self, turn_end: TurnEnd) {
        if self.state.core.wants.has_sources {
            self.ask_after(turn_end, FinalizeStage::PollLast);
        } else {
            self.after_last_poll(turn_end);
        }
    }

    /// The run ends, unless a message came or a hook asks for a revision.
    pub(super) fn after_last_poll(&mut self, turn_end: TurnEnd) {
        if self.may_be_revised() && !self.is_anything_waiting() {
            self.ask_after(turn_end, FinalizeStage::BeforeFinalize);
        } else {
            self.finish_unless_waiting(turn_end);
        }
    }

    /// The run ends, unless something was accepted for it since it was last asked.
    pub(super) fn finish_unless_waiting(&mut self, turn_end: TurnEnd) {
        let waiting = self.input.waiting;
        if waiting.steering {
            let inject = Inject::Steering { wants_more: false };
            self.enter(Phase::InjectPending { turn: turn_end.next, inject });
        } else if waiting.follow_up {
            self.enter(Phase::InjectPending { turn: turn_end.next, inject: Inject::FollowUp });
        } else {
            self.finish_run();
        }
    }

    fn is_anything_waiting(&self) -> bool {
        self.input.waiting.steering || self.input.waiting.follow_up
    }

    fn may_be_revised(&self) -> bool {
        let core = &self.state.core;
        core.wants.hook(Hook::BeforeFinalize)
            && core.retries.finalize_revisions < crate::limits::REVISIONS_MAX
            && !self.is_aborting()
    }

    fn ask_after(&mut self, turn_end: TurnEnd, stage: FinalizeStage) {
        let TurnEnd { next, wants_more, is_steered } = turn_end;
        self.enter(Phase::Finalize { turn: next.saturating_sub(1), stage, wants_more, is_steered });
    }

    /// The run did what was asked.
    pub(super) fn finish_run(&mut self) {
        self.mark(Mark::AgentEnd);
        self.enter(Phase::Done { outcome: Outcome::Completed, reason: None });
    }

    /// The run ends with the error message that was just shown.
    pub(super) fn end_failed(&mut self, outcome: Outcome, reason: Label) {
        self.close_turn();
        self.mark(Mark::AgentEnd);
        self.enter(Phase::Done { outcome, reason: Some(reason) });
    }

    /// The hook before the run said no: the prompts are not shown, in their place stands why.
    pub(super) fn refuse_run(&mut self, reason: &str) {
        let text = format!("This run was not started: {reason}");
        let failed = self.failure_message(StopReason::Error, text);
        let content = self.make(failed);
        self.show_answer(content);
        self.end_failed(Outcome::Blocked, Label::from(reason));
    }

    /// A hook that cannot refuse anything has failed: the run cannot go on as its program meant it to.
    pub(super) fn hook_failed(&mut self, text: &str) {
        if self.is_aborting() {
            return self.abort();
        }
        let message = self.failure_message(StopReason::Error, text.to_owned());
        let content = self.make(message);
        self.open_turn();
        self.show_answer(content);
        self.end_failed(Outcome::Failed, Label::from(text));
    }

    fn end_looping_run(&mut self) {
        let Message::Assistant(mut message) = self.failure_message(StopReason::Error, TERMINATION.to_owned())
        else {
            return;
        };
        message.content = vec![Block::Text(TERMINATION.to_owned())];
        message.is_tainted = false;
        let content = self.make(Message::Assistant(message));
        self.open_turn();
        self.show_answer(content);
        self.end_failed(Outcome::Failed, Label::from("a second critical tool loop"));
    }

    /// Ends the run at a checkpoint: an aborted answer, the interruption for the next run's model, the end.
    pub(super) fn abort(&mut self) {
        let Some(abort) = self.state.core.abort.clone() else { return };
        let message = self.failure_message(StopReason::Aborted, abort.reason.as_str().to_owned());
        let content = self.make(message);
        self.open_turn();
        self.show_answer(content);
        self.close_turn();
        self.interrupt();
        self.mark(Mark::AgentEnd);
        self.enter_aborted();
    }

    /// The message that tells the next run's model of the interruption; a handoff has none.
    pub(super) fn interrupt(&mut self) {
        let is_handoff =
            self.state.core.abort.as_ref().is_some_and(|abort| abort.cause == AbortCause::Handoff);
        if is_handoff {
            return;
        }
        let content = self.make(Message::Custom(CustomMessage {
            custom_type: crate::TURN_ABORTED.to_owned(),
            content: vec![Block::Text(INTERRUPTION.to_owned())],
            is_displayed: false,
            details: JsonText::empty(),
            at: self.at,
        }));
        self.show(content);
    }

    /// The outcome that belongs to the cause of the abort.
    pub(super) fn enter_aborted(&mut self) {
        let Some(abort) = self.state.core.abort.clone() else { return };
        let outcome = match abort.cause {
            AbortCause::Cancel | AbortCause::Handoff => Outcome::Cancelled,
            AbortCause::Deadline => Outcome::TimedOut,
            AbortCause::UnknownOutcome => Outcome::Failed,
        };
        self.enter(Phase::Done { outcome, reason: Some(abort.reason) });
    }

    /// An assistant message that stands in for an answer.
    pub(super) fn failure_message(&self, stop_reason: StopReason, text: String) -> Message {
        let core = &self.state.core;
        Message::Assistant(Box::new(AssistantMessage {
            content: vec![Block::Text(String::new())],
            api: String::new(),
            provider: String::new(),
            model: core.model.as_str().to_owned(),
            response_id: None,
            turn_id: None,
            usage: Usage::default(),
            stop_reason,
            error_message: Some(text),
            is_tainted: core.is_tainted,
            at: self.at,
        }))
    }

    /// A person raises limits; 0 in a limit means none, and stays so.
    pub(super) fn extend(&mut self, position: u64, by: Extension) {
        self.take_control(Some(position));
        let raise = |limit: &mut u64, by: u64| {
            if *limit > 0 {
                *limit = limit.saturating_add(by);
            }
        };
        let limits = &mut self.state.core.limits;
        raise(&mut limits.usd_micros, by.usd_micros);
        raise(&mut limits.tokens, by.tokens);
        raise(&mut limits.calls, by.calls);
        raise(&mut limits.turns, by.turns);
        raise(&mut limits.time_ms, by.time_ms);
        let deadline = &mut self.state.core.deadline;
        deadline.at = deadline.at.map(|at| at.plus(by.time_ms));
    }
}
