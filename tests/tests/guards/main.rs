//! The guards at work: in real batches, driven by rehearsals.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a test states what it relies on, and its names document it"
)]

mod budgets;
mod deadline;
mod profiles;
mod stage;
mod watchdog;
