//! `sprag config`: what the configuration is, and where each value comes from. This version does not say it yet.

use clap::Subcommand;
use engine::config::Overrides;

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Show the configuration (not supported yet)
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// The effective value of every key
    Show {
        /// And where it comes from
        #[arg(long)]
        origin: bool,
    },
}

impl Config {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let ConfigCommand::Show { origin: _ } = self.command;
        let files = context.layers(Overrides::default()).files();
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        Err(Failure::usage(format!(
            "`config show` is not supported yet; read the files: {}",
            files.join(", ")
        )))
    }
}
