//! `sprag doctor`: what is wrong with the store, the disk or the machine, and how to mend it.

mod models;

use std::time::Instant;

use engine::config::Overrides;
use engine::doctor::{Check, Level, examine};
use engine::salvage::{Losses, Saved, salvage};
use engine::{Clock, SystemClock};
use serde_json::{Value, json};
use store::{JournalStore, Options};

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::{clean, count};

/// Check store, disk and machine: what is wrong, and what mends it
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
It changes nothing, but for --rebuild and --salvage. Without them it says what a salvage would find.
Ends with 3 if the journal is damaged, with 2 if the configuration is not valid, with 8 if something
else keeps an engine from working, with 0 otherwise.

Example:
  sprag doctor")]
pub(crate) struct Doctor {
    #[command(subcommand)]
    what: Option<What>,
    /// Throw the state away and build it again from the journal; no engine may be at work
    #[arg(long)]
    rebuild: bool,
    /// Save what is left of a damaged journal: runs that are whole go on, runs that miss records are forgotten, and the
    /// damaged files stay beside as *.seg.damaged; no engine may be at work
    #[arg(long, conflicts_with = "rebuild")]
    salvage: bool,
    /// Print the checks, or what was saved, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Models(models::Models),
}

impl Doctor {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        if let Some(What::Models(models)) = self.what {
            return models.run(context);
        }
        if self.salvage {
            return save(context, self.json);
        }
        let mut checks = examine(context.dir(), SystemClock.now());
        checks.push(configuration(context));
        if self.rebuild {
            // What was wrong with the state is wrong no more.
            let rebuilt = rebuild(context)?;
            checks.retain(|check| check.about != rebuilt.about);
            checks.push(rebuilt);
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

fn has_journal(context: &Context) -> Result<(), Failure> {
    if context.has_journal()? {
        return Ok(());
    }
    let message =
        format!("there is no journal in {}; name another directory with --data", context.dir().display());
    Err(Failure::new(Status::Store, message))
}

/// Opens the store as an engine does, and closes it again: what it leaves is equal to the journal.
fn rebuild(context: &Context) -> Result<Check, Failure> {
    has_journal(context)?;
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

/// Mends the journal, and says what was saved and what was lost.
fn save(context: &Context, is_json: bool) -> Result<Status, Failure> {
    has_journal(context)?;
    let Saved { segments, losses } = salvage(context.dir(), SystemClock.now())?;
    let is_untouched = segments.is_empty();
    let mut output = context.output();
    if is_json {
        let segments: Vec<Value> = segments
            .iter()
            .map(|mended| json!({ "segment": mended.segment, "frames": mended.frames, "damaged": mended.damaged }))
            .collect();
        output.json(&json!({ "segments": segments, "losses": losses }))?;
        output.flush()?;
        return Ok(status_of_salvage(&losses, is_untouched));
    }
    if segments.is_empty() {
        output.line("nothing to mend")?;
    }
    for mended in &segments {
        let kept = mended.damaged.as_ref().map(|kept| format!("; its old bytes are in {}", kept.display()));
        let (segment, frames) = (mended.segment.display(), count(mended.frames, "frame"));
        output.line(format!("mended {segment}: {frames}{}", kept.unwrap_or_default()))?;
    }
    output.line(format!("{} whole", count(losses.whole, "run")))?;
    for torn in &losses.torn {
        let names = [("job", &torn.custom_id), ("batch", &torn.batch), ("session", &torn.session)];
        let names =
            names.iter().filter_map(|(name, value)| Some(format!(", {name} {}", clean(value.as_ref()?))));
        let good = torn.last_good.map_or("none of it".to_owned(), |seq| format!("whole up to record {seq}"));
        let place = format!("{} at offset {}: {}", torn.segment.display(), torn.offset, torn.reason);
        output.line(format!("lost run {}{}: {good} ({place})", torn.run, names.collect::<String>()))?;
        for run in &torn.continued_by {
            output.line(format!("run {run} goes on without the messages of run {}", torn.run))?;
        }
    }
    match losses.nameless {
        Some(0) => {}
        Some(records) => output.line(format!("{} lost that nothing names", count(records, "more record")))?,
        None => output.line("nobody can say how many records were lost at the end")?,
    }
    if losses.beyond > 0 {
        output.line(format!(
            "{} that were acknowledged are missing at the end: what they did may be done again",
            count(losses.beyond, "more record")
        ))?;
        if is_untouched {
            output.line(format!("next: {}, only if there is no copy", context.next("doctor --rebuild")))?;
        }
    }
    output.flush()?;
    Ok(status_of_salvage(&losses, is_untouched))
}

/// An end that is missing as a whole is nothing that can be mended; the next open refuses it until the state is rebuilt.
fn status_of_salvage(losses: &Losses, is_untouched: bool) -> Status {
    match losses.beyond {
        0 => Status::Done,
        _ if is_untouched => Status::Store,
        _ => Status::Damage,
    }
}

fn to_json(check: &Check) -> Value {
    json!({ "about": check.about, "level": check.level.name(), "found": check.words, "next": check.remedy })
}
