//! `sprag gc`: forgets runs that have ended, and gives their space back.

use engine::config::Overrides;
use engine::control::Request;
use engine::gc::{Reclaimed, Retention};
use engine::query;
use serde_json::json;

use crate::arguments::duration_s;
use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::owner::open_engine;
use crate::status::Status;
use crate::text::count;

/// Forget runs that have ended and give their space back; runs that have not ended are never touched
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
#[command(after_help = "\
A run goes if all that is asked for holds of it. One that a kept run continues from stays. What is gone stays known by its
id and its keys: nothing that was done is done again.

Example:
  sprag gc --older-than 7d --status completed --dry-run")]
pub(crate) struct Gc {
    /// Only runs that ended at least so long ago
    #[arg(long, value_name = "TIME", value_parser = duration_s, group = "which")]
    older_than: Option<u64>,
    /// Only runs with these outcomes: completed, failed, blocked, cancelled, timed_out
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',', group = "which")]
    status: Vec<query::Status>,
    /// Not the N newest of them
    #[arg(long, value_name = "N", group = "which")]
    keep: Option<u64>,
    /// Remove the workspaces that were made for them, too
    #[arg(long)]
    workspaces: bool,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,
}

impl Gc {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        if let Some(status) = self.status.iter().find(|status| !status.is_final()) {
            return Err(Failure::usage(format!(
                "runs that are {} are never purged; name outcomes, such as completed",
                status.name()
            )));
        }
        let retention = Retention {
            older_than_ms: self.older_than.map(|seconds| seconds.saturating_mul(1000)),
            statuses: self.status,
            keep: self.keep,
            is_dry_run: self.dry_run,
            takes_workspaces: self.workspaces,
        };
        let reclaimed = match context.owner()? {
            Some(mut owner) => owner.ask(&Request::Gc { retention })?,
            None if context.has_journal()? => gc_alone(context, &retention)?,
            None => Reclaimed { is_dry_run: retention.is_dry_run, ..Reclaimed::default() },
        };
        let Reclaimed { runs, bytes, held, is_dry_run } = reclaimed;
        let mut output = context.output();
        if self.json {
            output.json(&json!({ "runs": runs, "bytes": bytes, "held": held, "dry_run": is_dry_run }))?;
        } else {
            let verb = if is_dry_run { "would purge" } else { "purged" };
            output.line(format!("{verb} {}, {} of the journal", count(runs, "run"), count(bytes, "byte")))?;
            if held > 0 {
                output.line(format!("{} kept: kept runs continue from them", count(held, "run")))?;
            }
        }
        output.flush()?;
        Ok(Status::Done)
    }
}

/// Without an owner: nothing is to run meanwhile.
fn gc_alone(context: &Context, retention: &Retention) -> Result<Reclaimed, Failure> {
    let config = context.config(&Overrides::default())?;
    block_on(async {
        let engine = open_engine(context, config)?;
        engine.stop().await;
        let reclaimed = engine.gc(retention).await;
        engine.close().await?;
        Ok(reclaimed?)
    })
}
