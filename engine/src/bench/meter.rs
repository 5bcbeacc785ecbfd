//! What a measurement counts: time, work, and what the process used for it.
//!
//! Owns the readings of clocks and of the kernel's accounts. It must never decide what they mean.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Work done in some time, with how long each piece of it took.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) count: u64,
    pub(super) elapsed: Duration,
    pub(super) latencies: Latencies,
}

impl Work {
    /// Pieces of work in a second.
    pub(super) fn per_s(&self) -> f64 {
        self.count as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// How long each of many pieces of work took.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<u32>);

impl Latencies {
    /// Notes one; more than four seconds count as four.
    pub(super) fn note(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }

    /// How many were noted.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Takes over those of another.
    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The time, in microseconds, that so many of a hundred did not exceed; 0 if there were none.
    pub(super) fn percentile_us(&mut self, percent: usize) -> f64 {
        let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        if self.0.is_empty() {
            return 0.0;
        }
        let (_, nanos, _) = self.0.select_nth_unstable(at);
        f64::from(*nanos) / 1000.0
    }
}

/// What the process had used at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    at: Instant,
    cpu: Duration,
    written_bytes: u64,
}

impl Used {
    /// Now.
    pub(super) fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(cpu.tv_nsec).unwrap_or(0);
        // Not `write_bytes`: the kernel counts there the whole pieces of its cache that a write touches.
        let written_bytes = field("/proc/self/io", "wchar:");
        Self { at: Instant::now(), cpu: Duration::new(seconds, nanos), written_bytes }
    }

    /// Time that has passed since.
    pub(super) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Processor time of all threads since, in user and kernel.
    pub(super) fn cpu(&self) -> Duration {
        Self::now().cpu.saturating_sub(self.cpu)
    }

    /// Bytes that the process has written since.
    pub(super) fn written_bytes(&self) -> u64 {
        Self::now().written_bytes.saturating_sub(self.written_bytes)
    }
}

/// The most memory, in bytes, that was resident at once.
pub(super) fn rss_bytes_max() -> u64 {
    field("/proc/self/status", "VmHWM:") * 1024
}

/// The number behind a name in one of the kernel's text files; 0 where there is none.
fn field(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_of_all_that_was_noted() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_us(50), 0.0);
        for us in (1..=100).rev() {
            latencies.note(Duration::from_micros(us));
        }
        let mut other = Latencies::default();
        other.note(Duration::from_secs(9));
        latencies.append(other);
        assert_eq!(latencies.percentile_us(50), 51.0);
        assert_eq!(latencies.percentile_us(99), 100.0);
        assert_eq!(latencies.percentile_us(100), f64::from(u32::MAX) / 1000.0);
    }

    #[test]
    fn the_kernel_tells_what_the_process_uses() {
        let used = Used::now();
        assert!(used.cpu > Duration::ZERO);
        assert!(rss_bytes_max() > 0);
    }
}
