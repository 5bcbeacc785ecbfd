//! The only door to the disk for the journal and for the mark that says whether sled's files may be used: eight
//! operations, so that a test can count them, cut the power before or after each, and make any of them fail.
//!
//! Must never hold policy: no retries, no formats, no paths of its own.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// An open file or directory.
#[derive(Debug)]
pub struct Handle {
    /// Where it was opened (a rename does not change it).
    pub path: PathBuf,
    /// The system's handle.
    pub file: File,
}

/// How `Fs::open` opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new, empty file, to read and write; an old one of that name is emptied.
    Create,
    /// A directory, made if it is missing.
    Dir,
}

/// What a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The bytes, and what is needed to read them back (`fdatasync`).
    Data,
    /// Everything about the file or directory (`fsync`).
    All,
}

/// The operations that the store needs. None may be retried inside: the journal decides what a failure
/// means.
pub trait Fs: Send + Sync {
    /// Opens `path`.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Handle>;

    /// Reads from `offset`; fewer bytes than asked for only at the end of the file, then 0.
    fn read_at(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes at `offset` and returns how many bytes it took, which may be fewer than given.
    fn write_at(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Cuts or extends the file to `len` bytes.
    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()>;

    /// Once it returns, what `depth` says survives power loss.
    fn sync(&self, file: &Handle, depth: Depth) -> io::Result<()>;

    /// Gives `from` the name `to`, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names and lengths of the files in a directory, sorted by name.
    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>>;
}

/// The real disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

impl Fs for RealFs {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Handle> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            Mode::Read => {}
            Mode::Write => {
                options.write(true);
            }
            Mode::Create => {
                options.write(true).create(true).truncate(true);
            }
            Mode::Dir => fs::create_dir_all(path)?,
        }
        Ok(Handle { path: path.to_owned(), file: options.open(path)? })
    }

    fn read_at(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        file.file.read_at(buffer, offset)
    }

    fn write_at(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        file.file.write_at(bytes, offset)
    }

    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()> {
        file.file.set_len(len)
    }

    fn sync(&self, file: &Handle, depth: Depth) -> io::Result<()> {
        match depth {
            Depth::Data => file.file.sync_data(),
            Depth::All => file.file.sync_all(),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A file that is removed while we look is not there.
            if let (Some(name), Ok(metadata)) = (entry.file_name().to_str(), entry.metadata()) {
                files.push((name.to_owned(), metadata.len()));
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Writes all of `bytes`, however many short writes that takes.
pub(crate) fn write_all_at(disk: &dyn Fs, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match disk.write_at(file, offset + written as u64, rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `len` bytes from `offset`, or as many as there are before the end of the file.
pub(crate) fn read_up_to(disk: &dyn Fs, file: &Handle, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut read = 0;
    while read < len {
        match disk.read_at(file, offset + read as u64, &mut bytes[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Syncs the directory itself: the names in it survive power loss.
pub(crate) fn sync_dir(disk: &dyn Fs, dir: &Path) -> io::Result<()> {
    disk.sync(&disk.open(dir, Mode::Dir)?, Depth::All)
}

/// The typed error for a failed `operation` on `path`.
pub(crate) fn error(operation: &'static str, path: &Path, error: &io::Error) -> Error {
    error_in(store_dir(path), operation, path, error)
}

/// The same for a path in DIR that is not the journal's.
pub(crate) fn error_in(dir: &Path, operation: &'static str, path: &Path, error: &io::Error) -> Error {
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        Error::NoSpace { path: dir.to_owned() }
    } else if kind == io::ErrorKind::ReadOnlyFilesystem {
        Error::ReadOnly { path: dir.to_owned() }
    } else {
        Error::Io { operation, path: path.to_owned(), message: error.to_string() }
    }
}

/// DIR of a file in `DIR/journal`.
fn store_dir(path: &Path) -> &Path {
    path.ancestors()
        .find(|ancestor| ancestor.file_name() == Some(OsStr::new(crate::journal::JOURNAL_DIR)))
        .and_then(Path::parent)
        .unwrap_or(path)
}
