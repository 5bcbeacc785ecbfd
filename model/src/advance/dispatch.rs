//! Dispatch: the calls of an answer are admitted as one batch, or blocked as one.
//!
//! Owns the admission of batches. It must never start a call.

use super::{CancelRequest, ILLEGAL, LEGAL, Mover};
use crate::guard::loops::{self, CallFacts};
use crate::ids::JsonText;
use crate::input::{CallPlan, CallVerdict, Fact, Hook, HookAnswer, Intervention};
use crate::limits::CALLS_MAX;
use crate::message::ToolResult;
use crate::phase::{DispatchStage, Phase};
use crate::state::{Batch, BatchMode, Call, CallMarks, CallStatus, Plan};

impl Mover<'_> {
    pub(super) fn dispatch(&mut self, turn: u32, stage: DispatchStage, fact: &Fact) -> bool {
        match fact {
            Fact::BatchAdmitted { calls, total, is_sequential }
                if stage == DispatchStage::Resolve && is_whole(calls, *total) =>
            {
                self.admit_batch(turn, calls, *total, *is_sequential);
            }
            Fact::HookReturned { hook: _, answer } => return self.batch_hook(turn, answer),
            // Carried out while the batch is prepared, so that every call gets its result.
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
            | Fact::Polled
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

    fn admit_batch(&mut self, turn: u32, plans: &[CallPlan], total: u32, is_sequential: bool) {
        let mode = if is_sequential { BatchMode::Sequential } else { BatchMode::Parallel };
        let mut batch = Batch { calls: Vec::new(), total, mode, is_vetted: false, is_steered: false };
        for (index, plan) in (0u32..).zip(plans.iter().take(CALLS_MAX)) {
            batch.calls.push(self.planned_call(index, plan));
        }
        self.state.batch = Some(batch);
        if self.is_aborting() {
            return self.begin_batch(turn);
        }
        if let Some(intervention) = self.find_loop(plans) {
            return self.intervene(turn, &intervention);
        }
        self.record_refusals(plans);
        let is_any_valid = plans.iter().any(|plan| plan.verdict == CallVerdict::Valid);
        if self.state.core.wants.hook(Hook::BeforeToolBatch) && is_any_valid {
            self.enter(Phase::Dispatch { turn, stage: DispatchStage::Hook });
        } else {
            self.begin_batch(turn);
        }
    }

    /// The call as the batch keeps it. A call that will not run gets its result now: its text is known only
    /// here.
    fn planned_call(&mut self, index: u32, plan: &CallPlan) -> Call {
        let mut marks = CallMarks::default();
        let (plan_status, result) = match &plan.verdict {
            CallVerdict::Valid => (Plan::Waiting, None),
            CallVerdict::Unknown => {
                (Plan::Refused, Some(ToolResult::error(format!("Tool {} not found", plan.tool))))
            }
            CallVerdict::Invalid(text) => {
                marks.set_invalid(true);
                (Plan::Refused, Some(ToolResult::error(text.clone())))
            }
            CallVerdict::Refused(text) => (Plan::Refused, Some(ToolResult::error(text.clone()))),
            CallVerdict::Duplicate => {
                let text = "This call repeats the id of an earlier call in the same answer and was not run. \
                            Give every call an id of its own.";
                (Plan::Refused, Some(ToolResult::error(text)))
            }
            CallVerdict::Immediate(result) => {
                marks.set_terminates(result.terminates);
                marks.set_immediate(true);
                (Plan::Waiting, Some(result.clone()))
            }
        };
        if let Some(result) = result {
            self.results.push((index, result));
        }
        Call { status: CallStatus::Planned(plan_status), facts: plan.facts, class: plan.class, marks }
    }

    /// Asks the loop detectors about the batch, and gives the warnings that are due.
    fn find_loop(&mut self, plans: &[CallPlan]) -> Option<Intervention> {
        if !self.state.core.wants.loop_detection {
            return None;
        }
        let run = self.run_hash();
        let asked: Vec<&CallPlan> =
            plans.iter().filter(|plan| plan.verdict != CallVerdict::Duplicate).take(CALLS_MAX).collect();
        let facts: Vec<CallFacts> = asked.iter().map(|plan| plan.facts).collect();
        let admission = self.state.window.admit(run, &facts);
        for warning in &admission.warnings {
            // Kept so that it is reported once a bucket; the report itself reads the state.
            self.state.warnings.is_new(warning);
        }
        let loops::Intervention { place, finding } = admission.intervention?;
        let plan = asked.get(place)?;
        let ids = asked.iter().map(|plan| (plan.facts, loops::CallHash::of(plan.id.as_str())));
        self.state.window.record_vetoes(run, ids, plan.facts.key);
        Some(intervention(plan, plans, finding))
    }

    /// Calls that will never run are remembered by the detectors too, so that repeating them is seen.
    fn record_refusals(&mut self, plans: &[CallPlan]) {
        if !self.state.core.wants.loop_detection {
            return;
        }
        let results = self.results.clone();
        for (index, plan) in (0u16..).zip(plans.iter().take(CALLS_MAX)) {
            let is_recorded = match &plan.verdict {
                CallVerdict::Unknown
                | CallVerdict::Invalid(_)
                | CallVerdict::Refused(_)
                | CallVerdict::Immediate(_) => true,
                CallVerdict::Valid | CallVerdict::Duplicate => false,
            };
            let result = results.iter().find(|(call, _)| *call == u32::from(index));
            if let Some((_, result)) = result.filter(|_| is_recorded) {
                self.record_unrun(index, result);
            }
        }
    }

    fn batch_hook(&mut self, turn: u32, answer: &HookAnswer) -> bool {
        match answer {
            // Under an abort too: every call is told why it was blocked, and the abort follows after the turn.
            HookAnswer::Intervene(intervention) => self.intervene(turn, intervention),
            // The hook fails closed: its own failure blocks the batch as a critical loop would.
            HookAnswer::Failed(text) => self.intervene(turn, &failed_hook(text)),
            HookAnswer::Proceed => {
                if let Some(batch) = &mut self.state.batch {
                    batch.is_vetted = true;
                }
                self.begin_batch(turn);
            }
            HookAnswer::Block(_)
            | HookAnswer::Ask(_)
            | HookAnswer::Result(_)
            | HookAnswer::Next(_)
            | HookAnswer::Stop
            | HookAnswer::Revise(_) => return ILLEGAL,
        }
        LEGAL
    }

    /// Nothing of the batch runs; every call is told why. The second time in a run, the run ends after it.
    fn intervene(&mut self, turn: u32, intervention: &Intervention) {
        let is_terminal = self.state.core.critical_tool_loop_seen;
        self.state.core.critical_tool_loop_seen = true;
        let Some(batch) = &mut self.state.batch else { return };
        batch.mode = BatchMode::Intervened { is_terminal };
        let details = serde_json::json!({
            "status": "blocked", "deniedReason": "tool-loop", "intervention": intervention.details.value(),
        });
        let (trigger, other) = blocked_texts(intervention, is_terminal);
        for (index, call) in (0u16..).zip(&mut batch.calls) {
            call.status = CallStatus::Planned(Plan::Refused);
            call.marks.set_invalid(false);
            call.marks.set_terminates(is_terminal);
            let text = if index == intervention.call { trigger.clone() } else { other.clone() };
            let result =
                ToolResult { terminates: is_terminal, ..ToolResult::error(text) }.with_details(&details);
            self.results.push((u32::from(index), result));
        }
        self.begin_batch(turn);
    }
}

/// Every call of the answer is planned, or as many as a batch may have.
fn is_whole(plans: &[CallPlan], total: u32) -> bool {
    usize::try_from(total).is_ok_and(|total| plans.len() == total.min(CALLS_MAX))
}

fn intervention(plan: &CallPlan, plans: &[CallPlan], finding: loops::Finding) -> Intervention {
    let reason = loops::reason(finding.detector, plan.tool.as_str(), finding.count, Some(plan.tool.as_str()));
    let action: String = plan.facts.key.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let details = serde_json::json!({
        "kind": "critical-tool-loop", "toolCallId": plan.id.as_str(), "toolName": plan.tool.as_str(),
        "actionKey": action, "detector": finding.detector.name(), "count": finding.count, "reason": reason,
    });
    let call = plans.iter().position(|other| std::ptr::eq(other, plan)).unwrap_or(0);
    Intervention { call: u16::try_from(call).unwrap_or(u16::MAX), reason, details: JsonText::from(&details) }
}

fn failed_hook(text: &str) -> Intervention {
    let reason = format!("The batch was blocked because its check failed: {text}");
    let details = serde_json::json!({
        "kind": "critical-tool-loop", "detector": "loop_admission_failure", "count": 1, "reason": reason,
    });
    Intervention { call: 0, reason, details: JsonText::from(&details) }
}

/// What the model is told of the call that goes in circles, and of every other call of its answer.
fn blocked_texts(intervention: &Intervention, is_terminal: bool) -> (String, String) {
    let Intervention { reason, details, .. } = intervention;
    let found = details.value();
    let tool = found["toolName"].as_str().filter(|tool| !tool.is_empty());
    let tool = tool.map_or_else(String::new, |tool| format!("`{tool}`: "));
    let by = match (found["detector"].as_str(), found["count"].as_u64()) {
        (Some(detector), Some(count)) => format!(" ({tool}{detector}, counted {count})"),
        (Some(_) | None, _) => String::new(),
    };
    let other = format!("This call was not run, because another call of the same answer was blocked{by}.");
    if is_terminal {
        let end = "It is the second critical loop of this run, which ends now.";
        return (format!("{reason}\n\nThis call was not run. {end}"), format!("{other} {end}"));
    }
    (
        format!(
            "{reason}\n\nThis call was not run. Do not make it again as it is, a second loop ends this run: think \
             about the task anew, then answer, ask, or go on with another tool or other arguments."
        ),
        format!(
            "{other} Think about the task anew before the next step. You may make this call again without the other one, \
             or answer, or ask."
        ),
    )
}
