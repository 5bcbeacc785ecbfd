//! Walks the groups of one segment, checking framing, checksums and the group chain.
//!
//! Owns what "the next group" means, for recovery, catching up, indexing and verification alike. Must never
//! write, and never judge whether a bad place is damage or a torn tail: that depends on what lies behind it.

use crate::frame::{self, Bad, Frame, GROUP_BLOCK, GroupHash, GroupHead, Point, Tag};
use crate::index::{self, Growing, Place, TRAILER};
use crate::{Seq, Stream};

/// One whole group.
#[derive(Debug)]
pub(crate) struct Group<'a> {
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
    fn stop(offset: usize, reason: impl Into<String>) -> Stop {
        Stop::Broken(Self { offset: offset as u64, reason: reason.into(), record: None })
    }
}

/// The group that continues from `at`. `bytes` is the segment from its start.
pub(crate) fn group_at<'a>(bytes: &'a [u8], at: &Point) -> Result<Group<'a>, Stop> {
    let offset = at.offset as usize;
    let content = match frame::block(bytes, at.segment, offset) {
        Ok(content) => content,
        Err(Bad::Empty) => return Err(Stop::End),
        Err(Bad::Newer(version)) => return Err(Stop::Newer(version)),
        Err(Bad::Broken(reason)) => return Err(Broken::stop(offset, reason)),
    };
    if content.first() == Some(&Tag::Footer.byte()) {
        return Err(Stop::Footer);
    }
    let Some(head) = frame::group(content) else {
        return Err(Broken::stop(offset, "it is not a group"));
    };
    check_chain(&head, at).map_err(|reason| Broken::stop(offset, reason))?;
    let frames = frames(bytes, at.segment, offset + GROUP_BLOCK, &head)?;
    let hash = GroupHash::new(content).over(frames.iter().map(|(_, frame)| &frame.hash));
    let end = Point {
        segment: at.segment,
        offset: at.offset + GROUP_BLOCK as u64 + u64::from(head.bytes),
        position: at.position + frames.len() as u64,
        group: at.group + 1,
        hash,
        epoch: head.epoch,
    };
    Ok(Group { frames, end })
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

fn frames<'a>(
    bytes: &'a [u8],
    segment: u64,
    first: usize,
    head: &GroupHead,
) -> Result<Vec<(u64, Frame<'a>)>, Stop> {
    let end = first + head.bytes as usize;
    let mut frames = Vec::new();
    let mut offset = first;
    while offset < end {
        let broken = |reason: &str| {
            let record = frame::peek(bytes, offset);
            Stop::Broken(Broken { offset: offset as u64, reason: reason.to_owned(), record })
        };
        let content = match frame::block(bytes, segment, offset) {
            Ok(content) => content,
            Err(Bad::Empty) => return Err(broken("a frame is missing")),
            Err(Bad::Newer(version)) => return Err(Stop::Newer(version)),
            Err(Bad::Broken(reason)) => return Err(broken(reason)),
        };
        let Some(frame) = frame::frame(content) else {
            return Err(broken("it is not a frame"));
        };
        frames.push((offset as u64, frame));
        offset += frame::ENVELOPE + content.len();
    }
    if offset != end || frames.len() != head.frames as usize {
        return Err(Broken::stop(first - GROUP_BLOCK, "its frames do not add up"));
    }
    Ok(frames)
}

/// All groups from `at` on: their places, where they end, and why there.
pub(crate) fn walk(bytes: &[u8], at: &Point) -> (Growing, Point, Stop) {
    let mut index = Growing::default();
    let mut at = *at;
    loop {
        match group_at(bytes, &at) {
            Ok(group) => {
                for (offset, frame) in &group.frames {
                    let kind = frame.header.kind;
                    let place = Place::new(*offset as u32, kind.carries_messages);
                    index.push(frame.header.stream, frame.header.seq, place);
                }
                at = group.end;
            }
            Err(stop) => return (index, at, stop),
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

/// What stands at `at` in a segment of `size` bytes was durable, as the file itself shows: its footer stands further
/// on, or a group begins there in a file that was shortened, which a writer does only where a group ends.
pub(crate) fn was_durable(bytes: &[u8], at: usize, size: u64) -> bool {
    let is_group = bytes.get(at + frame::ENVELOPE) == Some(&Tag::Group.byte());
    let trailer = bytes.len().checked_sub(TRAILER).and_then(|from| bytes.get(from..));
    let footer = trailer.and_then(index::footer_offset);
    footer.is_some_and(|footer| footer > at as u64) || (is_group && (bytes.len() as u64) < size)
}
