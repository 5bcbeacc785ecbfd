//! Starts a supervisor.
//!
//! Owns the way from a call that is `Started` to a process of its own. It must never pass a secret on, and never start
//! anything in a directory in which something ran.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::child::SUPERVISOR;
use super::spec::{self, FENCE, LOCK, SPEC, Spec, is_setting};
use super::sys;
use super::watch::Watch;
use crate::configs::KeyNames;
use crate::crash_point;

/// Longest time that a supervisor which may not run holds the lock.
const LATE_MAX: Duration = Duration::from_secs(5);

/// How supervisors of an engine are started.
#[derive(Clone, Debug)]
pub(crate) struct Supervisors {
    binary: PathBuf,
    /// Variables that hold secrets.
    secrets: Arc<KeyNames>,
}

impl Supervisors {
    /// Supervisors from a binary; none is this program's own, also after its file was replaced.
    pub(crate) fn new(binary: Option<PathBuf>, secrets: Arc<KeyNames>) -> Self {
        Self { binary: binary.unwrap_or_else(|| "/proc/self/exe".into()), secrets }
    }

    fn command(&self, dir: &Path, spec: &Spec) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg0(SUPERVISOR).arg(&spec.call).arg(spec.epoch.to_string()).current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let settings = std::env::vars_os().map(|(name, _)| name).filter(|name| is_setting(name));
        for name in self.secrets.all().into_iter().chain(settings) {
            command.env_remove(name);
        }
        command
    }
}

/// Starts what `spec` says in the directory of its call. Must be called inside a runtime, on a thread that may block.
pub(crate) fn start(supervisors: &Supervisors, dir: &Path, spec: &Spec) -> io::Result<Watch> {
    crash_point::reach("before the directory");
    if !make_dir(dir)? {
        clear(dir)?;
    }
    spec::put(dir, SPEC, &spec.to_bytes(), false)?;
    crash_point::reach("before the spawn");
    let child = supervisors.command(dir, spec).spawn()?;
    Ok(Watch::of_child(dir, child))
}

/// Makes the directory of a call; false if it is there already.
pub(super) fn make_dir(dir: &Path) -> io::Result<bool> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    if let Some(above) = dir.parent() {
        builder.recursive(true).create(above)?;
    }
    match builder.recursive(false).create(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens the lock of a call.
pub(super) fn open_lock(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK))
}

/// Releases a lock that this process holds. Closing it would do, were it not for a copy that a process being spawned
/// may have for a moment.
pub(super) fn unlock(lock: &File) {
    // It fails only for a descriptor that is none.
    let _ = flock(lock, FlockOperation::Unlock);
}

/// Removes what an earlier try left, once nothing of it lives and its owner has decided that the call may run again.
fn clear(dir: &Path) -> io::Result<()> {
    let lock = open_lock(dir)?;
    // One that comes late holds it for as long as it takes to see the fence.
    if !sys::lock_within(&lock, LATE_MAX)? {
        return Err(io::Error::other("another supervisor of this call lives"));
    }
    let removed = fs::read_dir(dir)?.try_for_each(|entry| {
        let entry = entry?;
        let is_kept = [LOCK, FENCE].iter().any(|name| entry.file_name() == *name);
        if is_kept { Ok(()) } else { fs::remove_file(entry.path()) }
    });
    unlock(&lock);
    removed
}
