//! `sprag resume`: continues what a crash or a stop left.

use std::io::{self, Write};
use std::time::Duration;

use engine::config::Overrides;
use engine::{Engine, Found, Note, Rest, query, report_json};
use model::RunId;

use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::output::Output;
use crate::owner::{Ended, Owner, rest_of};
use crate::status::Status;
use crate::text::{count, lost_words, note_line};

/// Lines of each kind that the report has in a text.
const LINES_MAX: usize = 20;
/// How often a person is told what was found meanwhile.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// What is said when every run has ended.
const NOTHING_LEFT: &str = "nothing to continue";

/// Continue runs that a crash or a stop left; ends when all are done or parked
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag resume")]
pub(crate) struct Resume {
    /// The runs: ids, or beginnings of them [default: every run that can continue]
    runs: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        if !context.has_journal()? && self.runs.is_empty() {
            if self.json {
                Report::new(context.output()).json(&[])?;
            }
            eprint(NOTHING_LEFT);
            return Ok(Status::Done);
        }
        let layers = context.layers(Overrides::default());
        let config = layers.load()?;
        block_on(async {
            let mut owner = Owner::open(context, layers, config)?;
            let resumed = self.resume(context, &mut owner).await;
            owner.close().await?;
            resumed
        })
    }

    async fn resume(&self, context: &Context, owner: &mut Owner) -> Result<Status, Failure> {
        let engine = owner.engine.clone();
        let runs = self.find(&engine)?;
        engine.resume(self.named().then_some(&runs))?;
        let mut report = Report::new(context.output());
        let ended = owner.until(self.follow(&engine, &mut report)).await;
        engine.stop().await;
        if self.json {
            report.json(&engine.report())?;
        } else {
            report.text(&engine)?;
            report.end()?;
        }
        let mut rests = Vec::with_capacity(runs.len());
        for run in &runs {
            rests.push(rest_of(&engine.handle(*run)).await?);
        }
        match ended {
            Ended::Done(()) if !rests.contains(&Some(Rest::Stopped)) => {
                say_end(context, &engine, &runs, &rests)?;
                Ok(Status::of_all(rests.iter().map(|rest| Status::of_rest(rest.as_ref()))))
            }
            ended @ (Ended::Done(()) | Ended::Stopped(_)) => {
                // A stop that lets turns end is over when the runs rest.
                let status = ended.stopped_by().unwrap_or(Status::Terminated);
                let left = engine.live_runs()?.len() as u64;
                let next = context.next("resume");
                eprint(&format!("stopped; {} left; to continue: {next}", count(left, "run")));
                Ok(status)
            }
        }
    }

    /// Returns when nothing can move any more. A person sees what is found as it is found.
    async fn follow(&self, engine: &Engine, report: &mut Report) {
        let mut rested = Box::pin(engine.rested());
        while tokio::time::timeout(REPORT_EVERY, &mut rested).await.is_err() {
            if !self.json && report.text(engine).is_err() {
                // With stdout gone the runs go on all the same.
                return rested.await;
            }
        }
    }

    fn named(&self) -> bool {
        !self.runs.is_empty()
    }

    fn find(&self, engine: &Engine) -> Result<Vec<RunId>, Failure> {
        let live = engine.live_runs()?;
        if !self.named() {
            return Ok(live);
        }
        let find = |name: &String| {
            let run = query::find_run(&**engine.store(), name)?;
            if live.contains(&run) { Ok(run) } else { Err(engine::Error::RunEnded(run).into()) }
        };
        self.runs.iter().map(find).collect()
    }
}

/// What was found, told as it is found.
struct Report {
    output: Output,
    /// Lines of the engine's report that were looked at.
    seen: usize,
    /// Lines of each kind.
    counts: [usize; Found::ALL.len()],
}

impl Report {
    fn new(output: Output) -> Self {
        Self { output, seen: 0, counts: [0; Found::ALL.len()] }
    }

    fn json(&mut self, notes: &[Note]) -> io::Result<()> {
        self.output.json(&report_json(notes))?;
        self.output.flush()
    }

    /// What is new since the last look.
    fn text(&mut self, engine: &Engine) -> io::Result<()> {
        for note in engine.report_since(self.seen) {
            self.seen += 1;
            let Some(count) = self.counts.get_mut(note.found as usize) else { continue };
            *count += 1;
            if *count <= LINES_MAX {
                self.output.line(note_line(&note))?;
            }
        }
        self.output.flush()
    }

    /// How many lines were left out.
    fn end(&mut self) -> io::Result<()> {
        for (found, count) in Found::ALL.iter().zip(self.counts) {
            if count > LINES_MAX {
                let more = count - LINES_MAX;
                self.output.line(format!("{:<9} and {more} more; --json lists all", found.name()))?;
            }
        }
        self.output.flush()
    }
}

/// How the runs ended, and what moves those that did not.
fn say_end(
    context: &Context,
    engine: &Engine,
    runs: &[RunId],
    rests: &[Option<Rest>],
) -> Result<(), Failure> {
    if runs.is_empty() {
        eprint(NOTHING_LEFT);
        return Ok(());
    }
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for (run, rest) in runs.iter().zip(rests) {
        let name = match rest {
            Some(Rest::Failed(_)) => "not driven because of an error",
            // Also one that nobody has taken over yet.
            Some(Rest::Parked(_)) => query::Status::Parked.name(),
            Some(Rest::Done { .. } | Rest::Waiting { .. } | Rest::Stopped) | None => {
                query::show(&**engine.store(), *run)?.row.status.name()
            }
        };
        match counts.iter_mut().find(|(found, _)| *found == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    eprint(&format!("{}: {}", count(runs.len() as u64, "run"), counts.join(", ")));
    for run in runs.iter().take(LINES_MAX) {
        if let Some(lost) = engine.handle(*run).recording_lost() {
            eprint(&format!("{run}: {}", lost_words(&lost)));
        }
    }
    let unmoved = runs.iter().zip(rests).filter(|(_, rest)| !matches!(rest, Some(Rest::Done { .. })));
    for (run, _) in unmoved.take(LINES_MAX) {
        let why = query::why(&**engine.store(), *run, false)?;
        eprint(&format!("{run}: {}", why.sentence));
        if let Some(command) = why.command {
            eprint(&format!("  next: {}", context.same_dir(&command)));
        }
    }
    Ok(())
}

fn eprint(line: &str) {
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}
