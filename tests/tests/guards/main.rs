//! The guards at work: real batches, real processes, real ends.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a test states what it relies on, and its names document it"
)]

mod budgets;
mod crash_loops;
mod deadline;
mod loops;
mod profiles;
mod stage;
mod watchdog;
