//! `sprag release`: lets a parked run go on.

use engine::control::Act;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Let a run go on that is parked for a quarantine or something missing
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag release $(sprag ls --status parked --limit 1 | cut -f1)")]
pub(crate) struct Release {
    /// The run: its id, or the beginning of it
    run: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl Release {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        act(context, &self.run, Act::Release, "released", self.flags)
    }
}
