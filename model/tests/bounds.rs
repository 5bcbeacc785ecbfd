//! The state stays small whatever a model, a tool or a person does: each part at its largest.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use model::encode::{Encoded, Part};
use model::guard::crashes::{Crashes, LOST_CALLS_MAX, LostCall, PhaseKind, Place};
use model::guard::loops::{
    CallHash, OutcomeFacts, RunHash, Settled, ToolKind, ToolOutcome, WARNING_KEYS_MAX, WINDOW_SLOTS_MAX,
    Window, call_facts, classify,
};
use model::guard::retry::{Instruction, Retries};
use model::input::{Fact, Input, Routes, Waiting};
use model::limits::{CALLS_MAX, CORE_BYTES_MAX, PART_BYTES_MAX};
use model::message::Usage;
use model::phase::{CompactStage, EntryRef, ParkReason, Phase};
use model::state::{
    Abort, AbortCause, ContextFrom, Cursors, Deadline, Limits, OpenEnds, Owner, Spent, Wants,
};
use model::{Label, Millis, RunId, RunState};
use serde_json::json;
use support::{Script, submitted};

fn bytes_of(state: &RunState, part: Part) -> usize {
    let (_, parts) = Encoded::all(state);
    parts
        .into_iter()
        .find(|(found, _)| *found == part)
        .and_then(|(_, bytes)| bytes)
        .map_or(0, |bytes| bytes.len())
}

fn longest_label() -> Label {
    let label = Label::from("é".repeat(200).as_str());
    assert_eq!(label.as_str().len(), Label::BYTES_MAX);
    label
}

fn largest_usage() -> Usage {
    Usage {
        input: u64::MAX,
        output: u64::MAX,
        cache_read: u64::MAX,
        cache_write: u64::MAX,
        usd_micros: u64::MAX,
    }
}

/// A core in which every number takes the most bytes and every label is as long as labels get.
fn largest_core() -> RunState {
    let entry = EntryRef { run: RunId([0xff; 16]), seq: u64::MAX, n: u32::MAX };
    let wants = Wants { hooks: u16::MAX, ..Wants::default() };
    let limits = Limits {
        time_ms: u64::MAX,
        turns: u64::MAX,
        calls: u64::MAX,
        tokens: u64::MAX,
        usd_micros: u64::MAX,
    };
    let mut state = submitted(wants, limits);
    let core = &mut state.core;
    core.phase = Phase::Parked {
        reason: ParkReason::Missing(longest_label()),
        from: Box::new(Phase::Compact {
            turn: u32::MAX,
            attempt: u32::MAX,
            stage: CompactStage::InFlight { first_kept: entry },
        }),
    };
    core.seq = u64::MAX;
    core.clock = Millis(i64::MIN);
    core.owner = Owner { epoch: u64::MAX, boot_id: [0xff; 16] };
    core.deadline =
        Deadline { at: Some(Millis(i64::MIN)), paused_since: Some(Millis(i64::MIN)), was_extended: true };
    core.spent = Spent {
        turns: u64::MAX,
        model_calls: u64::MAX,
        calls_lost: u64::MAX,
        tool_calls: u64::MAX,
        usage: largest_usage(),
        reserved: largest_usage(),
    };
    core.retries = Retries {
        charges: u16::MAX,
        instruction: Some(Instruction::Empty),
        ..largest_counters(core.retries)
    };
    core.cursors = Cursors { steering: u64::MAX, follow_up: u64::MAX, control: u64::MAX };
    core.context_from =
        ContextFrom { base: Some(u64::MAX), first: Some(entry), previous: Some(RunId([0xff; 16])) };
    core.model = longest_label();
    core.thinking = longest_label();
    core.open = OpenEnds { turn: true, message: true };
    core.abort = Some(Abort { cause: AbortCause::UnknownOutcome, reason: longest_label() });
    core.crashes = largest_crashes();
    state
}

fn largest_crashes() -> Crashes {
    let facts = |n: usize| call_facts("post", &json!({ "n": n }), ToolKind::Plain);
    let lost = |n| LostCall { call: facts(n).key, times: u8::MAX, epoch: u64::MAX };
    Crashes {
        place: Some(Place { turn: u32::MAX, phase: PhaseKind::Stream }),
        in_phase: u8::MAX,
        since_turn: u8::MAX,
        is_tried: true,
        is_stopped: true,
        lost: (0..LOST_CALLS_MAX).map(lost).collect(),
    }
}

/// A counter of one byte takes one byte whatever it counts; the others are set by the caller.
fn largest_counters(retries: Retries) -> Retries {
    Retries { passing: u8::MAX, silent: u8::MAX, idle_breaker: u8::MAX, ..retries }
}

#[test]
fn the_core_stays_below_a_kibibyte() {
    let bytes = bytes_of(&largest_core(), Part::Core);
    assert!(bytes <= CORE_BYTES_MAX, "{bytes} bytes");
    assert!(bytes > CORE_BYTES_MAX / 2, "{bytes} bytes are not the most that a core can have");
}

#[test]
fn the_largest_core_survives_a_step() {
    let mut script = Script::new("");
    script.state = largest_core();
    assert!(script.feed("released"));
    assert!(script.feed("compacted"));
    assert!(script.feed("prepared 1"));
    assert!(bytes_of(&script.state, Part::Core) <= CORE_BYTES_MAX);
}

/// The batch of an answer with more calls than may run, each of the kind that takes the most bytes.
fn polls(script: &mut Script, is_sequential: bool) -> Input {
    let mut input = script.input("batch valid");
    if let Fact::BatchAdmitted { calls, is_sequential: mode, .. } = &mut input.fact {
        *mode = is_sequential;
        for (index, plan) in calls.iter_mut().enumerate() {
            plan.facts = call_facts("command_status", &json!({ "about": index }), ToolKind::CommandStatus);
        }
    }
    input
}

#[test]
fn a_batch_of_calls_that_are_all_judged_at_once_fits() {
    let header = "hooks=before_tool_call,after_tool_outcome";
    let mut script = Script::after(header, "admitted; drained 0; prepared; answered calls 1000");
    let input = polls(&mut script, false);
    assert!(script.feed_input(input));
    for call in 0..CALLS_MAX {
        script.feed_all(&format!("hook before_tool_call.{call} ask; approve {call}"));
    }
    script.feed_all("resumed rebooted");
    for call in 0..CALLS_MAX {
        script.feed_all(&format!("returned {call} network terminates"));
    }
    assert_eq!(script.state.effects().len(), CALLS_MAX);
    let bytes = bytes_of(&script.state, Part::Batch);
    assert!(bytes <= PART_BYTES_MAX && bytes > 31 * CALLS_MAX, "{bytes} bytes");
}

#[test]
fn a_batch_of_calls_that_have_all_ended_but_one_fits() {
    let mut script = Script::after("", "admitted; drained 0; prepared; answered calls 1000");
    let input = polls(&mut script, true);
    assert!(script.feed_input(input));
    for call in 0..CALLS_MAX - 1 {
        script.feed_all(&format!("returned {call} network terminates"));
    }
    let bytes = bytes_of(&script.state, Part::Batch);
    assert!(bytes <= PART_BYTES_MAX && bytes > 30 * CALLS_MAX, "{bytes} bytes");
}

#[test]
fn the_window_at_its_largest_fits() {
    let facts = call_facts("exec", &json!({ "command": "false" }), ToolKind::Exec);
    let failed = json!({
        "content": [{ "type": "text", "text": "it broke" }],
        "details": { "status": "failed", "exitCode": 1, "aggregated": "it broke" },
    });
    let OutcomeFacts::Settled(failure) = classify(&facts, ToolOutcome::Result(&failed)) else {
        panic!("settled")
    };
    let unknown = classify(&facts, ToolOutcome::Error("unknown tool: x"));
    let OutcomeFacts::Settled(unknown) = unknown else { panic!("settled") };
    // No outcome has both; one that had would be the largest.
    let largest = OutcomeFacts::Settled(Settled { failure: failure.failure, ..unknown });
    assert_eq!((failure.failure.is_some(), unknown.unknown.is_some()), (true, true));
    let mut state = submitted(Wants::default(), Limits::default());
    let mut window = Window::default();
    for call in 0..2 * WINDOW_SLOTS_MAX {
        window.record_outcome(RunHash::of("run"), &facts, CallHash::of(&call.to_string()), largest);
    }
    assert_eq!(window.len(), WINDOW_SLOTS_MAX);
    state.window = window;
    let bytes = bytes_of(&state, Part::Window);
    assert!(bytes <= PART_BYTES_MAX && bytes > 80 * WINDOW_SLOTS_MAX, "{bytes} bytes");
}

#[test]
fn the_warnings_at_their_most_fit() {
    let mut script = Script::after("", "admitted; drained 0");
    for about in 0..WARNING_KEYS_MAX + 10 {
        script.feed_all(&format!("prepared; answered calls 11; batch immediate:{about}"));
    }
    assert_eq!(script.state.warnings.len(), WARNING_KEYS_MAX);
    let bytes = bytes_of(&script.state, Part::Warnings);
    assert!(bytes <= PART_BYTES_MAX && bytes > 9 * WARNING_KEYS_MAX, "{bytes} bytes");
}

#[test]
fn no_number_of_an_input_is_too_large() {
    let mut script = Script::new("time_ms=1 turns=1 calls=1 tokens=1");
    let at = Millis(i64::MAX);
    let extension = model::input::Extension {
        time_ms: u64::MAX,
        usd_micros: u64::MAX,
        tokens: u64::MAX,
        calls: u64::MAX,
        turns: u64::MAX,
    };
    for _ in 0..2 {
        let fact = Fact::Extended { position: u64::MAX, by: extension };
        assert!(script.feed_input(Input { at, waiting: Waiting::default(), fact }));
    }
    script.feed_all("admitted; drained 0; prepared");
    let failure = model::input::Failure {
        usage: largest_usage(),
        ..support::facts::failure(model::input::FailureKind::Connection, Some(u64::MAX), false)
    };
    assert!(script.feed_input(Input {
        at,
        waiting: Waiting::default(),
        fact: Fact::ModelFailed { failure, routes: Routes::default() }
    }));
    script.feed_all("timer");
    assert!(script.feed("prepared 1"));
}
