//! Brings the state up to the journal: what the puts of every frame that it has not applied add up to.
//!
//! Uses what the frames say and nothing else: no code of the engine, no version of its logic. Frames are
//! folded in memory as far as the named limits go, so that the state takes the last of many values of a key,
//! not each of them.

use std::collections::HashMap;
use std::path::Path;

use crate::frame::{Frame, decode_puts};
use crate::fs::Fs;
use crate::heads::{self, StreamHead};
use crate::limits::{REPLAY_BYTES_MAX, REPLAY_PUTS_MAX};
use crate::recover::{Survey, describe, newer, read_segment};
use crate::scan::{Stop, group_at};
use crate::segment;
use crate::state::State;
use crate::{Error, Hash, Put, Stream};

/// Why a record is not applied to a state that it does not continue.
const OF_ANOTHER: &str = "it does not continue what DIR/state holds, which may be that of another journal: if `verify` \
                          finds nothing, remove DIR/state, and it is rebuilt";

/// Stages and releases what every frame from number `from` on adds up to.
pub(crate) fn replay(
    disk: &dyn Fs,
    dir: &Path,
    survey: &Survey,
    from: u64,
    state: &State,
) -> Result<(), Error> {
    let mut fold = Fold { state, puts: HashMap::new(), heads: HashMap::new(), bytes: 0 };
    for found in survey.segments.iter().filter(|found| found.end.position > from) {
        let path = segment::path(dir, found.number);
        let damaged = |offset, reason: String| Error::Damaged { segment: path.clone(), offset, reason };
        let bytes = read_segment(disk, dir, found.number, found.end.offset)?;
        let mut at = found.start;
        while at.offset < found.end.offset {
            let group = group_at(&bytes, &at).map_err(|stop| match stop {
                Stop::Newer(version) => newer(&path, version),
                Stop::Broken(broken) => damaged(broken.offset, describe(&broken.reason, broken.record)),
                Stop::End | Stop::Footer => damaged(at.offset, "records are missing".to_owned()),
            })?;
            for (position, (offset, frame)) in (at.position..).zip(&group.frames) {
                if position >= from {
                    if !fold.is_continued_by(frame)? {
                        return Err(damaged(*offset, OF_ANOTHER.to_owned()));
                    }
                    let puts = decode_puts(frame.puts);
                    let puts = puts.ok_or_else(|| damaged(*offset, "its puts do not decode".to_owned()))?;
                    fold.add(frame, puts, found.number)?;
                }
            }
            at = group.end;
            if fold.is_full() {
                fold.hand_over(at.position);
            }
        }
    }
    fold.hand_over(survey.tail.position);
    Ok(())
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

    /// The frame is the next of its stream.
    fn is_continued_by(&self, frame: &Frame<'_>) -> Result<bool, Error> {
        let before = self.head(frame.header.stream)?.map(|before| before.head);
        let next = before.map_or((0, Hash::default()), |before| (before.seq + 1, before.hash));
        Ok(next == (frame.header.seq, frame.header.prev_hash))
    }

    fn add(&mut self, frame: &Frame<'_>, puts: Vec<Put>, segment: u64) -> Result<(), Error> {
        let stream = frame.header.stream;
        let before = self.head(stream)?;
        self.heads.insert(stream, StreamHead::after(before.as_ref(), &frame.header, frame.hash, segment));
        for Put { key, value } in puts {
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
