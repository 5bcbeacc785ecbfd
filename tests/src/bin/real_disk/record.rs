//! What a disk was told, write by write and sync by sync, and what a power cut may leave of it.
//!
//! Owns the model of the disk: what was written before a sync is there, of what came after it any part. It must never
//! know what the file system or the store meant.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tests::fuse::Content;
use tests::image::Random;

/// Bytes of a page of the disk: what is kept or lost as one, unless it is torn.
const PAGE_BYTES: usize = 4096;
/// Bytes that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// One thing that a disk was told.
pub(crate) enum Told {
    /// To write these bytes there.
    Write(u64, Vec<u8>),
    /// To keep everything written before.
    Sync,
}

impl Told {
    /// It is as if this had not been told.
    pub(crate) fn unhear(&mut self) {
        *self = Self::Write(0, Vec::new());
    }
}

/// Everything that a disk was told so far.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Vec<Told>>>);

impl Record {
    /// How much it was told.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// All of it; the disk begins anew.
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, told: Told) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }
}

/// A disk that keeps what it is told in memory, and a record of it.
pub(crate) struct Disk {
    bytes: u64,
    pages: Pages,
    record: Record,
}

impl Disk {
    /// An empty one of this size.
    pub(crate) fn new(bytes: u64, record: Record) -> Self {
        Self { bytes, pages: Pages::default(), record }
    }
}

impl Content for Disk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.pages.read(offset, len.min(self.bytes.saturating_sub(offset) as usize))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.pages.write(offset, bytes);
        self.record.push(Told::Write(offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.record.push(Told::Sync);
    }
}

/// The pages of a disk that are not zero, by their number.
#[derive(Clone, Default)]
pub(crate) struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        for (at, piece) in pieces(offset, len) {
            if let Some(page) = self.0.get(&(at / PAGE_BYTES as u64)) {
                let from = at as usize % PAGE_BYTES;
                let to = (at - offset) as usize;
                out[to..to + piece].copy_from_slice(&page[from..from + piece]);
            }
        }
        out
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (at, piece) in pieces(offset, bytes.len()) {
            let from = (at - offset) as usize;
            let bytes = &bytes[from..from + piece];
            let number = at / PAGE_BYTES as u64;
            if !self.0.contains_key(&number) && bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let page = self.0.entry(number).or_insert_with(|| vec![0; PAGE_BYTES]);
            let to = at as usize % PAGE_BYTES;
            page[to..to + piece].copy_from_slice(bytes);
        }
    }

    /// Makes a file of `bytes` bytes of them.
    pub(crate) fn save(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(bytes)?;
        for (number, page) in &self.0 {
            file.write_all_at(page, number * PAGE_BYTES as u64)?;
        }
        Ok(())
    }
}

/// Offsets and lengths of the parts of pages that a write touches.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let next = (at / PAGE_BYTES as u64 + 1) * PAGE_BYTES as u64;
        let piece = (at, (next.min(end) - at.min(end)) as usize);
        at = next;
        (piece.1 > 0).then_some(piece)
    })
}

/// What is left of the pages written since the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// The first of them, as many as chance says.
    First,
    /// Each with this chance in a hundred.
    Some(usize),
    /// Of each, a chance of one half for every sector of it.
    Torn,
}

impl Left {
    /// All that are tried at a cut with something to lose.
    pub(crate) const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Everything,
        Self::First,
        Self::Some(10),
        Self::Some(50),
        Self::Some(90),
        Self::Torn,
    ];
}

/// Walks through a record, and cuts the power where it stands.
pub(crate) struct Walk<'a> {
    told: &'a [Told],
    at: usize,
    synced: Pages,
    /// Where the writes begin that no sync has covered yet.
    unsynced: usize,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(told: &'a [Told]) -> Self {
        Self { told, at: 0, synced: Pages::default(), unsynced: 0 }
    }

    /// Goes on until `cut` things were told.
    pub(crate) fn go_to(&mut self, cut: usize) {
        while self.at < cut {
            if matches!(self.told[self.at], Told::Sync) {
                for told in &self.told[self.unsynced..self.at] {
                    if let Told::Write(offset, bytes) = told {
                        self.synced.write(*offset, bytes);
                    }
                }
                self.unsynced = self.at + 1;
            }
            self.at += 1;
        }
    }

    /// Whether anything can be lost here.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.unsynced < self.at
    }

    /// What the disk holds if this much is left of what no sync covered.
    pub(crate) fn image(&self, left: Left, random: &mut Random) -> Pages {
        let mut pages = self.synced.clone();
        let mut later = Vec::new();
        for told in &self.told[self.unsynced..self.at] {
            if let Told::Write(offset, bytes) = told {
                later.extend(pieces(*offset, bytes.len()).map(|(at, len)| {
                    let from = (at - offset) as usize;
                    (at, &bytes[from..from + len])
                }));
            }
        }
        let first = random.below(later.len() + 1);
        for (nth, (at, bytes)) in later.into_iter().enumerate() {
            let is_left = match left {
                Left::Nothing => false,
                Left::Everything => true,
                Left::First => nth < first,
                Left::Some(percent) => random.below(100) < percent,
                Left::Torn => {
                    for (sector, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if random.below(2) == 0 {
                            pages.write(at + (sector * SECTOR_BYTES) as u64, bytes);
                        }
                    }
                    false
                }
            };
            if is_left {
                pages.write(at, bytes);
            }
        }
        pages
    }
}
