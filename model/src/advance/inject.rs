//! InjectPending: messages move from the inbox to the transcript, in one commit.
//!
//! Owns the cursors over the inbox. It must never move a cursor without showing the messages that it passes,
//! unless they were withdrawn.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover, TurnEnd};
use crate::input::{DrainedItem, Fact, HookAnswer};
use crate::phase::{Inject, Phase};
use crate::record::{Content, Mark};

impl Mover<'_> {
    pub(super) fn inject(&mut self, turn: u32, inject: Inject, fact: &Fact) -> bool {
        match fact {
            Fact::HookReturned { hook: _, answer } => return self.before_run(turn, answer),
            Fact::Drained { items } => return self.drained(turn, inject, items),
            Fact::Polled => return self.first_poll(turn, inject),
            // What was asked for is still shown first: the abort is carried out at the next checkpoint.
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
            }
            Fact::DeadlinePassed => self.note_deadline(),
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

    /// The hook that may refuse the run has answered. It fails closed: its own failure refuses too.
    fn before_run(&mut self, turn: u32, answer: &HookAnswer) -> bool {
        match answer {
            HookAnswer::Proceed => self.enter(Phase::InjectPending { turn, inject: Inject::Prompts }),
            HookAnswer::Block(reason) => self.refuse_run(reason),
            HookAnswer::Failed(reason) => self.refuse_run(reason),
            HookAnswer::Ask(_)
            | HookAnswer::Intervene(_)
            | HookAnswer::Result(_)
            | HookAnswer::Next(_)
            | HookAnswer::Stop
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }

    fn drained(&mut self, turn: u32, inject: Inject, items: &[DrainedItem]) -> bool {
        let cursors = self.state.core.cursors;
        let turn_end = |wants_more| TurnEnd { next: turn, wants_more, is_steered: false };
        match inject {
            Inject::Prompts if is_in_order(items, 0) => {
                let shown = self.show_items(items, Content::Prompt);
                if shown == 0 && !items.is_empty() {
                    self.finish_run();
                } else if self.state.core.wants.has_sources {
                    self.enter(Phase::InjectPending { turn, inject: Inject::FirstPoll });
                } else {
                    self.after_first_poll(turn);
                }
            }
            Inject::Steering { wants_more } if is_in_order(items, cursors.steering) => {
                // An abort between the poll and here leaves the messages in the inbox.
                if self.is_aborting() {
                    self.abort();
                } else if self.take_items(items, |cursors| &mut cursors.steering) == 0 {
                    self.after_steering(turn_end(wants_more));
                } else {
                    self.stream_ready(turn);
                }
            }
            Inject::FollowUp if is_in_order(items, cursors.follow_up) => {
                if self.is_aborting() {
                    self.abort();
                } else if self.take_items(items, |cursors| &mut cursors.follow_up) == 0 {
                    self.poll_last(turn_end(false));
                } else {
                    self.stream_ready(turn);
                }
            }
            Inject::BeforeRun
            | Inject::Prompts
            | Inject::FirstPoll
            | Inject::Steering { .. }
            | Inject::FollowUp => return ILLEGAL,
        }
        LEGAL
    }

    fn first_poll(&mut self, turn: u32, inject: Inject) -> bool {
        if inject != Inject::FirstPoll {
            return ILLEGAL;
        }
        self.after_first_poll(turn);
        LEGAL
    }

    fn after_first_poll(&mut self, turn: u32) {
        if self.is_aborting() {
            self.abort();
        } else if self.input.waiting.steering {
            self.enter(Phase::InjectPending { turn, inject: Inject::Steering { wants_more: true } });
        } else {
            self.stream_ready(turn);
        }
    }

    /// Moves a cursor over the items and shows those that were not withdrawn; answers how many.
    fn take_items(
        &mut self,
        items: &[DrainedItem],
        cursor: fn(&mut crate::state::Cursors) -> &mut u64,
    ) -> usize {
        if items.iter().any(|item| !item.is_withdrawn) {
            self.open_turn();
        }
        let shown = self.show_items(items, Content::Inbox);
        if let Some(last) = items.last() {
            let cursor = cursor(&mut self.state.core.cursors);
            *cursor = (*cursor).max(last.position.saturating_add(1));
        }
        shown
    }

    fn show_items(&mut self, items: &[DrainedItem], content: fn(u64) -> Content) -> usize {
        let mut shown = 0;
        for item in items.iter().filter(|item| !item.is_withdrawn) {
            self.mark(Mark::MessageStart(content(item.position)));
            if item.is_user {
                self.state.core.is_tainted = false;
            }
            self.mark(Mark::MessageEnd(content(item.position)));
            shown += 1;
        }
        shown
    }
}

/// Each item comes after the one before it, and none was taken before.
fn is_in_order(items: &[DrainedItem], cursor: u64) -> bool {
    let first = items.first().is_none_or(|item| item.position >= cursor);
    first && items.is_sorted_by(|one, next| one.position < next.position)
}
