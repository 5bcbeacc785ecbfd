//! What a run shares with its batch: its calls are held against the batch's caps.
//!
//! Owns the moment at which a call is refused. It must never let a refusal stand while a call in flight may still give
//! back what it does not need.

use model::phase::StreamStage;
use model::{Effect, Fact, Phase, RunState};
use store::Require;

use super::{Driver, Performed};
use crate::budgets::Refused;

impl Driver {
    /// What a transition adds to the counters of the batch.
    pub(super) fn charges(&self, after: &RunState) -> Vec<Require> {
        let Some(budget) = &self.budget else { return Vec::new() };
        let (before, after_spent) = (&self.state.core.spent, &after.core.spent);
        budget.requires(before, after_spent, is_in_flight(after) && !is_in_flight(&self.state))
    }

    /// A call that is asked for counts as one that may give something back, before anybody can be refused for it.
    pub(super) fn hold_reservation(&mut self, after: &RunState) {
        if is_in_flight(after) && self.reservation.is_none() {
            self.reservation = self.budget.as_ref().map(|budget| budget.reserve());
        }
    }

    /// The call is over: what it did not need is free.
    pub(super) fn settle_reservation(&mut self) {
        if !is_in_flight(&self.state) {
            self.reservation = None;
        }
    }

    /// The writer has refused what was told. Answers what is told in its place; none if it is told again by itself, once
    /// there may be room.
    pub(super) fn call_refused(
        &mut self,
        error: store::Error,
        effect: Option<&Effect>,
        fact: Fact,
    ) -> Result<Option<Fact>, store::Error> {
        let shortage = self.budget.as_ref().and_then(|budget| budget.shortage(&error));
        let (Some(shortage), Some(reservation)) = (shortage, self.reservation.take()) else {
            return Err(error);
        };
        match (reservation.refused(shortage.budget), effect) {
            (Refused::Again, _) | (Refused::Wait(_), None) => Ok(Some(fact)),
            (Refused::Final, _) => Ok(Some(Fact::BudgetRefused(shortage))),
            (Refused::Wait(room), Some(effect)) => {
                self.active.push(effect.clone());
                let performed = Performed { effect: effect.clone(), fact };
                self.performing.push(Box::pin(async move {
                    room.await;
                    performed
                }));
                Ok(None)
            }
        }
    }
}

fn is_in_flight(state: &RunState) -> bool {
    matches!(state.core.phase, Phase::Stream { stage: StreamStage::InFlight | StreamStage::Open, .. })
}
