//! A batch under way: submits what is new, continues what is known, and writes down each end.
//!
//! Owns the order of result lines: the store gives each end its place in its batch, and lines are written by place. What
//! it holds of a job is its id and where it stands; everything else is read when the job ends.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use model::RunId;
use store::Store;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ending::{Ending, ResultLine};
use super::joblog::JobLog;
use super::jobs::{BadLine, JobsFile};
use super::known::{Known, Standing, Tracked};
use super::results::{Mended, Results, Verdict};
use super::{Error, Halt};
use crate::budgets::{BatchCaps, CapReached};
use crate::engine::Engine;
use crate::job::Job;
use crate::keys;
use crate::runs::{Rest, Rests};

/// How often what was written is made durable. A line waits at least as long for one with an earlier place.
pub(super) const SYNC_EVERY: Duration = Duration::from_secs(1);

/// What a batch is run with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Name of the batch.
    pub batch: String,
    /// The file of jobs.
    pub jobs: PathBuf,
    /// The results file.
    pub results: PathBuf,
    /// The joblog, if one is kept.
    pub joblog: Option<PathBuf>,
    /// When to give up.
    pub halt: Option<Halt>,
    /// Lines that cannot be run are left out.
    pub skips_invalid: bool,
    /// Caps of the whole batch, reservations of calls in flight included. What is named replaces what an earlier run of
    /// the batch named, 0 removes it.
    pub caps: NewCaps,
}

/// Caps that a batch is given; none leaves the one that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewCaps {
    /// Model calls.
    pub calls: Option<u64>,
    /// Tokens of all kinds.
    pub tokens: Option<u64>,
    /// Micro-dollars.
    pub usd_micros: Option<u64>,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Jobs.
    pub total: u64,
    /// Jobs that have ended, however.
    pub done: u64,
    /// Jobs that failed, are blocked or timed out.
    pub failed: u64,
    /// Jobs that hold a slot.
    pub running: u64,
    /// Jobs that wait for a timer.
    pub waiting: u64,
    /// Jobs that need a person.
    pub parked: u64,
    /// Turns a second since the last look.
    pub turns_per_s: f64,
    /// Time until the end at the rate so far; none while nothing has ended.
    pub left: Option<Duration>,
}

/// How a batch came to rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The last progress.
    pub progress: Progress,
    /// Every job and where it stands, in the file's order.
    pub jobs: Vec<(String, RunId, Standing)>,
    /// So many jobs failed that the others were not started.
    pub is_halted: bool,
    /// The cap of the batch that keeps parked jobs from going on.
    pub cap_reached: Option<CapReached>,
}

/// A batch under way.
pub struct BatchRun {
    engine: Engine,
    options: Options,
    tracked: Vec<Tracked>,
    index: HashMap<RunId, usize>,
    fresh: Vec<Job>,
    live: Vec<RunId>,
    results: Results,
    joblog: Option<JobLog>,
    rests: Rests,
    /// Ends that wait for one with an earlier place.
    held: BTreeMap<u64, (usize, Ending)>,
    /// The place of the next line.
    next_place: u64,
    /// The last place that was held when the file was last synced.
    held_before: u64,
    ended_before: u64,
    failed: u64,
    skipped: Vec<BadLine>,
    mended: Mended,
    started: Instant,
    looked: (Instant, u64),
}

impl BatchRun {
    /// Compares the file with what is known, and mends the results file. Nothing is started. Lines that cannot be run
    /// are an error, unless they are to be skipped.
    pub fn open(engine: &Engine, file: JobsFile, options: Options) -> Result<Self, Error> {
        let jobs = options.jobs.canonicalize().map_err(Error::unreadable(&options.jobs))?;
        let written = [(Some(&options.results), "--results"), (options.joblog.as_ref(), "--joblog")];
        for (path, flag) in written {
            if let Some(path) = path.filter(|path| path.canonicalize().is_ok_and(|path| path == jobs)) {
                return Err(Error::SameFile(path.clone(), flag));
            }
        }
        let store = &**engine.store();
        let Known { fresh, tracked, live, bad } =
            Known::of(store, engine, &options.batch, &options.jobs, file)?;
        if !bad.is_empty() && !options.skips_invalid {
            return Err(Error::Jobs(bad));
        }
        if options.caps.usd_micros.is_some_and(|usd| usd > 0) {
            fresh.iter().try_for_each(|job| engine.check_priced(job))?;
        }
        let index: HashMap<RunId, usize> = tracked.iter().map(|job| job.run).zip(0..).collect();
        let (results, mended) = Results::open(&options.results, |line| confirm(store, &options.batch, line))?;
        let mut joblog = options.joblog.as_deref().map(JobLog::create).transpose()?;
        if let Some(joblog) = &mut joblog {
            let seq = |run: RunId| index.get(&run).map_or(0, |at| at + 1);
            results.each(|line| joblog.append(line.run.parse().map_or(0, seq), line))?;
        }
        let has_ended = |job: &&Tracked| matches!(job.standing, Standing::Ended(_));
        let ended_before = tracked.iter().filter(has_ended).count() as u64;
        let failed = tracked.iter().filter(|job| job.standing.is_failure()).count() as u64;
        let now = Instant::now();
        let mut batch = Self {
            rests: engine.rests(),
            engine: engine.clone(),
            options,
            tracked,
            index,
            fresh,
            live,
            results,
            joblog,
            held: BTreeMap::new(),
            next_place: 1,
            held_before: 0,
            ended_before,
            failed,
            skipped: bad,
            mended,
            started: now,
            looked: (now, engine.turns()),
        };
        batch.mended.added = batch.add_missing()?;
        Ok(batch)
    }

    /// Lines of the file that are left out.
    pub fn skipped(&self) -> &[BadLine] {
        &self.skipped
    }

    /// What was wrong with the results file.
    pub fn mended(&self) -> &Mended {
        &self.mended
    }

    /// Writes the lines of jobs that have ended and have none, in the order of their ends.
    fn add_missing(&mut self) -> Result<usize, Error> {
        let store = std::sync::Arc::clone(self.engine.store());
        let mut missing = BTreeMap::new();
        for (at, job) in self.tracked.iter().enumerate() {
            if matches!(job.standing, Standing::Ended(_)) && !self.results.has(job.run) {
                let ending = match Ending::read(&*store, &self.options.batch, &job.custom_id, job.run)? {
                    Some(ending) => Some(ending),
                    None => Ending::of_purged(&*store, &job.custom_id, job.run)?,
                };
                missing.extend(ending.map(|ending| ((ending.place, at), ending)));
            }
        }
        let added = missing.len();
        for ((_, at), ending) in missing {
            self.write(at, &ending)?;
        }
        self.next_place = place_after(&*store, &self.options.batch)?;
        self.sync()?;
        Ok(added)
    }

    /// Submits the jobs that are new, and sets those going that a stop or a crash has left.
    pub async fn start(&mut self) -> Result<(), Error> {
        if self.is_halted() {
            return Ok(());
        }
        self.cap().await?;
        for submitted in self.engine.submit_all(std::mem::take(&mut self.fresh)).await {
            submitted?;
        }
        let live = std::mem::take(&mut self.live);
        if !live.is_empty() {
            self.engine.resume(Some(&live))?;
        }
        Ok(())
    }

    /// Gives the batch its caps, before any call is made under them.
    async fn cap(&self) -> Result<(), Error> {
        let NewCaps { calls, tokens, usd_micros } = self.options.caps;
        let batch = self.options.batch.as_str();
        let known = self.engine.batch_caps(batch)?;
        let caps = BatchCaps {
            calls: calls.unwrap_or(known.calls),
            tokens: tokens.unwrap_or(known.tokens),
            usd_micros: usd_micros.unwrap_or(known.usd_micros),
        };
        if caps != known {
            let jobs = &self.options.jobs;
            let jobs = jobs.canonicalize().map_err(Error::unreadable(jobs))?;
            self.engine.cap_batch(batch, caps, &jobs).await?;
        }
        Ok(())
    }

    /// Follows the jobs until none can move any more, and writes a line for each that ends. May be dropped at any moment:
    /// [`BatchRun::finish`] writes what is left.
    pub async fn follow(&mut self, every: Duration, mut show: impl FnMut(&Progress)) -> Result<(), Error> {
        let engine = self.engine.clone();
        let mut rested = Box::pin(engine.rested());
        let mut syncs = interval(SYNC_EVERY);
        let mut shows = interval(every);
        syncs.set_missed_tick_behavior(MissedTickBehavior::Delay);
        shows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.is_halted() {
                self.engine.drain().await;
                return Ok(());
            }
            tokio::select! {
                biased;
                _ = syncs.tick() => {
                    self.write_held(self.held_before)?;
                    self.held_before = self.held.last_key_value().map_or(0, |(place, _)| *place);
                    self.sync()?;
                }
                _ = shows.tick() => show(&self.look()),
                Some((run, rest)) = self.rests.recv() => self.take(run, rest)?,
                () = &mut rested => return Ok(()),
            }
        }
    }

    /// Writes the lines of all that have ended, durably. The engine has come to rest or was stopped.
    pub fn finish(mut self) -> Result<Summary, Error> {
        while let Ok((run, rest)) = self.rests.try_recv() {
            self.take(run, rest)?;
        }
        self.write_held(u64::MAX)?;
        self.sync()?;
        let (is_halted, progress) = (self.is_halted(), self.look());
        let cap_reached = self.cap_reached()?;
        let named = |job: Tracked| (job.custom_id.into_string(), job.run, job.standing);
        Ok(Summary { progress, is_halted, cap_reached, jobs: self.tracked.into_iter().map(named).collect() })
    }

    /// How far the batch is.
    pub fn look(&mut self) -> Progress {
        let total = self.tracked.len() as u64;
        let mut progress = Progress { total, failed: self.failed, ..Progress::default() };
        for job in &self.tracked {
            match &job.standing {
                Standing::Ended(_) => progress.done += 1,
                Standing::Waiting => progress.waiting += 1,
                Standing::Parked(_) => progress.parked += 1,
                Standing::Going | Standing::Stopped | Standing::Broken(_) => {}
            }
        }
        progress.running = self.engine.running() as u64;
        let (now, turns) = (Instant::now(), self.engine.turns());
        let (then, before) = std::mem::replace(&mut self.looked, (now, turns));
        let since = now.duration_since(then).as_secs_f64();
        progress.turns_per_s = if since > 0.0 { turns.saturating_sub(before) as f64 / since } else { 0.0 };
        let ended = progress.done.saturating_sub(self.ended_before);
        progress.left = (ended > 0).then(|| {
            let open = progress.total.saturating_sub(progress.done);
            now.duration_since(self.started).mul_f64(open as f64 / ended as f64)
        });
        progress
    }

    fn cap_reached(&self) -> Result<Option<CapReached>, Error> {
        let shortage = self.tracked.iter().find_map(|job| job.standing.shortage_of_batch());
        let reached = |shortage| CapReached::of(&**self.engine.store(), &self.options.batch, shortage);
        Ok(shortage.map(reached).transpose()?)
    }

    fn is_halted(&self) -> bool {
        self.options.halt.is_some_and(|halt| halt.is_reached(self.failed, self.tracked.len() as u64))
    }

    /// Takes in where a run rests.
    fn take(&mut self, run: RunId, rest: Option<Rest>) -> Result<(), Error> {
        let Some(&at) = self.index.get(&run) else { return Ok(()) };
        let Some(job) = self.tracked.get_mut(at) else { return Ok(()) };
        job.standing = match rest {
            None => Standing::Going,
            Some(Rest::Waiting { .. }) => Standing::Waiting,
            Some(Rest::Parked(reason)) => Standing::Parked(reason),
            Some(Rest::Stopped) => Standing::Stopped,
            Some(Rest::Failed(reason)) => Standing::Broken(reason),
            Some(Rest::Done { outcome, .. }) => Standing::Ended(outcome),
        };
        if !matches!(job.standing, Standing::Ended(_)) {
            return Ok(());
        }
        self.failed += u64::from(job.standing.is_failure());
        let ending = Ending::read(&**self.engine.store(), &self.options.batch, &job.custom_id, run)?;
        if let Some(ending) = ending {
            self.held.insert(ending.place, (at, ending));
            self.write_held(0)?;
        }
        Ok(())
    }

    /// Writes the lines whose turn it is, and those up to `given_up`: what has not come by then is no job of this file.
    fn write_held(&mut self, given_up: u64) -> Result<(), Error> {
        while let Some(first) = self.held.first_entry() {
            if *first.key() > self.next_place.max(given_up) {
                return Ok(());
            }
            let (place, (at, ending)) = first.remove_entry();
            self.next_place = self.next_place.max(place.saturating_add(1));
            self.write(at, &ending)?;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, ending: &Ending) -> Result<(), Error> {
        let Some(job) = self.tracked.get(at) else { return Ok(()) };
        if self.results.append(job.run, &ending.line)?
            && let Some(joblog) = &mut self.joblog
        {
            joblog.append(at + 1, &ending.line)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        if let Some((joblog, path)) = self.joblog.as_ref().zip(self.options.joblog.as_deref()) {
            joblog.sync().map_err(Error::file("sync", path))?;
        }
        self.results.sync()
    }
}

/// The place that the next end of the batch gets.
fn place_after(store: &dyn Store, batch: &str) -> Result<u64, Error> {
    let key = keys::ends(batch);
    let found = store.scan(&key, None, 1)?.into_iter().next();
    let ends = found.and_then(|(_, value)| value.as_slice().try_into().ok()).map_or(0, u64::from_le_bytes);
    Ok(ends.saturating_add(1))
}

/// What the store says of a result line. What was purged keeps the hash of its end.
fn confirm(store: &dyn Store, batch: &str, line: &ResultLine) -> Result<Verdict, crate::Error> {
    let run = keys::batch_run(batch, &line.custom_id);
    let named = line.run.parse::<RunId>().unwrap_or(run);
    let loaded = store.load(keys::run_key(run))?;
    if loaded.head.is_none() && (named == run || store.load(keys::run_key(named))?.head.is_none()) {
        return Ok(Verdict::Foreign(named));
    }
    if line.run != run.to_string() {
        let reason = format!("run {} is not that of job `{}` of this batch", line.run, line.custom_id);
        return Ok(Verdict::Wrong(reason));
    }
    let head = loaded.head.filter(|_| loaded.is_ended).map(|head| head.hash.to_string());
    Ok(match head {
        Some(head) if head == line.journal_head => Verdict::Right(run),
        Some(_) => Verdict::Wrong(format!("run {run} ended in another way")),
        None => Verdict::Wrong(format!("run {run} has not ended")),
    })
}
