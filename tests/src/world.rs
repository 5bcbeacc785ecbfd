//! The world outside of the engine: what tools did, what models were asked, what the client wants.
//!
//! Owns everything that survives a death of the process without being in its directory. It must never look into the
//! store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Clock, Engine, Error, Job};
use model::input::{Approval, HookCall, RecoveryClass, Resolution};
use model::{Label, Message, Millis, RunId};

use crate::power::Power;

/// Something that a tool did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The tool.
    pub tool: String,
    /// Its recovery class.
    pub class: RecoveryClass,
    /// The idempotency key of the call.
    pub key: String,
}

/// A model call that a provider would have billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The run.
    pub run: RunId,
    /// Ordinal of the turn.
    pub turn: u32,
    /// Ordinal of the try.
    pub attempt: u32,
    /// Hash of the request.
    pub hash: [u8; 32],
}

/// What a client asks of the engine.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Do a job.
    Submit(Box<Job>),
    /// Tell the run something.
    Steer(RunId, String),
    /// Give the run more to do.
    FollowUp(RunId, String),
    /// End the run.
    Cancel(RunId),
    /// Let a call run.
    Approve(RunId, u32, u16),
    /// Say what became of a call.
    Resolve(RunId, u32, u16, Resolution),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nobody has heard yet.
    None,
    /// It was acknowledged, for this run.
    Accepted(RunId),
    /// The run had ended before.
    Ended,
}

/// A request and its idempotency key.
#[derive(Clone, Debug)]
pub struct Request {
    /// The key.
    pub key: String,
    /// What is asked.
    pub ask: Ask,
    /// What was answered.
    pub answer: Answer,
}

/// The world.
#[derive(Default)]
pub struct World {
    power: Mutex<Arc<Power>>,
    engine: Mutex<Option<Engine>>,
    time: Mutex<Time>,
    deeds: Mutex<Vec<Deed>>,
    asked: Mutex<Vec<Asked>>,
    hooks: Mutex<Vec<(RunId, HookCall)>>,
    summaries: Mutex<u32>,
    requests: Mutex<Vec<Request>>,
}

#[derive(Default)]
struct Time {
    base_ms: i64,
    since: Option<tokio::time::Instant>,
}

/// The wall clock of the world: it goes on while no process lives.
#[derive(Clone)]
pub struct WallClock(pub Arc<World>);

impl Clock for WallClock {
    fn now(&self) -> Millis {
        self.0.now()
    }
}

impl World {
    /// A world where nothing has happened yet, on 1 January 2026.
    pub fn new() -> Arc<Self> {
        let time = Time { base_ms: 1_767_225_600_000, since: None };
        Arc::new(Self { time: Mutex::new(time), ..Self::default() })
    }

    /// The world as it is now, with no process in it. Must be called inside the runtime of the process.
    pub fn copy(&self) -> Arc<Self> {
        Arc::new(Self {
            power: Mutex::default(),
            engine: Mutex::default(),
            time: Mutex::new(Time { base_ms: self.now().0, since: None }),
            deeds: Mutex::new(self.deeds()),
            asked: Mutex::new(self.asked()),
            hooks: Mutex::new(self.hooks()),
            summaries: Mutex::new(self.summaries()),
            requests: Mutex::new(self.requests()),
        })
    }

    /// A process starts, on this power. Must be called inside its runtime.
    pub fn begin(&self, power: Arc<Power>) {
        *lock(&self.power) = power;
        lock(&self.time).since = Some(tokio::time::Instant::now());
    }

    /// The process has an engine.
    pub fn enter(&self, engine: Engine) {
        *lock(&self.engine) = Some(engine);
    }

    /// The process is gone. Must be called inside its runtime.
    pub fn end(&self) {
        lock(&self.engine).take();
        let now = self.now();
        *lock(&self.time) = Time { base_ms: now.0, since: None };
    }

    /// The time.
    pub fn now(&self) -> Millis {
        let time = lock(&self.time);
        let elapsed_ms = time.since.map_or(0, |since| since.elapsed().as_millis());
        Millis(time.base_ms + i64::try_from(elapsed_ms).unwrap_or(i64::MAX))
    }

    /// Time passes while no process lives.
    pub fn sleep_ms(&self, ms: i64) {
        lock(&self.time).base_ms += ms;
    }

    /// The power of the living process.
    pub fn power(&self) -> Arc<Power> {
        Arc::clone(&lock(&self.power))
    }

    /// A tool does something.
    pub async fn perform(&self, deed: Deed) {
        self.power().effect(|| lock(&self.deeds).push(deed)).await;
    }

    /// A model is asked.
    pub async fn ask_model(&self, asked: Asked) {
        self.power().effect(|| lock(&self.asked).push(asked)).await;
    }

    /// A hook is asked.
    pub async fn ask_hook(&self, run: RunId, call: HookCall) {
        self.power().effect(|| lock(&self.hooks).push((run, call))).await;
    }

    /// A summary is made.
    pub async fn summarise(&self) {
        self.power().effect(|| *lock(&self.summaries) += 1).await;
    }

    /// Everything that tools did, in order.
    pub fn deeds(&self) -> Vec<Deed> {
        lock(&self.deeds).clone()
    }

    /// The deeds under a key.
    pub fn deeds_of(&self, key: &str) -> usize {
        lock(&self.deeds).iter().filter(|deed| deed.key == key).count()
    }

    /// Every model call, in order.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.asked).clone()
    }

    /// Every hook that was asked, in order.
    pub fn hooks(&self) -> Vec<(RunId, HookCall)> {
        lock(&self.hooks).clone()
    }

    /// Summaries made.
    pub fn summaries(&self) -> u32 {
        *lock(&self.summaries)
    }

    /// Every request of the client, in order.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }

    /// The client asks until it is acknowledged, and never again: a request with a known key is the same request.
    pub async fn ask(&self, key: &str, ask: Ask) -> Result<Answer, Error> {
        let known = lock(&self.requests).iter().find(|request| request.key == key).cloned();
        let request = known.unwrap_or_else(|| {
            let request = Request { key: key.to_owned(), ask, answer: Answer::None };
            lock(&self.requests).push(request.clone());
            request
        });
        if request.answer != Answer::None {
            return Ok(request.answer);
        }
        let answer = self.send(&request).await?;
        // Whoever hears it is alive: a process that died meanwhile has acknowledged nothing.
        if self.power().is_out() {
            return std::future::pending().await;
        }
        for known in lock(&self.requests).iter_mut().filter(|known| known.key == key) {
            known.answer = answer.clone();
        }
        Ok(answer)
    }

    /// After a death, the client sends again what was not acknowledged.
    pub async fn ask_again(&self) -> Result<(), Error> {
        for request in self.requests() {
            self.ask(&request.key, request.ask).await?;
        }
        Ok(())
    }

    async fn send(&self, request: &Request) -> Result<Answer, Error> {
        let engine = lock(&self.engine).clone().ok_or(Error::Store(store::Error::Closed))?;
        let key = Some(request.key.as_str());
        let user = |text: &str| Message::user(text, Millis::default());
        let (run, sent) = match &request.ask {
            Ask::Submit(job) => {
                let handle = engine.submit(Job::clone(job).key(&request.key)).await?;
                return Ok(Answer::Accepted(handle.id));
            }
            Ask::Steer(run, text) => (*run, engine.handle(*run).steer(user(text), key).await),
            Ask::FollowUp(run, text) => (*run, engine.handle(*run).follow_up(user(text), key).await),
            Ask::Cancel(run) => (*run, engine.handle(*run).cancel("not needed", key).await),
            Ask::Approve(run, turn, call) => {
                (*run, engine.handle(*run).decide(*turn, *call, Approval::Approve, key).await)
            }
            Ask::Resolve(run, turn, call, resolution) => {
                let handle = engine.handle(*run);
                (
                    *run,
                    handle.resolve(*turn, *call, *resolution, &Label::from("looked").to_string(), key).await,
                )
            }
        };
        match sent {
            Ok(()) => Ok(Answer::Accepted(run)),
            Err(Error::RunEnded(_)) => Ok(Answer::Ended),
            // The decision is in already: it was accepted before the process died.
            Err(Error::Decision(_)) => Ok(Answer::Accepted(run)),
            Err(error) => Err(error),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
