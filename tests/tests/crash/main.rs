//! Every instant at which the process or its machine may die, and what must hold afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a test states what it relies on, and its names are its documentation"
)]

mod blind;
mod check;
mod enumerate;
mod faults;
mod images;
mod instants;
mod random;
mod recorded;
mod scenarios;
mod syncs;
