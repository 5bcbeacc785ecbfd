//! How the engines of a store ended: which of them uncleanly, and how many of those in a row.
//!
//! Owns one small value of the store, written when an engine first moves a run and when it stops. An engine that moves
//! none is not seen here, and an end together with its machine is nobody's fault. It must never judge a run.

use model::guard::crashes::UNCLEAN_ENDS_AT;
use serde::{Deserialize, Serialize};
use store::{Commit, Durability, Store};
use tokio::sync::{Mutex, OnceCell};

use crate::error::Error;
use crate::keys;
use crate::shared::Shared;

/// Unclean ends that are remembered; a run left by an older one is under no suspicion.
const UNCLEAN_MAX: usize = 64;

/// What the engines of a store leave to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    /// Sequence that the next record of the stream gets.
    next: u64,
    /// Epoch and boot of the engine that moves runs; none after it has stopped.
    moving: Option<(u64, [u8; 16])>,
    /// Epochs of those that ended uncleanly, the newest last.
    unclean: Vec<u64>,
    /// How many of them since one stopped, or since every suspect was found innocent.
    in_a_row: u8,
}

/// The life of this engine, and what it knows of those before it.
#[derive(Debug)]
pub(crate) struct Lives {
    before: History,
    now: Mutex<History>,
    begun: OnceCell<()>,
}

impl Lives {
    /// What a store tells an engine that has just claimed it.
    pub(crate) fn read(store: &dyn Store, boot_id: [u8; 16]) -> Result<Self, Error> {
        let found = store.scan(keys::LIVES, None, 1)?.into_iter().next();
        let known = found.and_then(|(_, value)| postcard::from_bytes(&value).ok());
        let before = known.map(|history: History| history.after_open(boot_id)).unwrap_or_default();
        Ok(Self { now: Mutex::new(before.clone()), before, begun: OnceCell::new() })
    }

    /// The engine of this epoch ended uncleanly.
    pub(crate) fn was_unclean(&self, epoch: u64) -> bool {
        self.before.unclean.contains(&epoch)
    }

    /// So many engines have ended uncleanly in a row that suspects are tried alone.
    pub(crate) fn has_trials(&self) -> bool {
        self.before.in_a_row >= UNCLEAN_ENDS_AT
    }

    /// The engine moves a run: from here on its end is an unclean one, unless it stops. Linked before anything of the run.
    pub(crate) async fn begin(&self, shared: &Shared) {
        let begin = || self.write(shared, |history| history.moving = Some((shared.epoch.0, shared.boot_id)));
        self.begun.get_or_init(begin).await;
    }

    /// Every suspect got past what it had under way, or the culprit was found: the next unclean end is a first one.
    pub(crate) async fn acquit(&self, shared: &Shared) {
        self.write(shared, |history| history.in_a_row = 0).await;
    }

    /// The engine stops as it was asked to.
    pub(crate) async fn end(&self, shared: &Shared) {
        if self.begun.initialized() {
            self.write(shared, |history| (history.moving, history.in_a_row) = (None, 0)).await;
        }
    }

    async fn write(&self, shared: &Shared, change: impl FnOnce(&mut History)) {
        let mut now = self.now.lock().await;
        let mut after = now.clone();
        change(&mut after);
        if after == *now {
            return;
        }
        loop {
            let at = after.next;
            after.next = at.saturating_add(1);
            match shared.store.commit(after.commit(shared, at)).await {
                Ok(_) => return *now = after,
                // A failed barrier took back what was written before.
                Err(store::Error::Conflict { next, .. }) if next != at => after.next = next,
                Err(error) => {
                    // At worst an end counts as unclean, or as none: it decides no more than an order of resumption.
                    return tracing::warn!(%error, "it could not be noted how this engine lives");
                }
            }
        }
    }
}

impl History {
    fn after_open(mut self, boot_id: [u8; 16]) -> Self {
        if let Some((epoch, _)) = self.moving.take().filter(|(_, boot)| *boot == boot_id) {
            self.unclean.push(epoch);
            let surplus = self.unclean.len().saturating_sub(UNCLEAN_MAX);
            self.unclean.drain(..surplus);
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
        self
    }

    fn commit(&self, shared: &Shared, at: u64) -> Commit {
        let value = postcard::to_stdvec(self).unwrap_or_default();
        let commit = shared.fact(keys::ENGINES, at, keys::LIVES.to_vec(), value);
        // A process that dies keeps what is written; whoever closes the store syncs it.
        Commit { durability: Durability::Ordered, ..commit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [1; 16];

    #[test]
    fn only_an_end_on_the_same_boot_counts() {
        let lived = History { next: 5, moving: Some((7, BOOT)), unclean: vec![3], in_a_row: 1 };
        let died = History { next: 5, moving: None, unclean: vec![3, 7], in_a_row: 2 };
        let cut = History { moving: None, ..lived.clone() };
        assert_eq!([lived.clone().after_open(BOOT), lived.after_open([2; 16])], [died.clone(), cut]);
        assert_eq!(died.clone().after_open(BOOT), died, "nothing moved since");
    }

    #[test]
    fn old_ends_are_forgotten() {
        let mut history = History::default();
        for epoch in 0..100 {
            history = History { moving: Some((epoch, BOOT)), ..history }.after_open(BOOT);
        }
        assert_eq!((history.unclean.len(), history.unclean[0], history.in_a_row), (UNCLEAN_MAX, 36, 100));
    }
}
