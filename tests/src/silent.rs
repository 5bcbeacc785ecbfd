//! A model that never answers: thousands of runs wait for it.
//!
//! Owns the count of its calls, and an engine with room for them all.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine::provider::{Intent, ModelProvider, Rehearsal, Request, StreamEvent};
use engine::{Config, Engine};
use futures_util::stream::BoxStream;
use model::input::Failure;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// A rehearsal that never answers, and counts the calls that it was given.
pub struct Silent {
    rehearsal: Rehearsal,
    begun: Arc<AtomicUsize>,
    /// Gets a byte for each call, for another process to count.
    calls: Option<File>,
}

impl Silent {
    /// With its count, and a file for another process.
    pub fn new(begun: &Arc<AtomicUsize>, calls: Option<File>) -> Self {
        let script = json!({ "turns": [{ "text": "done", "delay_ms": 3_600_000 }] });
        Self { rehearsal: Rehearsal::from_value(&script).unwrap(), begun: Arc::clone(begun), calls }
    }
}

impl ModelProvider for Silent {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        self.rehearsal.prepare(request)
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        if let Some(mut calls) = self.calls.as_ref() {
            calls.write_all(b".").unwrap();
        }
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.rehearsal.stream(request, abort)
    }
}

/// An engine that drives all runs at once, with the model under the name `m`.
pub fn engine(dir: &Path, silent: Silent) -> Engine {
    let mut config = Config::default();
    Arc::make_mut(&mut config.defaults).concurrency = NonZeroU32::MAX;
    Engine::builder(dir).without_commands().config(config).provider("m", silent).open().unwrap()
}

/// Waits until something is so, at most so long.
pub async fn until(what: &str, most: Duration, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < most, "{what} took more than {most:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
