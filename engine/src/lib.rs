//! The engine: performs what the model decides, and commits what happened.
//!
//! Owns everything asynchronous: driver, lanes, providers, tools, recovery. It must never decide what follows from an
//! outcome (that is `model`) and never touch the disk of the journal (that is `store`).

pub mod config;
pub mod provider;
pub mod tool;

pub use config::{Config, data_dir};
