//! What every driver of one engine shares.
//!
//! Owns handles only: the store, the clock, the tools, the providers, the harness. It must never hold a run's state.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use model::ToolResult;
use model::state::Owner;
use store::{Epoch, Store};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::Config;
use crate::harness::Harness;
use crate::job::ToolLimits;
use crate::lanes::Lanes;
use crate::models::Models;
use crate::report::Report;
use crate::runs::Runs;
use crate::tool::ToolSpec;
use crate::tool::registry::Registry;
use crate::workspaces::Workspaces;

/// Tools and the limits of each, as runs keep them.
type ToolFacts = (Arc<[String]>, Arc<BTreeMap<String, ToolLimits>>);

/// The inside of an engine.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) epoch: Epoch,
    pub(crate) boot_id: [u8; 16],
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
    pub(crate) tools: Registry,
    pub(crate) tool_lists: Mutex<HashMap<Vec<String>, Arc<[ToolSpec]>>>,
    /// Tools and their limits as runs keep them; see `share`.
    pub(crate) tool_facts: Mutex<Vec<ToolFacts>>,
    pub(crate) models: Models,
    pub(crate) harness: Harness,
    pub(crate) runs: Runs,
    pub(crate) report: Report,
    pub(crate) lanes: Mutex<Lanes>,
    /// Makes the workspaces of jobs that name none; none for an engine in memory.
    pub(crate) workspaces: Option<Workspaces>,
    /// Turns that got a complete answer since the engine was opened.
    pub(crate) turns: AtomicU64,
    /// Cancelled when the engine is to stop: drivers commit what they have and end.
    pub(crate) stop: CancellationToken,
    /// Cancelled when no further turn is to begin.
    pub(crate) drain: CancellationToken,
    /// Takes the partial results that nobody follows: it is closed, and saves each call a channel of its own.
    pub(crate) unheard: mpsc::Sender<ToolResult>,
}

impl Shared {
    pub(crate) fn owner(&self) -> Owner {
        Owner { epoch: self.epoch.0, boot_id: self.boot_id }
    }
}
