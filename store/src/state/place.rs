//! The state's place on disk: sled's directory, and the mark beside it that says whether it may be used as
//! found.
//!
//! Owns `DIR/state`, `DIR/state.mark` and `DIR/state.aside-N`. It must never read or write a key.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::fs::{Depth, Fs, Mode, error_in, read_up_to, sync_dir, write_all_at};

/// First words of the mark: changes whenever the meaning of sled's keys does.
const MARK_FORMAT: &str = "sprag-state 1";

/// No mark is longer.
const MARK_BYTES_MAX: usize = 128;

/// How often, and how long each time, `open_sled` waits for an earlier handle of this process to let go.
const LOCK_TRIES: u32 = 200;
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// What the last writer left as its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// It closed: everything was synced.
    Closed,
    /// It was open during this boot. Whatever it had written is in the page cache for as long as the boot
    /// lasts.
    Open([u8; 16]),
}

/// The state's files in one store directory.
#[derive(Clone)]
pub(super) struct Place {
    disk: Arc<dyn Fs>,
    dir: PathBuf,
}

impl Place {
    pub(super) fn new(disk: Arc<dyn Fs>, dir: &Path) -> Self {
        Self { disk, dir: dir.to_path_buf() }
    }

    /// sled's directory.
    pub(super) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Fails if sled has put a page into a file of its own, which it would never sync.
    pub(super) fn no_side_files(&self) -> Result<(), String> {
        let count = fs::read_dir(self.state().join("blobs")).map_or(0, Iterator::count);
        if count > 0 { Err(format!("it made {count} side files, which it never syncs")) } else { Ok(()) }
    }

    /// Free space of its disk that this process may use; as much as there can be if the system does not tell.
    pub(super) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.dir).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn mark(&self) -> PathBuf {
        self.dir.join("state.mark")
    }

    /// The mark, or none if there is none that this version understands.
    pub(super) fn read_mark(&self) -> Option<Mark> {
        let file = self.disk.open(&self.mark(), Mode::Read).ok()?;
        let text = String::from_utf8(read_up_to(&*self.disk, &file, 0, MARK_BYTES_MAX).ok()?).ok()?;
        let words = text.strip_prefix(MARK_FORMAT)?.strip_suffix('\n')?;
        match words.trim_start().split_once(' ') {
            None if words == " closed" => Some(Mark::Closed),
            Some(("open", boot_id)) => {
                Some(Mark::Open(u128::from_str_radix(boot_id, 16).ok()?.to_be_bytes()))
            }
            None | Some(_) => None,
        }
    }

    /// Replaces the mark. Once it returns, no power loss brings the old one back.
    pub(super) fn write_mark(&self, mark: Mark) -> Result<(), Error> {
        let words = match mark {
            Mark::Closed => "closed".to_owned(),
            Mark::Open(boot_id) => format!("open {:032x}", u128::from_be_bytes(boot_id)),
        };
        let (disk, beside) = (&*self.disk, self.dir.join("state.mark.new"));
        let write = || {
            let file = disk.open(&beside, Mode::Create)?;
            write_all_at(disk, &file, 0, format!("{MARK_FORMAT} {words}\n").as_bytes())?;
            disk.sync(&file, Depth::All)?;
            disk.rename(&beside, &self.mark())?;
            sync_dir(disk, &self.dir)
        };
        write().map_err(|error| self.failed("writing", &self.mark(), &error))
    }

    /// Removes the mark: the next open rebuilds.
    pub(super) fn clear_mark(&self) -> Result<(), Error> {
        let clear = || match self.disk.remove(&self.mark()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => sync_dir(&*self.disk, &self.dir),
        };
        clear().map_err(|error| self.failed("removing", &self.mark(), &error))
    }

    /// Moves sled's directory aside, if there is one, and removes those that were moved aside before it.
    pub(super) fn move_aside(&self) -> Result<(), Error> {
        let state = self.state();
        if state.symlink_metadata().is_err() {
            return Ok(());
        }
        let older = self.asides().map_err(|error| self.failed("listing", &self.dir, &error))?;
        let number = older.iter().map(|(number, _)| number + 1).max().unwrap_or(1);
        let target = self.dir.join(format!("state.aside-{number}"));
        self.disk.rename(&state, &target).map_err(|error| self.failed("moving aside", &state, &error))?;
        for (_, path) in older {
            // Whatever stood there instead of sled's directory was moved aside too.
            let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| self.failed("removing", &path, &error))?;
        }
        Ok(())
    }

    fn asides(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("state.aside-")?.parse().ok());
            found.extend(number.map(|number| (number, entry.path())));
        }
        Ok(found)
    }

    /// Opens sled. An earlier handle of this process may take a moment to let go of sled's own lock.
    pub(super) fn open_sled(&self, cache_bytes: u64) -> Result<sled::Db, sled::Error> {
        let config = sled::Config::new().path(self.state()).cache_capacity(cache_bytes).flush_every_ms(None);
        let mut tries = 0;
        loop {
            match config.open() {
                Err(error) if tries < LOCK_TRIES && error.to_string().contains("acquire lock") => {
                    tries += 1;
                    thread::sleep(LOCK_WAIT);
                }
                answer => return answer,
            }
        }
    }

    /// Syncs every file of sled's directory: its own flush does not.
    pub(super) fn sync(&self) -> Result<(), Error> {
        fn sync_tree(disk: &dyn Fs, path: &Path) -> io::Result<()> {
            if !path.is_dir() {
                return disk.sync(&disk.open(path, Mode::Read)?, Depth::All);
            }
            for entry in fs::read_dir(path)? {
                sync_tree(disk, &entry?.path())?;
            }
            sync_dir(disk, path)
        }
        sync_tree(&*self.disk, &self.state()).map_err(|error| self.failed("syncing", &self.state(), &error))
    }

    /// The typed form of an I/O error.
    pub(super) fn failed(&self, operation: &'static str, path: &Path, error: &io::Error) -> Error {
        error_in(&self.dir, operation, path, error)
    }
}
