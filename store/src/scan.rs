//! Walks the groups of one segment, checking framing, checksums and the group chain.
//!
//! Owns what "the next group" means, for recovery, catching up, indexing and verification alike: in a segment that was
//! rewritten, frames that follow each other stand where groups were. Must never write, and never judge whether a bad
//! place is damage or a torn tail: that depends on what lies behind it.

use crate::frame::{self, Bad, Frame, GROUP_BLOCK, GroupHash, GroupHead, KEPT_BLOCK, Point, Tag};
use crate::index::{self, Growing, Place, TRAILER};
use crate::{Seq, Stream};

/// One whole group, or frames of a rewritten segment that follow each other.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// Position of the first frame in the journal.
    pub(crate) position: u64,
    /// Offset of each frame, and the frame.
    pub(crate) frames: Vec<(u64, Frame<'a>)>,
    /// Where the next group continues from.
    pub(crate) end: Point,
}

/// Why there is no further group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nothing was written here.
    End,
    /// The footer stands here: the segment is sealed.
    Footer,
    /// A newer format.
    Newer(u8),
    /// Something else than what was written.
    Broken(Broken),
}

/// A bad place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) offset: u64,
    pub(crate) reason: String,
    /// What the frame says that it is, as far as it can be read.
    pub(crate) record: Option<(Stream, Seq)>,
}

impl Broken {
    fn stop(offset: u64, reason: impl Into<String>) -> Stop {
        Stop::Broken(Self { offset, reason: reason.into(), record: None })
    }
}

/// Bytes of a segment: all of it from its start, or a window of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    pub(crate) bytes: &'a [u8],
    /// Offset of the first of them in the segment.
    pub(crate) base: u64,
}

impl<'a> Bytes<'a> {
    fn block(&self, segment: u64, offset: u64) -> Result<&'a [u8], Bad> {
        frame::block_alone(self.from(offset), segment, offset)
    }

    fn from(&self, offset: u64) -> &'a [u8] {
        let at = offset.checked_sub(self.base).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }
}

/// The group that continues from `at`. `bytes` is the segment from its start.
pub(crate) fn group_at<'a>(bytes: &'a [u8], at: &Point) -> Result<Group<'a>, Stop> {
    group_in(Bytes { bytes, base: 0 }, at)
}

/// The same in a window.
pub(crate) fn group_in<'a>(bytes: Bytes<'a>, at: &Point) -> Result<Group<'a>, Stop> {
    let content = content_at(bytes, at)?;
    let Some(head) = frame::group(content) else {
        return Err(Broken::stop(at.offset, "it is not a group"));
    };
    check_chain(&head, at).map_err(|reason| Broken::stop(at.offset, reason))?;
    let sums = Sums { first: at.offset + GROUP_BLOCK as u64, bytes: head.bytes, frames: head.frames };
    let frames = frames(bytes, at, &sums)?;
    let hash = GroupHash::new(content).over(frames.iter().map(|(_, frame)| &frame.hash));
    let end = Point {
        segment: at.segment,
        offset: sums.end(),
        position: at.position + frames.len() as u64,
        group: at.group + 1,
        hash,
        epoch: head.epoch,
    };
    Ok(Group { position: at.position, frames, end })
}

/// The next frames of a rewritten segment: those of one kept block. Of the place after them only offset and position
/// are known.
pub(crate) fn kept_in<'a>(bytes: Bytes<'a>, at: &Point) -> Result<Group<'a>, Stop> {
    let Some(kept) = frame::kept(content_at(bytes, at)?) else {
        return Err(Broken::stop(at.offset, "it is not the head of kept frames"));
    };
    if kept.position < at.position {
        return Err(Broken::stop(at.offset, "its frames stood before those that it follows"));
    }
    let sums = Sums { first: at.offset + KEPT_BLOCK as u64, bytes: kept.bytes, frames: kept.frames };
    let frames = frames(bytes, at, &sums)?;
    let end = Point { offset: sums.end(), position: kept.position + frames.len() as u64, ..*at };
    Ok(Group { position: kept.position, frames, end })
}

/// Bytes that the group or the kept frames at `at` take, as their head says; none if no head is there.
pub(crate) fn extent(bytes: Bytes<'_>, at: &Point) -> Option<usize> {
    let content = content_at(bytes, at).ok()?;
    let of_group = || frame::group(content).map(|head| GROUP_BLOCK + head.bytes as usize);
    of_group().or_else(|| frame::kept(content).map(|head| KEPT_BLOCK + head.bytes as usize))
}

/// The content of the block at `at`, unless it ends the segment.
fn content_at<'a>(bytes: Bytes<'a>, at: &Point) -> Result<&'a [u8], Stop> {
    match bytes.block(at.segment, at.offset) {
        Ok(content) if content.first() == Some(&Tag::Footer.byte()) => Err(Stop::Footer),
        Ok(content) => Ok(content),
        Err(Bad::Empty) => Err(Stop::End),
        Err(Bad::Newer(version)) => Err(Stop::Newer(version)),
        Err(Bad::Broken(reason)) => Err(Broken::stop(at.offset, reason)),
    }
}

/// What a head says of the frames behind it.
struct Sums {
    /// Offset of the first.
    first: u64,
    bytes: u32,
    frames: u32,
}

impl Sums {
    fn end(&self) -> u64 {
        self.first + u64::from(self.bytes)
    }
}

fn check_chain(head: &GroupHead, at: &Point) -> Result<(), String> {
    if head.number != at.group {
        Err(format!("group {} stands where group {} belongs", head.number, at.group))
    } else if head.prev_hash != at.hash {
        Err(format!("group {} does not continue the group before it", head.number))
    } else if head.position != at.position {
        Err(format!("group {} counts {} frames before it, not {}", head.number, head.position, at.position))
    } else if head.epoch < at.epoch {
        Err(format!("group {} is of epoch {}, after epoch {}", head.number, head.epoch, at.epoch))
    } else {
        Ok(())
    }
}

fn frames<'a>(bytes: Bytes<'a>, at: &Point, sums: &Sums) -> Result<Vec<(u64, Frame<'a>)>, Stop> {
    let mut frames = Vec::new();
    let mut offset = sums.first;
    while offset < sums.end() {
        let broken = |reason: &str| {
            let record = frame::peek(bytes.from(offset));
            Stop::Broken(Broken { offset, reason: reason.to_owned(), record })
        };
        let content = match bytes.block(at.segment, offset) {
            Ok(content) => content,
            Err(Bad::Empty) => return Err(broken("a frame is missing")),
            Err(Bad::Newer(version)) => return Err(Stop::Newer(version)),
            Err(Bad::Broken(reason)) => return Err(broken(reason)),
        };
        let Some(frame) = frame::frame(content) else {
            return Err(broken("it is not a frame"));
        };
        frames.push((offset, frame));
        offset += (frame::ENVELOPE + content.len()) as u64;
    }
    if offset != sums.end() || frames.len() != sums.frames as usize {
        return Err(Broken::stop(at.offset, "its frames do not add up"));
    }
    Ok(frames)
}

/// Bytes between two places that a walk notes.
const MARK_BYTES: u64 = 1 << 20;

/// What a walk has seen.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) index: Growing,
    /// Places between groups, some way apart, from which reading may begin again.
    pub(crate) marks: Vec<Point>,
    /// Where the groups end, and why there.
    pub(crate) end: Point,
    pub(crate) stop: Stop,
}

/// Walks all groups from `at` on.
pub(crate) fn walk(bytes: &[u8], at: &Point) -> Walked {
    let mut index = Growing::default();
    let (mut at, mut marks) = (*at, vec![*at]);
    loop {
        if marks.last().is_none_or(|mark| at.offset >= mark.offset + MARK_BYTES) {
            marks.push(at);
        }
        match group_at(bytes, &at) {
            Ok(group) => {
                for (offset, frame) in &group.frames {
                    let kind = frame.header.kind;
                    let place = Place::new(*offset as u32, kind.carries_messages);
                    index.push(frame.header.stream, frame.header.seq, place);
                }
                at = group.end;
            }
            Err(stop) => return Walked { index, marks, end: at, stop },
        }
    }
}

/// A later group says that `place` (segment and offset) was durable, though it is bad: then it is damage.
/// Returns the offset of that group.
pub(crate) fn durable_past(bytes: &[u8], segment: u64, from: usize, place: (u64, u64)) -> Option<usize> {
    let mut from = from;
    while let Some((offset, head)) = frame::next_group(bytes, segment, from) {
        if head.durable > place {
            return Some(offset);
        }
        from = offset + 1;
    }
    None
}

/// What stands from `at` on in the newest segment, of `size` bytes, was not durable as far as its file shows: it may be
/// cut. A footer that begins at `at` does not make it durable: it is synced after all else and may be half there.
pub(crate) fn is_tail(bytes: &[u8], at: &Point, size: u64) -> bool {
    let from = at.offset as usize;
    durable_past(bytes, at.segment, from, (at.segment, at.offset)).is_none()
        && !was_durable(bytes, from, size)
}

/// A footer stands at `at`, or at least its first or its last bytes.
pub(crate) fn has_footer(bytes: &[u8], at: u64) -> bool {
    bytes.get(at as usize + frame::ENVELOPE) == Some(&Tag::Footer.byte()) || trailer(bytes).is_some()
}

/// The offset of the footer that the last bytes of the file name, if they do.
pub(crate) fn trailer(bytes: &[u8]) -> Option<u64> {
    index::footer_offset(bytes.get(bytes.len().checked_sub(TRAILER)?..)?)
}

/// What stands at `at` in a segment of `size` bytes was durable, as the file itself shows: its footer stands further
/// on, or a group begins there in a file that was shortened, which a writer does only where a group ends.
pub(crate) fn was_durable(bytes: &[u8], at: usize, size: u64) -> bool {
    let is_group = bytes.get(at + frame::ENVELOPE) == Some(&Tag::Group.byte());
    trailer(bytes).is_some_and(|footer| footer > at as u64) || (is_group && (bytes.len() as u64) < size)
}
