//! The disk alone: what a program gets that only writes bytes and syncs them.
//!
//! Owns a file whose space is there before the clock starts. It must never do more for a sync than one write.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::meter::Work;
use super::{blocking, failed};
use crate::error::Error;

/// Size of the file; at its end writing starts over.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes zeroed by one write, as the store does.
const ZERO_BYTES: usize = ::store::limits::ZERO_BYTES;

/// A file to write to.
pub(super) struct RawDisk {
    file: File,
    path: PathBuf,
    /// What one commit is: as many bytes as the store writes for one.
    commit: Vec<u8>,
    offset: u64,
}

impl RawDisk {
    /// Makes the file, filled and synced.
    pub(super) fn open(path: &Path, commit_bytes: usize) -> Result<Self, Error> {
        let fill = || {
            let file = File::create(path)?;
            let zeros = vec![0; ZERO_BYTES];
            for offset in (0..FILE_BYTES).step_by(zeros.len()) {
                file.write_all_at(&zeros, offset)?;
            }
            file.sync_all().map(|()| file)
        };
        let file = fill().map_err(|error| failed("fill", path, &error))?;
        Ok(Self { file, path: path.to_owned(), commit: vec![0xa5; commit_bytes], offset: 0 })
    }

    /// Writes groups of `width` commits for so long, each with one sync.
    pub(super) async fn slice(self, width: usize, time: Duration, work: &mut Work) -> Result<Self, Error> {
        let (disk, done) = blocking(move || self.write(width, time)).await?;
        work.count += done.count;
        work.elapsed += done.elapsed;
        work.latencies.append(done.latencies);
        Ok(disk)
    }

    /// Writes one commit and syncs it; answers how long that took.
    pub(super) fn append(&mut self) -> Result<Duration, Error> {
        if self.offset + self.commit.len() as u64 > FILE_BYTES {
            self.offset = 0;
        }
        let begun = Instant::now();
        let written = self.file.write_all_at(&self.commit, self.offset).and_then(|()| self.file.sync_data());
        written.map_err(|error| failed("write", &self.path, &error))?;
        self.offset += self.commit.len() as u64;
        Ok(begun.elapsed())
    }

    fn write(mut self, width: usize, time: Duration) -> Result<(Self, Work), Error> {
        let group = self.commit.repeat(width);
        let mut work = Work::default();
        let start = Instant::now();
        while start.elapsed() < time {
            let begun = Instant::now();
            if self.offset + group.len() as u64 > FILE_BYTES {
                self.offset = 0;
            }
            let written = self.file.write_all_at(&group, self.offset).and_then(|()| self.file.sync_data());
            written.map_err(|error| failed("write", &self.path, &error))?;
            self.offset += group.len() as u64;
            work.count += width as u64;
            work.latencies.note(begun.elapsed());
        }
        work.elapsed = start.elapsed();
        Ok((self, work))
    }
}
