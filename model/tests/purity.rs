//! The model reads no clock, file, network or random source: its dependency tree holds only the crates named
//! here.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

/// Every crate that the model is built from, on any platform, its build-time helpers included.
const ALLOWED: [&str; 28] = [
    "arrayvec",
    "blake3",
    "cfg-if",
    // Only the calendar: its clock is a feature that is off here.
    "chrono",
    "cobs",
    "constant_time_eq",
    "cpufeatures",
    "equivalent",
    "foldhash",
    "hashbrown",
    "indexmap",
    "itoa",
    // Constants and declarations of the C library, which `cpufeatures` reads on ARM to know the processor.
    "libc",
    "memchr",
    "model",
    "num-traits",
    "postcard",
    "proc-macro2",
    "quote",
    "serde",
    "serde_core",
    "serde_derive",
    "serde_json",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
    "zmij",
];

#[test]
fn the_model_is_built_from_pure_crates_alone() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "model", "--edges", "normal", "--target", "all"])
        .args(["--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("cargo prints text");
    let found: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(found, BTreeSet::from(ALLOWED), "{}", String::from_utf8_lossy(&output.stderr));
}
