//! `sprag why`: what a run waits for, and the command that moves it.

use engine::control::Request;
use engine::query;

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::field;

/// Say in one sentence what a run is waiting for, and which command moves it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag why $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Why {
    /// The run: its id, or the beginning of it
    run: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Why {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let request = Request::Why { run: self.run.clone() };
        let why =
            context.ask(&request, |store| query::why(store, query::find_run(store, &self.run)?, false))?;
        let mut output = context.output();
        if self.json {
            output.json(&why)?;
        } else {
            output.line(crate::text::clean(field(&why, "sentence")))?;
            let command = field(&why, "command");
            if !command.is_empty() {
                let command = context.same_dir(command);
                output.line(format!("{}{}", output.style.dim("next: "), output.style.bold(command)))?;
            }
        }
        output.flush()?;
        Ok(Status::Done)
    }
}
