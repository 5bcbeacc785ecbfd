//! `sprag bench`: measures this machine.

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::status::Status;

/// Measure this machine: the disk of the data directory, the store on it, runs through the whole engine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag bench --quick")]
pub(crate) struct Bench {
    /// 3 seconds a point instead of 10
    #[arg(long)]
    quick: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let report = block_on(async { Ok(engine::bench::bench(context.dir(), self.quick).await?) })?;
        let mut output = context.output();
        if self.json {
            output.json(&report.to_json())?;
        } else {
            output.text(&report.to_string())?;
        }
        output.flush()?;
        Ok(Status::Done)
    }
}
