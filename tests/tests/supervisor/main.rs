//! Commands that outlive the engine: real processes, killed at every point that matters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests state what they rely on")]

mod background;
mod commands;
mod cost;
mod owners;
mod responses;
mod table;
mod world;
