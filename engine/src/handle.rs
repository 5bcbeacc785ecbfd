//! A handle on one run.
//!
//! Owns what may be asked of a run from outside. Dropping a handle cancels nothing.

use model::inbox::{Control, Item};
use model::input::{Approval, Extension, Resolution};
use model::{Label, Message, Phase, RunId, RunState};

use crate::accept;
use crate::decision::{check_call, check_extension, check_release};
use crate::driver::load_state;
use crate::engine::Engine;
use crate::error::Error;
use crate::runs::{Rest, lock};

/// A run of an engine.
#[derive(Clone)]
pub struct RunHandle {
    pub(crate) engine: Engine,
    /// The run.
    pub id: RunId,
}

impl RunHandle {
    /// The engine that it is a handle of.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Steers the running work. With a key, the same message is accepted once.
    pub async fn steer(&self, message: Message, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::Steering(message), key).await
    }

    /// Adds work for when the run would otherwise end.
    pub async fn follow_up(&self, message: Message, key: Option<&str>) -> Result<(), Error> {
        self.engine.push(self.id, Item::FollowUp(message), key).await
    }

    /// Ends the run, in whatever phase it is; every call gets a result.
    pub async fn cancel(&self, reason: &str, key: Option<&str>) -> Result<(), Error> {
        let control = Control::Cancel { reason: Label::from(reason) };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Decides on a call that waits for approval.
    pub async fn decide(
        &self,
        turn: u32,
        call: u16,
        decision: Approval,
        key: Option<&str>,
    ) -> Result<(), Error> {
        self.check(key, |state| check_call(state, turn, call, "awaiting_approval"))?;
        let control = Control::Approve { turn, call, decision };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Decides on a call whose outcome is unknown.
    pub async fn resolve(
        &self,
        turn: u32,
        call: u16,
        resolution: Resolution,
        reason: &str,
        key: Option<&str>,
    ) -> Result<(), Error> {
        self.check(key, |state| check_call(state, turn, call, "unknown"))?;
        let control = Control::Resolve { turn, call, resolution, reason: Label::from(reason) };
        self.engine.push(self.id, Item::Control(control), key).await
    }

    /// Lets a run go on that was parked for a quarantine, for something missing or by the budget of its batch.
    pub async fn release(&self, key: Option<&str>) -> Result<(), Error> {
        self.check(key, check_release)?;
        self.engine.push(self.id, Item::Control(Control::Release), key).await
    }

    /// Raises limits that the run has.
    pub async fn extend(&self, by: Extension, key: Option<&str>) -> Result<(), Error> {
        self.check(key, |state| check_extension(state, by))?;
        self.engine.push(self.id, Item::Control(Control::Extend(by)), key).await
    }

    /// Asks whether the run can use a decision. One that was accepted before is not judged again, and a run that has ended
    /// refuses every one by itself.
    fn check(
        &self,
        key: Option<&str>,
        judge: impl FnOnce(&RunState) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let shared = &self.engine.shared;
        let loaded = load_state(&*shared.store, self.id)?;
        let (state, _) = loaded.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))?;
        let is_repeated = match key {
            Some(key) => accept::knows(shared, self.id, key)?,
            None => false,
        };
        if is_repeated || matches!(state.core.phase, Phase::Done { .. }) { Ok(()) } else { judge(&state) }
    }

    /// Why the recording of the run is not whole, as far as this engine has made it; none if it is, or if
    /// there is none.
    pub fn recording_lost(&self) -> Option<String> {
        lock(&self.engine.shared.recordings).get(&self.id)?.lost().map(str::to_owned)
    }

    /// Waits until the run rests: ended, parked, or stopped with its engine.
    pub async fn outcome(&self) -> Result<Rest, Error> {
        let watched = self.engine.shared.runs.watch(self.id);
        if watched.rest().is_none() {
            let loaded = load_state(&*self.engine.shared.store, self.id)?;
            let (state, inbox_len) = loaded.ok_or_else(|| Error::NoSuchRun(self.id.to_string()))?;
            if let Phase::Done { outcome, reason } = state.core.phase {
                return Ok(Rest::Done { outcome, reason: reason.map(|reason| reason.to_string()) });
            }
            // A former engine parked it, and nobody has decided since: nothing of this one moves it.
            if let Phase::Parked { reason, .. } = state.core.phase
                && inbox_len <= state.core.cursors.control
                && !lock(&self.engine.shared.lanes).is_moving(self.id)
            {
                return Ok(Rest::Parked(reason));
            }
        }
        Ok(watched.until_rest().await)
    }
}
