//! The window: the last calls of a session and what they led to, oldest first, as hashes. All runs of the
//! session share its slots; a run sees only its own. Never holds more than [`WINDOW_SLOTS_MAX`] slots, never
//! a string.

use serde::{Deserialize, Serialize};

use super::WINDOW_SLOTS_MAX;
use super::call::CallFacts;
use super::detect::{Finding, detect};
use super::hash::{ActionKey, CallHash, ResultHash, RunHash, ToolHash};
use super::outcome::OutcomeFacts;
use super::streaks::History;

/// The calls a session remembers. A new run of the session starts with the window the run before it left.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Window {
    slots: Vec<Slot>,
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) tool: ToolHash,
    pub(super) key: ActionKey,
    pub(super) run: Option<RunHash>,
    pub(super) call: Option<CallHash>,
    /// What it led to; `None` while it is pending, and for good if nothing ever comes back.
    pub(super) outcome: Option<OutcomeFacts>,
}

impl Slot {
    pub(super) fn new(
        run: Option<RunHash>,
        facts: &CallFacts,
        call: Option<CallHash>,
        outcome: Option<OutcomeFacts>,
    ) -> Self {
        Self { tool: facts.tool, key: facts.key, run, call, outcome }
    }

    /// What it came to, if it came to something.
    pub(super) fn result(&self) -> Option<ResultHash> {
        match self.outcome {
            Some(OutcomeFacts::Settled(settled)) => Some(settled.result),
            Some(OutcomeFacts::Vetoed) | None => None,
        }
    }
}

impl Window {
    /// The call starts. What it leads to is filed under `run`, `facts` and `call` later.
    pub fn record_call(&mut self, run: Option<RunHash>, facts: &CallFacts, call: Option<CallHash>) {
        self.push(Slot::new(run, facts, call, None));
    }

    /// What a call led to: filed with the newest pending record of the same run, action and call id (any id
    /// if `call` is `None`), else as a record of its own. The latter is how calls count that were refused
    /// before they started, and those whose record has left the window meanwhile.
    pub fn record_outcome(
        &mut self,
        run: Option<RunHash>,
        facts: &CallFacts,
        call: Option<CallHash>,
        outcome: OutcomeFacts,
    ) {
        let is_asked = |slot: &&mut Slot| {
            slot.outcome.is_none()
                && slot.run == run
                && slot.tool == facts.tool
                && slot.key == facts.key
                && (call.is_none() || slot.call == call)
        };
        match self.slots.iter_mut().rev().find(is_asked) {
            Some(slot) => slot.outcome = Some(outcome),
            None => self.push(Slot::new(run, facts, call, Some(outcome))),
        }
    }

    /// The call is kept from running.
    pub fn record_veto(&mut self, run: Option<RunHash>, facts: &CallFacts, call: Option<CallHash>) {
        self.push(Slot::new(run, facts, call, Some(OutcomeFacts::Vetoed)));
    }

    /// A batch is kept from running because of its call `trigger`: a veto for every call of it that asks for
    /// the same. Its other calls leave no trace; they are not what went in circles.
    pub fn record_vetoes(
        &mut self,
        run: Option<RunHash>,
        batch: impl IntoIterator<Item = (CallFacts, Option<CallHash>)>,
        trigger: ActionKey,
    ) {
        for (facts, call) in batch.into_iter().filter(|(facts, _)| facts.key == trigger) {
            self.record_veto(run, &facts, call);
        }
    }

    /// What the six detectors say about one more call like this, which is not recorded yet: the first that
    /// finds something.
    pub fn verdict(&self, run: Option<RunHash>, facts: &CallFacts) -> Option<Finding> {
        detect(self.history(run), facts)
    }

    /// How often an unchanged call like this was kept from running in this run, as far as the window reaches
    /// back.
    pub fn times_blocked(&self, run: Option<RunHash>, facts: &CallFacts) -> u32 {
        self.history(run).vetoes(facts)
    }

    /// Calls of this run that went around with changing arguments and never got anywhere; 0 if this call is
    /// none of them. From [`super::WARNING_AT`] on they do not count as signs of life.
    pub fn churn(&self, run: Option<RunHash>, facts: &CallFacts) -> u32 {
        self.history(run).churn(facts)
    }

    /// Calls remembered, of all runs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn history(&self, run: Option<RunHash>) -> History<'_> {
        History::new(&self.slots, run)
    }

    fn push(&mut self, slot: Slot) {
        self.slots.push(slot);
        let surplus = self.slots.len().saturating_sub(WINDOW_SLOTS_MAX);
        self.slots.drain(..surplus);
    }
}
