//! Compact: a summary takes the place of the older part of the context. The transcript itself stays as it is.
//!
//! Owns the moment at which the context changes: the commit of the summary, never before.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover, Resumption};
use crate::guard::retry::CompactCause;
use crate::ids::Label;
use crate::input::Fact;
use crate::limits::COMPACTION_MS_MAX;
use crate::phase::{CompactStage, EntryRef, Phase, StreamStage};
use crate::state::LastBatch;

impl Mover<'_> {
    pub(super) fn compact(&mut self, after: Resumption, stage: CompactStage, fact: &Fact) -> bool {
        match fact {
            Fact::CompactionPlanned { first_kept } if stage == CompactStage::Ready => {
                self.enter_compact(after, CompactStage::InFlight { first_kept: *first_kept });
            }
            Fact::Compacted { .. } => return self.compacted(after, stage),
            Fact::CompactFailed { reason } => self.compact_failed(after, reason),
            // The summary in the making is dropped; nothing of it was committed.
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.abort();
            }
            Fact::DeadlinePassed => self.deadline_passed(),
            // The head may have moved with the old owner's last breath: the plan is made again.
            Fact::Resumed { epoch, boot_id, suspicion } => {
                self.note_owner(*epoch, *boot_id, *suspicion);
                self.enter_compact(after, CompactStage::Ready);
            }
            Fact::Quarantined => return self.quarantine(),
            Fact::Stopped => self.enter_compact(after, CompactStage::Ready),
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

    pub(super) fn enter_compact(&mut self, after: Resumption, stage: CompactStage) {
        let Resumption { turn, attempt, cause } = after;
        self.enter(Phase::Compact { turn, attempt, cause, stage });
    }

    fn compacted(&mut self, after: Resumption, stage: CompactStage) -> bool {
        let CompactStage::InFlight { first_kept } = stage else { return ILLEGAL };
        self.replace_context(first_kept);
        self.ask_again(after);
        LEGAL
    }

    fn replace_context(&mut self, first_kept: EntryRef) {
        let core = &mut self.state.core;
        core.context_from.base = Some(core.seq);
        core.context_from.first = Some(first_kept);
        core.retries.note_compaction(core.last_batch != LastBatch::None);
    }

    /// A call that took too long may be made again as it is; one that does not fit may not.
    fn compact_failed(&mut self, after: Resumption, reason: &Label) {
        match after.cause {
            CompactCause::Timeout => self.ask_again(after),
            CompactCause::Overflow => self.overflow_stands(after, reason),
        }
    }

    pub(super) fn ask_again(&mut self, after: Resumption) {
        let Resumption { turn, attempt, cause: _ } = after;
        self.tell_lost_files();
        self.enter(Phase::Stream { turn, attempt, stage: StreamStage::Ready });
    }
}
