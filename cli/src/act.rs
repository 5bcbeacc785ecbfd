//! Acting on a run: through the owner's socket, or on the store that no process owns.
//!
//! Owns the key of an act and its acknowledgement. It must never print one before the act is durable.

use std::io::{self, Write};

use engine::config::Overrides;
use engine::control::{Act, Request};
use engine::query;
use serde_json::json;

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::owner::open_engine;
use crate::status::Status;

/// Flags of every command that acts on a run.
#[derive(Debug, clap::Args)]
pub(crate) struct ActFlags {
    /// Idempotency key: repeated with the same key, the act is done once [default: made and printed]
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// Print the acknowledgement as JSON
    #[arg(long)]
    json: bool,
}

/// Does the act. `done` is what it says of the run afterwards, for example `steered`.
pub(crate) fn act(
    context: &Context,
    run: &str,
    act: Act,
    done: &str,
    flags: ActFlags,
) -> Result<Status, Failure> {
    let is_made = flags.key.is_none();
    let key = flags.key.unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()));
    let owner = context.owner()?;
    let name = act.name();
    let is_left = owner.is_none() && !matches!(act, Act::Cancel { .. });
    let acted = match owner {
        Some(mut owner) => {
            let request = Request::Act { run: run.to_owned(), key: key.clone(), act };
            owner.ask::<String>(&request).map_err(Failure::from)
        }
        None => act_alone(context, run, &act, &key),
    };
    let run = acted.inspect_err(|failure| {
        // Nobody knows whether it was accepted: repeated with this key, it is done once.
        if is_made && matches!(failure, Failure::Said { status: Status::Store, .. }) {
            let _ = writeln!(io::stderr(), "to repeat it: --key {key}");
        }
    })?;
    let mut output = context.output();
    if flags.json {
        output.json(&json!({ "run": run, "act": name, "key": key }))?;
    } else if is_made {
        output.line(format!("{done} {run} (key {key})"))?;
    } else {
        output.line(format!("{done} {run}"))?;
    }
    output.flush()?;
    if is_left {
        let next = context.next(&format!("resume {run}"));
        let _ = writeln!(io::stderr(), "no engine runs; to carry it out: {next}");
    }
    Ok(Status::Done)
}

/// Without an owner: the act waits in the run's inbox for the next engine. A cancel is carried out at once.
fn act_alone(context: &Context, run: &str, act: &Act, key: &str) -> Result<String, Failure> {
    if !context.has_journal()? {
        return Err(engine::Error::NoSuchRun(run.to_owned()).into());
    }
    let config = context.config(&Overrides::default())?;
    block_on(async {
        let engine = open_engine(context, config)?;
        let acted = async {
            let run = query::find_run(&**engine.store(), run)?;
            if !matches!(act, Act::Cancel { .. }) {
                // Nothing is to run because of a decision that somebody leaves here.
                engine.stop().await;
            }
            act.perform(&engine, run, key).await?;
            engine.rested().await;
            Ok::<_, engine::Error>(run.to_string())
        };
        let run = acted.await;
        engine.close().await?;
        Ok(run?)
    })
}
