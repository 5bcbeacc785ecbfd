//! A real directory behind a power supply.
//!
//! Owns the record of what the disk was told, from which every image is made that a cut may leave: all that was written (the
//! process died), or what is legal when the machine did. Syncs are counted and believed, not performed: what the page
//! cache holds outlives a process. Reads are not counted: a death at a read leaves the disk of a death before the next
//! change. What stands in a directory when it is first touched is taken to be durable.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::fs::{Depth, Fs, Handle, Mode, RealFs};

use crate::content::Content;
use crate::moment::Moment;
use crate::past::{Told, is_of_state};
use crate::power::{Act, Power, Share};

/// A disk whose power may fail.
#[derive(Debug)]
pub struct PoweredDisk {
    power: Arc<Power>,
    /// A sync that only says that it worked.
    lies: bool,
    /// There is no room for the next segment that is made ahead of its need.
    is_short: AtomicBool,
    past: Arc<Mutex<Past>>,
}

/// What was done, oldest first.
#[derive(Debug, Default)]
struct Past {
    told: Vec<Told>,
    /// Directories whose files are known.
    known: BTreeSet<PathBuf>,
}

impl Past {
    /// Takes what stands in a directory as durable, when it is touched first.
    fn know(&mut self, dir: &Path) {
        if !self.known.insert(dir.to_owned()) {
            return;
        }
        let files = RealFs.list(dir).unwrap_or_default().into_iter();
        let files = files.filter(|(name, _)| dir.join(name).is_file());
        let read = |name: String| {
            let content = Content::new(&std::fs::read(dir.join(&name)).unwrap_or_default());
            (name, content)
        };
        self.told.push(Told::Known(dir.to_owned(), files.map(|(name, _)| read(name)).collect()));
    }

    fn know_parent(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.know(parent);
        }
    }
}

impl PoweredDisk {
    /// A disk on this power.
    pub fn new(power: Arc<Power>) -> Self {
        Self { power, lies: false, is_short: AtomicBool::new(false), past: Arc::default() }
    }

    /// The same disk, with nothing lost, on the power of a later process.
    pub fn on(&self, power: Arc<Power>) -> Self {
        Self { lies: self.lies, past: Arc::clone(&self.past), ..Self::new(power) }
    }

    /// A disk on which no sync does anything: a machine that dies loses all that was ever written.
    pub fn lying(power: Arc<Power>) -> Self {
        Self { lies: true, ..Self::new(power) }
    }

    /// Has no room for the next segment that is made ahead of its need: right after another one.
    pub fn refuse_spare(&self) {
        self.is_short.store(true, Ordering::Relaxed);
    }

    fn is_refused(&self, path: &Path) -> bool {
        let past = self.lock();
        let is_ahead = match past.told.as_slice() {
            [.., Told::Rename(_, to), Told::Sync(dir)] => {
                to.parent() == Some(dir) && path.parent() == Some(dir)
            }
            _ => false,
        };
        is_ahead && self.is_short.swap(false, Ordering::Relaxed)
    }

    /// How much it was told.
    pub fn count(&self) -> usize {
        self.lock().told.len()
    }

    /// Everything that it was told.
    pub fn told(&self) -> Vec<Told> {
        self.lock().told.clone()
    }

    /// The machine died: what was not synced is gone.
    pub fn lose_unsynced(&self) {
        let past = self.lock();
        let mut moment = Moment::default();
        past.told.iter().for_each(|told| moment.apply(told));
        for dir in past.known.iter().filter(|dir| dir.is_dir()) {
            let left = moment.left(dir, &[]).unwrap_or_default();
            for (name, _) in RealFs.list(dir).unwrap_or_default() {
                if dir.join(&name).is_file() {
                    // It is written again below, if it is there at all.
                    let _ = std::fs::remove_file(dir.join(&name));
                }
            }
            for (name, content) in left.iter().filter(|(name, _)| name.components().count() == 1) {
                write_file(&dir.join(name), content).unwrap_or_else(|error| {
                    unreachable!("{} could not be put back: {error}", name.display());
                });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut past = self.lock();
        past.know_parent(&file.path);
        let end = offset + bytes.len() as u64;
        if file.file.metadata()?.len() <= offset && is_zero(bytes) {
            // Zeros past the end are what a longer file has there anyway.
            RealFs.set_len(file, end)?;
            past.told.push(Told::Extend(file.path.clone(), end));
            return Ok(bytes.len());
        }
        let written = RealFs.write_at(file, offset, bytes)?;
        past.told.push(Told::Write(file.path.clone(), offset, bytes[..written].into()));
        Ok(written)
    }

    /// What a sync of this file or directory is.
    fn sync_of(path: &Path) -> io::Result<Told> {
        Ok(if !is_of_state(path) {
            Told::Sync(path.to_owned())
        } else if path.is_dir() {
            Told::SyncState(path.to_owned(), None)
        } else {
            Told::SyncState(path.to_owned(), Some(std::fs::read(path)?.into()))
        })
    }
}

/// Writes a file with this content.
pub(crate) fn write_file(path: &Path, content: &Content) -> io::Result<()> {
    let file = RealFs.open(path, Mode::Create)?;
    RealFs.set_len(&file, content.len())?;
    for (at, bytes) in content.pieces() {
        RealFs.write_at(&file, at, bytes)?;
    }
    Ok(())
}

/// As fast without optimisation as with it: segments are made of many zeros.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

impl Fs for PoweredDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Handle> {
        let made = match mode {
            Mode::Create => Told::Make(path.to_owned()),
            Mode::Dir if !path.is_dir() => Told::MakeDir(path.to_owned()),
            Mode::Read | Mode::Write | Mode::Dir => return self.power.read(|| RealFs.open(path, mode)),
        };
        self.power.act(Act::Make, |_| {
            if self.is_refused(path) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let mut past = self.lock();
            // Of what is there already, and stays.
            let missing: Vec<_> =
                path.ancestors().take_while(|part| !part.exists()).map(Path::to_owned).collect();
            if let Some(above) = path.ancestors().nth(missing.len().max(1)) {
                past.know(above);
            }
            let opened = RealFs.open(path, mode)?;
            if mode == Mode::Dir {
                past.known.extend(missing);
            }
            past.told.push(made);
            Ok(opened)
        })
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
        self.power.act(Act::SetLen, |_| {
            let mut past = self.lock();
            past.know_parent(&file.path);
            RealFs.set_len(file, len)?;
            past.told.push(Told::SetLen(file.path.clone(), len));
            Ok(())
        })
    }

    fn sync(&self, file: &Handle, _depth: Depth) -> io::Result<()> {
        let synced = self.power.act(Act::Sync, |_| {
            if !self.lies {
                self.lock().told.push(Self::sync_of(&file.path)?);
            }
            Ok(())
        });
        if synced.is_err() && !self.power.is_out() {
            self.lock().told.push(Told::FailedSync(file.path.clone()));
        }
        synced
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.power.act(Act::Rename, |_| {
            let mut past = self.lock();
            past.know_parent(from);
            RealFs.rename(from, to)?;
            if !is_of_state(from) {
                past.told.push(Told::Rename(from.to_owned(), to.to_owned()));
            }
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.power.act(Act::Remove, |_| {
            let mut past = self.lock();
            past.know_parent(path);
            RealFs.remove(path)?;
            past.told.push(Told::Remove(path.to_owned()));
            Ok(())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        self.power.read(|| RealFs.list(dir))
    }
}
