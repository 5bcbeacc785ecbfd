//! Segment files: their names, how one is made, sealed and opened.
//!
//! A segment is made beside (temporary name, zeros, sync, rename, sync of the directory), so a name ending in
//! `.seg` is a file with all its space. Owns no position: callers say where a segment ends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::Error;
use crate::bytes::Cursor;
use crate::frame::{self, Bad, Point, REWRITTEN_HEAD_BLOCK, SegmentHead};
use crate::fs::{Depth, Fs, Handle, Mode, error, read_up_to, sync_dir, write_all_at};
use crate::index::{self, Index, TRAILER};
use crate::limits::ZERO_BYTES;

/// Most blocks are smaller: one read gets them.
const READ_BYTES: usize = 8 << 10;

/// Path of segment `number` in the journal's directory.
pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.seg"))
}

/// Path of the file that is made beside and takes the name of segment `number` when it is whole.
pub(crate) fn beside(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.tmp"))
}

/// The number in a segment's file name.
pub(crate) fn number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    // Only the name that `path` gives.
    (name == format!("{number:08}.seg")).then_some(number)
}

/// The name is one under which a segment is being made, or was when its maker died.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|stem| stem.parse::<u64>().is_ok())
}

/// Makes segment `number` with `size` bytes of zeros. Once it returns, the name and the space survive power
/// loss.
pub(crate) fn make(disk: &dyn Fs, dir: &Path, number: u64, size: u64) -> io::Result<Handle> {
    let beside = beside(dir, number);
    let file = disk.open(&beside, Mode::Create)?;
    let made = fill(disk, &file, size)
        .and_then(|()| disk.rename(&beside, &path(dir, number)))
        .and_then(|()| sync_dir(disk, dir));
    if let Err(error) = made {
        // Gives the space back; the name is swept at the next open in any case.
        let _ = disk.remove(&beside);
        return Err(error);
    }
    Ok(Handle { path: path(dir, number), file: file.file })
}

fn fill(disk: &dyn Fs, file: &Handle, size: u64) -> io::Result<()> {
    let zeros = vec![0; ZERO_BYTES.min(size as usize)];
    let mut offset = 0;
    while offset < size {
        let count = (size - offset).min(zeros.len() as u64);
        write_all_at(disk, file, offset, &zeros[..count as usize])?;
        offset += count;
    }
    disk.sync(file, Depth::All)
}

/// Ends a segment at `end`: cuts what lies behind, writes the footer and syncs everything.
pub(crate) fn seal(disk: &dyn Fs, file: &Handle, end: &Point, index: &Index) -> io::Result<()> {
    disk.set_len(file, end.offset)?;
    write_all_at(disk, file, end.offset, &index.to_footer(end))?;
    disk.sync(file, Depth::All)
}

/// The footer of a sealed segment.
#[derive(Debug)]
pub(crate) struct Footer {
    /// Its offset: where the frames end.
    pub(crate) at: u64,
    /// Where the segment ends; of a rewritten one, where it ended before.
    pub(crate) end: Point,
    pub(crate) index: Index,
}

/// The footer of a segment of `len` bytes; none if the last bytes of the file are not those of a footer.
pub(crate) fn footer(disk: &dyn Fs, file: &Handle, number: u64, len: u64) -> io::Result<Option<Footer>> {
    let Some(trailer_at) = len.checked_sub(TRAILER as u64) else { return Ok(None) };
    let trailer = read_up_to(disk, file, trailer_at, TRAILER)?;
    let Some(at) = index::footer_offset(&trailer).filter(|at| *at < trailer_at) else { return Ok(None) };
    let bytes = read_up_to(disk, file, at, (len - at) as usize)?;
    let whole = frame::block_alone(&bytes, number, at).ok().and_then(index::footer);
    Ok(whole.filter(|(end, _)| end.segment == number).map(|(end, index)| Footer { at, end, index }))
}

/// Length of a segment that is there; none if it is not.
pub(crate) fn len(disk: &dyn Fs, dir: &Path, number: u64) -> io::Result<Option<u64>> {
    let name = path(dir, number);
    let listed = disk.list(dir)?.into_iter().find(|(found, _)| name.file_name() == Some(found.as_ref()));
    Ok(listed.map(|(_, len)| len))
}

/// The content of the block at `offset`, without reading the rest of the segment.
pub(crate) fn read_block(
    disk: &dyn Fs,
    file: &Handle,
    number: u64,
    offset: u64,
) -> io::Result<Result<Vec<u8>, Bad>> {
    let mut bytes = read_up_to(disk, file, offset, READ_BYTES)?;
    let len = Cursor(&bytes).u32().map_or(0, |len| len as usize + frame::ENVELOPE);
    if len > bytes.len() {
        bytes = read_up_to(disk, file, offset, len.min(frame::BLOCK_MAX))?;
    }
    Ok(frame::block_alone(&bytes, number, offset).map(<[u8]>::to_vec))
}

/// A segment's first block.
pub(crate) fn head(disk: &dyn Fs, file: &Handle, number: u64) -> io::Result<Result<SegmentHead, Bad>> {
    let bytes = read_up_to(disk, file, 0, REWRITTEN_HEAD_BLOCK)?;
    Ok(frame::block(&bytes, number, 0).and_then(|content| {
        frame::head(content).filter(|head| head.segment == number).ok_or(Bad::Broken("it is not a head"))
    }))
}

/// Keeps the next segment ready before the current one is full.
pub(crate) struct Preparer {
    disk: Arc<dyn Fs>,
    dir: PathBuf,
    /// Prepare in the caller's thread: the order of disk operations is then the same in every run.
    inline: bool,
    next: Next,
    /// Why the last try failed, if none has succeeded since.
    lack: Option<Error>,
}

enum Next {
    None,
    Ready(Prepared),
    Making(JoinHandle<io::Result<Prepared>>),
}

/// A segment without a head yet.
pub(crate) struct Prepared {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) file: Handle,
}

impl Preparer {
    pub(crate) fn new(disk: Arc<dyn Fs>, dir: PathBuf, inline: bool) -> Self {
        Self { disk, dir, inline, next: Next::None, lack: None }
    }

    /// The journal's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts making segment `number`, unless one is ready or being made.
    pub(crate) fn start(&mut self, number: u64, size: u64) {
        if !matches!(self.next, Next::None) {
            return;
        }
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        let make = move || make(&*disk, &dir, number, size).map(|file| Prepared { number, size, file });
        if self.inline {
            self.settle(make());
        } else if let Ok(thread) = thread::Builder::new().name("segment-maker".to_owned()).spawn(make) {
            self.next = Next::Making(thread);
        }
    }

    /// Ok if space for a further segment is there, as far as known: it is ready, or being made after none has
    /// failed. After a failure this tries again, so it turns Ok by itself when space is back.
    pub(crate) fn spare(&mut self, number: u64, size: u64) -> Result<(), Error> {
        if matches!(&self.next, Next::Making(thread) if thread.is_finished()) {
            let made = self.finish();
            self.settle(made);
        }
        self.start(number, size);
        self.lack.clone().map_or(Ok(()), Err)
    }

    /// The segment that was being made, or a fresh one if that failed.
    pub(crate) fn take(&mut self, number: u64, size: u64) -> Result<Prepared, Error> {
        let made = self.finish().or_else(|_| {
            make(&*self.disk, &self.dir, number, size).map(|file| Prepared { number, size, file })
        });
        let made = made.map_err(|failure| self.failed(&failure));
        self.lack = made.as_ref().err().cloned();
        made
    }

    fn failed(&self, failure: &io::Error) -> Error {
        error("make a segment in", &self.dir, failure)
    }

    /// Waits for what is being made, and removes it: a closed store keeps no empty segment.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        match self.finish() {
            Ok(prepared) => {
                self.disk.remove(&path(&self.dir, prepared.number))?;
                sync_dir(&*self.disk, &self.dir)
            }
            Err(_) => Ok(()),
        }
    }

    fn settle(&mut self, made: io::Result<Prepared>) {
        self.lack = made.as_ref().err().map(|failure| self.failed(failure));
        self.next = made.map_or(Next::None, Next::Ready);
    }

    fn finish(&mut self) -> io::Result<Prepared> {
        match std::mem::replace(&mut self.next, Next::None) {
            Next::None => Err(io::ErrorKind::NotFound.into()),
            Next::Ready(prepared) => Ok(prepared),
            Next::Making(thread) => thread.join().unwrap_or(Err(io::ErrorKind::Other.into())),
        }
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        // No thread of ours may write to the directory after the lock is gone.
        let _ = self.finish();
    }
}
