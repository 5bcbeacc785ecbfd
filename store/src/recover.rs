//! What an open finds in the journal, and what it does about it.
//!
//! `survey` only reads: it tells a torn tail (bytes that no barrier ever covered) from damage (bytes that one
//! did). `repair` makes the accepted part durable before anything is answered, and seals what the last writer
//! left open. Nothing is ever appended to a segment that this process did not make.
//!
//! A bad place is damage if a whole group behind it, in the same segment or a later one, names a durable
//! offset past it, or if a later segment continues from past it. Otherwise everything from there on is cut,
//! whole frames too: no barrier covered them, so nobody was told that they exist.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::bytes::is_zero;
use crate::frame::{Bad, FORMAT, Point, SegmentHead, next_group};
use crate::fs::{Depth, Fs, Handle, Mode, error, read_up_to, sync_dir};
use crate::index::{Growing, Index};
use crate::scan::{Broken, Stop, Walked, walk, was_durable};
use crate::segment;

/// Why nothing is read where something must be.
pub(crate) const MISSING: &str = "records are missing";
/// Why a footer is not relied on.
pub(crate) const WRONG_FOOTER: &str = "the footer does not say where the records are";

/// The accepted journal.
#[derive(Debug)]
pub(crate) struct Survey {
    /// The segments that hold groups, in order.
    pub(crate) segments: Vec<Found>,
    /// Where the journal ends.
    pub(crate) tail: Point,
    /// Files that hold nothing accepted, highest number first.
    pub(crate) leftovers: Vec<PathBuf>,
    /// Where the tail was cut, and why, if something other than zeros stood there.
    pub(crate) cut: Option<Cut>,
}

/// A segment of the accepted journal.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) number: u64,
    /// Where it begins, as a place to read its first group from.
    pub(crate) start: Point,
    /// Further places to read from, if it was walked.
    pub(crate) marks: Vec<Point>,
    /// Where the next segment continues from.
    pub(crate) end: Point,
    /// Where its groups end in the file: at `end`, unless it was rewritten.
    pub(crate) bytes: u64,
    /// Frames were dropped from it.
    pub(crate) is_rewritten: bool,
    /// Its index if it has no footer of its own.
    pub(crate) unsealed: Option<Index>,
}

/// A torn tail: what stands there was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment file.
    pub segment: PathBuf,
    /// Offset from which on everything is cut.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
}

/// Reads what is there, without writing.
///
/// A writer may append while this reads: it may see a later group and not yet the one before, which looks
/// like damage. Damage stays where it is, a moving tail does not, so only what is found in the same place
/// twice is reported.
pub(crate) fn survey(disk: &dyn Fs, dir: &Path) -> Result<Survey, Error> {
    let mut before = None;
    loop {
        match look(disk, dir) {
            Err(Error::Damaged { segment, offset, reason }) => {
                let place = Some((segment.clone(), offset));
                if before == place {
                    return Err(Error::Damaged { segment, offset, reason });
                }
                before = place;
            }
            other => return other,
        }
    }
}

fn look(disk: &dyn Fs, dir: &Path) -> Result<Survey, Error> {
    let mut files = BTreeMap::new();
    let mut leftovers = Vec::new();
    for (name, len) in disk.list(dir).map_err(|failure| error("list", dir, &failure))? {
        if let Some(number) = segment::number(&name) {
            files.insert(number, len);
        } else if segment::is_unfinished(&name) {
            leftovers.push(dir.join(name));
        }
    }
    let mut surveyor = Surveyor { disk, dir, files, named: (0, 0) };
    let (last, cut) = surveyor.last(&mut leftovers)?;
    let Some(last) = last else {
        return Ok(Survey { segments: Vec::new(), tail: Point::START, leftovers, cut });
    };
    let tail = last.end;
    let mut segments = vec![last];
    surveyor.earlier(&mut segments, &mut leftovers)?;
    segments.reverse();
    Ok(Survey { segments, tail, leftovers, cut })
}

/// Makes what `survey` accepted durable, removes what it did not accept, and seals what was left open.
pub(crate) fn repair(disk: &dyn Fs, dir: &Path, survey: &Survey) -> Result<(), Error> {
    let write = |path: &Path, act: &dyn Fn(&Handle) -> io::Result<()>| {
        disk.open(path, Mode::Write)
            .and_then(|file| act(&file))
            .map_err(|failure| error("repair", path, &failure))
    };
    if let Some(last) = survey.segments.last() {
        write(&segment::path(dir, last.number), &|file| disk.sync(file, Depth::All))?;
    }
    sync_dir(disk, dir).map_err(|failure| error("sync", dir, &failure))?;
    for path in &survey.leftovers {
        disk.remove(path).map_err(|failure| error("remove", path, &failure))?;
    }
    for found in &survey.segments {
        if let Some(index) = &found.unsealed {
            let path = segment::path(dir, found.number);
            write(&path, &|file| segment::seal(disk, file, &found.end, index))?;
        }
    }
    sync_dir(disk, dir).map_err(|failure| error("sync", dir, &failure))
}

/// All bytes of a segment that was listed. Empty if it is gone: a writer removes only segments that hold
/// nothing.
pub(crate) fn read_segment(disk: &dyn Fs, dir: &Path, number: u64, len: u64) -> Result<Vec<u8>, Error> {
    let path = segment::path(dir, number);
    match disk.open(&path, Mode::Read).and_then(|file| read_up_to(disk, &file, 0, len as usize)) {
        Ok(bytes) => Ok(bytes),
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(failure) => Err(error("read", &path, &failure)),
    }
}

/// The place of a segment's first group.
pub(crate) fn first_group(head: &SegmentHead) -> Point {
    Point { segment: head.segment, offset: head.block_bytes() as u64, ..head.from }
}

/// The error for a segment of a newer format.
pub(crate) fn newer(path: &Path, version: u8) -> Error {
    Error::Newer { what: path.display().to_string(), found: version.into(), supported: FORMAT.into() }
}

/// The error for a stop where a group must be: `missing` says what to say if nothing stands there.
pub(crate) fn damage(path: &Path, at: u64, stop: Stop, missing: &str) -> Error {
    let (offset, reason) = match stop {
        Stop::Newer(version) => return newer(path, version),
        Stop::Broken(Broken { offset, reason, record }) => (offset, describe(&reason, record)),
        Stop::End | Stop::Footer => (at, missing.to_owned()),
    };
    Error::Damaged { segment: path.to_owned(), offset, reason }
}

struct Surveyor<'a> {
    disk: &'a dyn Fs,
    dir: &'a Path,
    /// Segments and their lengths.
    files: BTreeMap<u64, u64>,
    /// The largest durable place named by any whole group seen beyond the accepted ones.
    named: (u64, u64),
}

impl Surveyor<'_> {
    /// The last segment that holds a whole group. Later ones are leftovers.
    fn last(&mut self, leftovers: &mut Vec<PathBuf>) -> Result<(Option<Found>, Option<Cut>), Error> {
        let mut cut = None;
        while let Some((number, len)) = self.files.pop_last() {
            let path = segment::path(self.dir, number);
            let bytes = read_segment(self.disk, self.dir, number, len)?;
            let (head, reason) = match crate::frame::block(&bytes, number, 0) {
                Ok(content) => match crate::frame::head(content).filter(|head| head.segment == number) {
                    Some(head) => (Some(head), None),
                    None => (None, Some("it is not a head".to_owned())),
                },
                Err(Bad::Newer(version)) => return Err(newer(&path, version)),
                Err(Bad::Empty) => (None, None),
                Err(Bad::Broken(reason)) => (None, Some(reason.to_owned())),
            };
            let Some(head) = head else {
                self.judge(&bytes, number, 0, 0, reason.as_deref().unwrap_or("it is empty"))?;
                if was_durable(&bytes, 0, 0) {
                    return Err(self.damaged(number, 0, "it has a footer and no head"));
                }
                cut = reason.map(|reason| Cut { segment: path.clone(), offset: 0, reason }).or(cut);
                leftovers.push(path);
                continue;
            };
            if head.rewritten.is_some() {
                // What it was rewritten for is recorded behind it.
                return Err(self.damaged(
                    number,
                    0,
                    "it was rewritten, and the segments after it are missing",
                ));
            }
            let (found, torn) = self.walk_last(&bytes, &head)?;
            cut = torn.or(cut);
            if found.end.offset > found.start.offset {
                return Ok((Some(found), cut));
            }
            leftovers.push(path);
        }
        Ok((None, cut))
    }

    fn walk_last(&mut self, bytes: &[u8], head: &SegmentHead) -> Result<(Found, Option<Cut>), Error> {
        let (number, start) = (head.segment, first_group(head));
        let path = segment::path(self.dir, number);
        let Walked { index, marks, end, stop } = walk(bytes, &start);
        let (bad, reason) = match stop {
            Stop::Newer(version) => return Err(newer(&path, version)),
            Stop::Broken(broken) => (broken.offset, describe(&broken.reason, broken.record)),
            Stop::End => (end.offset, MISSING.to_owned()),
            Stop::Footer => (end.offset, WRONG_FOOTER.to_owned()),
        };
        let index = index.to_index();
        let rest = bytes.get(end.offset as usize..).unwrap_or_default();
        let is_sealed = rest == index.to_footer(&end);
        if !is_sealed {
            self.judge(bytes, number, end.offset, bad, &reason)?;
            if was_durable(bytes, end.offset as usize, head.size) {
                let reason = format!("{reason}, but the segment was written beyond and then changed");
                return Err(self.damaged(number, bad, &reason));
            }
        }
        let is_cut = !is_sealed && !is_zero(rest);
        let cut = is_cut.then_some(Cut { segment: path, offset: end.offset, reason });
        let unsealed = (!is_sealed).then_some(index);
        let bytes = end.offset;
        Ok((Found { number, start, marks, end, bytes, is_rewritten: false, unsealed }, cut))
    }

    /// Fails if the bytes from `from` on were durable, as some whole group behind says.
    fn judge(&mut self, bytes: &[u8], number: u64, from: u64, bad: u64, reason: &str) -> Result<(), Error> {
        let mut at = from as usize;
        while let Some((offset, head)) = next_group(bytes, number, at) {
            self.named = self.named.max(head.durable);
            at = offset + 1;
        }
        if self.named <= (number, from) {
            return Ok(());
        }
        Err(Error::Damaged {
            segment: segment::path(self.dir, number),
            offset: bad,
            reason: format!(
                "{reason}, but what stands there was durable up to offset {} of segment {}",
                self.named.1, self.named.0
            ),
        })
    }

    /// The segments before the ones found, each where the next one says that it continues from.
    fn earlier(&mut self, segments: &mut Vec<Found>, leftovers: &mut Vec<PathBuf>) -> Result<(), Error> {
        while let Some(next) = segments.last().and_then(|last| self.from(last.number).transpose()) {
            let from = next?;
            while let Some((number, _)) = self.files.last_key_value().map(|(number, len)| (*number, *len))
                && number > from.segment
            {
                // Given up before a barrier covered any of it.
                self.files.pop_last();
                leftovers.push(segment::path(self.dir, number));
            }
            let Some((number, len)) = self.files.pop_last().filter(|(number, _)| *number == from.segment)
            else {
                return Err(self.damaged(from.segment, 0, "the segment is missing"));
            };
            let position = segments.first().map_or(0, |last| last.end.position);
            segments.push(self.before(number, len, &from, position)?);
        }
        Ok(())
    }

    /// Where the segment before `number` ends; none if there is none.
    fn from(&self, number: u64) -> Result<Option<Point>, Error> {
        let from = self.head(number)?.from;
        Ok((from.segment > 0).then_some(from))
    }

    fn head(&self, number: u64) -> Result<SegmentHead, Error> {
        let path = segment::path(self.dir, number);
        let read = self.disk.open(&path, Mode::Read).and_then(|file| segment::head(self.disk, &file, number));
        match read.map_err(|failure| error("read", &path, &failure))? {
            Ok(head) => Ok(head),
            Err(Bad::Newer(version)) => Err(newer(&path, version)),
            Err(Bad::Empty) => Err(self.damaged(number, 0, "its head is missing")),
            Err(Bad::Broken(reason)) => Err(self.damaged(number, 0, reason)),
        }
    }

    /// Segment `number`, which must end at `end`, of a journal of so many frames.
    fn before(&self, number: u64, len: u64, end: &Point, frames: u64) -> Result<Found, Error> {
        let path = segment::path(self.dir, number);
        let head = self.head(number)?;
        let start = first_group(&head);
        let footer = self
            .disk
            .open(&path, Mode::Read)
            .and_then(|file| segment::footer(self.disk, &file, number, len))
            .map_err(|failure| error("read", &path, &failure))?;
        let is_rewritten = head.rewritten.is_some();
        if let Some(rewritten) = head.rewritten
            && (rewritten.end != *end || rewritten.checkpoint > frames)
        {
            return Err(self.damaged(number, 0, "it was rewritten for a journal that went on otherwise"));
        }
        match footer {
            Some(footer) if footer.end == *end && (is_rewritten || footer.at == end.offset) => {
                let bytes = footer.at;
                Ok(Found { number, start, marks: vec![], end: *end, bytes, is_rewritten, unsealed: None })
            }
            Some(footer) => {
                Err(self.damaged(number, footer.at, "it does not end where the next one continues"))
            }
            None if is_rewritten => Err(self.damaged(number, len, "its footer is missing")),
            None => self.unsealed(number, len, start, end),
        }
    }

    /// A segment without footer: given up, or its sealing was cut.
    fn unsealed(&self, number: u64, len: u64, start: Point, end: &Point) -> Result<Found, Error> {
        let mut bytes = read_segment(self.disk, self.dir, number, len)?;
        bytes.truncate(end.offset as usize);
        let Walked { index, marks, end: reached, stop } = walk(&bytes, &start);
        if reached == *end {
            let unsealed = Some(Growing::to_index(&index));
            let bytes = end.offset;
            return Ok(Found { number, start, marks, end: *end, bytes, is_rewritten: false, unsealed });
        }
        Err(damage(&segment::path(self.dir, number), reached.offset, stop, MISSING))
    }

    fn damaged(&self, number: u64, offset: u64, reason: &str) -> Error {
        Error::Damaged { segment: segment::path(self.dir, number), offset, reason: reason.to_owned() }
    }
}

/// A reason with the record that it concerns, as far as known.
pub(crate) fn describe(reason: &str, record: Option<(crate::Stream, u64)>) -> String {
    match record {
        Some((stream, seq)) => format!("{reason} (record {seq} of {stream:?})"),
        None => reason.to_owned(),
    }
}
