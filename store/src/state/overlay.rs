//! The overlay: every put that sled may not hold yet, newest version first in line for readers.
//!
//! Owns the ordered map of pending versions and the queue of frames they came from. Pure data: it must never
//! lock, wait or touch a file.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::Put;
use crate::keys::lower_bound;

/// One pending value of a key: the put at `index` of the frame at `position`.
#[derive(Debug)]
struct Version {
    position: u64,
    puts: Arc<[Put]>,
    index: usize,
}

impl Version {
    fn value(&self) -> Option<&[u8]> {
        self.puts.get(self.index).and_then(|put| put.value.as_deref())
    }

    /// Keeps its own put alive instead of the whole frame's.
    fn detach(&mut self) {
        if self.puts.len() > 1 {
            self.puts = self.puts.get(self.index).cloned().into_iter().collect();
            self.index = 0;
        }
    }
}

/// A key with its pending value; none if it is deleted.
pub(super) type Pending = (Vec<u8>, Option<Vec<u8>>);

/// The puts of one frame.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    /// Global number of the frame.
    pub(super) position: u64,
    /// What it changes, in order.
    pub(super) puts: Arc<[Put]>,
}

/// Frames handed out at once, so that no commit waits long for the lock.
const WORK_FRAMES_MAX: usize = 4_096;

/// Frames for sled to apply next.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The frames, in order.
    pub(super) frames: Vec<Staged>,
    /// Number of frames of the store that sled holds once they all are applied.
    pub(super) end: u64,
}

/// Pending puts by key, and by frame.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Versions of each key by position, the newest last; never empty for a key.
    versions: BTreeMap<Vec<u8>, VecDeque<Version>>,
    /// Frames whose puts are in `versions`, by position; frames that were retired are no longer here.
    frames: VecDeque<Staged>,
    /// Puts in `frames`.
    puts: usize,
}

impl Overlay {
    /// Puts that wait, staged ones included.
    pub(super) fn puts(&self) -> usize {
        self.puts
    }

    /// Keys that they change.
    pub(super) fn keys(&self) -> usize {
        self.versions.len()
    }

    /// Adds a frame. Positions only grow, except after `void`.
    pub(super) fn stage(&mut self, position: u64, puts: Arc<[Put]>) {
        for (index, put) in puts.iter().enumerate() {
            let version = Version { position, puts: Arc::clone(&puts), index };
            if let Some(versions) = self.versions.get_mut(put.key.as_slice()) {
                versions.push_back(version);
            } else {
                self.versions.insert(put.key.clone(), VecDeque::from([version]));
            }
        }
        self.puts += puts.len();
        self.frames.push_back(Staged { position, puts });
    }

    /// Takes back the frames at positions >= `from`.
    pub(super) fn void(&mut self, from: u64) {
        while self.frames.back().is_some_and(|frame| frame.position >= from) {
            let Some(frame) = self.frames.pop_back() else { return };
            self.puts -= frame.puts.len();
            for put in frame.puts.iter() {
                self.edit(&put.key, |versions| {
                    while versions.back().is_some_and(|version| version.position >= from) {
                        versions.pop_back();
                    }
                });
            }
        }
    }

    /// The frames below `released` that come next, at most [`WORK_FRAMES_MAX`].
    pub(super) fn next(&self, released: u64) -> Work {
        let mut frames: Vec<Staged> = Vec::new();
        for frame in self.frames.iter().take_while(|frame| frame.position < released) {
            if frames.len() == WORK_FRAMES_MAX {
                return Work { frames, end: frame.position };
            }
            frames.push(frame.clone());
        }
        Work { frames, end: released }
    }

    /// Forgets at most `frames_max` frames below `end`, which sled holds now. False once none is left.
    pub(super) fn prune(&mut self, end: u64, frames_max: usize) -> bool {
        for _ in 0..frames_max {
            let Some(frame) = self.take_frame(end) else { return false };
            for put in frame.puts.iter() {
                self.edit(&put.key, |versions| {
                    while versions.front().is_some_and(|version| version.position < end) {
                        versions.pop_front();
                    }
                });
            }
        }
        true
    }

    /// For a store without a working sled: frames below `end` are durable, so only the newest value of each
    /// key is kept. Memory is then bounded by the keys that there are, whatever the number of transitions.
    pub(super) fn retire(&mut self, end: u64) {
        while let Some(frame) = self.take_frame(end) {
            for put in frame.puts.iter() {
                self.edit(&put.key, |versions| {
                    while versions.get(1).is_some_and(|next| next.position < end) {
                        versions.pop_front();
                    }
                    if let Some(kept) = versions.front_mut() {
                        kept.detach();
                    }
                });
            }
        }
    }

    /// The pending value of a key: `None` if sled has to say, `Some(None)` if it is deleted.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.versions.get(key).and_then(VecDeque::back).map(Version::value)
    }

    /// A copy of what is pending for the keys with `prefix` after `after`, in key order, until `limit` keys
    /// with a value are there: no result of that many keys reaches further.
    pub(super) fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Vec<Pending> {
        let mut pending = Vec::new();
        let mut missing = limit;
        let range = self.versions.range::<[u8], _>((lower_bound(prefix, after), Bound::Unbounded));
        for (key, versions) in range.take_while(|(key, _)| key.starts_with(prefix)) {
            if missing == 0 {
                break;
            }
            let value = versions.back().and_then(Version::value);
            missing -= usize::from(value.is_some());
            pending.push((key.clone(), value.map(<[u8]>::to_vec)));
        }
        pending
    }

    /// The oldest frame, if it lies below `end`.
    fn take_frame(&mut self, end: u64) -> Option<Staged> {
        self.frames.front().filter(|frame| frame.position < end)?;
        let frame = self.frames.pop_front()?;
        self.puts -= frame.puts.len();
        Some(frame)
    }

    fn edit(&mut self, key: &[u8], change: impl FnOnce(&mut VecDeque<Version>)) {
        if let Some(versions) = self.versions.get_mut(key) {
            change(versions);
            if versions.is_empty() {
                self.versions.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(keys: &str) -> Arc<[Put]> {
        keys.bytes().map(|key| Put { key: vec![key], value: Some(vec![key]) }).collect()
    }

    #[test]
    fn work_is_what_was_released_up_to_a_number_of_frames() {
        let mut overlay = Overlay::default();
        for (position, keys) in (10..).zip(["abc", "", "d", "ef"]) {
            overlay.stage(position, frame(keys));
        }
        let cut = |overlay: &Overlay, released| {
            let work = overlay.next(released);
            (work.frames.len(), work.end)
        };
        assert_eq!(cut(&overlay, 10), (0, 10));
        assert_eq!(cut(&overlay, 12), (2, 12));
        assert_eq!(cut(&overlay, 14), (4, 14));
        let many = 14 + WORK_FRAMES_MAX as u64;
        (14..many).for_each(|position| overlay.stage(position, frame("a")));
        assert_eq!(cut(&overlay, many), (WORK_FRAMES_MAX, many - 4));
        assert_eq!((overlay.puts(), overlay.keys()), (6 + WORK_FRAMES_MAX, 6));
    }

    #[test]
    fn retired_frames_leave_one_value_a_key_and_nothing_else_behind() {
        let mut overlay = Overlay::default();
        let frames = ["ab", "bc", "b", "bd"].map(frame);
        for (position, puts) in (0..).zip(&frames) {
            overlay.stage(position, Arc::clone(puts));
        }
        overlay.retire(3);
        // The third frame has one put and is kept whole; the last one is not durable: held by queue and
        // versions.
        assert_eq!(frames.each_ref().map(Arc::strong_count), [1, 1, 2, 4]);
        assert_eq!(overlay.puts(), 2);
        overlay.void(3);
        assert_eq!(overlay.scan(b"", None, 9).len(), 3);
        assert_eq!(overlay.puts(), 0);
    }
}
