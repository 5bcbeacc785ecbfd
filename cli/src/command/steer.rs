//! `sprag steer`: a message for the running work.

use engine::control::Act;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Send a message to a run; the model sees it at the next turn
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag steer $(sprag ls --limit 1 | cut -f1) 'Leave the tests alone'")]
pub(crate) struct Steer {
    /// The run: its id, or the beginning of it
    run: String,
    /// The message
    text: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl Steer {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        act(context, &self.run, Act::Steer { text: self.text }, "steered", self.flags)
    }
}
