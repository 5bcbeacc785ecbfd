//! Raw responses on disk while their calls are under way: `DIR/spool/RUN/TURN.ATTEMPT`.
//!
//! Owns the file's form: which call it belongs to, then the bytes as they arrived. What belongs to another call is never
//! read. It must never hold a request or a key, and never be needed: without it a call is made again.
//!
//! ```text
//! sprag spool 1
//! run RUN
//! turn N
//! attempt N
//! epoch N           of the engine that made the call
//! request HASH      of the request's bytes
//! sent N            tokens of the request, by estimate
//! status N
//!                   (an empty line, then the body)
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use model::RunId;

/// The most bytes of a file that are read back: more than any response has.
const SPOOL_BYTES_MAX: u64 = 80 << 20;

/// The call that a response belongs to. Two calls never have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallName {
    /// The run.
    pub(crate) run: RunId,
    /// Ordinal of the turn, from 0.
    pub(crate) turn: u32,
    /// Ordinal of the try within the turn, from 0.
    pub(crate) attempt: u32,
    /// The engine that made the call.
    pub(crate) epoch: u64,
    /// Hash of the request.
    pub(crate) request: [u8; 32],
}

/// Where the response of one call is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spool {
    path: PathBuf,
    name: CallName,
}

/// A response that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Tokens of the request, by estimate.
    pub sent: u64,
    /// The status of the response.
    pub status: u16,
    /// The body as far as it had arrived.
    pub body: Vec<u8>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Writing {
    file: File,
    /// Bytes before the body.
    head: u64,
}

impl Spool {
    /// The place of a call's response in the directory of an engine.
    pub(crate) fn of(dir: &Path, name: CallName) -> Self {
        Self { path: path(dir, name.run, name.turn, name.attempt), name }
    }

    /// Begins the file; whatever was there is gone.
    pub(crate) fn begin(&self, sent: u64, status: u16) -> io::Result<Writing> {
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut file = File::create(&self.path)?;
        let head = head(&self.name, sent, status);
        file.write_all(head.as_bytes())?;
        Ok(Writing { file, head: head.len() as u64 })
    }

    /// Goes on with a file that [`Spool::read`] has read.
    pub(crate) fn reopen(&self, sent: u64, status: u16) -> io::Result<Writing> {
        let mut file = File::options().write(true).open(&self.path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Writing { file, head: head(&self.name, sent, status).len() as u64 })
    }

    /// What was kept of this very call; none if there is nothing, it is of another call, or a power cut has left a hole in
    /// it: the disk may have the end of what was not synced and zeros before it, while no protocol sends a zero byte.
    pub(crate) fn read(&self) -> Option<Spooled> {
        let mut bytes = Vec::new();
        File::open(&self.path).ok()?.take(SPOOL_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let end = bytes.windows(2).position(|pair| pair == b"\n\n")?;
        let words = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let (sent, status) = (number(words, "sent")?, number(words, "status")?);
        let status = u16::try_from(status).ok()?;
        if head(&self.name, sent, status).trim_end() != words {
            return None;
        }
        bytes.drain(..end + 2);
        if bytes.contains(&0) {
            return None;
        }
        Some(Spooled { sent, status, body: bytes })
    }

    /// Makes what was kept survive a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        // The run's directory, that of all spools, and DIR: each may be new.
        let mut dirs = self.path.ancestors().skip(1).take(3);
        dirs.try_for_each(|dir| File::open(dir)?.sync_all())
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Writing {
    /// Adds the next bytes of the body.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Keeps the first bytes of the body alone; what is appended next comes behind them.
    pub(crate) fn cut(&mut self, body_bytes: u64) -> io::Result<()> {
        let end = self.head.saturating_add(body_bytes);
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::Start(end)).map(|_| ())
    }
}

/// The file of one call.
pub(crate) fn path(dir: &Path, run: RunId, turn: u32, attempt: u32) -> PathBuf {
    run_dir(dir, run).join(format!("{turn}.{attempt}"))
}

/// The directory of all calls of a run.
pub(crate) fn run_dir(dir: &Path, run: RunId) -> PathBuf {
    dir.join("spool").join(run.to_string())
}

fn head(name: &CallName, sent: u64, status: u16) -> String {
    let CallName { run, turn, attempt, epoch, request } = name;
    let request = request.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    format!(
        "sprag spool 1\nrun {run}\nturn {turn}\nattempt {attempt}\nepoch {epoch}\nrequest {request}\nsent {sent}\n\
         status {status}\n\n"
    )
}

fn number(words: &str, name: &str) -> Option<u64> {
    words.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> CallName {
        CallName { run: RunId([7; 16]), turn: 3, attempt: 1, epoch: 9, request: [0xab; 32] }
    }

    #[test]
    fn what_was_written_is_read_by_its_call_alone() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path(), name());
        assert_eq!(spool.read(), None);
        let mut writing = spool.begin(12, 200).unwrap();
        writing.append(b"data: 1\n\n").unwrap();
        writing.append(b"data: 2\n").unwrap();
        let kept = Spooled { sent: 12, status: 200, body: b"data: 1\n\ndata: 2\n".to_vec() };
        assert_eq!(spool.read(), Some(kept));
        for other in [
            CallName { epoch: 10, ..name() },
            CallName { request: [0xac; 32], ..name() },
            CallName { turn: 4, ..name() },
            CallName { attempt: 0, ..name() },
            CallName { run: RunId([8; 16]), ..name() },
        ] {
            let same_place = Spool { path: spool.path.clone(), name: other };
            assert_eq!(same_place.read(), None, "{other:?}");
        }
        spool.sync().unwrap();
    }

    #[test]
    fn a_hole_that_a_power_cut_has_left_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path(), name());
        let mut writing = spool.begin(12, 200).unwrap();
        writing.append(&b"data: {\"delta\":\"word \"}\n\n".repeat(100)).unwrap();
        let whole = std::fs::read(spool.path()).unwrap();
        assert!(spool.read().is_some());
        for sector in (0..whole.len()).step_by(512) {
            let mut torn = whole.clone();
            let end = whole.len().min(sector + 512);
            torn[sector..end].fill(0);
            std::fs::write(spool.path(), torn).unwrap();
            assert_eq!(spool.read(), None, "a hole at {sector}");
        }
    }

    #[test]
    fn a_head_that_was_cut_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::of(dir.path(), name());
        drop(spool.begin(12, 200).unwrap());
        let whole = std::fs::read(spool.path()).unwrap();
        for len in 0..whole.len() {
            std::fs::write(spool.path(), &whole[..len]).unwrap();
            assert_eq!(spool.read(), None, "{len} bytes");
        }
    }
}
