//! What happened, in a few words.
//!
//! Owns the details that `journal` prints beside the name of an input or of an inbox item. They must never be
//! longer than a line.

use model::Fact;
use model::inbox::Control;
use model::input::{Approval, CallVerdict, Extension, HookAnswer, HookCall, Recovered, Suspicion};
use model::message::AssistantMessage;

use super::names::{hook_name, policy_name, recovered_name, resolution_name};
use super::recent::failure_text;

/// Characters of a text that a line has room for.
const TEXT_CHARS_MAX: usize = 80;

/// The beginning of a text, on one line.
pub(super) fn short(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= TEXT_CHARS_MAX {
        return line;
    }
    let cut: String = line.chars().take(TEXT_CHARS_MAX).collect();
    format!("{cut}…")
}

/// The details of a fact; empty if its name says all.
pub(super) fn details(fact: &Fact) -> String {
    match fact {
        Fact::Admitted(admission) => match admission.previous {
            Some(previous) => format!("after run {previous}"),
            None => String::new(),
        },
        Fact::Drained { items } => {
            let withdrawn = items.iter().filter(|item| item.is_withdrawn).count();
            match withdrawn {
                0 => counted(items.len(), "message"),
                1.. => format!("{}, {withdrawn} withdrawn", counted(items.len(), "message")),
            }
        }
        Fact::RequestPrepared(request) => {
            let digits: String = request.hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
            match request.profile {
                0 => format!("request {digits}"),
                profile => format!("request {digits}, profile {profile}"),
            }
        }
        Fact::ModelAnswered { message } => answer(message),
        Fact::ModelFailed { failure, .. } => short(&failure_text(failure)),
        Fact::ModelInterrupted { usage } => match usage {
            Some(usage) => format!("{} tokens", usage.tokens()),
            None => "charged as reserved".to_owned(),
        },
        Fact::BatchAdmitted { calls, total, is_sequential } => {
            let total = usize::try_from(*total).unwrap_or(usize::MAX);
            let refused = calls.iter().filter(|call| call.verdict != CallVerdict::Valid).count();
            let mode = if *is_sequential { "sequential" } else { "parallel" };
            format!("{}, {refused} refused, {mode}", counted(total, "call"))
        }
        Fact::HookReturned { hook, answer } => format!("{}: {}", hook_call(hook), hook_answer(answer)),
        Fact::ToolReturned { call, result, recovered } => {
            let outcome = if result.is_error { "error" } else { "ok" };
            let how = recovered.map(recovered_text).unwrap_or_default();
            format!("call {call}: {outcome}{how}")
        }
        Fact::ToolUnknown { call, policy } => format!("call {call}: {}", policy_name(*policy)),
        Fact::ApprovalGiven { turn, call, decision, .. } => approval(*turn, *call, decision),
        Fact::Resolved { turn, call, resolution, reason, .. } => {
            short(&format!("call {turn}.{call}: {}: {reason}", resolution_name(*resolution)))
        }
        Fact::CancelRequested { reason, is_handoff, .. } => {
            let how = if *is_handoff { "handoff: " } else { "" };
            short(&format!("{how}{reason}"))
        }
        Fact::Resumed { epoch, suspicion, .. } => match suspicion {
            Suspicion::None => format!("epoch {epoch}"),
            Suspicion::Shared => format!("epoch {epoch}, after an unclean end"),
            Suspicion::Alone => format!("epoch {epoch}, after another unclean end, alone"),
        },
        Fact::CompactionPlanned { first_kept } => {
            format!("keeps from record {} of run {}", first_kept.seq, first_kept.run)
        }
        Fact::Compacted { summary } => short(&summary.joined_text()),
        Fact::CompactFailed { reason } => short(reason.as_str()),
        Fact::Missing { what } => short(what.as_str()),
        Fact::Released { position } => match position {
            Some(_) => String::new(),
            None => "found again".to_owned(),
        },
        Fact::Extended { by, .. } => extension(by),
        Fact::BudgetRefused(shortage) => format!("{shortage}, {} short", shortage.lacks),
        Fact::Polled | Fact::StreamOpened | Fact::TimerFired | Fact::DeadlinePassed | Fact::Stopped => {
            String::new()
        }
        Fact::Quarantined => String::new(),
    }
}

/// The name of a decision, and its details.
pub(super) fn decision(control: &Control) -> (&'static str, String) {
    match control {
        Control::Cancel { reason } => ("cancel", short(reason.as_str())),
        Control::Approve { turn, call, decision } => ("approve", approval(*turn, *call, decision)),
        Control::Resolve { turn, call, resolution, reason } => {
            let text = format!("call {turn}.{call}: {}: {reason}", resolution_name(*resolution));
            ("resolve", short(&text))
        }
        Control::Release => ("release", String::new()),
        Control::Extend(by) => ("extend", extension(by)),
    }
}

/// The number of things.
pub(super) fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn answer(message: &AssistantMessage) -> String {
    let tokens = message.usage.tokens();
    let calls = counted(message.calls().count(), "call");
    format!("{}, {calls}, {tokens} tokens", message.stop_reason.name())
}

fn recovered_text(recovered: Recovered) -> String {
    format!(", {}", recovered_name(recovered))
}

fn approval(turn: u32, call: u16, decision: &Approval) -> String {
    match decision {
        Approval::Approve => format!("call {turn}.{call}: approved"),
        Approval::Deny(reason) => short(&format!("call {turn}.{call}: denied: {reason}")),
    }
}

fn hook_call(hook: &HookCall) -> String {
    match hook.call {
        Some(call) => format!("{} on call {call}", hook_name(hook.hook)),
        None => hook_name(hook.hook).to_owned(),
    }
}

fn hook_answer(answer: &HookAnswer) -> String {
    match answer {
        HookAnswer::Proceed => "proceed".to_owned(),
        HookAnswer::Failed(text) => short(&format!("failed: {text}")),
        HookAnswer::Block(reason) => short(&format!("block: {reason}")),
        HookAnswer::Ask(reason) => short(&format!("ask: {reason}")),
        HookAnswer::Intervene(intervention) => {
            short(&format!("intervene on call {}: {}", intervention.call, intervention.reason))
        }
        HookAnswer::Result(_) => "result".to_owned(),
        HookAnswer::Next(_) => "next".to_owned(),
        HookAnswer::Stop => "stop".to_owned(),
        HookAnswer::Revise(reason) => short(&format!("revise: {reason}")),
    }
}

/// What was added to which limits.
fn extension(by: &Extension) -> String {
    let Extension { time_ms, usd_micros, tokens, calls, turns } = *by;
    let added = [
        (time_ms, format!("{} s", time_ms / 1000)),
        (usd_micros, format!("{} usd", usd_micros as f64 / 1e6)),
        (tokens, format!("{tokens} tokens")),
        (calls, format!("{calls} calls")),
        (turns, format!("{turns} turns")),
    ];
    let added: Vec<String> =
        added.into_iter().filter(|(by, _)| *by > 0).map(|(_, text)| format!("+{text}")).collect();
    added.join(", ")
}
