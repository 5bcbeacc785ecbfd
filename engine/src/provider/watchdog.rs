//! The idle watchdog of a model call.
//!
//! Owns how long a silence may last. Two kinds of silence end a call: no byte at all for the idle time, and
//! nothing but keep-alives for [`STALL_FACTOR`] times as long. A keep-alive proves that a proxy lives; while
//! a model thinks without telling, it is all that arrives, so it must count for something; a proxy in front
//! of a dead model sends it for ever, so it must not count for all. The same bound ends a response that drips
//! byte by byte.

use std::time::Duration;

use tokio::time::Instant;

/// How many idle times may pass without an event of the protocol.
pub(super) const STALL_FACTOR: u32 = 5;

/// When a call is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watchdog {
    idle: Option<Duration>,
    last_byte: Instant,
    last_event: Instant,
}

impl Watchdog {
    /// A watchdog for silences of `idle`; zero is none.
    pub(super) fn new(idle: Duration) -> Self {
        let now = Instant::now();
        Self { idle: Some(idle).filter(|idle| !idle.is_zero()), last_byte: now, last_event: now }
    }

    /// Everything begins now.
    pub(super) fn arm(&mut self) {
        self.note(true);
    }

    /// Bytes arrived; `has_event` if an event of the protocol ended in them.
    pub(super) fn note(&mut self, has_event: bool) {
        self.last_byte = Instant::now();
        if has_event {
            self.last_event = self.last_byte;
        }
    }

    /// Returns when the call is to be given up.
    pub(super) async fn expired(&self) {
        match self.idle {
            Some(idle) => {
                let silent = self.last_byte + idle;
                tokio::time::sleep_until(silent.min(self.last_event + idle * STALL_FACTOR)).await;
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until the call is given up when every so many seconds something arrives.
    async fn given_up_after(idle_s: u64, every_s: u64, has_event: bool, times: u32) -> u64 {
        let begin = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(idle_s));
        for _ in 0..times {
            tokio::select! {
                () = watchdog.expired() => return begin.elapsed().as_secs(),
                () = tokio::time::sleep(Duration::from_secs(every_s)) => watchdog.note(has_event),
            }
        }
        watchdog.expired().await;
        begin.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_stalling_end_a_call_and_events_keep_it() {
        assert_eq!(given_up_after(120, 500, true, 9).await, 120, "nothing arrives");
        assert_eq!(given_up_after(120, 100, true, 90).await, 9_120, "events, then nothing");
        assert_eq!(given_up_after(120, 100, false, 90).await, 600, "keep-alives only");
    }

    #[tokio::test(start_paused = true)]
    async fn none_never_ends_a_call() {
        let watchdog = Watchdog::new(Duration::ZERO);
        let year = Duration::from_secs(365 * 24 * 3_600);
        assert!(tokio::time::timeout(year, watchdog.expired()).await.is_err());
    }
}
