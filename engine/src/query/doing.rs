//! What a run that is neither parked nor ended is doing, in words.
//!
//! Owns one phrase for every phase and stage, as it stands after "it is" and after "it was left".

use model::RunId;
use model::phase::{BatchStage, CompactStage, DispatchStage, FinalizeStage, Inject, Phase, StreamStage};
use model::state::CallStatus;

use super::Snapshot;
use super::names::call_name;
use super::recent::Recent;
use crate::clock::rfc3339;

/// Calls that a sentence names.
const CALLS_NAMED_MAX: usize = 3;

/// A run and its newest records.
pub(super) struct Doing<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) recent: &'a Recent,
}

impl Doing<'_> {
    pub(super) fn text(&self) -> String {
        match &self.snapshot.core().phase {
            Phase::Queued => "waiting for its lane".to_owned(),
            Phase::InjectPending { turn, inject } => format!("{} (turn {turn})", injecting(*inject)),
            Phase::Stream { turn, attempt, stage } => {
                format!("{} (turn {turn}, attempt {attempt})", self.streaming(*stage))
            }
            Phase::Dispatch { turn, stage } => match stage {
                DispatchStage::Resolve => format!("checking the calls of turn {turn}"),
                DispatchStage::Hook => format!("asking the hook before_tool_batch about turn {turn}"),
            },
            Phase::ExecuteTools { turn, stage } => self.executing(*turn, *stage),
            Phase::Finalize { turn, stage, .. } => format!("{} after turn {turn}", finalizing(*stage)),
            Phase::Compact { turn, stage, .. } => match stage {
                CompactStage::Ready => format!("choosing what a summary is to replace (turn {turn})"),
                CompactStage::InFlight { .. } => format!("making a summary of its context (turn {turn})"),
            },
            Phase::Parked { reason, .. } => format!("parked for {}", reason.name()),
            Phase::Done { outcome, .. } => outcome.name().to_owned(),
        }
    }

    fn streaming(&self, stage: StreamStage) -> String {
        let model = &self.snapshot.core().model;
        match stage {
            StreamStage::Ready => format!("preparing a request to model {model}"),
            StreamStage::InFlight => format!("waiting for the first byte from model {model}"),
            StreamStage::Open => format!("receiving an answer from model {model}"),
            StreamStage::Backoff { until } => {
                let failure = self.recent.failure.as_deref().unwrap_or("a failure");
                format!("waiting until {} before it asks model {model} again after {failure}", rfc3339(until))
            }
        }
    }

    fn executing(&self, turn: u32, stage: BatchStage) -> String {
        let run = self.snapshot.run;
        let name = |call| named_calls(run, turn, &[call], self.recent);
        match stage {
            BatchStage::PollBefore { call } => format!("asking for steering before {}", name(call)),
            BatchStage::Prepare { call } => format!("asking a hook about {}", name(call)),
            BatchStage::PollReady { call } => format!("asking for steering, with {} ready", name(call)),
            BatchStage::PollLaunch => format!("asking for steering before the calls of turn {turn}"),
            BatchStage::Running => {
                let calls = self.calls_under_way();
                format!("running {}", named_calls(run, turn, &calls, self.recent))
            }
        }
    }

    fn calls_under_way(&self) -> Vec<u16> {
        let calls = self.snapshot.state.batch.iter().flat_map(|batch| &batch.calls);
        let is_under_way = |status| match status {
            CallStatus::Started | CallStatus::Judged { .. } => true,
            CallStatus::Planned(_)
            | CallStatus::AwaitingApproval
            | CallStatus::Unknown
            | CallStatus::Ended(_) => false,
        };
        (0..).zip(calls).filter(|(_, call)| is_under_way(call.status)).map(|(index, _)| index).collect()
    }
}

fn injecting(inject: Inject) -> &'static str {
    match inject {
        Inject::BeforeRun => "asking the hook before_agent_run whether it may start",
        Inject::Prompts => "taking in its prompts",
        Inject::FirstPoll => "asking for steering",
        Inject::Steering { .. } => "taking in steering messages",
        Inject::FollowUp => "taking in a follow-up",
    }
}

fn finalizing(stage: FinalizeStage) -> &'static str {
    match stage {
        FinalizeStage::PrepareNext => "asking the hook prepare_next_turn",
        FinalizeStage::ShouldStop => "asking the hook should_stop_after_turn",
        FinalizeStage::PollSteering | FinalizeStage::PollLast => "asking for steering",
        FinalizeStage::PollFollowUp => "asking for a follow-up",
        FinalizeStage::BeforeFinalize => "asking the hook before_finalize",
    }
}

/// `RUN/0.1 (bash)`, for each of the first calls.
pub(super) fn named_calls(run: RunId, turn: u32, calls: &[u16], recent: &Recent) -> String {
    let mut names: Vec<String> = calls
        .iter()
        .take(CALLS_NAMED_MAX)
        .map(|call| {
            let name = call_name(run, turn, *call);
            recent.call(*call).map_or_else(|| name.clone(), |call| format!("{name} ({})", call.name))
        })
        .collect();
    if calls.len() > CALLS_NAMED_MAX {
        names.push(format!("{} more", calls.len() - CALLS_NAMED_MAX));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use model::guard::retry::CompactCause;
    use model::input::Submission;
    use model::phase::EntryRef;
    use model::state::Owner;
    use model::{JsonText, Label, Millis, RunState};
    use store::{Hash, Head};

    use super::*;
    use crate::job::Meta;

    fn snapshot(phase: Phase) -> Snapshot {
        let run = RunId([0xab; 16]);
        let submission = Submission {
            run,
            owner: Owner::default(),
            session: "s".to_owned(),
            prompts: Vec::new(),
            base: Vec::new(),
            model: Label::from("m"),
            thinking: Label::from("off"),
            wants: Default::default(),
            limits: Default::default(),
            job: JsonText::empty(),
        };
        let mut state = RunState::new(&submission, Millis(0));
        state.core.phase = phase;
        let head = Head { seq: 0, hash: Hash::default() };
        Snapshot { run, state, meta: Meta::default(), head, inbox_len: 0 }
    }

    fn phases() -> Vec<Phase> {
        let inject = |inject| Phase::InjectPending { turn: 1, inject };
        let stream = |stage| Phase::Stream { turn: 1, attempt: 2, stage };
        let dispatch = |stage| Phase::Dispatch { turn: 1, stage };
        let execute = |stage| Phase::ExecuteTools { turn: 1, stage };
        let finalize = |stage| Phase::Finalize { turn: 1, stage, wants_more: true, is_steered: false };
        let cause = CompactCause::Overflow;
        let compact = |stage| Phase::Compact { turn: 1, attempt: 2, cause, stage };
        let first_kept = EntryRef { run: RunId([0xab; 16]), seq: 3, n: 0 };
        vec![
            inject(Inject::BeforeRun),
            inject(Inject::Prompts),
            inject(Inject::FirstPoll),
            inject(Inject::Steering { wants_more: true }),
            inject(Inject::FollowUp),
            stream(StreamStage::Ready),
            stream(StreamStage::InFlight),
            stream(StreamStage::Open),
            stream(StreamStage::Backoff { until: Millis(0) }),
            dispatch(DispatchStage::Resolve),
            dispatch(DispatchStage::Hook),
            execute(BatchStage::PollBefore { call: 3 }),
            execute(BatchStage::Prepare { call: 3 }),
            execute(BatchStage::PollReady { call: 3 }),
            execute(BatchStage::PollLaunch),
            finalize(FinalizeStage::PrepareNext),
            finalize(FinalizeStage::ShouldStop),
            finalize(FinalizeStage::PollSteering),
            finalize(FinalizeStage::PollFollowUp),
            finalize(FinalizeStage::PollLast),
            finalize(FinalizeStage::BeforeFinalize),
            compact(CompactStage::Ready),
            compact(CompactStage::InFlight { first_kept }),
        ]
    }

    #[test]
    fn every_stage_has_its_words() {
        let run = RunId([0xab; 16]).to_string();
        let words: Vec<String> = phases()
            .into_iter()
            .map(|phase| {
                let text = Doing { snapshot: &snapshot(phase), recent: &Recent::default() }.text();
                text.replace(&run, "RUN")
            })
            .collect();
        let expected = [
            "asking the hook before_agent_run whether it may start (turn 1)",
            "taking in its prompts (turn 1)",
            "asking for steering (turn 1)",
            "taking in steering messages (turn 1)",
            "taking in a follow-up (turn 1)",
            "preparing a request to model m (turn 1, attempt 2)",
            "waiting for the first byte from model m (turn 1, attempt 2)",
            "receiving an answer from model m (turn 1, attempt 2)",
            "waiting until 1970-01-01T00:00:00.000Z before it asks model m again after a failure \
             (turn 1, attempt 2)",
            "checking the calls of turn 1",
            "asking the hook before_tool_batch about turn 1",
            "asking for steering before RUN/1.3",
            "asking a hook about RUN/1.3",
            "asking for steering, with RUN/1.3 ready",
            "asking for steering before the calls of turn 1",
            "asking the hook prepare_next_turn after turn 1",
            "asking the hook should_stop_after_turn after turn 1",
            "asking for steering after turn 1",
            "asking for a follow-up after turn 1",
            "asking for steering after turn 1",
            "asking the hook before_finalize after turn 1",
            "choosing what a summary is to replace (turn 1)",
            "making a summary of its context (turn 1)",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn of_many_calls_the_first_are_named() {
        let named = named_calls(RunId([0xab; 16]), 0, &[0, 2, 3, 5, 8], &Recent::default());
        let run = RunId([0xab; 16]);
        assert_eq!(named, format!("{run}/0.0, {run}/0.2, {run}/0.3, 2 more"));
    }
}
