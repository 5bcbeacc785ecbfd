//! Keeps the output of a command: the whole of it up to a limit, and beyond that its end.
//!
//! Owns the two files of the output. It must never hold output in memory, and never stop the reader: what cannot be
//! kept is counted and dropped.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::spec::{Exit, OUTPUT, Spec, TAIL};

/// The output of one command, being written.
pub(super) struct Spool {
    output: File,
    output_bytes_max: u64,
    tail: Option<File>,
    tail_bytes_max: u64,
    /// Bytes that the command wrote.
    pub(super) written: u64,
    /// Bytes in the spool.
    pub(super) spooled: u64,
    /// The disk refused: nothing more is kept.
    is_broken: bool,
}

impl Spool {
    /// Makes the file in the directory of the call.
    pub(super) fn create(spec: &Spec) -> io::Result<Self> {
        let output = File::options().write(true).create_new(true).mode(0o600).open(OUTPUT)?;
        Ok(Self {
            output,
            output_bytes_max: spec.output_spool_bytes_max,
            tail: None,
            tail_bytes_max: spec.tail_bytes_max,
            written: 0,
            spooled: 0,
            is_broken: false,
        })
    }

    /// Keeps what it may of the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let from = self.written;
        self.written = self.written.saturating_add(bytes.len() as u64);
        if !self.is_broken && self.keep(from, bytes).is_err() {
            self.is_broken = true;
        }
    }

    fn keep(&mut self, from: u64, bytes: &[u8]) -> io::Result<()> {
        let room = self.output_bytes_max.saturating_sub(from);
        let (spooled, rest) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        if !spooled.is_empty() {
            // A short write keeps what it could: the count follows the file.
            let done = write_as_much(&mut self.output, spooled);
            self.spooled = self.spooled.saturating_add(done as u64);
            if done < spooled.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.keep_tail((from + spooled.len() as u64).saturating_sub(self.output_bytes_max), rest)
    }

    /// `at` is the position beyond the spool.
    fn keep_tail(&mut self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() || self.tail_bytes_max == 0 {
            return Ok(());
        }
        let tail = match &mut self.tail {
            Some(tail) => tail,
            None => self.tail.insert(File::options().write(true).create_new(true).mode(0o600).open(TAIL)?),
        };
        while !bytes.is_empty() {
            let offset = at % self.tail_bytes_max;
            let room = usize::try_from(self.tail_bytes_max - offset).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            tail.write_all_at(now, offset)?;
            at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Bytes of the ring; 0 if there is none that can be read.
    pub(super) fn ring_bytes(&self) -> u64 {
        if self.tail.is_some() && !self.is_broken { self.tail_bytes_max } else { 0 }
    }

    /// Once this returns, what was kept survives power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.output.sync_all()?;
        self.tail.as_ref().map_or(Ok(()), File::sync_all)
    }
}

fn write_as_much(file: &mut File, bytes: &[u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// The beginning and the end of an output.
pub(crate) struct Ends {
    /// The first bytes.
    pub(crate) head: Vec<u8>,
    /// The last bytes, after those of the head.
    pub(crate) tail: Vec<u8>,
    /// Bytes between the two.
    pub(crate) cut: u64,
}

/// Reads at most `bytes_max` bytes of an output that has ended: all of it, or its head and its tail, with room for a note
/// between the two.
pub(crate) fn read_ends(dir: &Path, exit: &Exit, bytes_max: u64, note_bytes_max: u64) -> io::Result<Ends> {
    let mut output = File::open(dir.join(OUTPUT))?;
    let is_whole = exit.spooled_bytes == exit.output_bytes;
    if is_whole && exit.output_bytes <= bytes_max {
        return Ok(Ends { head: read_at(&mut output, 0, exit.output_bytes)?, tail: Vec::new(), cut: 0 });
    }
    let bytes_max = bytes_max.saturating_sub(note_bytes_max);
    let head_bytes = exit.spooled_bytes.min(bytes_max / 2);
    let head = read_at(&mut output, 0, head_bytes)?;
    let beyond = exit.output_bytes - exit.spooled_bytes;
    let tail_bytes_max = bytes_max - bytes_max / 2;
    let mut tail = Vec::new();
    let in_ring = beyond.min(exit.tail_bytes_max);
    // What the ring does not fill comes from the end of the spool, if nothing lies between the two.
    if in_ring == beyond {
        let bytes = (exit.spooled_bytes - head_bytes).min(tail_bytes_max.saturating_sub(in_ring));
        tail = read_at(&mut output, exit.spooled_bytes - bytes, bytes)?;
    }
    if in_ring > 0 {
        tail.extend(read_ring(dir, exit, beyond)?);
        // A ring is a little larger than what fits beside the note.
        let surplus = (tail.len() as u64).saturating_sub(tail_bytes_max);
        tail.drain(..usize::try_from(surplus).unwrap_or(usize::MAX).min(tail.len()));
    }
    let cut = exit.output_bytes.saturating_sub((head.len() + tail.len()) as u64);
    Ok(Ends { head, tail, cut })
}

/// The newest of the bytes beyond the spool, in order.
fn read_ring(dir: &Path, exit: &Exit, beyond: u64) -> io::Result<Vec<u8>> {
    let mut ring = File::open(dir.join(TAIL))?;
    if beyond < exit.tail_bytes_max {
        return read_at(&mut ring, 0, beyond);
    }
    let oldest = beyond % exit.tail_bytes_max;
    let mut bytes = read_at(&mut ring, oldest, exit.tail_bytes_max - oldest)?;
    bytes.extend(read_at(&mut ring, 0, oldest)?);
    Ok(bytes)
}

/// The last bytes of an output that is being written, as far as it is in the spool, and how long it is.
pub(crate) fn read_live(dir: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut output = File::open(dir.join(OUTPUT))?;
    let length = output.metadata()?.len();
    let bytes = length.min(bytes_max);
    Ok((read_at(&mut output, length - bytes, bytes)?, length))
}

fn read_at(file: &mut File, from: u64, bytes: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(from))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}
