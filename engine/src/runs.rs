//! The runs that this engine knows: who drives them, who watches them.
//!
//! Owns the meeting point of drivers, handles and observers. It must never hold a run's state: that is in the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use model::{Millis, Outcome, ParkReason, RunId};
use tokio::sync::{Notify, broadcast, mpsc, watch};

use crate::event::Stamped;

/// Where a run rests when no driver moves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It has ended.
    Done {
        /// How.
        outcome: Outcome,
        /// Why, unless it completed.
        reason: Option<String>,
    },
    /// It needs a person.
    Parked(ParkReason),
    /// It waits for a timer, without a slot.
    Waiting {
        /// Until then.
        until: Millis,
    },
    /// The engine stopped; the run continues when it is resumed.
    Stopped,
    /// The engine could not go on with it, for this reason of its own; the run continues when it is resumed.
    Failed(String),
}

impl Rest {
    /// The run moves on by itself.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Waiting { .. } => true,
            Self::Done { .. } | Self::Parked(_) | Self::Stopped | Self::Failed(_) => false,
        }
    }
}

/// Live updates that a slow reader may be behind before it loses some.
pub(crate) const LIVE_UPDATES_MAX: usize = 1024;

/// A live update, and where it belongs among the records.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// Sequence of the newest commit when it was published.
    pub(crate) after: u64,
    /// The update.
    pub(crate) update: Stamped,
}

/// One run's meeting point. What nobody asks for is not made: there are as many of these as runs under way.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Something was accepted into the inbox.
    pub(crate) inbox: Notify,
    rest: Mutex<Option<Box<Rest>>>,
    /// `rest` has changed.
    rested: Notify,
    committed: OnceLock<watch::Sender<u64>>,
    live: OnceLock<broadcast::Sender<Live>>,
}

impl Watched {
    fn new() -> Self {
        Self {
            inbox: Notify::new(),
            rest: Mutex::new(None),
            rested: Notify::new(),
            committed: OnceLock::new(),
            live: OnceLock::new(),
        }
    }

    fn set_rest(&self, rest: Option<Rest>) {
        *lock(&self.rest) = rest.map(Box::new);
        self.rested.notify_waiters();
    }

    /// Where the run rests; none while it moves.
    pub(crate) fn rest(&self) -> Option<Rest> {
        lock(&self.rest).as_deref().cloned()
    }

    /// Waits until the run rests and does not move on by itself.
    pub(crate) async fn until_rest(&self) -> Rest {
        loop {
            let changed = self.rested.notified();
            tokio::pin!(changed);
            // From here on a change is not missed.
            changed.as_mut().enable();
            if let Some(rest) = self.rest().filter(|rest| !rest.is_waiting()) {
                return rest;
            }
            changed.await;
        }
    }

    /// Tells the sequence of the newest commit.
    pub(crate) fn set_committed(&self, seq: u64) {
        if let Some(committed) = self.committed.get() {
            committed.send_replace(seq);
        }
    }

    /// Follows the newest commit.
    pub(crate) fn committed(&self) -> watch::Receiver<u64> {
        self.committed.get_or_init(|| watch::Sender::new(0)).subscribe()
    }

    /// Follows live updates from now on.
    pub(crate) fn updates(&self) -> broadcast::Receiver<Live> {
        self.live.get_or_init(|| broadcast::channel(LIVE_UPDATES_MAX).0).subscribe()
    }

    /// True if anybody follows live updates.
    pub(crate) fn has_listeners(&self) -> bool {
        self.live.get().is_some_and(|live| live.receiver_count() > 0)
    }

    /// Passes a live update on to whoever follows.
    pub(crate) fn update(&self, update: Live) {
        if let Some(live) = self.live.get() {
            // An error means that nobody listens any more.
            let _ = live.send(update);
        }
    }
}

/// Where runs come to rest, in the order in which it happens; none: the run moves again. It holds at most what happened
/// since it was last read.
pub(crate) type Rests = mpsc::UnboundedReceiver<Rested>;

/// A run, and where it rests.
type Rested = (RunId, Option<Rest>);

/// The meeting points of all runs that anybody is interested in.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    watched: Mutex<HashMap<RunId, Arc<Watched>>>,
    followers: Mutex<Vec<mpsc::UnboundedSender<Rested>>>,
}

impl Runs {
    /// The meeting point of a run, made if there is none.
    pub(crate) fn watch(&self, run: RunId) -> Arc<Watched> {
        let mut watched = lock(&self.watched);
        Arc::clone(watched.entry(run).or_insert_with(|| Arc::new(Watched::new())))
    }

    /// The meeting point of a run, if anybody is interested in it.
    pub(crate) fn find(&self, run: RunId) -> Option<Arc<Watched>> {
        lock(&self.watched).get(&run).cloned()
    }

    /// Forgets a run that has ended and that only this map still knows.
    pub(crate) fn forget(&self, run: RunId) {
        let mut watched = lock(&self.watched);
        if watched.get(&run).is_some_and(|entry| Arc::strong_count(entry) <= 2) {
            watched.remove(&run);
        }
    }

    /// Tells that a run rests, or moves again.
    pub(crate) fn set_rest(&self, run: RunId, rest: Option<Rest>) {
        lock(&self.followers).retain(|follower| follower.send((run, rest.clone())).is_ok());
        match rest {
            None => self.find(run).into_iter().for_each(|watched| watched.set_rest(None)),
            Some(_) => self.watch(run).set_rest(rest),
        }
    }

    /// Follows every run from now on.
    pub(crate) fn rests(&self) -> Rests {
        let (follower, rests) = mpsc::unbounded_channel();
        lock(&self.followers).push(follower);
        rests
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock means that a thread panicked between two field writes of plain data; the data is still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
