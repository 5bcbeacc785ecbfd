//! Rewrites one segment under its number, without the frames of purged runs.
//!
//! Owns the way from the old file to the new one: at any instant of it, one of the two is there, whole.
//!
//! 1. The keys that the frames to be dropped had put, other than those of their own runs, are put again with the values
//!    that they have now, in records of their own: applying what stays, in order, gives the same state.
//! 2. The new file is made beside, in slices with a sync each, so that no barrier of a commit waits for more than one.
//!    It says where the old one ended, which is where the next segment continues from, and how far the journal must
//!    reach for step 1 to be in it.
//! 3. One durable record names the new file's hash: the chain of what comes later covers what was kept and where
//!    something was dropped. A rewritten file that no record names is damage.
//! 4. The new file takes the old one's name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::frame::{self, KEPT_BLOCK, Kept, Rewritten, decode_puts};
use crate::fs::{Depth, Fs, Handle, Mode, error, sync_dir, write_all_at};
use crate::index::{Growing, Place};
use crate::journal::{JournalStore, stream_head};
use crate::keys::run_prefix;
use crate::purge::{REWRITTEN, record};
use crate::recover::{Found, first_group};
use crate::scan::Group;
use crate::segment::{self, Footer};
use crate::window::Window;
use crate::writer::OwnRecord;
use crate::{Error, Hash, RunKey, Stream};

/// Bytes written between two syncs: a commit's barrier may have to wait for so many.
const SLICE_BYTES: usize = 256 << 10;

/// The longest pause after a slice; it is as long as the slice took, so that commits have the disk half of the time.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Keys that one record puts again: each costs the writer a look into the state.
const KEYS_MAX: usize = 512;

/// Drops the frames of purged runs from a segment. Answers the bytes given back; none if it cannot be rewritten yet: it
/// was given up, and the next open writes its footer.
pub(crate) fn rewrite(store: &JournalStore, number: u64) -> Result<Option<u64>, Error> {
    let Some(old) = Old::open(store, number)? else { return Ok(None) };
    let purged = old.purged(store)?;
    if purged.is_empty() {
        return Ok(Some(0));
    }
    let keys = old.keys(store, &purged)?;
    let mut checkpoint = old.found.end.position;
    for keys in keys.chunks(KEYS_MAX) {
        let again = OwnRecord { code: REWRITTEN, again: keys.to_vec(), ..OwnRecord::default() };
        checkpoint = record(store, again)?.position + 1;
    }
    let beside = segment::beside(store.shared.catalog.dir(), number);
    let (file, footer_at) = old.copy(store, &purged, checkpoint).inspect_err(|_| {
        // Gives the space back; the name is swept at the next open in any case.
        let _ = store.disk.remove(&beside);
    })?;
    let payload = [number.to_le_bytes().as_slice(), &file.hash.0].concat();
    record(store, OwnRecord { code: REWRITTEN, payload, ..OwnRecord::default() })?;
    let (disk, dir) = (&*store.disk, store.shared.catalog.dir());
    disk.rename(&file.path, &segment::path(dir, number))
        .and_then(|()| sync_dir(disk, dir))
        .map_err(|failure| error("replace", &segment::path(dir, number), &failure))?;
    store.shared.catalog.replaced(number, footer_at);
    Ok(Some(old.len.saturating_sub(file.len)))
}

/// The number and the hash that the record of a rewritten segment names.
pub(crate) fn named(payload: &[u8]) -> Option<(u64, Hash)> {
    let (number, hash) = payload.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), Hash(hash.try_into().ok()?)))
}

/// The segment as it is.
struct Old {
    found: Found,
    from: frame::Point,
    footer: Footer,
    len: u64,
}

/// A file that is to take its place.
pub(crate) struct New {
    path: PathBuf,
    pub(crate) hash: Hash,
    len: u64,
}

impl Old {
    /// None if it is not there or has no footer.
    fn open(store: &JournalStore, number: u64) -> Result<Option<Self>, Error> {
        let (disk, dir) = (&*store.disk, store.shared.catalog.dir());
        let path = segment::path(dir, number);
        let read = || {
            let Some(len) = segment::len(disk, dir, number)? else { return Ok(None) };
            let file = disk.open(&path, Mode::Read)?;
            let head = segment::head(disk, &file, number)?;
            Ok(head
                .ok()
                .zip(segment::footer(disk, &file, number, len)?)
                .map(|(head, footer)| (head, footer, len)))
        };
        let read = read().map_err(|failure: std::io::Error| error("read", &path, &failure))?;
        Ok(read.map(|(head, footer, len)| {
            let found = Found {
                number,
                start: first_group(&head),
                marks: Vec::new(),
                end: footer.end,
                bytes: footer.at,
                is_rewritten: head.rewritten.is_some(),
                unsealed: None,
            };
            Self { found, from: head.from, footer, len }
        }))
    }

    /// The purged runs that have frames in it.
    fn purged(&self, store: &JournalStore) -> Result<HashSet<RunKey>, Error> {
        let runs: HashSet<RunKey> = self.footer.index.streams().filter_map(Stream::run).collect();
        let mut purged = HashSet::new();
        for run in runs {
            let head = store.with_state(|state| stream_head(state, Stream::Run(run)))?;
            purged.extend(head.filter(|head| head.is_purged).map(|_| run));
        }
        Ok(purged)
    }

    /// The keys that frames of purged runs had put, other than their own.
    fn keys(&self, store: &JournalStore, purged: &HashSet<RunKey>) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = HashSet::new();
        let mut window = Window::open(&*store.disk, store.shared.catalog.dir(), &self.found)?;
        while let Some(group) = window.next()? {
            for (_, frame) in &group.frames {
                let Some(run) = frame.header.stream.run().filter(|run| purged.contains(run)) else {
                    continue;
                };
                let own = run_prefix(run);
                let puts = decode_puts(frame.puts).unwrap_or_default().into_iter().map(|put| put.key);
                keys.extend(puts.filter(|key| !key.starts_with(&own)));
            }
        }
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Writes the new file beside; answers it, and where its footer stands.
    fn copy(
        &self,
        store: &JournalStore,
        purged: &HashSet<RunKey>,
        checkpoint: u64,
    ) -> Result<(New, u64), Error> {
        let (disk, dir) = (&*store.disk, store.shared.catalog.dir());
        let number = self.found.number;
        let path = segment::beside(dir, number);
        let failed = |failure: std::io::Error| error("write", &path, &failure);
        let rewritten = Rewritten { end: self.found.end, checkpoint };
        let head = frame::rewritten_head(number, &self.from, &rewritten);
        let mut copy = Copy::begin(disk, &path, number, head).map_err(failed)?;
        let mut window = Window::open(disk, dir, &self.found)?;
        while let Some(group) = window.next()? {
            copy.take(&group, purged).map_err(failed)?;
        }
        copy.finish(&self.found.end).map_err(failed)
    }
}

/// A file in the making.
pub(crate) struct Copy<'a> {
    disk: &'a dyn Fs,
    file: Handle,
    number: u64,
    /// Bytes written.
    offset: u64,
    /// What is written next.
    slice: Vec<u8>,
    /// The kept block that grows at the end of the slice: where it stands there, and what it will say.
    kept: Option<(usize, Kept)>,
    /// Position after the last frame that was kept.
    next: Option<u64>,
    index: Growing,
    hasher: blake3::Hasher,
}

impl<'a> Copy<'a> {
    /// Begins the file of segment `number` at `path` with its head block.
    pub(crate) fn begin(disk: &'a dyn Fs, path: &Path, number: u64, head: Vec<u8>) -> std::io::Result<Self> {
        Ok(Self {
            disk,
            file: disk.open(path, Mode::Create)?,
            number,
            offset: 0,
            slice: head,
            kept: None,
            next: None,
            index: Growing::default(),
            hasher: blake3::Hasher::new(),
        })
    }

    /// Keeps the frames of a group that are not of purged runs.
    fn take(&mut self, group: &Group<'_>, purged: &HashSet<RunKey>) -> std::io::Result<()> {
        for (position, (_, frame)) in (group.position..).zip(&group.frames) {
            if !frame.header.stream.run().is_some_and(|run| purged.contains(&run)) {
                self.keep(position, frame);
            }
        }
        if self.slice.len() >= SLICE_BYTES { self.write() } else { Ok(()) }
    }

    /// Keeps a frame; positions grow.
    pub(crate) fn keep(&mut self, position: u64, frame: &frame::Frame<'_>) {
        if self.next != Some(position) {
            self.close_kept();
        }
        self.next = Some(position + 1);
        let place = self.push(position, frame);
        self.index.push(frame.header.stream, frame.header.seq, place);
    }

    /// Ends the file of a segment that ended at `end`; answers it, and where its footer stands.
    pub(crate) fn finish(mut self, end: &frame::Point) -> std::io::Result<(New, u64)> {
        self.close_kept();
        let footer_at = self.offset + self.slice.len() as u64;
        let footer = self.index.to_index().to_footer_at(end, footer_at);
        self.slice.extend_from_slice(&footer);
        self.write()?;
        self.disk.sync(&self.file, Depth::All)?;
        let hash = Hash(*self.hasher.finalize().as_bytes());
        Ok((New { path: self.file.path, hash, len: self.offset }, footer_at))
    }

    fn push(&mut self, position: u64, frame: &frame::Frame<'_>) -> Place {
        let (at, kept) = self.kept.get_or_insert((self.slice.len(), Kept { position, frames: 0, bytes: 0 }));
        if self.slice.len() == *at {
            self.slice.resize(*at + KEPT_BLOCK, 0);
        }
        let start = frame::start(&mut self.slice);
        self.slice.extend_from_slice(frame.content);
        let (end, offset) = (self.slice.len(), self.offset + start as u64);
        frame::close(&mut self.slice, start, end, self.number, offset);
        kept.frames += 1;
        kept.bytes += (end - start) as u32;
        Place::new(offset as u32, frame.header.kind.carries_messages)
    }

    fn close_kept(&mut self) {
        if let Some((at, kept)) = self.kept.take() {
            let offset = self.offset + at as u64;
            frame::write_kept(&mut self.slice[at..], &kept, self.number, offset);
        }
    }

    /// Writes the slice and syncs it.
    fn write(&mut self) -> std::io::Result<()> {
        self.close_kept();
        self.next = None;
        let begun = Instant::now();
        write_all_at(self.disk, &self.file, self.offset, &self.slice)?;
        self.disk.sync(&self.file, Depth::Data)?;
        self.hasher.update(&self.slice);
        self.offset += self.slice.len() as u64;
        self.slice.clear();
        thread::sleep(begun.elapsed().min(PAUSE_MAX));
        Ok(())
    }
}
