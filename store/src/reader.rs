//! Reads a journal without a store: no sled, no lock, no write, also beside a running engine.
//!
//! Owns a view of what was there when it was opened. What a writer had not finished at that moment is not
//! part of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::{Catalog, Wanted};
use crate::frame::Point;
use crate::fs::{Fs, RealFs};
use crate::journal::JOURNAL_DIR;
use crate::recover::{Cut, describe, read_segment, survey};
use crate::scan::{Stop, group_at};
use crate::segment;
use crate::{Error, Record, Seq, Stream};

/// A journal as it was when it was opened.
pub struct JournalReader {
    disk: Arc<dyn Fs>,
    dir: PathBuf,
    catalog: Catalog,
    segments: Vec<(Point, Point)>,
    end: Point,
    cut: Option<Cut>,
}

impl JournalReader {
    /// Opens the journal in `DIR/journal`. Damage is an error; a torn tail is not: see `cut`.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::open_on(Arc::new(RealFs), dir)
    }

    /// The same on a given disk.
    pub fn open_on(disk: Arc<dyn Fs>, dir: &Path) -> Result<Self, Error> {
        let dir = dir.join(JOURNAL_DIR);
        let survey = survey(&*disk, &dir)?;
        let catalog = Catalog::new(Arc::clone(&disk), dir.clone());
        let mut segments = Vec::with_capacity(survey.segments.len());
        for found in survey.segments {
            segments.push((found.start, found.end));
            catalog.add(found.number, found.end.offset, found.unsealed);
        }
        Ok(Self { disk, dir, catalog, segments, end: survey.tail, cut: survey.cut })
    }

    /// Where the journal ends.
    pub fn end(&self) -> &Point {
        &self.end
    }

    /// What stood behind the end, if not zeros: a torn tail, or what a writer was just writing.
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// The records of a stream from `from` on, at most `limit`, in order.
    pub fn read(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.catalog.read(&Wanted { stream, from, limit, only_messages: false }, (0, u64::MAX))
    }

    /// The same, but only records that carry messages.
    pub fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.catalog.read(&Wanted { stream, from, limit, only_messages: true }, (0, u64::MAX))
    }

    /// Calls `visit` with the position of each frame of the journal and its record, in the order of writing.
    pub fn each(&self, mut visit: impl FnMut(u64, Record)) -> Result<(), Error> {
        for (start, end) in &self.segments {
            let bytes = read_segment(&*self.disk, &self.dir, start.segment, end.offset)?;
            let mut at = *start;
            let stop = loop {
                let group = match group_at(&bytes, &at) {
                    Ok(group) => group,
                    Err(stop) => break stop,
                };
                for (position, (offset, frame)) in (at.position..).zip(&group.frames) {
                    let record = frame.to_record().ok_or_else(|| Error::Damaged {
                        segment: segment::path(&self.dir, start.segment),
                        offset: *offset,
                        reason: "its puts do not decode".to_owned(),
                    })?;
                    visit(position, record);
                }
                at = group.end;
            };
            if at != *end {
                let (offset, reason) = match stop {
                    Stop::Broken(broken) => (broken.offset, describe(&broken.reason, broken.record)),
                    Stop::End | Stop::Footer | Stop::Newer(_) => {
                        (at.offset, "it has changed since it was opened".to_owned())
                    }
                };
                return Err(Error::Damaged {
                    segment: segment::path(&self.dir, start.segment),
                    offset,
                    reason,
                });
            }
        }
        Ok(())
    }
}
