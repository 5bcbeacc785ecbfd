//! Names of things that the model crate leaves unnamed, as queries print them.
//!
//! Owns words only.

use model::RunId;
use model::input::{Hook, OnUnknown, Recovered, RecoveryClass, Resolution};

/// A call, as a person names it.
pub(super) fn call_name(run: RunId, turn: u32, call: u16) -> String {
    format!("{run}/{turn}.{call}")
}

pub(super) fn class_name(class: RecoveryClass) -> &'static str {
    match class {
        RecoveryClass::ReadOnly => "read_only",
        RecoveryClass::Keyed => "keyed",
        RecoveryClass::Adoptable => "adoptable",
        RecoveryClass::Probe => "probe",
        RecoveryClass::AtMostOnce => "at_most_once",
    }
}

pub(super) fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::BeforeAgentRun => "before_agent_run",
        Hook::BeforeToolBatch => "before_tool_batch",
        Hook::BeforeToolCall => "before_tool_call",
        Hook::AfterToolCall => "after_tool_call",
        Hook::AfterToolOutcome => "after_tool_outcome",
        Hook::PrepareNextTurn => "prepare_next_turn",
        Hook::ShouldStopAfterTurn => "should_stop_after_turn",
        Hook::BeforeFinalize => "before_finalize",
    }
}

pub(super) fn recovered_name(recovered: Recovered) -> &'static str {
    match recovered {
        Recovered::Repeated => "repeated",
        Recovered::Probed => "probed",
        Recovered::Adopted => "adopted",
        Recovered::Collected => "collected",
    }
}

pub(super) fn policy_name(policy: OnUnknown) -> &'static str {
    match policy {
        OnUnknown::Ask => "ask",
        OnUnknown::Tell => "tell",
        OnUnknown::Fail => "fail",
    }
}

pub(super) fn resolution_name(resolution: Resolution) -> &'static str {
    match resolution {
        Resolution::Ran => "ran",
        Resolution::Failed => "failed",
        Resolution::Retry => "retry",
        Resolution::Undone => "undone",
    }
}
