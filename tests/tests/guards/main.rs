//! The guards at work in whole runs: each test drives an engine and looks at what its journal says.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a test states what it relies on, and its names are its documentation"
)]

mod profiles;
