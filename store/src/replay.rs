//! Brings the state up to the journal: what the puts of every frame that it has not applied add up to.
//!
//! Uses what the frames say and nothing else: no code of the engine, no version of its logic. Frames are
//! folded in memory as far as the named limits go, so that the state takes the last of many values of a key,
//! not each of them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use crate::frame::{Frame, decode_puts};
use crate::fs::Fs;
use crate::heads::{self, StreamHead};
use crate::limits::{REPLAY_BYTES_MAX, REPLAY_PUTS_MAX};
use crate::recover::Survey;
use crate::segment;
use crate::state::State;
use crate::window::Window;
use crate::{Error, Hash, Put, Stream, salvage};

/// Why a record is not applied to a state that it does not continue.
const OF_ANOTHER: &str = "it does not continue what DIR/state holds, which may be that of another journal: if `verify` \
                          finds nothing, remove DIR/state, and it is rebuilt";

/// Stages and releases what every frame from number `from` on adds up to.
pub(crate) fn replay(
    disk: &Arc<dyn Fs>,
    dir: &Path,
    survey: &Survey,
    from: u64,
    state: &State,
) -> Result<(), Error> {
    let mut fold = Fold { state, puts: HashMap::new(), heads: HashMap::new(), bytes: 0 };
    // Streams of which records are missing, and where: their runs must have been purged, or a salvage must say so.
    let mut torn: BTreeMap<Stream, (u64, u64)> = BTreeMap::new();
    for found in survey.segments.iter().filter(|found| found.end.position > from) {
        let damaged = |offset, reason: &str| damaged(dir, found.number, offset, reason);
        let mut window = Window::open(&**disk, dir, found)?;
        window.skip_to(found, from);
        while let Some(group) = window.next()? {
            for (position, (offset, frame)) in (group.position..).zip(&group.frames) {
                if position < from {
                    continue;
                }
                let puts = decode_puts(frame.puts);
                let puts = puts.ok_or_else(|| damaged(*offset, "its puts do not decode"))?;
                match fold.continues(frame)? {
                    Continues::Yes => {}
                    Continues::AfterMissing => {
                        torn.entry(frame.header.stream).or_insert((found.number, *offset));
                    }
                    Continues::No => return Err(damaged(*offset, OF_ANOTHER)),
                }
                for run in puts.iter().filter_map(heads::purged).filter_map(|(stream, _)| stream.run()) {
                    torn.remove(&Stream::Run(run));
                    torn.remove(&Stream::Inbox(run));
                }
                for hole in salvage::holes_of(frame) {
                    torn.remove(&hole.stream);
                }
                fold.add(frame, puts, found.number)?;
            }
            let end = group.end.position;
            if fold.is_full() {
                fold.hand_over(end);
            }
        }
    }
    if let Some((number, offset)) = torn.into_values().next() {
        // Some of it may have reached the state.
        dir.parent().map_or(Ok(()), |dir| State::distrust(Arc::clone(disk), dir))?;
        return Err(damaged(dir, number, offset, "records of its run are missing before it"));
    }
    fold.hand_over(survey.tail.position);
    Ok(())
}

fn damaged(dir: &Path, number: u64, offset: u64, reason: &str) -> Error {
    Error::Damaged { segment: segment::path(dir, number), offset, reason: reason.to_owned() }
}

/// How a frame stands to what is known of its stream.
enum Continues {
    /// It is the next one.
    Yes,
    /// Records before it are gone, as those of a purged run may be.
    AfterMissing,
    /// It is of another stream than the one that is known.
    No,
}

/// What frames add up to.
struct Fold<'a> {
    state: &'a State,
    puts: HashMap<Vec<u8>, Option<Vec<u8>>>,
    heads: HashMap<Stream, StreamHead>,
    /// Size of `puts`.
    bytes: usize,
}

impl Fold<'_> {
    fn head(&self, stream: Stream) -> Result<Option<StreamHead>, Error> {
        match self.heads.get(&stream) {
            Some(head) => Ok(Some(*head)),
            None => Ok(self.state.get(&heads::key(stream))?.and_then(|value| StreamHead::decode(&value))),
        }
    }

    fn continues(&self, frame: &Frame<'_>) -> Result<Continues, Error> {
        let before = self.head(frame.header.stream)?.map(|before| before.head);
        let next = before.map_or((0, Hash::default()), |before| (before.seq + 1, before.hash));
        let is_next = next == (frame.header.seq, frame.header.prev_hash);
        Ok(match frame.header.stream {
            _ if is_next => Continues::Yes,
            _ if frame.header.seq > next.0 => Continues::AfterMissing,
            Stream::Own(_) | Stream::Run(_) | Stream::Inbox(_) => Continues::No,
        })
    }

    fn add(&mut self, frame: &Frame<'_>, puts: Vec<Put>, segment: u64) -> Result<(), Error> {
        let stream = frame.header.stream;
        let before = self.head(stream)?;
        self.heads.insert(stream, StreamHead::after(before.as_ref(), &frame.header, frame.hash, segment));
        for Put { key, value } in puts {
            if let Some(stream) = heads::stream(&key) {
                // The record of a purge says what is known of the run from now on.
                match value.as_deref().and_then(StreamHead::decode) {
                    Some(head) => {
                        self.heads.insert(stream, head);
                        continue;
                    }
                    None => drop(self.heads.remove(&stream)),
                }
            }
            let (key_len, len) = (key.len(), value.as_ref().map_or(0, Vec::len));
            self.bytes += len;
            match self.puts.insert(key, value) {
                Some(old) => self.bytes -= old.map_or(0, |old| old.len()),
                None => self.bytes += key_len,
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.bytes >= REPLAY_BYTES_MAX || self.puts.len() + self.heads.len() >= REPLAY_PUTS_MAX
    }

    /// Gives the state everything folded, as if the last frame before `end` had put it: it is applied whole
    /// or not at all.
    fn hand_over(&mut self, end: u64) {
        let heads = self.heads.drain().map(|(stream, head)| head.to_put(stream));
        let mut puts: Vec<Put> = heads.collect();
        puts.extend(self.puts.drain().map(|(key, value)| Put { key, value }));
        if let Some(last) = end.checked_sub(1).filter(|_| !puts.is_empty()) {
            // Neighbours in the tree one after the other.
            puts.sort_unstable_by(|left, right| left.key.cmp(&right.key));
            self.state.stage(last, puts.into());
            self.state.release(end);
        }
        self.bytes = 0;
    }
}
