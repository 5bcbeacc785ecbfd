//! Checks every byte of a journal, offline or beside a running engine.
//!
//! Owns what counts as a finding. It goes on after each one, so that a report names all bad places. It must
//! never write, and never trust an index: footers are compared with what the groups themselves say.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::bytes::is_zero;
use crate::frame::{
    self, Bad, Frame, Point, REWRITTEN_HEAD_BLOCK, Rewritten, SALT, SegmentHead, decode_puts,
};
use crate::fs::{Fs, RealFs, error};
use crate::index::{Growing, Place};
use crate::journal::JOURNAL_DIR;
use crate::link::payload_hash;
use crate::purge::REWRITTEN;
use crate::recover::{Cut, MISSING, WRONG_FOOTER, describe, first_group, newer, read_segment};
use crate::rewrite::named;
use crate::salvage::{Hole, SALVAGED, holes};
use crate::scan::{Broken, Bytes, Group, Stop, group_at, has_footer, is_tail, kept_in, trailer};
use crate::segment;
use crate::{Error, Hash, Head, RunKey, Seq, Stream, heads};

/// What was checked, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Segments that hold groups.
    pub segments: u64,
    /// Whole groups.
    pub groups: u64,
    /// Whole frames.
    pub frames: u64,
    /// Streams, and the newest record of each.
    pub heads: BTreeMap<Stream, Head>,
    /// Payloads that were redacted; their chain holds.
    pub redacted: u64,
    /// Runs that were purged, and the last record of each. What is left of their records is not in `heads`.
    pub purged: BTreeMap<RunKey, Head>,
    /// Frames that are gone with them; the chain names where they stood.
    pub dropped: u64,
    /// Every bad place, in the order of the journal.
    pub findings: Vec<Finding>,
    /// What stands behind the end, if not zeros: torn by a crash, being written at this moment, or changed
    /// since.
    pub tail: Option<Cut>,
    /// Where the journal ends: its hash covers everything before.
    pub end: Point,
}

/// One bad place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The segment file.
    pub segment: PathBuf,
    /// Byte offset in it.
    pub offset: u64,
    /// The record there, as far as known.
    pub record: Option<(Stream, Seq)>,
    /// What is wrong.
    pub reason: String,
}

/// Checks the journal in `DIR/journal`: framing, checksums, the chain of groups, the chain of each stream,
/// the hashes of payloads and puts, footers, and of rewritten segments that a record names their bytes. Fails only where
/// nothing can be read.
pub fn verify(dir: &Path) -> Result<Report, Error> {
    verify_on(&RealFs, dir)
}

/// The same on a given disk.
///
/// A writer may append meanwhile, so what looks bad is looked at once more: damage stays where it is.
pub fn verify_on(disk: &dyn Fs, dir: &Path) -> Result<Report, Error> {
    let mut report = look(disk, dir)?;
    if !report.findings.is_empty() {
        let again = look(disk, dir)?;
        report.findings.retain(|finding| again.findings.contains(finding));
    }
    Ok(report)
}

fn look(disk: &dyn Fs, dir: &Path) -> Result<Report, Error> {
    let dir = dir.join(JOURNAL_DIR);
    let mut segments = Vec::new();
    for (name, len) in disk.list(&dir).map_err(|failure| error("list", &dir, &failure))? {
        segments.extend(segment::number(&name).map(|number| (number, len)));
    }
    segments.sort_unstable();
    let mut verifier = Verifier::new(&dir);
    let heads = read_heads(disk, &dir, &segments)?;
    let last = heads.iter().rposition(Option::is_some);
    for (at, (number, len)) in segments.iter().enumerate() {
        let next = heads[at + 1..].iter().flatten().next();
        // A segment that the next one does not continue from was given up before anything in it was durable.
        if next.is_some_and(|next| next.from.segment < *number) {
            continue;
        }
        let bytes = read_segment(disk, &dir, *number, *len)?;
        if last.is_none_or(|last| at > last) && frame::block(&bytes, *number, 0).is_ok() {
            // A writer has begun it since: it is not part of what was there.
            break;
        }
        match heads[at].as_ref().and_then(|head| Some((head, head.rewritten?))) {
            Some((head, rewritten)) => verifier.rewritten(&bytes, head, &rewritten, next)?,
            None => verifier.segment(*number, &bytes, heads[at].as_ref(), next)?,
        }
    }
    Ok(verifier.finish())
}

/// The head of each segment; none where it is empty or bad.
fn read_heads(disk: &dyn Fs, dir: &Path, segments: &[(u64, u64)]) -> Result<Vec<Option<SegmentHead>>, Error> {
    segments
        .iter()
        .map(|(number, len)| {
            let bytes = read_segment(disk, dir, *number, (*len).min(REWRITTEN_HEAD_BLOCK as u64))?;
            match frame::block(&bytes, *number, 0) {
                Ok(content) => Ok(frame::head(content).filter(|head| head.segment == *number)),
                Err(Bad::Newer(version)) => Err(newer(&segment::path(dir, *number), version)),
                Err(Bad::Empty | Bad::Broken(_)) => Ok(None),
            }
        })
        .collect()
}

struct Verifier<'a> {
    dir: &'a Path,
    report: Report,
    chains: HashMap<Stream, Head>,
    /// Findings, by their place among all, that are none if the stream's run was purged, or if a record of a salvage
    /// names what is missing.
    gaps: HashMap<usize, Hole>,
    /// Rewritten segments: number, and hash of the file.
    rewritten: Vec<(u64, Hash)>,
    /// The same as records name them.
    named: HashSet<(u64, Hash)>,
    /// What a salvage found missing.
    holes: HashSet<Hole>,
    /// Reading goes on behind a bad place: what is missing there is not missed again.
    is_lost: bool,
}

impl<'a> Verifier<'a> {
    fn new(dir: &'a Path) -> Self {
        let report = Report {
            segments: 0,
            groups: 0,
            frames: 0,
            heads: BTreeMap::new(),
            redacted: 0,
            purged: BTreeMap::new(),
            dropped: 0,
            findings: Vec::new(),
            tail: None,
            end: Point::START,
        };
        Self {
            dir,
            report,
            chains: HashMap::new(),
            gaps: HashMap::new(),
            rewritten: Vec::new(),
            named: HashSet::new(),
            holes: HashSet::new(),
            is_lost: false,
        }
    }

    /// `next` is the head of the next segment that holds something; this one must end where that one
    /// continues.
    fn segment(
        &mut self,
        number: u64,
        bytes: &[u8],
        head: Option<&SegmentHead>,
        next: Option<&SegmentHead>,
    ) -> Result<(), Error> {
        // What lies past the end of a given-up segment never existed.
        let limit = next.map(|next| next.from).filter(|from| from.segment == number);
        let mut at = match head {
            Some(head) => {
                self.check_start(head);
                first_group(head)
            }
            None => match self.resume(number, bytes, 0) {
                Some(at) => {
                    self.find(number, 0, None, "the segment's head is damaged");
                    at
                }
                None => {
                    self.no_groups(number, bytes, limit.is_some());
                    return Ok(());
                }
            },
        };
        self.report.segments += 1;
        let mut index = Growing::default();
        let size = head.map_or(0, |head| head.size);
        let mut is_read_through = head.is_some();
        loop {
            if limit.is_some_and(|limit| at.offset >= limit.offset) {
                break;
            }
            match group_at(bytes, &at) {
                Ok(group) => {
                    self.report.groups += 1;
                    self.records(number, &group, &mut index);
                    at = group.end;
                    self.is_lost = false;
                }
                Err(Stop::Newer(version)) => return Err(newer(&segment::path(self.dir, number), version)),
                Err(stop) => match self.stopped(bytes, &at, stop, size, limit.is_some()) {
                    Some(resumed) => (at, is_read_through) = (resumed, false),
                    None => break,
                },
            }
        }
        self.report.end = at;
        let may_be_torn = is_read_through && limit.is_none() && is_tail(bytes, &at, size);
        self.check_end(bytes, &at, &index, limit.as_ref(), may_be_torn);
        Ok(())
    }

    /// A segment that frames were dropped from: what was kept, and that the whole of it is named by a record.
    fn rewritten(
        &mut self,
        bytes: &[u8],
        head: &SegmentHead,
        rewritten: &Rewritten,
        next: Option<&SegmentHead>,
    ) -> Result<(), Error> {
        let number = head.segment;
        self.check_start(head);
        self.report.segments += 1;
        self.rewritten.push((number, frame::hash(bytes)));
        let mut index = Growing::default();
        let (mut at, mut kept) = (first_group(head), 0);
        loop {
            match kept_in(Bytes { bytes, base: 0 }, &at) {
                Ok(group) => {
                    self.records(number, &group, &mut index);
                    kept += group.frames.len() as u64;
                    at = group.end;
                }
                Err(Stop::Footer) => break,
                Err(Stop::Newer(version)) => return Err(newer(&segment::path(self.dir, number), version)),
                Err(Stop::End) => {
                    self.find(number, at.offset, None, MISSING);
                    break;
                }
                Err(Stop::Broken(broken)) => {
                    self.find(number, broken.offset, broken.record, &broken.reason);
                    break;
                }
            }
        }
        let footer = index.to_index().to_footer_at(&rewritten.end, at.offset);
        if bytes.get(at.offset as usize..) != Some(&footer[..]) {
            self.find(number, at.offset, None, WRONG_FOOTER);
        }
        if next.is_none_or(|next| next.from != rewritten.end) {
            self.find(number, 0, None, "the next segment does not continue where this one ended");
        }
        let was = rewritten.end.position.saturating_sub(head.from.position);
        self.report.dropped += was.saturating_sub(kept);
        self.report.end = rewritten.end;
        self.is_lost = false;
        Ok(())
    }

    fn records(&mut self, number: u64, group: &Group<'_>, index: &mut Growing) {
        for (offset, frame) in &group.frames {
            self.record(number, *offset, frame);
            let place = Place::new(*offset as u32, frame.header.kind.carries_messages);
            index.push(frame.header.stream, frame.header.seq, place);
        }
    }

    /// No group stands at `at` in a segment of `size` bytes: reports why, and answers where reading goes on.
    fn stopped(
        &mut self,
        bytes: &[u8],
        at: &Point,
        stop: Stop,
        size: u64,
        must_go_on: bool,
    ) -> Option<Point> {
        let number = at.segment;
        let broken = match stop {
            Stop::Broken(broken) => broken,
            Stop::Footer => return None,
            Stop::End | Stop::Newer(_) => {
                let reason = MISSING.to_owned();
                Broken { offset: at.offset, reason, record: None }
            }
        };
        let resumed = self.resume(number, bytes, at.offset as usize + 1);
        if !must_go_on && is_tail(bytes, at, size) {
            if !is_zero(bytes.get(at.offset as usize..).unwrap_or_default()) {
                self.torn(number, broken.offset, describe(&broken.reason, broken.record));
            }
            return None;
        }
        self.find(number, broken.offset, broken.record, &broken.reason);
        self.is_lost = true;
        resumed
    }

    /// The next whole group behind a bad place, taken as it says that it is.
    fn resume(&mut self, number: u64, bytes: &[u8], from: usize) -> Option<Point> {
        let (offset, head) = frame::next_group(bytes, number, from)?;
        self.is_lost = true;
        Some(Point {
            segment: number,
            offset: offset as u64,
            position: head.position,
            group: head.number,
            hash: head.prev_hash,
            epoch: head.epoch,
        })
    }

    /// A segment must continue where the one before it ended.
    fn check_start(&mut self, head: &SegmentHead) {
        let end = self.report.end;
        if head.from != end && !self.is_lost {
            let reason = if head.from.position > end.position || head.from.segment > end.segment {
                format!("frames {} to {} before this segment are missing", end.position, head.from.position)
            } else {
                "it does not continue where the segment before it ends".to_owned()
            };
            self.find(head.segment, 0, None, &reason);
        }
    }

    fn no_groups(&mut self, number: u64, bytes: &[u8], is_continued: bool) {
        if is_continued {
            self.find(number, 0, None, "the segment holds nothing, but the next one continues it");
        } else if trailer(bytes).is_some() {
            self.find(number, 0, None, "the segment has a footer and no group");
        } else if let Some(offset) = bytes.iter().position(|byte| *byte != 0) {
            let reason = "a segment without a whole group is not empty".to_owned();
            self.torn(number, offset as u64, reason);
        }
    }

    fn record(&mut self, number: u64, offset: u64, frame: &Frame<'_>) {
        let header = &frame.header;
        let (stream, seq) = (header.stream, header.seq);
        self.report.frames += 1;
        let before = self.chains.insert(stream, Head { seq, hash: frame.hash });
        let expected = before.map_or(0, |before| before.seq + 1);
        if stream == Stream::Own(0) {
            self.note(frame);
        }
        if seq > expected {
            // What is missing may have gone with its run: a later record says so.
            let hole = Hole { stream, from: expected, to: seq };
            self.gaps.insert(self.report.findings.len(), hole);
        }
        let mut find = |reason: &str| self.find(number, offset, Some((stream, seq)), reason);
        if seq != expected {
            find(&format!("record {seq} stands where record {expected} of its stream belongs"));
        } else if header.prev_hash != before.map(|before| before.hash).unwrap_or_default() {
            find("it does not continue the record before it");
        }
        match frame.payload.map(|payload| payload.split_at_checked(SALT)) {
            Some(Some((salt, payload))) if payload_hash(salt, payload) == header.payload_hash => {}
            Some(_) => find("its payload is not the one that was hashed"),
            None => self.report.redacted += 1,
        }
        if frame::hash(frame.puts) != header.puts_hash {
            self.find(number, offset, Some((stream, seq)), "its puts are not the ones that were hashed");
        }
    }

    /// What a record of the store's own says of others.
    fn note(&mut self, frame: &Frame<'_>) {
        let purged = decode_puts(frame.puts).unwrap_or_default();
        for (stream, head) in purged.iter().filter_map(heads::purged) {
            self.report.purged.extend(stream.run().map(|run| (run, head)));
        }
        let payload = frame.payload.and_then(|payload| payload.get(SALT..));
        if frame.header.kind.code == REWRITTEN {
            self.named.extend(payload.and_then(named));
        }
        if frame.header.kind.code == SALVAGED {
            self.holes.extend(payload.map(holes).unwrap_or_default());
        }
    }

    /// The footer says what the groups say, and nothing follows it. One that may be torn is written again by an open.
    fn check_end(
        &mut self,
        bytes: &[u8],
        end: &Point,
        index: &Growing,
        limit: Option<&Point>,
        may_be_torn: bool,
    ) {
        let number = end.segment;
        if let Some(limit) = limit.filter(|limit| *limit != end && !self.is_lost) {
            let reason =
                format!("it ends at offset {}, not at {} as the next one says", end.offset, limit.offset);
            self.find(number, end.offset, None, &reason);
        }
        let is_right = || bytes.get(end.offset as usize..) == Some(&index.to_index().to_footer(end)[..]);
        if self.is_lost || !has_footer(bytes, end.offset) || is_right() {
            return;
        }
        if !may_be_torn {
            self.find(number, end.offset, None, WRONG_FOOTER);
        } else if self.report.tail.is_none() {
            self.torn(number, end.offset, WRONG_FOOTER.to_owned());
        }
    }

    fn torn(&mut self, number: u64, offset: u64, reason: String) {
        self.report.tail = Some(Cut { segment: segment::path(self.dir, number), offset, reason });
    }

    fn find(&mut self, number: u64, offset: u64, record: Option<(Stream, Seq)>, reason: &str) {
        let segment = segment::path(self.dir, number);
        self.report.findings.push(Finding { segment, offset, record, reason: reason.to_owned() });
    }

    fn finish(mut self) -> Report {
        for (number, hash) in std::mem::take(&mut self.rewritten) {
            if !self.named.contains(&(number, hash)) {
                self.find(number, 0, None, "frames were dropped from it, and no record names what is left");
            }
        }
        let Self { mut report, gaps, holes, .. } = self;
        let is_purged = |stream: Stream| stream.run().is_some_and(|run| report.purged.contains_key(&run));
        let findings = report.findings.into_iter().enumerate();
        let stands =
            |at: &usize| !gaps.get(at).is_some_and(|hole| is_purged(hole.stream) || holes.contains(hole));
        report.findings = findings.filter(|(at, _)| stands(at)).map(|(_, finding)| finding).collect();
        report
            .findings
            .sort_by(|left, right| (&left.segment, left.offset).cmp(&(&right.segment, right.offset)));
        report.heads = self.chains.into_iter().filter(|(stream, _)| !is_purged(*stream)).collect();
        report
    }
}
