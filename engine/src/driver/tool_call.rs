//! Tool calls: resolving and validating a batch, running one call, its partial results.
//!
//! Owns the time between a call's durable `Started` and its committed result. An error is a result, never a failure of
//! the engine. It must never run a call that does not stand as started in the committed state.

use std::sync::Arc;
use std::time::Duration;

use model::guard::loops::{ToolKind, call_facts};
use model::input::{CallPlan, CallVerdict, Recovered, RecoveryClass};
use model::message::ToolCall;
use model::{Block, Effect, Fact, Label, ToolResult};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{ABORT_GRACE, Driver, Performed, let_siblings_begin};
use crate::config;
use crate::crash_point;
use crate::event::AgentEvent;
use crate::keys;
use crate::tool::validate::Validator;
use crate::tool::{CallContext, Execution, Preparation, Tool, detector_name};

/// A call of the current batch with what running it needs. Derived from the answer, so it can be made again.
#[derive(Clone)]
pub(super) struct PlannedCall {
    pub(super) call: ToolCall,
    pub(super) args: Value,
    pub(super) tool: Option<Arc<dyn Tool>>,
    verdict: CallVerdict,
}

impl PlannedCall {
    /// It may run.
    pub(super) fn is_valid(&self) -> bool {
        self.verdict == CallVerdict::Valid
    }

    /// What may be done about it after a crash.
    fn class(&self) -> RecoveryClass {
        self.tool.as_ref().map_or(RecoveryClass::AtMostOnce, |tool| tool.spec().class)
    }
}

/// How a call that outlives engines stood when this one took it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takeover {
    /// It was running, and is waited for.
    Adopted,
    /// It had ended.
    Collected,
    /// It had not run.
    DidNotRun,
}

/// A tool with its compiled schema.
type FoundTool = (Arc<dyn Tool>, Validator);

/// A partial result of a call.
pub(super) struct ToolUpdate {
    call: u16,
    partial: ToolResult,
}

/// The way of partial results from calls to their run.
pub(super) type ToolUpdates = (mpsc::Sender<ToolUpdate>, mpsc::Receiver<ToolUpdate>);

/// Partial results of tools that wait to be passed on.
const TOOL_UPDATES_MAX: usize = 64;
/// How long a tool may go on after the run was aborted, before it is dropped.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Partial results of one call that wait to be passed on.
const CALL_UPDATES_MAX: usize = 16;

impl Driver {
    /// The calls of the newest answer, resolved and validated. The same answer always gives the same plans.
    pub(super) fn plan_calls(&mut self) {
        let calls: Vec<ToolCall> =
            self.fold.answer().map(|answer| answer.calls().cloned().collect()).unwrap_or_default();
        self.plans = calls.into_iter().map(|call| self.plan_call(call)).collect();
    }

    fn plan_call(&self, call: ToolCall) -> PlannedCall {
        let args = call.arguments.value();
        let refused = |verdict, call, args| PlannedCall { call, args, tool: None, verdict };
        if call.is_duplicate {
            return refused(CallVerdict::Duplicate, call, args);
        }
        let shared = Arc::clone(&self.shared);
        let known = self.facts.tools.contains(&call.name).then(|| shared.tools.resolve(&call.name)).flatten();
        if let Some(entry) = known {
            return checked(call, Arc::clone(&entry.tool), &entry.validator);
        }
        match self.find_elsewhere(&call.name) {
            Ok(Some((tool, validator))) => checked(call, tool, &validator),
            Ok(None) => refused(CallVerdict::Unknown, call, args),
            Err(text) => refused(CallVerdict::Refused(text), call, args),
        }
    }

    /// A tool that the harness finds when a model first calls it.
    fn find_elsewhere(&self, name: &str) -> Result<Option<FoundTool>, String> {
        let Some(context) = &self.shared.harness.context else { return Ok(None) };
        let Some(tool) = context.resolve_tool(name)? else { return Ok(None) };
        let found = &tool.spec().name;
        if found != name {
            return Err(format!("Deferred tool resolver returned \"{found}\" for requested \"{name}\""));
        }
        let validator = Validator::new(&tool.spec().parameters)?;
        Ok(Some((tool, validator)))
    }

    /// The admission of the batch.
    pub(super) fn resolve_batch(&mut self) -> Fact {
        crash_point::reach("before the intent");
        self.plan_calls();
        let is_sequential = self.facts.tool_execution == crate::config::ToolExecution::Sequential
            || self.plans.iter().any(|plan| {
                plan.tool.as_ref().is_some_and(|tool| tool.spec().execution == Execution::Sequential)
            });
        let calls = self.plans.iter().take(model::limits::CALLS_MAX).map(call_plan).collect();
        Fact::BatchAdmitted {
            calls,
            total: u32::try_from(self.plans.len()).unwrap_or(u32::MAX),
            is_sequential,
        }
    }

    /// The plan of one call, made again after a resume.
    pub(super) fn plan(&mut self, index: u16) -> Option<&PlannedCall> {
        if self.plans.is_empty() {
            self.plan_calls();
        }
        self.plans.get(usize::from(index))
    }

    /// Runs a call that stands as started.
    pub(super) fn run_tool(&mut self, turn: u32, index: u16, effect: &Effect) -> Option<Fact> {
        crash_point::reach("after the intent");
        let takeover = self.takeovers.iter().find(|(place, _)| *place == (turn, index)).map(|(_, how)| *how);
        let recovered = takeover.and_then(Takeover::recovered);
        let returned = move |result| Fact::ToolReturned { call: index, result, recovered };
        if self.state.core.abort.is_some() {
            // Only what runs already is left to be ended, which its tool does.
            self.cancel.cancel();
            if takeover != Some(Takeover::Adopted) {
                return Some(returned(ToolResult::error("Operation aborted")));
            }
        }
        let Some(plan) = self.plan(index).cloned() else {
            return Some(returned(ToolResult::error("The call is not in the transcript")));
        };
        let Some(tool) = plan.tool.clone() else {
            return Some(returned(ToolResult::error(format!("Tool {} not found", plan.call.name))));
        };
        let (context, partials) = self.call_context(turn, index, &plan);
        let forward = partials.map(|partials| (partials, self.tool_updates()));
        let (cancel, effect) = (self.cancel.clone(), effect.clone());
        let policy = self.unknown_policy(index);
        let has_siblings = self.has_siblings();
        self.performing.push(Box::pin(async move {
            let is_network = tool.spec().is_network;
            let running = run_within(&*tool, context, cancel);
            let result = match forward {
                None => running.await,
                Some((partials, updates)) => forwarding(running, partials, updates, index).await,
            };
            let fact = match result {
                None => Fact::ToolUnknown { call: index, policy },
                Some(result) => {
                    let told = |result| Takeover::told(takeover, result);
                    let mut result = result.map_or_else(ToolResult::error, told);
                    result.is_network |= is_network;
                    returned(result)
                }
            };
            let_siblings_begin(has_siblings).await;
            crash_point::reach("before the result's commit");
            Performed { effect, fact }
        }));
        None
    }

    /// What the tool is told. Partial results are taken only if somebody follows them.
    pub(super) fn call_context(
        &self,
        turn: u32,
        index: u16,
        plan: &PlannedCall,
    ) -> (CallContext, Option<mpsc::Receiver<ToolResult>>) {
        // What outlives the engine also outlives those who follow: others may come.
        let is_adoptable = plan.class() == RecoveryClass::Adoptable;
        let is_followed = is_adoptable || self.attached.sink.is_some() || self.watched.has_listeners();
        let (updates, partials) = if is_followed {
            let (sender, receiver) = mpsc::channel(CALL_UPDATES_MAX);
            (sender, Some(receiver))
        } else {
            (self.shared.unheard.clone(), None)
        };
        let limits = self.facts.tool_limits.get(&plan.call.name);
        let unset = config::Tool::default();
        let output_bytes_max = limits.map_or(unset.output_bytes_max, |limits| limits.output_bytes_max);
        let context = CallContext {
            run: self.run,
            call_id: plan.call.id.clone(),
            idempotency_key: format!("{}/{turn}.{index}", self.run),
            args: plan.args.clone(),
            workspace: self.facts.workspace.clone().unwrap_or_default(),
            scratch: self.shared.dir.as_ref().map(|dir| keys::call_dir(dir, self.run, turn, index)),
            output_bytes_max: usize::try_from(output_bytes_max).unwrap_or(usize::MAX),
            output_spool_bytes_max: limits
                .map_or(unset.output_spool_bytes_max, |limits| limits.output_spool_bytes_max),
            timeout_s: limits.map_or(0, |limits| limits.timeout_s),
            epoch: self.shared.epoch.0,
            is_of_other_boot: self.is_of_other_boot(index),
            cancel: self.cancel.clone(),
            updates,
        };
        (context, partials)
    }

    fn is_of_other_boot(&self, index: u16) -> bool {
        let batch = self.state.batch.as_ref();
        let call = batch.and_then(|batch| batch.calls.get(usize::from(index)));
        call.is_some_and(|call| call.marks.is_of_other_boot())
    }

    /// Passes a partial result on.
    pub(super) async fn publish_tool_update(&mut self, update: ToolUpdate) {
        let Some(call) = self.fold.view(u32::from(update.call)) else { return };
        self.publish_live(AgentEvent::ToolExecutionUpdate { call, partial: update.partial }).await;
    }

    /// Partial results that arrived before a call ended are shown before its end; later ones are dropped.
    pub(super) async fn flush_tool_updates(&mut self) {
        while let Some(update) = self.updates.as_mut().and_then(|(_, updates)| updates.try_recv().ok()) {
            self.publish_tool_update(update).await;
        }
    }

    fn tool_updates(&mut self) -> mpsc::Sender<ToolUpdate> {
        self.updates.get_or_insert_with(|| mpsc::channel(TOOL_UPDATES_MAX)).0.clone()
    }
}

async fn run_within(
    tool: &dyn Tool,
    context: CallContext,
    cancel: tokio_util::sync::CancellationToken,
) -> Option<Result<ToolResult, String>> {
    if tool.spec().class == RecoveryClass::Adoptable {
        // Its supervisor keeps the time, and goes on if nobody waits: to give up waiting would end nothing.
        return tool.run_to_end(context).await;
    }
    let timeout_s = context.timeout_s;
    let timeout = async {
        match timeout_s {
            0 => std::future::pending().await,
            1.. => tokio::time::sleep(Duration::from_secs(timeout_s)).await,
        }
    };
    let given_up = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE.max(ABORT_GRACE)).await;
    };
    Some(tokio::select! {
        biased;
        result = tool.run(context) => result,
        () = given_up => Err("Operation aborted".to_owned()),
        () = timeout => Err(format!(
            "The call took longer than {timeout_s} s and was given up. What it had done until then stands."
        )),
    })
}

impl Takeover {
    /// As the journal notes it.
    pub(super) fn recovered(self) -> Option<Recovered> {
        match self {
            Self::Adopted => Some(Recovered::Adopted),
            Self::Collected => Some(Recovered::Collected),
            Self::DidNotRun => None,
        }
    }

    /// The result, with a word to the model about what became of the call.
    pub(super) fn told(this: Option<Self>, mut result: ToolResult) -> ToolResult {
        let words = match this {
            Some(Self::Adopted) => "it went on running meanwhile, and this is its result",
            Some(Self::Collected) => "it ran to its end meanwhile, and this is its result",
            Some(Self::DidNotRun) => "it had not run before, and ran once afterwards",
            None => return result,
        };
        result.content.push(Block::Text(format!("[The engine was restarted during this call: {words}.]")));
        result
    }
}

async fn forwarding<T>(
    running: impl Future<Output = T>,
    mut partials: mpsc::Receiver<ToolResult>,
    updates: mpsc::Sender<ToolUpdate>,
    call: u16,
) -> T {
    tokio::pin!(running);
    loop {
        tokio::select! {
            biased;
            Some(partial) = partials.recv() => {
                // A full queue loses the update: observers never slow a run.
                let _ = updates.try_send(ToolUpdate { call, partial });
            }
            result = &mut running => {
                while let Ok(partial) = partials.try_recv() {
                    let _ = updates.try_send(ToolUpdate { call, partial });
                }
                return result;
            }
        }
    }
}

/// A call of a tool that exists: prepared and validated.
fn checked(call: ToolCall, tool: Arc<dyn Tool>, validator: &Validator) -> PlannedCall {
    let raw = call.arguments.value();
    let planned = |args, verdict, call| PlannedCall { call, args, tool: Some(Arc::clone(&tool)), verdict };
    match tool.prepare(raw.clone()) {
        Err(text) => planned(raw, CallVerdict::Refused(text), call),
        Ok(Preparation::Immediate(result)) => planned(raw, CallVerdict::Immediate(result), call),
        Ok(Preparation::Args(args)) => match validator.check(&call.name, &args) {
            Ok(args) => planned(args, CallVerdict::Valid, call),
            Err(text) => planned(args, CallVerdict::Invalid(text), call),
        },
    }
}

fn call_plan(plan: &PlannedCall) -> CallPlan {
    let kind = plan.tool.as_ref().map_or(ToolKind::Plain, |tool| tool.spec().kind);
    CallPlan {
        id: Label::from(plan.call.id.as_str()),
        tool: Label::from(plan.call.name.as_str()),
        facts: call_facts(&detector_name(&plan.call.name), &plan.args, kind),
        class: plan.class(),
        verdict: plan.verdict.clone(),
    }
}
