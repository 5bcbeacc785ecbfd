//! The table of deaths and outcomes: who dies at which point, and what the model learns of its call.
//!
//! The table in `docs/recovery.md` is what this test found. With `BLESS=1` it writes the table anew.

use std::fmt::Write as _;

use rustix::process::Signal;
use tests::documented::assert_documented;

use crate::world::{World, is_gone, pause, signal, state, stopped, wait_for};

/// Points that the engine reaches, with the words of the table.
const OF_ENGINE: [(&str, &str); 4] = [
    ("before the intent", "before `Started` is durable"),
    ("after the intent", "`Started` is durable"),
    ("before the directory", "before the call's directory is made"),
    ("before the spawn", "directory and spec are there, nothing is spawned"),
];
/// Points that the supervisor reaches.
const OF_SUPERVISOR: [(&str, &str); 6] = [
    ("before the lock", "the supervisor has not yet taken the lock"),
    ("after the mark", "the mark is written, the command not yet started"),
    ("mid-output", "the command has printed something"),
    ("after the exit", "the command has ended"),
    ("before the record's rename", "the exit record is synced under its first name"),
    ("after the record's rename", "the exit record is in place"),
];
/// Points that the engine reaches once the supervisor has ended.
const AFTER: [(&str, &str); 2] = [
    ("before the result's commit", "the result is known, not committed"),
    ("after the result's commit", "the result is committed, not yet durable"),
];

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Engine,
    Supervisor,
    Both,
}

/// Lets a run come to a point, kills whom it is to kill there, and lets the rest go on.
fn outcome(point: &str, victim: Victim) -> &'static str {
    let world = World::new("echo ran >> ran; echo out; sleep 0.1");
    let file = world.path("stopped");
    let variables = [("SPRAG_CRASH_POINT", point), ("SPRAG_CRASH_FILE", file.to_str().unwrap())];
    let mut first = world.start_with(&variables);
    let at_point = stopped(&file);
    if victim == Victim::Both {
        pause(first.pid());
    }
    if victim != Victim::Engine {
        signal(at_point, Signal::KILL);
        wait_for("end of the supervisor", || is_gone(at_point).then_some(()));
    }
    let mut owner = if victim == Victim::Supervisor {
        first
    } else {
        first.kill();
        world.start()
    };
    let found = owner.found();
    // Whoever stands still at the point goes on only after the new owner has decided.
    if state(at_point) == Some('T') {
        signal(at_point, Signal::CONT);
    }
    let (found, told) = match found {
        Ok(found) => (found, owner.told()),
        Err(told) => (String::new(), *told),
    };
    owner.close();
    wait_for("end of all", || is_gone(at_point).then_some(()));
    let runs = world.read("ran").lines().count();
    let is_result = told.text() == "out\n" && runs == 1;
    match found.as_str() {
        "" | "collected" if point == "after the result's commit" && is_result => "the result stands",
        "" if is_result && victim == Victim::Supervisor => "ran",
        "" if is_result => "runs, once",
        "" if told.text().starts_with("The command was not started: ") && runs == 0 => {
            "did not run, as the model is told"
        }
        "started" if is_result => "did not run before; runs, once",
        "adopted" if is_result => "adopted",
        "collected" if is_result => "collected",
        "" | "unknown" if told.details()["status"] == "unknown" && runs <= 1 => "unknown",
        other => panic!("{point}: {other}, {runs} runs, {told:?}"),
    }
}

fn table() -> String {
    let mut table = String::from(
        "| at this point | the engine dies | the supervisor dies | both die |\n|---|---|---|---|\n",
    );
    let mut row = |point: &str, words: &str, victims: &[Victim]| {
        let cell = |victim| if victims.contains(&victim) { outcome(point, victim) } else { "" };
        let cells = [cell(Victim::Engine), cell(Victim::Supervisor), cell(Victim::Both)];
        writeln!(table, "| {words} | {} |", cells.join(" | ")).unwrap();
    };
    OF_ENGINE.iter().for_each(|(point, words)| row(point, words, &[Victim::Engine]));
    let all = [Victim::Engine, Victim::Supervisor, Victim::Both];
    OF_SUPERVISOR.iter().for_each(|(point, words)| row(point, words, &all));
    AFTER.iter().for_each(|(point, words)| row(point, words, &[Victim::Engine]));
    table
}

#[test]
fn the_table_of_deaths_is_as_documented() {
    assert_documented("docs/recovery.md", "deaths", &table());
}
