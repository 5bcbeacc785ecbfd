//! `sprag stop`: stops the process that owns the store.

use engine::control::{Left, Request};

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::count;

/// Stop the engine that runs; what it leaves can be resumed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag stop")]
pub(crate) struct Stop {
    /// Let open turns end first
    #[arg(long)]
    drain: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl Stop {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let Some(mut owner) = context.owner()? else {
            let dir = context.dir().display();
            let message = format!("no engine runs on {dir}; `{}` lists its runs", context.next("ls"));
            return Err(Failure::new(Status::NoRun, message));
        };
        let left: Left = owner.ask(&Request::Stop { drain: self.drain })?;
        owner.wait_for_end();
        let mut output = context.output();
        if self.json {
            output.json(&serde_json::to_value(&left).unwrap_or_default())?;
        } else if left.left == 0 {
            output.line(format!("stopped process {}; no run is left", left.pid))?;
        } else {
            let runs = count(left.left as u64, "run");
            let next = context.next("resume");
            output.line(format!("stopped process {}; {runs} left, to continue: {next}", left.pid))?;
        }
        output.flush()?;
        Ok(Status::Done)
    }
}
