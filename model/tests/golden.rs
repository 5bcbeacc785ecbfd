//! The bytes of states and records of version 1, as they lie in `tests/golden` of the workspace: they decode for ever.
//!
//! The file is written once a version, with `BLESS=1`; afterwards a difference means that old journals would be read
//! differently.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write;
use std::path::PathBuf;

use model::encode::Encoded;
use model::guard::profiles::{Health, Profile};
use model::input::FailureKind;
use model::{Label, Millis, Record, RunState};
use support::Script;

/// A run that meets most kinds of facts.
const INPUTS: &str = "admitted; drained 0; prepared; opened; answered calls 2; batch valid; returned 0; \
                      returned 1; prepared; failed silent; prepared; answered text";

#[test]
fn bytes_of_version_1_stay() {
    let mut script = Script::new("");
    let mut lines = String::new();
    let submission = support::submission(script.state.core.wants, script.state.core.limits);
    note(&mut lines, "record", &Record::Submitted(Box::new(submission)).to_bytes());
    for input in INPUTS.split(';') {
        script.feed_all(input);
        let (_, changes) = Encoded::all(&script.state);
        for (part, bytes) in changes {
            let Some(bytes) = bytes else { continue };
            note(&mut lines, &format!("state {part:?}"), &bytes);
        }
        let moved = script.journal.last().expect("a transition");
        note(&mut lines, "record", &moved.to_bytes());
    }
    note(&mut lines, "profile", &profile().to_bytes());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/model-v1.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &lines).expect("a writable file");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file is there");
    assert_reviewed_lines(&golden, &lines);
    for line in golden.lines() {
        decode(line);
    }
}

/// A profile that has met each kind of cooldown.
fn profile() -> Profile {
    let mut health = Health::default();
    for (kind, after) in [("auth", None), ("billing", None), ("rate_limit", Some(90_000)), ("idle", None)] {
        let kind =
            FailureKind::ALL.into_iter().find(|known| known.name() == kind).expect("a kind of failure");
        let failure = support::facts::failure(kind, after, false);
        assert!(health.mark(&failure, true, Millis(1_000_000), &Label::from("rehearsal")));
    }
    health.mark_probed(Millis(2_000_000));
    Profile { name: Label::from("work"), health }
}

fn note(lines: &mut String, what: &str, bytes: &[u8]) {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(lines, "{what}: {hex}").expect("a string takes every line");
}

fn decode(line: &str) {
    let (what, hex) = line.split_once(": ").expect("a line has a name");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hex");
    let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
    match what {
        "record" => {
            Record::from_bytes(&bytes).expect("a record of version 1 decodes");
        }
        "state Core" => {
            let is_core = |part| part == model::encode::Part::Core;
            let state = RunState::decode(|part| is_core(part).then(|| bytes.clone()));
            assert!(state.expect("a core of version 1 decodes").is_some());
        }
        "profile" => assert_eq!(Profile::from_bytes(&bytes), Ok(profile())),
        _ => {}
    }
}

fn assert_reviewed_lines(golden: &str, lines: &str) {
    for (number, (was, is)) in (1..).zip(golden.lines().zip(lines.lines())) {
        assert_eq!(was, is, "line {number} of the golden file");
    }
    assert_eq!(golden.lines().count(), lines.lines().count());
}
