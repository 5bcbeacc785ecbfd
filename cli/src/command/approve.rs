//! `sprag approve`: lets a call run that waits for approval.

use engine::control::Act;
use engine::query;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Let a call run that waits for approval
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag approve $(sprag ls --status parked --limit 1 | cut -f1)/0.0")]
pub(crate) struct Approve {
    /// The call, as `sprag why RUN` names it
    #[arg(value_name = "RUN/TURN.N")]
    call: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl Approve {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let (run, turn, call) = query::parse_call(&self.call)?;
        act(context, &run, Act::Approve { turn, call }, "approved a call of", self.flags)
    }
}
