//! The guards at work: in real batches, driven by rehearsals.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test states what it relies on, and its names document it"
)]

mod budgets;
mod deadline;
mod stage;
mod watchdog;
