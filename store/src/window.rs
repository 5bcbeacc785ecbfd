//! Reads the groups of one segment in order, a window at a time: memory does not grow with the segment.
//!
//! Owns the bytes of the window. It must never write, nor judge what it finds.

use std::io;
use std::path::Path;

use crate::Error;
use crate::frame::{GROUP_BLOCK, Point};
use crate::fs::{Fs, Handle, Mode, error, read_up_to};
use crate::recover::{Found, damage};
use crate::scan::{Bytes, Group, Stop, extent, group_in, kept_in};
use crate::segment;

/// Bytes read at once; a larger group is read whole.
const WINDOW_BYTES: usize = 1 << 20;

/// A segment that is read from its first group to its last.
pub(crate) struct Window<'a> {
    disk: &'a dyn Fs,
    file: Handle,
    is_rewritten: bool,
    /// Where its groups end in the file.
    end: u64,
    /// Offset of the first of `bytes`.
    base: u64,
    bytes: Vec<u8>,
    /// Where the next group is.
    at: Point,
}

impl<'a> Window<'a> {
    /// Opens a segment as it was found.
    pub(crate) fn open(disk: &'a dyn Fs, dir: &Path, found: &Found) -> Result<Self, Error> {
        let path = segment::path(dir, found.number);
        let file = disk.open(&path, Mode::Read).map_err(|failure| error("open", &path, &failure))?;
        let (is_rewritten, end) = (found.is_rewritten, found.bytes);
        Ok(Self { disk, file, is_rewritten, end, base: 0, bytes: Vec::new(), at: found.start })
    }

    /// Skips groups whose frames all come before number `position`, as far as known without reading them.
    pub(crate) fn skip_to(&mut self, found: &Found, position: u64) {
        let mark = found.marks.iter().rfind(|mark| mark.position <= position);
        self.at = mark.copied().unwrap_or(found.start);
    }

    /// Where the next group is.
    pub(crate) fn at(&self) -> &Point {
        &self.at
    }

    /// The next group; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Group<'_>>, Error> {
        if self.at.offset >= self.end {
            return Ok(None);
        }
        let covered = self.cover(GROUP_BLOCK).and_then(|()| {
            let bytes = extent(self.bytes(), &self.at).unwrap_or(0);
            self.cover(bytes)
        });
        covered.map_err(|failure| error("read", &self.file.path, &failure))?;
        let bytes = Bytes { bytes: &self.bytes, base: self.base };
        let read = if self.is_rewritten { kept_in(bytes, &self.at) } else { group_in(bytes, &self.at) };
        match read {
            Ok(group) => {
                self.at = group.end;
                Ok(Some(group))
            }
            Err(Stop::End | Stop::Footer) => {
                Err(damage(&self.file.path, self.at.offset, Stop::End, "records are missing"))
            }
            Err(stop) => Err(damage(&self.file.path, self.at.offset, stop, "")),
        }
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes { bytes: &self.bytes, base: self.base }
    }

    /// Has `len` bytes from the next group on in the window, as far as the segment goes.
    fn cover(&mut self, len: usize) -> io::Result<()> {
        let from = usize::try_from(self.at.offset - self.base).unwrap_or(usize::MAX);
        let has = self.bytes.len().saturating_sub(from);
        let left = usize::try_from(self.end - self.at.offset).unwrap_or(usize::MAX);
        if has >= len.min(left) {
            return Ok(());
        }
        self.bytes.drain(..from.min(self.bytes.len()));
        self.base = self.at.offset;
        let more = len.max(WINDOW_BYTES).min(left) - has;
        let read = read_up_to(self.disk, &self.file, self.base + has as u64, more)?;
        self.bytes.extend_from_slice(&read);
        Ok(())
    }
}
