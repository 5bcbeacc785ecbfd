//! What an engine is made of before it opens.
//!
//! Owns the checks that come before the first byte is written. Nothing runs before a job is submitted or a run resumed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use store::{JournalStore, MemoryStore, Store};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::budgets::Budgets;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::configs::Configs;
use crate::engine::Engine;
use crate::error::Error;
use crate::harness::Harness;
use crate::lanes::Lanes;
use crate::lives::Lives;
use crate::models::Models;
use crate::profiles::Profiles;
use crate::provider::ModelProvider;
use crate::report::Report;
use crate::runs::Runs;
use crate::shared::{LOADING_MAX, SEATS, Shared};
use crate::supervisor::{self, Supervisors};
use crate::suspects::Suspects;
use crate::tool::Tool;
use crate::tool::bash::Bash;
use crate::tool::builtin::{BUILTIN, builtin};
use crate::tool::registry::Registry;
use crate::workspaces::Workspaces;

/// What `open` says when nothing can supervise commands.
const NO_SUPERVISOR: &str = "nothing can supervise commands: make `engine::supervise_if_asked()` the first line of `main`, \
                             name a program that does with `Builder::supervisor`, or open `without_commands`";

/// What an engine is made of before it opens.
pub struct Builder {
    dir: Option<PathBuf>,
    config: Config,
    tools: Vec<Arc<dyn Tool>>,
    providers: BTreeMap<String, Arc<dyn ModelProvider>>,
    harness: Harness,
    clock: Arc<dyn Clock>,
    store: Option<Arc<dyn Store>>,
    store_options: store::Options,
    rehearsal_log: Option<PathBuf>,
    commands: Commands,
}

/// Where the supervisors of an engine's commands come from.
enum Commands {
    /// From this program, whose `main` begins with `supervise_if_asked`.
    Own,
    /// From another program, whose `main` does.
    Other(PathBuf),
    /// There are none, and no commands.
    None,
}

impl Builder {
    /// The configuration; defaults if never called.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// One more tool, beside the built-in ones.
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// The provider that answers for a model's name.
    pub fn provider(mut self, name: impl Into<String>, provider: impl ModelProvider + 'static) -> Self {
        self.providers.insert(name.into(), Arc::new(provider));
        self
    }

    /// What the program takes part in.
    pub fn harness(self, harness: Harness) -> Self {
        Self { harness, ..self }
    }

    /// Another clock than the machine's.
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Another store than the journal in the directory. Who gives it closes it, after the engine.
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Options of the store: its disk, its limits, how long to try for its lock.
    pub fn store_options(self, store_options: store::Options) -> Self {
        Self { store_options, ..self }
    }

    /// A file in which every call of a rehearsal is noted before it is answered.
    pub fn rehearsal_log(self, rehearsal_log: Option<PathBuf>) -> Self {
        Self { rehearsal_log, ..self }
    }

    /// Another program than this one to run as the supervisor of each command. The first line of its `main` must be
    /// `engine::supervise_if_asked()`.
    pub fn supervisor(self, program: impl Into<PathBuf>) -> Self {
        Self { commands: Commands::Other(program.into()), ..self }
    }

    /// An engine without commands: it has no tool `bash`, and needs no supervisor.
    pub fn without_commands(self) -> Self {
        Self { commands: Commands::None, ..self }
    }

    /// Opens the engine. Must be called inside a runtime. Nothing runs before a job is submitted or a run resumed.
    pub fn open(mut self) -> Result<Engine, Error> {
        self.dir = self.dir.map(|dir| std::path::absolute(&dir).unwrap_or(dir));
        let dir = self.dir.clone();
        if let Some(dir) = &dir {
            self.check(dir)?;
        }
        match (self.store.take(), dir) {
            (Some(store), _) => self.start(store, None),
            (None, None) => self.start(Arc::new(MemoryStore::new()), None),
            (None, Some(dir)) => {
                let options =
                    store::Options { opened_at_ms: self.clock.now().0, ..self.store_options.clone() };
                let journal = Arc::new(JournalStore::open(&dir, options)?);
                tell(journal.opening());
                self.start(Arc::clone(&journal) as Arc<dyn Store>, Some(journal))
            }
        }
    }

    /// What an engine with a directory cannot do without.
    fn check(&self, dir: &Path) -> Result<(), Error> {
        if matches!(self.commands, Commands::Own) && !supervisor::is_asked() {
            return Err(Error::Setup(NO_SUPERVISOR.to_owned()));
        }
        let Some(kind) = store::network_file_system(dir) else { return Ok(()) };
        let dir = dir.display();
        Err(Error::Setup(format!(
            "{dir} is on a network file system ({kind}), where no lock proves anything; name a local directory"
        )))
    }

    fn start(self, store: Arc<dyn Store>, journal: Option<Arc<JournalStore>>) -> Result<Engine, Error> {
        let width = self.config.defaults.slots();
        let configs = Configs::new(self.config);
        let builtins = BUILTIN.iter().filter_map(|name| builtin(name));
        let supervisors = match (self.commands, &self.dir) {
            (Commands::None, _) | (_, None) => None,
            (Commands::Own, Some(_)) => Some(Supervisors::new(None, configs.key_names())),
            (Commands::Other(program), Some(_)) => Some(Supervisors::new(Some(program), configs.key_names())),
        };
        let bash = supervisors.map(|supervisors| Arc::new(Bash::new(supervisors)) as Arc<dyn Tool>);
        let tools = Registry::new(builtins.chain(bash).chain(self.tools).collect())
            .map_err(|error| Error::Setup(error.to_string()))?;
        let epoch = store.claim()?;
        let lives = Lives::read(&*store, self.store_options.boot_id)?;
        let profiles = Profiles::load(&*store)?;
        let shared = Shared {
            store,
            workspaces: self.dir.as_deref().map(Workspaces::new),
            turns: AtomicU64::new(0),
            dir: self.dir,
            epoch,
            boot_id: self.store_options.boot_id,
            clock: self.clock,
            configs,
            tools,
            tool_lists: Mutex::default(),
            tool_facts: Mutex::default(),
            models: Models::new(self.providers, self.rehearsal_log),
            profiles,
            recordings: Mutex::default(),
            harness: self.harness,
            budgets: Budgets::default(),
            runs: Runs::default(),
            report: Report::default(),
            lanes: Mutex::new(Lanes::new(width)),
            lives,
            suspects: Suspects::default(),
            stop: CancellationToken::new(),
            drain: CancellationToken::new(),
            loading: Arc::new(Semaphore::new(LOADING_MAX)),
            seats: Arc::new(Semaphore::new(SEATS)),
            unheard: tokio::sync::mpsc::channel(1).0,
        };
        let engine = Engine { shared: Arc::new(shared), journal, driving: Arc::default() };
        engine.fill_lanes()?;
        engine.sweep_calls();
        engine.sweep_blobs();
        Ok(engine)
    }
}

impl Engine {
    /// An engine whose runs survive in a directory.
    pub fn builder(dir: impl AsRef<Path>) -> Builder {
        Self::builder_of(Some(dir.as_ref().to_owned()))
    }

    /// An engine whose runs last as long as it does.
    pub fn memory() -> Builder {
        Self::builder_of(None)
    }

    fn builder_of(dir: Option<PathBuf>) -> Builder {
        Builder {
            dir,
            config: Config::default(),
            tools: Vec::new(),
            providers: BTreeMap::new(),
            harness: Harness::default(),
            clock: Arc::new(SystemClock),
            store: None,
            store_options: store::Options::default(),
            rehearsal_log: None,
            commands: Commands::Own,
        }
    }
}

/// Says what an open has mended.
fn tell(opening: &store::Opening) {
    if let Some(store::Cut { segment, offset, reason }) = &opening.cut {
        let segment = segment.display();
        tracing::warn!(%segment, offset, reason, "a torn tail was cut; nothing of it was acknowledged");
    }
    // An empty journal has no state yet.
    if let Some(reason) = opening.rebuilt.as_ref().filter(|_| opening.frames > 0) {
        tracing::warn!(reason, "the state was rebuilt from the journal");
    }
}
