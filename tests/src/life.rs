//! Lives of the process: each opens the directory, does what its stage says, and ends cleanly or is cut.
//!
//! Owns the death: the runtime is dropped with everything in it, and the disk has stopped to take anything. It must never
//! judge what is left.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::provider::Rehearsal;
use engine::{Engine, JournalView, Rest, RunHandle};
use model::input::Resolution;
use model::state::CallStatus;
use model::{ParkReason, Phase};
use store::fs::Fs;
use store::{JournalStore, RunKey, StateOptions, Store};

use crate::chronicle::Chronicle;
use crate::disk::PoweredDisk;
use crate::harness::harness;
use crate::power::Power;
use crate::scenario::{Early, Scenario, Stage};
use crate::stores::{Pace, Paced};
use crate::tools::{CountedModel, Doer, TOOLS};
use crate::world::{Answer, Ask, WallClock, World};

/// Longest time, in the world's time, that a life may take: whoever needs more hangs.
const LIFE: Duration = Duration::from_secs(3600);

/// First segments are small: a life writes little, and zeros are cut as often as anything else.
const SEGMENT_BYTES: u64 = 160 << 10;

/// How often a process that cannot open its directory is started again.
const OPENS_MAX: usize = 20;

/// A machine that runs one process after another.
pub struct Machine {
    /// Its power.
    pub power: Arc<Power>,
    /// Its disk.
    pub disk: Arc<PoweredDisk>,
    /// How commits reach the journal.
    pub pace: Pace,
    /// This boot.
    pub boot: u8,
    /// Size of the first segment of each life.
    pub segment_bytes: u64,
    /// Who notes what holds at each moment.
    pub chronicle: Option<Arc<Chronicle>>,
}

/// How a machine's work ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worked {
    /// Every stage is done.
    Finished,
    /// The process died.
    Died,
    /// The process lived, and could not go on.
    Failed(String),
}

impl Machine {
    /// A machine on this power.
    pub fn new(power: Power) -> Self {
        let power = Arc::new(power);
        let disk = Arc::new(PoweredDisk::new(Arc::clone(&power)));
        Self { power, disk, pace: Pace::Stepwise, boot: 1, segment_bytes: SEGMENT_BYTES, chronicle: None }
    }

    /// A machine whose process died and starts again: nothing is lost.
    pub fn again(&self, power: Power) -> Self {
        let power = Arc::new(power);
        let disk = Arc::new(self.disk.on(Arc::clone(&power)));
        let chronicle = self.chronicle.clone();
        Self { power, disk, pace: self.pace, boot: self.boot, segment_bytes: self.segment_bytes, chronicle }
    }

    /// The same with segments of another size.
    pub fn segments(self, segment_bytes: u64) -> Self {
        Self { segment_bytes, ..self }
    }

    /// The same, and what holds at each moment is noted.
    pub fn watched(self, chronicle: Arc<Chronicle>) -> Self {
        Self { chronicle: Some(chronicle), ..self }
    }

    /// The same at another pace.
    pub fn pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// The same in another boot.
    pub fn boot(self, boot: u8) -> Self {
        Self { boot, ..self }
    }

    /// The same with a disk whose syncs do nothing.
    pub fn lying(self) -> Self {
        Self { disk: Arc::new(PoweredDisk::lying(Arc::clone(&self.power))), ..self }
    }

    /// Runs the stages from the first that is not done. `done` counts them.
    pub fn work(&self, scenario: &Scenario, world: &Arc<World>, dir: &Path, done: &mut usize) -> Worked {
        while let Some(stage) = scenario.stages.get(*done) {
            self.chronicle.iter().for_each(|chronicle| chronicle.done(*done));
            let worked = self.live(world, async || self.stage(scenario, *stage, world, dir).await);
            if worked != Worked::Finished {
                return worked;
            }
            *done += 1;
        }
        Worked::Finished
    }

    /// One life of the process.
    pub fn live(&self, world: &Arc<World>, life: impl AsyncFnOnce() -> Result<(), String>) -> Worked {
        let is_virtual = self.pace != Pace::Free;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(is_virtual)
            .build()
            .unwrap_or_else(|error| unreachable!("a runtime without a driver always starts: {error}"));
        let worked = runtime.block_on(async {
            world.begin(Arc::clone(&self.power));
            let lived = async {
                match tokio::time::timeout(LIFE, life()).await {
                    Ok(Ok(())) => Worked::Finished,
                    Ok(Err(words)) => Worked::Failed(words),
                    Err(_) => Worked::Failed("it never came to an end".to_owned()),
                }
            };
            let worked = tokio::select! {
                biased;
                () = self.power.out() => Worked::Died,
                worked = lived => worked,
            };
            world.end();
            worked
        });
        drop(runtime);
        if self.power.is_spent() {
            return Worked::Failed("it never came to rest".to_owned());
        }
        // What fails because the process dies is a death.
        if self.power.is_out() { Worked::Died } else { worked }
    }

    /// Opens the store in the directory.
    pub fn open_store(&self, world: &World, dir: &Path) -> Result<JournalStore, store::Error> {
        let options = store::Options {
            disk: Arc::clone(&self.disk) as Arc<dyn Fs>,
            linger: None,
            inline_preparation: true,
            boot_id: [self.boot; 16],
            segment_bytes: self.segment_bytes,
            opened_at_ms: world.now().0,
            state: StateOptions { cache_bytes: 1 << 20, ..StateOptions::default() },
            ..store::Options::default()
        };
        JournalStore::open(dir, options)
    }

    /// Opens the directory.
    pub fn open(&self, scenario: &Scenario, world: &Arc<World>, dir: &Path) -> Result<Opened, String> {
        self.chronicle.iter().for_each(|chronicle| chronicle.note(&self.disk, None));
        let journal = Arc::new(self.open_store(world, dir).map_err(|error| error.to_string())?);
        let mut store = Paced::new(Arc::clone(&journal), self.pace);
        if let Some(chronicle) = &self.chronicle {
            chronicle.opened(journal.opening().frames);
            chronicle.note(&self.disk, Some(&journal));
            store = store.watched(Arc::clone(chronicle), Arc::clone(&self.disk));
        }
        let store = Arc::new(store);
        let engine = self.engine(scenario, world, dir, Arc::clone(&store) as Arc<dyn Store>)?;
        world.enter(engine.clone());
        Ok(Opened { engine, journal, store })
    }

    /// One more engine on an open store.
    pub fn engine(
        &self,
        scenario: &Scenario,
        world: &Arc<World>,
        dir: &Path,
        store: Arc<dyn Store>,
    ) -> Result<Engine, String> {
        let script = Rehearsal::from_value(&scenario.script).map_err(|error| error.to_string())?;
        let mut builder = Engine::builder(dir)
            .without_commands()
            .store(store)
            .store_options(store::Options { boot_id: [self.boot; 16], ..store::Options::default() })
            .clock(WallClock(Arc::clone(world)))
            .provider("m", CountedModel::new(script, world))
            .harness(harness(world, &scenario.hooks, scenario.summarises));
        for (name, class) in TOOLS {
            builder = builder.tool(Doer::new(name, class, world));
        }
        builder.open().map_err(|error| error.to_string())
    }

    async fn stage(
        &self,
        scenario: &Scenario,
        stage: Stage,
        world: &Arc<World>,
        dir: &Path,
    ) -> Result<(), String> {
        let mut opened = self.open(scenario, world, dir);
        for _ in 0..OPENS_MAX {
            if opened.is_ok() {
                break;
            }
            opened = self.open(scenario, world, dir);
        }
        let opened = opened?;
        let runs = submit(scenario, world, &opened.engine).await?;
        match stage {
            Stage::Cancel => {
                for run in &runs {
                    let key = format!("cancel {}", run.id);
                    let requests = world.requests();
                    let was_heard =
                        requests.iter().any(|known| known.key == key && known.answer != Answer::None);
                    until_heard(world, &key, Ask::Cancel(run.id)).await;
                    if was_heard {
                        // The engine that heard it is dead: whoever starts the next one resumes.
                        opened.engine.resume(None).map_err(|error| error.to_string())?;
                    }
                }
            }
            Stage::Finish | Stage::Rest => {
                opened.engine.resume(None).map_err(|error| error.to_string())?;
            }
        }
        for run in &runs {
            if stage == Stage::Rest {
                run.outcome().await.map_err(|error| error.to_string())?;
            } else {
                finish(world, run).await?;
            }
        }
        opened.close(world).await
    }
}

/// An open engine and its store.
pub struct Opened {
    /// The engine.
    pub engine: Engine,
    /// The store below.
    pub journal: Arc<JournalStore>,
    /// The store that the engine sees.
    pub store: Arc<Paced>,
}

impl Opened {
    /// Ends the process cleanly.
    pub async fn close(self, world: &Arc<World>) -> Result<(), String> {
        // A hasty store writes what it owes when it is read.
        self.store.load(RunKey([0; 16])).map_err(|error| error.to_string())?;
        self.engine.close().await.map_err(|error| error.to_string())?;
        world.end();
        world.begin(world.power());
        // A process may die before its close is through; nothing depends on it.
        let _ = self.journal.close();
        Ok(())
    }
}

/// Submits everything, whether or not it was submitted before: a known key finds its run.
async fn submit(scenario: &Scenario, world: &Arc<World>, engine: &Engine) -> Result<Vec<RunHandle>, String> {
    let mut runs = Vec::new();
    for job in &scenario.jobs {
        let name = job.custom_id.clone().unwrap_or_default();
        let key = format!("submit {name}");
        let Answer::Accepted(run) = until_heard(world, &key, Ask::Submit(Box::new(job.clone()))).await else {
            return Err(format!("{key} was refused"));
        };
        let again = engine.submit(job.clone().key(&key)).await.map_err(|error| error.to_string())?;
        if again.id != run {
            return Err(format!("{key} was answered with {run}, then with {}", again.id));
        }
        runs.push(engine.handle(run));
        if runs.len() == 1 {
            for (n, early) in scenario.early.iter().enumerate() {
                let ask = match early {
                    Early::Steer(text) => Ask::Steer(run, (*text).to_owned()),
                    Early::FollowUp(text) => Ask::FollowUp(run, (*text).to_owned()),
                };
                until_heard(world, &format!("early {n}"), ask).await;
            }
        }
    }
    world.ask_again().await.map_err(|error| error.to_string())?;
    Ok(runs)
}

/// The client asks until it is heard.
pub async fn until_heard(world: &Arc<World>, key: &str, ask: Ask) -> Answer {
    loop {
        match world.ask(key, ask.clone()).await {
            Ok(answer) => return answer,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// Waits until a run has ended, and answers what it asks.
pub async fn finish(world: &Arc<World>, run: &RunHandle) -> Result<(), String> {
    loop {
        match run.outcome().await.map_err(|error| error.to_string())? {
            Rest::Done { .. } => return Ok(()),
            Rest::Parked(ParkReason::Approval | ParkReason::UnknownOutcome) => decide(world, run).await?,
            rest @ (Rest::Parked(_) | Rest::Waiting { .. } | Rest::Stopped | Rest::Failed(_)) => {
                return Err(format!("run {} rests: {rest:?}", run.id));
            }
        }
    }
}

/// A person decides: a call that waits may run; one of unknown outcome is looked for in the world.
async fn decide(world: &Arc<World>, run: &RunHandle) -> Result<(), String> {
    let replayed =
        engine::replay(&**run.engine().store(), run.id, None).map_err(|error| error.to_string())?;
    let Some(state) = replayed.state else { return Ok(()) };
    let Phase::Parked { from, .. } = &state.core.phase else { return Ok(()) };
    let Phase::ExecuteTools { turn, .. } = **from else { return Ok(()) };
    for (index, call) in (0u16..).zip(state.batch.iter().flat_map(|batch| &batch.calls)) {
        let key = format!("{}/{turn}.{index}", run.id);
        match call.status {
            CallStatus::AwaitingApproval => {
                until_heard(world, &format!("approve {key}"), Ask::Approve(run.id, turn, index)).await;
            }
            CallStatus::Unknown => {
                let is_done = world.deeds_of(&key) > 0;
                let resolution = if is_done { Resolution::Ran } else { Resolution::Retry };
                let ask = Ask::Resolve(run.id, turn, index, resolution);
                // A call may be unknown more than once: each time is a question of its own.
                until_heard(world, &format!("resolve {key} at {}", state.core.seq), ask).await;
            }
            CallStatus::Planned(_)
            | CallStatus::Started
            | CallStatus::Judged { .. }
            | CallStatus::Ended(_) => {}
        }
    }
    // Until the driver has taken the decision in, the run still rests; and it may have to wait for something itself.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

/// The journal in a directory, read without an engine.
pub fn view(dir: &Path) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(JournalView::open(dir).map_err(|error| error.to_string())?))
}
