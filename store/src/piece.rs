//! The segments of a damaged journal, one by one: where each began and ended, and which of its frames are whole.
//!
//! Owns what can be known of one segment from itself, its footer and its neighbours. It must never write, nor decide
//! what a missing frame means for a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::frame::{
    self, Bad, ENVELOPE, GROUP_BLOCK, KEPT_BLOCK, Point, REWRITTEN_HEAD_BLOCK, Rewritten, SegmentHead, Tag,
};
use crate::fs::{Fs, error};
use crate::index::{self, Growing, Index, Place};
use crate::recover::{MISSING, WRONG_FOOTER, first_group, newer, read_segment};
use crate::remains::is_true;
use crate::scan::{Broken, Bytes, Stop, group_at, has_footer, is_tail, kept_in, trailer};
use crate::{Error, Seq, Stream, segment};

/// What the content of every frame begins with.
const FRAME_LEAD: [u8; 2] = [Tag::Frame.byte(), frame::FORMAT];

/// How a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// As it was written, or torn where nothing was acknowledged.
    Whole,
    /// All its frames are whole; the footer is not. No bad place if a power cut may have torn it.
    Footless,
    /// Blocks other than the footer are not what was written.
    Damaged,
}

/// A segment of the journal.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    /// Bytes of its file.
    pub(crate) len: u64,
    /// Where the segment before it ended.
    pub(crate) from: Point,
    /// Where the next one continues.
    pub(crate) end: Point,
    pub(crate) rewritten: Option<Rewritten>,
    pub(crate) health: Health,
    pub(crate) bad: Vec<Broken>,
    /// Offset and position of each whole frame.
    pub(crate) frames: Vec<(u64, u64)>,
    /// Where its groups end in the file.
    pub(crate) frames_end: u64,
    /// Frames that are gone, if it is known how many.
    pub(crate) lost: Option<u64>,
    /// Those that the footer names.
    pub(crate) lost_by_name: BTreeSet<(Stream, Seq)>,
    /// Frames before this position are gone, and no footer says which; 0: there are none.
    pub(crate) blind_until: u64,
}

/// The segments that the journal consists of, in order, those included that are missing.
pub(crate) fn pieces(disk: &dyn Fs, dir: &Path) -> Result<Vec<Piece>, Error> {
    let listed = disk.list(dir).map_err(|failure| error("list", dir, &failure))?;
    let mut files: BTreeMap<u64, Option<SegmentHead>> = BTreeMap::new();
    let mut lens = BTreeMap::new();
    for (number, len) in listed.iter().filter_map(|(name, len)| Some((segment::number(name)?, *len))) {
        let bytes = read_segment(disk, dir, number, len.min(REWRITTEN_HEAD_BLOCK as u64))?;
        let head = match frame::block(&bytes, number, 0) {
            Ok(content) => frame::head(content).filter(|head| head.segment == number),
            Err(Bad::Newer(version)) => return Err(newer(&segment::path(dir, number), version)),
            Err(Bad::Empty | Bad::Broken(_)) => None,
        };
        files.insert(number, head);
        lens.insert(number, len);
    }
    // A segment that another continues is part of the journal, also if its file is gone.
    let continued: Vec<u64> = files.values().flatten().map(|head| head.from.segment).collect();
    for number in continued.into_iter().filter(|number| *number > 0) {
        files.entry(number).or_insert(None);
    }
    let mut pieces: Vec<Piece> = Vec::new();
    let all: Vec<(u64, Option<SegmentHead>)> = files.into_iter().collect();
    for (at, (number, head)) in all.iter().enumerate() {
        let next = all[at + 1..].iter().find_map(|(_, head)| head.as_ref()).map(|head| head.from);
        if next.is_some_and(|from| from.segment < *number) {
            // Given up before anything in it was durable.
            continue;
        }
        let len = lens.get(number).copied().unwrap_or(0);
        let bytes = read_segment(disk, dir, *number, len)?;
        let before = pieces.last().map_or(Point::START, |piece| piece.end);
        let next = next.filter(|from| from.segment == *number);
        let look = Look { number: *number, bytes: &bytes, head: *head, before, next };
        pieces.extend(look.piece().map_err(|version| newer(&segment::path(dir, *number), version))?);
    }
    Ok(pieces)
}

/// One segment, and what its neighbours say of it.
struct Look<'a> {
    number: u64,
    bytes: &'a [u8],
    head: Option<SegmentHead>,
    before: Point,
    /// Where the next one continues.
    next: Option<Point>,
}

impl Look<'_> {
    /// None if it holds nothing that was durable. Fails if a block is of a newer version.
    fn piece(&self) -> Result<Option<Piece>, u8> {
        let footer = self.footer();
        let rewritten = self.head.and_then(|head| head.rewritten);
        let from = self.head.map_or(self.before, |head| head.from);
        let (reached, stop) = self.walk()?;
        let found = self
            .next
            .or(rewritten.map(|rewritten| rewritten.end))
            .or(footer.as_ref().map(|(_, end, _)| *end));
        let at_end = reached.filter(|at| match (rewritten, found) {
            (Some(_), _) => matches!(stop, Some(Stop::Footer)) || self.has_footer_tag(at.offset),
            (None, Some(end)) => *at == end,
            (None, None) => self.has_footer_tag(at.offset) || !self.was_durable(at),
        });
        let is_consistent = rewritten.is_none_or(|rewritten| self.next == Some(rewritten.end));
        if let Some(at) = at_end.filter(|_| is_consistent) {
            if found.is_none() && at.offset == self.head.map_or(0, |head| head.block_bytes() as u64) {
                return Ok(None);
            }
            return Ok(Some(self.whole(from, rewritten, at, found)));
        }
        let end = match found.or_else(|| self.last_group()) {
            Some(end) => end,
            None if self.bytes.iter().all(|byte| *byte == 0) || self.head.is_none() && footer.is_none() => {
                return Ok(None);
            }
            None => Point { segment: self.number, offset: frame::HEAD_BLOCK as u64, ..from },
        };
        Ok(Some(self.damaged(from, end, rewritten, footer, found.is_some())))
    }

    /// As far as the groups, or the kept frames, follow each other; none if the head is damaged.
    fn walk(&self) -> Result<(Option<Point>, Option<Stop>), u8> {
        let Some(head) = &self.head else { return Ok((None, None)) };
        let mut at = first_group(head);
        loop {
            if self.next.is_some_and(|next| head.rewritten.is_none() && at.offset >= next.offset) {
                return Ok((Some(at), None));
            }
            let group = match head.rewritten {
                Some(_) => kept_in(Bytes { bytes: self.bytes, base: 0 }, &at),
                None => group_at(self.bytes, &at),
            };
            match group {
                Ok(group) if group.frames.iter().all(|(_, frame)| is_true(frame)) => at = group.end,
                Ok(_) => return Ok((None, None)),
                Err(Stop::Newer(version)) => return Err(version),
                Err(stop) => return Ok((Some(at), Some(stop))),
            }
        }
    }

    /// The last segment: what stood at `at` was durable.
    fn was_durable(&self, at: &Point) -> bool {
        !is_tail(self.bytes, at, self.head.map_or(0, |head| head.size))
    }

    fn has_footer_tag(&self, at: u64) -> bool {
        self.bytes.get(at as usize + ENVELOPE) == Some(&Tag::Footer.byte())
    }

    fn footer(&self) -> Option<(u64, Point, Index)> {
        let at = trailer(self.bytes)?;
        let content = frame::block(self.bytes, self.number, usize::try_from(at).ok()?).ok()?;
        let (end, index) = index::footer(content).filter(|(end, _)| end.segment == self.number)?;
        Some((at, end, index))
    }

    /// The end of the last whole group, wherever it stands.
    fn last_group(&self) -> Option<Point> {
        let (mut at, mut end) = (0, None);
        while let Some((offset, head)) = frame::next_group(self.bytes, self.number, at) {
            let start = Point {
                segment: self.number,
                offset: offset as u64,
                position: head.position,
                group: head.number,
                hash: head.prev_hash,
                epoch: head.epoch,
            };
            end = group_at(self.bytes, &start).map(|group| group.end).ok().or(end);
            at = offset + 1;
        }
        end
    }

    /// All its frames are whole and end at `at`.
    fn whole(&self, from: Point, rewritten: Option<Rewritten>, at: Point, end: Option<Point>) -> Piece {
        let end = rewritten.map_or(end.unwrap_or(at), |rewritten| rewritten.end);
        let frames = self.frames(&self.scan(0, at.offset), from.position);
        let rest = self.bytes.get(at.offset as usize..).unwrap_or_default();
        let is_sealed = rest == footer_of(self.bytes, self.number, &frames, &end, at.offset);
        let is_footless = !is_sealed && (rewritten.is_some() || has_footer(self.bytes, at.offset));
        let health = if is_footless { Health::Footless } else { Health::Whole };
        // A torn one at the end of the journal is no bad place: an open writes it again.
        let is_bad = is_footless && (rewritten.is_some() || self.next.is_some() || self.was_durable(&at));
        let reason = WRONG_FOOTER.to_owned();
        let bad = is_bad.then_some(Broken { offset: at.offset, reason, record: None });
        Piece {
            number: self.number,
            len: self.bytes.len() as u64,
            from,
            end,
            rewritten,
            health,
            bad: bad.into_iter().collect(),
            frames,
            frames_end: at.offset,
            lost: Some(0),
            lost_by_name: BTreeSet::new(),
            blind_until: 0,
        }
    }

    fn damaged(
        &self,
        from: Point,
        end: Point,
        rewritten: Option<Rewritten>,
        footer: Option<(u64, Point, Index)>,
        is_end_known: bool,
    ) -> Piece {
        let frames_end = footer
            .as_ref()
            .map_or(end.offset.max(self.head.map_or(0, |head| head.block_bytes() as u64)), |(at, ..)| *at);
        let limit =
            if rewritten.is_some() && footer.is_none() { self.bytes.len() as u64 } else { frames_end };
        let mut lost_by_name = BTreeSet::new();
        let offsets = match &footer {
            Some((_, _, index)) => {
                let mut places: Vec<(u64, (Stream, Seq))> = index.named().collect();
                places.sort_unstable();
                let is_gone = |(offset, _): &&(u64, (Stream, Seq))| !self.has_frame(*offset);
                lost_by_name.extend(places.iter().filter(is_gone).map(|(_, name)| *name));
                places.into_iter().map(|(offset, _)| offset).collect()
            }
            None => self.scan(0, limit),
        };
        let frames = self.frames(&offsets, from.position);
        let lost = match (&footer, rewritten) {
            (Some(_), _) => Some(lost_by_name.len() as u64),
            (None, None) if is_end_known || !self.was_durable(&end) => {
                end.position.checked_sub(from.position).map(|all| all.saturating_sub(frames.len() as u64))
            }
            (None, _) => None,
        };
        let blind_until = match lost {
            _ if footer.is_some() => 0,
            Some(0) => 0,
            Some(_) => end.position,
            None if self.next.is_some() => end.position,
            None => u64::MAX,
        };
        Piece {
            number: self.number,
            len: self.bytes.len() as u64,
            from,
            end,
            rewritten,
            health: Health::Damaged,
            bad: self.bad_places(end.offset),
            frames,
            frames_end,
            lost,
            lost_by_name,
            blind_until,
        }
    }

    fn has_frame(&self, offset: u64) -> bool {
        let content = frame::block(self.bytes, self.number, offset as usize).ok();
        content.and_then(frame::frame).is_some_and(|frame| is_true(&frame))
    }

    /// Offsets of all blocks between two places that are whole frames by themselves.
    fn scan(&self, from: usize, to: u64) -> Vec<u64> {
        let (mut at, mut offsets) = (from, Vec::new());
        let to = self.bytes.len().min(to as usize);
        while at + ENVELOPE + 1 < to {
            let is_frame =
                self.bytes.get(at + ENVELOPE..).is_some_and(|content| content.starts_with(&FRAME_LEAD));
            let content = if is_frame { frame::block(self.bytes, self.number, at).ok() } else { None };
            let end = content.map(|content| at + ENVELOPE + content.len());
            match end.filter(|end| *end <= to && self.has_frame(at as u64)) {
                Some(end) => {
                    offsets.push(at as u64);
                    at = end;
                }
                None => at += 1,
            }
        }
        offsets
    }

    /// Those of `offsets` at which whole frames stand, with their positions: as the head before them says, or after the
    /// one before.
    fn frames(&self, offsets: &[u64], first: u64) -> Vec<(u64, u64)> {
        let (mut next, mut frames) = (first, Vec::new());
        for offset in offsets {
            let before = |block: usize| {
                let at = usize::try_from(*offset).ok()?.checked_sub(block)?;
                frame::block(self.bytes, self.number, at).ok()
            };
            let group = before(GROUP_BLOCK).and_then(frame::group).map(|head| head.position);
            let kept = before(KEPT_BLOCK).and_then(frame::kept).map(|head| head.position);
            let position = group.or(kept).unwrap_or(next).max(next);
            if self.has_frame(*offset) {
                frames.push((*offset, position));
            }
            next = position + 1;
        }
        frames
    }

    /// Where groups stop following each other, up to `to`.
    fn bad_places(&self, to: u64) -> Vec<Broken> {
        let mut bad = Vec::new();
        let broken = |offset, reason: &str| Broken { offset, reason: reason.to_owned(), record: None };
        if self.bytes.is_empty() {
            return vec![broken(0, "the segment is missing")];
        }
        let Some(head) = &self.head else {
            return vec![broken(0, "the segment's head is damaged")];
        };
        let mut at = first_group(head);
        while head.rewritten.is_some() || at.offset < to {
            let group = match head.rewritten {
                Some(_) => kept_in(Bytes { bytes: self.bytes, base: 0 }, &at),
                None => group_at(self.bytes, &at),
            };
            match group {
                Ok(group) => {
                    let untrue = group.frames.iter().find(|(_, frame)| !is_true(frame));
                    bad.extend(untrue.map(|(offset, frame)| Broken {
                        record: Some((frame.header.stream, frame.header.seq)),
                        ..broken(*offset, "it is not what was hashed")
                    }));
                    at = group.end;
                    continue;
                }
                Err(Stop::Broken(found)) => bad.push(found),
                Err(Stop::Footer) if head.rewritten.is_some() => break,
                Err(Stop::End | Stop::Footer | Stop::Newer(_)) => bad.push(broken(at.offset, MISSING)),
            }
            let Some((offset, next)) = frame::next_group(self.bytes, self.number, at.offset as usize + 1)
            else {
                break;
            };
            at = Point {
                segment: self.number,
                offset: offset as u64,
                position: next.position,
                group: next.number,
                hash: next.prev_hash,
                epoch: next.epoch,
            };
        }
        if bad.is_empty() {
            bad.push(broken(at.offset, "it does not end where the next one continues"));
        }
        bad
    }
}

/// The footer of a segment whose frames stand at `frames` and end at `at`.
pub(crate) fn footer_of(bytes: &[u8], number: u64, frames: &[(u64, u64)], end: &Point, at: u64) -> Vec<u8> {
    let mut index = Growing::default();
    for (offset, _) in frames {
        let content = frame::block(bytes, number, *offset as usize).ok();
        if let Some(frame) = content.and_then(frame::frame) {
            let place = Place::new(*offset as u32, frame.header.kind.carries_messages);
            index.push(frame.header.stream, frame.header.seq, place);
        }
    }
    index.to_index().to_footer_at(end, at)
}
