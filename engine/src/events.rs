//! Event streams: what happened in a run, from any place on, and what happens.
//!
//! Owns reading at the reader's own pace: events come from the journal, so a slow reader slows nobody. Only
//! live updates may be lost to it. An update that was published after record `n` is yielded after the events
//! of record `n` and before those of the next: never outside of the answer or the call that it is about.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use model::RunId;
use store::{Store, Stream as Chain};
use tokio::sync::broadcast::{self, error::TryRecvError};
use tokio::sync::watch;

use crate::driver::{decode_moved, inbox_message, read_first};
use crate::error::Error;
use crate::event::{AgentEvent, Place, Stamped};
use crate::fold::Fold;
use crate::handle::RunHandle;
use crate::keys;
use crate::runs::{LIVE_UPDATES_MAX, Live, Watched};

/// Records read at once.
const PAGE: usize = 256;
/// Longest time after which the journal is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The same while updates wait for a record to become durable.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// Reads a run's events from its journal.
pub struct EventReader {
    store: Arc<dyn Store>,
    run: RunId,
    fold: Fold,
    next: u64,
    after: Option<Place>,
    has_ended: bool,
}

impl EventReader {
    /// Starts after a place, or at the run's first event.
    pub fn open(store: Arc<dyn Store>, run: RunId, after: Option<Place>) -> Result<Self, Error> {
        let first = read_first(&*store, run)?;
        Ok(Self { store, run, fold: Fold::new(first.submission, true), next: 1, after, has_ended: false })
    }

    /// The next events that are durable; empty if there are none yet, or none any more.
    pub fn read(&mut self) -> Result<Vec<Stamped>, Error> {
        loop {
            let stream = Chain::Run(keys::run_key(self.run));
            let records = self.store.read_journal(stream, self.next, PAGE)?;
            let Some(last) = records.last() else { return Ok(Vec::new()) };
            self.next = last.head.seq.saturating_add(1);
            let mut events = Vec::new();
            for record in records {
                let seq = record.head.seq;
                let Some(moved) = decode_moved(self.run, record.payload)? else { continue };
                let inbox = |position| inbox_message(&*self.store, self.run, position);
                events.extend(self.fold.apply(seq, &moved, &inbox)?.events);
            }
            self.has_ended |= events.iter().any(|event| matches!(event.event, AgentEvent::AgentEnd { .. }));
            let after = self.after;
            events.retain(|event| after.is_none_or(|after| event.place.is_some_and(|place| place > after)));
            if !events.is_empty() || self.has_ended {
                return Ok(events);
            }
        }
    }

    /// The run's last event was read.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Follows a run.
struct Following {
    reader: EventReader,
    watched: Arc<Watched>,
    committed: watch::Receiver<u64>,
    updates: broadcast::Receiver<Live>,
    /// Updates that were published after a record that the reader has not reached.
    held: VecDeque<Live>,
    ready: VecDeque<Stamped>,
    has_failed: bool,
}

impl RunHandle {
    /// The sequence of the run's newest commit by this engine, as it grows from now on.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.engine().shared().runs.watch(self.id).committed()
    }

    /// The run's events from after a place on (from the first, if none), then what happens until it ends,
    /// live updates included.
    pub fn events(
        &self,
        after: Option<Place>,
    ) -> Result<impl Stream<Item = Result<Stamped, Error>> + Send + use<>, Error> {
        let shared = self.engine().shared();
        let watched = shared.runs.watch(self.id);
        let following = Following {
            reader: EventReader::open(Arc::clone(&shared.store), self.id, after)?,
            committed: watched.committed(),
            updates: watched.updates(),
            watched,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            has_failed: false,
        };
        Ok(futures_util::stream::unfold(following, |mut following| async move {
            let next = following.next().await?;
            Some((next, following))
        }))
    }
}

impl Following {
    async fn next(&mut self) -> Option<Result<Stamped, Error>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.has_failed || self.reader.has_ended() {
                return None;
            }
            match self.read() {
                Ok(()) if self.ready.is_empty() => self.wait().await,
                Ok(()) => {}
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
    }

    /// Makes what can be read ready, in order.
    fn read(&mut self) -> Result<(), Error> {
        let events = self.reader.read()?;
        // What was published before a record was committed has arrived by the time that the record is read.
        self.take_updates();
        for event in events {
            self.release(event.place.map_or(0, |place| place.seq));
            self.ready.push_back(event);
        }
        self.release(self.reader.next);
        Ok(())
    }

    fn take_updates(&mut self) {
        loop {
            match self.updates.try_recv() {
                Ok(live) => self.hold(live),
                // A reader that lags loses updates, never events.
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn hold(&mut self, live: Live) {
        if self.held.len() == LIVE_UPDATES_MAX {
            self.held.pop_front();
        }
        self.held.push_back(live);
    }

    /// Makes the updates ready that were published before the record `seq`.
    fn release(&mut self, seq: u64) {
        while self.held.front().is_some_and(|live| live.after < seq) {
            self.ready.extend(self.held.pop_front().map(|live| live.update));
        }
    }

    async fn wait(&mut self) {
        let _kept = &self.watched;
        let look_again = if self.held.is_empty() { LOOK_AGAIN } else { LOOK_SOON };
        tokio::select! {
            biased;
            update = self.updates.recv() => {
                if let Ok(live) = update {
                    self.hold(live);
                }
            }
            changed = self.committed.changed() => {
                if changed.is_err() {
                    tokio::time::sleep(look_again).await;
                }
            }
            () = tokio::time::sleep(look_again) => {}
        }
    }
}

#[cfg(test)]
mod tests;
