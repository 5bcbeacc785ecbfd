//! What became of a call that runs outside: the decision by its lock, and the wait for its end.
//!
//! Owns the reading of a call's directory by an owner of its run. It must never decide while somebody else holds the lock.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::spawn::{make_dir, open_lock, unlock};
use super::spec::{self, CONTROL, EXIT, Exit, FAILURE, FENCE, MARK, Mark, fence_to_bytes};
use super::sys;

/// Wait between two looks at a lock whose holder cannot be waited for.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Longest time that a supervisor needs from its lock to its mark, or to its end without one.
const UNMARKED_MAX: Duration = Duration::from_millis(200);

/// What became of a call that may have run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its supervisor lives.
    Running,
    /// It ended like this.
    Ended(Exit),
    /// It did not run, and nothing that an earlier owner started can run it any more. Why, if its supervisor says so.
    DidNotRun(Option<String>),
    /// It may have run. Nothing of it lives any more.
    Unknown,
}

/// Decides what became of a call, as the owner of its run in `epoch`. After another boot than the one in which it was
/// started, only an exit record proves anything.
pub(crate) fn settle(dir: &Path, call: &str, epoch: u64, is_of_other_boot: bool) -> io::Result<Standing> {
    make_dir(dir)?;
    let lock = open_lock(dir)?;
    // Whoever holds it without a mark is about to write one, or to end.
    let patience = if dir.join(MARK).try_exists()? { Duration::ZERO } else { UNMARKED_MAX };
    if !sys::lock_within(&lock, patience)? {
        return Ok(Standing::Running);
    }
    let standing = look(dir, call, epoch, is_of_other_boot);
    unlock(&lock);
    standing
}

fn look(dir: &Path, call: &str, epoch: u64, is_of_other_boot: bool) -> io::Result<Standing> {
    let exit = spec::read(&dir.join(EXIT))?;
    match exit.as_deref().map(Exit::from_bytes) {
        Some(Ok(exit)) => return Ok(Standing::Ended(exit)),
        Some(Err(error)) => tracing::warn!(call, %error, "the exit record cannot be read"),
        None => {}
    }
    if exit.is_some() || is_of_other_boot || dir.join(MARK).try_exists()? {
        // Whoever decides next must find a world that holds still.
        sys::end_processes(call, None, Duration::ZERO, || {});
        return Ok(Standing::Unknown);
    }
    spec::put(dir, FENCE, &fence_to_bytes(epoch), true)?;
    // A full disk may have taken its name and not its words.
    let failure = spec::read(&dir.join(FAILURE))?.filter(|words| !words.is_empty());
    Ok(Standing::DidNotRun(failure.map(|words| String::from_utf8_lossy(&words).into_owned())))
}

/// Asks the supervisor of a call to end it; false if there is none that listens yet.
pub(crate) fn ask_to_end(dir: &Path) -> bool {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let control = File::options().write(true).custom_flags(flags).open(dir.join(CONTROL));
    control.is_ok_and(|mut control| control.write_all(b"e").is_ok())
}

/// The wait for the end of a supervisor.
#[derive(Debug)]
pub(crate) struct Watch {
    dir: PathBuf,
    process: Option<Arc<AsyncFd<OwnedFd>>>,
}

impl Watch {
    /// Waits for a supervisor that this process has started. It is taken off the list of children when it ends, also if
    /// nobody waits any more.
    pub(super) fn of_child(dir: &Path, child: Child) -> Self {
        let process = i32::try_from(child.id()).ok().and_then(|pid| waitable(sys::open(pid).ok()?));
        tokio::spawn(reap(child, process.clone()));
        Self { dir: dir.to_owned(), process }
    }

    /// Waits for a supervisor that another process has started.
    pub(crate) fn of_other(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), process: None }
    }

    /// Returns when nobody holds the lock any more. The end of a process only says when it is time to look.
    pub(crate) async fn until_free(&mut self) {
        loop {
            let is_recognised = self.process.is_some();
            if let Some(process) = &self.process {
                // An error means that the runtime ends.
                let _ = process.readable().await;
            }
            if !self.is_held() {
                return;
            }
            if is_recognised {
                tokio::time::sleep(LOCK_POLL).await;
            }
            self.process = self.identify().and_then(waitable);
            if self.process.is_none() {
                tokio::time::sleep(LOCK_POLL).await;
            }
        }
    }

    /// Kills the supervisor, if it is certainly that process. Its command dies with it.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.identify() {
            sys::kill(&process);
        }
    }

    fn identify(&self) -> Option<OwnedFd> {
        let mark = spec::read(&self.dir.join(MARK)).ok()??;
        sys::identify(&Mark::from_bytes(&mark).ok()?)
    }

    /// A directory that cannot be read is nobody's: what it means is decided when it is settled.
    fn is_held(&self) -> bool {
        let Ok(lock) = open_lock(&self.dir) else { return false };
        let is_free = sys::try_lock(&lock).unwrap_or(true);
        if is_free {
            unlock(&lock);
        }
        !is_free
    }
}

#[expect(deprecated, reason = "what it warns of, a number that is no open descriptor, an `OwnedFd` never is")]
fn waitable(process: OwnedFd) -> Option<Arc<AsyncFd<OwnedFd>>> {
    AsyncFd::with_interest(process, Interest::READABLE).ok().map(Arc::new)
}

async fn reap(mut child: Child, process: Option<Arc<AsyncFd<OwnedFd>>>) {
    match process {
        Some(process) => {
            let _ = process.readable().await;
            let _ = child.wait();
        }
        // Without a descriptor of its own, waiting takes a thread.
        None => drop(tokio::task::spawn_blocking(move || child.wait())),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::SystemTime;

    use super::*;

    /// From the last act of a supervisor to the moment at which its engine knows. The best of many is what it costs; the
    /// rest is what the machine was busy with.
    #[tokio::test]
    async fn an_end_is_noticed_within_two_milliseconds() {
        let dir = tempfile::tempdir().unwrap();
        let mut best = Duration::MAX;
        for _ in 0..30 {
            let mut bash = Command::new("bash");
            let last_act = "sleep 0.005; echo $EPOCHREALTIME > ended";
            bash.args(["-c", last_act]).current_dir(dir.path()).stdin(Stdio::null());
            let mut watch = Watch::of_child(dir.path(), bash.spawn().unwrap());
            watch.until_free().await;
            let noticed = SystemTime::now();
            let ended = std::fs::read_to_string(dir.path().join("ended")).unwrap();
            let ended = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(ended.trim().parse().unwrap());
            best = best.min(noticed.duration_since(ended).unwrap_or_default());
        }
        println!("from the last act of a supervisor to its engine's knowing: best {best:?}");
        assert!(best < Duration::from_millis(2), "{best:?}");
    }
}
