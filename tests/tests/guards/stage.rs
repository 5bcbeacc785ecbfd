//! An engine in memory on virtual time: what the tests of clocks and budgets start from.
//!
//! Owns the outside that outlives an engine: the store, the time and the model. Opening again is a restart.

use std::sync::Arc;

use engine::provider::{ModelProvider, Rehearsal};
use engine::{Builder, Engine, Job, TimerClock, replay};
use model::{Millis, RunId, RunState};
use serde_json::Value;
use store::{MemoryStore, Store};

/// 1 January 2026.
pub(crate) const START: Millis = Millis(1_767_225_600_000);

pub(crate) struct Stage {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) clock: TimerClock,
    model: Arc<dyn ModelProvider>,
}

impl Stage {
    pub(crate) fn new(model: impl ModelProvider + 'static) -> Self {
        let clock = TimerClock::starting_at(START);
        Self { store: Arc::default(), clock, model: Arc::new(model) }
    }

    /// A stage whose model says these turns.
    pub(crate) fn rehearsing(turns: &Value) -> Self {
        Self::new(rehearsal(turns))
    }

    pub(crate) fn builder(&self) -> Builder {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        Engine::memory().store(store).clock(self.clock.clone()).provider("m", Shared(Arc::clone(&self.model)))
    }

    pub(crate) fn open(&self) -> Engine {
        self.builder().open().unwrap()
    }

    /// The committed state of a run, as its journal says it.
    pub(crate) fn state(&self, run: RunId) -> RunState {
        replay(&*self.store, run, None).unwrap().state.unwrap()
    }

    /// Milliseconds since the start.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        engine::Clock::now(&self.clock).since(START)
    }
}

pub(crate) fn rehearsal(turns: &Value) -> Rehearsal {
    Rehearsal::from_value(&serde_json::json!({ "turns": turns })).unwrap()
}

/// A job without tools.
pub(crate) fn job() -> Job {
    Job::new("go").model("m").tools(Vec::<String>::new())
}

/// A model that outlives an engine.
struct Shared(Arc<dyn ModelProvider>);

impl ModelProvider for Shared {
    fn prepare(
        &self,
        request: &engine::provider::Request,
    ) -> Result<engine::provider::Intent, model::input::Failure> {
        self.0.prepare(request)
    }

    fn stream(
        &self,
        request: engine::provider::Request,
        abort: tokio_util::sync::CancellationToken,
    ) -> futures_util::stream::BoxStream<'static, engine::provider::StreamEvent> {
        self.0.stream(request, abort)
    }

    fn idle_timeout(&self) -> Option<std::time::Duration> {
        self.0.idle_timeout()
    }
}
