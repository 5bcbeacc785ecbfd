//! Settles what a former owner left: one commit for each thing that is found out.
//!
//! Owns the order of a resume: results that exist, then what is lost; cancel, deadline, budget and quarantine follow as
//! ordinary inputs, and then the phase goes on. It must never run a call whose recovery class forbids it.

use model::input::{OnUnknown, Recovered, RecoveryClass, Suspicion};
use model::state::CallStatus;
use model::{Effect, Fact, Label, ParkReason, Phase, Scope, Shortage};

use super::Driver;
use super::tool_call::Takeover;
use crate::config;
use crate::crash_point;
use crate::error::Error;
use crate::report::Found;
use crate::tool::Probe;

impl Driver {
    /// Notes the new owner, and settles what the old one may have had under way.
    pub(crate) async fn settle(&mut self) -> Result<(), Error> {
        let owner = self.shared.owner();
        let is_own = self.state.core.owner == owner;
        if !is_own {
            self.awaited = self.awaited()?;
            if self.awaited.is_some() {
                return Ok(());
            }
            self.untold.clear();
            let suspicion = self.suspicion();
            let fact = Fact::Resumed { epoch: owner.epoch, boot_id: owner.boot_id, suspicion };
            self.apply(None, fact).await?;
            crash_point::reach("after the takeover's commit");
            if !self.state.core.crashes.is_tried {
                self.shared.suspects.pass(self.run);
            }
        }
        self.settle_effects().await?;
        if self.model.is_some() {
            // An answer that was paid for is committed first, whatever else is missing.
            self.has_to_look = true;
            return Ok(());
        }
        let effects = self.effects.clone();
        self.make_workspace().await;
        self.look_for_missing(is_own).await?;
        // What was parked with calls that may have run stands in the state again.
        if self.effects != effects {
            self.settle_effects().await?;
        }
        Ok(())
    }

    /// What the end of the old owner makes of the run, which may be the only suspect that is moved.
    fn suspicion(&self) -> Suspicion {
        if !self.shared.lives.was_unclean(self.state.core.owner.epoch) {
            Suspicion::None
        } else if self.shared.suspects.is_tried(self.run) {
            Suspicion::Alone
        } else {
            Suspicion::Shared
        }
    }

    /// A run that has done nothing yet gets its own workspace. One that cannot be made is found missing.
    async fn make_workspace(&mut self) {
        let (Phase::Queued, Some(workspaces), Some(workspace)) =
            (&self.state.core.phase, &self.shared.workspaces, &self.facts.workspace)
        else {
            return;
        };
        if let Err(error) = workspaces.make(workspace).await {
            tracing::warn!(run = %self.run, workspace = %workspace.display(), %error, "no workspace");
        }
    }

    /// A driver that has just loaded has performed nothing: whatever stands as under way is another's, or lost.
    async fn settle_effects(&mut self) -> Result<(), Error> {
        for effect in self.effects.clone() {
            match effect {
                Effect::CallModel { turn, attempt } => {
                    if self.take_up_call(turn, attempt)? {
                        continue;
                    }
                    self.forget_spool(turn, attempt);
                    self.shared.report.note(self.run, None, Found::Repeated, "a model call was in flight");
                    self.apply(Some(effect), Fact::ModelInterrupted { usage: None }).await?;
                }
                Effect::RunTool { turn, call, class } => {
                    self.settle_call(effect, turn, call, class).await?;
                }
                Effect::AwaitLane
                | Effect::Poll { .. }
                | Effect::Drain { .. }
                | Effect::PrepareRequest { .. }
                | Effect::Sleep { .. }
                | Effect::ResolveBatch { .. }
                | Effect::RunHook(_)
                | Effect::PlanCompaction
                | Effect::Compact { .. }
                | Effect::AwaitApproval { .. }
                | Effect::AwaitPerson => {}
            }
        }
        Ok(())
    }

    /// One call that may have run. What may run again stays as it is: the ordinary loop performs it.
    async fn settle_call(
        &mut self,
        effect: Effect,
        turn: u32,
        call: u16,
        class: RecoveryClass,
    ) -> Result<(), Error> {
        let place = Some((turn, call));
        match class {
            RecoveryClass::ReadOnly | RecoveryClass::Keyed => {
                self.shared.report.note(self.run, place, Found::Repeated, "the call may run again");
                Ok(())
            }
            RecoveryClass::Probe => match self.probe(turn, call).await {
                Probe::DidNotRun | Probe::Running => {
                    self.shared.report.note(self.run, place, Found::Started, "the call had no effect yet");
                    Ok(())
                }
                Probe::Ran(result) => {
                    self.shared.report.note(self.run, place, Found::Collected, "the call had its effect");
                    let recovered = Some(Recovered::Probed);
                    self.apply(Some(effect), Fact::ToolReturned { call, result, recovered }).await
                }
                Probe::Unknown => self.settle_unknown(effect, turn, call).await,
            },
            RecoveryClass::Adoptable => self.settle_adoptable(effect, turn, call).await,
            RecoveryClass::AtMostOnce => self.settle_unknown(effect, turn, call).await,
        }
    }

    /// One call whose process may have outlived its engine.
    async fn settle_adoptable(&mut self, effect: Effect, turn: u32, call: u16) -> Result<(), Error> {
        let (found, takeover, words) = match self.probe(turn, call).await {
            Probe::DidNotRun => (Found::Started, Takeover::DidNotRun, "the command had not run"),
            Probe::Running => (Found::Adopted, Takeover::Adopted, "the command is running"),
            Probe::Ran(result) => {
                self.shared.report.note(
                    self.run,
                    Some((turn, call)),
                    Found::Collected,
                    "the command has ended",
                );
                let recovered = Takeover::Collected.recovered();
                let result = Takeover::told(Some(Takeover::Collected), result);
                return self.apply(Some(effect), Fact::ToolReturned { call, result, recovered }).await;
            }
            Probe::Unknown => return self.settle_unknown(effect, turn, call).await,
        };
        self.shared.report.note(self.run, Some((turn, call)), found, words);
        self.takeovers.push(((turn, call), takeover));
        Ok(())
    }

    async fn settle_unknown(&mut self, effect: Effect, turn: u32, call: u16) -> Result<(), Error> {
        self.shared.report.note(self.run, Some((turn, call)), Found::Unknown, "the call may have run");
        let policy = self.unknown_policy(call);
        self.apply(Some(effect), Fact::ToolUnknown { call, policy }).await
    }

    /// What follows when the outcome of a call is unknown.
    pub(super) fn unknown_policy(&mut self, call: u16) -> OnUnknown {
        let name = self.plan(call).map(|plan| plan.call.name.clone()).unwrap_or_default();
        let policy = self.facts.tool_limits.get(&name).map(|limits| limits.on_unknown).unwrap_or_default();
        match policy {
            config::OnUnknown::Ask => OnUnknown::Ask,
            config::OnUnknown::Tell => OnUnknown::Tell,
            config::OnUnknown::Fail => OnUnknown::Fail,
        }
    }

    async fn probe(&mut self, turn: u32, call: u16) -> Probe {
        let Some(plan) = self.plan(call).cloned() else { return Probe::Unknown };
        let Some(tool) = plan.tool.clone() else { return Probe::Unknown };
        let (context, _) = self.call_context(turn, call, &plan);
        tool.probe(&context).await
    }

    /// What the run needs and does not find parks it; what was missing and is there again lets it go on.
    pub(super) async fn look_for_missing(&mut self, is_own: bool) -> Result<(), Error> {
        if let Phase::Parked { reason: ParkReason::Budget(shortage), .. } = &self.state.core.phase {
            return self.look_for_room(*shortage).await;
        }
        let phase = &self.state.core.phase;
        let is_missing_already = matches!(phase, Phase::Parked { reason: ParkReason::Missing(_), .. });
        if !is_missing_already && matches!(phase, Phase::Parked { .. } | Phase::Done { .. }) {
            return Ok(());
        }
        let is_fresh = matches!(phase, Phase::Queued);
        if is_own && !is_missing_already && !is_fresh {
            return Ok(());
        }
        match (self.missing(), is_missing_already) {
            (Some(what), false) => self.apply(None, Fact::Missing { what: Label::from(what.as_str()) }).await,
            (None, true) => self.apply(None, Fact::Released { position: None }).await,
            (Some(_), true) | (None, false) => Ok(()),
        }
    }

    /// The cap of a batch that was raised lets its runs go on; the writer is asked again, with each call.
    async fn look_for_room(&mut self, shortage: Shortage) -> Result<(), Error> {
        let (Scope::Batch, Some(budget)) = (shortage.scope, &self.budget) else { return Ok(()) };
        if budget.has_room(&*self.shared.store, shortage.budget)? {
            self.apply(None, Fact::Released { position: None }).await?;
        }
        Ok(())
    }

    /// What keeps the run from going on, in a few words.
    fn missing(&mut self) -> Option<String> {
        if let Some(workspace) = &self.facts.workspace
            && !workspace.is_dir()
        {
            return Some(format!("workspace {}", workspace.display()));
        }
        if let Some(what) = self.missing_of_model() {
            return Some(what);
        }
        let started: Vec<u16> = (0u16..)
            .zip(self.state.batch.iter().flat_map(|batch| &batch.calls))
            .filter(|(_, call)| call.status == CallStatus::Started)
            .map(|(index, _)| index)
            .collect();
        started.into_iter().find_map(|index| {
            let plan = self.plan(index)?;
            plan.tool.is_none().then(|| format!("tool {}", plan.call.name))
        })
    }

    /// What keeps the model in force from being called.
    pub(super) fn missing_of_model(&self) -> Option<String> {
        let provider = match self.shared.models.resolve(self.model_name(), &self.config()) {
            Err(error) => return Some(error.to_string()),
            Ok(provider) => provider,
        };
        let is_first_model = self.fold.submission().model == self.state.core.model;
        is_first_model.then(|| provider.missing(&self.facts.model_identity)).flatten()
    }
}
