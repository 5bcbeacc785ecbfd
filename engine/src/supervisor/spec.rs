//! The files of a call's directory: their names, their format, its version.
//!
//! Owns what the engine and a supervisor of any version say to each other. No file holds the value of a variable of the
//! environment; a version that is not known is an error, never a guess.

use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Version of every format in this file.
const VERSION: u32 = 1;

/// Held while a supervisor lives, or while an owner decides.
pub(crate) const LOCK: &str = "lock";
/// What to run. Written by the engine before it spawns.
pub(crate) const SPEC: &str = "spec";
/// Says which epoch may still run here. Written, synced, by an owner that found that nothing had run.
pub(crate) const FENCE: &str = "fence";
/// Says that the command may have run, and who runs it. Written by the supervisor before it runs anything.
pub(crate) const MARK: &str = "mark";
/// Says how the command ended. It has this name only once it is synced.
pub(crate) const EXIT: &str = "exit";
/// The exit record before its time: made of zeros before the command runs, so that a full disk cannot stop it.
pub(crate) const EXIT_FRESH: &str = "exit.new";
/// The output, up to the spool's limit.
pub(crate) const OUTPUT: &str = "output";
/// The end of an output that is longer than the spool, as a ring.
pub(crate) const TAIL: &str = "tail";
/// A pipe: a byte in it asks the supervisor to end the command.
pub(crate) const CONTROL: &str = "control";
/// Why a supervisor ended without running, for a person.
pub(crate) const FAILURE: &str = "failure";

/// Bytes of the exit record, the same before and after it is filled in.
pub(crate) const EXIT_BYTES: usize = 1024;
/// The most bytes of a file of this directory that is read whole, and of a command in it.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of a command: the kernel takes no longer argument.
pub(crate) const COMMAND_BYTES_MAX: usize = (128 << 10) - 1;

/// What to run, and within which limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// The call, `RUN/TURN.N`: the mark that its processes carry.
    pub(crate) call: String,
    /// Epoch of the engine that asks for it.
    pub(crate) epoch: u64,
    /// Longest time that it may take, in milliseconds; 0 for no limit.
    pub(crate) timeout_ms: u64,
    /// The most bytes of output that are kept from its beginning.
    pub(crate) output_spool_bytes_max: u64,
    /// The most bytes of output that are kept from its end, beyond the spool.
    pub(crate) tail_bytes_max: u64,
    /// Directory that it works in.
    pub(crate) workspace: PathBuf,
    /// What bash is to run.
    pub(crate) command: OsString,
}

/// Who runs a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Epoch of the engine that asked for it.
    pub(crate) epoch: u64,
    /// Pid of the supervisor in its own namespace.
    pub(crate) pid: i32,
    /// When it started, in ticks since the boot.
    pub(crate) start_ticks: u64,
    /// The kernel's name for the boot.
    pub(crate) boot_id: String,
    /// The kernel's name for the pid namespace.
    pub(crate) pid_namespace: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// What the system says of it.
    pub(crate) status: Status,
    /// What made it end.
    pub(crate) ended_by: EndedBy,
    /// How long it took, in milliseconds.
    pub(crate) duration_ms: u64,
    /// Bytes of output that it wrote.
    pub(crate) output_bytes: u64,
    /// Bytes of output in the spool.
    pub(crate) spooled_bytes: u64,
    /// Bytes of the ring that holds the end of what the spool does not hold; 0 if there is none.
    pub(crate) tail_bytes_max: u64,
}

/// What the system says of a command that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It ended with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It could not be started, for this reason.
    NotStarted(String),
}

/// What made a command end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// Itself.
    Itself,
    /// Its time was over.
    Timeout,
    /// Its owner asked for it.
    Owner,
}

impl Spec {
    /// The bytes of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut head = Fields::new("spec");
        head.put("call", &self.call);
        head.put("epoch", self.epoch);
        head.put("timeout_ms", self.timeout_ms);
        head.put("output_spool_bytes_max", self.output_spool_bytes_max);
        head.put("tail_bytes_max", self.tail_bytes_max);
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.workspace.as_os_str().as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.command.as_bytes());
        bytes
    }

    /// What the file says.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let (head, body) = Fields::split("spec", bytes)?;
        let at = body.iter().position(|byte| *byte == 0).ok_or_else(|| bad("spec", "workspace"))?;
        let (workspace, command) = (body.get(..at), body.get(at + 1..));
        let text = |bytes: Option<&[u8]>| OsString::from_vec(bytes.unwrap_or_default().to_vec());
        Ok(Self {
            call: head.get("call")?,
            epoch: head.get("epoch")?,
            timeout_ms: head.get("timeout_ms")?,
            output_spool_bytes_max: head.get("output_spool_bytes_max")?,
            tail_bytes_max: head.get("tail_bytes_max")?,
            workspace: text(workspace).into(),
            command: text(command),
        })
    }
}

impl Mark {
    /// The bytes of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Fields::new("mark");
        fields.put("epoch", self.epoch);
        fields.put("pid", self.pid);
        fields.put("start_ticks", self.start_ticks);
        fields.put("boot_id", &self.boot_id);
        fields.put("pid_namespace", &self.pid_namespace);
        fields.into_bytes()
    }

    /// What the file says.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let (fields, _) = Fields::split("mark", bytes)?;
        Ok(Self {
            epoch: fields.get("epoch")?,
            pid: fields.get("pid")?,
            start_ticks: fields.get("start_ticks")?,
            boot_id: fields.get("boot_id")?,
            pid_namespace: fields.get("pid_namespace")?,
        })
    }
}

/// The bytes of a fence that lets this epoch run, and every later one.
pub(crate) fn fence_to_bytes(epoch: u64) -> Vec<u8> {
    let mut fields = Fields::new("fence");
    fields.put("epoch", epoch);
    fields.into_bytes()
}

/// The oldest epoch that a fence lets run.
pub(crate) fn fence_from_bytes(bytes: &[u8]) -> io::Result<u64> {
    Fields::split("fence", bytes)?.0.get("epoch")
}

impl Exit {
    /// The bytes of the file: always [`EXIT_BYTES`], filled up with zeros.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut fields = Fields::new("exit");
        match &self.status {
            Status::Code(code) => fields.put("code", code),
            Status::Signal(signal) => fields.put("signal", signal),
            Status::NotStarted(reason) => {
                let reason: String =
                    reason.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
                fields.put("not_started", reason);
            }
        }
        fields.put("ended_by", self.ended_by.name());
        fields.put("duration_ms", self.duration_ms);
        fields.put("output_bytes", self.output_bytes);
        fields.put("spooled_bytes", self.spooled_bytes);
        fields.put("tail_bytes_max", self.tail_bytes_max);
        let mut bytes = fields.into_bytes();
        bytes.resize(EXIT_BYTES, 0);
        bytes
    }

    /// What the file says.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let (fields, _) = Fields::split("exit", bytes)?;
        let status = match (fields.get("code"), fields.get("signal")) {
            (Ok(code), _) => Status::Code(code),
            (Err(_), Ok(signal)) => Status::Signal(signal),
            (Err(_), Err(_)) => Status::NotStarted(fields.get("not_started")?),
        };
        let ended_by: String = fields.get("ended_by")?;
        let ended_by = EndedBy::ALL.into_iter().find(|by| by.name() == ended_by);
        Ok(Self {
            status,
            ended_by: ended_by.ok_or_else(|| bad("exit", "ended_by"))?,
            duration_ms: fields.get("duration_ms")?,
            output_bytes: fields.get("output_bytes")?,
            spooled_bytes: fields.get("spooled_bytes")?,
            tail_bytes_max: fields.get("tail_bytes_max")?,
        })
    }
}

/// The most characters of a reason in an exit record: it must fit whatever they are.
const REASON_CHARS_MAX: usize = 160;

impl EndedBy {
    const ALL: [Self; 3] = [Self::Itself, Self::Timeout, Self::Owner];

    fn name(self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::Timeout => "timeout",
            Self::Owner => "owner",
        }
    }
}

/// Reads a file whole; none if it is not there.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a file in place so that it is there whole or not at all; `is_synced`: also after a power loss, once this returns.
pub(crate) fn put(dir: &Path, name: &str, bytes: &[u8], is_synced: bool) -> io::Result<()> {
    let fresh = dir.join(format!("{name}.new"));
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    if is_synced {
        file.sync_all()?;
    }
    std::fs::rename(&fresh, dir.join(name))?;
    if is_synced { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Lines of a name and a value, between a first line that says what it is and a last one that says that it is whole.
struct Fields {
    kind: &'static str,
    text: String,
}

impl Fields {
    fn new(kind: &'static str) -> Self {
        Self { kind, text: format!("sprag {kind} {VERSION}\n") }
    }

    fn put(&mut self, name: &str, value: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn into_bytes(self) -> Vec<u8> {
        (self.text + END).into_bytes()
    }

    /// The fields, and what follows them.
    fn split<'a>(kind: &'static str, bytes: &'a [u8]) -> io::Result<(Self, &'a [u8])> {
        let end = [b"\n", END.as_bytes()].concat();
        let at = bytes.windows(end.len()).position(|window| window == end).ok_or_else(|| bad(kind, "end"))?;
        let text = std::str::from_utf8(bytes.get(..=at).unwrap_or_default());
        let text = text.map_err(|_| bad(kind, "fields"))?.to_owned();
        if !text.starts_with(&format!("sprag {kind} {VERSION}\n")) {
            let first = text.lines().next().unwrap_or_default();
            return Err(io::Error::other(format!("expected `sprag {kind} {VERSION}`, got `{first}`")));
        }
        Ok((Self { kind, text }, bytes.get(at + end.len()..).unwrap_or_default()))
    }

    fn get<T: FromStr>(&self, name: &str) -> io::Result<T> {
        let lines = self.text.lines().skip(1);
        let value = lines.filter_map(|line| line.split_once(' ')).find(|(found, _)| *found == name);
        value.and_then(|(_, value)| value.parse().ok()).ok_or_else(|| bad(self.kind, name))
    }
}

/// Ends the fields.
const END: &str = "end\n";

fn bad(kind: &str, what: &str) -> io::Error {
    io::Error::other(format!("the {kind} of a call has no valid `{what}`"))
}

/// True for a variable that belongs to the engine's own configuration.
pub(crate) fn is_setting(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"SPRAG__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_says_what_it_was_told() {
        let spec = Spec {
            call: "00/1.2".into(),
            epoch: 3,
            timeout_ms: 4,
            output_spool_bytes_max: 5,
            tail_bytes_max: 6,
            workspace: OsString::from_vec(b"/a b\n\xff".to_vec()).into(),
            command: "echo one\nend\ntwo".into(),
        };
        let bytes = spec.to_bytes();
        assert_eq!(Spec::from_bytes(&bytes).unwrap(), spec);
        let head = b"sprag spec 1\ncall 00/1.2\nepoch 3\ntimeout_ms 4\noutput_spool_bytes_max 5\ntail_bytes_max 6\nend\n";
        assert_eq!(bytes, [&head[..], b"/a b\n\xff\0echo one\nend\ntwo"].concat());
    }

    #[test]
    fn an_exit_record_has_one_length_whatever_it_says() {
        let statuses = [Status::Code(-7), Status::Signal(9), Status::NotStarted("\u{1F980}\n".repeat(500))];
        for status in statuses {
            let exit = Exit {
                status,
                ended_by: EndedBy::Timeout,
                duration_ms: u64::MAX,
                output_bytes: u64::MAX,
                spooled_bytes: u64::MAX,
                tail_bytes_max: u64::MAX,
            };
            let bytes = exit.to_bytes();
            assert_eq!(bytes.len(), EXIT_BYTES);
            let read = Exit::from_bytes(&bytes).unwrap();
            let expected = match exit.status {
                Status::NotStarted(_) => Status::NotStarted("\u{1F980}".repeat(REASON_CHARS_MAX)),
                Status::Code(_) | Status::Signal(_) => exit.status.clone(),
            };
            assert_eq!(read, Exit { status: expected, ..exit });
        }
    }

    #[test]
    fn zeros_a_part_and_another_version_are_no_record() {
        let whole = Mark { epoch: 1, pid: 2, start_ticks: 3, boot_id: "b".into(), pid_namespace: "n".into() };
        let bytes = whole.to_bytes();
        assert_eq!(Mark::from_bytes(&bytes).unwrap(), whole);
        for length in 0..bytes.len() {
            assert!(Mark::from_bytes(&bytes[..length]).is_err());
        }
        assert!(Exit::from_bytes(&[0; EXIT_BYTES]).is_err());
        let newer = String::from_utf8(fence_to_bytes(7)).unwrap().replace("fence 1", "fence 2");
        let refused = fence_from_bytes(newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused, "expected `sprag fence 1`, got `sprag fence 2`");
        assert_eq!(fence_from_bytes(&fence_to_bytes(7)).unwrap(), 7);
    }
}
