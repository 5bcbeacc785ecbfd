//! `sprag run`: one run, watched to its end.

use std::io::{IsTerminal, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use engine::config::{Overrides, Usd};
use engine::{EventReader, Job, Place, Rest, RunHandle, query};
use futures_util::StreamExt;
use serde_json::Value;

use crate::arguments::{duration_s, label};
use crate::context::{Context, block_on};
use crate::failure::Failure;
use crate::owner::{Ended, Owner, rest_of};
use crate::screen::Screen;
use crate::status::Status;
use crate::text::{count, field, lost_words, tokens_in};
use model::guard::retry::ThinkingLevel;

/// Start one run in the current directory and watch it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  echo '{\"turns\":[{\"text\":\"Hello!\"}]}' > hello.json
  sprag run --model rehearsal:hello.json 'Say hello'")]
pub(crate) struct Run {
    /// What the model is asked; `-` reads it from stdin
    prompt: Option<String>,
    /// Name of a configured model, rehearsal:FILE or replay:DIR
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Session to run in: the model sees what was said in it before [default: a new one]
    #[arg(long, value_name = "KEY")]
    session: Option<String>,
    /// Directory that tools work in [default: the current one]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Tools that the model may call, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// Idempotency key: repeated with the same key, the same run is watched
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// Wall-clock limit: seconds, or like 90s, 15m or 48h; 0 for none
    #[arg(long, value_name = "TIME", value_parser = duration_s)]
    timeout: Option<u64>,
    /// Most turns; 0 for no cap
    #[arg(long, value_name = "N")]
    max_turns: Option<u64>,
    /// Most model calls; 0 for no cap
    #[arg(long, value_name = "N")]
    max_calls: Option<u64>,
    /// Most dollars; 0 for no cap
    #[arg(long, value_name = "X")]
    max_usd: Option<Usd>,
    /// Most tokens of all kinds; 0 for no cap
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// How much the model is asked to think: off, minimal, low, medium, high or xhigh
    #[arg(long, value_name = "LEVEL")]
    thinking: Option<ThinkingLevel>,
    /// A label of the run; may be given more than once
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Record each model call in a new directory; --model replay:DIR plays it
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print one event a line, as JSON
    #[arg(long)]
    json: bool,
}

impl Run {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let layers = context.layers(self.overrides());
        let config = layers.load()?;
        let is_json = self.json;
        let job = self.job(context)?;
        block_on(async {
            let mut owner = Owner::open(context, layers, config)?;
            let mut screen = Screen::new(context.output(), is_json);
            let watched = watch(&mut owner, job, &mut screen).await;
            let ended = match watched {
                Ok((handle, Ended::Done(rest))) if rest != Some(Rest::Stopped) => {
                    say_end(context, &handle, rest.as_ref(), &mut screen)
                        .map(|()| Status::of_rest(rest.as_ref()))
                }
                // A stop that lets turns end is over when the run rests.
                Ok((handle, ended)) => {
                    let status = ended.stopped_by().unwrap_or(Status::Terminated);
                    say_stop(context, &handle, status, &mut screen).await
                }
                Err(failure) => Err(failure),
            };
            owner.close().await?;
            ended
        })
    }

    fn overrides(&self) -> Overrides {
        Overrides {
            model: self.model.clone(),
            tools: self.tools.clone(),
            timeout_s: self.timeout,
            concurrency: None,
            max_turns: self.max_turns,
            max_calls: self.max_calls,
            thinking: self.thinking,
            max_usd: self.max_usd,
            max_tokens: self.max_tokens,
        }
    }

    /// Limits and model come with the configuration, which the flags override.
    fn job(self, context: &Context) -> Result<Job, Failure> {
        let prompt = prompt(self.prompt)?;
        let workspace = match &self.workspace {
            Some(workspace) => context.cwd().join(workspace),
            None => context.cwd().to_owned(),
        };
        Ok(Job {
            session: self.session,
            key: self.key,
            workspace: Some(workspace),
            tools: self.tools,
            labels: self.labels.into_iter().collect(),
            record: self.record.map(|dir| without_dots(&context.cwd().join(dir))),
            ..Job::new(prompt)
        })
    }
}

/// The path without `.` and `..`, so that it can be compared; it need not exist.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => path.push(component),
        }
        path
    })
}

/// Tools that look through the workspace would find the recording of their own calls.
fn records_inside(job: &Job) -> bool {
    let workspace = job.workspace.as_deref().map(without_dots);
    job.record.as_ref().zip(workspace).is_some_and(|(record, workspace)| record.starts_with(workspace))
}

fn prompt(argument: Option<String>) -> Result<String, Failure> {
    let mut stdin = std::io::stdin();
    let prompt = match argument {
        Some(prompt) if prompt != "-" => prompt,
        None if stdin.is_terminal() => {
            return Err(Failure::usage("nothing is asked; give a prompt, or `-` to read it from stdin"));
        }
        Some(_) | None => {
            let mut text = String::new();
            stdin
                .read_to_string(&mut text)
                .map_err(|error| Failure::usage(format!("the prompt on stdin cannot be read: {error}")))?;
            text
        }
    };
    if prompt.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty; say what the model is to do"));
    }
    Ok(prompt)
}

/// Submits the job and shows its events until nothing moves it any more.
async fn watch(
    owner: &mut Owner,
    job: Job,
    screen: &mut Screen,
) -> Result<(RunHandle, Ended<Option<Rest>>), Failure> {
    let engine = owner.engine.clone();
    let left = engine.live_runs()?;
    let is_inside = records_inside(&job);
    let record = job.record.clone();
    let handle = engine.submit(job).await?;
    if is_inside {
        let words = "the recording is inside of the workspace, where tools see it grow: a replay may differ";
        screen.note(&screen.style().warn(words))?;
    }
    if let Some(dir) = record.filter(|dir| !dir.exists()) {
        let dir = dir.display();
        let words =
            format!("the run was there before, by its key: nothing is recorded in {dir}; use another key");
        screen.note(&screen.style().warn(words))?;
    }
    if left.contains(&handle.id) {
        // Its key is that of a run that a stop or a crash has left.
        engine.resume(Some(&[handle.id]))?;
    }
    let mut shown = None;
    let (mut commits, mut told) = (handle.commits(), None);
    let work = async {
        let mut events = Box::pin(handle.events(None)?);
        loop {
            tokio::select! {
                biased;
                event = events.next() => match event.transpose()? {
                    Some(event) => {
                        screen.show(&event)?;
                        shown = event.place.or(shown);
                    }
                    None => break,
                },
                () = engine.rested() => break,
                // It fails once the run has ended, which the others tell.
                Ok(()) = commits.changed() => show_wait(&handle, &mut told, screen)?,
            }
        }
        // The last event is published before its driver has settled.
        engine.rested().await;
        Ok::<_, Failure>(())
    };
    let ended = owner.until(work).await;
    engine.stop().await;
    let ended = match ended {
        // Nobody reads any more: the run is left as a signal leaves it.
        Ended::Done(Err(Failure::ClosedPipe)) => return Ok((handle, Ended::Stopped(Status::Terminated))),
        Ended::Done(watched) => Ended::Done(watched.map(|()| rest_of(&handle))?.await?),
        Ended::Stopped(status) => Ended::Stopped(status),
    };
    match show_rest(&handle, shown, screen) {
        Ok(()) | Err(Failure::ClosedPipe) => Ok((handle, ended)),
        Err(failure) => Err(failure),
    }
}

/// Says why the run waits before it asks its model again, which no event tells. Of a wait that is over by now there is
/// nothing to say, and of one that was `told`, by turn and attempt, neither.
fn show_wait(run: &RunHandle, told: &mut Option<(u32, u32)>, screen: &mut Screen) -> Result<(), Failure> {
    if let Some(failed) = query::failed_now(&**run.engine().store(), run.id)?
        && failed.wait_s > 0.0
        && told.replace((failed.turn, failed.attempt)) != Some((failed.turn, failed.attempt))
    {
        let query::AttemptRow { model, failure, message, followed, .. } = failed;
        let why = if message.is_empty() { failure.to_owned() } else { format!("{failure}: {message}") };
        screen.aside(&format!("no answer from {model} ({why}): {followed}"))?;
    }
    Ok(())
}

/// Shows what was committed and not shown yet.
fn show_rest(run: &RunHandle, shown: Option<Place>, screen: &mut Screen) -> Result<(), Failure> {
    let mut reader = EventReader::open(Arc::clone(run.engine().store()), run.id, shown)?;
    loop {
        let events = reader.read()?;
        if events.is_empty() {
            return Ok(());
        }
        for event in events {
            screen.show(&event)?;
        }
    }
}

/// Outcome, turns, tokens, run.
fn say_end(
    context: &Context,
    run: &RunHandle,
    rest: Option<&Rest>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let store = run.engine().store();
    let view = query::show(&**store, run.id)?;
    let view = serde_json::to_value(view).unwrap_or_default();
    let number = |pointer: &str| view.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let cached = number("/usage/cache_read").saturating_add(number("/usage/cache_write"));
    let style = screen.style();
    let mut facts = vec![
        count(number("/turns"), "turn"),
        count(number("/counters/tool_calls"), "tool call"),
        format!("{} in, {} out", tokens_in(number("/usage/input"), cached), number("/usage/output")),
    ];
    let usd = view.get("usd").and_then(Value::as_f64).unwrap_or_default();
    match field(&view, "usd_is") {
        "unknown" if usd > 0.0 => facts.push(format!("${usd} and what a model without a price cost")),
        "unknown" => facts.push("cost unknown: the model has no price".to_owned()),
        "estimated" => facts.push(format!("${usd} at most")),
        _ if usd > 0.0 => facts.push(format!("${usd}")),
        _ => {}
    }
    let status = style.status(field(&view, "status"));
    screen.note(&format!("{status} {}", style.dim(format!("{} · run {}", facts.join(" · "), run.id))))?;
    say_lost(run, screen)?;
    match rest {
        Some(Rest::Done { reason: Some(reason), .. }) if !screen.has_shown(reason) => {
            screen.note(&format!("reason: {reason}"))?;
        }
        Some(Rest::Done { .. } | Rest::Stopped | Rest::Waiting { .. }) => {}
        Some(Rest::Failed(error)) => {
            screen.note(&style.bad(error))?;
            screen.note(&format!("to continue: {}", context.next(&format!("resume {}", run.id))))?;
        }
        Some(Rest::Parked(_)) | None => {
            let why = query::why(&**store, run.id, false)?;
            screen.note(&style.warn(&why.sentence))?;
            if let Some(command) = why.command {
                screen.note(&format!("next: {}", context.same_dir(&command)))?;
            }
        }
    }
    Ok(())
}

/// What is missing in the recording of the run.
fn say_lost(run: &RunHandle, screen: &mut Screen) -> Result<(), Failure> {
    if let Some(lost) = run.recording_lost() {
        screen.note(&screen.style().warn(lost_words(&lost)))?;
    }
    Ok(())
}

async fn say_stop(
    context: &Context,
    run: &RunHandle,
    status: Status,
    screen: &mut Screen,
) -> Result<Status, Failure> {
    let rest = rest_of(run).await?;
    if let Some(Rest::Done { .. }) = rest {
        say_end(context, run, rest.as_ref(), screen)?;
        return Ok(Status::of_rest(rest.as_ref()));
    }
    say_lost(run, screen)?;
    screen.note(&format!("stopped; to continue: {}", context.next(&format!("resume {}", run.id))))?;
    Ok(status)
}
