//! `sprag doctor models`: which of the configured models work, and what to do about the others.

use engine::config::Overrides;
use engine::trial::{Trial, try_models};
use serde_json::{Value, json};

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::status::Status;
use crate::text::{clean, gist};

/// Call each configured model once, with each of its profiles: which work, and what to do about the others
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each call asks for one word and costs a few tokens; a rehearsal or a replay costs nothing, its
file is read. No run is made and nothing is journaled, so an engine may be at work. A call without
an answer after a minute has failed. Ends with 0 if all work, with 1 otherwise, with 2 for a name
that is not configured.

Example:
  sprag doctor models")]
pub(super) struct Models {
    /// Names of models; all that are configured if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the trials as JSON
    #[arg(long)]
    json: bool,
}

const HEAD: [&str; 6] = ["MODEL", "API", "PROFILE", "FOUND", "SECONDS", "NEXT"];

impl Models {
    pub(super) fn run(self, context: &Context) -> Result<Status, Failure> {
        let config = context.config(&Overrides::default())?;
        if self.names.is_empty() && config.models.is_empty() {
            return Err(Failure::usage("no model is configured; add a table [models.NAME]"));
        }
        let trials = block_on(async { Ok(try_models(&config, &self.names).await?) })?;
        let mut output = context.output();
        if self.json {
            output.json(&trials.iter().map(to_json).collect())?;
        } else {
            output.rows(&HEAD, trials.iter().map(row).collect())?;
        }
        output.flush()?;
        let all_work = trials.iter().all(|trial| trial.fault.is_none());
        Ok(if all_work { Status::Done } else { Status::Failed })
    }
}

fn row(trial: &Trial) -> Vec<String> {
    let (found, next) = match &trial.fault {
        None => ("works".to_owned(), "-".to_owned()),
        Some(fault) => (format!("{}: {}", fault.kind, gist(&fault.words)), clean(&fault.remedy)),
    };
    let profile = trial.profile.clone().unwrap_or_else(|| "-".to_owned());
    let seconds = format!("{:.2}", trial.took.as_secs_f64());
    vec![clean(&trial.model), trial.api.to_string(), clean(&profile), found, seconds, next]
}

fn to_json(trial: &Trial) -> Value {
    let fault = trial.fault.as_ref();
    json!({
        "model": trial.model, "api": trial.api, "profile": trial.profile, "works": fault.is_none(),
        "fault": fault.map(|fault| fault.kind), "words": fault.map(|fault| &fault.words),
        "next": fault.map(|fault| &fault.remedy),
        "took_ms": u64::try_from(trial.took.as_millis()).unwrap_or(u64::MAX),
    })
}
