//! The processes below the engine: the supervisor of one call, and the step from it to the command.
//!
//! Owns what happens before anything else in `main` when the program was started as one of the two. It uses the standard
//! library and system calls only, and holds no output in memory: a supervisor must start in a moment and weigh nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, getppid, set_child_subreaper, set_parent_process_death_signal, setsid};

use super::command::Running;
use super::spec::{self, CONTROL, EXIT, EXIT_BYTES, EXIT_FRESH, FAILURE, FENCE, LOCK, MARK, SPEC, Spec};
use super::spool::Spool;
use super::sys;
use crate::crash_point;

/// Name under which a supervisor is started; the call and the epoch follow.
pub(super) const SUPERVISOR: &str = "sprag-supervisor";
/// Name under which a supervisor starts the step to the command; its own pid and the command follow.
pub(super) const COMMAND: &str = "sprag-command";

/// Exit code of a process that could not become the command: the shell's word for it.
const NOT_STARTED: i32 = 127;
/// What the out-of-memory killer is to think of a supervisor: it goes after nearly everything else.
const OOM_SUPERVISOR: &str = "-900";
/// What the out-of-memory killer is to think of a command: it goes before the engine.
const OOM_COMMAND: &str = "500";

/// The one piece of state of the process: its `main` would run as a supervisor if it were started as one. No engine can
/// know it otherwise, since nothing of an engine exists while `main` begins.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Runs the program as a supervisor if it was started as one, and does not return then. It must be the first line of
/// `main`: what comes before it would be done once more for every command that a model runs.
pub fn supervise_if_asked() {
    IS_ASKED.store(true, Ordering::Relaxed);
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    if name == OsStr::new(SUPERVISOR) {
        let epoch = args.nth(1).and_then(|epoch| epoch.to_str()?.parse().ok());
        std::process::exit(supervise(epoch.unwrap_or(0)));
    }
    if name == OsStr::new(COMMAND) {
        let supervisor = args.next().and_then(|pid| pid.to_str()?.parse().ok());
        std::process::exit(become_command(supervisor.unwrap_or(0), &args.next().unwrap_or_default()));
    }
}

/// True if this program's `main` begins with [`supervise_if_asked`].
pub(crate) fn is_asked() -> bool {
    IS_ASKED.load(Ordering::Relaxed)
}

/// Supervises the call in the working directory.
fn supervise(epoch: u64) -> i32 {
    match run(epoch) {
        Ok(()) => 0,
        Err(error) => {
            // For a person; the absence of a mark says already that nothing ran.
            let _ = fs::write(FAILURE, error.to_string());
            1
        }
    }
}

fn run(epoch: u64) -> io::Result<()> {
    // It fails only for a process that leads a group, which is as good.
    let _ = setsid();
    crash_point::reach("before the lock");
    let lock = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(LOCK)?;
    // Another holder is an owner that decides, or a supervisor that is older: what it leaves is looked at next.
    flock(&lock, FlockOperation::LockExclusive)?;
    let spec = look(epoch)?;
    // Only the administrator may ask to be spared.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SUPERVISOR);
    let record = File::options().write(true).create_new(true).mode(0o600).open(EXIT_FRESH)?;
    record.write_all_at(&[0; EXIT_BYTES], 0)?;
    let control = make_control()?;
    let spool = Spool::create(&spec)?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    spec::put(Path::new("."), MARK, &sys::own_mark(epoch)?.to_bytes(), false)?;
    crash_point::reach("after the mark");
    // From here on everything ends in an exit record.
    let exit = Running::start(&spec, control, spool)?.into_exit();
    record.write_all_at(&exit.to_bytes(), 0)?;
    record.sync_all()?;
    crash_point::reach("before the record's rename");
    fs::rename(EXIT_FRESH, EXIT)?;
    crash_point::reach("after the record's rename");
    // The directories above may be as new as this one.
    [".", "..", "../..", "../../.."].iter().try_for_each(|dir| File::open(dir)?.sync_all())
}

/// What to run, if it may run: nothing ran here before, and no newer owner has decided otherwise.
fn look(epoch: u64) -> io::Result<Spec> {
    let refuse = |why: &str| Err(io::Error::other(format!("epoch {epoch} may not run here: {why}")));
    if Path::new(MARK).try_exists()? || Path::new(EXIT).try_exists()? {
        return refuse("the call was run");
    }
    if let Some(fence) = spec::read(Path::new(FENCE))?
        && spec::fence_from_bytes(&fence)? > epoch
    {
        return refuse("a newer owner fenced it");
    }
    let spec = Spec::from_bytes(&spec::read(Path::new(SPEC))?.unwrap_or_default())?;
    if spec.epoch == epoch { Ok(spec) } else { refuse("it was asked for by another epoch") }
}

/// The pipe through which an owner asks. It is open in both directions, so that it never reads as ended.
fn make_control() -> io::Result<File> {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, CONTROL, mode)?;
    File::options().read(true).write(true).open(CONTROL)
}

/// The step from a supervisor to its command: a session of its own, death with the supervisor, then bash.
fn become_command(supervisor: i32, command: &OsString) -> i32 {
    let _ = setsid();
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return NOT_STARTED;
    }
    // A supervisor that died before the line above cannot take this process with it any more.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(supervisor) {
        return NOT_STARTED;
    }
    // Everybody may ask to be killed first.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_COMMAND);
    let error = Command::new("bash").arg("-c").arg(command).exec();
    eprintln!("bash cannot be started: {error}");
    NOT_STARTED
}
