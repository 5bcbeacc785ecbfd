//! Who pays for a run's model calls.
//!
//! Owns the moment of choice, and what a transition says of the profile that paid. A profile is marked when the run
//! leaves it for its failure, never for one after which it asks the same profile again.

use std::sync::Arc;

use model::guard::profiles::{Choice, Cooling};
use model::input::{Failure, Routes};
use model::message::StopReason;
use model::phase::StreamStage;
use model::{Fact, Phase, RunState};

use super::{Driver, load_state, read_first};
use crate::clock::rfc3339;
use crate::job::JobFacts;
use crate::profiles::{Verdict, What};
use crate::routes::{Failed, Ways};

/// Runs of a session that are looked at for the profile that it uses: those before the newest may never have asked a
/// model.
const SESSION_RUNS_MAX: usize = 8;

impl Driver {
    /// Position of the profile that pays for the next call; as a failure, why none does: all cool down.
    pub(super) fn choose_profile(&mut self) -> Result<u8, Failure> {
        if self.session_profile.is_none() {
            self.session_profile = Some(self.profile_of_session().unwrap_or_default());
        }
        let ways = self.ways();
        let _choosing = self.shared.profiles.choosing();
        match ways.choose() {
            Choice::Use(position) => Ok(position),
            Choice::Probe(position) => {
                if let Some(name) = self.facts.profile(&self.state.core.model, position) {
                    self.shared.profiles.probe(name, ways.at);
                }
                Ok(position)
            }
            Choice::Wait(Cooling { reason, until }) => {
                let words = format!("no profile until {}", rfc3339(until));
                let retry_after_ms = Some(until.since(ways.at));
                Err(Failure { retry_after_ms, ..Failure::new(reason, &words) })
            }
        }
    }

    /// Learns who pays for the call under way, which another driver has begun.
    pub(super) fn learn_who_pays(&mut self) {
        self.session_profile = Some(self.profile_of_session().unwrap_or_default());
        let core = &self.state.core;
        self.paying = self.facts.profile(&core.model, core.retries.profile).map(Arc::from);
    }

    /// What else could be asked after a failure of the call under way.
    pub(super) fn routes(&self, failure: &Failure) -> Routes {
        let had_started = self.had_started(failure);
        let first_model = &self.fold.submission().model;
        Routes {
            first_model: (*first_model != self.state.core.model).then(|| first_model.clone()),
            has_large_results: self.context.has_large_results(),
            ..self.ways().routes(Failed { profile: self.paying.as_deref(), failure, had_started })
        }
    }

    /// What a transition says of a profile, if anything.
    pub(super) fn verdict<'a>(&self, after: &RunState, fact: &'a Fact) -> Option<Verdict<'a>> {
        let core = &self.state.core;
        let verdict =
            |profile, what| Verdict { profile, model: core.model.clone(), at: after.core.clock, what };
        if let Fact::RequestPrepared(request) = fact {
            let is_made = matches!(after.core.phase, Phase::Stream { stage: StreamStage::InFlight, .. });
            let name = self.facts.profile(&core.model, request.profile).filter(|_| is_made)?;
            return Some(verdict(Arc::from(name), What::Asked));
        }
        let profile = self.paying.clone()?;
        if let Fact::ModelAnswered { message } = fact {
            let is_good = match message.stop_reason {
                StopReason::Stop | StopReason::Length | StopReason::ToolUse => true,
                StopReason::Error | StopReason::Aborted => false,
            };
            return is_good.then(|| verdict(profile, What::Answered));
        }
        if let Fact::ModelFailed { failure, .. } = fact
            && core.abort.is_none()
            && self.is_left(after)
        {
            let had_started = self.had_started(failure);
            return Some(verdict(profile, What::Failed { failure, had_started }));
        }
        None
    }

    /// The run does not ask the same profile of the same model again.
    fn is_left(&self, after: &RunState) -> bool {
        let asks_again = matches!(after.core.phase, Phase::Stream { .. } | Phase::Compact { .. });
        let (before, after) = (&self.state.core, &after.core);
        let is_another = before.model != after.model || before.retries.profile != after.retries.profile;
        is_another || !asks_again
    }

    fn had_started(&self, failure: &Failure) -> bool {
        failure.had_text || matches!(self.state.core.phase, Phase::Stream { stage: StreamStage::Open, .. })
    }

    fn ways(&self) -> Ways<'_> {
        Ways {
            shared: &self.shared,
            config: self.config(),
            candidates: &self.facts.candidates,
            core: &self.state.core,
            session_profile: self.session_profile.unwrap_or_default(),
            at: self.shared.clock.now(),
        }
    }

    /// Position of the profile that the session used last, among those of the requested model. A session that cannot be
    /// read sticks to nothing.
    fn profile_of_session(&self) -> Option<u8> {
        let profiles = &self.facts.candidates.first()?.profiles;
        let mut previous = self.state.core.context_from.previous.filter(|_| profiles.len() > 1);
        for _ in 0..SESSION_RUNS_MAX {
            let run = previous?;
            let (state, _) = load_state(&*self.shared.store, run).ok()??;
            if state.core.spent.model_calls > 0 {
                let facts = JobFacts::of(&read_first(&*self.shared.store, run).ok()?.submission).ok()?;
                let used = facts.profile(&state.core.model, state.core.retries.profile)?;
                return u8::try_from(profiles.iter().position(|name| name == used)?).ok();
            }
            previous = state.core.context_from.previous;
        }
        None
    }
}
