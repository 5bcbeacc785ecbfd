//! What can be asked for a run: its models in order, the profiles of each, and what of it is left after a failure.
//!
//! Owns the list that a run keeps and the view on it at one moment. It must never decide that something else is asked:
//! the retry guard does, from what it is given here.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use model::guard::profiles::{Choice, Health, PROFILES_MAX, Place, Roster};
use model::input::{Failure, FailureKind, Routes};
use model::state::Core;
use model::{Label, Millis};
use serde::{Deserialize, Serialize};

use crate::config::{Config, FALLBACKS_MAX, Profile};
use crate::shared::Shared;

/// A model that may be asked for a run, and who may pay for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub model: String,
    /// Names of its profiles, in the order in which they are asked; none: its own key pays, and nothing is remembered of
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<String>,
}

/// The models that may be asked for a job, the requested one first. `fallback` follows unless somebody asked for just
/// this model. Empty: the requested one alone, without profiles.
pub(crate) fn candidates(requested: &str, fallback: &[String], config: &Config) -> Arc<[Candidate]> {
    let mut names = vec![requested];
    for name in fallback.iter().take(FALLBACKS_MAX) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let profiles = |name: &str| {
        let all = config.models.get(name).map(|model| model.profiles.as_slice()).unwrap_or_default();
        all.iter().take(PROFILES_MAX).cloned().collect()
    };
    let of_name = |name: &str| Candidate { model: name.to_owned(), profiles: profiles(name) };
    let candidates: Arc<[Candidate]> = names.into_iter().map(of_name).collect();
    match &*candidates {
        [only] if only.profiles.is_empty() => Arc::default(),
        _ => candidates,
    }
}

/// The models of one run at one moment.
pub(crate) struct Ways<'a> {
    pub(crate) shared: &'a Shared,
    /// What the run keeps, with the profiles in force.
    pub(crate) config: Config,
    pub(crate) candidates: &'a [Candidate],
    pub(crate) core: &'a Core,
    /// Position of the profile that the session uses, among those of the requested model.
    pub(crate) session_profile: u8,
    pub(crate) at: Millis,
}

/// A call that was paid for and failed.
#[derive(Clone, Copy)]
pub(crate) struct Failed<'a> {
    /// Name of the profile that paid; none if the call was not made, or if its model has no profiles.
    pub(crate) profile: Option<&'a str>,
    pub(crate) failure: &'a Failure,
    /// The provider had begun to answer.
    pub(crate) had_started: bool,
}

impl Ways<'_> {
    /// Who pays for the next call of the model in force.
    pub(crate) fn choose(&self) -> Choice {
        let Some(position) = self.position() else { return Choice::Use(self.preferred()) };
        let roster = self.roster(position, |name| self.shared.profiles.health(name));
        roster.choose(self.preferred(), self.place(position))
    }

    /// The profile that pays as long as it can: the session's, then the one that the run has come to.
    pub(crate) fn preferred(&self) -> u8 {
        let is_first_call = self.core.spent.model_calls == 0;
        if is_first_call { self.session_profile } else { self.core.retries.profile }
    }

    /// What else could be asked after a failure.
    pub(crate) fn routes(&self, failed: Failed<'_>) -> Routes {
        let position = self.position();
        let name = position.map_or(self.core.model.as_str(), |position| &self.candidates[position].model);
        let known = self.config.models.get(name);
        let context_window = known.and_then(|model| model.context_window).unwrap_or_default();
        let Some(position) = position else { return Routes { context_window, ..Routes::default() } };
        // The failure counts already for whoever shares the profile.
        let health = |name: &str| {
            let mut health = self.shared.profiles.health(name);
            if failed.profile == Some(name) {
                health.mark(failed.failure, failed.had_started, self.at, &self.core.model);
            }
            health
        };
        let current = self.core.retries.profile;
        let profiles = &self.candidates[position].profiles;
        let is_elsewhere = can_succeed_elsewhere(failed.failure.kind);
        let next_profile = is_elsewhere.then(|| self.roster(position, health).next(current)).flatten();
        let next_model = is_elsewhere.then(|| self.next_model(position, health)).flatten();
        let of_profile = profiles.get(usize::from(current)).and_then(|name| self.config.profiles.get(name));
        Routes {
            profiles: u8::try_from(profiles.len()).unwrap_or(u8::MAX),
            next_profile,
            next_model,
            can_refresh: matches!(of_profile, Some(Profile::ApiKeyCmd(_))),
            context_window,
            ..Routes::default()
        }
    }

    /// The first model after this one that can be asked now.
    fn next_model(&self, position: usize, health: impl Fn(&str) -> Health) -> Option<Label> {
        let can_be_asked = |position: &usize| {
            let name = &self.candidates[*position].model;
            let choice = self.roster(*position, &health).choose(0, self.place(*position));
            let is_waiting = matches!(choice, Choice::Wait(_));
            !is_waiting && self.shared.models.resolve(name, &self.config).is_ok()
        };
        let next = (position + 1..self.candidates.len()).find(can_be_asked)?;
        Some(Label::from(self.candidates[next].model.as_str()))
    }

    fn roster(&self, position: usize, health: impl Fn(&str) -> Health) -> Roster {
        let candidate = &self.candidates[position];
        Roster {
            healths: candidate.profiles.iter().map(|name| health(name)).collect(),
            first: if position == 0 { self.session_profile } else { 0 },
            model: Label::from(candidate.model.as_str()),
            at: self.at,
        }
    }

    fn place(&self, position: usize) -> Place {
        Place { is_requested: position == 0, is_last: position + 1 == self.candidates.len() }
    }

    /// Position of the model in force; none if the run has nothing to choose from.
    fn position(&self) -> Option<usize> {
        position(self.candidates, &self.core.model)
    }
}

/// Position of a model among candidates.
pub(crate) fn position(candidates: &[Candidate], model: &Label) -> Option<usize> {
    candidates.iter().position(|candidate| Label::from(candidate.model.as_str()) == *model)
}

/// Another profile or model may do better. What is wrong with the request itself, or with what the engine reads it from,
/// goes wrong everywhere.
fn can_succeed_elsewhere(kind: FailureKind) -> bool {
    match kind {
        FailureKind::Format
        | FailureKind::ContextOverflow
        | FailureKind::RoleOrdering
        | FailureKind::ImageSize
        | FailureKind::Script => false,
        FailureKind::RateLimit
        | FailureKind::Overloaded
        | FailureKind::ServerError
        | FailureKind::Timeout
        | FailureKind::Idle
        | FailureKind::Connection
        | FailureKind::Auth
        | FailureKind::AuthPermanent
        | FailureKind::Billing
        | FailureKind::ModelNotFound
        | FailureKind::Empty
        | FailureKind::ReasoningOnly
        | FailureKind::Missing
        | FailureKind::Silent
        | FailureKind::ThinkingUnsupported
        | FailureKind::SessionExpired
        | FailureKind::TlsCertificate
        | FailureKind::Unknown => true,
    }
}
