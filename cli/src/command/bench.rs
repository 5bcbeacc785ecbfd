//! `sprag bench`: measures this machine.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use engine::bench;
use serde_json::Value;

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::owner::Signals;
use crate::status::Status;

/// Tries to remove the directory of a measurement that was stopped, whose threads may still write to it.
const REMOVE_TRIES: u32 = 40;
const REMOVE_WAIT: Duration = Duration::from_millis(50);

/// Measure this machine: the disk of the data directory, the store on it, runs through the whole engine
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Example:\n  sprag bench --quick")]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    /// 3 seconds a point instead of 10
    #[arg(long)]
    quick: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Long(Long),
    Recovery(Recovery),
    Retention(Retention),
}

/// Drive one run to a million transitions: its end must cost what its beginning did. Ends with 1 when a bound is passed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag bench long --transitions 20000")]
struct Long {
    /// Transitions
    #[arg(long, value_name = "N", default_value_t = bench::TRANSITIONS)]
    transitions: u64,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Kill an engine with many runs in flight, then cut its power: how soon all are accounted for. Ends with 1 when a bound
/// is passed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag bench recovery --runs 1000")]
struct Recovery {
    /// Runs in flight
    #[arg(long, value_name = "N", default_value_t = bench::RUNS)]
    runs: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Purge nine runs in ten beside one that goes on: what it gives back, and how long commits wait. Ends with 1 when a bound
/// is passed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag bench retention --runs 1000")]
struct Retention {
    /// Runs
    #[arg(long, value_name = "N", default_value_t = bench::PURGED_RUNS)]
    runs: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        if cfg!(debug_assertions) {
            say("warning: this is a build for finding faults; figures of a release build are better");
        }
        match self.what {
            None => {
                let measured = measure(context.dir(), bench::bench(context.dir(), self.quick, say))?;
                let words = |report: &bench::BenchReport| (report.to_string(), report.to_json(), true);
                show(context, measured, self.json, words)
            }
            Some(What::Long(Long { transitions, json })) => {
                say(&bench::LongReport::head());
                let point = |point: &bench::LongPoint| say(&point.to_string());
                let measured = measure(context.dir(), bench::long(context.dir(), transitions, point))?;
                let words =
                    |report: &bench::LongReport| (report.to_string(), report.to_json(), report.holds());
                show(context, measured, json, words)
            }
            Some(What::Retention(Retention { runs, json })) => {
                let measured = measure(context.dir(), bench::retention(context.dir(), runs, say))?;
                let words =
                    |report: &bench::RetentionReport| (report.to_string(), report.to_json(), report.holds());
                show(context, measured, json, words)
            }
            Some(What::Recovery(Recovery { runs, json })) => {
                let measured = measure(context.dir(), bench::recovery(context.dir(), runs, say))?;
                let words =
                    |report: &bench::RecoveryReport| (report.to_string(), report.to_json(), report.holds());
                show(context, measured, json, words)
            }
        }
    }
}

/// What a measurement answers, or who stopped it: then nothing is left of it.
fn measure<T>(
    dir: &Path,
    work: impl Future<Output = Result<T, engine::Error>>,
) -> Result<Result<T, Status>, Failure> {
    let ended = block_on(async {
        let mut signals = Signals::new()?;
        tokio::select! {
            status = signals.next() => Ok(Err(status)),
            done = work => Ok(Ok(done?)),
        }
    })?;
    let place = bench::place(dir);
    for _ in 0..REMOVE_TRIES {
        if ended.is_ok() || std::fs::remove_dir_all(&place).is_ok() && !place.exists() {
            break;
        }
        thread::sleep(REMOVE_WAIT);
    }
    Ok(ended)
}

/// Prints a report; the last of its `words` says whether its bounds hold.
fn show<T>(
    context: &Context,
    measured: Result<T, Status>,
    json: bool,
    words: impl FnOnce(&T) -> (String, Value, bool),
) -> Result<Status, Failure> {
    let report = match measured {
        Ok(report) => report,
        Err(status) => return Ok(status),
    };
    let (text, value, holds) = words(&report);
    let mut output = context.output();
    if json {
        output.json(&value)?;
    } else {
        output.text(&text)?;
    }
    output.flush()?;
    Ok(if holds { Status::Done } else { Status::Failed })
}

/// Tells a person how far it is.
fn say(words: &str) {
    // With stderr gone there is nobody to tell.
    let _ = writeln!(io::stderr(), "{words}");
}
