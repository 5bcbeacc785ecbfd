//! A real directory behind a power supply.
//!
//! Owns what a cut leaves behind: everything that was written (the process died), or what was synced (the machine did).
//! Syncs are counted and believed, not performed: what the page cache holds outlives a process, and what it loses with a
//! machine is taken back here. Reads are not counted: a death at a read leaves the disk of a death before the next change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::fs::{Depth, Fs, Handle, Mode, RealFs};

use crate::power::{Act, Power, Share};

/// A disk whose power may fail.
#[derive(Debug)]
pub struct PoweredDisk {
    power: Arc<Power>,
    /// A sync that only says that it worked.
    lies: bool,
    /// What was done since the last sync of its file or directory, oldest first.
    undo: Mutex<Vec<Undo>>,
}

#[derive(Debug)]
enum Undo {
    /// Bytes that a write replaced.
    Write { path: PathBuf, offset: u64, old: Vec<u8> },
    /// A name that a file was given.
    Rename { from: PathBuf, to: PathBuf },
}

impl Undo {
    /// A sync of the file or directory at `synced` makes it durable.
    fn is_of(&self, synced: &Path) -> bool {
        match self {
            Self::Write { path, .. } => path == synced,
            Self::Rename { to, .. } => to.parent() == Some(synced),
        }
    }
}

impl PoweredDisk {
    /// A disk on this power.
    pub fn new(power: Arc<Power>) -> Self {
        Self { power, lies: false, undo: Mutex::default() }
    }

    /// The same, but no sync does anything: a machine that dies loses all that was ever written.
    pub fn lying(power: Arc<Power>) -> Self {
        Self { lies: true, ..Self::new(power) }
    }

    /// The machine died: what was written or renamed and not synced is gone.
    pub fn lose_unsynced(&self) {
        for undo in self.lock().drain(..).rev() {
            match undo {
                Undo::Write { path, offset, old } => put_back(&path, offset, &old),
                // A file that was removed since has no name to lose.
                Undo::Rename { from, to } => drop(RealFs.rename(&to, &from)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Undo>> {
        self.undo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if file.file.metadata()?.len() <= offset && is_zero(bytes) {
            // Zeros past the end are what a longer file has there anyway.
            return RealFs.set_len(file, offset + bytes.len() as u64).map(|()| bytes.len());
        }
        let mut old = vec![0; bytes.len()];
        let mut read = 0;
        while let Ok(count @ 1..) = RealFs.read_at(file, offset + read as u64, &mut old[read..]) {
            read += count;
        }
        self.lock().push(Undo::Write { path: file.path.clone(), offset, old });
        RealFs.write_at(file, offset, bytes)
    }
}

fn put_back(path: &Path, offset: u64, old: &[u8]) {
    // A file that is gone has nothing to lose.
    let Ok(file) = RealFs.open(path, Mode::Write) else { return };
    let written = RealFs.write_at(&file, offset, old);
    assert_eq!(written.ok(), Some(old.len()), "the old bytes of {} could not be put back", path.display());
}

/// As fast without optimisation as with it: segments are made of megabytes of zeros.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

impl Fs for PoweredDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Handle> {
        let makes = match mode {
            Mode::Create => true,
            Mode::Dir => !path.is_dir(),
            Mode::Read | Mode::Write => false,
        };
        if makes {
            self.power.act(Act::Make, |_| RealFs.open(path, mode))
        } else {
            self.power.read(|| RealFs.open(path, mode))
        }
    }

    fn read_at(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.power.read(|| RealFs.read_at(file, offset, buffer))
    }

    fn write_at(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.power.act(Act::Write, |share| match share {
            Share::Whole => self.write(file, offset, bytes),
            Share::Half => self.write(file, offset, &bytes[..bytes.len() / 2]),
        })
    }

    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()> {
        self.power.act(Act::SetLen, |_| RealFs.set_len(file, len))
    }

    fn sync(&self, file: &Handle, _depth: Depth) -> io::Result<()> {
        self.power.act(Act::Sync, |_| {
            if !self.lies {
                self.lock().retain(|undo| !undo.is_of(&file.path));
            }
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.power.act(Act::Rename, |_| {
            RealFs.rename(from, to)?;
            let mut undo = self.lock();
            for undo in undo.iter_mut() {
                if let Undo::Write { path, .. } = undo
                    && path == from
                {
                    *path = to.to_owned();
                }
            }
            undo.push(Undo::Rename { from: from.to_owned(), to: to.to_owned() });
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.power.act(Act::Remove, |_| RealFs.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        self.power.read(|| RealFs.list(dir))
    }
}
