//! How far a batch is: one line that changes in a terminal, a line now and then in a pipe.
//!
//! Owns the words of that line, and says nothing on stdout.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use engine::batch::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a terminal shows progress.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
/// How often a pipe gets a line.
const PIPE_EVERY: Duration = Duration::from_secs(5);

/// Where progress is shown.
pub(crate) enum Meter {
    /// A terminal.
    Bar(ProgressBar),
    /// Anything else.
    Lines {
        /// The last line.
        last: String,
    },
}

impl Meter {
    pub(crate) fn new(total: u64) -> Self {
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            return Self::Lines { last: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    /// How often to show.
    pub(crate) fn every(&self) -> Duration {
        match self {
            Self::Bar(_) => TERMINAL_EVERY,
            Self::Lines { .. } => PIPE_EVERY,
        }
    }

    /// Shows where the batch is now.
    pub(crate) fn show(&mut self, progress: &Progress) {
        let words = words(progress);
        match self {
            Self::Bar(bar) => {
                bar.set_position(progress.done);
                bar.set_message(words);
            }
            Self::Lines { last } => {
                let line = format!("{}/{} done, {words}", progress.done, progress.total);
                if line != *last {
                    // With stderr gone there is nobody left to tell.
                    let _ = writeln!(io::stderr(), "{line}");
                    *last = line;
                }
            }
        }
    }

    /// The last look; the line stays.
    pub(crate) fn end(&mut self, progress: &Progress) {
        self.show(progress);
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

/// What there is none of is left out: a terminal has 80 columns for the line.
fn words(progress: &Progress) -> String {
    let Progress { running, waiting, parked, failed, turns_per_s, left, .. } = progress;
    let counts = [(running, "running"), (waiting, "waiting"), (parked, "parked"), (failed, "failed")];
    let counts = counts.into_iter().filter(|(count, _)| **count > 0);
    let counts = counts.map(|(count, what)| format!("{count} {what}"));
    let left = left.map(|left| format!("{} left", duration(left)));
    counts.chain([format!("{turns_per_s:.0} turns/s")]).chain(left).collect::<Vec<_>>().join(", ")
}

/// `4s`, `12m 30s`, `3h 05m`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {:02}s", seconds % 60),
        (_, _) => format!("{hours}h {minutes:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_it_all() {
        let progress = Progress {
            total: 10,
            done: 4,
            failed: 1,
            running: 3,
            waiting: 2,
            parked: 1,
            turns_per_s: 12.6,
            left: Some(Duration::from_secs(3725)),
        };
        let expected = "3 running, 2 waiting, 1 parked, 1 failed, 13 turns/s, 1h 02m left";
        assert_eq!(words(&progress), expected);
        let quiet = Progress { failed: 0, waiting: 0, parked: 0, left: None, ..progress };
        assert_eq!(words(&quiet), "3 running, 13 turns/s");
        let spans = [4, 750].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(spans, ["4s", "12m 30s"]);
    }
}
