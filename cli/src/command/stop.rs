//! `sprag stop`: stops the process that owns the store.

use engine::control::{Left, Request};
use serde_json::json;

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
        let Left { pid, left: runs, commands } = left;
        if self.json {
            output.json(&json!({ "pid": pid, "left": runs, "commands": commands }))?;
        } else if runs == 0 {
            output.line(format!("stopped process {pid}; no run is left"))?;
        } else {
            let runs = count(runs as u64, "run");
            let next = context.next("resume");
            output.line(format!("stopped process {pid}; {runs} left, to continue: {next}"))?;
        }
        if commands > 0 && !self.json {
            let commands = count(commands as u64, "command");
            let (resume, cancel) = (context.next("resume"), context.next("cancel RUN"));
            output.line(format!("{commands} still running; to adopt: {resume}; to end: {cancel}"))?;
        }
        output.flush()?;
        Ok(Status::Done)
    }
}
