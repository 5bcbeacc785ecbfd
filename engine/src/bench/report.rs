//! What a measurement found, for people and for scripts.
//!
//! Owns names and units of the figures. The names are stable: scripts read them.

use std::fmt;

use serde::Serialize;

use super::Commits;
use super::meter::Work;
use super::runs::Load;
use super::session::ROUNDS;

/// The figures of one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// The disk, one commit a sync.
    pub raw_1: CommitPoint,
    /// The disk, 64 commits a sync.
    pub raw_64: CommitPoint,
    /// The disk, 1,024 commits a sync.
    pub raw_1024: CommitPoint,
    /// The store, one writer.
    pub store_1: CommitPoint,
    /// The store, 64 writers.
    pub store_64: CommitPoint,
    /// The store, 1,024 writers.
    pub store_1024: CommitPoint,
    /// The engine, one run at a time.
    pub runs_1: RunPoint,
    /// The engine, 64 runs at a time.
    pub runs_64: RunPoint,
    /// The engine, 1,024 runs at a time.
    pub runs_1024: RunPoint,
    /// Barriers that one run needed after its submission, with no other run to share them.
    pub barriers_per_run: f64,
    /// Tool rounds of one run.
    pub rounds_per_run: u32,
    /// Bytes that the process wrote for each byte of the journal, at 64 runs: the zeros of new segments and
    /// sled included.
    pub write_amplification: f64,
    /// Bytes of the journal for each one-tool turn, at 64 runs.
    pub bytes_per_turn: u64,
    /// The most memory that was resident at once.
    pub rss_bytes: u64,
}

/// Durable commits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CommitPoint {
    /// Commits a second.
    pub commits_per_s: u64,
    /// Half of the commits were durable within so many microseconds.
    pub p50_us: f64,
    /// 99 of 100 were.
    pub p99_us: f64,
}

/// Turns through the whole engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunPoint {
    /// One-tool turns a second.
    pub turns_per_s: u64,
    /// Frames a second: transitions and submissions.
    pub transitions_per_s: u64,
    /// Processor time of the whole process for each turn, in microseconds.
    pub cpu_us_per_turn: f64,
    /// Half of the turns took so many microseconds at most.
    pub p50_us: f64,
    /// 99 of 100 did.
    pub p99_us: f64,
}

impl BenchReport {
    pub(super) fn of(commits: [Commits; 3], loads: [Load; 3], rss_bytes: u64) -> Self {
        let [one, many, most] = commits;
        let [lone, busy, crowd] = loads;
        Self {
            barriers_per_run: tenths(per(lone.barriers.saturating_sub(lone.runs), lone.runs)),
            rounds_per_run: ROUNDS,
            write_amplification: hundredths(per(busy.written_bytes, busy.journal_bytes)),
            bytes_per_turn: whole(per(busy.journal_bytes, busy.turns.count)),
            rss_bytes,
            raw_1: CommitPoint::of(one.raw),
            raw_64: CommitPoint::of(many.raw),
            raw_1024: CommitPoint::of(most.raw),
            store_1: CommitPoint::of(one.store),
            store_64: CommitPoint::of(many.store),
            store_1024: CommitPoint::of(most.store),
            runs_1: RunPoint::of(lone),
            runs_64: RunPoint::of(busy),
            runs_1024: RunPoint::of(crowd),
        }
    }

    /// The object that scripts read.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    /// The figures by their names, the store's beside the disk's.
    fn commits(&self) -> [(&'static str, CommitPoint, CommitPoint); 3] {
        [
            ("1", self.raw_1, self.store_1),
            ("64", self.raw_64, self.store_64),
            ("1024", self.raw_1024, self.store_1024),
        ]
    }

    fn runs(&self) -> [(&'static str, RunPoint); 3] {
        [("1", self.runs_1), ("64", self.runs_64), ("1024", self.runs_1024)]
    }
}

impl CommitPoint {
    pub(super) fn of(mut work: Work) -> Self {
        Self {
            commits_per_s: whole(work.per_s()),
            p50_us: tenths(work.latencies.percentile_us(50)),
            p99_us: tenths(work.latencies.percentile_us(99)),
        }
    }
}

impl RunPoint {
    pub(super) fn of(load: Load) -> Self {
        let Load { mut turns, transitions, cpu, .. } = load;
        Self {
            turns_per_s: whole(turns.per_s()),
            transitions_per_s: whole(transitions as f64 / turns.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)),
            cpu_us_per_turn: tenths(cpu.as_secs_f64() * 1e6 / turns.count.max(1) as f64),
            p50_us: tenths(turns.latencies.percentile_us(50)),
            p99_us: tenths(turns.latencies.percentile_us(99)),
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>12} {:>12} {:>12} {:>14}",
            "commits", "a second", "p50 us", "p99 us", "of the disk"
        )?;
        for (width, raw, store) in self.commits() {
            for (name, point) in [("raw", raw), ("store", store)] {
                let CommitPoint { commits_per_s, p50_us, p99_us } = point;
                let (name, ratio) = (format!("{name}_{width}"), per(commits_per_s, raw.commits_per_s));
                writeln!(f, "{name:<12} {commits_per_s:>12} {p50_us:>12.1} {p99_us:>12.1} {ratio:>14.2}")?;
            }
        }
        let [turns, transitions, cpu, p50, p99] = ["turns a s", "transitions", "cpu us", "p50 us", "p99 us"];
        writeln!(f, "\n{:<12} {turns:>12} {transitions:>12} {cpu:>12} {p50:>12} {p99:>14}", "runs")?;
        for (width, point) in self.runs() {
            let RunPoint { turns_per_s, transitions_per_s, cpu_us_per_turn, p50_us, p99_us } = point;
            let name = format!("runs_{width}");
            write!(f, "{name:<12} {turns_per_s:>12} {transitions_per_s:>12} {cpu_us_per_turn:>12.1}")?;
            writeln!(f, " {p50_us:>12.1} {p99_us:>14.1}")?;
        }
        writeln!(f)?;
        writeln!(f, "{:<28} {:>12.1}", "barriers a run", self.barriers_per_run)?;
        writeln!(f, "{:<28} {:>12}", "tool rounds a run", self.rounds_per_run)?;
        writeln!(f, "{:<28} {:>12}", "journal bytes a turn", self.bytes_per_turn)?;
        writeln!(f, "{:<28} {:>12.2}", "written for each of them", self.write_amplification)?;
        writeln!(f, "{:<28} {:>12}", "most resident memory, MiB", self.rss_bytes >> 20)
    }
}

fn per(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

fn whole(value: f64) -> u64 {
    // From a float this rounds towards the nearest number that fits.
    value.round() as u64
}

pub(super) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

pub(super) fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
