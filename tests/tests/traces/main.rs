//! The loop against the reference's event orders: every given scenario, and those that the specification names.
//!
//! `tests/cases/loop-traces.jsonl` holds what the reference does; `tests/cases/our-traces.jsonl` holds the scenarios
//! that only the specification describes, and, with the reason, those in which we decide otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "a test states what it relies on, and its names are its documentation"
)]

mod entry;
mod expected;
mod given;
mod harness;
mod log;
mod named;
mod parts;
mod taint;

use expected::check;
