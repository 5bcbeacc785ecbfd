//! What a long run cost at each power of ten, and whether that is within the bounds.
//!
//! Owns the bounds. The names of the figures are stable: scripts read them.

use std::fmt;

use serde::Serialize;

use super::long::TRANSITIONS;
use super::report::hundredths;

/// The last ratio of a commit to a raw append, as a part of the first one.
const RATIO_GROWTH_MAX: f64 = 1.25;
/// Most memory that is resident at once.
const RSS_BYTES_MAX: u64 = 200_000_000;
/// Longest time from opening a directory to the first transition of its run.
const RESUME_MS_MAX: f64 = 1000.0;
/// Bytes on the disk for each byte of content.
const DISK_PER_UNIQUE_MAX: f64 = 2.0;

/// Figures of the transitions since the point before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LongPoint {
    /// Transitions of the run so far.
    pub transitions: u64,
    /// Half of its durable commits took so many microseconds at most.
    pub commit_p50_us: f64,
    /// 99 of 100 did.
    pub commit_p99_us: f64,
    /// The same of appends to a bare file, each with its sync, in between.
    pub raw_p50_us: f64,
    /// The same.
    pub raw_p99_us: f64,
    /// The most memory that was resident at once since the process began.
    pub rss_bytes: u64,
    /// What sled takes on the disk.
    pub state_bytes: u64,
    /// What the journal and sled take.
    pub disk_bytes: u64,
    /// Bytes of what its transitions say and put, as the engine gave them to the store.
    pub unique_bytes: u64,
    /// From opening the directory as a kill has left it to the run's first transition of its own.
    pub resume_ms: f64,
}

/// The course of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LongReport {
    /// At each power of ten, and at the end.
    pub points: Vec<LongPoint>,
    /// What was to hold, in words, and whether it does; none if the run was too short to say.
    pub gates: Vec<(String, Option<bool>)>,
}

impl LongPoint {
    /// A commit at the median, as a multiple of a raw append in between.
    pub fn ratio_p50(&self) -> f64 {
        self.commit_p50_us / self.raw_p50_us.max(f64::MIN_POSITIVE)
    }

    /// The same of 99 in 100.
    pub fn ratio_p99(&self) -> f64 {
        self.commit_p99_us / self.raw_p99_us.max(f64::MIN_POSITIVE)
    }

    /// Bytes on the disk for each byte of content.
    pub fn disk_per_unique(&self) -> f64 {
        self.disk_bytes as f64 / self.unique_bytes.max(1) as f64
    }
}

impl LongReport {
    pub(super) fn of(points: Vec<LongPoint>) -> Self {
        let gates = points.first().zip(points.last()).map(|(first, last)| gates(first, last));
        Self { points, gates: gates.unwrap_or_default() }
    }

    /// Nothing that was to hold does not.
    pub fn holds(&self) -> bool {
        self.gates.iter().all(|(_, holds)| *holds != Some(false))
    }

    /// The object that scripts read.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    /// The head of the table.
    pub fn head() -> String {
        format!(
            "{:>11} {:>9} {:>9} {:>7} {:>9} {:>9} {:>7} {:>8} {:>9} {:>9} {:>10}",
            "transitions",
            "p50 us",
            "raw p50",
            "ratio",
            "p99 us",
            "raw p99",
            "ratio",
            "RSS MiB",
            "sled MiB",
            "disk/uniq",
            "resume ms"
        )
    }
}

fn gates(first: &LongPoint, last: &LongPoint) -> Vec<(String, Option<bool>)> {
    let is_whole = last.transitions >= TRANSITIONS;
    let grown = |ratio: fn(&LongPoint) -> f64| hundredths(ratio(last) / ratio(first));
    let (p50, p99) = (grown(LongPoint::ratio_p50), grown(LongPoint::ratio_p99));
    let disk = hundredths(last.disk_per_unique());
    vec![
        (
            format!(
                "p50 as a ratio to the raw append: {p50} of that at {} (at most {RATIO_GROWTH_MAX})",
                first.transitions
            ),
            is_whole.then_some(p50 <= RATIO_GROWTH_MAX),
        ),
        (
            format!(
                "p99 as a ratio to the raw append: {p99} of that at {} (at most {RATIO_GROWTH_MAX})",
                first.transitions
            ),
            is_whole.then_some(p99 <= RATIO_GROWTH_MAX),
        ),
        (
            format!(
                "resident memory: {} MB (at most {})",
                last.rss_bytes / 1_000_000,
                RSS_BYTES_MAX / 1_000_000
            ),
            Some(last.rss_bytes <= RSS_BYTES_MAX),
        ),
        (
            format!("cold resume: {} ms (less than {RESUME_MS_MAX})", last.resume_ms),
            Some(last.resume_ms < RESUME_MS_MAX),
        ),
        (
            format!("bytes on the disk for each byte of content: {disk} (at most {DISK_PER_UNIQUE_MAX})"),
            is_whole.then_some(disk <= DISK_PER_UNIQUE_MAX),
        ),
    ]
}

impl fmt::Display for LongPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transitions, commit_p50_us, raw_p50_us, commit_p99_us, raw_p99_us, resume_ms, .. } = self;
        write!(f, "{transitions:>11} {commit_p50_us:>9.1} {raw_p50_us:>9.1} {:>7.2}", self.ratio_p50())?;
        write!(f, " {commit_p99_us:>9.1} {raw_p99_us:>9.1} {:>7.2}", self.ratio_p99())?;
        write!(f, " {:>8} {:>9.1}", self.rss_bytes >> 20, self.state_bytes as f64 / f64::from(1 << 20))?;
        write!(f, " {:>9.2} {resume_ms:>10.1}", self.disk_per_unique())
    }
}

impl fmt::Display for LongReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Self::head())?;
        self.points.iter().try_for_each(|point| writeln!(f, "{point}"))?;
        writeln!(f)?;
        self.gates.iter().try_for_each(|(words, holds)| {
            let mark = match holds {
                Some(true) => "holds",
                Some(false) => "FAILS",
                None => "not judged",
            };
            writeln!(f, "{mark:<11} {words}")
        })
    }
}
