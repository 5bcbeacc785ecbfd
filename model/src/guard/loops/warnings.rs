//! Tells a new warning from one that says nothing new, so that a loop is reported at 10, 20 and 30 counts and
//! not at every call in between. Remembers at most [`WARNING_KEYS_MAX`] subjects and forgets the oldest
//! first. Changes no verdict.

use serde::{Deserialize, Serialize};

use super::admission::Warning;
use super::call::CallFacts;
use super::detect::Detector;
use super::hash::{RunHash, WarningKey};
use super::streaks::History;
use super::{WARNING_BUCKET, WARNING_KEYS_MAX};

/// The warnings given so far in a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Warnings {
    /// Subject and highest bucket reported, in the order in which the subjects came up.
    reported: Vec<(WarningKey, u8)>,
}

impl Warnings {
    /// Whether `warning` is worth reporting: the first about its subject, or the first in a higher bucket of
    /// counts. Remembers that it was reported.
    pub fn is_new(&mut self, warning: &Warning) -> bool {
        let bucket = u8::try_from(warning.finding.count / WARNING_BUCKET).unwrap_or(u8::MAX);
        if let Some((_, reported)) = self.reported.iter_mut().find(|(key, _)| *key == warning.key) {
            let is_new = bucket > *reported;
            *reported = bucket.max(*reported);
            return is_new;
        }
        if bucket == 0 {
            return false;
        }
        self.reported.push((warning.key, bucket));
        let surplus = self.reported.len().saturating_sub(WARNING_KEYS_MAX);
        self.reported.drain(..surplus);
        true
    }

    /// Subjects remembered.
    pub fn len(&self) -> usize {
        self.reported.len()
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }
}

impl WarningKey {
    /// What a warning by `detector` about `call` is about: for a poll the answer it keeps getting, for an
    /// alternation the pair in either order, for churn the tool, else the action. Always within the run.
    pub(super) fn of(
        history: History<'_>,
        run: Option<RunHash>,
        call: &CallFacts,
        detector: Detector,
    ) -> Self {
        let answer = history.repeats(call).result;
        let other = history.alternation(call).map(|turns| turns.other);
        let subject: [&[u8]; 2] = match detector {
            Detector::KnownPollNoProgress => [call.key.as_ref(), bytes(&answer)],
            Detector::PingPong => {
                let mut pair = [call.key.as_ref(), bytes(&other)];
                pair.sort_unstable();
                pair
            }
            Detector::ArgumentChurn => [call.tool.as_ref(), &[]],
            Detector::GenericRepeat
            | Detector::UnknownToolRepeat
            | Detector::GlobalCircuitBreaker
            | Detector::BlockedRepeat
            | Detector::LoopAdmissionFailure => [call.key.as_ref(), &[]],
        };
        // What may be missing has lengths of its own, so for one detector no two subjects feed the same
        // bytes.
        let mut hasher = blake3::Hasher::new();
        for part in [detector.name().as_bytes(), bytes(&run)].into_iter().chain(subject) {
            hasher.update(part);
        }
        Self::of_hasher(&hasher)
    }
}

/// The bytes of a hash that may be missing.
fn bytes<T: AsRef<[u8]>>(hash: &Option<T>) -> &[u8] {
    hash.as_ref().map_or(&[], AsRef::as_ref)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::guard::loops::{
        Finding, Level, OutcomeFacts, ToolKind, ToolOutcome, Window, call_facts, classify,
    };

    fn warning(subject: u16, count: u32) -> Warning {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&subject.to_be_bytes());
        let finding = Finding {
            level: Level::Warning,
            detector: Detector::GenericRepeat,
            count,
            paired: None,
            is_churning: false,
        };
        Warning { place: 0, finding, key: WarningKey::of_hasher(&hasher) }
    }

    #[test]
    fn a_warning_is_new_once_per_bucket() {
        let mut warnings = Warnings::default();
        let new: Vec<u32> = (10..=35).filter(|count| warnings.is_new(&warning(1, *count))).collect();
        assert_eq!(new, [10, 20, 30]);
        assert!(!warnings.is_new(&warning(1, 10)));
        assert!(!warnings.is_new(&warning(1, 30)), "a lower bucket does not lower the mark");
        assert!(warnings.is_new(&warning(2, 25)));
        assert_eq!(warnings.len(), 2);
    }

    #[test]
    fn the_oldest_subject_is_forgotten_first() {
        let mut warnings = Warnings::default();
        for subject in 0..256 {
            assert!(warnings.is_new(&warning(subject, 10)));
        }
        assert!(warnings.is_new(&warning(0, 20)), "reported again, and still the oldest");
        assert!(warnings.is_new(&warning(256, 10)));
        assert_eq!(warnings.len(), WARNING_KEYS_MAX);
        assert!(!warnings.is_new(&warning(1, 10)));
        assert!(warnings.is_new(&warning(0, 10)), "subject 0 was forgotten");
        assert!(warnings.is_new(&warning(1, 10)), "then subject 1");
    }

    #[test]
    fn a_full_set_stays_within_a_state_value() {
        let mut warnings = Warnings::default();
        for subject in 0..300 {
            warnings.is_new(&warning(subject, u32::MAX));
        }
        let bytes = postcard::to_allocvec(&warnings).unwrap();
        assert!(bytes.len() <= 4_096, "{}", bytes.len());
        assert_eq!(postcard::from_bytes::<Warnings>(&bytes).unwrap(), warnings);
    }

    /// A window in which `calls` were made and came to the paired result, and the keys of a warning by each
    /// detector.
    fn key(run: &str, calls: &[(&str, &str)], next: &str, detector: Detector) -> WarningKey {
        let run = RunHash::of(run);
        let facts =
            |args: &str| call_facts("process", &json!({"action": "poll", "of": args}), ToolKind::Process);
        let mut window = Window::default();
        for (args, result) in calls {
            let outcome: OutcomeFacts = classify(&facts(args), ToolOutcome::Error(result));
            window.record_outcome(run, &facts(args), None, outcome);
        }
        WarningKey::of(window.history(run), run, &facts(next), detector)
    }

    #[test]
    fn a_poll_warning_is_about_the_action_and_its_latest_answer() {
        let poll = |calls: &[(&str, &str)], next| key("r", calls, next, Detector::KnownPollNoProgress);
        assert_eq!(poll(&[("a", "x")], "a"), poll(&[("a", "y"), ("b", "z"), ("a", "x")], "a"));
        assert_ne!(poll(&[("a", "x")], "a"), poll(&[("a", "y")], "a"));
        assert_ne!(poll(&[("a", "x"), ("b", "x")], "a"), poll(&[("a", "x"), ("b", "x")], "b"));
        assert_ne!(poll(&[], "a"), poll(&[("a", "x")], "a"));
    }

    #[test]
    fn an_alternation_is_the_same_from_both_sides() {
        let turns = |calls: &[(&str, &str)], next| key("r", calls, next, Detector::PingPong);
        assert_eq!(turns(&[("a", "x"), ("b", "x")], "a"), turns(&[("b", "y"), ("a", "x")], "b"));
        assert_ne!(turns(&[("a", "x"), ("b", "x")], "a"), turns(&[("a", "x"), ("c", "x")], "a"));
    }

    #[test]
    fn churn_is_about_the_tool_and_a_repeat_about_the_action() {
        assert_eq!(key("r", &[], "a", Detector::ArgumentChurn), key("r", &[], "b", Detector::ArgumentChurn));
        assert_ne!(key("r", &[], "a", Detector::GenericRepeat), key("r", &[], "b", Detector::GenericRepeat));
        assert_ne!(key("r", &[], "a", Detector::GenericRepeat), key("s", &[], "a", Detector::GenericRepeat));
        assert_ne!(key("r", &[], "a", Detector::GenericRepeat), key("", &[], "a", Detector::GenericRepeat));
        assert_eq!(
            key("r", &[("a", "x")], "a", Detector::GenericRepeat),
            key("r", &[("a", "y")], "a", Detector::GenericRepeat)
        );
    }
}
