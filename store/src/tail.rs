//! The end of the journal: where the next group goes, what is written, and what is durable.
//!
//! Owns the open segment. Only it writes to the journal while the store is open. It judges no commit: what it
//! is given is linked already. After any failed write or sync the segment is given up at its last
//! acknowledged offset, because its pages may say one thing and the disk another; the next segment's head
//! says where the old one ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::catalog::Catalog;
use crate::frame::{self, GROUP_BLOCK, GroupHash, GroupHead, HEAD_BLOCK, Header, Point, SALT, SegmentHead};
use crate::fs::{Depth, Fs, Handle, error, write_all_at};
use crate::index::Place;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::segment::{self, Preparer};
use crate::{Error, Hash};

/// Room before a draft's first frame: every group has a head of its own, the first of a segment that one's
/// too.
const FRONT: usize = HEAD_BLOCK + GROUP_BLOCK;

/// What was written since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) barriers: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) frames: AtomicU64,
}

/// A group in the making: linked frames, not yet placed.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    frames: Vec<Drafted>,
}

#[derive(Debug)]
struct Drafted {
    /// In `bytes`.
    at: usize,
    header: Header,
    hash: Hash,
}

impl Draft {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; FRONT], frames: Vec::new() }
    }

    /// Appends a frame and returns its record's hash.
    pub(crate) fn push(&mut self, header: Header, payload: (&[u8; SALT], &[u8]), puts: &[u8]) -> Hash {
        let at = self.bytes.len();
        let hash = frame::put_frame(&mut self.bytes, &header, payload, puts);
        self.frames.push(Drafted { at, header, hash });
        hash
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(FRONT);
        self.frames.clear();
    }
}

/// The end of the journal.
pub(crate) struct Tail {
    disk: Arc<dyn Fs>,
    catalog: Arc<Catalog>,
    counters: Arc<Counters>,
    preparer: Preparer,
    open: Option<Open>,
    /// The newest segment number in use.
    last: u64,
    /// Size of the next segment to make.
    next_size: u64,
    /// Everything before it is durable.
    acked: Point,
    /// Everything before it is written.
    written: Point,
}

struct Open {
    file: Handle,
    number: u64,
    size: u64,
}

impl Tail {
    /// Goes on after `end`, in a new segment of `first_bytes`.
    pub(crate) fn new(
        disk: Arc<dyn Fs>,
        preparer: Preparer,
        catalog: Arc<Catalog>,
        counters: Arc<Counters>,
        first_bytes: u64,
        end: Point,
    ) -> Self {
        Self {
            disk,
            catalog,
            counters,
            preparer,
            open: None,
            last: end.segment,
            next_size: first_bytes,
            acked: end,
            written: end,
        }
    }

    pub(crate) fn acked(&self) -> &Point {
        &self.acked
    }

    pub(crate) fn written(&self) -> &Point {
        &self.written
    }

    /// Ok if a further segment is there, or will be as far as known: new runs may start.
    pub(crate) fn spare(&mut self) -> Result<(), Error> {
        self.preparer.spare(self.last + 1, self.next_size)
    }

    /// The segment that a group with frames of `bytes` goes to; a full one is sealed first, with all that was
    /// written to it durable.
    pub(crate) fn make_room(&mut self, bytes: usize) -> Result<u64, Error> {
        if let Some(open) = &self.open {
            // A fresh segment takes any group, if need be past the space made for it.
            let is_fresh = self.written.segment != open.number;
            if is_fresh || self.written.offset + (GROUP_BLOCK + bytes) as u64 <= open.size {
                return Ok(open.number);
            }
            self.seal()?;
        }
        let prepared = self.preparer.take(self.last + 1, self.next_size)?;
        self.last = prepared.number;
        self.next_size = (prepared.size * 2).min(SEGMENT_BYTES_MAX);
        self.open = Some(Open { file: prepared.file, number: prepared.number, size: prepared.size });
        self.preparer.start(self.last + 1, self.next_size);
        Ok(self.last)
    }

    /// Writes a group to the segment that `make_room` answered. It is not durable yet.
    pub(crate) fn write(&mut self, draft: &mut Draft, epoch: u64, barrier: bool) -> Result<(), Error> {
        let Some(open) = &self.open else { return Err(Error::Closed) };
        let is_fresh = self.written.segment != open.number;
        let (skip, start) = if is_fresh { (0, 0) } else { (HEAD_BLOCK, self.written.offset) };
        let offset_of = |at: usize| start + (at - skip) as u64;
        if is_fresh {
            let head =
                SegmentHead { segment: open.number, size: open.size, from: self.written, rewritten: None };
            frame::write_head(&mut draft.bytes, &head);
        }
        let end = draft.bytes.len();
        let ends = draft.frames.iter().skip(1).map(|frame| frame.at).chain([end]);
        for (frame, end) in draft.frames.iter().zip(ends) {
            if barrier {
                frame::set_barrier(&mut draft.bytes, frame.at);
            }
            frame::close(&mut draft.bytes, frame.at, end, open.number, offset_of(frame.at));
        }
        let head = GroupHead {
            number: self.written.group,
            prev_hash: self.written.hash,
            position: self.written.position,
            epoch,
            durable: (self.acked.segment, self.acked.offset),
            frames: draft.frames.len() as u32,
            bytes: (end - FRONT) as u32,
        };
        let place = &mut draft.bytes[HEAD_BLOCK..FRONT];
        frame::write_group(place, &head, open.number, offset_of(HEAD_BLOCK));
        let hash =
            GroupHash::new(&place[frame::ENVELOPE..]).over(draft.frames.iter().map(|frame| &frame.hash));
        write_all_at(&*self.disk, &open.file, start, &draft.bytes[skip..])
            .map_err(|failure| error("write", &open.file.path, &failure))?;
        self.written = Point {
            segment: open.number,
            offset: offset_of(end),
            position: self.written.position + draft.frames.len() as u64,
            group: self.written.group + 1,
            hash,
            epoch,
        };
        let records = draft.frames.iter().map(|frame| {
            let place = Place::new(offset_of(frame.at) as u32, frame.header.kind.carries_messages);
            (frame.header.stream, frame.header.seq, place)
        });
        self.catalog.extend(open.number, records);
        self.counters.groups.fetch_add(1, Ordering::Relaxed);
        self.counters.frames.fetch_add(draft.frames.len() as u64, Ordering::Relaxed);
        self.counters.bytes.fetch_add((end - skip) as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The barrier: once it returns, everything written survives power loss.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.as_ref().filter(|_| self.acked != self.written) else { return Ok(()) };
        self.counters.barriers.fetch_add(1, Ordering::Relaxed);
        self.disk
            .sync(&open.file, Depth::Data)
            .map_err(|failure| error("sync", &open.file.path, &failure))?;
        self.acknowledge();
        Ok(())
    }

    /// Takes back everything that is not durable, and never touches the segment again. Answers whether one
    /// was open.
    pub(crate) fn give_up(&mut self) -> bool {
        let Some(open) = self.open.take() else { return false };
        let is_used = self.acked.segment == open.number;
        if self.written.segment == open.number {
            self.catalog.give_up(if is_used { self.acked.offset } else { 0 });
        }
        // So that a kill finds nothing of what was refused, and the space is free. Should either fail or be
        // undone by a power cut, the next segment still does not continue from there.
        if is_used {
            let _ = self.disk.set_len(&open.file, self.acked.offset);
        } else {
            self.next_size = open.size;
            let _ = self.disk.remove(&open.file.path);
        }
        self.written = self.acked;
        true
    }

    /// Seals the open segment: everything written is durable, and the file ends with its footer.
    pub(crate) fn seal(&mut self) -> Result<(), Error> {
        self.sync()?;
        let Some(open) = self.open.take() else { return Ok(()) };
        if self.written.segment != open.number {
            return Ok(());
        }
        let Some(index) = self.catalog.growing() else { return Ok(()) };
        match segment::seal(&*self.disk, &open.file, &self.acked, &index) {
            Ok(()) => self.catalog.seal(index, self.acked.offset),
            Err(failure) => {
                // Its groups are durable, only the footer may not be: the next open writes it again.
                tracing::warn!(segment = open.number, %failure, "a segment is left without its footer");
                self.catalog.give_up(self.acked.offset);
            }
        }
        Ok(())
    }

    /// Seals the open segment and removes the one that was kept ready.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        self.seal()?;
        self.preparer
            .discard()
            .map_err(|failure| error("remove the spare segment of", self.preparer.dir(), &failure))
    }

    fn acknowledge(&mut self) {
        self.acked = self.written;
        self.catalog.set_durable(self.acked.offset);
    }
}
