//! `sprag resolve`: says what became of a call whose outcome nobody knows.

use clap::ValueEnum;
use engine::control::Act;
use engine::query;
use model::input::Resolution;

use crate::act::{ActFlags, act};
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Say what became of a call whose outcome is unknown
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  sprag resolve $(sprag ls --status parked --limit 1 | cut -f1)/0.0 \\\n    --as ran --reason 'I looked'"
)]
pub(crate) struct Resolve {
    /// The call, as `sprag why RUN` names it
    #[arg(value_name = "RUN/TURN.N")]
    call: String,
    /// What became of it
    #[arg(long = "as", value_name = "WHAT", value_enum)]
    became: Became,
    /// How you know
    #[arg(long, value_name = "R")]
    reason: String,
    #[command(flatten)]
    flags: ActFlags,
}

/// What became of the call.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Became {
    /// It ran, and succeeded
    Ran,
    /// It ran, and failed
    Failed,
    /// Run it again
    Retry,
    /// What it did was undone
    Undone,
}

impl Resolve {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let (run, turn, call) = query::parse_call(&self.call)?;
        let resolution = match self.became {
            Became::Ran => Resolution::Ran,
            Became::Failed => Resolution::Failed,
            Became::Retry => Resolution::Retry,
            Became::Undone => Resolution::Undone,
        };
        let resolve = Act::Resolve { turn, call, resolution, reason: self.reason };
        act(context, &run, resolve, "resolved a call of", self.flags)
    }
}
