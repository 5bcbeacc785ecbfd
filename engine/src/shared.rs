//! What every driver of one engine shares.
//!
//! Owns handles only: the store, the clock, the tools, the providers, the harness. It must never hold a run's state.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use model::input::Hook;
use model::state::{Owner, Wants};
use model::{LOGIC_VERSION, RunId, ToolResult};
use store::{Commit, Durability, Epoch, Hash, Put, RecordKind, Store, Stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::budgets::Budgets;
use crate::clock::Clock;
use crate::configs::Configs;
use crate::harness::Harness;
use crate::job::JobFacts;
use crate::job::ToolLimits;
use crate::lanes::Lanes;
use crate::lives::Lives;
use crate::models::Models;
use crate::profiles::Profiles;
use crate::provider::{Origin, Recording};
use crate::report::Report;
use crate::runs::{Runs, lock};
use crate::suspects::Suspects;
use crate::tool::ToolSpec;
use crate::tool::bash;
use crate::tool::builtin::BUILTIN;
use crate::tool::registry::Registry;
use crate::workspaces::Workspaces;

/// Tools and the limits of each, as runs keep them.
type ToolFacts = (Arc<[String]>, Arc<BTreeMap<String, ToolLimits>>);

/// Different sets of tools, with their limits, that runs share.
const TOOL_FACTS_MAX: usize = 64;

/// Drivers that are between being loaded and their first wait, however many runs start or wake at once.
pub(crate) const LOADING_MAX: usize = 64;
/// Drivers that stay in memory while they wait for a model; any other one is loaded again when its answer comes.
pub(crate) const SEATS: usize = 256;

/// The inside of an engine.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) epoch: Epoch,
    pub(crate) boot_id: [u8; 16],
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) configs: Configs,
    pub(crate) tools: Registry,
    pub(crate) tool_lists: Mutex<HashMap<Vec<String>, Arc<[ToolSpec]>>>,
    /// Tools and their limits as runs keep them; see `share`.
    pub(crate) tool_facts: Mutex<Vec<ToolFacts>>,
    pub(crate) models: Models,
    pub(crate) profiles: Profiles,
    /// Recordings of runs that this engine drives or has driven.
    pub(crate) recordings: Mutex<BTreeMap<RunId, Arc<Recording>>>,
    pub(crate) harness: Harness,
    pub(crate) budgets: Budgets,
    pub(crate) runs: Runs,
    pub(crate) report: Report,
    pub(crate) lanes: Mutex<Lanes>,
    pub(crate) lives: Lives,
    pub(crate) suspects: Suspects,
    /// Makes the workspaces of jobs that name none; none for an engine in memory.
    pub(crate) workspaces: Option<Workspaces>,
    /// Turns that got a complete answer since the engine was opened.
    pub(crate) turns: AtomicU64,
    /// Cancelled when the engine is to stop: drivers commit what they have and end.
    pub(crate) stop: CancellationToken,
    /// Cancelled when no further turn is to begin.
    pub(crate) drain: CancellationToken,
    /// Room for drivers that are loaded at once.
    pub(crate) loading: Arc<Semaphore>,
    /// Room for drivers that wait for a model.
    pub(crate) seats: Arc<Semaphore>,
    /// Takes the partial results that nobody follows: it is closed, and saves each call a channel of its own.
    pub(crate) unheard: mpsc::Sender<ToolResult>,
}

/// Code of an engine's own fact in raw listings.
const KIND_FACT: u8 = 3;

impl Shared {
    pub(crate) fn owner(&self) -> Owner {
        Owner { epoch: self.epoch.0, boot_id: self.boot_id }
    }

    /// A fact of the engine's own as a durable commit: what the record says is what the key holds from then on.
    pub(crate) fn fact(&self, stream: Stream, expect_seq: u64, key: Vec<u8>, value: Vec<u8>) -> Commit {
        Commit {
            stream,
            expect_seq,
            epoch: self.epoch,
            at_ms: self.clock.now().0,
            logic_version: LOGIC_VERSION,
            kind: RecordKind { code: KIND_FACT, carries_messages: false, ends_stream: false },
            payload: value.clone(),
            puts: vec![Put { key, value: Some(value) }],
            state_hash: Hash::default(),
            requires: Vec::new(),
            durability: Durability::Durable,
        }
    }

    /// Waits until one more driver may be loaded. What a program's own sources and context do may wait for other runs:
    /// with them nothing is held back.
    pub(crate) async fn room_to_load(&self) -> Option<OwnedSemaphorePermit> {
        if self.harness.sources.is_some() || self.harness.context.is_some() {
            return None;
        }
        // It is never closed.
        Arc::clone(&self.loading).acquire_owned().await.ok()
    }
}

impl Shared {
    pub(crate) fn wants(&self) -> Wants {
        let hooks = self.harness.hooks.as_ref();
        let wanted: &[Hook] = hooks.map_or(&[], |hooks| hooks.wanted());
        let wants = Wants {
            has_sources: self.harness.sources.is_some(),
            compacts: self.harness.context.as_ref().is_some_and(|context| context.can_summarise()),
            ..Wants::default()
        };
        wanted.iter().fold(wants, |wants, hook| wants.with_hook(*hook))
    }

    /// The names of all tools, in the order in which they were given.
    pub(crate) fn tool_names(&self) -> Vec<String> {
        self.tools.specs().iter().map(|spec| spec.name.clone()).collect()
    }

    /// What the named tools say of themselves; one list for all runs with the same tools.
    pub(crate) fn tool_list(&self, names: &[String]) -> Arc<[ToolSpec]> {
        let mut lists = lock(&self.tool_lists);
        if let Some(list) = lists.get(names) {
            return Arc::clone(list);
        }
        let specs = self.tools.specs();
        let list: Arc<[ToolSpec]> = specs.iter().filter(|spec| names.contains(&spec.name)).cloned().collect();
        lists.insert(names.to_vec(), Arc::clone(&list));
        list
    }

    /// Lets runs with the same tools share what they keep of them.
    pub(crate) fn share(&self, facts: &mut JobFacts) {
        let mut known = lock(&self.tool_facts);
        match known.iter().find(|known| (&known.0, &known.1) == (&facts.tools, &facts.tool_limits)) {
            Some((tools, limits)) => {
                (facts.tools, facts.tool_limits) = (Arc::clone(tools), Arc::clone(limits));
            }
            None if known.len() < TOOL_FACTS_MAX => {
                known.push((Arc::clone(&facts.tools), Arc::clone(&facts.tool_limits)));
            }
            None => {}
        }
    }

    /// Where the model calls of a run are recorded, if they are; the same for each driver of the run.
    pub(crate) fn recording(&self, facts: &JobFacts, origin: &Origin) -> Option<Arc<Recording>> {
        let dir = facts.record.as_ref()?;
        let new = || Arc::new(Recording::new(dir.clone(), origin));
        Some(Arc::clone(lock(&self.recordings).entry(origin.run).or_insert_with(new)))
    }

    /// The tools of a job that names none: the configured ones, and those that the program added.
    pub(crate) fn default_tools(&self, configured: &[String]) -> Vec<String> {
        let mut names = configured.to_vec();
        let added = self.tool_names().into_iter().filter(|name| !is_builtin(name));
        for name in added {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

fn is_builtin(name: &str) -> bool {
    name == bash::NAME || BUILTIN.contains(&name)
}
