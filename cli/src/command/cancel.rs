//! `sprag cancel`: ends a run in whatever phase it is.

use engine::control::Act;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// End a run; every call of it gets a result
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag cancel $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Cancel {
    /// The run: its id, or the beginning of it
    run: String,
    /// Why
    #[arg(long, value_name = "R", default_value = "cancelled by a person")]
    reason: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl Cancel {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        act(context, &self.run, Act::Cancel { reason: self.reason }, "cancelled", self.flags)
    }
}
