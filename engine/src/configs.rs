//! The configurations of one engine: the one in force, and those that its runs keep.
//!
//! Owns which settings hold for a run: those it started with, whatever a file says by now. Each snapshot is stored once,
//! under its hash, before the first run that names it. `[profiles]` alone are those in force for every run: a key is
//! looked for where it is now. It must never read a file.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::sync::{Arc, Mutex};

use store::{Commit, Durability, Require, Store};

use crate::config::{Config, Profile, SnapshotHash};
use crate::error::Error;
use crate::keys;
use crate::runs::lock;
use crate::shared::Shared;

/// Snapshots that stay in memory; any other one is read again when a run needs it.
const KNOWN_MAX: usize = 64;

/// Where the vendors' own programs look for a key.
const USUAL_KEYS: [&str; 2] = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"];

/// The configurations of one engine.
#[derive(Debug)]
pub(crate) struct Configs {
    in_force: Mutex<Settings>,
    /// Snapshots that this engine has seen in the store, or put there.
    known: Mutex<HashMap<SnapshotHash, Arc<Config>>>,
    /// Held while one is put there.
    storing: tokio::sync::Mutex<()>,
    key_names: Arc<KeyNames>,
}

/// Settings under the name of their snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) hash: SnapshotHash,
    pub(crate) config: Arc<Config>,
}

/// The variables in which keys are looked for, by any configuration that this engine has met. Commands are not given
/// them: neither those of a run that keeps an older configuration, nor once a newer one has forgotten a name.
#[derive(Debug)]
pub(crate) struct KeyNames(Mutex<BTreeSet<OsString>>);

impl Settings {
    pub(crate) fn new(config: Config) -> Self {
        Self { hash: SnapshotHash::of(config.snapshot().as_bytes()), config: Arc::new(config) }
    }
}

impl Configs {
    pub(crate) fn new(config: Config) -> Self {
        let key_names = KeyNames(Mutex::new(USUAL_KEYS.map(OsString::from).into()));
        key_names.learn(&config);
        Self {
            in_force: Mutex::new(Settings::new(config)),
            known: Mutex::default(),
            storing: tokio::sync::Mutex::default(),
            key_names: Arc::new(key_names),
        }
    }

    /// What holds for runs that start now.
    pub(crate) fn in_force(&self) -> Settings {
        lock(&self.in_force).clone()
    }

    /// From now on another configuration is in force.
    pub(crate) fn replace(&self, config: Config) {
        self.key_names.learn(&config);
        *lock(&self.in_force) = Settings::new(config);
    }

    /// Which variables no command is given.
    pub(crate) fn key_names(&self) -> Arc<KeyNames> {
        Arc::clone(&self.key_names)
    }

    /// What a run keeps, by the name in its first record. A run of a journal that names none goes by what is in force,
    /// and so does one whose snapshot was lost with a damaged journal.
    pub(crate) fn of_run(&self, store: &dyn Store, hash: Option<SnapshotHash>) -> Result<Settings, Error> {
        let in_force = self.in_force();
        let Some(hash) = hash.filter(|hash| *hash != in_force.hash) else { return Ok(in_force) };
        if let Some(config) = self.find(store, hash)? {
            return Ok(Settings { hash, config });
        }
        tracing::warn!(config = %hash, "the settings that runs started with are lost; they get those in force");
        Ok(in_force)
    }

    /// What a run keeps as it holds now: with the profiles in force.
    pub(crate) fn now(&self, kept: &Config) -> Config {
        Config { profiles: Arc::clone(&lock(&self.in_force).config.profiles), ..kept.clone() }
    }

    /// Sees to it that the store holds a snapshot; answers what the commit of a run that names it requires.
    ///
    /// 1. The snapshot's commit is linked before the run's, so the barrier that covers the run covers both.
    /// 2. A barrier that fails takes the snapshot back, and with it what is required: the run is not accepted.
    pub(crate) async fn keep(&self, shared: &Shared, settings: &Settings) -> Result<Require, Error> {
        let store = &*shared.store;
        if let Some(kept) = self.kept(store, settings.hash)? {
            return Ok(kept);
        }
        let _alone = self.storing.lock().await;
        let mut next = 0;
        loop {
            if let Some(kept) = self.kept(store, settings.hash)? {
                return Ok(kept);
            }
            let value = u64::to_be_bytes(next).to_vec();
            let fact = shared.fact(keys::SNAPSHOTS, next, keys::snapshot(settings.hash), value);
            let payload = settings.config.snapshot().into_bytes();
            let commit = Commit { payload, durability: Durability::Ordered, ..fact };
            match store.commit(commit).await {
                Ok(_) => self.remember(settings.hash, &settings.config),
                Err(store::Error::Conflict { next: found, .. }) => next = found,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What a run requires whose snapshot the store holds; none if it does not.
    fn kept(&self, store: &dyn Store, hash: SnapshotHash) -> Result<Option<Require>, Error> {
        let key = keys::snapshot(hash);
        let Some((_, place)) = store.scan(&key, None, 1)?.into_iter().next() else { return Ok(None) };
        let is_there = self.find(store, hash)?.is_some();
        Ok(is_there.then_some(Require::Holds { key, value: Some(place) }))
    }

    /// A snapshot in the store, which is read once.
    fn find(&self, store: &dyn Store, hash: SnapshotHash) -> Result<Option<Arc<Config>>, Error> {
        if let Some(known) = lock(&self.known).get(&hash) {
            return Ok(Some(Arc::clone(known)));
        }
        let config = stored(store, hash)?.map(Arc::new);
        config.iter().for_each(|config| self.remember(hash, config));
        Ok(config)
    }

    fn remember(&self, hash: SnapshotHash, config: &Arc<Config>) {
        self.key_names.learn(config);
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_MAX {
            // The store has them all.
            known.clear();
        }
        known.insert(hash, Arc::clone(config));
    }
}

/// A snapshot in the store. None if it is not there, or no longer what its name says.
pub(crate) fn stored(store: &dyn Store, hash: SnapshotHash) -> Result<Option<Config>, Error> {
    let found = store.scan(&keys::snapshot(hash), None, 1)?.into_iter().next();
    let place = found.and_then(|(_, place)| place.try_into().ok()).map(u64::from_be_bytes);
    let Some(place) = place else { return Ok(None) };
    let record = store.read_journal(keys::SNAPSHOTS, place, 1)?.into_iter().next();
    let snapshot = record.and_then(|record| record.payload).filter(|it| SnapshotHash::of(it) == hash);
    let snapshot = snapshot.map(|snapshot| Config::from_snapshot(&String::from_utf8_lossy(&snapshot)));
    Ok(snapshot.transpose()?)
}

impl KeyNames {
    fn learn(&self, config: &Config) {
        let of_models = config.models.values().filter_map(|model| model.api_key_env.as_ref());
        let of_profiles = config.profiles.values().filter_map(|profile| match profile {
            Profile::ApiKeyEnv(name) => Some(name),
            Profile::ApiKeyCmd(_) => None,
        });
        lock(&self.0).extend(of_models.chain(of_profiles).map(OsString::from));
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<OsString> {
        lock(&self.0).iter().cloned().collect()
    }
}
