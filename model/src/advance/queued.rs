//! Queued: the run waits for its lane.
//!
//! Owns the start of a run. It must never show a prompt: that is the next phase's work.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover};
use crate::input::{Admission, Fact, Hook};
use crate::phase::{Inject, Phase};
use crate::record::Mark;

impl Mover<'_> {
    pub(super) fn queued(&mut self, fact: &Fact) -> bool {
        match fact {
            Fact::Admitted(admission) => self.admit(admission),
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                self.start_and_abort();
            }
            Fact::DeadlinePassed => {
                self.note_deadline();
                self.start_and_abort();
            }
            Fact::Resumed { epoch, boot_id, suspicion } => self.note_owner(*epoch, *boot_id, *suspicion),
            Fact::Stopped => {}
            Fact::Missing { what } => self.miss(what),
            Fact::Extended { position, by } => self.extend(*position, *by),
            Fact::ApprovalGiven { position, .. } | Fact::Resolved { position, .. } => {
                self.take_stale(Some(*position))
            }
            Fact::Released { position } => self.take_stale(*position),
            Fact::Polled
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
            | Fact::CompactFailed { .. } => return ILLEGAL,
        }
        LEGAL
    }

    fn admit(&mut self, admission: &Admission) {
        let core = &mut self.state.core;
        core.context_from.previous = admission.previous;
        core.is_tainted = admission.is_tainted;
        core.critical_tool_loop_seen = admission.critical_tool_loop_seen;
        if let Some(window) = &admission.window {
            self.state.window = window.clone();
        }
        let inject = if core.wants.hook(Hook::BeforeAgentRun) { Inject::BeforeRun } else { Inject::Prompts };
        self.mark(Mark::AgentStart);
        self.open_turn();
        self.enter(Phase::InjectPending { turn: 0, inject });
    }

    fn start_and_abort(&mut self) {
        self.mark(Mark::AgentStart);
        self.open_turn();
        self.abort();
    }
}
