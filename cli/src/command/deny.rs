//! `sprag deny`: refuses a call that waits for approval.

use engine::control::Act;
use engine::query;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Refuse a call that waits for approval; the model is told why
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  sprag deny $(sprag ls --status parked --limit 1 | cut -f1)/0.0 --reason 'not now'"
)]
pub(crate) struct Deny {
    /// The call, as `sprag why RUN` names it
    #[arg(value_name = "RUN/TURN.N")]
    call: String,
    /// Why
    #[arg(long, value_name = "R", default_value = "denied by a person")]
    reason: String,
    #[command(flatten)]
    flags: ActFlags,
}

impl Deny {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let (run, turn, call) = query::parse_call(&self.call)?;
        act(context, &run, Act::Deny { turn, call, reason: self.reason }, "denied a call of", self.flags)
    }
}
