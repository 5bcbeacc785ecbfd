//! The counts the detectors compare with their thresholds, over one run's calls as they are. Never decides
//! anything.

use super::CHURN_VARIANT_AT;
use super::call::{CallFacts, CallKind};
use super::hash::{ActionKey, FailureHash, ResultHash, RunHash, ToolHash};
use super::outcome::{OutcomeFacts, Settled};
use super::window::Slot;

/// One run's part of the records. The calls of other runs are not there: they neither count nor interrupt.
#[derive(Clone, Copy)]
pub(super) struct History<'a> {
    slots: &'a [Slot],
    run: Option<RunHash>,
}

/// Calls in a row that came to the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Streak {
    pub(super) count: u32,
    /// What they came to; `None` if all that counts are vetoes.
    pub(super) result: Option<ResultHash>,
}

/// Two actions taking turns, the next call being one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alternation {
    /// Calls that took turns, the next one included.
    pub(super) count: u32,
    /// The tool of the other action.
    pub(super) paired: ToolHash,
    /// The other action.
    pub(super) other: ActionKey,
    /// Both actions came to the same each time.
    pub(super) is_without_progress: bool,
}

/// One set of arguments and how often it failed with the same result.
struct Variant {
    key: ActionKey,
    result: ResultHash,
    count: u32,
}

impl<'a> History<'a> {
    pub(super) fn new(slots: &'a [Slot], run: Option<RunHash>) -> Self {
        Self { slots, run }
    }

    /// The run's records from the newest to the oldest.
    fn newest(self) -> impl Iterator<Item = &'a Slot> {
        self.slots.iter().rev().filter(move |slot| slot.run == self.run)
    }

    /// The newest calls, one after the other, of this tool that failed because the same tool is missing.
    pub(super) fn unknown_streak(self, call: &CallFacts) -> u32 {
        let mut names = self.newest().map_while(|slot| match slot.outcome {
            Some(OutcomeFacts::Settled(settled)) if slot.tool == call.tool => settled.unknown,
            Some(OutcomeFacts::Settled(_) | OutcomeFacts::Vetoed) | None => None,
        });
        let Some(newest) = names.next() else { return 0 };
        1 + count(names.take_while(|name| *name == newest))
    }

    /// Calls without progress: the same action with the same outcome, or for a command any commands with the
    /// same failure, whichever are more.
    pub(super) fn no_progress(self, call: &CallFacts) -> u32 {
        let repeats = self.repeats(call).count;
        match call.kind {
            CallKind::Exec => repeats.max(self.failures(call)),
            CallKind::Plain | CallKind::Write | CallKind::Poll(_) | CallKind::Send => repeats,
        }
    }

    /// The newest calls of this action that came to the same, with the vetoes after each. Other actions in
    /// between do not interrupt. Without any outcome, vetoes count alone.
    pub(super) fn repeats(self, call: &CallFacts) -> Streak {
        let mut streak = Streak { count: 0, result: None };
        let mut vetoes = 0;
        for slot in self.newest().filter(|slot| slot.key == call.key) {
            match slot.outcome {
                None => {}
                Some(OutcomeFacts::Vetoed) => vetoes += 1,
                Some(OutcomeFacts::Settled(settled)) => {
                    if streak.result.is_some_and(|result| result != settled.result) {
                        return streak;
                    }
                    streak = Streak { count: streak.count + vetoes + 1, result: Some(settled.result) };
                    vetoes = 0;
                }
            }
        }
        match streak.result {
            Some(_) => streak,
            None => Streak { count: vetoes, result: None },
        }
    }

    /// The newest commands, one after the other, that ended with the same failure, with the vetoes after
    /// each. Once the scan has crossed another command it does not come back to this one: two commands that
    /// fail alike in turns are no streak of the one.
    fn failures(self, call: &CallFacts) -> u32 {
        let mut count = 0;
        let mut reference: Option<(ResultHash, FailureHash)> = None;
        let mut has_crossed = false;
        let mut vetoes = 0;
        for slot in self.newest().take_while(|slot| slot.tool == call.tool) {
            let settled = match slot.outcome {
                None => continue,
                Some(OutcomeFacts::Vetoed) => {
                    vetoes += 1;
                    continue;
                }
                Some(OutcomeFacts::Settled(settled)) => settled,
            };
            let Settled { result, failure: Some(failure), .. } = settled else { break };
            let is_this = slot.key == call.key;
            if has_crossed && is_this {
                break;
            }
            has_crossed |= !is_this;
            let (same_result, same_failure) = *reference.get_or_insert((result, failure));
            if result != same_result && failure != same_failure {
                break;
            }
            count += vetoes + 1;
            vetoes = 0;
        }
        count
    }

    /// Records of this action, whatever came of them and whatever lies in between.
    pub(super) fn recent(self, call: &CallFacts) -> u32 {
        count(self.newest().filter(|slot| slot.key == call.key))
    }

    /// Records of this action that are vetoes.
    pub(super) fn vetoes(self, call: &CallFacts) -> u32 {
        let is_veto = |slot: &&Slot| slot.key == call.key && slot.outcome == Some(OutcomeFacts::Vetoed);
        count(self.newest().filter(is_veto))
    }

    /// Calls of one tool that went around a few variants of arguments and always failed alike. 0 unless there
    /// are at least two variants, each was tried often enough, all came to the same, and this call is one of
    /// them.
    pub(super) fn churn(self, call: &CallFacts) -> u32 {
        let variants = self.variants(call);
        let Some(first) = variants.first() else { return 0 };
        let is_alike =
            |variant: &Variant| variant.count >= CHURN_VARIANT_AT && variant.result == first.result;
        let is_one = |variant: &Variant| variant.key == call.key;
        let is_churn = variants.len() >= 2 && variants.iter().all(is_alike) && variants.iter().any(is_one);
        if is_churn { variants.iter().map(|variant| variant.count).sum() } else { 0 }
    }

    /// The newest calls of this tool that made no progress by their own account, by their arguments, until
    /// one made some, another tool was called, or the same arguments had come to something else.
    fn variants(self, call: &CallFacts) -> Vec<Variant> {
        let mut variants: Vec<Variant> = Vec::new();
        for slot in self.newest().take_while(|slot| slot.tool == call.tool) {
            let settled = match slot.outcome {
                None | Some(OutcomeFacts::Vetoed) => continue,
                Some(OutcomeFacts::Settled(settled)) => settled,
            };
            if !settled.is_no_progress {
                break;
            }
            match variants.iter_mut().find(|variant| variant.key == slot.key) {
                Some(variant) if variant.result == settled.result => variant.count += 1,
                Some(_) => break,
                None => variants.push(Variant { key: slot.key, result: settled.result, count: 1 }),
            }
        }
        variants
    }

    /// Whether this call goes on with an alternation of two actions: the newest call's, and the one before
    /// that. If other calls of the newest action lie in between, there is none: the tail is too short.
    pub(super) fn alternation(self, call: &CallFacts) -> Option<Alternation> {
        let last = self.newest().next()?;
        let other = self.newest().find(|slot| slot.key != last.key)?;
        if call.key != other.key {
            return None;
        }
        let turns = [last, other].into_iter().cycle();
        let (mut tail, mut is_without_progress) = (0, true);
        for (slot, turn) in self.newest().zip(turns).take_while(|(slot, turn)| slot.key == turn.key) {
            tail += 1;
            is_without_progress &= slot.result().is_some() && slot.result() == turn.result();
        }
        let count = tail + 1;
        (tail >= 2).then_some(Alternation { count, paired: last.tool, other: last.key, is_without_progress })
    }
}

/// How many there are; a history is far shorter than `u32::MAX`.
fn count(items: impl Iterator) -> u32 {
    items.fold(0, |count, _| count + 1)
}
