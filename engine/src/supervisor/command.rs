//! One command, from its start to its end.
//!
//! Owns the pipe of its output, its time, and the end of everything that it started. It must never let the command wait
//! for a reader, and never answer while a process of the call lives.

use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use super::child::COMMAND;
use super::spec::{EndedBy, Exit, Spec, Status};
use super::spool::Spool;
use super::sys::{self, CALL_VARIABLE};
use crate::crash_point;

/// Time between asking a command to end and killing it.
const END_GRACE: Duration = Duration::from_secs(2);
/// The same for what a command leaves behind when it ends by itself.
const LEFT_GRACE: Duration = Duration::from_millis(200);
/// Longest wait without looking for children that ended meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Bytes that are read at once: as many as a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;

/// A command that runs.
pub(super) struct Running<'a> {
    spec: &'a Spec,
    started: Instant,
    control: File,
    spool: Spool,
    /// What the command writes; none once every writer is gone.
    output: Option<PipeReader>,
    child: Result<Child, String>,
    /// When it must end, and then be killed.
    deadline: Option<Instant>,
    ended_by: EndedBy,
}

/// The command's first process.
struct Child {
    pid: Pid,
    pidfd: std::os::fd::OwnedFd,
}

impl<'a> Running<'a> {
    /// Starts the command. What keeps it from starting is how it ended.
    pub(super) fn start(spec: &'a Spec, control: File, spool: Spool) -> io::Result<Self> {
        let (output, input) = io::pipe()?;
        let child = spawn(spec, input);
        let timeout = Duration::from_millis(spec.timeout_ms);
        let started = Instant::now();
        Ok(Self {
            spec,
            started,
            control,
            spool,
            output: Some(output),
            child,
            deadline: (!timeout.is_zero()).then(|| started + timeout),
            ended_by: EndedBy::Itself,
        })
    }

    /// Waits for the end of the command, and ends what it left.
    pub(super) fn into_exit(mut self) -> Exit {
        let status = match &self.child {
            Ok(_) => self.wait(),
            Err(reason) => Status::NotStarted(reason.clone()),
        };
        crash_point::reach("after the exit");
        self.end_left();
        self.drain();
        let duration = self.started.elapsed();
        // Output that cannot be synced is no reason to lose how the command ended.
        let _ = self.spool.sync();
        Exit {
            status,
            ended_by: self.ended_by,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            output_bytes: self.spool.written,
            spooled_bytes: self.spool.spooled,
            tail_bytes_max: self.spool.ring_bytes(),
        }
    }

    fn wait(&mut self) -> Status {
        loop {
            if let Some(status) = self.reap() {
                return status;
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| deadline <= now) {
                self.past_deadline(now);
            }
            let left = self.deadline.map_or(LOOK_AGAIN, |deadline| deadline - now).min(LOOK_AGAIN);
            self.look(left);
        }
    }

    /// Takes the children that ended; the status of the command if it is among them.
    fn reap(&self) -> Option<Status> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.child.as_ref().is_ok_and(|child| child.pid == pid) => {
                    return Some(status_of(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                // Without any child the status is lost, which only another waiter could cause.
                Err(_) => return Some(Status::Signal(Signal::KILL.as_raw())),
                Ok(None) => return None,
            }
        }
    }

    /// First the command is asked to end, then it is killed.
    fn past_deadline(&mut self, now: Instant) {
        let is_asked = self.ended_by != EndedBy::Itself;
        if is_asked {
            sys::end_processes(&self.spec.call, Some(own_pid()), Duration::ZERO, || {});
            self.deadline = None;
        } else {
            self.ask_to_end(EndedBy::Timeout, now);
        }
    }

    fn ask_to_end(&mut self, by: EndedBy, now: Instant) {
        self.ended_by = by;
        self.deadline = Some(now + END_GRACE);
        if let Ok(child) = &self.child {
            // The child was not waited for, so the group still has its number.
            let _ = kill_process_group(child.pid, Signal::TERM);
        }
    }

    /// Waits for output, a request, or the end of the command, and takes what came.
    fn look(&mut self, longest: Duration) {
        let Ok(child) = &self.child else { return };
        let wanted = PollFlags::IN;
        let mut fds = vec![PollFd::new(&child.pidfd, wanted), PollFd::new(&self.control, wanted)];
        fds.extend(self.output.as_ref().map(|output| PollFd::new(output, wanted)));
        if poll(&mut fds, timespec(longest).as_ref()).is_err() {
            return;
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        let (is_requested, has_output) = (is_ready(1), is_ready(2));
        if has_output {
            self.read();
        }
        if is_requested {
            let mut request = [0; 16];
            let is_first = self.ended_by == EndedBy::Itself;
            if (&self.control).read(&mut request).is_ok() && is_first {
                self.ask_to_end(EndedBy::Owner, Instant::now());
            }
        }
    }

    fn read(&mut self) {
        let mut chunk = [0; CHUNK_BYTES];
        let Some(output) = &mut self.output else { return };
        match output.read(&mut chunk) {
            Ok(0) => self.output = None,
            Ok(count) => {
                self.spool.write(chunk.get(..count).unwrap_or_default());
                crash_point::reach("mid-output");
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.output = None,
        }
    }

    /// Ends every process of the call that its first one left behind.
    ///
    /// Without children there is nothing to look for: (1) whatever got the mark by inheritance descends from the command;
    /// (2) an orphan becomes a child of the nearest subreaper above it, which is this process or a descendant of it; so
    /// (3) as long as any of them lives, this process has a child.
    fn end_left(&mut self) {
        let grace = match self.ended_by {
            EndedBy::Itself => LEFT_GRACE,
            EndedBy::Timeout | EndedBy::Owner => {
                self.deadline.map_or(Duration::ZERO, |deadline| deadline.duration_since(Instant::now()))
            }
        };
        if has_children() {
            let call = &self.spec.call;
            let mut drain = Drain { output: &mut self.output, spool: &mut self.spool };
            sys::end_processes(call, Some(own_pid()), grace, || {
                has_children();
                drain.all();
            });
        }
    }

    fn drain(&mut self) {
        Drain { output: &mut self.output, spool: &mut self.spool }.all();
    }
}

/// Takes the output that is there, without waiting for more.
struct Drain<'a> {
    output: &'a mut Option<PipeReader>,
    spool: &'a mut Spool,
}

impl Drain<'_> {
    fn all(&mut self) {
        let mut chunk = [0; CHUNK_BYTES];
        while let Some(output) = self.output {
            let mut fds = [PollFd::new(output, PollFlags::IN)];
            if !matches!(poll(&mut fds, timespec(Duration::ZERO).as_ref()), Ok(1)) {
                return;
            }
            match output.read(&mut chunk) {
                Ok(count) if count > 0 => self.spool.write(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => *self.output = None,
            }
        }
    }
}

/// Takes the children that ended; true if any is left.
fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn spawn(spec: &Spec, output: io::PipeWriter) -> Result<Child, String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(COMMAND).arg(own_pid().to_string()).arg(&spec.command);
    command.current_dir(&spec.workspace).env(CALL_VARIABLE, &spec.call);
    let errors = output.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let child = command
        .spawn()
        .map_err(|error| format!("it cannot be started in {}: {error}", spec.workspace.display()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("it has no pid")?;
    let pidfd = sys::open(pid.as_raw_nonzero().get()).map_err(|error| error.to_string())?;
    Ok(Child { pid, pidfd })
}

fn status_of(status: WaitStatus) -> Status {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Status::Code(code),
        (None, signal) => Status::Signal(signal.unwrap_or_default()),
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn timespec(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}
