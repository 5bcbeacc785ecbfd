//! `sprag extend`: raises the limits of a run.

use engine::config::Usd;
use engine::control::Act;
use model::input::Extension;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Raise the limits of a run
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag extend $(sprag ls --limit 1 | cut -f1) --hours 24 --usd 5")]
pub(crate) struct Extend {
    /// The run: its id, or the beginning of it
    run: String,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    flags: ActFlags,
}

/// What is added.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct By {
    /// Hours added to the deadline
    #[arg(long, value_name = "H", default_value_t = 0, hide_default_value = true)]
    hours: u32,
    /// Dollars added to the money limit
    #[arg(long, value_name = "X", default_value = "0", hide_default_value = true)]
    usd: Usd,
    /// Tokens added to the token limit
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    tokens: u64,
    /// Calls added to the limit of model calls
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    calls: u64,
    /// Turns added to the limit of turns
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    turns: u64,
}

impl Extend {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let By { hours, usd, tokens, calls, turns } = self.by;
        let time_ms = u64::from(hours) * 3_600_000;
        let by = Extension { time_ms, usd_micros: usd.micros(), tokens, calls, turns };
        act(context, &self.run, Act::Extend(by), "extended", self.flags)
    }
}
