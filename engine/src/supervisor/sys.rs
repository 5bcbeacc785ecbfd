//! What the kernel says of processes: who one is, which of them belong to a call.
//!
//! Owns every look into `/proc`. It must never signal a pid that it only read: a signal goes to a pidfd that was opened
//! before its process was recognised, so a pid that is given to another process in between hits nobody.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::spec::Mark;

/// The variable that every process of a call carries in its environment.
pub(super) const CALL_VARIABLE: &str = "SPRAG_CALL";
/// The most bytes of an environment that is searched for the mark.
const ENVIRONMENT_BYTES_MAX: u64 = 2 << 20;
/// Wait between two looks at what is about to change.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Longest time until what was killed must be gone. What the kernel does not let go then is left behind.
const KILL_MAX: Duration = Duration::from_secs(2);

/// Takes the lock if nobody holds it.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the lock as soon as nobody holds it, if that is soon enough.
pub(super) fn lock_within(file: &File, longest: Duration) -> io::Result<bool> {
    let started = Instant::now();
    while !try_lock(file)? {
        if started.elapsed() > longest {
            return Ok(false);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

/// This process as a mark names it.
pub(super) fn own_mark(epoch: u64) -> io::Result<Mark> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let stat = Stat::of(pid)?;
    Ok(Mark {
        epoch,
        pid,
        start_ticks: stat.start_ticks,
        boot_id: boot_id()?,
        pid_namespace: pid_namespace()?,
    })
}

/// The process that a mark names, if it lives, and this is certainly that one.
pub(super) fn identify(mark: &Mark) -> Option<OwnedFd> {
    if mark.boot_id != boot_id().ok()? || mark.pid_namespace != pid_namespace().ok()? {
        return None;
    }
    let pidfd = open(mark.pid).ok()?;
    // The descriptor came first: whatever has the number by now, this is what it had.
    (Stat::of(mark.pid).ok()?.start_ticks == mark.start_ticks).then_some(pidfd)
}

/// A descriptor of the process that has this pid now.
pub(super) fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Kills one process, if it still lives.
pub(super) fn kill(process: &OwnedFd) {
    // The only failure that matters is that it is gone.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Ends every process of a call: asks first, kills what is left after `grace`. With a `parent`, its children belong to
/// the call too, whatever they did with their environment. `between` is called between two looks.
pub(super) fn end_processes(call: &str, parent: Option<i32>, grace: Duration, mut between: impl FnMut()) {
    let started = Instant::now();
    let mut is_asked = grace.is_zero();
    loop {
        between();
        let processes = processes_of(call, parent);
        if processes.is_empty() || started.elapsed() > grace + KILL_MAX {
            return;
        }
        if !is_asked {
            is_asked = true;
            processes.iter().for_each(|process| {
                let _ = pidfd_send_signal(process, Signal::TERM);
            });
        } else if started.elapsed() >= grace {
            processes.iter().for_each(kill);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The processes that carry the mark of a call, or are children of `parent`. This process is never among them.
fn processes_of(call: &str, parent: Option<i32>) -> Vec<OwnedFd> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mark = [CALL_VARIABLE, "=", call].concat();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.filter(|pid| *pid != own).filter_map(|pid| {
        let process = open(pid).ok()?;
        let is_child = || Stat::of(pid).is_ok_and(|stat| !stat.is_dead && Some(stat.parent) == parent);
        (carries(pid, &mark) || parent.is_some() && is_child()).then_some(process)
    });
    found.collect()
}

fn carries(pid: i32, mark: &str) -> bool {
    let mut environment = Vec::new();
    // A process of another user cannot be read, and could not be signalled either.
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else { return false };
    if file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment).is_err() {
        return false;
    }
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    /// It has ended, and nobody has asked how.
    is_dead: bool,
    parent: i32,
    start_ticks: u64,
}

impl Stat {
    fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name before the fields may hold anything, also brackets.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let mut fields = fields.split_ascii_whitespace();
        let mut next = |skipped| fields.nth(skipped).ok_or(io::ErrorKind::InvalidData);
        let (state, parent, start_ticks) = (next(0)?, next(0)?, next(17)?);
        let number = |_| io::ErrorKind::InvalidData;
        Ok(Self {
            is_dead: state == "Z" || state == "X",
            parent: parent.parse().map_err(number)?,
            start_ticks: start_ticks.parse().map_err(|_| io::ErrorKind::InvalidData)?,
        })
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn pid_namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_one_process_and_no_other() {
        let mark = own_mark(3).unwrap();
        assert!(identify(&mark).is_some());
        let later = Mark { start_ticks: mark.start_ticks + 1, ..mark.clone() };
        let elsewhere = Mark { pid_namespace: "pid:[1]".into(), ..mark.clone() };
        let before = Mark { boot_id: "00000000-0000-0000-0000-000000000000".into(), ..mark.clone() };
        let nobody = Mark { pid: i32::MAX, ..mark };
        assert!([later, elsewhere, before, nobody].iter().all(|mark| identify(mark).is_none()));
    }
}
