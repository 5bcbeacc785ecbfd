//! The tool `bash`: runs a command that outlives the engine.
//!
//! Owns what the model is told of a command. The command itself belongs to its supervisor; this file must never run
//! one, and never start a second one for a call.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use model::ToolResult;
use model::guard::loops::ToolKind;
use model::input::RecoveryClass;
use serde::Deserialize;
use serde_json::json;

use super::blocking::{ABORTED, arguments};
use super::output::cut;
use super::{CallContext, Probe, Tool, ToolSpec, blob};
use crate::supervisor::{
    COMMAND_BYTES_MAX, EndedBy, Exit, OUTPUT, Spec, Standing, Status, Supervisors, Watch, ask_to_end,
    read_ends, read_live, settle, start,
};

/// The tool's name.
pub(crate) const NAME: &str = "bash";
/// The most bytes of the note between head and tail.
const NOTE_BYTES_MAX: u64 = 64;
/// The most bytes of output that a live update shows: the newest.
const LIVE_BYTES_MAX: u64 = 16 << 10;
/// Shortest time between two live updates.
const LIVE_EVERY: Duration = Duration::from_millis(100);
/// Longest time between two looks for new output.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// Longest time from an abort to the end of the command by its supervisor; then the supervisor is killed.
const END_MAX: Duration = Duration::from_secs(4);

/// Wait between tries while a full disk does not take what became of a call.
const DISK_RETRY: Duration = Duration::from_secs(1);

/// The tool `bash`.
pub(crate) struct Bash {
    spec: ToolSpec,
    supervisors: Supervisors,
}

#[derive(Deserialize)]
struct Args {
    command: String,
    timeout: Option<u64>,
}

impl Bash {
    /// The tool.
    pub(crate) fn new(supervisors: Supervisors) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "What bash is to run, in the workspace"},
                "timeout": {
                    "type": "integer", "minimum": 1,
                    "description": "Seconds after which it is ended, if that is sooner than usual",
                },
            },
            "required": ["command"],
        });
        let description = "Run a command with bash. It has no terminal and no input; what it leaves running in the \
                           background is ended with it. Answers its output, head and tail if that is long.";
        let spec = ToolSpec::new(NAME, description, parameters).class(RecoveryClass::Adoptable);
        Self { spec: ToolSpec { kind: ToolKind::Exec, ..spec }, supervisors }
    }

    /// Waits for the command of a call, or starts it. None if nobody can know any more what became of it.
    async fn attend(&self, call: &CallContext) -> Option<Result<ToolResult, String>> {
        let Some(dir) = call.scratch.clone() else {
            return Some(Err("commands need an engine with a directory".to_owned()));
        };
        loop {
            let (mut watch, is_started) = match self.join(call, &dir).await {
                Ok(Joined::Watch { watch, is_started }) => (watch, is_started),
                Ok(Joined::Ended(exit)) => return Some(collect(call, dir, exit).await),
                Err(text) => return Some(Err(text)),
            };
            follow(&mut watch, call, &dir).await;
            match standing_at_end(call, &dir).await {
                Ok(Standing::Ended(exit)) => return Some(collect(call, dir, exit).await),
                Ok(Standing::DidNotRun(reason)) if is_started => {
                    let reason = reason.unwrap_or_else(|| "its supervisor ended before it".to_owned());
                    return Some(Err(format!("The command was not started: {reason}")));
                }
                // What was found alive ended before it ran anything, or somebody only looks: it is joined again.
                Ok(Standing::DidNotRun(_) | Standing::Running) => {}
                Ok(Standing::Unknown) | Err(_) => {
                    return call.cancel.is_cancelled().then(|| Err(ABORTED.to_owned()));
                }
            }
        }
    }

    async fn join(&self, call: &CallContext, dir: &Path) -> Result<Joined, String> {
        if dir.is_dir() {
            match standing(call, dir).await.map_err(|error| error.to_string())? {
                Standing::Running => {
                    return Ok(Joined::Watch { watch: Watch::of_other(dir), is_started: false });
                }
                Standing::Ended(exit) => return Ok(Joined::Ended(exit)),
                // A call that is unknown comes here only when a person has said that it is to run again.
                Standing::DidNotRun(_) | Standing::Unknown => {}
            }
        }
        if call.cancel.is_cancelled() {
            return Err(ABORTED.to_owned());
        }
        let spec = spec_of(call)?;
        let (supervisors, dir) = (self.supervisors.clone(), dir.to_owned());
        let started = tokio::task::spawn_blocking(move || start(&supervisors, &dir, &spec)).await;
        match started {
            Ok(Ok(watch)) => Ok(Joined::Watch { watch, is_started: true }),
            Ok(Err(error)) => Err(format!("The command was not started: {error}")),
            Err(error) => Err(format!("the tool failed within itself: {error}")),
        }
    }
}

/// A call whose command was found or started.
enum Joined {
    /// It runs.
    Watch { watch: Watch, is_started: bool },
    /// It has ended.
    Ended(Exit),
}

#[async_trait]
impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        let unknown = || Err("what became of the command is not known".to_owned());
        self.attend(&call).await.unwrap_or_else(unknown)
    }

    async fn run_to_end(&self, call: CallContext) -> Option<Result<ToolResult, String>> {
        self.attend(&call).await
    }

    async fn probe(&self, call: &CallContext) -> Probe {
        let Some(dir) = call.scratch.clone() else { return Probe::Unknown };
        match standing(call, &dir).await {
            Ok(Standing::Running) => Probe::Running,
            Ok(Standing::Ended(exit)) => {
                Probe::Ran(collect(call, dir, exit).await.unwrap_or_else(ToolResult::error))
            }
            Ok(Standing::DidNotRun(_)) => Probe::DidNotRun,
            Ok(Standing::Unknown) | Err(_) => Probe::Unknown,
        }
    }
}

fn spec_of(call: &CallContext) -> Result<Spec, String> {
    let args: Args = arguments(call)?;
    if args.command.len() > COMMAND_BYTES_MAX {
        let got = args.command.len();
        return Err(format!(
            "the command has {got} bytes, at most {COMMAND_BYTES_MAX} can be run; write it to a file and run that"
        ));
    }
    if args.command.contains('\0') {
        return Err("the command holds a zero byte; leave it out".to_owned());
    }
    let timeout_s = match (args.timeout, call.timeout_s) {
        (Some(wanted), 0) => wanted,
        (Some(wanted), most) => wanted.min(most),
        (None, most) => most,
    };
    Ok(Spec {
        call: call.idempotency_key.clone(),
        epoch: call.epoch,
        timeout_ms: timeout_s.saturating_mul(1000),
        output_spool_bytes_max: call.output_spool_bytes_max,
        tail_bytes_max: call.output_bytes_max.div_ceil(2) as u64,
        workspace: call.workspace.clone(),
        command: args.command.into(),
    })
}

/// What became of a command that has ended. A full disk cannot take the decision, so the run waits for it, as for a commit.
async fn standing_at_end(call: &CallContext, dir: &Path) -> io::Result<Standing> {
    loop {
        match standing(call, dir).await {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && !call.cancel.is_cancelled() => {
                tracing::warn!(call = call.idempotency_key, %error, "the call waits for the disk");
                tokio::time::sleep(DISK_RETRY).await;
            }
            standing => return standing,
        }
    }
}

async fn standing(call: &CallContext, dir: &Path) -> io::Result<Standing> {
    let (dir, key) = (dir.to_owned(), call.idempotency_key.clone());
    let (epoch, is_of_other_boot) = (call.epoch, call.is_of_other_boot);
    let settled = tokio::task::spawn_blocking(move || settle(&dir, &key, epoch, is_of_other_boot)).await;
    settled?
}

/// Waits until the command has ended; shows its output meanwhile, and has it ended when the run is cancelled.
async fn follow(watch: &mut Watch, call: &CallContext, dir: &Path) {
    let mut shown = 0;
    let mut pause = LIVE_EVERY;
    let mut ending: Option<tokio::time::Instant> = None;
    let mut is_asked = false;
    loop {
        tokio::select! {
            biased;
            () = watch.until_free() => {
                show(call, dir, &mut shown);
                return;
            }
            () = call.cancel.cancelled(), if ending.is_none() => {
                ending = Some(tokio::time::Instant::now());
                is_asked = ask_to_end(dir);
                pause = LIVE_EVERY;
            }
            () = tokio::time::sleep(pause) => {
                pause = if show(call, dir, &mut shown) { LIVE_EVERY } else { (pause * 2).min(LOOK_EVERY_MAX) };
                if let Some(since) = ending {
                    pause = LIVE_EVERY;
                    is_asked = is_asked || ask_to_end(dir);
                    if since.elapsed() > END_MAX {
                        watch.kill();
                    }
                }
            }
        }
    }
}

/// Shows the newest output; false if there is nothing new.
fn show(call: &CallContext, dir: &Path, shown: &mut u64) -> bool {
    let Ok((newest, length)) = read_live(dir, LIVE_BYTES_MAX) else { return false };
    if length == *shown {
        return false;
    }
    *shown = length;
    // A full queue loses the update: observers never slow a command.
    let _ = call.updates.try_send(ToolResult::text(String::from_utf8_lossy(&newest)));
    true
}

/// What the model is told of a command that has ended.
async fn collect(call: &CallContext, dir: PathBuf, exit: Exit) -> Result<ToolResult, String> {
    let bytes_max = call.output_bytes_max;
    let collected = tokio::task::spawn_blocking(move || report(&dir, &exit, bytes_max)).await;
    collected.unwrap_or_else(|error| Err(format!("the tool failed within itself: {error}")))
}

fn report(dir: &Path, exit: &Exit, bytes_max: usize) -> Result<ToolResult, String> {
    let code = match &exit.status {
        Status::Code(code) => *code,
        // The shell's way to write a signal as a code.
        Status::Signal(signal) => 128 + signal,
        Status::NotStarted(reason) => return Err(format!("The command was not started: {reason}")),
    };
    let ends = read_ends(dir, exit, bytes_max as u64, NOTE_BYTES_MAX).map_err(|error| {
        format!("The command ended with code {code}, but its output cannot be read: {error}")
    })?;
    let is_cut = ends.cut > 0;
    let mut text = String::from_utf8_lossy(&ends.head).into_owned();
    if is_cut {
        let is_lost = exit.spooled_bytes < exit.output_bytes && exit.tail_bytes_max == 0;
        let why = if is_lost { "not kept: the disk was full" } else { "cut here" };
        text.push_str(&format!("\n[{} bytes {why}]\n", ends.cut));
        text.push_str(&String::from_utf8_lossy(&ends.tail));
    }
    let text = cut(&text, bytes_max);
    let duration_s = exit.duration_ms / 1000;
    let text = match exit.ended_by {
        EndedBy::Itself if text.trim().is_empty() && code != 0 => {
            format!("(Command exited with code {code})")
        }
        EndedBy::Itself if text.is_empty() => "(no output)".to_owned(),
        EndedBy::Itself => text,
        EndedBy::Timeout => {
            format!("{text}\n[The command was ended after {duration_s} s: its time was over]")
        }
        EndedBy::Owner if text.is_empty() => ABORTED.to_owned(),
        EndedBy::Owner => format!("{ABORTED}\n{text}"),
    };
    let is_error = code != 0 || exit.ended_by != EndedBy::Itself;
    let mut details = json!({
        "status": if is_error { "failed" } else { "completed" },
        "exitCode": code,
        "timedOut": exit.ended_by == EndedBy::Timeout,
        "durationMs": exit.duration_ms,
        "truncated": is_cut,
    });
    if is_cut {
        let kept = blob::keep(dir, OUTPUT);
        details["blob"] = kept.map_err(|error| format!("the output cannot be kept: {error}"))?.into();
    }
    Ok(ToolResult { is_error, ..ToolResult::text(text) }.with_details(&details))
}
