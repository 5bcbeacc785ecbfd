//! Health of the configured profiles: one for the whole engine, because an account is shared by all runs.
//!
//! Owns the picture in memory, and that it equals what is committed: a change is put into the commit that causes it, and
//! shows once that commit is durable. It must never judge a failure: that is `model`'s.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use model::guard::profiles::{Health, Profile};
use model::input::Failure;
use model::{Label, Millis};
use store::{Put, Store};

use crate::error::Error;
use crate::keys;
use crate::runs::lock;

/// The most profiles that are read: far more than a configuration has.
const READ_MAX: usize = 4096;

/// The health of every profile that has failed and not answered since.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    known: Mutex<HashMap<Label, Health>>,
    /// One change at a time, from its computation to its barrier: no failure is lost between two others.
    turn: tokio::sync::Mutex<()>,
    /// One choice at a time: of many runs that find the same profile ready to be probed, one takes it.
    choosing: Mutex<()>,
}

/// What a transition says of a profile.
pub(crate) struct Verdict<'a> {
    /// The profile's name.
    pub(crate) profile: Arc<str>,
    /// The model that was asked.
    pub(crate) model: Label,
    /// When.
    pub(crate) at: Millis,
    pub(crate) what: What<'a>,
}

/// What became of a profile.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    /// It is asked.
    Asked,
    /// It paid for an answer.
    Answered,
    /// The run leaves it for this failure.
    Failed {
        failure: &'a Failure,
        /// The provider had begun to answer.
        had_started: bool,
    },
}

impl Verdict<'_> {
    /// Changes the health by it; false if nothing is changed.
    fn apply(&self, health: &mut Health) -> bool {
        match self.what {
            What::Asked if health.is_usable(self.at, &self.model) => false,
            What::Asked => {
                health.mark_probed(self.at);
                true
            }
            What::Answered => health.mark_good(self.at, &self.model),
            What::Failed { failure, had_started } => health.mark(failure, had_started, self.at, &self.model),
        }
    }
}

/// A change on its way into a commit. Dropped, it has not happened.
pub(crate) struct HealthChange<'a> {
    profiles: &'a Profiles,
    _turn: tokio::sync::MutexGuard<'a, ()>,
    name: Arc<str>,
    health: Health,
}

impl Profiles {
    /// What is committed.
    pub(crate) fn load(store: &dyn Store) -> Result<Self, Error> {
        let known = read(store)?.into_iter().map(|profile| (profile.name, profile.health)).collect();
        Ok(Self { known: Mutex::new(known), ..Self::default() })
    }

    /// The health of a profile.
    pub(crate) fn health(&self, name: &str) -> Health {
        lock(&self.known).get(&Label::from(name)).cloned().unwrap_or_default()
    }

    /// Held from the look at the profiles to the choice of one.
    pub(crate) fn choosing(&self) -> MutexGuard<'_, ()> {
        lock(&self.choosing)
    }

    /// Takes a profile that cools down to be probed. It shows before the intent is committed.
    pub(crate) fn probe(&self, name: &str, at: Millis) {
        if let Some(health) = lock(&self.known).get_mut(&Label::from(name)) {
            health.mark_probed(at);
        }
    }

    /// Prepares what a verdict changes; none if that is nothing.
    pub(crate) async fn change<'a>(&'a self, verdict: &Verdict<'_>) -> Option<HealthChange<'a>> {
        // Nearly every answer finds a profile that is well: no turn is taken for it.
        if !verdict.apply(&mut self.health(&verdict.profile)) {
            return None;
        }
        let turn = self.turn.lock().await;
        let name = Arc::clone(&verdict.profile);
        let mut health = self.health(&name);
        verdict.apply(&mut health).then_some(HealthChange { profiles: self, _turn: turn, name, health })
    }
}

impl HealthChange<'_> {
    /// The change as part of a commit.
    pub(crate) fn put(&self) -> Put {
        let profile = Profile { name: Label::from(&*self.name), health: self.health.clone() };
        let is_well = profile.health == Health::default();
        Put { key: keys::profile(&self.name), value: (!is_well).then(|| profile.to_bytes()) }
    }

    /// The commit is durable: the change shows.
    pub(crate) fn keep(self) {
        let name = Label::from(&*self.name);
        let mut known = lock(&self.profiles.known);
        if self.health == Health::default() {
            known.remove(&name);
            return;
        }
        let probed_at = known.get(&name).and_then(|health| health.probed_at);
        let probed_at = self.health.probed_at.max(probed_at);
        known.insert(name, Health { probed_at, ..self.health });
    }
}

/// The committed health of every profile that has one, in no order that means anything.
pub(crate) fn read(store: &dyn Store) -> Result<Vec<Profile>, Error> {
    let found = store.scan(keys::PROFILES, None, READ_MAX)?;
    found.iter().map(|(_, value)| Profile::from_bytes(value).map_err(Error::Profile)).collect()
}
