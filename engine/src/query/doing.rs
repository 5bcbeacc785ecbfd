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
