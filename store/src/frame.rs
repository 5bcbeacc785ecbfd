//! The bytes of the journal: six kinds of blocks, and how each is encoded and checked.
//!
//! ```text
//! block  = len u32 · crc32c u32 · content            the checksum covers segment number, offset and content
//! content of a head   = 'H' · version · magic · segment u64 · size u64 · from: point
//! content of a group  = 'G' · version · magic · number u64 · prev_hash · position u64 · epoch u64
//!                       · durable_segment u64 · durable_offset u64 · frames u32 · bytes u32
//! content of a frame  = 'F' · header · flags u8 · payload_len u32 · payload · puts
//! content of a rewritten segment's head
//!                     = 'R' · version · magic · segment u64 · from: point · end: point · checkpoint u64
//! content of a kept   = 'K' · version · position u64 · frames u32 · bytes u32
//! header  = version u8 · logic_version u16 · stream · seq u64 · epoch u64 · at i64 · kind
//!           · prev_hash · payload_hash · puts_hash · state_hash                (174 bytes)
//! payload = salt (16 bytes) · bytes                  redacted: as many zeros, so offsets and chains stand
//! put     = key_len u16 · value_len u32 (all ones: delete) · key · value
//! point   = segment u64 · offset u64 · position u64 · group u64 · hash · epoch u64
//! ```
//!
//! A kept block stands before frames that follow each other and were kept when their segment was rewritten; it takes
//! the place of the groups that they were in. The sixth kind, the footer, is an index and lives in `index`. All numbers are little endian. The version
//! is the second byte of every content. Must never touch the disk.

use crate::bytes::{Cursor, is_zero};
use crate::{Epoch, Hash, Head, Put, Record, RecordKind, RunKey, Seq, Stream};

/// Version of everything in a segment.
pub(crate) const FORMAT: u8 = 1;
/// Length and checksum before a content.
pub(crate) const ENVELOPE: usize = 8;
/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 174;
/// Bytes of a frame without payload (salt included there) and puts.
pub(crate) const FRAME_FIXED: usize = ENVELOPE + 1 + HEADER + 1 + 4;
/// Bytes of the salt before a payload.
pub(crate) const SALT: usize = 16;
/// No block is larger: a frame at its limit, or the footer of the largest segment full of the smallest
/// frames.
pub(crate) const BLOCK_MAX: usize = crate::limits::FRAME_BYTES_MAX + ENVELOPE;
/// Bytes of a group's header block.
pub(crate) const GROUP_BLOCK: usize = ENVELOPE + 88;
/// Bytes of a segment's head block.
pub(crate) const HEAD_BLOCK: usize = ENVELOPE + 2 + MAGIC + 16 + POINT;
/// Bytes of the head block of a segment that was rewritten.
pub(crate) const REWRITTEN_HEAD_BLOCK: usize = ENVELOPE + 2 + MAGIC + 8 + 2 * POINT + 8;
/// Bytes of the block before frames that were kept.
pub(crate) const KEPT_BLOCK: usize = ENVELOPE + 2 + 16;

const MAGIC: usize = 6;
const HEAD_MAGIC: &[u8; MAGIC] = b"sprag\0";
/// Starts a group's content after tag and version: what a search after damage looks for.
const GROUP_MAGIC: &[u8; MAGIC] = b"\xf7group";
const POINT: usize = 72;
const STREAM: usize = 17;
const DELETED: u32 = u32::MAX;
const FLAG_BARRIER: u8 = 1;
const FLAG_REDACTED: u8 = 2;

/// What a block is, by the first byte of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Head,
    Group,
    Frame,
    Footer,
    Rewritten,
    Kept,
}

impl Tag {
    pub(crate) const fn byte(self) -> u8 {
        match self {
            Self::Head => b'H',
            Self::Group => b'G',
            Self::Frame => b'F',
            Self::Footer => b'I',
            Self::Rewritten => b'R',
            Self::Kept => b'K',
        }
    }
}

/// A place between two groups, with all that the next group continues from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Segment number, from 1.
    pub segment: u64,
    /// Byte offset in that segment.
    pub offset: u64,
    /// Frames before it, in the whole journal.
    pub position: u64,
    /// Groups before it, in the whole journal.
    pub group: u64,
    /// Hash of the group before it.
    pub hash: Hash,
    /// Epoch of the writer of that group.
    pub epoch: u64,
}

impl Point {
    /// Where an empty journal begins.
    pub(crate) const START: Self =
        Self { segment: 0, offset: 0, position: 0, group: 0, hash: Hash([0; 32]), epoch: 0 };
}

/// First block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) segment: u64,
    /// Bytes that were zeroed for it; 0 if it was rewritten.
    pub(crate) size: u64,
    /// Where the segment before it ends.
    pub(crate) from: Point,
    /// What a rewritten segment says of what it was; none if it is as it was written.
    pub(crate) rewritten: Option<Rewritten>,
}

/// What a segment was before frames were dropped from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// Where it ended, and where the next segment still continues from.
    pub(crate) end: Point,
    /// Frames before this position put again what the dropped ones had put and still holds.
    pub(crate) checkpoint: u64,
}

/// First block of frames that were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Position of the first of them in the journal.
    pub(crate) position: u64,
    pub(crate) frames: u32,
    /// Bytes of all of them.
    pub(crate) bytes: u32,
}

impl SegmentHead {
    /// Bytes of its block: the first group or kept block follows.
    pub(crate) fn block_bytes(&self) -> usize {
        if self.rewritten.is_some() { REWRITTEN_HEAD_BLOCK } else { HEAD_BLOCK }
    }
}

/// First block of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHead {
    pub(crate) number: u64,
    pub(crate) prev_hash: Hash,
    /// Frames in the journal before this group.
    pub(crate) position: u64,
    pub(crate) epoch: u64,
    /// Segment and offset up to which all was durable when this was written.
    pub(crate) durable: (u64, u64),
    pub(crate) frames: u32,
    /// Bytes of all the frames.
    pub(crate) bytes: u32,
}

/// What a record's hash covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) logic_version: u16,
    pub(crate) stream: Stream,
    pub(crate) seq: Seq,
    pub(crate) epoch: u64,
    pub(crate) at_ms: i64,
    pub(crate) kind: RecordKind,
    pub(crate) prev_hash: Hash,
    pub(crate) payload_hash: Hash,
    pub(crate) puts_hash: Hash,
    pub(crate) state_hash: Hash,
}

/// A frame as it lies in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) header: Header,
    /// Hash of the header: the record's hash.
    pub(crate) hash: Hash,
    pub(crate) barrier: bool,
    /// Salt and bytes; none if redacted.
    pub(crate) payload: Option<&'a [u8]>,
    /// Encoded puts.
    pub(crate) puts: &'a [u8],
    /// All of it, as it lies in its block.
    pub(crate) content: &'a [u8],
}

/// Why bytes are not a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Zeros: nothing was written here.
    Empty,
    /// Not what was written; the reason.
    Broken(&'static str),
    /// Whole, but of a newer format.
    Newer(u8),
}

impl Frame<'_> {
    /// The record as readers see it; none if the puts do not decode.
    pub(crate) fn to_record(self) -> Option<Record> {
        let Header { logic_version, stream, seq, epoch, at_ms, kind, prev_hash, state_hash, .. } =
            self.header;
        Some(Record {
            stream,
            head: Head { seq, hash: self.hash },
            prev_hash,
            epoch: Epoch(epoch),
            at_ms,
            logic_version,
            kind,
            payload: self.payload.and_then(|payload| payload.get(SALT..)).map(<[u8]>::to_vec),
            puts: decode_puts(self.puts)?,
            state_hash,
            barrier: self.barrier,
        })
    }
}

/// The blake3 hash of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

/// Leaves room for an envelope at the end of `buffer`; `close` fills it.
pub(crate) fn start(buffer: &mut Vec<u8>) -> usize {
    let at = buffer.len();
    buffer.extend_from_slice(&[0; ENVELOPE]);
    at
}

/// Fills the envelope at `at` for the content between it and `end`, which will lie at `offset` of `segment`.
pub(crate) fn close(buffer: &mut [u8], at: usize, end: usize, segment: u64, offset: u64) {
    let (envelope, content) = buffer[at..end].split_at_mut(ENVELOPE);
    let (len, crc) = envelope.split_at_mut(4);
    len.copy_from_slice(&(content.len() as u32).to_le_bytes());
    crc.copy_from_slice(&checksum(segment, offset, content).to_le_bytes());
}

/// The content of the block at `offset`, whole and of a format that we read. `bytes` is the segment from its
/// start.
pub(crate) fn block(bytes: &[u8], segment: u64, offset: usize) -> Result<&[u8], Bad> {
    block_alone(bytes.get(offset..).unwrap_or_default(), segment, offset as u64)
}

/// The content of the block that `bytes` begin with, read from `offset` of the segment.
pub(crate) fn block_alone(bytes: &[u8], segment: u64, offset: u64) -> Result<&[u8], Bad> {
    let envelope = bytes.get(..ENVELOPE).unwrap_or(bytes);
    if is_zero(envelope) {
        return Err(Bad::Empty);
    }
    let mut cursor = Cursor(bytes);
    let (Some(len), Some(crc)) = (cursor.u32(), cursor.u32()) else {
        return Err(Bad::Broken("it is cut short"));
    };
    let Some(content) = cursor.take(len as usize).filter(|content| content.len() >= 2) else {
        return Err(Bad::Broken("its length cannot be"));
    };
    if checksum(segment, offset, content) != crc {
        return Err(Bad::Broken("its checksum does not match"));
    }
    match content[1] {
        FORMAT => Ok(content),
        version if version > FORMAT => Err(Bad::Newer(version)),
        _ => Err(Bad::Broken("its version cannot be")),
    }
}

fn checksum(segment: u64, offset: u64, content: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&segment.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), content)
}

/// Writes a segment's head block over the first `HEAD_BLOCK` bytes of `place`: it lies at offset 0.
pub(crate) fn write_head(place: &mut [u8], head: &SegmentHead) {
    let mut block = Vec::with_capacity(HEAD_BLOCK);
    let at = start(&mut block);
    block.extend_from_slice(&[Tag::Head.byte(), FORMAT]);
    block.extend_from_slice(HEAD_MAGIC);
    block.extend_from_slice(&head.segment.to_le_bytes());
    block.extend_from_slice(&head.size.to_le_bytes());
    put_point(&mut block, &head.from);
    close(&mut block, at, HEAD_BLOCK, head.segment, 0);
    place[..HEAD_BLOCK].copy_from_slice(&block);
}

/// Reads a segment head's content, of either kind.
pub(crate) fn head(content: &[u8]) -> Option<SegmentHead> {
    let mut cursor = Cursor(content);
    let tag = cursor.u8()?;
    cursor.expect(&[FORMAT])?;
    cursor.expect(HEAD_MAGIC)?;
    let segment = cursor.u64()?;
    if tag == Tag::Head.byte() {
        return Some(SegmentHead { segment, size: cursor.u64()?, from: cursor.point()?, rewritten: None });
    }
    let from = (tag == Tag::Rewritten.byte()).then(|| cursor.point())??;
    let rewritten = Rewritten { end: cursor.point()?, checkpoint: cursor.u64()? };
    Some(SegmentHead { segment, size: 0, from, rewritten: Some(rewritten) })
}

/// The head block of segment `segment`, which continues from `from`, when it is rewritten.
pub(crate) fn rewritten_head(segment: u64, from: &Point, rewritten: &Rewritten) -> Vec<u8> {
    let mut block = Vec::with_capacity(REWRITTEN_HEAD_BLOCK);
    let at = start(&mut block);
    block.extend_from_slice(&[Tag::Rewritten.byte(), FORMAT]);
    block.extend_from_slice(HEAD_MAGIC);
    block.extend_from_slice(&segment.to_le_bytes());
    put_point(&mut block, from);
    put_point(&mut block, &rewritten.end);
    block.extend_from_slice(&rewritten.checkpoint.to_le_bytes());
    close(&mut block, at, REWRITTEN_HEAD_BLOCK, segment, 0);
    block
}

/// Writes a kept block over the first `KEPT_BLOCK` bytes of `place`.
pub(crate) fn write_kept(place: &mut [u8], kept: &Kept, segment: u64, offset: u64) {
    let mut block = Vec::with_capacity(KEPT_BLOCK);
    let at = start(&mut block);
    block.extend_from_slice(&[Tag::Kept.byte(), FORMAT]);
    block.extend_from_slice(&kept.position.to_le_bytes());
    block.extend_from_slice(&kept.frames.to_le_bytes());
    block.extend_from_slice(&kept.bytes.to_le_bytes());
    close(&mut block, at, KEPT_BLOCK, segment, offset);
    place[..KEPT_BLOCK].copy_from_slice(&block);
}

/// Reads a kept block's content.
pub(crate) fn kept(content: &[u8]) -> Option<Kept> {
    let mut cursor = Cursor(content);
    cursor.expect(&[Tag::Kept.byte(), FORMAT])?;
    Some(Kept { position: cursor.u64()?, frames: cursor.u32()?, bytes: cursor.u32()? })
}

/// Writes a group's header block over the first `GROUP_BLOCK` bytes of `place`.
pub(crate) fn write_group(place: &mut [u8], head: &GroupHead, segment: u64, offset: u64) {
    let mut block = Vec::with_capacity(GROUP_BLOCK);
    let at = start(&mut block);
    block.extend_from_slice(&[Tag::Group.byte(), FORMAT]);
    block.extend_from_slice(GROUP_MAGIC);
    block.extend_from_slice(&head.number.to_le_bytes());
    block.extend_from_slice(&head.prev_hash.0);
    for number in [head.position, head.epoch, head.durable.0, head.durable.1] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    block.extend_from_slice(&head.frames.to_le_bytes());
    block.extend_from_slice(&head.bytes.to_le_bytes());
    close(&mut block, at, GROUP_BLOCK, segment, offset);
    place[..GROUP_BLOCK].copy_from_slice(&block);
}

/// Reads a group header's content.
pub(crate) fn group(content: &[u8]) -> Option<GroupHead> {
    let mut cursor = Cursor(content);
    cursor.expect(&[Tag::Group.byte(), FORMAT])?;
    cursor.expect(GROUP_MAGIC)?;
    Some(GroupHead {
        number: cursor.u64()?,
        prev_hash: cursor.hash()?,
        position: cursor.u64()?,
        epoch: cursor.u64()?,
        durable: (cursor.u64()?, cursor.u64()?),
        frames: cursor.u32()?,
        bytes: cursor.u32()?,
    })
}

/// The first whole group header at or after `from`: where reading can go on after damage.
pub(crate) fn next_group(bytes: &[u8], segment: u64, from: usize) -> Option<(usize, GroupHead)> {
    const LEAD: usize = ENVELOPE + 2;
    let mut from = from + LEAD;
    loop {
        let found = find_magic(bytes, from)?;
        let offset = found - LEAD;
        if let Some(head) = block(bytes, segment, offset).ok().and_then(group) {
            return Some((offset, head));
        }
        from = found + 1;
    }
}

/// Where the next group's magic bytes stand. Most of what is searched is the unused rest of a segment: zeros, which hold
/// none of them, are passed a block at a time.
fn find_magic(bytes: &[u8], from: usize) -> Option<usize> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = from;
    while at < bytes.len() {
        let end = bytes.len().min(at + ZEROS.len());
        if bytes[at..end] != ZEROS[..end - at] {
            // A magic that begins in this block may end in the next.
            let block = &bytes[at..bytes.len().min(end + MAGIC - 1)];
            if let Some(found) = block.windows(MAGIC).position(|window| window == GROUP_MAGIC) {
                return Some(at + found);
            }
        }
        at = end;
    }
    None
}

/// Hash of a group: its header and the hashes of its records, so it covers everything but the salted bytes
/// themselves, which the records' hashes cover.
#[derive(Debug)]
pub(crate) struct GroupHash(blake3::Hasher);

impl GroupHash {
    /// Starts with the group's header block.
    pub(crate) fn new(content: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(content);
        Self(hasher)
    }

    /// The hash over the header and `records`, in order.
    pub(crate) fn over<'a>(mut self, records: impl Iterator<Item = &'a Hash>) -> Hash {
        for record in records {
            self.0.update(&record.0);
        }
        Hash(*self.0.finalize().as_bytes())
    }
}

/// Appends a frame without closing it: its envelope is filled when the place in the segment is known. Returns
/// the record's hash.
pub(crate) fn put_frame(
    buffer: &mut Vec<u8>,
    header: &Header,
    payload: (&[u8; SALT], &[u8]),
    puts: &[u8],
) -> Hash {
    start(buffer);
    buffer.push(Tag::Frame.byte());
    let at = buffer.len();
    put_header(buffer, header);
    let record = hash(&buffer[at..]);
    buffer.push(0);
    buffer.extend_from_slice(&((SALT + payload.1.len()) as u32).to_le_bytes());
    buffer.extend_from_slice(payload.0);
    buffer.extend_from_slice(payload.1);
    buffer.extend_from_slice(puts);
    record
}

/// Marks the open frame at `at` as written by a group with a barrier.
pub(crate) fn set_barrier(buffer: &mut [u8], at: usize) {
    buffer[at + ENVELOPE + 1 + HEADER] |= FLAG_BARRIER;
}

fn put_header(buffer: &mut Vec<u8>, header: &Header) {
    buffer.push(FORMAT);
    buffer.extend_from_slice(&header.logic_version.to_le_bytes());
    buffer.extend_from_slice(&stream_bytes(header.stream));
    buffer.extend_from_slice(&header.seq.to_le_bytes());
    buffer.extend_from_slice(&header.epoch.to_le_bytes());
    buffer.extend_from_slice(&header.at_ms.to_le_bytes());
    let RecordKind { code, carries_messages, ends_stream } = header.kind;
    buffer.extend_from_slice(&[code, u8::from(carries_messages) | u8::from(ends_stream) << 1]);
    for hash in [&header.prev_hash, &header.payload_hash, &header.puts_hash, &header.state_hash] {
        buffer.extend_from_slice(&hash.0);
    }
}

/// Reads a frame's content.
pub(crate) fn frame(content: &[u8]) -> Option<Frame<'_>> {
    let mut cursor = Cursor(content);
    cursor.expect(&[Tag::Frame.byte()])?;
    let bytes = cursor.take(HEADER)?;
    let header = header(bytes)?;
    let flags = cursor.u8()?;
    let len = cursor.u32()? as usize;
    let payload = cursor.take(len)?;
    if flags & !(FLAG_BARRIER | FLAG_REDACTED) != 0 {
        return None;
    }
    Some(Frame {
        header,
        hash: hash(bytes),
        barrier: flags & FLAG_BARRIER != 0,
        payload: (flags & FLAG_REDACTED == 0).then_some(payload),
        puts: cursor.0,
        content,
    })
}

fn header(bytes: &[u8]) -> Option<Header> {
    let mut cursor = Cursor(bytes);
    cursor.expect(&[FORMAT])?;
    Some(Header {
        logic_version: cursor.u16()?,
        stream: cursor.stream()?,
        seq: cursor.u64()?,
        epoch: cursor.u64()?,
        at_ms: cursor.u64()? as i64,
        kind: {
            let (code, bits) = (cursor.u8()?, cursor.u8()?);
            (bits < 4).then_some(RecordKind {
                code,
                carries_messages: bits & 1 != 0,
                ends_stream: bits & 2 != 0,
            })?
        },
        prev_hash: cursor.hash()?,
        payload_hash: cursor.hash()?,
        puts_hash: cursor.hash()?,
        state_hash: cursor.hash()?,
    })
}

/// What a broken frame says of itself: to locate damage, not to trust.
pub(crate) fn peek(block: &[u8]) -> Option<(Stream, Seq)> {
    let mut cursor = Cursor(block.get(ENVELOPE..)?);
    cursor.expect(&[Tag::Frame.byte()])?;
    let header = header(cursor.take(HEADER)?)?;
    Some((header.stream, header.seq))
}

/// A stream in 17 bytes: a tag, then the run's key or the own stream's number.
pub(crate) fn stream_bytes(stream: Stream) -> [u8; STREAM] {
    let mut bytes = [0; STREAM];
    let (tag, key) = match stream {
        Stream::Own(number) => (0, {
            let mut key = [0; 16];
            key[0] = number;
            key
        }),
        Stream::Run(RunKey(key)) => (1, key),
        Stream::Inbox(RunKey(key)) => (2, key),
    };
    bytes[0] = tag;
    bytes[1..].copy_from_slice(&key);
    bytes
}

pub(crate) fn put_point(buffer: &mut Vec<u8>, point: &Point) {
    for number in [point.segment, point.offset, point.position, point.group] {
        buffer.extend_from_slice(&number.to_le_bytes());
    }
    buffer.extend_from_slice(&point.hash.0);
    buffer.extend_from_slice(&point.epoch.to_le_bytes());
}

/// Appends one encoded put.
pub(crate) fn put_put(buffer: &mut Vec<u8>, put: &Put) {
    buffer.extend_from_slice(&(put.key.len() as u16).to_le_bytes());
    let len = put.value.as_ref().map_or(DELETED, |value| value.len() as u32);
    buffer.extend_from_slice(&len.to_le_bytes());
    buffer.extend_from_slice(&put.key);
    buffer.extend_from_slice(put.value.as_deref().unwrap_or_default());
}

/// Reads encoded puts to their end.
pub(crate) fn decode_puts(bytes: &[u8]) -> Option<Vec<Put>> {
    let mut cursor = Cursor(bytes);
    let mut puts = Vec::new();
    while !cursor.0.is_empty() {
        let key_len = cursor.u16()?;
        let value_len = cursor.u32()?;
        let key = cursor.take(key_len.into())?.to_vec();
        let value = if value_len == DELETED { None } else { Some(cursor.take(value_len as usize)?.to_vec()) };
        puts.push(Put { key, value });
    }
    Some(puts)
}
