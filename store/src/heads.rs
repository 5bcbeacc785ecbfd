//! What the store itself keeps in the state: per stream its newest record and the segments that hold it.
//!
//! It is derived from each record alone, by `StreamHead::after`, so that it is rebuilt from the journal equal
//! key by key. Must never be part of a frame's puts: it holds the record's hash.

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
}

impl StreamHead {
    /// The head after a record with `header` and `hash` was written to `segment`.
    pub(crate) fn after(before: Option<&Self>, header: &Header, hash: Hash, segment: u64) -> Self {
        Self {
            head: Head { seq: header.seq, hash },
            first_segment: before.map_or(segment, |before| before.first_segment),
            last_segment: segment,
            is_ended: header.kind.ends_stream || before.is_some_and(|before| before.is_ended),
        }
    }

    /// The put that stores it.
    pub(crate) fn to_put(self, stream: Stream) -> Put {
        let mut value = Vec::with_capacity(57);
        value.extend_from_slice(&self.head.seq.to_le_bytes());
        value.extend_from_slice(&self.head.hash.0);
        value.extend_from_slice(&self.first_segment.to_le_bytes());
        value.extend_from_slice(&self.last_segment.to_le_bytes());
        value.push(u8::from(self.is_ended));
        Put { key: key(stream), value: Some(value) }
    }

    /// Reads a stored value; none if it is not one.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(value);
        Some(Self {
            head: Head { seq: cursor.u64()?, hash: cursor.hash()? },
            first_segment: cursor.u64()?,
            last_segment: cursor.u64()?,
            is_ended: cursor.u8()? != 0,
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

/// Sorts after every key of a head, and before every key that is not the store's own.
pub(crate) const LAST: &[u8] = &[TAG + 1];
