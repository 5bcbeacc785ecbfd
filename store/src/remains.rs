//! What is left of a damaged journal: every whole frame, every bad place, and the runs that miss records.
//!
//! Owns the judgement which runs are whole. A frame counts if it is whole by itself, whatever became of its group. A run
//! is torn if its sequence has a hole, if a footer names a record of it that is gone, or if records are gone that
//! nothing names and it may have had one of them. It must never write, nor answer for a torn run.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::frame::{self, SALT};
use crate::fs::{Fs, RealFs, error};
use crate::journal::JOURNAL_DIR;
use crate::link::payload_hash;
use crate::piece::{Piece, pieces};
use crate::purge::REWRITTEN;
use crate::recover::read_segment;
use crate::rewrite::named;
use crate::salvage::{Hole, SALVAGED, holes};
use crate::segment;
use crate::verify::Finding;
use crate::{Error, Hash, Head, Record, RunKey, Seq, Stream, heads};

/// A damaged journal, as far as it can be read.
pub struct Remains {
    pub(crate) disk: Arc<dyn Fs>,
    pub(crate) dir: PathBuf,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) streams: BTreeMap<Stream, Thread>,
    places: Vec<Finding>,
    torn: BTreeMap<RunKey, Torn>,
    nameless: Option<u64>,
    pub(crate) own: Own,
}

/// What the store's own records say, as far as they are there.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) purged: BTreeSet<RunKey>,
    /// Rewritten segments: number, and hash of the file.
    pub(crate) rewritten: HashSet<(u64, Hash)>,
    /// What an earlier salvage found missing of own streams.
    pub(crate) holes: HashSet<Hole>,
    /// The largest epoch of any record.
    pub(crate) epoch: u64,
}

/// A run that misses records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The bad place.
    pub place: Finding,
    /// The last of its records before the first one that is missing; none if that is its first.
    pub last_good: Option<Seq>,
}

/// The whole records of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    places: Vec<Place>,
    pub(crate) head: Head,
    /// Position of the newest record.
    position: u64,
    pub(crate) first_segment: u64,
    pub(crate) last_segment: u64,
    is_ended: bool,
    /// Sequence numbers that are missing: from the first, to before the second.
    pub(crate) holes: Vec<(Seq, Seq)>,
    /// Where the record after the first hole stands.
    torn_at: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    segment: u64,
    offset: u64,
    carries_messages: bool,
}

impl Remains {
    /// Reads what is left of the journal in `DIR/journal`.
    pub fn read(dir: &Path) -> Result<Self, Error> {
        Self::read_on(Arc::new(RealFs), dir)
    }

    /// The same on a given disk.
    pub fn read_on(disk: Arc<dyn Fs>, dir: &Path) -> Result<Self, Error> {
        let dir = dir.join(JOURNAL_DIR);
        let pieces = pieces(&*disk, &dir)?;
        let (streams, torn) = (BTreeMap::new(), BTreeMap::new());
        let mut remains = Self {
            disk,
            dir,
            pieces,
            streams,
            places: Vec::new(),
            torn,
            nameless: None,
            own: Own::default(),
        };
        remains.thread()?;
        for piece in &remains.pieces {
            let path = segment::path(&remains.dir, piece.number);
            remains.places.extend(piece.bad.iter().map(|bad| Finding {
                segment: path.clone(),
                offset: bad.offset,
                record: bad.record,
                reason: bad.reason.clone(),
            }));
        }
        remains.tear();
        Ok(remains)
    }

    /// Every bad place, in the order of the journal.
    pub fn places(&self) -> &[Finding] {
        &self.places
    }

    /// The runs that miss records.
    pub fn torn(&self) -> &BTreeMap<RunKey, Torn> {
        &self.torn
    }

    /// Frames that are gone and that nothing names: all of a run may be among them. None if nobody knows how many.
    pub fn nameless(&self) -> Option<u64> {
        self.nameless
    }

    /// The newest whole record of each stream.
    pub fn heads(&self) -> impl Iterator<Item = (Stream, Head)> {
        self.streams.iter().map(|(stream, thread)| (*stream, thread.head))
    }

    /// Calls `visit` with the position of each whole frame and its record, in the order of writing.
    pub fn each(&self, mut visit: impl FnMut(u64, Record)) -> Result<(), Error> {
        self.each_frame(|_, position, _, frame| {
            if let Some(record) = frame.to_record() {
                visit(position, record);
            }
        })
    }

    /// The records of a stream from `from` on, at most `limit`, in order; damage if its run is torn.
    pub fn records(
        &self,
        stream: Stream,
        from: Seq,
        limit: usize,
        only_messages: bool,
    ) -> Result<Vec<Record>, Error> {
        stream.run().map_or(Ok(()), |run| self.admit(run))?;
        let Some(thread) = self.streams.get(&stream) else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for place in thread.places.iter().filter(|place| !only_messages || place.carries_messages) {
            if records.len() >= limit {
                break;
            }
            records.extend(self.record(*place)?.filter(|record| record.head.seq >= from));
        }
        Ok(records)
    }

    /// Damage, with its place, if the run is torn.
    pub fn admit(&self, run: RunKey) -> Result<(), Error> {
        let Some(Torn { place, last_good }) = self.torn.get(&run) else { return Ok(()) };
        let good = last_good.map_or("no record of it can be relied on".to_owned(), |seq| {
            format!("its records are whole up to {seq}")
        });
        Err(Error::Damaged {
            segment: place.segment.clone(),
            offset: place.offset,
            reason: format!("{}; records of this run are lost: {good}", place.reason),
        })
    }

    fn record(&self, place: Place) -> Result<Option<Record>, Error> {
        let path = segment::path(&self.dir, place.segment);
        let read = self
            .disk
            .open(&path, crate::fs::Mode::Read)
            .and_then(|file| segment::read_block(&*self.disk, &file, place.segment, place.offset));
        let content = read.map_err(|failure| error("read", &path, &failure))?;
        Ok(content.ok().and_then(|content| frame::frame(&content)?.to_record()))
    }

    /// Visits every whole frame: segment, position, offset and the frame.
    pub(crate) fn each_frame(
        &self,
        mut visit: impl FnMut(u64, u64, u64, &frame::Frame<'_>),
    ) -> Result<(), Error> {
        for piece in &self.pieces {
            let bytes = read_segment(&*self.disk, &self.dir, piece.number, piece.len)?;
            for (offset, position) in &piece.frames {
                let content = frame::block(&bytes, piece.number, *offset as usize).ok();
                if let Some(frame) = content.and_then(frame::frame) {
                    visit(piece.number, *position, *offset, &frame);
                }
            }
        }
        Ok(())
    }

    /// Follows the records of each stream.
    fn thread(&mut self) -> Result<(), Error> {
        let (mut streams, mut own): (BTreeMap<Stream, Thread>, _) = (BTreeMap::new(), Own::default());
        self.each_frame(|segment, position, offset, frame| {
            own.note(frame);
            let thread = streams.entry(frame.header.stream).or_insert_with(|| Thread::new(segment));
            thread.push(frame, segment, position, offset);
        })?;
        (self.streams, self.own) = (streams, own);
        Ok(())
    }

    /// The holes that nothing explains yet.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> {
        let is_purged = |stream: Stream| stream.run().is_some_and(|run| self.own.purged.contains(&run));
        let threads = self.streams.iter().filter(move |(stream, _)| !is_purged(**stream));
        let holes = threads.flat_map(|(stream, thread)| {
            thread.holes.iter().map(|(from, to)| Hole { stream: *stream, from: *from, to: *to })
        });
        holes.filter(|hole| !self.own.holes.contains(hole))
    }

    /// Finds the runs that miss records.
    fn tear(&mut self) {
        // Missing records that are known by name: a hole, or a footer says so.
        let mut named: BTreeSet<(Stream, Seq)> = BTreeSet::new();
        // Beside them, records that do not continue the one before them.
        let mut first = BTreeSet::new();
        for Hole { stream, from, to } in self.holes() {
            named.extend((from..to).map(|seq| (stream, seq)));
            first.insert((stream, from));
        }
        named.extend(self.pieces.iter().flat_map(|piece| piece.lost_by_name.iter().copied()));
        let mut torn: BTreeMap<RunKey, Torn> = BTreeMap::new();
        for (stream, seq) in first.union(&named) {
            let Some(run) = stream.run() else { continue };
            let place = self.place_of(*stream, *seq);
            let last_good = match stream {
                Stream::Run(_) => seq.checked_sub(1),
                Stream::Own(_) | Stream::Inbox(_) => {
                    self.streams.get(&Stream::Run(run)).and_then(Thread::last_good)
                }
            };
            torn.entry(run).or_insert(Torn { place, last_good });
        }
        let lost: Option<u64> = self.pieces.iter().map(|piece| piece.lost).sum();
        self.nameless = lost.map(|lost| lost.saturating_sub(named.len() as u64));
        if self.nameless != Some(0) {
            self.suspect(&mut torn);
        }
        torn.retain(|run, _| !self.own.purged.contains(run));
        self.torn = torn;
    }

    /// Something is gone that nothing names: it may be the newest record of any run that has not ended.
    fn suspect(&self, torn: &mut BTreeMap<RunKey, Torn>) {
        for piece in self.pieces.iter().filter(|piece| piece.blind_until > 0) {
            for (stream, thread) in self.streams.iter().filter(|(_, thread)| !thread.is_ended) {
                let Stream::Run(run) = stream else { continue };
                if thread.position < piece.blind_until {
                    let place = self.first_place(piece.number);
                    torn.entry(*run).or_insert(Torn { place, last_good: thread.last_good() });
                }
            }
        }
    }

    /// The bad place at which a record was lost, as far as known.
    fn place_of(&self, stream: Stream, seq: Seq) -> Finding {
        let by_name = self.pieces.iter().find(|piece| piece.lost_by_name.contains(&(stream, seq)));
        let by_name = by_name.map(|piece| self.first_place(piece.number));
        let after = self.streams.get(&stream).and_then(|thread| thread.torn_at);
        by_name.unwrap_or_else(|| {
            let (number, offset) = after.unwrap_or_default();
            // A bad place before the record that shows the hole.
            let path = segment::path(&self.dir, number);
            let before = self.places.iter().rfind(|place| (&place.segment, place.offset) < (&path, offset));
            before.cloned().unwrap_or_else(|| Finding {
                segment: path.clone(),
                offset,
                record: Some((stream, seq)),
                reason: "records are missing before it".to_owned(),
            })
        })
    }

    fn first_place(&self, number: u64) -> Finding {
        let path = segment::path(&self.dir, number);
        let found = self.places.iter().find(|place| place.segment == path).cloned();
        let reason = "records are missing".to_owned();
        found.unwrap_or(Finding { segment: path, offset: 0, record: None, reason })
    }
}

impl Thread {
    fn new(segment: u64) -> Self {
        Self {
            places: Vec::new(),
            head: Head { seq: 0, hash: Hash::default() },
            position: 0,
            first_segment: segment,
            last_segment: segment,
            is_ended: false,
            holes: Vec::new(),
            torn_at: None,
        }
    }

    fn push(&mut self, frame: &frame::Frame<'_>, segment: u64, position: u64, offset: u64) {
        let seq = frame.header.seq;
        let (expected, before) =
            if self.places.is_empty() { (0, Hash::default()) } else { (self.head.seq + 1, self.head.hash) };
        if seq != expected || frame.header.prev_hash != before {
            // One that stands where it should and continues another record leaves no number out.
            self.holes.push((expected.min(seq), seq));
            self.torn_at.get_or_insert((segment, offset));
        }
        let carries_messages = frame.header.kind.carries_messages;
        self.places.push(Place { segment, offset, carries_messages });
        (self.head, self.position, self.last_segment) = (Head { seq, hash: frame.hash }, position, segment);
        self.is_ended |= frame.header.kind.ends_stream;
    }

    /// The last record before the first hole.
    fn last_good(&self) -> Option<Seq> {
        self.holes.first().map_or(Some(self.head.seq), |(from, _)| from.checked_sub(1))
    }
}

impl Own {
    fn note(&mut self, frame: &frame::Frame<'_>) {
        self.epoch = self.epoch.max(frame.header.epoch);
        if frame.header.stream != Stream::Own(0) {
            return;
        }
        let puts = frame::decode_puts(frame.puts).unwrap_or_default();
        self.purged.extend(puts.iter().filter_map(heads::purged).filter_map(|(stream, _)| stream.run()));
        let payload = frame.payload.and_then(|payload| payload.get(SALT..)).unwrap_or_default();
        match frame.header.kind.code {
            REWRITTEN => self.rewritten.extend(named(payload)),
            SALVAGED => self.holes.extend(holes(payload)),
            _ => {}
        }
    }
}

/// The frame is what was hashed when it was written.
pub(crate) fn is_true(frame: &frame::Frame<'_>) -> bool {
    let payload = frame.payload.map(|payload| payload.split_at_checked(SALT));
    let is_payload = match payload {
        Some(Some((salt, payload))) => payload_hash(salt, payload) == frame.header.payload_hash,
        Some(None) => false,
        None => true,
    };
    is_payload
        && frame::hash(frame.puts) == frame.header.puts_hash
        && frame::decode_puts(frame.puts).is_some()
}
