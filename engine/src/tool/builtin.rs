//! The tools that come with the engine and run in its process.
//!
//! Owns their names. It must never hold a tool that runs a command: those run under a supervisor.

use std::sync::Arc;

use super::Tool;
use super::edit::Edit;
use super::find::Find;
use super::grep::Grep;
use super::ls::Ls;
use super::read::Read;
use super::write::Write;

/// The names of the tools that run in the process.
pub const BUILTIN: [&str; 6] = ["read", "write", "edit", "ls", "grep", "find"];

/// The tool of exactly this name, if it comes with the engine.
pub fn builtin(name: &str) -> Option<Arc<dyn Tool>> {
    match name {
        "read" => Some(Arc::new(Read::new())),
        "write" => Some(Arc::new(Write::new())),
        "edit" => Some(Arc::new(Edit::new())),
        "ls" => Some(Arc::new(Ls::new())),
        "grep" => Some(Arc::new(Grep::new())),
        "find" => Some(Arc::new(Find::new())),
        _ => None,
    }
}
