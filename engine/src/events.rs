//! Event streams: what happened in a run, from any place on, and what happens.
//!
//! Owns reading at the reader's own pace: events come from the journal, so a slow reader slows nobody. Only live updates
//! may be lost to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use model::RunId;
use store::{Store, Stream as Chain};
use tokio::sync::broadcast;

use crate::driver::{decode_moved, inbox_message, read_first};
use crate::engine::RunHandle;
use crate::error::Error;
use crate::event::{AgentEvent, Place, Stamped};
use crate::fold::Fold;
use crate::keys;
use crate::runs::Watched;

/// Records read at once.
const PAGE: usize = 256;
/// Longest time after which the journal is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
    committed: tokio::sync::watch::Receiver<u64>,
    updates: broadcast::Receiver<Stamped>,
    ready: VecDeque<Stamped>,
    has_failed: bool,
}

impl RunHandle {
    /// The run's events from after a place on (from the first, if none), then what happens until it ends, live updates
    /// included.
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
            match self.reader.read() {
                Ok(events) if !events.is_empty() => self.ready.extend(events),
                Ok(_) => self.wait().await,
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
    }

    async fn wait(&mut self) {
        let _kept = &self.watched;
        tokio::select! {
            biased;
            update = self.updates.recv() => {
                // A reader that lags loses updates, never events.
                if let Ok(update) = update {
                    self.ready.push_back(update);
                }
            }
            changed = self.committed.changed() => {
                if changed.is_err() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}
