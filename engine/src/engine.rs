//! The engine: opens a store, accepts jobs, drives runs.
//!
//! Owns the life of drivers and the lanes between them. It starts no runtime and no thread of its own beyond those of
//! the store; dropping a handle cancels nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use model::inbox::Item;
use model::{Millis, ParkReason, Phase, RunId, RunState, Scope, Shortage};
use store::{JournalStore, Store};
use tokio::task::AbortHandle;

use crate::accept::{self, Accepted, Submitting};
use crate::budgets::{self, BatchCaps, BatchFacts};
use crate::config::Config;
use crate::configs::Settings;
use crate::driver::{Asleep, Attached, Driver, Left, Paused, load_state};
use crate::error::Error;
use crate::handle::RunHandle;
use crate::job::Job;
use crate::keys::{self, Lane};
use crate::report::{Found, Note};
use crate::runs::{Rest, Rests, lock};
use crate::shared::Shared;
use crate::suspects::{self, Rank};

/// Runs read at once while an engine opens.
const SCAN_PAGE: usize = 4096;
/// Jobs on their way into the store at once. The journal writes some while others are made; what they take in memory is
/// not given back by the allocator while the runs wait.
const SUBMITTING_MAX: usize = 1024;

/// An open engine. Clones are handles on the same one.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) journal: Option<Arc<JournalStore>>,
    pub(crate) driving: Arc<Driving>,
}

/// Drivers under way, so that a stop can wait for them.
#[derive(Debug, Default)]
pub(crate) struct Driving {
    count: AtomicUsize,
    /// Runs without a driver that something will wake.
    waiting: AtomicUsize,
    /// The timers of those that wait for one.
    timers: Mutex<HashMap<RunId, AbortHandle>>,
    changed: tokio::sync::Notify,
}

impl Engine {
    /// Accepts a job; once it returns, the job is durable. With a key that is known, the known run is answered.
    pub async fn submit(&self, job: Job) -> Result<RunHandle, Error> {
        self.submit_attached(job, Attached::default()).await
    }

    pub(crate) async fn submit_attached(&self, job: Job, attached: Attached) -> Result<RunHandle, Error> {
        self.submit_with(job, &self.shared.configs.in_force(), attached).await
    }

    /// Accepts a job whose run keeps these settings.
    pub(crate) async fn submit_with(
        &self,
        job: Job,
        settings: &Settings,
        attached: Attached,
    ) -> Result<RunHandle, Error> {
        let run = new_run_id(&job);
        let submitting = accept::submit(&self.shared, run, &job, settings, attached.is_some()).await?;
        let accepted = submitting.accepted().await?;
        accept::check_repeated(&self.shared, &accepted, &job)?;
        self.admit(&accepted, attached);
        Ok(self.handle(accepted.run))
    }

    /// Accepts many jobs at once, under as few barriers as fit. Answers in their order; none runs before all are
    /// accepted.
    pub async fn submit_all(&self, jobs: impl IntoIterator<Item = Job>) -> Vec<Result<RunHandle, Error>> {
        let mut handles = Vec::new();
        let mut submitting = VecDeque::with_capacity(SUBMITTING_MAX);
        for job in jobs {
            if submitting.len() == SUBMITTING_MAX
                && let Some(first) = submitting.pop_front()
            {
                handles.push(self.take_place(first).await);
            }
            let settings = self.shared.configs.in_force();
            submitting
                .push_back(accept::submit(&self.shared, new_run_id(&job), &job, &settings, false).await);
        }
        for submitting in submitting {
            handles.push(self.take_place(submitting).await);
        }
        self.run_ready();
        handles
    }

    /// Waits until a job is accepted; its run then has its place in its lane.
    async fn take_place(&self, submitting: Result<Submitting, Error>) -> Result<RunHandle, Error> {
        let accepted = submitting?.accepted().await?;
        if !accepted.is_known {
            lock(&self.shared.lanes).join(accepted.lane, accepted.run, true);
        }
        Ok(self.handle(accepted.run))
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

    /// Gives a batch its caps, durably. They hold for every model call from now on; a run that was parked by an earlier
    /// cap goes on when it is resumed. `jobs` is the file that the batch was read from, for whoever is told how to raise
    /// a cap; empty if it came from none.
    pub async fn cap_batch(&self, batch: &str, caps: BatchCaps, jobs: &Path) -> Result<(), Error> {
        budgets::cap(&self.shared, batch, caps, jobs).await
    }

    /// The caps of a batch.
    pub fn batch_caps(&self, batch: &str) -> Result<BatchCaps, Error> {
        Ok(BatchFacts::read(&*self.shared.store, batch)?.caps)
    }

    /// Takes another configuration. Jobs that are accepted from now on get it; runs keep the settings they started with,
    /// but for `[profiles]`, which are looked up in the new one at each call, and for `defaults.concurrency`, which is the
    /// engine's own. Must be called inside a runtime.
    pub fn reload(&self, config: Config) {
        let slots = config.defaults.slots();
        self.shared.configs.replace(config);
        lock(&self.shared.lanes).set_width(slots);
        self.run_ready();
    }

    /// A handle on a run, whether or not it exists or has ended.
    pub fn handle(&self, id: RunId) -> RunHandle {
        RunHandle { engine: self.clone(), id }
    }

    /// Fills the lanes with the runs that have not ended, in order of submission. None of them moves yet.
    pub(crate) fn fill_lanes(&self) -> Result<(), Error> {
        let mut lanes = lock(&self.shared.lanes);
        each_live(&*self.shared.store, |run, lane| lanes.join(lane, run, false))
    }

    /// Removes what calls of runs that have ended left behind.
    pub(crate) fn sweep_calls(&self) {
        let Some(dir) = &self.shared.dir else { return };
        let left = ["calls", "spool"].map(|name| std::fs::read_dir(dir.join(name)));
        for entry in left.into_iter().flatten().flatten().flatten() {
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
        each_live(&*self.shared.store, |run, _| runs.push(run))?;
        Ok(runs)
    }

    /// Continues the given runs, or every run that can go on. Answers those that were set going.
    pub fn resume(&self, only: Option<&[RunId]>) -> Result<Vec<RunHandle>, Error> {
        let mut handles = Vec::new();
        let mut suspects = Vec::new();
        let only: Option<HashSet<RunId>> = only.map(|only| only.iter().copied().collect());
        for run in self.live_runs()? {
            if only.as_ref().is_some_and(|only| !only.contains(&run)) {
                continue;
            }
            let Some((state, inbox_len)) = load_state(&*self.shared.store, run)? else { continue };
            if !can_move(&state, inbox_len) {
                self.shared.report.note(run, None, Found::Parked, &self.parked_text(run, &state.core.phase));
                continue;
            }
            handles.push(self.handle(run));
            if self.shared.suspects.is_waiting(run) {
                continue;
            }
            match self.place_in_line(run, &state) {
                Some(rank) => suspects.push((rank, run)),
                None => {
                    self.shared.report.note(run, None, Found::Resumed, "the run goes on");
                    self.set_going(run, false);
                }
            }
        }
        self.try_alone(suspects);
        self.run_ready();
        Ok(handles)
    }

    /// Why a parked run does not go on, for the report.
    fn parked_text(&self, run: RunId, phase: &Phase) -> String {
        if let Phase::Parked { reason: model::ParkReason::Quarantine, .. } = phase
            && let Ok(crate::query::Why { sentence, command: Some(command) }) =
                crate::query::why(&*self.shared.store, run, true)
        {
            return format!("quarantine: {sentence} `{command}` lets it go on");
        }
        phase.to_string()
    }

    /// The run's place among the suspects, if this engine tries those and it was under way at an unclean end.
    fn place_in_line(&self, run: RunId, state: &RunState) -> Option<Rank> {
        let Shared { lives, suspects, .. } = &*self.shared;
        let is_left = lives.has_trials() && lives.was_unclean(state.core.owner.epoch);
        if is_left && !suspects.is_known(run) { suspects::rank(state) } else { None }
    }

    /// Makes a run ready if anything can move it. A suspect that waits for its turn goes on when it comes.
    fn wake(&self, run: RunId, goes_first: bool) -> Result<bool, Error> {
        let Some((state, inbox_len)) = load_state(&*self.shared.store, run)? else { return Ok(false) };
        let can_move = can_move(&state, inbox_len);
        if can_move && !self.shared.suspects.is_waiting(run) {
            self.set_going(run, goes_first);
        }
        Ok(can_move)
    }

    /// The run gets a slot when it is its turn.
    pub(crate) fn set_going(&self, run: RunId, goes_first: bool) {
        self.shared.runs.set_rest(run, None);
        lock(&self.shared.lanes).make_ready(run, goes_first);
    }

    /// Gives free slots to runs that are ready, unless the engine is to stop.
    pub(crate) fn run_ready(&self) {
        while !self.shared.stop.is_cancelled() && !self.shared.drain.is_cancelled() {
            let next = lock(&self.shared.lanes).next();
            let Some(run) = next else { return };
            self.spawn(run, Attached::default(), true);
        }
    }

    /// Moves a run until it rests. Each time that it sleeps its driver goes, and another one is loaded for it later. What
    /// drives is on the heap: a run that sleeps, or waits to be loaded, does not keep room for it.
    fn spawn(&self, run: RunId, attached: Attached, holds_slot: bool) {
        let engine = self.clone();
        self.driving.count.fetch_add(1, Ordering::AcqRel);
        self.driving.end_timer(run);
        tokio::spawn(async move {
            let mut asleep = engine.start_driver(run, attached, holds_slot).await;
            while let Some(sleeping) = asleep {
                asleep = engine.sleep(sleeping, holds_slot).await;
            }
            engine.driving.count.fetch_sub(1, Ordering::AcqRel);
            engine.driving.changed.notify_waiters();
        });
    }

    async fn start_driver(&self, run: RunId, attached: Attached, holds_slot: bool) -> Option<Box<Asleep>> {
        self.shared.lives.begin(&self.shared).await;
        let room = if attached.is_some() { None } else { self.shared.room_to_load().await };
        let driven = async {
            let mut driver = Driver::load(Arc::clone(&self.shared), run, attached, room)?;
            Box::pin(driver.settle()).await?;
            driver.drive().await
        };
        self.drive(run, driven, holds_slot).await
    }

    async fn sleep(&self, mut asleep: Box<Asleep>, holds_slot: bool) -> Option<Box<Asleep>> {
        let news = asleep.until_needed(&self.shared).await;
        let room = self.shared.room_to_load().await;
        let run = asleep.run();
        let driven = async {
            let mut driver = Driver::wake(Arc::clone(&self.shared), *asleep, room)?;
            if let Some(news) = news {
                Box::pin(driver.take_news(*news)).await?;
            }
            driver.drive().await
        };
        self.drive(run, driven, holds_slot).await
    }

    /// Answers what stays if the run sleeps; none once it rests.
    fn drive<'a>(
        &'a self,
        run: RunId,
        driven: impl Future<Output = Result<Paused, Error>> + Send + 'a,
        holds_slot: bool,
    ) -> BoxFuture<'a, Option<Box<Asleep>>> {
        Box::pin(async move {
            let left = match driven.await {
                Ok(Paused::Sleeps(asleep)) => return Some(Box::new(asleep)),
                Ok(Paused::Rests(left)) => Ok(left),
                Err(error) => Err(error),
            };
            self.settle(run, left, holds_slot);
            None
        })
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
                let words = match load_state(&*self.shared.store, run) {
                    Ok(Some((state, _))) if *reason == model::ParkReason::Quarantine => {
                        self.parked_text(run, &state.core.phase)
                    }
                    // It waits in the middle of a call, and nothing durable says for what.
                    Ok(Some((state, _))) if !matches!(state.core.phase, Phase::Parked { .. }) => {
                        reason.to_string()
                    }
                    Ok(_) | Err(_) => reason.name().to_owned(),
                };
                self.shared.report.note(run, None, Found::Parked, &words);
            }
            Rest::Waiting { until } => self.wake_at(run, *until),
            Rest::Stopped | Rest::Failed(_) => {}
        }
        self.shared.suspects.pass(run);
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
        let waiting = self.driving.waits();
        self.driving.set_timer(run, async move {
            tokio::select! {
                () = engine.shared.stop.cancelled() => {}
                () = tokio::time::sleep(left) => {
                    if let Err(error) = engine.wake(run, true) {
                        tracing::error!(%run, %error, "the run could not be woken");
                    }
                    engine.run_ready();
                }
            }
            drop(waiting);
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
        self.shared.lives.end(&self.shared).await;
        self.shared.models.quiet().await;
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
        self.report_since(0)
    }

    /// The same without its first lines, for whoever has seen those.
    pub fn report_since(&self, first: usize) -> Vec<Note> {
        self.shared.report.since(first)
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
        accept::check(&self.shared, &self.shared.configs.in_force().config, job).map(|_| ())
    }

    /// Says whether a cap in dollars would stop the run that a job becomes.
    pub fn check_priced(&self, job: &Job) -> Result<(), Error> {
        accept::check_priced(&self.shared, job)
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
    pub(crate) async fn push(&self, run: RunId, item: Item, key: Option<&str>) -> Result<(), Error> {
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

/// Visits the runs that have not ended with their lanes, in order of submission.
pub(crate) fn each_live(store: &dyn Store, mut visit: impl FnMut(RunId, Lane)) -> Result<(), Error> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = store.scan(keys::LIVE, after.as_deref(), SCAN_PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = Some(last.clone());
        for (key, value) in &page {
            if let (Some(run), Ok(lane)) = (keys::run_of(key), value.as_slice().try_into()) {
                visit(run, lane);
            }
        }
    }
}

impl Driving {
    /// No driver is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The run waits for this timer, and for no earlier one. It is known before it can be over.
    fn set_timer(&self, run: RunId, timer: impl Future<Output = ()> + Send + 'static) {
        let mut timers = lock(&self.timers);
        let timer = tokio::spawn(timer).abort_handle();
        if let Some(earlier) = timers.insert(run, timer) {
            earlier.abort();
        }
    }

    /// The run moves, or has been woken by its timer: nobody waits for that any more.
    fn end_timer(&self, run: RunId) {
        if let Some(timer) = lock(&self.timers).remove(&run) {
            timer.abort();
        }
    }

    /// A run without a driver will move by itself, until the guard is dropped.
    pub(crate) fn waits(self: &Arc<Self>) -> Waits {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(Arc::clone(self))
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            // The bound covers a change between the look and the wait.
            let _ = tokio::time::timeout(Duration::from_millis(50), self.changed.notified()).await;
        }
    }
}

/// Something moves a run later on.
pub(crate) struct Waits(Arc<Driving>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

/// Something can move the run: it is not parked, or what it waits for may be there.
fn can_move(state: &RunState, inbox_len: u64) -> bool {
    match &state.core.phase {
        Phase::Done { .. } => false,
        Phase::Parked { reason, .. } if may_be_over(reason) => true,
        Phase::Parked { .. } => state.core.cursors.control < inbox_len,
        Phase::Queued
        | Phase::InjectPending { .. }
        | Phase::Stream { .. }
        | Phase::Dispatch { .. }
        | Phase::ExecuteTools { .. }
        | Phase::Finalize { .. }
        | Phase::Compact { .. } => true,
    }
}

/// What the run waits for may be there again without a decision about this run: its driver looks.
fn may_be_over(reason: &ParkReason) -> bool {
    match reason {
        ParkReason::Missing(_) | ParkReason::Budget(Shortage { scope: Scope::Batch, .. }) => true,
        ParkReason::Approval
        | ParkReason::UnknownOutcome
        | ParkReason::Quarantine
        | ParkReason::Budget(Shortage { scope: Scope::Run, .. }) => false,
    }
}

/// A job of a batch always gets the same id; any other job gets one that nobody can guess.
fn new_run_id(job: &Job) -> RunId {
    match (&job.batch, &job.custom_id) {
        (Some(batch), Some(custom_id)) => keys::batch_run(batch, custom_id),
        (Some(_), None) | (None, _) => RunId(rand::random()),
    }
}
