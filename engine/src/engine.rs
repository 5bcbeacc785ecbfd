//! The engine: opens a store, accepts jobs, drives runs.
//!
//! Owns the life of drivers and the lanes between them. It starts no runtime and no thread of its own beyond those of
//! the store; dropping a handle cancels nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
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
use crate::driver::{Attached, Driver, Left, load_state, read_first};
use crate::error::Error;
use crate::harness::Harness;
use crate::job::Job;
use crate::keys;
use crate::lanes::Lanes;
use crate::models::Models;
use crate::provider::ModelProvider;
use crate::report::{Found, Note, Report};
use crate::runs::{Rest, Runs, lock};
use crate::shared::Shared;
use crate::tool::builtin::{BUILTIN, builtin};
use crate::tool::registry::Registry;
use crate::tool::{Tool, ToolSpec};

/// Runs read at once while an engine opens.
const SCAN_PAGE: usize = 4096;

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

    /// Opens the engine. Must be called inside a runtime. Nothing runs before a job is submitted or a run resumed.
    pub fn open(mut self) -> Result<Engine, Error> {
        if let Some(store) = self.store.take() {
            return self.start(store, None);
        }
        let Some(dir) = self.dir.clone() else {
            let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
            return self.start(memory, None);
        };
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let options = store::Options { opened_at_ms: self.clock.now().0, ..self.store_options.clone() };
        let journal = Arc::new(JournalStore::open(&dir, options)?);
        let engine = Self { dir: Some(dir), ..self };
        engine.start(Arc::clone(&journal) as Arc<dyn Store>, Some(journal))
    }

    fn start(self, store: Arc<dyn Store>, journal: Option<Arc<JournalStore>>) -> Result<Engine, Error> {
        let builtins = BUILTIN.iter().filter_map(|name| builtin(name));
        let tools = Registry::new(builtins.chain(self.tools).collect())
            .map_err(|error| Error::Setup(error.to_string()))?;
        let epoch = store.claim()?;
        let width = usize::try_from(self.config.defaults.concurrency.get()).unwrap_or(usize::MAX);
        let shared = Shared {
            store,
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
        };
        let engine = Engine { shared: Arc::new(shared), journal, driving: Arc::default() };
        engine.fill_lanes()?;
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
        }
    }

    /// Accepts a job; once it returns, the job is durable. With a key that is known, the known run is answered.
    pub async fn submit(&self, job: Job) -> Result<RunHandle, Error> {
        self.submit_attached(job, Attached::default()).await
    }

    pub(crate) async fn submit_attached(&self, job: Job, attached: Attached) -> Result<RunHandle, Error> {
        let run = new_run_id(&job);
        let accepted = accept::submit(&self.shared, run, &job)?.accepted().await?;
        self.admit(&accepted, attached);
        Ok(self.handle(accepted.run))
    }

    /// Accepts many jobs at once, under as few barriers as fit. Answers in their order.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Vec<Result<RunHandle, Error>> {
        let submitting: Vec<_> =
            jobs.into_iter().map(|job| accept::submit(&self.shared, new_run_id(&job), &job)).collect();
        let mut handles = Vec::with_capacity(submitting.len());
        for submitting in submitting {
            let accepted = match submitting {
                Ok(submitting) => submitting.accepted().await,
                Err(error) => Err(error),
            };
            handles.push(accepted.map(|accepted| {
                self.admit(&accepted, Attached::default());
                self.handle(accepted.run)
            }));
        }
        handles
    }

    fn admit(&self, accepted: &Accepted, attached: Attached) {
        if accepted.is_known {
            return;
        }
        if attached.sink.is_some() || attached.abort.is_some() {
            // Driven by its submitter's own wish, outside of the queue of slots.
            return self.spawn(accepted.run, accepted.session.clone(), attached, false);
        }
        lock(&self.shared.lanes).join(&accepted.session, accepted.run, true);
        self.run_ready();
    }

    /// A handle on a run, whether or not it exists or has ended.
    pub fn handle(&self, id: RunId) -> RunHandle {
        RunHandle { engine: self.clone(), id }
    }

    /// Fills the lanes with the runs that have not ended, in order of submission. None of them moves yet.
    fn fill_lanes(&self) -> Result<(), Error> {
        for run in self.live_runs()? {
            let session = self.session_of(run)?;
            lock(&self.shared.lanes).join(&session, run, false);
        }
        Ok(())
    }

    /// The runs that have not ended, in order of submission.
    pub fn live_runs(&self) -> Result<Vec<RunId>, Error> {
        let mut runs = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.shared.store.scan(keys::LIVE, after.as_deref(), SCAN_PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(runs) };
            after = Some(last.clone());
            runs.extend(page.iter().filter_map(|(key, _)| keys::run_of(key)));
        }
    }

    fn session_of(&self, run: RunId) -> Result<String, Error> {
        Ok(read_first(&*self.shared.store, run)?.submission.session.clone())
    }

    /// Continues the given runs, or every run that can go on. Answers those that were set going.
    pub fn resume(&self, only: Option<&[RunId]>) -> Result<Vec<RunHandle>, Error> {
        let mut handles = Vec::new();
        for run in self.live_runs()? {
            if only.is_some_and(|only| !only.contains(&run)) {
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
            _ => true,
        };
        if can_move {
            let session = self.session_of(run)?;
            self.shared.runs.watch(run).set_rest(None);
            lock(&self.shared.lanes).make_ready(&session, run, goes_first);
        }
        Ok(can_move)
    }

    /// Gives free slots to runs that are ready.
    fn run_ready(&self) {
        loop {
            let next = lock(&self.shared.lanes).next();
            let Some(run) = next else { return };
            match self.session_of(run) {
                Ok(session) => self.spawn(run, session, Attached::default(), true),
                Err(error) => {
                    tracing::error!(%run, %error, "the run cannot be read");
                    lock(&self.shared.lanes).release(run);
                }
            }
        }
    }

    fn spawn(&self, run: RunId, session: String, attached: Attached, holds_slot: bool) {
        let engine = self.clone();
        self.driving.count.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(async move {
            let left = engine.drive(run, attached).await;
            engine.settle(run, &session, left, holds_slot);
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
    fn settle(&self, run: RunId, session: &str, left: Result<Left, Error>, holds_slot: bool) {
        if holds_slot {
            lock(&self.shared.lanes).release(run);
        }
        let Left { rest, inbox_len } = left.unwrap_or_else(|error| {
            tracing::error!(%run, %error, "the run stopped");
            Left { rest: Rest::Failed(error.to_string()), inbox_len: u64::MAX }
        });
        match &rest {
            Rest::Done { .. } => {
                let next = lock(&self.shared.lanes).leave(session, run);
                if let Some(next) = next {
                    lock(&self.shared.lanes).make_ready(session, next, false);
                }
            }
            Rest::Parked(reason) => {
                self.shared.report.note(run, None, Found::Parked, reason.name());
            }
            Rest::Waiting { until } => self.wake_at(run, *until),
            Rest::Stopped | Rest::Failed(_) => {}
        }
        let is_done = matches!(rest, Rest::Done { .. });
        self.shared.runs.watch(run).set_rest(Some(rest));
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
        while self.driving.count.load(Ordering::Acquire) > 0 {
            let changed = self.driving.changed.notified();
            if self.driving.count.load(Ordering::Acquire) == 0 {
                break;
            }
            // The bound covers a driver that ended between the two looks.
            let _ = tokio::time::timeout(Duration::from_millis(50), changed).await;
        }
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
            match state.core.phase {
                Phase::Done { outcome, reason } => {
                    return Ok(Rest::Done { outcome, reason: reason.map(|reason| reason.to_string()) });
                }
                // A former engine parked it, and nobody has decided since: nothing of this one moves it.
                Phase::Parked { reason, .. }
                    if inbox_len <= state.core.cursors.control
                        && !lock(&self.engine.shared.lanes).is_moving(self.id) =>
                {
                    return Ok(Rest::Parked(reason));
                }
                _ => {}
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
        let added = self.tool_names().into_iter().filter(|name| !BUILTIN.contains(&name.as_str()));
        for name in added {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// A job of a batch always gets the same id; any other job gets one that nobody can guess.
fn new_run_id(job: &Job) -> RunId {
    if let (Some(batch), Some(custom_id)) = (&job.batch, &job.custom_id) {
        let mut hasher = blake3::Hasher::new();
        for name in [batch, custom_id] {
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        }
        let mut id = [0; 16];
        id.copy_from_slice(hasher.finalize().as_bytes().get(..16).unwrap_or(&[0; 16]));
        return RunId(id);
    }
    RunId(rand::random())
}
