//! Scenarios as text: `> input`, then what follows from it: `< phase; effects; marks`.
//!
//! `> one; two` shows what follows from the last. `## name` starts a run, `: words` says how it was
//! submitted, `? part` shows a part of the state. Everything else is written by the test: run it with
//! `BLESS=1` and review the difference.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use model::RunState;
use support::{Script, assert_reviewed, print};

#[test]
fn scripts_do_what_they_say() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the scripts are there")
        .map(|entry| entry.expect("a readable entry").file_name().into_string().expect("a plain name"))
        .collect();
    files.sort();
    files.iter().for_each(|file| check(file));
}

/// Runs the scenarios of one file and compares all that they show.
fn check(file: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(file);
    let text = std::fs::read_to_string(path).expect("a readable script");
    let mut shown = String::new();
    let mut script = Script::new("");
    for line in text.lines() {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("##", _) => script = Script::new(""),
            (":", header) => script = Script::new(header),
            ("<" | "=", _) => continue,
            ("", made) if !made.is_empty() => continue,
            _ => {}
        }
        shown += &format!("{line}\n");
        match line.split_once(' ') {
            Some((">", input)) => shown += &feed(&mut script, input),
            Some(("?", part)) => shown += &format!("= {}\n", ask(&script.state, part)),
            _ => {}
        }
    }
    assert_reviewed(&format!("scripts/{file}"), &shown);
}

/// Feeds inputs separated by `;` and shows the last one; those before it must be legal. `9 times: a; b` feeds
/// them so often.
fn feed(script: &mut Script, inputs: &str) -> String {
    let (times, inputs) = inputs.split_once(" times: ").unwrap_or(("1", inputs));
    let times: u32 = times.parse().expect("a number of times");
    (1..times).for_each(|_| script.feed_all(inputs));
    let (first, input) = inputs.rsplit_once("; ").unwrap_or(("", inputs));
    script.feed_all(first);
    let before = script.state.clone();
    if !script.feed(input) {
        return "< rejected\n".to_owned();
    }
    let moved = script.journal.last().expect("a record for every input");
    print::step(&before, &script.state, moved)
}

fn ask(state: &RunState, part: &str) -> String {
    let core = &state.core;
    match part {
        "spent" => format!(
            "turns {}, model calls {}, lost {}, tool calls {}, tokens {}, reserved {}",
            core.spent.turns,
            core.spent.model_calls,
            core.spent.calls_lost,
            core.spent.tool_calls,
            core.spent.usage.tokens(),
            core.spent.reserved.tokens()
        ),
        "cursors" => format!(
            "steering {}, follow_up {}, control {}",
            core.cursors.steering, core.cursors.follow_up, core.cursors.control
        ),
        "deadline" => {
            let since = |at: Option<model::Millis>| at.map(|at| at.since(support::START));
            let (at, paused) = (since(core.deadline.at), since(core.deadline.paused_since));
            let extended = if core.deadline.was_extended { ", extended" } else { "" };
            format!("at {at:?}, paused since {paused:?}{extended}")
        }
        "retries" => format!(
            "charges {}, passing in a row {}, watched after a compaction {}",
            core.retries.charges, core.retries.passing, core.retries.post_compaction_left
        ),
        "crashes" => {
            let crashes = &core.crashes;
            let lost: Vec<u8> = crashes.lost.iter().map(|lost| lost.times).collect();
            let tried = if crashes.is_tried { ", on trial" } else { "" };
            let (in_phase, since_turn) = (crashes.in_phase, crashes.since_turn);
            format!("in the phase {in_phase}, since the last turn {since_turn}, lost {lost:?}{tried}")
        }
        "verdict" => core.crashes.verdict().map_or_else(|| "none".to_owned(), |verdict| verdict.to_string()),
        "suspect" => format!("{}", state.is_suspect()),
        "taint" => format!("{}", core.is_tainted),
        "model" => format!("{}", core.model),
        "context" => {
            format!("base {:?}, first {:?}", core.context_from.base, core.context_from.first.map(|at| at.seq))
        }
        "files" => {
            let since = |at: Option<model::Millis>| at.map(|at| at.since(support::START));
            let model::state::Files { unsynced_since, lost_since } = core.files;
            format!("unsynced since {:?}, lost since {:?}", since(unsynced_since), since(lost_since))
        }
        "boots" => {
            let calls = state.batch.iter().flat_map(|batch| &batch.calls);
            let of_other: Vec<bool> = calls.map(|call| call.marks.is_of_other_boot()).collect();
            format!("of another boot: {of_other:?}")
        }
        "owner" => format!("epoch {}", core.owner.epoch),
        _ => panic!("nobody shows `{part}`"),
    }
}
