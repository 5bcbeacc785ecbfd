//! ExecuteTools: what each input does to one call of the batch.
//!
//! Owns the life of a call: planned, started, judged, ended, with exactly one result. What runs next is
//! decided by the pump beside this file. It must never change a call that has ended.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover};
use crate::guard::loops::{self, OutcomeFacts};
use crate::ids::Label;
use crate::input::{Approval, Fact, Hook, HookAnswer, HookCall, OnUnknown, RecoveryClass, Resolution};
use crate::message::ToolResult;
use crate::phase::BatchStage;
use crate::record::Mark;
use crate::state::{Abort, AbortCause, Call, CallStatus, Ending, Judge, Plan};

impl Mover<'_> {
    pub(super) fn execute(&mut self, turn: u32, stage: BatchStage, fact: &Fact) -> bool {
        let is_legal = match fact {
            Fact::Polled => return self.batch_polled(turn, stage),
            Fact::HookReturned { hook, answer } => self.call_hook(*hook, answer),
            Fact::ToolReturned { call, result, .. } => self.returned(*call, result),
            Fact::ToolUnknown { call, policy } => self.unknown(*call, *policy),
            Fact::ApprovalGiven { position, turn: of, call, decision } => {
                self.take_control(Some(*position));
                if *of == turn {
                    self.approval(*call, decision);
                }
                LEGAL
            }
            Fact::Resolved { position, turn: of, call, resolution, reason } => {
                self.take_control(Some(*position));
                if *of == turn {
                    self.resolved(*call, *resolution, reason);
                }
                LEGAL
            }
            Fact::CancelRequested { position, reason, is_handoff } => {
                self.note_cancel(&CancelRequest { position: *position, reason, is_handoff: *is_handoff });
                LEGAL
            }
            Fact::DeadlinePassed => {
                self.note_deadline();
                LEGAL
            }
            Fact::Resumed { epoch, boot_id, suspicion } => {
                self.note_owner(*epoch, *boot_id, *suspicion);
                return LEGAL;
            }
            Fact::Quarantined => return self.quarantine(),
            Fact::Stopped => return LEGAL,
            Fact::Missing { what } => {
                self.miss(what);
                return LEGAL;
            }
            Fact::Extended { position, by } => {
                self.extend(*position, *by);
                return LEGAL;
            }
            Fact::Released { position } => {
                self.take_stale(*position);
                return LEGAL;
            }
            Fact::Admitted(_)
            | Fact::Drained { .. }
            | Fact::RequestPrepared(_)
            | Fact::BudgetRefused(_)
            | Fact::StreamOpened
            | Fact::ModelAnswered { .. }
            | Fact::ModelFailed { .. }
            | Fact::ModelInterrupted { .. }
            | Fact::BatchAdmitted { .. }
            | Fact::TimerFired
            | Fact::CompactionPlanned { .. }
            | Fact::Compacted { .. }
            | Fact::CompactFailed { .. } => ILLEGAL,
        };
        if is_legal {
            self.pump(turn);
        }
        is_legal
    }

    pub(super) fn call(&self, index: u16) -> Option<&Call> {
        self.state.batch.as_ref()?.calls.get(usize::from(index))
    }

    pub(super) fn call_mut(&mut self, index: u16) -> Option<&mut Call> {
        self.state.batch.as_mut()?.calls.get_mut(usize::from(index))
    }

    pub(super) fn has_status(&self, index: u16, status: CallStatus) -> bool {
        self.call(index).is_some_and(|call| call.status == status)
    }

    pub(super) fn set_status(&mut self, index: u16, status: CallStatus) {
        if let Some(call) = self.call_mut(index) {
            call.status = status;
        }
    }

    pub(super) fn run_hash(&self) -> Option<loops::RunHash> {
        loops::RunHash::of(&self.state.core.run.to_string())
    }

    /// The body starts with this commit: from here on the call may have run.
    pub(super) fn start(&mut self, index: u16) {
        let run = self.run_hash();
        let Some(call) = self.call_mut(index) else { return };
        call.status = CallStatus::Started;
        call.marks.set_started(true);
        call.marks.set_other_boot(false);
        let (facts, class) = (call.facts, call.class);
        let id = self.call_id(index);
        self.state.window.record_call(run, &facts, id);
        let spent = &mut self.state.core.spent;
        spent.tool_calls = spent.tool_calls.saturating_add(1);
        // Tools in the process sync what they write before they answer.
        if class == RecoveryClass::Adoptable && !self.state.core.wants.syncs_files {
            self.state.core.files.unsynced_since.get_or_insert(self.at);
        }
    }

    /// Unique within the run: the turn and the index.
    fn call_id(&self, index: u16) -> Option<loops::CallHash> {
        loops::CallHash::of(&format!("{}.{index}", self.state.core.spent.turns))
    }

    /// Gives a call its result and lets the hook for every call look at it.
    pub(super) fn conclude(&mut self, index: u16, result: ToolResult, then: Ending) {
        if let Some(call) = self.call_mut(index) {
            call.marks.set_terminates(result.terminates);
            call.marks.set_network(result.is_network);
            call.marks.set_invalid(false);
        }
        self.results.push((u32::from(index), result));
        self.judge_outcome(index, then);
    }

    pub(super) fn judge_outcome(&mut self, index: u16, then: Ending) {
        if self.state.core.wants.hook(Hook::AfterToolOutcome) {
            self.set_status(index, CallStatus::Judged { hook: Judge::AfterToolOutcome, then });
        } else {
            self.end_call(index, then);
        }
    }

    fn end_call(&mut self, index: u16, then: Ending) {
        let Some(call) = self.call_mut(index) else { return };
        call.status = CallStatus::Ended(then);
        let (is_started, is_invalid) = (call.marks.is_started(), call.marks.is_invalid());
        self.mark(Mark::ToolEnd { call: u32::from(index), is_started, is_invalid });
    }

    /// A call that will never run is remembered by the detectors too, so that repeating it is seen.
    pub(super) fn record_refused(&mut self, index: u16, text: &str) {
        self.record_unrun(index, &ToolResult::error(text));
    }

    /// The same for a call with any result.
    pub(super) fn record_unrun(&mut self, index: u16, result: &ToolResult) {
        let (run, id) = (self.run_hash(), self.call_id(index));
        let Some(facts) = self.call(index).map(|call| call.facts) else { return };
        self.state.window.record_call(run, &facts, id);
        self.state.window.record_outcome(run, &facts, id, outcome_facts(&facts, result));
    }

    fn returned(&mut self, index: u16, result: &ToolResult) -> bool {
        if !self.has_status(index, CallStatus::Started) {
            return ILLEGAL;
        }
        let (run, id) = (self.run_hash(), self.call_id(index));
        let is_network = result.is_network && !self.is_cancelled_by_caller(result);
        if result.is_network && !is_network {
            let result = ToolResult { is_network, ..result.clone() };
            self.results.push((u32::from(index), result));
        }
        let Some(call) = self.call_mut(index) else { return ILLEGAL };
        call.marks.set_terminates(result.terminates);
        call.marks.set_network(is_network);
        let facts = call.facts;
        self.state.window.record_outcome(run, &facts, id, outcome_facts(&facts, result));
        let then = Ending::Done;
        if self.state.core.wants.hook(Hook::AfterToolCall) {
            self.set_status(index, CallStatus::Judged { hook: Judge::AfterToolCall, then });
        } else {
            self.judge_outcome(index, then);
        }
        LEGAL
    }

    /// The result is nothing but the abort itself, given back: it holds no content of the tool's.
    fn is_cancelled_by_caller(&self, result: &ToolResult) -> bool {
        let Some(abort) = &self.state.core.abort else { return false };
        let text = result.joined_text();
        result.is_error && (text == ABORTED || Label::from(text.as_str()) == abort.reason)
    }

    fn unknown(&mut self, index: u16, policy: OnUnknown) -> bool {
        if !self.has_status(index, CallStatus::Started) {
            return ILLEGAL;
        }
        if let Some(Call { facts, class, .. }) = self.call(index).copied() {
            let epoch = self.state.core.owner.epoch;
            self.state.core.crashes.lose(facts.key, class, epoch);
        }
        match policy {
            OnUnknown::Ask => self.set_status(index, CallStatus::Unknown),
            OnUnknown::Tell => self.conclude(index, unknown_result(), Ending::Done),
            OnUnknown::Fail => {
                let reason = Label::from("the outcome of a tool call is unknown");
                self.state.core.abort.get_or_insert(Abort { cause: AbortCause::UnknownOutcome, reason });
                self.conclude(index, unknown_result(), Ending::Done);
            }
        }
        LEGAL
    }

    /// Carries a person's decision out; false if the call does not wait for one.
    pub(super) fn approval(&mut self, index: u16, decision: &Approval) -> bool {
        if !self.has_status(index, CallStatus::AwaitingApproval) {
            return false;
        }
        match decision {
            Approval::Approve => {
                if let Some(call) = self.call_mut(index) {
                    call.marks.set_approved(true);
                    call.status = CallStatus::Planned(Plan::Ready);
                }
            }
            Approval::Deny(reason) => {
                let text = if reason.as_str().is_empty() {
                    "A person denied this call.".to_owned()
                } else {
                    format!("A person denied this call: {reason}")
                };
                self.record_refused(index, &text);
                self.conclude(index, ToolResult::error(text), Ending::Blocked);
            }
        }
        true
    }

    /// Carries a person's decision out; false if the call does not wait for one.
    pub(super) fn resolved(&mut self, index: u16, resolution: Resolution, reason: &Label) -> bool {
        if !self.has_status(index, CallStatus::Unknown) {
            return false;
        }
        if let Some(call) = self.call(index).copied() {
            self.state.core.crashes.find(call.facts.key);
        }
        let text = |what: &str| {
            format!("The engine stopped while this call ran. A person looked: {what} ({reason})")
        };
        match resolution {
            Resolution::Ran => self.conclude(index, ToolResult::text(text("it ran")), Ending::Done),
            Resolution::Failed => {
                self.conclude(index, ToolResult::error(text("it ran and failed")), Ending::Done);
            }
            Resolution::Undone => {
                self.conclude(index, ToolResult::error(text("what it did was undone")), Ending::Done);
            }
            Resolution::Retry => {
                if let Some(call) = self.call_mut(index) {
                    call.marks.set_approved(true);
                    call.status = CallStatus::Planned(Plan::Ready);
                }
            }
        }
        true
    }

    fn call_hook(&mut self, hook: HookCall, answer: &HookAnswer) -> bool {
        let Some(index) = hook.call else { return ILLEGAL };
        let Some(status) = self.call(index).map(|call| call.status) else { return ILLEGAL };
        match status {
            CallStatus::Planned(Plan::Asking) => self.before_call(index, answer),
            CallStatus::Judged { hook, then } => self.judged(index, hook, then, answer),
            CallStatus::Planned(Plan::Waiting | Plan::Ready | Plan::Refused)
            | CallStatus::AwaitingApproval
            | CallStatus::Started
            | CallStatus::Unknown
            | CallStatus::Ended(_) => ILLEGAL,
        }
    }

    fn judged(&mut self, index: u16, judge: Judge, then: Ending, answer: &HookAnswer) -> bool {
        if !self.take_judgement(index, judge, answer) {
            return ILLEGAL;
        }
        match judge {
            Judge::AfterToolCall => self.judge_outcome(index, then),
            Judge::AfterToolOutcome => self.end_call(index, then),
        }
        LEGAL
    }

    /// The result as the hook left it. A hook that fails turns it into its error.
    fn take_judgement(&mut self, index: u16, judge: Judge, answer: &HookAnswer) -> bool {
        let Some(call) = self.call_mut(index) else { return ILLEGAL };
        match answer {
            HookAnswer::Proceed => {}
            HookAnswer::Result(result) => {
                call.marks.set_terminates(result.terminates);
                call.marks.set_network(result.is_network && call.marks.is_started());
            }
            HookAnswer::Failed(text) => {
                match judge {
                    Judge::AfterToolCall => call.marks.set_terminates(false),
                    Judge::AfterToolOutcome => {}
                }
                let result = ToolResult {
                    terminates: call.marks.terminates(),
                    is_network: call.marks.is_network(),
                    ..ToolResult::error(text.clone())
                };
                self.results.push((u32::from(index), result));
            }
            HookAnswer::Block(_)
            | HookAnswer::Ask(_)
            | HookAnswer::Intervene(_)
            | HookAnswer::Next(_)
            | HookAnswer::Stop
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }

    fn before_call(&mut self, index: u16, answer: &HookAnswer) -> bool {
        if self.is_aborting() {
            self.conclude(index, aborted_result(), Ending::Skipped);
            return LEGAL;
        }
        match answer {
            HookAnswer::Proceed => self.prepared(index),
            HookAnswer::Ask(_) => self.set_status(index, CallStatus::AwaitingApproval),
            HookAnswer::Block(reason) => {
                let text = if reason.is_empty() { "Tool execution was blocked" } else { reason.as_str() };
                self.record_refused(index, text);
                self.conclude(index, ToolResult::error(text), Ending::Blocked);
            }
            HookAnswer::Failed(text) => {
                self.record_refused(index, text);
                self.conclude(index, ToolResult::error(text.clone()), Ending::Blocked);
            }
            HookAnswer::Intervene(_)
            | HookAnswer::Result(_)
            | HookAnswer::Next(_)
            | HookAnswer::Stop
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }
}

/// The text of a call that an abort kept from running, or ended; the words are the reference's.
const ABORTED: &str = "Operation aborted";

/// The result of a call that an abort kept from running.
pub(super) fn aborted_result() -> ToolResult {
    ToolResult::error(ABORTED)
}

/// The result of a call that steering kept from running.
pub(super) fn skipped_result() -> ToolResult {
    let details = serde_json::json!({ "status": "skipped", "deniedReason": "steering" });
    ToolResult::error("Skipped due to queued user message.").with_details(&details)
}

/// The result of a call whose outcome nobody knows.
pub(super) fn unknown_result() -> ToolResult {
    let details = serde_json::json!({ "status": "unknown" });
    ToolResult::error(
        "The engine stopped while this call ran, and its outcome is not known: it may have had its effect, a \
         part of it, or none. Look before you do it again.",
    )
    .with_details(&details)
}

/// What the loop detectors keep of a result. An error result counts as the error that it reports.
fn outcome_facts(facts: &loops::CallFacts, result: &ToolResult) -> OutcomeFacts {
    if result.is_error && result.details.is_empty_object() {
        return loops::classify(facts, loops::ToolOutcome::Error(&result.joined_text()));
    }
    loops::classify(facts, loops::ToolOutcome::Result(&result.to_json()))
}
