//! ExecuteTools: which call of the batch is next, and what its turn consists of.
//!
//! Owns order: of preparation, polls, launches and result messages, in both modes and under an abort. It
//! moves the batch as far as it goes without the outside and leaves it where it waits.

use super::batch::{aborted_result, skipped_result, unknown_result};
use super::{ILLEGAL, LEGAL, Mover, TurnEnd};
use crate::input::Hook;
use crate::message::ToolResult;
use crate::phase::{BatchStage, ParkReason, Phase};
use crate::record::{Content, Mark};
use crate::state::{Batch, BatchMode, CallMarks, CallStatus, Ending, LastBatch, Plan};

/// How far the batch could be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// As far as this call or this step; the next one may go on.
    On,
    /// It waits for the outside, or has ended.
    Waits,
}

impl Mover<'_> {
    /// Enters the phase and moves the batch.
    pub(super) fn begin_batch(&mut self, turn: u32) {
        self.enter_batch(turn, BatchStage::Prepare { call: 0 });
        self.pump(turn);
    }

    fn enter_batch(&mut self, turn: u32, stage: BatchStage) {
        self.enter(Phase::ExecuteTools { turn, stage });
    }

    fn stage(&self) -> Option<BatchStage> {
        match &self.state.core.phase {
            Phase::ExecuteTools { stage, .. } => Some(*stage),
            Phase::Queued
            | Phase::InjectPending { .. }
            | Phase::Stream { .. }
            | Phase::Dispatch { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. }
            | Phase::Parked { .. }
            | Phase::Done { .. } => None,
        }
    }

    /// Moves the batch as far as it goes.
    pub(super) fn pump(&mut self, turn: u32) {
        // A poll of a source is out: nothing moves before its answer, which a call's result may overtake.
        let is_polling = self.stage().is_some_and(is_poll);
        let Some(mode) = self.state.batch.as_ref().map(|batch| batch.mode) else { return };
        if is_polling && !self.is_aborting() {
            return;
        }
        match mode {
            BatchMode::Parallel => self.pump_parallel(turn),
            BatchMode::Sequential | BatchMode::Intervened { .. } => self.pump_in_order(turn, None),
        }
    }

    /// A steering poll of the batch was answered.
    pub(super) fn batch_polled(&mut self, turn: u32, stage: BatchStage) -> bool {
        if !is_poll(stage) {
            return ILLEGAL;
        }
        self.note_steering();
        match stage {
            BatchStage::PollLaunch => {
                self.enter_batch(turn, BatchStage::Running);
                self.pump_parallel(turn);
            }
            BatchStage::PollBefore { .. } | BatchStage::PollReady { .. } => {
                self.enter_batch(turn, BatchStage::Running);
                self.pump_in_order(turn, Some(stage));
            }
            BatchStage::Prepare { .. } | BatchStage::Running => {}
        }
        LEGAL
    }

    fn note_steering(&mut self) {
        let is_waiting = self.input.waiting.steering;
        if let Some(batch) = &mut self.state.batch {
            batch.is_steered |= is_waiting;
        }
    }

    fn is_steered(&self) -> bool {
        self.state.batch.as_ref().is_some_and(|batch| batch.is_steered)
    }

    fn indexes(&self) -> std::ops::Range<u16> {
        0..self.state.batch.as_ref().map_or(0, |batch| u16::try_from(batch.calls.len()).unwrap_or(u16::MAX))
    }

    fn is_shown(&self, index: u16) -> bool {
        self.call(index).is_some_and(|call| call.marks.is_shown())
    }

    fn show_call(&mut self, index: u16) {
        if let Some(call) = self.call_mut(index) {
            call.marks.set_shown(true);
        }
        self.mark(Mark::ToolStart { call: u32::from(index) });
    }

    fn show_result(&mut self, index: u16) {
        if let Some(call) = self.call_mut(index) {
            call.marks.set_answered(true);
        }
        self.show(Content::Result(u32::from(index)));
    }

    /// The first call keeps its preparation when the abort came while the batch hook was asked; a blocked
    /// batch keeps its results.
    fn is_cut_short(&self, index: u16) -> bool {
        let is_spared = self
            .state
            .batch
            .as_ref()
            .is_some_and(|batch| batch.mode.is_intervened() || (batch.is_vetted && index == 0));
        self.is_aborting() && !is_spared
    }

    // ---- parallel
    // -------------------------------------------------------------------------------------------------

    fn pump_parallel(&mut self, turn: u32) {
        if let Some(BatchStage::Prepare { .. }) = self.stage() {
            if self.prepare_all(turn) == Moved::Waits {
                return;
            }
            if !self.is_aborting() {
                if self.state.core.wants.has_sources {
                    return self.enter_batch(turn, BatchStage::PollLaunch);
                }
                self.note_steering();
            }
            self.enter_batch(turn, BatchStage::Running);
        }
        if self.is_aborting() {
            return self.abort_parallel(turn);
        }
        self.launch();
        if self.is_every_call_ended() {
            self.indexes().for_each(|index| self.show_result(index));
            self.end_batch(turn);
        } else {
            self.park_if_stuck();
        }
    }

    /// Prepares calls in order; stops at the first that asks a hook, and at the first after an abort.
    fn prepare_all(&mut self, turn: u32) -> Moved {
        for index in self.indexes() {
            if !self.is_shown(index) {
                if self.is_cut_short(index) {
                    return Moved::On;
                }
                self.show_call(index);
                self.prepare(index);
            }
            let is_waiting = self.call(index).is_some_and(|call| match call.status {
                CallStatus::Planned(Plan::Asking) | CallStatus::Judged { .. } => true,
                CallStatus::Planned(_)
                | CallStatus::AwaitingApproval
                | CallStatus::Started
                | CallStatus::Unknown
                | CallStatus::Ended(_) => false,
            });
            if is_waiting {
                self.enter_batch(turn, BatchStage::Prepare { call: index });
                return Moved::Waits;
            }
        }
        Moved::On
    }

    /// Looks at one call: refuses it, asks about it, or makes it ready.
    fn prepare(&mut self, index: u16) {
        let Some(status) = self.call(index).map(|call| call.status) else { return };
        if status == CallStatus::Planned(Plan::Refused) {
            self.refuse(index);
        } else if self.state.core.wants.hook(Hook::BeforeToolCall) {
            self.set_status(index, CallStatus::Planned(Plan::Asking));
        } else {
            self.prepared(index);
        }
    }

    /// The call was refused when the batch was admitted; its result is in the journal.
    fn refuse(&mut self, index: u16) {
        self.judge_outcome(index, Ending::Blocked);
    }

    /// Nothing keeps the call from running any more, unless its tool has already answered.
    pub(super) fn prepared(&mut self, index: u16) {
        let is_immediate = self.call(index).is_some_and(|call| call.marks.is_immediate());
        if is_immediate && !self.is_aborting() {
            self.judge_outcome(index, Ending::Blocked);
        } else {
            self.set_status(index, CallStatus::Planned(Plan::Ready));
        }
    }

    /// Starts what is ready, or skips it for steering, one call to its end after the other. Steering does not take an
    /// approval back, whether it was given before the launch of the others or after it.
    fn launch(&mut self) {
        for index in self.indexes() {
            if self.has_status(index, CallStatus::Planned(Plan::Ready)) {
                let is_approved = self.call(index).is_some_and(|call| call.marks.is_approved());
                if !self.is_steered() || is_approved {
                    self.start(index);
                } else if !self.is_skipping() {
                    self.conclude(index, skipped_result(), Ending::Skipped);
                }
            }
        }
    }

    /// The hook for every call looks at one that did not run.
    fn is_skipping(&self) -> bool {
        self.state.batch.iter().flat_map(|batch| &batch.calls).any(|call| match call.status {
            CallStatus::Judged { .. } => !call.marks.is_started(),
            CallStatus::Planned(_)
            | CallStatus::AwaitingApproval
            | CallStatus::Started
            | CallStatus::Unknown
            | CallStatus::Ended(_) => false,
        })
    }

    /// What was prepared ends first, with its messages; then the calls that nobody has looked at, one by one.
    fn abort_parallel(&mut self, turn: u32) {
        self.enter_batch(turn, BatchStage::Running);
        for index in self.indexes() {
            if self.is_shown(index) && !self.is_skipping() {
                self.abort_call(index);
            }
        }
        let shown: Vec<u16> = self.indexes().filter(|&index| self.is_shown(index)).collect();
        let has_unended =
            shown.iter().any(|&index| self.call(index).is_some_and(|call| !call.status.is_ended()));
        if has_unended {
            return;
        }
        for index in shown {
            if self.call(index).is_some_and(|call| !call.marks.is_answered()) {
                self.show_result(index);
            }
        }
        self.pump_in_order(turn, None);
    }

    /// Ends a call that has not run, because of an abort. One that runs is ended by the engine, which says
    /// so.
    fn abort_call(&mut self, index: u16) {
        let Some(status) = self.call(index).map(|call| call.status) else { return };
        match status {
            CallStatus::Planned(Plan::Waiting | Plan::Ready | Plan::Refused)
            | CallStatus::AwaitingApproval => self.conclude(index, aborted_result(), Ending::Skipped),
            CallStatus::Unknown => self.conclude(index, unknown_result(), Ending::Done),
            CallStatus::Planned(Plan::Asking)
            | CallStatus::Started
            | CallStatus::Judged { .. }
            | CallStatus::Ended(_) => {}
        }
    }

    // ---- one after another
    // ----------------------------------------------------------------------------------------

    /// Takes the calls in order, each to the end. `polled` is the poll that was just answered, if one was.
    fn pump_in_order(&mut self, turn: u32, mut polled: Option<BatchStage>) {
        for index in self.indexes() {
            if self.call_in_order(turn, index, polled) == Moved::Waits {
                return self.park_if_stuck();
            }
            if polled.is_some_and(|stage| {
                stage == BatchStage::PollBefore { call: index }
                    || stage == BatchStage::PollReady { call: index }
            }) {
                polled = None;
            }
        }
        self.end_batch(turn);
    }

    /// One call, from the first look to its result message, as far as it goes.
    fn call_in_order(&mut self, turn: u32, index: u16, polled: Option<BatchStage>) -> Moved {
        if !self.is_shown(index) && self.begin_in_order(turn, index, polled) == Moved::Waits {
            return Moved::Waits;
        }
        let Some(call) = self.call(index).copied() else { return Moved::On };
        if self.is_aborting() {
            self.abort_call(index);
        } else if call.status == CallStatus::Planned(Plan::Ready)
            && self.run_in_order(turn, index, call.marks, polled) == Moved::Waits
        {
            return Moved::Waits;
        }
        let Some(call) = self.call(index).copied() else { return Moved::On };
        if !call.status.is_ended() {
            self.wait_in_order(turn, index);
            return Moved::Waits;
        }
        if !call.marks.is_answered() {
            self.show_result(index);
        }
        Moved::On
    }

    /// S1, then the first look at the call.
    fn begin_in_order(&mut self, turn: u32, index: u16, polled: Option<BatchStage>) -> Moved {
        let is_sequential =
            self.state.batch.as_ref().is_some_and(|batch| batch.mode == BatchMode::Sequential);
        let stage = BatchStage::PollBefore { call: index };
        if is_sequential && !self.is_aborting() && !self.is_steered() && polled != Some(stage) {
            if self.state.core.wants.has_sources {
                self.enter_batch(turn, stage);
                return Moved::Waits;
            }
            self.note_steering();
        }
        self.show_call(index);
        if self.is_cut_short(index) {
            self.conclude(index, aborted_result(), Ending::Skipped);
        } else if is_sequential && self.is_steered() {
            self.conclude(index, skipped_result(), Ending::Skipped);
        } else {
            self.prepare(index);
        }
        Moved::On
    }

    /// S2, then the launch. A call that a person approved is not asked about again.
    fn run_in_order(&mut self, turn: u32, index: u16, marks: CallMarks, polled: Option<BatchStage>) -> Moved {
        let stage = BatchStage::PollReady { call: index };
        if !marks.is_approved() && polled != Some(stage) {
            if self.state.core.wants.has_sources {
                self.enter_batch(turn, stage);
                return Moved::Waits;
            }
            self.note_steering();
        }
        if self.is_steered() && !marks.is_approved() {
            self.conclude(index, skipped_result(), Ending::Skipped);
        } else {
            self.start(index);
        }
        Moved::On
    }

    fn wait_in_order(&mut self, turn: u32, index: u16) {
        let is_preparing = self.call(index).is_some_and(|call| !call.marks.is_started());
        let stage = if is_preparing { BatchStage::Prepare { call: index } } else { BatchStage::Running };
        self.enter_batch(turn, stage);
    }

    // ---- both
    // -----------------------------------------------------------------------------------------------------

    fn is_every_call_ended(&self) -> bool {
        self.state.batch.as_ref().is_some_and(|batch| batch.calls.iter().all(|call| call.status.is_ended()))
    }

    /// A batch parks only when nothing of it can go on without a person.
    fn park_if_stuck(&mut self) {
        if self.stage().is_none_or(is_poll) {
            return;
        }
        let Some(batch) = &self.state.batch else { return };
        let is_moving = batch.calls.iter().any(|call| match call.status {
            CallStatus::Started | CallStatus::Judged { .. } | CallStatus::Planned(Plan::Asking) => true,
            CallStatus::Planned(_)
            | CallStatus::AwaitingApproval
            | CallStatus::Unknown
            | CallStatus::Ended(_) => false,
        });
        if is_moving {
            return;
        }
        let has = |status| batch.calls.iter().any(|call| call.status == status);
        if has(CallStatus::Unknown) {
            self.park(ParkReason::UnknownOutcome);
        } else if has(CallStatus::AwaitingApproval) {
            self.park(ParkReason::Approval);
        }
    }

    /// Every call has its result in the transcript; the turn ends.
    fn end_batch(&mut self, turn: u32) {
        let Some(batch) = self.state.batch.take() else { return };
        self.show_surplus(&batch);
        let kept = u32::try_from(batch.calls.len()).unwrap_or(u32::MAX);
        let all_terminate = batch.calls.iter().all(|call| call.marks.terminates());
        let terminates = kept > 0 && kept == batch.total && all_terminate;
        self.state.core.is_tainted |= batch.calls.iter().any(|call| call.marks.is_network());
        let has_error = batch.calls.iter().any(|call| call.marks.is_error());
        self.state.core.last_batch = if has_error { LastBatch::Failed } else { LastBatch::Settled };
        self.close_turn();
        let is_terminal = batch.mode == BatchMode::Intervened { is_terminal: true };
        let turn_end =
            TurnEnd { next: turn.saturating_add(1), wants_more: !terminates, is_steered: batch.is_steered };
        self.after_turn(turn_end, is_terminal);
    }

    /// Calls beyond the limit of a batch get an error result each and never run.
    fn show_surplus(&mut self, batch: &Batch) {
        let kept = u32::try_from(batch.calls.len()).unwrap_or(u32::MAX);
        for index in kept..batch.total {
            let text = format!(
                "This call was not run: an answer may ask for at most {} calls. Make it again in a later \
                 answer.",
                crate::limits::CALLS_MAX
            );
            self.results.push((index, ToolResult::error(text)));
            self.mark(Mark::ToolStart { call: index });
            self.mark(Mark::ToolEnd { call: index, is_started: false, is_invalid: false });
            self.show(Content::Result(index));
        }
    }
}

fn is_poll(stage: BatchStage) -> bool {
    match stage {
        BatchStage::PollBefore { .. } | BatchStage::PollReady { .. } | BatchStage::PollLaunch => true,
        BatchStage::Prepare { .. } | BatchStage::Running => false,
    }
}
