//! What State's callers and sled's thread share, and that thread itself.
//!
//! Owns the order in which frames reach sled, and the rule that nobody waits for sled without an end. Readers
//! and batches exclude each other here, with a deadline, because sled's own lock between them has none. It
//! must never read a key.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::overlay::{Overlay, Work};
use super::place::Place;
use super::{APPLIED_KEY, SledStep, StateHealth, StateOptions, guarded};
use crate::limits::VALUE_BYTES_MAX;

/// Keys that sled writes between two flushes.
const BATCH_KEYS_MAX: usize = 1_024;

/// How long fewer keys than that wait for company. A run rewrites the same few keys all the time, and a batch
/// holds only the newest value of each: what waits longer costs sled less.
const LINGER: Duration = Duration::from_millis(100);

/// Frames forgotten per turn of the lock, so that a commit never waits for a whole batch's.
const PRUNE_FRAMES_MAX: usize = 64;

/// Free space of the disk below which sled is not written: one failed write would make it fail reads from
/// then on, and a full disk is to stop commits only. Several times what a batch has been seen to take.
const ROOM_BYTES_MIN: u64 = 32 << 20;

/// How long until sled's thread looks for room again by itself.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Slack beyond a deadline, so that the wait that passes it also sees it.
const TICK: Duration = Duration::from_millis(1);

/// What sled is being used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// So many readers are in it; new ones may come.
    Reading(usize),
    /// A batch waits for so many readers to leave; new ones wait for the batch.
    Draining(usize),
    /// A batch is being applied.
    Applying,
}

/// Whether sled's thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It does.
    No,
    /// It ends once everything released is applied.
    Settled,
    /// It ends after the batch in its hands.
    Now,
}

/// Behind the lock.
pub(super) struct Inner {
    pub(super) overlay: Overlay,
    /// Frames that sled holds, flushed.
    applied: u64,
    /// Frames that are durable.
    released: u64,
    /// Since when released frames wait with no batch ended; none exactly when sled holds everything released.
    waiting_since: Option<Instant>,
    sled: Use,
    /// The disk had no room for a batch at the last look. What waits is kept, beyond the lag limit too: a
    /// journal without room for a further segment ends that soon enough.
    is_full: bool,
    /// Callers who wait for sled to catch up: nothing lingers meanwhile.
    pub(super) hurried: usize,
    /// Why sled is no longer written.
    degraded: Option<String>,
    stop: Stop,
}

impl Inner {
    /// There may be room again: whether sled makes progress counts from now.
    fn look_again(&mut self) {
        if self.is_full {
            self.is_full = false;
            self.waiting_since = self.waiting_since.map(|_| Instant::now());
        }
    }
}

/// The shared half of a [`super::State`].
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// Wakes sled's thread: something was released, the last reader left, or it must stop.
    work: Condvar,
    /// Wakes everybody who waits for sled: a batch ended, or sled was given up.
    progress: Condvar,
    place: Place,
    options: StateOptions,
}

impl Shared {
    pub(super) fn new(place: Place, options: StateOptions, applied: u64) -> Self {
        let inner = Inner {
            overlay: Overlay::default(),
            applied,
            released: applied,
            waiting_since: None,
            sled: Use::Reading(0),
            is_full: false,
            hurried: 0,
            degraded: None,
            stop: Stop::No,
        };
        Self { inner: Mutex::new(inner), work: Condvar::new(), progress: Condvar::new(), place, options }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything below `end` is durable. Waits while more than the allowed lag is not applied.
    pub(super) fn release(&self, end: u64) {
        let mut inner = self.lock();
        inner.released = inner.released.max(end);
        if inner.degraded.is_some() {
            let released = inner.released;
            inner.overlay.retire(released);
            return;
        }
        if inner.waiting_since.is_none() && inner.applied < inner.released {
            inner.waiting_since = Some(Instant::now());
            self.work.notify_one();
        } else if inner.overlay.keys() >= BATCH_KEYS_MAX {
            self.work.notify_one();
        }
        let lag_puts_max = self.options.lag_puts_max;
        self.hurry(inner, |inner| inner.overlay.puts() > lag_puts_max && inner.applied < inner.released);
    }

    /// Waits until everything released is applied, or sled is given up.
    pub(super) fn settle(&self) {
        self.hurry(self.lock(), |inner| inner.applied < inner.released);
    }

    /// Waits while sled is `behind` and the disk has room; sled's thread does not linger meanwhile.
    fn hurry<'a>(&'a self, inner: MutexGuard<'a, Inner>, behind: impl Fn(&Inner) -> bool) {
        let mut inner = self.watch(inner);
        if behind(&inner) {
            inner.look_again();
            inner.hurried += 1;
            self.work.notify_one();
            inner = self.wait(inner, |inner| !inner.is_full && behind(inner));
            inner.hurried -= 1;
        }
    }

    /// Lets a reader into sled once no batch is being applied. False if sled was given up: the reader is not
    /// in.
    pub(super) fn enter<'a>(&'a self, inner: MutexGuard<'a, Inner>) -> (MutexGuard<'a, Inner>, bool) {
        let mut inner = self.wait(inner, |inner| !matches!(inner.sled, Use::Reading(_)));
        let Inner { sled, degraded, .. } = &mut *inner;
        let is_in = match sled {
            Use::Reading(readers) if degraded.is_none() => {
                *readers += 1;
                true
            }
            Use::Reading(_) | Use::Draining(_) | Use::Applying => false,
        };
        (inner, is_in)
    }

    /// A reader that was let in has left sled.
    pub(super) fn leave(&self) {
        let mut inner = self.lock();
        match &mut inner.sled {
            Use::Reading(readers) | Use::Draining(readers) => *readers -= 1,
            // No batch begins before the last reader has left.
            Use::Applying => {}
        }
        if inner.sled == Use::Draining(0) {
            self.work.notify_one();
        }
    }

    /// Ends sled's thread at the point that `stop` names.
    pub(super) fn stop(&self, stop: Stop) {
        self.lock().stop = stop;
        self.work.notify_one();
    }

    /// Gives sled up: from now on the overlay keeps the newest value of every key that is put. The next open
    /// rebuilds. Only the first reason counts.
    pub(super) fn degrade(&self, reason: String) {
        let mut inner = self.lock();
        if inner.degraded.is_some() || inner.stop == Stop::Now {
            return;
        }
        tracing::warn!(%reason, "going on without sled; the next open rebuilds the state from the journal");
        // Under the lock: whoever learns that sled was given up may open the store again at once.
        if let Err(error) = self.place.clear_mark() {
            tracing::warn!(%error, "the next open may use the state as found: it is behind, not wrong");
        }
        inner.degraded = Some(reason);
        let released = inner.released;
        inner.overlay.retire(released);
        drop(inner);
        self.work.notify_one();
        self.progress.notify_all();
    }

    pub(super) fn health(&self) -> StateHealth {
        let inner = self.watch(self.lock());
        StateHealth {
            applied: inner.applied,
            lag: inner.released - inner.applied,
            is_full: inner.is_full,
            degraded: inner.degraded.clone(),
        }
    }

    /// Gives sled up if it has made no progress for too long. A thread that hangs cannot say so itself:
    /// whoever releases, waits or asks for its health looks.
    fn watch<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        let stall_after = self.options.stall_after;
        if inner.degraded.is_none() && inner.waiting_since.is_some_and(|since| since.elapsed() > stall_after)
        {
            drop(inner);
            self.degrade(format!("sled made no progress for {} ms", stall_after.as_millis()));
            inner = self.lock();
        }
        inner
    }

    /// Waits while `blocked` holds, but never for a sled that was given up.
    fn wait<'a>(
        &'a self,
        inner: MutexGuard<'a, Inner>,
        blocked: impl Fn(&Inner) -> bool,
    ) -> MutexGuard<'a, Inner> {
        let mut inner = self.watch(inner);
        while inner.degraded.is_none() && blocked(&inner) {
            let waited = inner.waiting_since.map_or(Duration::ZERO, |since| since.elapsed());
            let rest = self.options.stall_after.saturating_sub(waited) + TICK;
            let (woken, _) = self.progress.wait_timeout(inner, rest).unwrap_or_else(PoisonError::into_inner);
            inner = self.watch(woken);
        }
        inner
    }

    /// The next frames to apply; none when the thread must end.
    fn next(&self) -> Option<Work> {
        let mut inner = self.lock();
        loop {
            if inner.degraded.is_some() || inner.stop == Stop::Now {
                return None;
            }
            let Some(since) = inner.waiting_since else {
                if inner.stop == Stop::Settled {
                    return None;
                }
                inner = self.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let lingered = since.elapsed();
            if inner.hurried > 0
                || inner.stop == Stop::Settled
                || inner.overlay.keys() >= BATCH_KEYS_MAX
                || lingered >= LINGER
            {
                return Some(inner.overlay.next(inner.released));
            }
            let rest = LINGER.saturating_sub(lingered);
            (inner, _) = self.work.wait_timeout(inner, rest).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the disk has room for a batch: looks every while, and when somebody is in a hurry. False
    /// when the thread must end.
    fn await_room(&self) -> bool {
        loop {
            let has_room = self.hook(SledStep::FindRoom).is_ok() && self.place.free_bytes() >= ROOM_BYTES_MIN;
            let mut inner = self.lock();
            if has_room {
                inner.look_again();
                return true;
            }
            inner.is_full = true;
            self.progress.notify_all();
            if inner.stop != Stop::No || inner.degraded.is_some() {
                return false;
            }
            drop(self.work.wait_timeout(inner, ROOM_WAIT).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits until no reader is in sled, and keeps new ones out. False when the thread must end.
    fn begin(&self) -> bool {
        let mut inner = self.lock();
        if let Use::Reading(readers) = inner.sled {
            inner.sled = Use::Draining(readers);
        }
        while inner.sled != Use::Draining(0) {
            if inner.degraded.is_some() || inner.stop == Stop::Now {
                return false;
            }
            inner = self.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.sled = Use::Applying;
        true
    }

    /// The batch is applied.
    fn let_readers_in(&self) {
        self.lock().sled = Use::Reading(0);
        self.progress.notify_all();
    }

    /// sled holds everything below `end`, flushed: the overlay may forget it.
    fn flushed(&self, end: u64) {
        let mut inner = self.lock();
        if inner.degraded.is_some() {
            return;
        }
        inner.applied = end;
        inner.waiting_since = (inner.applied < inner.released).then(Instant::now);
        while inner.degraded.is_none() && inner.overlay.prune(end, PRUNE_FRAMES_MAX) {
            drop(inner);
            inner = self.lock();
        }
        drop(inner);
        self.progress.notify_all();
    }

    /// Runs the tests' hook, if there is one.
    pub(super) fn hook(&self, step: SledStep) -> Result<(), String> {
        self.options.hook.as_ref().map_or(Ok(()), |hook| hook(step)).map_err(|error| error.to_string())
    }

    pub(super) fn last_answer_wait(&self) -> Duration {
        self.options.last_answer_wait
    }
}

/// The body of sled's thread: applies what is released, in order, until told to stop or sled fails.
pub(super) fn run(shared: &Shared, db: &sled::Db) {
    while let Some(work) = shared.next() {
        let batch = batch(&work);
        if !shared.await_room() || !shared.begin() {
            return;
        }
        let applied = batch.and_then(|(batch, end)| {
            guarded(|| {
                shared.hook(SledStep::Batch).map_err(sled::Error::Unsupported)?;
                db.apply_batch(batch).map(|()| end)
            })
        });
        if applied.is_ok() {
            shared.let_readers_in();
        }
        let flushed = applied.and_then(|end| guarded(|| db.flush()).map(|_| end));
        match flushed.and_then(|end| shared.place.no_side_files().map(|()| end)) {
            Ok(end) => shared.flushed(end),
            Err(reason) => shared.degrade(format!("sled failed: {reason}")),
        }
    }
}

/// As many of the frames as change [`BATCH_KEYS_MAX`] keys at most (but one frame at least), as one atomic
/// change: the newest value of each key and the position that they lead to, which is answered too.
fn batch(work: &Work) -> Result<(sled::Batch, u64), String> {
    let mut newest: HashMap<&[u8], Option<&[u8]>> = HashMap::new();
    let mut end = work.end;
    for (index, frame) in work.frames.iter().enumerate() {
        if index > 0 && newest.len() + frame.puts.len() > BATCH_KEYS_MAX {
            end = frame.position;
            break;
        }
        for put in frame.puts.iter() {
            if let Some(got) = put.value.as_ref().map(Vec::len).filter(|len| *len > VALUE_BYTES_MAX) {
                return Err(format!("a value of {got} bytes was let in, at most {VALUE_BYTES_MAX} fit"));
            }
            newest.insert(put.key.as_slice(), put.value.as_deref());
        }
    }
    let mut batch = sled::Batch::default();
    for (key, value) in newest {
        match value {
            Some(value) => batch.insert(key, value),
            None => batch.remove(key),
        }
    }
    batch.insert(APPLIED_KEY, &end.to_le_bytes());
    Ok((batch, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Put;
    use crate::state::overlay::Staged;

    fn frame(position: u64, keys: std::ops::Range<usize>) -> Staged {
        let put = |key: usize| Put { key: key.to_be_bytes().to_vec(), value: Some(vec![0]) };
        Staged { position, puts: keys.map(put).collect() }
    }

    #[test]
    fn a_batch_is_cut_at_whole_frames_and_counts_a_key_once() {
        let end = |frames: Vec<Staged>| batch(&Work { frames, end: 99 }).map(|(_, end)| end);
        let half = BATCH_KEYS_MAX / 2;
        assert_eq!(end(vec![]), Ok(99));
        assert_eq!(end(vec![frame(7, 0..2 * BATCH_KEYS_MAX)]), Ok(99));
        let same = |position| frame(position, 0..half);
        assert_eq!(end((7..99).map(same).collect()), Ok(99));
        let next = |position| frame(position, half..2 * half + 1);
        assert_eq!(end(vec![same(7), same(8), next(9), same(10)]), Ok(9));
    }
}
