//! The wall clock, as a value.
//!
//! Owns the only place where the engine learns what time it is, so that a test can move time. It must never be asked by
//! `model`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use model::Millis;

/// Tells the wall-clock time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now(&self) -> Millis;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that moves with the runtime's timers: with paused timers, time is virtual.
#[derive(Clone, Debug)]
pub struct TimerClock {
    start: Millis,
    origin: Arc<tokio::time::Instant>,
}

impl TimerClock {
    /// A clock that shows `start` now. Must be made inside a runtime.
    pub fn starting_at(start: Millis) -> Self {
        Self { start, origin: Arc::new(tokio::time::Instant::now()) }
    }
}

impl Clock for TimerClock {
    fn now(&self) -> Millis {
        self.start.plus(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// The time as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(at: Millis) -> String {
    let time = chrono::DateTime::from_timestamp_millis(at.0).unwrap_or(chrono::DateTime::UNIX_EPOCH);
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}
