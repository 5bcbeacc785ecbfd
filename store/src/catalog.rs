//! Reads records of a stream by the segments' indexes, without scanning.
//!
//! Shared between the writer, which extends it, and readers. Owns what readers may see: of the open segment
//! only what is durable. Must never wait for the disk while it holds what the writer needs.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::frame::{self, Bad};
use crate::fs::{Fs, Handle, Mode, error};
use crate::index::{self, Growing, Index, Place};
use crate::limits::INDEXES_MAX;
use crate::recover::newer;
use crate::segment;
use crate::{Error, Record, Seq, Stream};

/// The indexes of all segments.
pub(crate) struct Catalog {
    disk: Arc<dyn Fs>,
    dir: PathBuf,
    open: RwLock<Open>,
    /// Indexes that were read lately.
    recent: Mutex<VecDeque<(Listed, Arc<Index>)>>,
}

#[derive(Default)]
struct Open {
    /// Every segment that holds records, the open one included, in order.
    segments: Vec<Listed>,
    /// Indexes of segments without a footer of their own.
    unsealed: HashMap<u64, Arc<Index>>,
    /// The index of the last segment while it is written.
    growing: Option<(u64, Growing)>,
    /// In the last segment, records before this offset are durable.
    durable: u64,
}

/// A segment that holds records, as its file is at one time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Listed {
    number: u64,
    /// Where its footer stands, if it has one.
    end: u64,
}

/// Which records of a stream a reader wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) stream: Stream,
    pub(crate) from: Seq,
    pub(crate) limit: usize,
    pub(crate) only_messages: bool,
}

impl Catalog {
    pub(crate) fn new(disk: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self { disk, dir, open: RwLock::default(), recent: Mutex::default() }
    }

    /// Adds a segment that ends at `end` and grows no more; `index` if no footer stands there.
    pub(crate) fn add(&self, number: u64, end: u64, index: Option<Index>) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.segments.push(Listed { number, end });
        if let Some(index) = index {
            open.unsealed.insert(number, Arc::new(index));
        }
    }

    /// Adds the records of a group that was written to the open segment `number`.
    pub(crate) fn extend(&self, number: u64, records: impl Iterator<Item = (Stream, Seq, Place)>) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.growing.as_ref().is_none_or(|(growing, _)| *growing != number) {
            open.segments.push(Listed { number, end: 0 });
            open.growing = Some((number, Growing::default()));
            open.durable = 0;
        }
        if let Some((_, growing)) = &mut open.growing {
            records.for_each(|(stream, seq, place)| growing.push(stream, seq, place));
        }
    }

    /// Everything before `offset` of the open segment is durable.
    pub(crate) fn set_durable(&self, offset: u64) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).durable = offset;
    }

    /// The index of the open segment, for its footer.
    pub(crate) fn growing(&self) -> Option<Index> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.growing.as_ref().map(|(_, growing)| growing.to_index())
    }

    /// The open segment was sealed with `index`, whose footer stands at `end`.
    pub(crate) fn seal(&self, index: Index, end: u64) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = open.segments.last_mut() {
            last.end = end;
        }
        if let Some((number, _)) = open.growing.take() {
            self.remember(Listed { number, end }, Arc::new(index));
        }
    }

    /// The open segment was given up: only its records before `offset` exist.
    pub(crate) fn give_up(&self, offset: u64) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((number, mut growing)) = open.growing.take() {
            growing.truncate(offset);
            if offset == 0 {
                open.segments.pop();
            } else {
                open.unsealed.insert(number, Arc::new(growing.to_index()));
            }
        }
    }

    /// Reads records, in order. `within` bounds the segments that can hold them.
    pub(crate) fn read(&self, wanted: &Wanted, within: (u64, u64)) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        for number in self.segments_from(wanted, within)? {
            let limit = wanted.limit - records.len();
            records.extend(self.as_it_is(number, || self.read_in(number, wanted, limit))?);
            if records.len() >= wanted.limit {
                break;
            }
        }
        Ok(records)
    }

    /// The journal's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The numbers of the segments that hold records, in order.
    pub(crate) fn segments(&self) -> Vec<u64> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.segments.iter().map(|listed| listed.number).collect()
    }

    /// The number of the segment that is being written, if any.
    pub(crate) fn open_segment(&self) -> Option<u64> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).growing.as_ref().map(|(number, _)| *number)
    }

    /// Where the footer of a segment stands that grows no more.
    pub(crate) fn end(&self, number: u64) -> u64 {
        end_in(&self.open.read().unwrap_or_else(PoisonError::into_inner), number)
    }

    /// The segment's file was replaced: its footer stands at `end` now.
    pub(crate) fn replaced(&self, number: u64, end: u64) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let listed = open.segments.binary_search_by_key(&number, |listed| listed.number);
        if let Some(listed) = listed.ok().and_then(|at| open.segments.get_mut(at)) {
            listed.end = end;
        }
        open.unsealed.remove(&number);
    }

    /// About as many bytes as the frames of these streams take: each from its beginning to the next frame's.
    pub(crate) fn footprint(&self, is_wanted: impl Fn(Stream) -> bool) -> Result<u64, Error> {
        let mut bytes = 0;
        for number in self.segments() {
            let (index, end) = self.as_it_is(number, || self.index(number))?;
            let mut places: Vec<(u64, bool)> =
                index.places().map(|(stream, place)| (place.offset(), is_wanted(stream))).collect();
            places.sort_unstable();
            let ends = places.iter().skip(1).map(|(offset, _)| *offset).chain([end]);
            let wanted = places.iter().zip(ends).filter(|((_, is_wanted), _)| *is_wanted);
            bytes += wanted.map(|((offset, _), end)| end.saturating_sub(*offset)).sum::<u64>();
        }
        Ok(bytes)
    }

    /// The index of a segment as it is now, and where its frames end.
    fn index(&self, number: u64) -> Result<(Arc<Index>, u64), Error> {
        let (index, end) = {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, growing)) = open.growing.as_ref().filter(|(growing, _)| *growing == number) {
                return Ok((Arc::new(growing.to_index()), open.durable));
            }
            (open.unsealed.get(&number).cloned(), end_in(&open, number))
        };
        Ok((index.map_or_else(|| self.sealed(number, end), Ok)?, end))
    }

    /// Looks whether a segment whose footer stood at `before` was replaced since.
    pub(crate) fn refresh(&self, number: u64, before: u64) -> Result<bool, Error> {
        if self.end(number) != before {
            return Ok(true);
        }
        let path = segment::path(&self.dir, number);
        let look = || {
            let Some(len) = segment::len(&*self.disk, &self.dir, number)? else { return Ok(None) };
            let file = self.disk.open(&path, Mode::Read)?;
            let is_rewritten =
                segment::head(&*self.disk, &file, number)?.is_ok_and(|head| head.rewritten.is_some());
            let footer = segment::footer(&*self.disk, &file, number, len)?;
            Ok(footer.filter(|footer| is_rewritten && footer.at != before))
        };
        let footer = look().map_err(|failure: std::io::Error| error("read", &path, &failure))?;
        if let Some(footer) = &footer {
            self.replaced(number, footer.at);
        }
        Ok(footer.is_some())
    }

    /// What `read` answers of a segment. Its file may be replaced at any moment: what looks like damage then is none.
    fn as_it_is<T>(&self, number: u64, read: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        loop {
            let before = self.end(number);
            match read() {
                Err(Error::Damaged { .. }) if self.refresh(number, before)? => {}
                answer => return answer,
            }
        }
    }

    fn read_in(&self, number: u64, wanted: &Wanted, limit: usize) -> Result<Vec<Record>, Error> {
        let places = self.places(number, wanted, limit)?;
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let path = segment::path(&self.dir, number);
        let file = self.disk.open(&path, Mode::Read).map_err(|failure| error("open", &path, &failure))?;
        let read = |(seq, place): (Seq, Place)| self.record(&file, number, (wanted.stream, seq), place);
        places.into_iter().map(read).collect()
    }

    /// The segments of `within` that can hold what is wanted, found from the end: most reads are near it.
    fn segments_from(&self, wanted: &Wanted, within: (u64, u64)) -> Result<Vec<u64>, Error> {
        let segments: Vec<u64> = {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            let (first, last) = within;
            let numbers = open.segments.iter().map(|listed| listed.number);
            numbers.filter(|number| (first..=last).contains(number)).collect()
        };
        if wanted.from == 0 {
            return Ok(segments);
        }
        let mut start = segments.len();
        while let Some(number) = start.checked_sub(1).and_then(|at| segments.get(at)) {
            start -= 1;
            let first = self.as_it_is(*number, || self.find(*number, wanted.stream, |first, _| first))?;
            if first.is_some_and(|first| first <= wanted.from) {
                break;
            }
        }
        Ok(segments[start..].to_vec())
    }

    fn places(&self, number: u64, wanted: &Wanted, limit: usize) -> Result<Vec<(Seq, Place)>, Error> {
        let choose = |first: Seq, places: &[Place]| {
            let skip = usize::try_from(wanted.from.saturating_sub(first)).unwrap_or(usize::MAX);
            let wanted = |(_, place): &(Seq, Place)| !wanted.only_messages || place.carries_messages();
            (first..).zip(places.iter().copied()).skip(skip).filter(wanted).take(limit).collect()
        };
        Ok(self.find(number, wanted.stream, choose)?.unwrap_or_default())
    }

    /// Asks the index of a segment about a stream.
    fn find<T>(
        &self,
        number: u64,
        stream: Stream,
        ask: impl FnOnce(Seq, &[Place]) -> T,
    ) -> Result<Option<T>, Error> {
        let (index, end) = {
            let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, growing)) = open.growing.as_ref().filter(|(growing, _)| *growing == number) {
                return Ok(growing.find(stream).and_then(|(first, places)| {
                    let end = places.partition_point(|place| place.offset() < open.durable);
                    (end > 0).then(|| ask(first, &places[..end]))
                }));
            }
            (open.unsealed.get(&number).cloned(), end_in(&open, number))
        };
        let index = match index {
            Some(index) => index,
            None => self.sealed(number, end)?,
        };
        Ok(index.find(stream).map(|(first, places)| ask(first, places)))
    }

    fn sealed(&self, number: u64, end: u64) -> Result<Arc<Index>, Error> {
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, index)) = recent.iter().find(|(known, _)| *known == Listed { number, end }) {
                return Ok(Arc::clone(index));
            }
        }
        let path = segment::path(&self.dir, number);
        let file = self.disk.open(&path, Mode::Read).map_err(|failure| error("open", &path, &failure))?;
        let content = self.block(&file, number, end)?;
        let Some((_, index)) = index::footer(&content) else {
            return Err(damaged(&path, end, "it is not a footer"));
        };
        let index = Arc::new(index);
        self.remember(Listed { number, end }, Arc::clone(&index));
        Ok(index)
    }

    fn remember(&self, of: Listed, index: Arc<Index>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back((of, index));
        if recent.len() > INDEXES_MAX {
            recent.pop_front();
        }
    }

    fn record(&self, file: &Handle, number: u64, name: (Stream, Seq), place: Place) -> Result<Record, Error> {
        let content = self.block(file, number, place.offset())?;
        let record = frame::frame(&content).and_then(frame::Frame::to_record);
        let record = record.ok_or_else(|| damaged(&file.path, place.offset(), "it is not a frame"))?;
        if (record.stream, record.head.seq) == name {
            return Ok(record);
        }
        Err(damaged(&file.path, place.offset(), "another record stands there than its index says"))
    }

    fn block(&self, file: &Handle, number: u64, offset: u64) -> Result<Vec<u8>, Error> {
        let read = segment::read_block(&*self.disk, file, number, offset);
        match read.map_err(|failure| error("read", &file.path, &failure))? {
            Ok(content) => Ok(content),
            Err(Bad::Newer(version)) => Err(newer(&file.path, version)),
            Err(Bad::Empty) => Err(damaged(&file.path, offset, "nothing is there")),
            Err(Bad::Broken(reason)) => Err(damaged(&file.path, offset, reason)),
        }
    }
}

fn end_in(open: &Open, number: u64) -> u64 {
    let listed = open.segments.binary_search_by_key(&number, |listed| listed.number);
    listed.ok().and_then(|at| open.segments.get(at)).map_or(0, |listed| listed.end)
}

fn damaged(segment: &Path, offset: u64, reason: &str) -> Error {
    Error::Damaged { segment: segment.to_owned(), offset, reason: reason.to_owned() }
}
