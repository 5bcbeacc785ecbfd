//! What a run may ask of models: the profile in force, the place in the list of models, who cools down.
//!
//! Owns what `show` and `why` say of it. Times are compared with the run's newest input: a query has no clock.

use model::state::Core;
use model::{Label, Millis, RunId};
use serde::Serialize;
use store::Store;

use super::present;
use crate::driver::read_first;
use crate::error::Error;
use crate::job::JobFacts;
use crate::profiles;
use crate::routes::position;

/// What a run may ask of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutesView {
    /// Name of the profile that pays for the model in force; none: the model has no profiles.
    pub profile: Option<String>,
    /// Position of the model in force in the list of models that may be asked; 0: the one that was asked for.
    pub fallback: usize,
    /// The models that may be asked, in order.
    pub models: Vec<String>,
    /// Profiles that cannot be used, by the models that may be asked.
    pub cooling: Vec<CoolingRow>,
}

/// A profile that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoolingRow {
    /// The model that it would pay for.
    pub model: String,
    /// Its name.
    pub profile: String,
    /// The failure that is the reason.
    pub reason: &'static str,
    /// Until when.
    #[serde(serialize_with = "present::time")]
    pub until: Millis,
}

impl RoutesView {
    /// What a run may ask, as its newest state says.
    pub(super) fn of(store: &dyn Store, run: RunId, core: &Core) -> Result<Self, Error> {
        let submission = read_first(store, run)?.submission;
        let facts = JobFacts::of(&submission).map_err(|error| Error::Job(format!("run {run}: {error}")))?;
        let requested = facts.model.clone().unwrap_or_else(|| submission.model.as_str().to_owned());
        let models = facts.candidates.iter().map(|candidate| candidate.model.clone());
        Ok(Self {
            profile: facts.profile(&core.model, core.retries.profile).map(str::to_owned),
            fallback: position(&facts.candidates, &core.model).unwrap_or_default(),
            models: if facts.candidates.is_empty() { vec![requested] } else { models.collect() },
            cooling: cooling(store, &facts, core)?,
        })
    }

    /// `; profile work cannot be used until ...`, for each that the model in force would use.
    pub(super) fn cooling_text(&self, core: &Core) -> String {
        let of_model = self.cooling.iter().filter(|row| Label::from(row.model.as_str()) == core.model);
        let text = |row: &CoolingRow| {
            let until = crate::clock::rfc3339(row.until);
            format!("; profile {} cannot be used until {until} after {}", row.profile, row.reason)
        };
        of_model.map(text).collect()
    }
}

fn cooling(store: &dyn Store, facts: &JobFacts, core: &Core) -> Result<Vec<CoolingRow>, Error> {
    if facts.candidates.iter().all(|candidate| candidate.profiles.is_empty()) {
        return Ok(Vec::new());
    }
    let known = profiles::read(store)?;
    let row = |model: &str, name: &str| {
        let label = Label::from(name);
        let health = &known.iter().find(|profile| profile.name == label)?.health;
        let cooling = health.cooling(core.clock, &Label::from(model))?;
        let (model, profile) = (model.to_owned(), name.to_owned());
        Some(CoolingRow { model, profile, reason: cooling.reason.name(), until: cooling.until })
    };
    let pairs = facts.candidates.iter().flat_map(|candidate| {
        candidate.profiles.iter().map(|profile| (candidate.model.as_str(), profile.as_str()))
    });
    Ok(pairs.filter_map(|(model, profile)| row(model, profile)).collect())
}
