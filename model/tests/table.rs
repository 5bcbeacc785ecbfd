//! Every stage of every phase and every kind of fact: what is legal, and which phase follows.
//!
//! The table is the reviewed file `table.txt`; run with `BLESS=1` and review the difference.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use model::effect::Effect;
use model::phase::{ParkReason, Phase};
use support::{HOOKS, Script, assert_reviewed};

/// Each stage: how a run gets there.
const STAGES: [(&str, &str); 37] = [
    ("", ""),
    ("hooks=before_agent_run", "admitted"),
    ("", "admitted"),
    ("sources", "admitted; drained 0"),
    ("sources", "admitted; drained 0; polled +s"),
    ("", "admitted; drained 0; prepared; answered text +f"),
    ("", "admitted; drained 0"),
    ("", "admitted; drained 0; prepared"),
    ("", "admitted; drained 0; prepared; opened"),
    ("", "admitted; drained 0; prepared; failed connection"),
    ("", "admitted; drained 0; prepared; answered calls 2"),
    ("hooks=before_tool_batch", "admitted; drained 0; prepared; answered calls 2; batch valid"),
    ("sources", "admitted; drained 0; polled; prepared; answered calls 2; batch sequential valid"),
    ("hooks=before_tool_call", "admitted; drained 0; prepared; answered calls 2; batch valid"),
    ("hooks=after_tool_outcome", "admitted; drained 0; prepared; answered calls 2; batch missing"),
    ("sources", "admitted; drained 0; polled; prepared; answered calls 2; batch sequential valid; polled"),
    ("sources", "admitted; drained 0; polled; prepared; answered calls 2; batch valid"),
    ("", "admitted; drained 0; prepared; answered calls 2; batch valid"),
    ("hooks=after_tool_call", "admitted; drained 0; prepared; answered calls 2; batch valid; returned 0"),
    ("hooks=after_tool_outcome", "admitted; drained 0; prepared; answered calls 2; batch valid; returned 0"),
    (
        "hooks=before_tool_call",
        "admitted; drained 0; prepared; answered calls 2; batch valid; hook before_tool_call.0 ask; \
         hook before_tool_call.1 proceed",
    ),
    ("", "admitted; drained 0; prepared; answered calls 2; batch valid; unknown 0 ask"),
    ("hooks=prepare_next_turn", "admitted; drained 0; prepared; answered text"),
    ("hooks=should_stop_after_turn", "admitted; drained 0; prepared; answered text"),
    ("sources", "admitted; drained 0; polled; prepared; answered text"),
    ("sources", "admitted; drained 0; polled; prepared; answered text; polled"),
    ("sources", "admitted; drained 0; polled; prepared; answered text; polled; polled"),
    ("hooks=before_finalize", "admitted; drained 0; prepared; answered text"),
    ("compacts", "admitted; drained 0; prepared; failed context_overflow"),
    ("compacts", "admitted; drained 0; prepared; failed context_overflow; planned"),
    (
        "hooks=before_tool_call",
        "admitted; drained 0; prepared; answered calls 1; batch valid; hook before_tool_call.0 ask",
    ),
    ("", "admitted; drained 0; prepared; answered calls 1; batch valid; unknown 0 ask"),
    ("tokens=1", "admitted; drained 0; prepared 2"),
    ("", "admitted; drained 0; budget_refused"),
    ("", "missing the key"),
    ("", "admitted; drained 0; missing the key; quarantined"),
    ("", "cancel"),
];

/// Each kind of fact, plausible for call 0; what is said to a hook depends on the stage.
const FACTS: [&str; 27] = [
    "admitted",
    "polled",
    "drained 0",
    "prepared",
    "opened",
    "answered text",
    "failed connection",
    "lost",
    "batch valid",
    "hook",
    "returned 0",
    "unknown 0 ask",
    "approve 0",
    "resolve 0 ran",
    "timer",
    "deadline",
    "cancel",
    "resumed",
    "stopped",
    "planned",
    "compacted",
    "compact_failed too small",
    "missing the workspace",
    "released",
    "extended tokens=1",
    "budget_refused",
    "quarantined",
];

#[test]
fn every_stage_answers_every_fact() {
    let mut table = String::new();
    for (header, inputs) in STAGES {
        let stage = run_to(header, inputs).state.core.phase;
        table += &format!("{}\n", describe(&stage, header, inputs));
        let mut rejected = Vec::new();
        for fact in FACTS {
            let mut script = run_to(header, inputs);
            if fact == "quarantined" {
                script.state.core.crashes.since_turn = u8::MAX;
            }
            let text = if fact == "hook" { hook_asked(&script) } else { fact.to_owned() };
            let input = script.input(&text);
            let name = input.fact.name();
            if script.feed_input(input) {
                table += &format!("  {name:<18} -> {}\n", script.state.core.phase);
            } else {
                rejected.push(name);
            }
        }
        table += &format!("  rejected: {}\n\n", rejected.join(" "));
    }
    assert_reviewed("table.txt", &table);
}

#[test]
fn every_kind_of_fact_is_in_the_table() {
    let mut script = Script::new("");
    let mut names: Vec<&str> = FACTS
        .iter()
        .map(|fact| if *fact == "hook" { "hook before_finalize proceed" } else { fact })
        .map(|text| script.input(text).fact.name())
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FACTS.len());
}

fn describe(stage: &Phase, header: &str, inputs: &str) -> String {
    let last = inputs.rsplit("; ").next().unwrap_or("");
    let after = if last.is_empty() { "submitted" } else { last };
    let wants = if header.is_empty() { String::new() } else { format!(", {header}") };
    format!("{stage}  (after `{after}`{wants})")
}

/// No input of a run alone quarantines it; the table has that stage all the same.
fn run_to(header: &str, inputs: &str) -> Script {
    let Some(inputs) = inputs.strip_suffix("; quarantined") else { return Script::after(header, inputs) };
    let mut script = Script::after(header, inputs);
    if let Phase::Parked { reason, .. } = &mut script.state.core.phase {
        *reason = ParkReason::Quarantine;
    }
    script
}

/// The answer `proceed` to the hook that is asked, or to some other if none is.
fn hook_asked(script: &Script) -> String {
    let effects = script.state.effects();
    let asked = effects.iter().find(|effect| matches!(effect, Effect::RunHook(_)));
    let Some(Effect::RunHook(asked)) = asked else { return "hook before_tool_call.0 proceed".to_owned() };
    let name = HOOKS.iter().find(|(_, hook)| *hook == asked.hook).map_or("", |(name, _)| name);
    let call = asked.call.map_or_else(String::new, |call| format!(".{call}"));
    format!("hook {name}{call} proceed")
}
