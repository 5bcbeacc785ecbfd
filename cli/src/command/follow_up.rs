//! `sprag follow-up`: a message for when the run would otherwise end.

use engine::control::Act;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Give a run more to do; the model sees it when the run would otherwise end
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag follow-up $(sprag ls --limit 1 | cut -f1) 'Now write the tests'")]
pub(crate) struct FollowUp {
    /// The run: its id, or the beginning of it
    run: String,
    /// The message
    text: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl FollowUp {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        act(context, &self.run, Act::FollowUp { text: self.text }, "followed up", self.flags)
    }
}
