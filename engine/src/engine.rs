//! The engine: opens a store, accepts jobs, drives runs.
//!
//! Owns the life of drivers and the lanes between them. It starts no runtime and no thread of its own beyond those of
//! the store; dropping a handle cancels nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::inbox::{Control, Item};
use model::input::{Approval, Extension, Hook, Resolution};
use model::state::Wants;
use model::{Label, Message, Millis, Phase, RunId};
use store::{JournalStore, MemoryStore, Store};
use tokio_util::sync::CancellationToken;

use crate::accept::{self, Accepted};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::disk::network_file_system;
use crate::driver::{Attached, Driver, Left, load_state};
use crate::error::Error;
use crate::harness::Harness;
use crate::job::Job;
use crate::keys::{self, Lane};
use crate::lanes::Lanes;
use crate::models::Models;
use crate::provider::ModelProvider;
use crate::report::{Found, Note, Report};
use crate::runs::{Rest, Rests, Runs, lock};
use crate::shared::Shared;
use crate::supervisor::{self, Supervisors};
use crate::tool::bash::{self, Bash};
use crate::tool::builtin::{BUILTIN, builtin};
use crate::tool::registry::Registry;
use crate::tool::{Tool, ToolSpec};
use crate::workspaces::Workspaces;

/// Runs read at once while an engine opens.
const SCAN_PAGE: usize = 4096;

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

/// An open engine. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    journal: Option<Arc<JournalStore>>,
    driving: Arc<Driving>,
}

/// Drivers under way, so that a stop can wait for them.
#[derive(Debug, Default)]
struct Driving {
    count: AtomicUsize,
    /// Runs without a driver that a timer will wake.
    waiting: AtomicUsize,
    changed: tokio::sync::Notify,
}

/// A run of an engine.
#[derive(Clone)]
pub struct RunHandle {
    engine: Engine,
    /// The run.
    pub id: RunId,
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
        let Some(kind) = network_file_system(dir) else { return Ok(()) };
        let dir = dir.display();
        Err(Error::Setup(format!(
            "{dir} is on a network file system ({kind}), where no lock proves anything; name a local directory"
        )))
    }

    fn start(self, store: Arc<dyn Store>, journal: Option<Arc<JournalStore>>) -> Result<Engine, Error> {
        let builtins = BUILTIN.iter().filter_map(|name| builtin(name));
        let supervisors = match (self.commands, &self.dir) {
            (Commands::None, _) | (_, None) => None,
            (Commands::Own, Some(_)) => Some(Supervisors::new(None, &self.config)),
            (Commands::Other(program), Some(_)) => Some(Supervisors::new(Some(program), &self.config)),
        };
        let bash = supervisors.map(|supervisors| Arc::new(Bash::new(supervisors)) as Arc<dyn Tool>);
        let tools = Registry::new(builtins.chain(bash).chain(self.tools).collect())
            .map_err(|error| Error::Setup(error.to_string()))?;
        let epoch = store.claim()?;
        let width = usize::try_from(self.config.defaults.concurrency.get()).unwrap_or(usize::MAX);
        let shared = Shared {
            store,
            workspaces: self.dir.as_deref().map(Workspaces::new),
            turns: AtomicU64::new(0),
            dir: self.dir,
            epoch,
            boot_id: self.store_options.boot_id,
            clock: self.clock,
            config: self.config,
            tools,
            tool_lists: Mutex::default(),
            models: Models::new(self.providers, self.rehearsal_log),
            harness: self.harness,
            runs: Runs::default(),
            report: Report::default(),
            lanes: Mutex::new(Lanes::new(width)),
            stop: CancellationToken::new(),
            drain: CancellationToken::new(),
            unheard: tokio::sync::mpsc::channel(1).0,
        };
        let engine = Engine { shared: Arc::new(shared), journal, driving: Arc::default() };
        engine.fill_lanes()?;
        engine.sweep_calls();
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

    /// Accepts a job; once it returns, the job is durable. With a key that is known, the known run is answered.
    pub async fn submit(&self, job: Job) -> Result<RunHandle, Error> {
        self.submit_attached(job, Attached::default()).await
    }

    pub(crate) async fn submit_attached(&self, job: Job, attached: Attached) -> Result<RunHandle, Error> {
        let run = new_run_id(&job);
        let accepted = accept::submit(&self.shared, run, &job, attached.is_some())?.accepted().await?;
        self.admit(&accepted, attached);
        Ok(self.handle(accepted.run))
    }

    /// Accepts many jobs at once, under as few barriers as fit. Answers in their order.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Vec<Result<RunHandle, Error>> {
        let submitting: Vec<_> =
            jobs.into_iter().map(|job| accept::submit(&self.shared, new_run_id(&job), &job, false)).collect();
        let mut handles = Vec::with_capacity(submitting.len());
        for submitting in submitting {
            let accepted = match submitting {
                Ok(submitting) => submitting.accepted().await,
                Err(error) => Err(error),
            };
            handles.push(accepted.map(|accepted| {
                if !accepted.is_known {
                    lock(&self.shared.lanes).join(accepted.lane, accepted.run, true);
                }
                self.handle(accepted.run)
            }));
        }
        self.run_ready();
        handles
    }

    fn admit(&self, accepted: &Accepted, attached: Attached) {
        if accepted.is_known {
            return;
        }
        if attached.is_some() {
            // Driven by its submitter's own wish, outside of the queue of slots.
            return self.spawn(accepted.run, attached, false);
        }
        lock(&self.shared.lanes).join(accepted.lane, accepted.run, true);
        self.run_ready();
    }

    /// A handle on a run, whether or not it exists or has ended.
    pub fn handle(&self, id: RunId) -> RunHandle {
        RunHandle { engine: self.clone(), id }
    }

    /// Fills the lanes with the runs that have not ended, in order of submission. None of them moves yet.
    fn fill_lanes(&self) -> Result<(), Error> {
        let mut lanes = lock(&self.shared.lanes);
        self.each_live(|run, lane| lanes.join(lane, run, false))
    }

    /// Removes what calls of runs that have ended left behind.
    fn sweep_calls(&self) {
        let Some(calls) = self.shared.dir.as_ref().map(|dir| dir.join("calls")) else { return };
        let Ok(entries) = std::fs::read_dir(calls) else { return };
        for entry in entries.flatten() {
            let run = entry.file_name().to_str().and_then(|name| name.parse::<RunId>().ok());
            let state = run.and_then(|run| load_state(&*self.shared.store, run).ok().flatten());
            if state.is_some_and(|(state, _)| matches!(state.core.phase, Phase::Done { .. })) {
                // A directory that cannot be removed now is tried again at the next open.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The runs that have not ended, in order of submission.
    pub fn live_runs(&self) -> Result<Vec<RunId>, Error> {
        let mut runs = Vec::new();
        self.each_live(|run, _| runs.push(run))?;
        Ok(runs)
    }

    /// Visits the runs that have not ended with their lanes, in order of submission.
    fn each_live(&self, mut visit: impl FnMut(RunId, Lane)) -> Result<(), Error> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.shared.store.scan(keys::LIVE, after.as_deref(), SCAN_PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for (key, value) in &page {
                if let (Some(run), Ok(lane)) = (keys::run_of(key), value.as_slice().try_into()) {
                    visit(run, lane);
                }
            }
        }
    }

    /// Continues the given runs, or every run that can go on. Answers those that were set going.
    pub fn resume(&self, only: Option<&[RunId]>) -> Result<Vec<RunHandle>, Error> {
        let mut handles = Vec::new();
        let only: Option<HashSet<RunId>> = only.map(|only| only.iter().copied().collect());
        for run in self.live_runs()? {
            if only.as_ref().is_some_and(|only| !only.contains(&run)) {
                continue;
            }
            if self.wake(run, false)? {
                self.shared.report.note(run, None, Found::Resumed, "the run goes on");
                handles.push(self.handle(run));
            } else {
                self.shared.report.note(run, None, Found::Parked, &self.parked_reason(run)?);
            }
        }
        self.run_ready();
        Ok(handles)
    }

    fn parked_reason(&self, run: RunId) -> Result<String, Error> {
        let state = load_state(&*self.shared.store, run)?;
        Ok(state.map(|(state, _)| state.core.phase.to_string()).unwrap_or_default())
    }

    /// Makes a run ready if anything can move it: it is not parked, or what it waits for may be there.
    fn wake(&self, run: RunId, goes_first: bool) -> Result<bool, Error> {
        let Some((state, inbox_len)) = load_state(&*self.shared.store, run)? else { return Ok(false) };
        let can_move = match &state.core.phase {
            Phase::Done { .. } => false,
            Phase::Parked { reason: model::ParkReason::Missing(_), .. } => true,
            Phase::Parked { .. } => state.core.cursors.control < inbox_len,
            Phase::Queued
            | Phase::InjectPending { .. }
            | Phase::Stream { .. }
            | Phase::Dispatch { .. }
            | Phase::ExecuteTools { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. } => true,
        };
        if can_move {
            self.shared.runs.set_rest(run, None);
            lock(&self.shared.lanes).make_ready(run, goes_first);
        }
        Ok(can_move)
    }

    /// Gives free slots to runs that are ready, unless the engine is to stop.
    fn run_ready(&self) {
        while !self.shared.stop.is_cancelled() && !self.shared.drain.is_cancelled() {
            let next = lock(&self.shared.lanes).next();
            let Some(run) = next else { return };
            self.spawn(run, Attached::default(), true);
        }
    }

    fn spawn(&self, run: RunId, attached: Attached, holds_slot: bool) {
        let engine = self.clone();
        self.driving.count.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            let left = engine.drive(run, attached).await;
            engine.settle(run, left, holds_slot);
            engine.driving.count.fetch_sub(1, Ordering::AcqRel);
            engine.driving.changed.notify_waiters();
        });
    }

    async fn drive(&self, run: RunId, attached: Attached) -> Result<Left, Error> {
        let mut driver = Driver::load(Arc::clone(&self.shared), run, attached)?;
        driver.settle().await?;
        Box::pin(driver.drive()).await
    }

    /// A driver has ended: its slot and, if the run has ended, its place in the lane are free.
    fn settle(&self, run: RunId, left: Result<Left, Error>, holds_slot: bool) {
        if holds_slot {
            lock(&self.shared.lanes).release(run);
        }
        let Left { rest, inbox_len } = left.unwrap_or_else(|error| {
            tracing::error!(%run, %error, "the run stopped");
            Left { rest: Rest::Failed(error.to_string()), inbox_len: u64::MAX }
        });
        match &rest {
            Rest::Done { .. } => lock(&self.shared.lanes).leave(run),
            Rest::Parked(reason) => {
                self.shared.report.note(run, None, Found::Parked, reason.name());
            }
            Rest::Waiting { until } => self.wake_at(run, *until),
            Rest::Stopped | Rest::Failed(_) => {}
        }
        let is_done = matches!(rest, Rest::Done { .. });
        self.shared.runs.set_rest(run, Some(rest));
        if is_done {
            self.shared.runs.forget(run);
        }
        // A decision may have come in between the driver's last look and here.
        if !is_done && !self.shared.stop.is_cancelled() && self.has_more(run, inbox_len) {
            let _ = self.wake(run, true);
        }
        self.run_ready();
    }

    /// Wakes a run when its wait is over, or when its deadline passes if that is earlier.
    fn wake_at(&self, run: RunId, until: Millis) {
        let loaded = load_state(&*self.shared.store, run).ok().flatten();
        let deadline = loaded.and_then(|(state, _)| state.core.deadline.at);
        let at = deadline.map_or(until, |deadline| deadline.min(until));
        let left = Duration::from_millis(at.since(self.shared.clock.now()));
        let engine = self.clone();
        self.driving.waiting.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            tokio::select! {
                () = engine.shared.stop.cancelled() => {}
                () = tokio::time::sleep(left) => {
                    if let Err(error) = engine.wake(run, true) {
                        tracing::error!(%run, %error, "the run could not be woken");
                    }
                    engine.run_ready();
                }
            }
            engine.driving.waiting.fetch_sub(1, Ordering::AcqRel);
            engine.driving.changed.notify_waiters();
        });
    }

    /// A parked run was given something that its last driver, who saw `seen` items, has not looked at.
    fn has_more(&self, run: RunId, seen: u64) -> bool {
        let loaded = load_state(&*self.shared.store, run).ok().flatten();
        loaded.is_some_and(|(state, len)| matches!(state.core.phase, Phase::Parked { .. }) && seen < len)
    }

    /// Stops: drivers commit what they have and end; commands under supervisors run on. Returns when all have ended.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.driving.until(|driving| driving.count.load(Ordering::Acquire) == 0).await;
    }

    /// Stops once open turns have ended: no further turn and no further run begins meanwhile.
    pub async fn drain(&self) {
        self.shared.drain.cancel();
        self.driving.until(|driving| driving.count.load(Ordering::Acquire) == 0).await;
        self.stop().await;
    }

    /// Returns when no run can move any more without a person or another resume: all have ended, are parked, or stand
    /// in their session's lane behind one that is.
    pub async fn rested(&self) {
        let is_rested = |driving: &Driving| {
            // A run that is woken counts as driven before it no longer counts as waiting.
            driving.waiting.load(Ordering::Acquire) == 0 && driving.count.load(Ordering::Acquire) == 0
        };
        self.driving.until(is_rested).await;
    }

    /// Stops and closes the store, so that the next open finds everything as it is.
    pub async fn close(self) -> Result<(), Error> {
        self.stop().await;
        if let Some(journal) = &self.journal {
            journal.close()?;
        }
        Ok(())
    }

    /// What a resume found and did so far.
    pub fn report(&self) -> Vec<Note> {
        self.shared.report.notes()
    }

    /// Every rest from now on, as it happens.
    pub(crate) fn rests(&self) -> Rests {
        self.shared.runs.rests()
    }

    /// Runs that hold a slot now.
    pub fn running(&self) -> usize {
        lock(&self.shared.lanes).held()
    }

    /// Turns that got a complete answer since the engine was opened.
    pub fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::Relaxed)
    }

    /// Says whether a job would be accepted as it is; nothing is stored.
    pub fn check(&self, job: &Job) -> Result<(), Error> {
        accept::check(&self.shared, job).map(|_| ())
    }

    /// The store, for reading.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// The journal below the store, for its numbers; none for an engine in memory.
    pub fn journal(&self) -> Option<&Arc<JournalStore>> {
        self.journal.as_ref()
    }

    /// The engine's time.
    pub fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Accepts an item for a run and wakes whoever can use it.
    async fn push(&self, run: RunId, item: Item, key: Option<&str>) -> Result<(), Error> {
        let is_control = matches!(item, Item::Control(_));
        accept::push(&self.shared, run, &item, key).await?;
        // A driver that is about to rest looks for decisions once more after it has left its slot.
        if is_control && !lock(&self.shared.lanes).is_moving(run) {
            self.wake(run, true)?;
            self.run_ready();
        }
        Ok(())
    }
}

impl Driving {
    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            // The bound covers a change between the look and the wait.
            let _ = tokio::time::timeout(Duration::from_millis(50), self.changed.notified()).await;
        }
    }
}

impl RunHandle {
    /// The engine that it is a handle of.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Steers the running work. With a key, the same message is accepted once.
    pub async fn steer(&self, message: Message, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::Steering(message), key).await
    }

    /// Adds work for when the run would otherwise end.
    pub async fn follow_up(&self, message: Message, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::FollowUp(message), key).await
    }

    /// Ends the run, in whatever phase it is; every call gets a result.
    pub async fn cancel(&self, reason: &str, key: Option<&str>) -> Result<(), Error> {
        let control = Control::Cancel { reason: Label::from(reason) };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Decides on a call that waits for approval.
    pub async fn decide(
        &self,
        turn: u32,
        call: u16,
        decision: Approval,
        key: Option<&str>,
    ) -> Result<(), Error> {
        self.check_decision(turn, call, "awaiting_approval")?;
        let control = Control::Approve { turn, call, decision };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Decides on a call whose outcome is unknown.
    pub async fn resolve(
        &self,
        turn: u32,
        call: u16,
        resolution: Resolution,
        reason: &str,
        key: Option<&str>,
    ) -> Result<(), Error> {
        self.check_decision(turn, call, "unknown")?;
        let control = Control::Resolve { turn, call, resolution, reason: Label::from(reason) };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Lets a run go on that was parked for a quarantine or something missing.
    pub async fn release(&self, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::Control(Control::Release), key).await
    }

    /// Raises limits.
    pub async fn extend(&self, by: Extension, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::Control(Control::Extend(by)), key).await
    }

    fn check_decision(&self, turn: u32, call: u16, wanted: &str) -> Result<(), Error> {
        let loaded = load_state(&*self.engine.shared.store, self.id)?;
        let (state, _) = loaded.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))?;
        accept::check_decision(&state, turn, call, wanted)
    }

    /// Waits until the run rests: ended, parked, or stopped with its engine.
    pub async fn outcome(&self) -> Result<Rest, Error> {
        let mut rest = self.engine.shared.runs.watch(self.id).rest();
        if rest.borrow().is_none() {
            let loaded = load_state(&*self.engine.shared.store, self.id)?;
            let (state, inbox_len) = loaded.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))?;
            if let Phase::Done { outcome, reason } = state.core.phase {
                return Ok(Rest::Done { outcome, reason: reason.map(|reason| reason.to_string()) });
            }
            // A former engine parked it, and nobody has decided since: nothing of this one moves it.
            if let Phase::Parked { reason, .. } = state.core.phase
                && inbox_len <= state.core.cursors.control
                && !lock(&self.engine.shared.lanes).is_moving(self.id)
            {
                return Ok(Rest::Parked(reason));
            }
        }
        let is_resting = |rest: &Option<Rest>| rest.as_ref().is_some_and(|rest| !rest.is_waiting());
        let found = rest.wait_for(is_resting).await.map(|rest| rest.clone());
        Ok(found.ok().flatten().unwrap_or(Rest::Stopped))
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

    /// The tools of a job that names none: the configured ones, and those that the program added.
    pub(crate) fn default_tools(&self) -> Vec<String> {
        let mut names = self.config.defaults.tools.clone();
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

/// A job of a batch always gets the same id; any other job gets one that nobody can guess.
fn new_run_id(job: &Job) -> RunId {
    match (&job.batch, &job.custom_id) {
        (Some(batch), Some(custom_id)) => keys::batch_run(batch, custom_id),
        (Some(_), None) | (None, _) => RunId(rand::random()),
    }
}
