//! Where the records of each stream lie in one segment: grown in memory while the segment is open, written as
//! its footer when it is sealed.
//!
//! ```text
//! content of a footer = 'I' · version · end: point · streams u32 · places u32
//!                       · (stream · first_seq u64 · count u32) per stream, in order
//!                       · place u32 per record · offset of this block u64 · magic
//! place               = offset of the frame's block; the top bit says that the record carries messages
//! ```
//!
//! A stream's records have consecutive sequence numbers, so the first one and the places locate them all. The
//! offset and the magic are the last bytes of a sealed file: they find the footer. Must never touch the disk.

use std::collections::HashMap;

use crate::bytes::Cursor;
use crate::frame::{self, FORMAT, Point, Tag};
use crate::{Seq, Stream};

/// Bytes at the end of a sealed file that find the footer: its offset and the magic.
pub(crate) const TRAILER: usize = 8 + MAGIC.len();
const MAGIC: &[u8; 8] = b"spragend";
const CARRIES_MESSAGES: u32 = 1 << 31;

/// Place of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    pub(crate) fn new(offset: u32, carries_messages: bool) -> Self {
        debug_assert!(offset < CARRIES_MESSAGES, "segments stay far below 2 GiB");
        Self(if carries_messages { offset | CARRIES_MESSAGES } else { offset })
    }

    pub(crate) fn offset(self) -> u64 {
        u64::from(self.0 & !CARRIES_MESSAGES)
    }

    pub(crate) fn carries_messages(self) -> bool {
        self.0 & CARRIES_MESSAGES != 0
    }
}

/// The index of an open segment.
#[derive(Debug, Default)]
pub(crate) struct Growing(HashMap<Stream, (Seq, Vec<Place>)>);

impl Growing {
    pub(crate) fn push(&mut self, stream: Stream, seq: Seq, place: Place) {
        self.0.entry(stream).or_insert_with(|| (seq, Vec::new())).1.push(place);
    }

    /// Forgets every record at or past `offset`.
    pub(crate) fn truncate(&mut self, offset: u64) {
        self.0.retain(|_, (_, places)| {
            places.truncate(places.partition_point(|place| place.offset() < offset));
            !places.is_empty()
        });
    }

    /// The first sequence number and the places of a stream's records.
    pub(crate) fn find(&self, stream: Stream) -> Option<(Seq, &[Place])> {
        self.0.get(&stream).map(|(first, places)| (*first, places.as_slice()))
    }

    pub(crate) fn to_index(&self) -> Index {
        let mut streams: Vec<_> = self.0.iter().collect();
        streams.sort_unstable_by_key(|(stream, _)| **stream);
        let mut index = Index { entries: Vec::with_capacity(streams.len()), places: Vec::new() };
        for (stream, (first, places)) in streams {
            let start = index.places.len();
            index.places.extend_from_slice(places);
            index.entries.push(Entry { stream: *stream, first: *first, start, count: places.len() });
        }
        index
    }
}

/// The index of a segment that grows no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Sorted by stream.
    entries: Vec<Entry>,
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    stream: Stream,
    first: Seq,
    /// Its places begin here in `places`.
    start: usize,
    count: usize,
}

impl Index {
    /// The first sequence number and the places of a stream's records.
    pub(crate) fn find(&self, stream: Stream) -> Option<(Seq, &[Place])> {
        let at = self.entries.binary_search_by_key(&stream, |entry| entry.stream).ok()?;
        let entry = self.entries.get(at)?;
        Some((entry.first, self.places.get(entry.start..entry.start + entry.count)?))
    }

    /// The streams that have records in the segment, in order.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Stream> {
        self.entries.iter().map(|entry| entry.stream)
    }

    /// The places of all records, each with its stream, in no order.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Stream, Place)> {
        self.entries.iter().flat_map(|entry| {
            let places = self.places.get(entry.start..entry.start + entry.count).unwrap_or_default();
            places.iter().map(|place| (entry.stream, *place))
        })
    }

    /// The offset of every record, with its name, in no order.
    pub(crate) fn named(&self) -> impl Iterator<Item = (u64, (Stream, Seq))> {
        self.entries.iter().flat_map(|entry| {
            let places = self.places.get(entry.start..entry.start + entry.count).unwrap_or_default();
            (entry.first..).zip(places).map(|(seq, place)| (place.offset(), (entry.stream, seq)))
        })
    }

    /// The footer block for the end of the segment.
    pub(crate) fn to_footer(&self, end: &Point) -> Vec<u8> {
        self.to_footer_at(end, end.offset)
    }

    /// The footer block for a segment that ends at `end` and whose frames end at `offset` of its file.
    pub(crate) fn to_footer_at(&self, end: &Point, offset: u64) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(256 + self.entries.len() * 29 + self.places.len() * 4);
        let at = frame::start(&mut buffer);
        buffer.extend_from_slice(&[Tag::Footer.byte(), FORMAT]);
        frame::put_point(&mut buffer, end);
        buffer.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&(self.places.len() as u32).to_le_bytes());
        for entry in &self.entries {
            buffer.extend_from_slice(&frame::stream_bytes(entry.stream));
            buffer.extend_from_slice(&entry.first.to_le_bytes());
            buffer.extend_from_slice(&(entry.count as u32).to_le_bytes());
        }
        for place in &self.places {
            buffer.extend_from_slice(&place.0.to_le_bytes());
        }
        buffer.extend_from_slice(&offset.to_le_bytes());
        buffer.extend_from_slice(MAGIC);
        let len = buffer.len();
        frame::close(&mut buffer, at, len, end.segment, offset);
        buffer
    }
}

/// The offset of the footer that the last bytes of a file name, if they do.
pub(crate) fn footer_offset(trailer: &[u8]) -> Option<u64> {
    let mut cursor = Cursor(trailer);
    let offset = cursor.u64()?;
    cursor.expect(MAGIC)?;
    Some(offset)
}

/// Reads a footer's content: where the segment ends, and its index.
pub(crate) fn footer(content: &[u8]) -> Option<(Point, Index)> {
    let mut cursor = Cursor(content);
    cursor.expect(&[Tag::Footer.byte(), FORMAT])?;
    let end = cursor.point()?;
    let (streams, places) = (cursor.u32()? as usize, cursor.u32()? as usize);
    let mut index = Index { entries: Vec::new(), places: Vec::new() };
    let mut start = 0;
    for _ in 0..streams {
        let (stream, first, count) = (cursor.stream()?, cursor.u64()?, cursor.u32()? as usize);
        index.entries.push(Entry { stream, first, start, count });
        start = start.checked_add(count)?;
    }
    for _ in 0..places {
        index.places.push(Place(cursor.u32()?));
    }
    (start == places && cursor.0.len() == TRAILER && footer_offset(cursor.0).is_some())
        .then_some((end, index))
}
