//! What the store itself keeps in the state: per stream its newest record and the segments that hold it, and which
//! segments are to be rewritten.
//!
//! A head is derived from each record alone, by `StreamHead::after`, so that it is rebuilt from the journal equal
//! key by key. It must never be part of the puts of its own record, whose hash it holds; only the record of a purge puts
//! heads, those of the runs that it purges.

use crate::bytes::Cursor;
use crate::frame::{Header, stream_bytes};
use crate::{Hash, Head, Put, Stream};

/// First byte of the keys that hold a stream's head.
const TAG: u8 = 0x01;

/// The newest record of a stream, and where its records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHead {
    pub(crate) head: Head,
    pub(crate) first_segment: u64,
    pub(crate) last_segment: u64,
    /// The stream has ended.
    pub(crate) is_ended: bool,
    /// Its records are gone, or will be: the run was purged. It stays known, so that it never begins again.
    pub(crate) is_purged: bool,
}

const ENDED: u8 = 1;
const PURGED: u8 = 2;

impl StreamHead {
    /// The head after a record with `header` and `hash` was written to `segment`.
    pub(crate) fn after(before: Option<&Self>, header: &Header, hash: Hash, segment: u64) -> Self {
        Self {
            head: Head { seq: header.seq, hash },
            first_segment: before.map_or(segment, |before| before.first_segment),
            last_segment: segment,
            is_ended: header.kind.ends_stream || before.is_some_and(|before| before.is_ended),
            is_purged: before.is_some_and(|before| before.is_purged),
        }
    }

    /// The put that stores it.
    pub(crate) fn to_put(self, stream: Stream) -> Put {
        let mut value = Vec::with_capacity(57);
        value.extend_from_slice(&self.head.seq.to_le_bytes());
        value.extend_from_slice(&self.head.hash.0);
        value.extend_from_slice(&self.first_segment.to_le_bytes());
        value.extend_from_slice(&self.last_segment.to_le_bytes());
        value.push(if self.is_ended { ENDED } else { 0 } | if self.is_purged { PURGED } else { 0 });
        Put { key: key(stream), value: Some(value) }
    }

    /// Reads a stored value; none if it is not one.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(value);
        let head = Head { seq: cursor.u64()?, hash: cursor.hash()? };
        let (first_segment, last_segment, bits) = (cursor.u64()?, cursor.u64()?, cursor.u8()?);
        Some(Self {
            head,
            first_segment,
            last_segment,
            is_ended: bits & ENDED != 0,
            is_purged: bits & PURGED != 0,
        })
    }
}

/// The state's key for a stream's head.
pub(crate) fn key(stream: Stream) -> Vec<u8> {
    let mut key = Vec::with_capacity(18);
    key.push(TAG);
    key.extend_from_slice(&stream_bytes(stream));
    key
}

/// The stream of a key that `key` made.
pub(crate) fn stream(key: &[u8]) -> Option<Stream> {
    let (tag, stream) = key.split_first()?;
    if *tag == TAG { Cursor(stream).stream() } else { None }
}

/// First byte of the keys that name a segment which may hold frames of purged runs.
pub(crate) const TO_REWRITE: &[u8] = &[TAG + 1];

/// The state's key for a segment that may hold frames of purged runs.
pub(crate) fn to_rewrite(segment: u64) -> Vec<u8> {
    let mut key = TO_REWRITE.to_vec();
    key.extend_from_slice(&segment.to_be_bytes());
    key
}

/// The segment of a key that `to_rewrite` made.
pub(crate) fn segment(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(TO_REWRITE)?.try_into().ok()?))
}

/// What a put of the store's own says of a purged run: its last record.
pub(crate) fn purged(put: &Put) -> Option<(Stream, Head)> {
    let head = StreamHead::decode(put.value.as_deref()?).filter(|head| head.is_purged)?;
    Some((stream(&put.key)?, head.head))
}

/// Sorts after every key of the store's own, and before every other one.
pub(crate) const LAST: &[u8] = &[TAG + 2];
