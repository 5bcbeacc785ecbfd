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
use crate::recover::{Cut, Found, survey};
use crate::segment;
use crate::window::Window;
use crate::{Error, Record, Seq, Stream};

/// A journal as it was when it was opened.
pub struct JournalReader {
    disk: Arc<dyn Fs>,
    dir: PathBuf,
    catalog: Catalog,
    segments: Vec<Found>,
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
        let mut segments = survey.segments;
        for found in &mut segments {
            catalog.add(found.number, found.bytes, found.unsealed.take());
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

    /// Calls `visit` with the position of each frame of the journal and its record, in the order of writing. When an
    /// engine drops frames from a segment meanwhile this fails, and `has_moved` says so: then open again and begin anew.
    pub fn each(&self, mut visit: impl FnMut(u64, Record)) -> Result<(), Error> {
        for found in &self.segments {
            let mut window = Window::open(&*self.disk, &self.dir, found)?;
            while let Some(group) = window.next()? {
                for (position, (offset, frame)) in (group.position..).zip(&group.frames) {
                    let record = frame.to_record().ok_or_else(|| Error::Damaged {
                        segment: segment::path(&self.dir, found.number),
                        offset: *offset,
                        reason: "its puts do not decode".to_owned(),
                    })?;
                    visit(position, record);
                }
            }
            let at = window.at();
            if at.offset != found.bytes || (!found.is_rewritten && *at != found.end) {
                return Err(Error::Damaged {
                    segment: segment::path(&self.dir, found.number),
                    offset: at.offset,
                    reason: "it has changed since it was opened".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// A segment is no longer as it was when the journal was opened: frames of purged runs were dropped from it.
    pub fn has_moved(&self) -> Result<bool, Error> {
        for found in &self.segments {
            if self.catalog.refresh(found.number, found.bytes)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
