//! Brings the state up to the journal: the puts of every frame that it has not applied, in order.
//!
//! Uses what the frames say and nothing else: no code of the engine, no version of its logic.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::frame::{Frame, decode_puts};
use crate::fs::Fs;
use crate::heads::{self, StreamHead};
use crate::limits::LIVE_STREAMS_MAX;
use crate::recover::{Survey, describe, newer, read_segment};
use crate::scan::{Stop, group_at};
use crate::segment;
use crate::state::State;
use crate::{Error, Put, Stream};

/// Stages and releases every frame from number `from` on.
pub(crate) fn replay(
    disk: &dyn Fs,
    dir: &Path,
    survey: &Survey,
    from: u64,
    state: &State,
) -> Result<(), Error> {
    let mut heads = HashMap::new();
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
                    let puts = puts(frame, found.number, &mut heads, state)?
                        .ok_or_else(|| damaged(*offset, "its puts do not decode".to_owned()))?;
                    state.stage(position, puts);
                }
            }
            at = group.end;
            if at.position > from {
                state.release(at.position);
            }
        }
    }
    Ok(())
}

/// The puts of a frame, its stream's head last; none if they do not decode.
fn puts(
    frame: &Frame<'_>,
    segment: u64,
    heads: &mut HashMap<Stream, StreamHead>,
    state: &State,
) -> Result<Option<Arc<[Put]>>, Error> {
    let stream = frame.header.stream;
    let before = match heads.get(&stream) {
        Some(head) => Some(*head),
        None => state.get(&heads::key(stream))?.and_then(|value| StreamHead::decode(&value)),
    };
    let after = StreamHead::after(before.as_ref(), &frame.header, frame.hash, segment);
    if heads.len() >= LIVE_STREAMS_MAX {
        // The state has them all.
        heads.clear();
    }
    heads.insert(stream, after);
    let Some(mut puts) = decode_puts(frame.puts) else { return Ok(None) };
    puts.push(after.to_put(stream));
    Ok(Some(puts.into()))
}
