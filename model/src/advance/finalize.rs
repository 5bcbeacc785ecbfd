//! Finalize: the turn has ended; hooks and polls decide what follows.
//!
//! Owns what the answers of those hooks mean; the order of the questions is in `flow`.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover, TurnEnd};
use crate::ids::JsonText;
use crate::input::{Fact, HookAnswer, NextTurn};
use crate::message::{Block, CustomMessage, Message};
use crate::phase::{EntryRef, FinalizeStage};

impl Mover<'_> {
    pub(super) fn finalize(&mut self, turn_end: TurnEnd, stage: FinalizeStage, fact: &Fact) -> bool {
        match fact {
            Fact::HookReturned { hook: _, answer } => return self.finalize_hook(turn_end, stage, answer),
            Fact::Polled => return self.finalize_poll(turn_end, stage),
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.abort_unless_asking(stage);
            }
            Fact::DeadlinePassed => {
                self.note_deadline();
                self.abort_unless_asking(stage);
            }
            Fact::Resumed { epoch, boot_id, suspicion } => self.note_owner(*epoch, *boot_id, *suspicion),
            Fact::Quarantined => return self.quarantine(),
            Fact::Stopped => {}
            Fact::Missing { what } => self.miss(what),
            Fact::Extended { position, by } => self.extend(*position, *by),
            Fact::ApprovalGiven { position, .. } | Fact::Resolved { position, .. } => {
                self.take_stale(Some(*position))
            }
            Fact::Released { position } => self.take_stale(*position),
            Fact::Admitted(_)
            | Fact::Drained { .. }
            | Fact::RequestPrepared(_)
            | Fact::BudgetRefused(_)
            | Fact::StreamOpened
            | Fact::ModelAnswered { .. }
            | Fact::ModelFailed { .. }
            | Fact::ModelInterrupted { .. }
            | Fact::BatchAdmitted { .. }
            | Fact::ToolReturned { .. }
            | Fact::ToolUnknown { .. }
            | Fact::TimerFired
            | Fact::CompactionPlanned { .. }
            | Fact::Compacted { .. }
            | Fact::CompactFailed { .. } => return ILLEGAL,
        }
        LEGAL
    }

    /// A3 to A5. What these two questions are answered changes nothing any more; the others are answered first, since
    /// they may end the run in its own way.
    fn abort_unless_asking(&mut self, stage: FinalizeStage) {
        match stage {
            FinalizeStage::PrepareNext | FinalizeStage::PollSteering => self.abort(),
            FinalizeStage::ShouldStop
            | FinalizeStage::PollFollowUp
            | FinalizeStage::PollLast
            | FinalizeStage::BeforeFinalize => {}
        }
    }

    fn finalize_poll(&mut self, turn_end: TurnEnd, stage: FinalizeStage) -> bool {
        match stage {
            FinalizeStage::PollSteering => {
                let is_steered = self.input.waiting.steering;
                self.after_steering_poll(TurnEnd { is_steered, ..turn_end });
            }
            FinalizeStage::PollFollowUp => self.after_follow_up_poll(turn_end),
            FinalizeStage::PollLast => self.after_last_poll(turn_end),
            FinalizeStage::PrepareNext | FinalizeStage::ShouldStop | FinalizeStage::BeforeFinalize => {
                return ILLEGAL;
            }
        }
        LEGAL
    }

    fn finalize_hook(&mut self, turn_end: TurnEnd, stage: FinalizeStage, answer: &HookAnswer) -> bool {
        match stage {
            FinalizeStage::PrepareNext => self.next_prepared(turn_end, answer),
            FinalizeStage::ShouldStop => self.stop_decided(turn_end, answer),
            FinalizeStage::BeforeFinalize => self.revision_decided(turn_end, answer),
            FinalizeStage::PollSteering | FinalizeStage::PollFollowUp | FinalizeStage::PollLast => ILLEGAL,
        }
    }

    fn next_prepared(&mut self, turn_end: TurnEnd, answer: &HookAnswer) -> bool {
        match answer {
            HookAnswer::Proceed => self.after_prepare(turn_end),
            HookAnswer::Next(next) => {
                self.apply_next(next);
                self.after_prepare(turn_end);
            }
            HookAnswer::Failed(text) => self.hook_failed(text),
            HookAnswer::Block(_)
            | HookAnswer::Ask(_)
            | HookAnswer::Intervene(_)
            | HookAnswer::Result(_)
            | HookAnswer::Stop
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }

    fn stop_decided(&mut self, turn_end: TurnEnd, answer: &HookAnswer) -> bool {
        match answer {
            HookAnswer::Proceed => self.poll_steering(turn_end),
            HookAnswer::Stop => self.finish_run(),
            HookAnswer::Failed(text) => self.hook_failed(text),
            HookAnswer::Block(_)
            | HookAnswer::Ask(_)
            | HookAnswer::Intervene(_)
            | HookAnswer::Result(_)
            | HookAnswer::Next(_)
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }

    fn revision_decided(&mut self, turn_end: TurnEnd, answer: &HookAnswer) -> bool {
        match answer {
            HookAnswer::Proceed => self.finish_unless_waiting(turn_end),
            HookAnswer::Revise(reason) => self.revise(turn_end, reason),
            HookAnswer::Failed(text) => self.hook_failed(text),
            HookAnswer::Block(_)
            | HookAnswer::Ask(_)
            | HookAnswer::Intervene(_)
            | HookAnswer::Result(_)
            | HookAnswer::Next(_)
            | HookAnswer::Stop => return ILLEGAL,
        }
        LEGAL
    }

    fn apply_next(&mut self, next: &NextTurn) {
        let core = &mut self.state.core;
        if let Some(model) = &next.model {
            core.model = model.clone();
        }
        if let Some(thinking) = &next.thinking {
            core.thinking = thinking.clone();
        }
        if next.context.is_some() {
            core.context_from.base = Some(core.seq);
            core.context_from.first = Some(EntryRef { run: core.run, seq: core.seq.saturating_add(1), n: 0 });
        }
    }

    /// One more pass, with the hook's reason for it in the transcript.
    fn revise(&mut self, turn_end: TurnEnd, reason: &str) {
        let revisions = &mut self.state.core.retries.finalize_revisions;
        *revisions = revisions.saturating_add(1);
        let text = format!("The answer was looked at and one more pass was asked for: {reason}");
        let content = self.make(Message::Custom(CustomMessage {
            custom_type: crate::REVISION.to_owned(),
            content: vec![Block::Text(text)],
            is_displayed: true,
            details: JsonText::empty(),
            at: self.at,
        }));
        self.open_turn();
        self.show(content);
        self.stream_ready(turn_end.next);
    }
}
