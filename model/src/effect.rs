//! What must happen next, as a function of the committed state.
//!
//! Owns the imperative. Effects are plain comparable data; performing them is the engine's work.

use crate::ids::Millis;
use crate::input::{Hook, HookCall, RecoveryClass};
use crate::phase::{
    BatchStage, CompactStage, DispatchStage, EntryRef, FinalizeStage, Inject, Phase, StreamStage,
};
use crate::state::{Batch, CallStatus, Judge, Plan, RunState};

/// Something that must happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Wait for the lane.
    AwaitLane,
    /// Ask the harness's source for messages and put them into the inbox.
    Poll {
        /// Which source.
        source: Source,
    },
    /// Read the inbox for the messages to inject.
    Drain {
        /// Which messages.
        source: Source,
    },
    /// Build the request of a model call.
    PrepareRequest {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Ordinal of the try within the turn, from 0.
        attempt: u32,
    },
    /// Call the model.
    CallModel {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Ordinal of the try within the turn, from 0.
        attempt: u32,
    },
    /// Wait.
    Sleep {
        /// Until when.
        until: Millis,
    },
    /// Resolve and validate the calls of the answer.
    ResolveBatch {
        /// Ordinal of the turn, from 0.
        turn: u32,
    },
    /// Ask a hook.
    RunHook(HookCall),
    /// Run a tool's body.
    RunTool {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Index of the call.
        call: u16,
        /// What may be done about it after a crash.
        class: RecoveryClass,
    },
    /// Decide what a summary replaces.
    PlanCompaction,
    /// Make a summary.
    Compact {
        /// The first message that stays as it is.
        first_kept: EntryRef,
    },
    /// Wait for a person's approval of a call.
    AwaitApproval {
        /// Ordinal of the turn, from 0.
        turn: u32,
        /// Index of the call.
        call: u16,
    },
    /// Wait for a person.
    AwaitPerson,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The run's own prompts.
    Prompt,
    /// Steering messages.
    Steering,
    /// Follow-up messages.
    FollowUp,
}

impl Effect {
    /// The effect is performed inside the engine's process, which it could end: not a wait, and not a command, which
    /// its supervisor keeps.
    pub fn is_in_engine(&self) -> bool {
        match self {
            Self::RunTool { class, .. } => *class != RecoveryClass::Adoptable,
            Self::Poll { .. }
            | Self::Drain { .. }
            | Self::PrepareRequest { .. }
            | Self::CallModel { .. }
            | Self::ResolveBatch { .. }
            | Self::RunHook(_)
            | Self::PlanCompaction
            | Self::Compact { .. } => true,
            Self::AwaitLane | Self::Sleep { .. } | Self::AwaitApproval { .. } | Self::AwaitPerson => false,
        }
    }

    /// The effect reaches outside of the process, or a person relies on what was committed before it: it may
    /// only be performed after a barrier.
    pub fn needs_barrier(&self) -> bool {
        match self {
            Self::CallModel { .. }
            | Self::RunTool { .. }
            | Self::Sleep { .. }
            | Self::Compact { .. }
            | Self::AwaitApproval { .. }
            | Self::AwaitPerson => true,
            Self::AwaitLane
            | Self::Poll { .. }
            | Self::Drain { .. }
            | Self::PrepareRequest { .. }
            | Self::ResolveBatch { .. }
            | Self::RunHook(_)
            | Self::PlanCompaction => false,
        }
    }
}

impl RunState {
    /// What must happen next. Empty only when the run is done.
    pub fn effects(&self) -> Vec<Effect> {
        let hook = |hook, turn, call| vec![Effect::RunHook(HookCall { hook, turn, call })];
        match &self.core.phase {
            Phase::Queued => vec![Effect::AwaitLane],
            Phase::InjectPending { turn, inject } => match inject {
                Inject::BeforeRun => hook(Hook::BeforeAgentRun, *turn, None),
                Inject::Prompts => vec![Effect::Drain { source: Source::Prompt }],
                Inject::FirstPoll => vec![Effect::Poll { source: Source::Steering }],
                Inject::Steering { .. } => vec![Effect::Drain { source: Source::Steering }],
                Inject::FollowUp => vec![Effect::Drain { source: Source::FollowUp }],
            },
            Phase::Stream { turn, attempt, stage } => match stage {
                StreamStage::Ready => vec![Effect::PrepareRequest { turn: *turn, attempt: *attempt }],
                StreamStage::InFlight | StreamStage::Open => {
                    vec![Effect::CallModel { turn: *turn, attempt: *attempt }]
                }
                StreamStage::Backoff { until } => vec![Effect::Sleep { until: *until }],
            },
            Phase::Dispatch { turn, stage } => match stage {
                DispatchStage::Resolve => vec![Effect::ResolveBatch { turn: *turn }],
                DispatchStage::Hook => hook(Hook::BeforeToolBatch, *turn, None),
            },
            Phase::ExecuteTools { turn, stage } => self.batch_effects(*turn, *stage),
            Phase::Finalize { turn, stage, .. } => match stage {
                FinalizeStage::PrepareNext => hook(Hook::PrepareNextTurn, *turn, None),
                FinalizeStage::ShouldStop => hook(Hook::ShouldStopAfterTurn, *turn, None),
                FinalizeStage::PollSteering | FinalizeStage::PollLast => {
                    vec![Effect::Poll { source: Source::Steering }]
                }
                FinalizeStage::PollFollowUp => vec![Effect::Poll { source: Source::FollowUp }],
                FinalizeStage::BeforeFinalize => hook(Hook::BeforeFinalize, *turn, None),
            },
            Phase::Compact { stage, .. } => match stage {
                CompactStage::Ready => vec![Effect::PlanCompaction],
                CompactStage::InFlight { first_kept } => vec![Effect::Compact { first_kept: *first_kept }],
            },
            Phase::Parked { .. } => vec![Effect::AwaitPerson],
            Phase::Done { .. } => Vec::new(),
        }
    }

    fn batch_effects(&self, turn: u32, stage: BatchStage) -> Vec<Effect> {
        let mut effects = match stage {
            BatchStage::PollBefore { .. } | BatchStage::PollReady { .. } | BatchStage::PollLaunch => {
                vec![Effect::Poll { source: Source::Steering }]
            }
            BatchStage::Prepare { .. } | BatchStage::Running => Vec::new(),
        };
        let calls = self.batch.as_ref().map_or(&[][..], |Batch { calls, .. }| calls);
        for (call, entry) in (0u16..).zip(calls) {
            let hook = |hook| Effect::RunHook(HookCall { hook, turn, call: Some(call) });
            match entry.status {
                CallStatus::Planned(Plan::Asking) => effects.push(hook(Hook::BeforeToolCall)),
                CallStatus::Started => effects.push(Effect::RunTool { turn, call, class: entry.class }),
                CallStatus::Judged { hook: Judge::AfterToolCall, .. } => {
                    effects.push(hook(Hook::AfterToolCall))
                }
                CallStatus::Judged { hook: Judge::AfterToolOutcome, .. } => {
                    effects.push(hook(Hook::AfterToolOutcome));
                }
                CallStatus::AwaitingApproval => effects.push(Effect::AwaitApproval { turn, call }),
                CallStatus::Planned(Plan::Waiting | Plan::Ready | Plan::Refused)
                | CallStatus::Unknown
                | CallStatus::Ended(_) => {}
            }
        }
        effects
    }
}

/// True if the transition from `before` to `after` must be durable before anything that follows from it.
pub fn needs_barrier(before: &[Effect], after: &RunState) -> bool {
    if after.core.crashes.is_tried {
        // Whatever ends the engine next, it is known who was on trial.
        return true;
    }
    match after.core.phase {
        Phase::Done { .. } => true,
        Phase::Queued
        | Phase::InjectPending { .. }
        | Phase::Stream { .. }
        | Phase::Dispatch { .. }
        | Phase::ExecuteTools { .. }
        | Phase::Finalize { .. }
        | Phase::Compact { .. }
        | Phase::Parked { .. } => {
            after.effects().iter().any(|effect| effect.needs_barrier() && !before.contains(effect))
        }
    }
}
