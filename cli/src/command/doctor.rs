//! `sprag doctor`: what is wrong with the store, the disk or the machine, and how to mend it.

use std::time::Instant;

use engine::config::Overrides;
use engine::doctor::{Check, Level, examine};
use engine::{Clock, SystemClock};
use serde_json::{Value, json};
use store::{JournalStore, Options};

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;

/// Check store, disk and machine: what is wrong, and what mends it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It changes nothing, but for --rebuild. Ends with 3 if the journal is damaged, with 8 if something else keeps an engine
from working, with 0 otherwise.

Example:
  sprag doctor")]
pub(crate) struct Doctor {
    /// Throw the state away and build it again from the journal; no engine may be at work
    #[arg(long)]
    rebuild: bool,
    /// Print the checks as JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let mut checks = examine(context.dir(), SystemClock.now());
        checks.push(configuration(context));
        if self.rebuild {
            checks.push(rebuild(context)?);
        }
        let mut output = context.output();
        if self.json {
            output.json(&checks.iter().map(to_json).collect())?;
        } else {
            for check in &checks {
                let style = output.style;
                let level = match check.level {
                    Level::Good => style.good(format!("{:<4}", check.level.name())),
                    Level::Note => style.warn(format!("{:<4}", check.level.name())),
                    Level::Bad => style.bad(format!("{:<4}", check.level.name())),
                };
                output.line(format!("{level}  {:<13}  {}", check.about, check.words))?;
                if let Some(remedy) = &check.remedy {
                    output.line(format!("{:21}next: {}", "", context.same_dir(remedy)))?;
                }
            }
        }
        output.flush()?;
        Ok(status_of(&checks))
    }
}

fn status_of(checks: &[Check]) -> Status {
    let is_bad = |check: &&Check| check.level == Level::Bad;
    match checks.iter().find(is_bad) {
        None => Status::Done,
        Some(_) if checks.iter().filter(is_bad).any(|check| check.about == "journal") => Status::Damage,
        Some(check) if check.about == "configuration" => Status::Usage,
        Some(_) => Status::Store,
    }
}

fn configuration(context: &Context) -> Check {
    let about = "configuration";
    match context.config(&Overrides::default()) {
        Ok(config) => {
            let models: Vec<&str> = config.models.keys().map(String::as_str).collect();
            let words =
                if models.is_empty() { "no model is configured".to_owned() } else { models.join(", ") };
            Check { about, level: Level::Good, words, remedy: None }
        }
        Err(failure) => {
            let remedy = Some("mend the file".to_owned());
            Check { about, level: Level::Bad, words: failure.message().to_owned(), remedy }
        }
    }
}

/// Opens the store as an engine does, and closes it again: what it leaves is equal to the journal.
fn rebuild(context: &Context) -> Result<Check, Failure> {
    if !context.has_journal()? {
        let message =
            format!("there is no journal in {}; name another directory with --data", context.dir().display());
        return Err(Failure::new(Status::Store, message));
    }
    let since = Instant::now();
    let options = Options { opened_at_ms: SystemClock.now().0, rebuilds_state: true, ..Options::default() };
    let store = JournalStore::open(context.dir(), options)?;
    let frames = store.opening().frames;
    store.settle()?;
    store.close()?;
    let seconds = since.elapsed().as_secs_f64();
    let words = format!("built from {frames} frames in {seconds:.2} s");
    Ok(Check { about: "state", level: Level::Good, words, remedy: None })
}

fn to_json(check: &Check) -> Value {
    json!({ "about": check.about, "level": check.level.name(), "found": check.words, "next": check.remedy })
}
