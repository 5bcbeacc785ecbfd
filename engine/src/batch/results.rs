//! The results file: each result line exactly once, whatever happened to the process that wrote it.
//!
//! Owns the file between two crashes. It believes no line that the store does not confirm, and it must never drop what it
//! did not write without keeping the old file, nor take over a file of results that are not this store's.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use model::RunId;

use super::Error;
use super::ending::ResultLine;

/// A results file, open for appending.
#[derive(Debug)]
pub(super) struct Results {
    path: PathBuf,
    file: File,
    written: HashSet<RunId>,
    is_dirty: bool,
}

/// What was wrong with a results file when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Lines that were dropped, from 1, and why.
    pub dropped: Vec<(usize, String)>,
    /// The file as it was; none if nothing but an unfinished last line was dropped.
    pub kept: Option<PathBuf>,
    /// Lines that were missing and are there now.
    pub added: usize,
}

/// What a store says of a result line.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is how this run ended.
    Right(RunId),
    /// It is not how the run of its job ended, for this reason.
    Wrong(String),
    /// The store has never had this run, nor one of the line's job.
    Foreign(RunId),
}

impl Results {
    /// Opens the file, or makes it. Every line is parsed, and dropped unless `confirm` finds it right. A file that holds
    /// results of another store, or something else than results, is refused as it is.
    pub(super) fn open(
        path: &Path,
        confirm: impl Fn(&ResultLine) -> Result<Verdict, crate::Error>,
    ) -> Result<(Self, Mended), Error> {
        let bytes = read(path).map_err(Error::file("read", path))?;
        let mut mended = Mended::default();
        let mut written = HashSet::new();
        let mut good: Vec<&[u8]> = Vec::new();
        let (mut is_torn, mut last, mut is_ours) = (false, 0, bytes.is_empty());
        for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
            (is_torn, last) = (!line.ends_with(b"\n"), number);
            let parsed = serde_json::from_slice::<ResultLine>(line);
            is_ours |= parsed.is_ok() || (is_torn && is_beginning(line));
            let confirmed = match parsed {
                Err(_) if is_torn => Err("it is not finished".to_owned()),
                Err(error) => Err(format!("it is not a result line: {error}")),
                Ok(result) => match confirm(&result)? {
                    Verdict::Right(run) if written.insert(run) => Ok(()),
                    Verdict::Right(_) => Err(format!("job `{}` has its line already", result.custom_id)),
                    Verdict::Wrong(reason) => Err(reason),
                    Verdict::Foreign(run) => return Err(Error::OtherStore(path.to_owned(), run)),
                },
            };
            match confirmed {
                Ok(()) => good.push(line.trim_ascii_end()),
                Err(reason) => mended.dropped.push((number, reason)),
            }
        }
        if !is_ours {
            return Err(Error::NoResults(path.to_owned()));
        }
        if is_torn || !mended.dropped.is_empty() {
            let is_tail = |(number, _): &(usize, String)| is_torn && *number == last;
            if !mended.dropped.iter().all(is_tail) {
                mended.kept = Some(keep(path)?);
            }
            replace(path, &good)?;
        }
        let is_new = bytes.is_empty();
        let file =
            OpenOptions::new().append(true).create(true).open(path).map_err(Error::file("open", path))?;
        if is_new {
            sync_parent(path)?;
        }
        Ok((Self { path: path.to_owned(), file, written, is_dirty: false }, mended))
    }

    /// Shows every line of the file, in order.
    pub(super) fn each(&self, mut show: impl FnMut(&ResultLine) -> Result<(), Error>) -> Result<(), Error> {
        let read = |error: io::Error| Error::file("read", &self.path)(error);
        for line in BufReader::new(File::open(&self.path).map_err(read)?).lines() {
            let line = serde_json::from_str(&line.map_err(read)?).map_err(|error| read(error.into()))?;
            show(&line)?;
        }
        Ok(())
    }

    /// True if the run has its line.
    pub(super) fn has(&self, run: RunId) -> bool {
        self.written.contains(&run)
    }

    /// Adds a line, unless the run has one.
    pub(super) fn append(&mut self, run: RunId, result: &ResultLine) -> Result<bool, Error> {
        if !self.written.insert(run) {
            return Ok(false);
        }
        let mut line =
            serde_json::to_vec(result).map_err(io::Error::other).map_err(Error::file("write", &self.path))?;
        line.push(b'\n');
        self.is_dirty = true;
        self.file.write_all(&line).map_err(Error::file("write", &self.path))?;
        Ok(true)
    }

    /// Makes what was added durable.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        if self.is_dirty {
            self.file.sync_data().map_err(Error::file("sync", &self.path))?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

/// What the file holds. Only a regular one ends, and keeps what it was given.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is not a regular file")),
        Ok(_) => std::fs::read(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// True for what a crash may leave of a result line: its beginning, and zeros in place of what was not written.
fn is_beginning(line: &[u8]) -> bool {
    let zeros = line.iter().rev().take_while(|byte| **byte == 0).count();
    let written = line.get(..line.len() - zeros).unwrap_or_default();
    serde_json::from_slice::<ResultLine>(written).is_err_and(|error| error.is_eof())
}

/// The name beside a file.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Keeps the file as it is under a name of its own. Once it returns, no power loss takes the copy.
fn keep(path: &Path) -> Result<PathBuf, Error> {
    let mut kept = beside(path, ".bad");
    let mut number = 1;
    while kept.symlink_metadata().is_ok() {
        number += 1;
        kept = beside(path, &format!(".bad-{number}"));
    }
    let copy = || {
        std::fs::copy(path, &kept)?;
        File::open(&kept)?.sync_all()
    };
    copy().map_err(Error::file("copy", path))?;
    Ok(kept)
}

/// Puts good lines in place of the file: whole or not at all.
fn replace(path: &Path, lines: &[&[u8]]) -> Result<(), Error> {
    let temporary = beside(path, ".new");
    let write = || -> io::Result<()> {
        let mut file = io::BufWriter::new(File::create(&temporary)?);
        for line in lines {
            file.write_all(line)?;
            file.write_all(b"\n")?;
        }
        file.into_inner()?.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(Error::file("write", &temporary))?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(Error::file("sync", parent))
}
