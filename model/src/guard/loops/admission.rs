//! May this batch of calls run? Decided for all of them before any starts, from the window alone, which stays
//! as it is.

use super::call::CallFacts;
use super::detect::{Detector, Finding, Level, detect};
use super::hash::{RunHash, WarningKey};
use super::outcome::OutcomeFacts;
use super::streaks::History;
use super::window::{Slot, Window};

/// The answer for one batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admission {
    /// Warnings on the calls up to the one that blocks, in their order; not yet checked for repetition.
    pub warnings: Vec<Warning>,
    /// Why nothing of the batch runs; `None` if all of it may.
    pub intervention: Option<Intervention>,
}

/// A warning on a call that may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The call's place in the batch.
    pub place: usize,
    /// What was found.
    pub finding: Finding,
    /// What it is about, to tell a repetition by.
    pub key: WarningKey,
}

/// The call that blocks its batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intervention {
    /// The call's place in the batch.
    pub place: usize,
    /// What was found.
    pub finding: Finding,
}

impl Window {
    /// Whether `calls` may run together. Each is judged as if those before it had been vetoed: they count as
    /// repetitions already, but nothing is assumed of their outcomes. So 20 identical calls may run in one
    /// batch and 21 may not.
    pub fn admit(&self, run: Option<RunHash>, calls: &[CallFacts]) -> Admission {
        let mut slots = self.slots().to_vec();
        let mut warnings = Vec::new();
        for (place, call) in calls.iter().enumerate() {
            let history = History::new(&slots, run);
            match self.judge(run, history, call) {
                Some(finding @ Finding { level: Level::Critical, .. }) => {
                    return Admission { warnings, intervention: Some(Intervention { place, finding }) };
                }
                Some(finding @ Finding { level: Level::Warning, .. }) => {
                    let key = WarningKey::of(history, run, call, finding.detector);
                    warnings.push(Warning { place, finding, key });
                }
                None => {}
            }
            slots.push(Slot::new(run, call, None, Some(OutcomeFacts::Vetoed)));
        }
        Admission { warnings, intervention: None }
    }

    /// The six detectors on `history`, then the window's own memory: of real blocks, not of this batch's
    /// earlier calls.
    fn judge(&self, run: Option<RunHash>, history: History<'_>, call: &CallFacts) -> Option<Finding> {
        let verdict = detect(history, call);
        if let Some(Finding { level: Level::Critical, .. }) = verdict {
            return verdict;
        }
        match self.times_blocked(run, call) {
            0 => verdict,
            times => Some(Finding::critical(Detector::BlockedRepeat, times)),
        }
    }
}
