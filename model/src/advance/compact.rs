//! Compact: a summary takes the place of the older part of the context. The transcript itself stays as it is.
//!
//! Owns the moment at which the context changes: the commit of the summary, never before.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover};
use crate::ids::Label;
use crate::input::Fact;
use crate::limits::COMPACTION_MS_MAX;
use crate::message::StopReason;
use crate::phase::{CompactStage, Outcome, Phase, StreamStage};

/// Outcomes that are watched after a compaction.
const POST_COMPACTION_WINDOW: u8 = 3;

impl Mover<'_> {
    pub(super) fn compact(&mut self, turn: u32, attempt: u32, stage: CompactStage, fact: &Fact) -> bool {
        match fact {
            Fact::CompactionPlanned { first_kept } if stage == CompactStage::Ready => {
                let stage = CompactStage::InFlight { first_kept: *first_kept };
                self.enter(Phase::Compact { turn, attempt, stage });
            }
            Fact::Compacted { .. } => return self.compacted(turn, attempt, stage),
            Fact::CompactFailed { reason } => self.compact_failed(reason),
            // The summary in the making is dropped; nothing of it was committed.
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.abort();
            }
            Fact::DeadlinePassed => self.deadline_passed(),
            // The head may have moved with the old owner's last breath: the plan is made again.
            Fact::Resumed { epoch, boot_id, suspicion } => {
                self.note_owner(*epoch, *boot_id, *suspicion);
                self.enter(Phase::Compact { turn, attempt, stage: CompactStage::Ready });
            }
            Fact::Quarantined => return self.quarantine(),
            Fact::Stopped => self.enter(Phase::Compact { turn, attempt, stage: CompactStage::Ready }),
            Fact::Missing { what } => self.miss(what),
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
            | Fact::CompactionPlanned { .. } => return ILLEGAL,
        }
        LEGAL
    }

    /// A summary in the making gets as much time as a compaction may take, once a run. After that the deadline wins over
    /// whatever would have followed: the run has timed out.
    fn deadline_passed(&mut self) {
        let deadline = &mut self.state.core.deadline;
        if !deadline.was_extended {
            deadline.was_extended = true;
            deadline.at = deadline.at.map(|at| at.plus(COMPACTION_MS_MAX));
            return;
        }
        self.note_deadline();
        self.abort();
    }

    fn compacted(&mut self, turn: u32, attempt: u32, stage: CompactStage) -> bool {
        let CompactStage::InFlight { first_kept } = stage else { return ILLEGAL };
        let core = &mut self.state.core;
        core.context_from.base = Some(core.seq);
        core.context_from.first = Some(first_kept);
        core.retries.post_compaction_left = POST_COMPACTION_WINDOW;
        self.tell_lost_files();
        self.enter(Phase::Stream { turn, attempt, stage: StreamStage::Ready });
        LEGAL
    }

    fn compact_failed(&mut self, reason: &Label) {
        let text = format!("The context does not fit the model, and could not be made smaller: {reason}");
        let message = self.failure_message(StopReason::Error, text);
        let content = self.make(message);
        self.show_answer(content);
        self.end_failed(Outcome::Blocked, Label::from("context_overflow"));
    }
}
