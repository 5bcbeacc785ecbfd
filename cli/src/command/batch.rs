//! `sprag batch run`: a file of jobs, run to its end.

use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Subcommand;
use engine::batch::{self, BadLine, BatchRun, Defaults, Halt, JobsFile, NewCaps, Options, Standing, Summary};
use engine::config::{Config, Overrides, Usd};
use engine::query::{self, quoted};
use engine::{CapReached, Engine, Found, Note};
use model::Budget;
use serde_json::{Value, json};

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::owner::{Ended, Owner};
use crate::progress::Meter;
use crate::status::Status;
use crate::text::{count, note_line};

/// Jobs that are named one by one in a text.
const NAMES_MAX: usize = 20;

/// Run many jobs from a file
#[derive(Debug, clap::Args)]
pub(crate) struct Batch {
    #[command(subcommand)]
    command: BatchCommand,
}

#[derive(Debug, Subcommand)]
enum BatchCommand {
    Run(Run),
}

/// Submit a file of jobs and run it to the end; run again, it continues
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sprag batch run docs/examples/jobs.jsonl --model rehearsal:docs/examples/jobs.rehearsal.json")]
struct Run {
    /// The jobs, one JSON object a line: custom_id and prompt are required
    #[arg(value_name = "JOBS")]
    jobs: PathBuf,
    /// Name of the batch [default: the canonical path of JOBS]
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Where the results go, one line a job [default: JOBS.results.jsonl beside it]
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Runs at once
    #[arg(long, value_name = "N")]
    concurrency: Option<NonZeroU32>,
    /// Model of jobs that name none, and of lines in a provider's shape
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Also write a log with the columns of GNU parallel
    #[arg(long, value_name = "FILE")]
    joblog: Option<PathBuf>,
    /// Start no further job once so many have failed: fail=N or fail=P%
    #[arg(long, value_name = "WHEN")]
    halt: Option<Halt>,
    /// Most dollars of the whole batch, however often it is run; 0 for no cap
    #[arg(long, value_name = "X")]
    max_usd: Option<Usd>,
    /// Most tokens of the whole batch; 0 for no cap
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Most model calls of the whole batch; 0 for no cap
    #[arg(long, value_name = "N")]
    max_calls: Option<u64>,
    /// Say what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Leave bad lines out and run the rest
    #[arg(long)]
    skip_invalid: bool,
    /// Print the end as JSON
    #[arg(long)]
    json: bool,
}

impl Batch {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        match self.command {
            BatchCommand::Run(run) => run.run(context),
        }
    }
}

impl Run {
    fn run(self, context: &Context) -> Result<Status, Failure> {
        let overrides =
            Overrides { model: self.model.clone(), concurrency: self.concurrency, ..Overrides::default() };
        let layers = context.layers(overrides);
        let config = layers.load()?;
        let options = self.options(context)?;
        let defaults = Defaults {
            batch: options.batch.clone(),
            cwd: context.cwd().to_owned(),
            model: self.model.clone(),
        };
        let file = JobsFile::read(&options.jobs, &defaults)?;
        if self.dry_run {
            return self.survey(context, config, &options, file);
        }
        if !file.bad.is_empty() && !self.skip_invalid {
            return Err(batch::Error::Jobs(file.bad).into());
        }
        block_on(async {
            let mut owner = Owner::open(context, layers, config)?;
            say_shared(&file, &options.batch, &**owner.engine.store())?;
            let ended = self.follow(context, &mut owner, file, options).await;
            owner.close().await?;
            ended
        })
    }

    fn options(&self, context: &Context) -> Result<Options, Failure> {
        let jobs = context.cwd().join(&self.jobs);
        let jobs = jobs.canonicalize().map_err(|error| {
            Failure::usage(format!("{}: {error}; name a file of jobs that can be read", jobs.display()))
        })?;
        let batch = self.batch.clone().unwrap_or_else(|| jobs.display().to_string());
        if batch.is_empty() {
            return Err(Failure::usage("the name of the batch is empty; give it one, or leave --batch out"));
        }
        Ok(Options {
            batch,
            results: match &self.results {
                Some(results) => context.cwd().join(results),
                None => context.cwd().join(&self.jobs).with_extension("results.jsonl"),
            },
            joblog: self.joblog.as_ref().map(|joblog| context.cwd().join(joblog)),
            jobs,
            halt: self.halt,
            skips_invalid: self.skip_invalid,
            caps: NewCaps {
                calls: self.max_calls,
                tokens: self.max_tokens,
                usd_micros: self.max_usd.map(Usd::micros),
            },
        })
    }

    /// What would be run.
    fn survey(
        &self,
        context: &Context,
        config: Config,
        options: &Options,
        file: JobsFile,
    ) -> Result<Status, Failure> {
        let store = context.journal()?;
        say_shared(&file, &options.batch, &*store)?;
        let survey = block_on(async {
            let engine = Engine::memory().config(config).open()?;
            Ok(batch::survey(&*store, &engine, &options.batch, &options.jobs, file)?)
        })?;
        say_bad(&survey.bad);
        let mut output = context.output();
        let (fresh, live, ended) = (survey.fresh, survey.live, survey.ended);
        if self.json {
            let bad = survey.bad.len();
            output.json(&json!({
                "batch": options.batch, "new": fresh, "unfinished": live, "ended": ended, "bad": bad,
                "results": options.results,
            }))?;
        } else {
            let jobs = count((fresh + live + ended) as u64, "job");
            output.line(format!("{jobs}: {fresh} new, {live} to continue, {ended} ended already"))?;
        }
        output.flush()?;
        Ok(if survey.bad.is_empty() || self.skip_invalid { Status::Done } else { Status::Usage })
    }

    async fn follow(
        &self,
        context: &Context,
        owner: &mut Owner,
        file: JobsFile,
        options: Options,
    ) -> Result<Status, Failure> {
        let engine = owner.engine.clone();
        let results = options.results.clone();
        let name = options.batch.clone();
        let mut batch = BatchRun::open(&engine, file, options)?;
        say_bad(batch.skipped());
        say_mended(&batch, &results);
        let mut meter = Meter::new(batch.look().total);
        let every = meter.every();
        let work = async {
            batch.start().await?;
            batch.follow(every, |progress| meter.show(progress)).await
        };
        let stopped = match owner.until(work).await {
            Ended::Done(followed) => {
                followed?;
                None
            }
            Ended::Stopped(status) => Some(status),
        };
        engine.stop().await;
        let summary = batch.finish()?;
        // A stop that lets turns end is over when the runs rest.
        let is_stopped = |(_, _, standing): &(_, _, Standing)| matches!(standing, Standing::Stopped);
        let is_drained = !summary.is_halted && summary.jobs.iter().any(is_stopped);
        let stopped = stopped.or(is_drained.then_some(Status::Terminated));
        meter.end(&summary.progress);
        let words = |raised: Option<CapReached>| format!("batch run {}", self.words(raised));
        let next = context.next(&words(None));
        let report = engine.report();
        let found = calls_found(&report);
        if self.json {
            let mut output = context.output();
            output.json(&to_json(&summary, &name, &results, stopped, &found))?;
            output.flush()?;
        }
        say_found(&found);
        say_end(context, &engine, &summary)?;
        if let Some(reached) = summary.cap_reached {
            say_cap(&summary, &reached, &context.next(&words(Some(reached))));
        }
        let open = summary.progress.total.saturating_sub(summary.progress.done);
        if let Some(status) = stopped {
            say(&format!("stopped; {} left; to continue: {next}", count(open, "job")));
            return Ok(status);
        }
        if summary.is_halted && open > 0 {
            say(&format!("halted; {} left; to continue, raise --halt: {next}", count(open, "job")));
        }
        if !self.json {
            let mut output = context.output();
            output.line(results.display())?;
            output.flush()?;
        }
        Ok(Status::of_all(summary.jobs.iter().map(|(_, _, standing)| status_of(standing))))
    }

    /// The flags to type again, with a cap raised that was reached.
    fn words(&self, raised: Option<CapReached>) -> String {
        let mut words = vec![quoted(&self.jobs.display().to_string())];
        let mut flag = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{name} {}", quoted(&value))));
        };
        flag("--batch", self.batch.clone());
        flag("--results", self.results.as_ref().map(|path| path.display().to_string()));
        flag("--concurrency", self.concurrency.map(|n| n.to_string()));
        flag("--model", self.model.clone());
        flag("--joblog", self.joblog.as_ref().map(|path| path.display().to_string()));
        flag("--halt", self.halt.map(|halt| halt.to_string()));
        if self.skip_invalid {
            words.push("--skip-invalid".to_owned());
        }
        words.extend(raised.map(|reached| reached.flag()));
        words.join(" ")
    }
}

fn status_of(standing: &Standing) -> Status {
    match standing {
        Standing::Ended(outcome) => Status::of_outcome(*outcome),
        Standing::Parked(_) | Standing::Going | Standing::Waiting => Status::Parked,
        Standing::Stopped => Status::Done,
        Standing::Broken(_) => Status::Internal,
    }
}

fn say_shared(file: &JobsFile, batch: &str, store: &dyn store::Store) -> Result<(), Failure> {
    for shared in batch::shared_workspaces(file, batch, store)?.into_iter().take(NAMES_MAX) {
        let names = names(shared.custom_ids.iter().map(String::as_str));
        let runs: Vec<String> =
            shared.runs.iter().take(NAMES_MAX).map(|run| format!(" and run {run}")).collect();
        let workspace = shared.workspace.display();
        say(&format!("note: jobs {names}{} work in one directory at once: {workspace}", runs.concat()));
    }
    Ok(())
}

fn say_bad(bad: &[BadLine]) {
    for line in bad {
        say(&format!("left out: {line}"));
    }
}

fn say_mended(batch: &BatchRun, results: &std::path::Path) {
    let mended = batch.mended();
    for (line, reason) in mended.dropped.iter().take(NAMES_MAX) {
        say(&format!("{}: line {line} was removed: {reason}", results.display()));
    }
    if let more @ 1.. = mended.dropped.len().saturating_sub(NAMES_MAX) {
        say(&format!("{}: {} removed", results.display(), count(more as u64, "more line")));
    }
    if let Some(kept) = &mended.kept {
        say(&format!("the file as it was is kept: {}", kept.display()));
    }
    if mended.added > 0 {
        say(&format!("{}: {} added", results.display(), count(mended.added as u64, "missing line")));
    }
}

fn names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut text = names.take(NAMES_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// Numbers by standing, then each job that needs somebody, with the command that moves it.
fn say_end(context: &Context, engine: &Engine, summary: &Summary) -> Result<(), Failure> {
    let jobs = count(summary.progress.total, "job");
    let counts: Vec<String> =
        counted(summary).into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    say(&format!("{jobs}: {}", counts.join(", ")));
    let unmoved = summary.jobs.iter().filter(|(_, _, standing)| match standing {
        Standing::Parked(_) => standing.shortage_of_batch().is_none(),
        Standing::Broken(_) => true,
        Standing::Ended(_) | Standing::Stopped | Standing::Going | Standing::Waiting => false,
    });
    for (custom_id, run, standing) in unmoved.take(NAMES_MAX) {
        if let Standing::Broken(reason) = standing {
            say(&format!("{custom_id} (run {run}): {reason}"));
            continue;
        }
        let why = query::why(&**engine.store(), *run, false)?;
        say(&format!("{custom_id} (run {run}): {}", why.sentence));
        if let Some(command) = why.command {
            say(&format!("  next: {}", context.same_dir(&command)));
        }
    }
    Ok(())
}

/// What was found of calls that an earlier engine had under way, in the order of the report.
fn calls_found(notes: &[Note]) -> Vec<(Found, Vec<&Note>)> {
    let of = |found: Found| (found, notes.iter().filter(|note| note.found == found).collect());
    let kinds = [Found::Adopted, Found::Collected, Found::Repeated, Found::Unknown].map(of);
    kinds.into_iter().filter(|(_, notes): &(Found, Vec<&Note>)| !notes.is_empty()).collect()
}

fn say_found(found: &[(Found, Vec<&Note>)]) {
    for (found, notes) in found {
        for note in notes.iter().take(NAMES_MAX) {
            say(&note_line(note));
        }
        if let more @ 1.. = notes.len().saturating_sub(NAMES_MAX) {
            say(&format!("{:<9} and {more} more", found.name()));
        }
    }
}

/// Numbers by kind; null if nothing was found.
fn found_json(found: &[(Found, Vec<&Note>)]) -> Value {
    let counts = found.iter().map(|(found, notes)| (found.name().to_owned(), notes.len().into()));
    if found.is_empty() { Value::Null } else { Value::Object(counts.collect()) }
}

/// Jobs that the batch's cap has parked are named once, together.
fn say_cap(summary: &Summary, reached: &CapReached, next: &str) {
    let parked =
        summary.jobs.iter().filter(|(_, _, standing)| standing.shortage_of_batch().is_some()).count();
    let jobs = count(parked as u64, "job");
    say(&format!("parked: budget (batch): the batch {reached}; {jobs} to continue"));
    say(&format!("  next: {next}"));
}

fn name_of(standing: &Standing) -> &'static str {
    match standing {
        Standing::Ended(outcome) => outcome.name(),
        Standing::Parked(_) => "parked",
        Standing::Waiting => "waiting",
        Standing::Stopped => "stopped",
        Standing::Going => "not started",
        Standing::Broken(_) => "not driven because of an error",
    }
}

fn counted(summary: &Summary) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for (_, _, standing) in &summary.jobs {
        let name = name_of(standing);
        match counts.iter_mut().find(|(found, _)| *found == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts
}

fn to_json(
    summary: &Summary,
    batch: &str,
    results: &std::path::Path,
    stopped: Option<Status>,
    found: &[(Found, Vec<&Note>)],
) -> Value {
    let counts: serde_json::Map<String, Value> =
        counted(summary).into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let parked = summary.jobs.iter().filter_map(|(custom_id, run, standing)| match standing {
        Standing::Parked(reason) => {
            let (run, reason) = (run.to_string(), reason.to_string());
            Some(json!({ "custom_id": custom_id, "run": run, "reason": reason }))
        }
        Standing::Ended(_)
        | Standing::Stopped
        | Standing::Going
        | Standing::Waiting
        | Standing::Broken(_) => None,
    });
    let cap_reached = summary.cap_reached.map(|reached| {
        let CapReached { budget, used, cap, enough } = reached;
        let number = |amount: u64| match budget {
            Budget::Usd => json!(amount as f64 / 1e6),
            Budget::Turns | Budget::Calls | Budget::Tokens => json!(amount),
        };
        let (used, cap, enough) = (number(used), number(cap), number(enough));
        json!({ "budget": budget.name(), "used": used, "cap": cap, "enough": enough })
    });
    json!({
        "batch": batch, "jobs": summary.progress.total, "done": summary.progress.done, "counts": counts,
        "parked": parked.collect::<Vec<_>>(), "halted": summary.is_halted, "stopped": stopped.is_some(),
        "cap_reached": cap_reached, "found": found_json(found), "results": results,
    })
}

fn say(line: &str) {
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
