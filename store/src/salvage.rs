//! Saves what is left of a damaged journal.
//!
//! Owns the order of the steps, each of which may be the last before a crash; salvage is then done again, from what the
//! disk holds:
//!
//! 1. Files are made beside that are to take the place of the damaged ones: every whole frame in its order, but for those
//!    of runs that miss records. Of a segment that only lacks its footer, the same bytes and the footer.
//! 2. The damaged files are copied to `NNNNNNNN.seg.damaged`, which is no name of the journal's.
//! 3. sled's state is no longer trusted, so the next open builds it from what is left.
//! 4. A new segment goes on where the journal ends, in a newer epoch. Its records purge the torn runs, put again what
//!    dropped frames had put and still holds, name what is missing of the store's own streams, and name the new files.
//! 5. The new files take the names of the damaged ones.
//!
//! It must never run beside a writer, nor drop a whole frame of a run that is not torn.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::Cursor;
use crate::frame::{
    self, Frame, GROUP_BLOCK, GroupHead, HEAD_BLOCK, Header, Point, Rewritten, SALT, SegmentHead,
};
use crate::fs::{Depth, Fs, Handle, Mode, RealFs, error, sync_dir, write_all_at};
use crate::heads::{self, StreamHead};
use crate::index::{Growing, Place};
use crate::keys::{is_reserved, run_prefix};
use crate::limits::GROUP_BYTES_MAX;
use crate::link::payload_hash;
use crate::lock::Lock;
use crate::piece::{Health, Piece, footer_of};
use crate::purge::REWRITTEN;
use crate::random::{RANDOM, Salts};
use crate::recover::read_segment;
use crate::remains::Remains;
use crate::rewrite::Copy;
use crate::state::State;
use crate::{Error, Hash, Head, Put, RecordKind, RunKey, Seq, Stream, Torn, segment};

/// Code of the records of a salvage, on `Stream::Own(0)`. The payload names what is missing of the store's own streams.
pub const SALVAGED: u8 = 6;

/// Records of a stream that are missing: from one sequence number to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hole {
    pub(crate) stream: Stream,
    pub(crate) from: Seq,
    pub(crate) to: Seq,
}

/// The holes that the payload of a salvage's record names.
pub(crate) fn holes(payload: &[u8]) -> Vec<Hole> {
    let mut cursor = Cursor(payload);
    let mut hole = || Some(Hole { stream: cursor.stream()?, from: cursor.u64()?, to: cursor.u64()? });
    std::iter::from_fn(&mut hole).collect()
}

/// The same of any frame.
pub(crate) fn holes_of(frame: &Frame<'_>) -> Vec<Hole> {
    let is_salvage = frame.header.stream == Stream::Own(0) && frame.header.kind.code == SALVAGED;
    let payload = frame.payload.and_then(|payload| payload.get(SALT..)).filter(|_| is_salvage);
    payload.map(holes).unwrap_or_default()
}

/// What a salvage did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The segments that were mended, in order.
    pub segments: Vec<Mended>,
    /// The runs that miss records; they are purged.
    pub torn: BTreeMap<RunKey, Torn>,
    /// Runs that are whole.
    pub whole: u64,
}

/// A segment that was mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Its file.
    pub segment: PathBuf,
    /// Frames that were kept.
    pub frames: u64,
    /// Where its damaged bytes are; none if there were none.
    pub damaged: Option<PathBuf>,
}

/// Mends the journal in `DIR/journal`. `bury` answers what else is to be put when the torn runs are purged. With nothing
/// to mend, nothing is done. Refused while a writer is at work.
pub fn salvage(
    dir: &Path,
    at_ms: i64,
    bury: &dyn Fn(&Remains) -> Result<Vec<Put>, Error>,
) -> Result<Salvaged, Error> {
    salvage_on(Arc::new(RealFs), dir, at_ms, bury)
}

/// The same on a given disk.
pub fn salvage_on(
    disk: Arc<dyn Fs>,
    dir: &Path,
    at_ms: i64,
    bury: &dyn Fn(&Remains) -> Result<Vec<Put>, Error>,
) -> Result<Salvaged, Error> {
    let _lock = Lock::take(dir, Duration::ZERO)?;
    let remains = Remains::read_on(Arc::clone(&disk), dir)?;
    let unnamed = remains.unnamed()?;
    let Some(end) = remains.pieces.last().map(|piece| piece.end) else { return Ok(Salvaged::default()) };
    if !remains.is_damaged() && unnamed.is_empty() {
        return Ok(Salvaged { whole: remains.whole(), ..Salvaged::default() });
    }
    let mut surgery =
        Surgery { disk: &*disk, remains: &remains, records: Vec::new(), at_ms, salts: salts()? };
    let dropped: HashSet<RunKey> = remains.torn().keys().chain(&remains.own.purged).copied().collect();
    surgery.forget(&dropped, bury(&remains)?)?;
    let checkpoint = end.position + surgery.records.len() as u64;
    let (mended, renames) = surgery.copy(&dropped, checkpoint, unnamed)?;
    State::distrust(Arc::clone(&disk), dir)?;
    surgery.go_on(&end)?;
    let journal = &remains.dir;
    for (from, to) in &renames {
        disk.rename(from, to).map_err(|failure| error("replace", to, &failure))?;
    }
    sync_dir(&*disk, journal).map_err(|failure| error("sync", journal, &failure))?;
    Ok(Salvaged { segments: mended, torn: remains.torn().clone(), whole: remains.whole() })
}

fn salts() -> Result<Salts, Error> {
    Salts::new().map_err(|failure| error("read", Path::new(RANDOM), &failure))
}

impl Remains {
    /// Something is to be mended.
    pub fn is_damaged(&self) -> bool {
        let is_bad = |piece: &Piece| !piece.bad.is_empty();
        !self.torn().is_empty() || self.pieces.iter().any(is_bad) || self.holes().next().is_some()
    }

    /// Frames from the first to the last that is there, those that miss among them.
    pub fn frames(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.end.position)
    }

    /// Runs that are whole.
    pub fn whole(&self) -> u64 {
        let runs = self.streams.keys().filter_map(|stream| match stream {
            Stream::Run(run) => Some(run),
            Stream::Own(_) | Stream::Inbox(_) => None,
        });
        let gone = |run: &&RunKey| !self.torn().contains_key(*run) && !self.own.purged.contains(*run);
        runs.filter(gone).count() as u64
    }

    /// Segments that were rewritten, whose records are gone: number, and hash of the file.
    fn unnamed(&self) -> Result<Vec<(u64, Hash)>, Error> {
        let rewritten = |piece: &&Piece| piece.health == Health::Whole && piece.rewritten.is_some();
        let mut unnamed = Vec::new();
        for piece in self.pieces.iter().filter(rewritten) {
            let hash = frame::hash(&read_segment(&*self.disk, &self.dir, piece.number, piece.len)?);
            if !self.own.rewritten.contains(&(piece.number, hash)) {
                unnamed.push((piece.number, hash));
            }
        }
        Ok(unnamed)
    }
}

/// A record that is to be written.
struct Note {
    code: u8,
    payload: Vec<u8>,
    puts: Vec<Put>,
}

/// A salvage under way.
struct Surgery<'a> {
    disk: &'a dyn Fs,
    remains: &'a Remains,
    records: Vec<Note>,
    at_ms: i64,
    salts: Salts,
}

/// Files, and the names that they are to take.
type Renames = Vec<(PathBuf, PathBuf)>;

impl Surgery<'_> {
    /// The records that purge the torn runs, put again what dropped frames had put, and name what else is missing.
    fn forget(&mut self, dropped: &HashSet<RunKey>, bury: Vec<Put>) -> Result<(), Error> {
        let remains = self.remains;
        let damaged: HashSet<u64> = remains.damaged().map(|piece| piece.number).collect();
        let mut values: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
        let (mut again, mut to_rewrite) = (BTreeSet::new(), BTreeSet::new());
        remains.each_frame(|number, _, _, frame| {
            let run = frame.header.stream.run().filter(|run| dropped.contains(run));
            if run.is_some() && !damaged.contains(&number) {
                to_rewrite.insert(number);
            }
            let puts = frame::decode_puts(frame.puts).unwrap_or_default();
            for Put { key, value } in puts.into_iter().filter(|put| !is_reserved(&put.key)) {
                if run.is_some_and(|run| damaged.contains(&number) && !key.starts_with(&run_prefix(run))) {
                    again.insert(key.clone());
                }
                values.insert(key, value);
            }
        })?;
        let mut puts: Vec<Put> = Vec::new();
        puts.extend(again.into_iter().map(|key| Put { value: values.get(&key).cloned().flatten(), key }));
        for run in remains.torn().keys() {
            let prefix = run_prefix(*run);
            let own = values.iter().filter(|(key, value)| key.starts_with(&prefix) && value.is_some());
            let mut own: Vec<Put> = own.map(|(key, _)| Put { key: key.clone(), value: None }).collect();
            own.sort_unstable_by(|left, right| left.key.cmp(&right.key));
            puts.extend(own);
            puts.push(remains.tomb(*run).to_put(Stream::Run(*run)));
            puts.push(Put { key: heads::key(Stream::Inbox(*run)), value: None });
        }
        puts.extend(bury);
        puts.extend(
            to_rewrite.into_iter().map(|number| Put { key: heads::to_rewrite(number), value: Some(vec![]) }),
        );
        let mut payload = Vec::new();
        for Hole { stream, from, to } in remains.holes().filter(|hole| hole.stream.run().is_none()) {
            payload.extend_from_slice(&frame::stream_bytes(stream));
            payload.extend_from_slice(&from.to_le_bytes());
            payload.extend_from_slice(&to.to_le_bytes());
        }
        self.note_in_slices(payload, puts);
        Ok(())
    }

    fn note_in_slices(&mut self, payload: Vec<u8>, puts: Vec<Put>) {
        let mut note = Note { code: SALVAGED, payload, puts: Vec::new() };
        let mut bytes = 0;
        for put in puts {
            bytes += put.key.len() + put.value.as_ref().map_or(0, Vec::len);
            note.puts.push(put);
            if bytes >= GROUP_BYTES_MAX {
                let next = Note { code: SALVAGED, payload: Vec::new(), puts: Vec::new() };
                self.records.push(std::mem::replace(&mut note, next));
                bytes = 0;
            }
        }
        self.records.push(note);
    }

    /// Makes the new files beside, keeps the damaged ones, and notes the records that name the new ones.
    fn copy(
        &mut self,
        dropped: &HashSet<RunKey>,
        checkpoint: u64,
        unnamed: Vec<(u64, Hash)>,
    ) -> Result<(Vec<Mended>, Renames), Error> {
        let (mut mended, mut renames, mut names) = (Vec::new(), Vec::new(), unnamed);
        for piece in &self.remains.pieces {
            let dir = &self.remains.dir;
            let (beside, path) = (segment::beside(dir, piece.number), segment::path(dir, piece.number));
            let bytes = read_segment(self.disk, dir, piece.number, piece.len)?;
            let made = match piece.health {
                Health::Whole => continue,
                Health::Footless => self.with_footer(piece, &bytes, &beside),
                Health::Damaged => self.without(piece, &bytes, dropped, checkpoint, &beside),
            };
            let (frames, hash) = made.map_err(|failure| error("write", &beside, &failure))?;
            let is_rewritten = piece.rewritten.is_some() || piece.health == Health::Damaged;
            names.extend(is_rewritten.then_some((piece.number, hash)));
            let damaged = self.keep(&path, &bytes)?;
            mended.push(Mended { segment: path.clone(), frames, damaged });
            renames.push((beside, path));
        }
        for (number, hash) in names.into_iter().filter(|name| !self.remains.own.rewritten.contains(name)) {
            let payload = [number.to_le_bytes().as_slice(), &hash.0].concat();
            self.records.push(Note { code: REWRITTEN, payload, puts: Vec::new() });
        }
        Ok((mended, renames))
    }

    fn with_footer(&self, piece: &Piece, bytes: &[u8], beside: &Path) -> std::io::Result<(u64, Hash)> {
        let mut whole = bytes.get(..piece.frames_end as usize).unwrap_or(bytes).to_vec();
        whole.extend(footer_of(bytes, piece.number, &piece.frames, &piece.end, piece.frames_end));
        write_file(self.disk, beside, &whole)?;
        Ok((piece.frames.len() as u64, frame::hash(&whole)))
    }

    fn without(
        &self,
        piece: &Piece,
        bytes: &[u8],
        dropped: &HashSet<RunKey>,
        checkpoint: u64,
        beside: &Path,
    ) -> std::io::Result<(u64, Hash)> {
        let head =
            frame::rewritten_head(piece.number, &piece.from, &Rewritten { end: piece.end, checkpoint });
        let mut copy = Copy::begin(self.disk, beside, piece.number, head)?;
        let mut frames = 0;
        for (offset, position) in &piece.frames {
            let content = frame::block(bytes, piece.number, *offset as usize).ok();
            let Some(frame) = content.and_then(frame::frame) else { continue };
            if !frame.header.stream.run().is_some_and(|run| dropped.contains(&run)) {
                copy.keep(*position, &frame);
                frames += 1;
            }
        }
        Ok((frames, copy.finish(&piece.end)?.0.hash))
    }

    /// Copies damaged bytes to a name that is free, or that holds the same ones.
    fn keep(&self, path: &Path, bytes: &[u8]) -> Result<Option<PathBuf>, Error> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let name = |count: u32| match count {
            0 => PathBuf::from(format!("{}.damaged", path.display())),
            _ => PathBuf::from(format!("{}.damaged.{count}", path.display())),
        };
        for count in 0.. {
            let kept = name(count);
            match self.disk.open(&kept, Mode::Read) {
                Ok(file) => {
                    let held = crate::fs::read_up_to(self.disk, &file, 0, bytes.len() + 1);
                    if held.map_err(|failure| error("read", &kept, &failure))? == bytes {
                        return Ok(Some(kept));
                    }
                }
                Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => {
                    let part = PathBuf::from(format!("{}.part", kept.display()));
                    let written = write_file(self.disk, &part, bytes);
                    let written = written.and_then(|()| self.disk.rename(&part, &kept));
                    written.map_err(|failure| error("write", &kept, &failure))?;
                    return Ok(Some(kept));
                }
                Err(failure) => return Err(error("open", &kept, &failure)),
            }
        }
        Ok(None)
    }

    /// Writes the records to a segment of their own, behind `end`.
    fn go_on(&mut self, end: &Point) -> Result<(), Error> {
        let dir = &self.remains.dir;
        let listed = self.disk.list(dir).map_err(|failure| error("list", dir, &failure))?;
        let number = listed.iter().filter_map(|(name, _)| segment::number(name)).chain([end.segment]).max();
        let number = number.unwrap_or(0) + 1;
        let bytes = self.tail(number, end);
        let (beside, path) = (segment::beside(dir, number), segment::path(dir, number));
        write_file(self.disk, &beside, &bytes)
            .and_then(|()| self.disk.rename(&beside, &path))
            .and_then(|()| sync_dir(self.disk, dir))
            .map_err(|failure| error("write", &path, &failure))
    }

    /// The bytes of that segment: one group, and the footer.
    fn tail(&self, number: u64, end: &Point) -> Vec<u8> {
        let epoch = self.remains.own.epoch.max(end.epoch) + 1;
        let mut head = self.remains.streams.get(&Stream::Own(0)).map(|thread| thread.head);
        let mut bytes = vec![0; HEAD_BLOCK + GROUP_BLOCK];
        let (mut hashes, mut index) = (Vec::new(), Growing::default());
        for Note { code, payload, puts } in &self.records {
            let (salt, at) = (self.salts.next(), bytes.len());
            let mut encoded = Vec::new();
            puts.iter().for_each(|put| frame::put_put(&mut encoded, put));
            let seq = head.map_or(0, |head| head.seq + 1);
            let header = Header {
                logic_version: 0,
                stream: Stream::Own(0),
                seq,
                epoch,
                at_ms: self.at_ms,
                kind: RecordKind { code: *code, carries_messages: false, ends_stream: false },
                prev_hash: head.map(|head| head.hash).unwrap_or_default(),
                payload_hash: payload_hash(&salt, payload),
                puts_hash: frame::hash(&encoded),
                state_hash: Hash::default(),
            };
            let hash = frame::put_frame(&mut bytes, &header, (&salt, payload), &encoded);
            frame::set_barrier(&mut bytes, at);
            let len = bytes.len();
            frame::close(&mut bytes, at, len, number, at as u64);
            head = Some(Head { seq, hash });
            hashes.push(hash);
            index.push(Stream::Own(0), seq, Place::new(at as u32, false));
        }
        let len = bytes.len();
        let group = GroupHead {
            number: end.group,
            prev_hash: end.hash,
            position: end.position,
            epoch,
            durable: (end.segment, end.offset),
            frames: hashes.len() as u32,
            bytes: (len - HEAD_BLOCK - GROUP_BLOCK) as u32,
        };
        let place = &mut bytes[HEAD_BLOCK..HEAD_BLOCK + GROUP_BLOCK];
        frame::write_group(place, &group, number, HEAD_BLOCK as u64);
        let hash = frame::GroupHash::new(&place[frame::ENVELOPE..]).over(hashes.iter());
        let position = end.position + hashes.len() as u64;
        let end_here =
            Point { segment: number, offset: len as u64, position, group: end.group + 1, hash, epoch };
        let head = SegmentHead { segment: number, size: len as u64, from: *end, rewritten: None };
        frame::write_head(&mut bytes, &head);
        bytes.extend(index.to_index().to_footer(&end_here));
        bytes
    }
}

impl Remains {
    /// The segments whose frames are rewritten.
    fn damaged(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.health == Health::Damaged)
    }

    /// What stays known of a torn run.
    fn tomb(&self, run: RunKey) -> StreamHead {
        let known = self.streams.get(&Stream::Run(run));
        StreamHead {
            head: known.map_or(Head { seq: 0, hash: Hash::default() }, |thread| thread.head),
            first_segment: known.map_or(0, |thread| thread.first_segment),
            last_segment: known.map_or(0, |thread| thread.last_segment),
            is_ended: true,
            is_purged: true,
        }
    }
}

fn write_file(disk: &dyn Fs, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file: Handle = disk.open(path, Mode::Create)?;
    write_all_at(disk, &file, 0, bytes)?;
    disk.sync(&file, Depth::All)
}
