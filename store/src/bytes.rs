//! Reading of little-endian bytes that may be anything: every step answers none instead of failing.

use crate::frame::Point;
use crate::{Hash, RunKey, Stream};

/// Nothing was written here.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Reads fixed-width fields from the front of bytes.
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        (self.take(bytes.len())? == bytes).then_some(())
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn hash(&mut self) -> Option<Hash> {
        self.array().map(Hash)
    }

    /// A stream as `frame::stream_bytes` wrote it.
    pub(crate) fn stream(&mut self) -> Option<Stream> {
        let (tag, key) = (self.u8()?, self.array()?);
        match tag {
            0 if is_zero(&key[1..]) => Some(Stream::Own(key[0])),
            1 => Some(Stream::Run(RunKey(key))),
            2 => Some(Stream::Inbox(RunKey(key))),
            _ => None,
        }
    }

    /// A point as `frame::put_point` wrote it.
    pub(crate) fn point(&mut self) -> Option<Point> {
        Some(Point {
            segment: self.u64()?,
            offset: self.u64()?,
            position: self.u64()?,
            group: self.u64()?,
            hash: self.hash()?,
            epoch: self.u64()?,
        })
    }
}
