//! Asks the harness's hooks.
//!
//! Owns the translation between a hook and the input that its answer becomes. A hook may be asked again with the same
//! key after a crash; what it answered is journaled and replays without it.

use std::sync::Arc;

use model::input::{Hook, HookAnswer, HookCall, Intervention, NextTurn};
use model::message::{AssistantMessage, ToolResultMessage};
use model::state::{CallStatus, Ending, Judge};
use model::{Effect, Fact, JsonText, Label, Message, ToolResult};

use super::{Driver, Performed, let_siblings_begin};
use crate::harness::{BatchBlock, BatchCall, Gate, HookContext, Hooks, Permission, TurnView};
use crate::provider::Prepared;

/// Everything that a hook may be told, gathered before it is asked.
struct Asked {
    hook: HookCall,
    run: model::RunId,
    messages: Vec<Arc<Prepared>>,
    cancel: tokio_util::sync::CancellationToken,
    prompts: Vec<Message>,
    answer: Option<Arc<AssistantMessage>>,
    results: Vec<Message>,
    calls: Vec<BatchCall>,
    call: Option<BatchCall>,
    result: Option<ToolResult>,
}

impl Driver {
    /// Asks a hook.
    pub(super) fn run_hook(&mut self, hook: HookCall, effect: &Effect) -> Option<Fact> {
        let Some(hooks) = self.shared.harness.hooks.clone() else {
            // The harness that wanted the hook is gone; there is nobody to ask.
            return Some(Fact::HookReturned { hook, answer: HookAnswer::Proceed });
        };
        let asked = self.gather(hook);
        let effect = effect.clone();
        // The last look at results that are ready together is taken at all of them before the first of their calls ends.
        let has_siblings = hook.hook == Hook::AfterToolOutcome && self.has_siblings();
        self.performing.push(Box::pin(async move {
            let answer = ask(&*hooks, &asked).await.unwrap_or_else(HookAnswer::Failed);
            let_siblings_begin(has_siblings).await;
            Performed { effect, fact: Fact::HookReturned { hook, answer } }
        }));
        None
    }

    fn gather(&mut self, hook: HookCall) -> Asked {
        if self.plans.is_empty() {
            self.plan_calls();
        }
        let batch_call = |(index, plan): (u16, &super::PlannedCall)| BatchCall {
            index,
            call: plan.call.clone(),
            args: plan.args.clone(),
        };
        let is_valid = |(_, plan): &(u16, &super::PlannedCall)| plan.is_valid();
        let calls = if hook.hook == Hook::BeforeToolBatch {
            (0u16..).zip(&self.plans).filter(is_valid).map(batch_call).collect()
        } else {
            Vec::new()
        };
        let call = hook.call.and_then(|index| {
            let call = batch_call((index, self.plans.get(usize::from(index))?));
            let args = if self.was_refused(index) { call.call.arguments.value() } else { call.args };
            Some(BatchCall { args, ..call })
        });
        let result = hook.call.and_then(|index| self.fold.result(u32::from(index)).cloned());
        Asked {
            hook,
            run: self.run,
            messages: self.context.whole(),
            cancel: self.cancel.clone(),
            prompts: self.fold.submission().prompts.clone(),
            answer: self.fold.answer().cloned(),
            results: self.turn_results(),
            calls,
            call,
            result,
        }
    }

    /// The call was refused or blocked: what was made of its arguments is of no account.
    fn was_refused(&self, index: u16) -> bool {
        let batch = self.state.batch.as_ref();
        let status = batch.and_then(|batch| batch.calls.get(usize::from(index))).map(|call| call.status);
        let blocked = CallStatus::Judged { hook: Judge::AfterToolOutcome, then: Ending::Blocked };
        status == Some(blocked)
    }

    /// The results of the newest answer's calls, in the order of the calls.
    fn turn_results(&self) -> Vec<Message> {
        let Some(answer) = self.fold.answer() else { return Vec::new() };
        let at = self.state.core.clock;
        (0u32..)
            .zip(answer.calls())
            .filter_map(|(index, call)| {
                let result = self.fold.result(index)?.clone();
                let message =
                    ToolResultMessage { call_id: call.id.clone(), tool: call.name.clone(), result, at };
                Some(Message::ToolResult(Box::new(message)))
            })
            .collect()
    }
}

async fn ask(hooks: &dyn Hooks, asked: &Asked) -> Result<HookAnswer, String> {
    let context = HookContext {
        run: asked.run,
        call: asked.hook,
        messages: &asked.messages,
        cancel: asked.cancel.clone(),
    };
    match asked.hook.hook {
        Hook::BeforeAgentRun => hooks.before_agent_run(context, &asked.prompts).await.map(gate),
        Hook::BeforeToolBatch => {
            let block = hooks.before_tool_batch(context, &asked.calls).await?;
            Ok(block.map_or(HookAnswer::Proceed, |block| HookAnswer::Intervene(intervention(&block, asked))))
        }
        Hook::BeforeToolCall | Hook::AfterToolCall | Hook::AfterToolOutcome => {
            let Some(call) = &asked.call else { return Ok(HookAnswer::Proceed) };
            ask_about_call(hooks, context, asked, call).await
        }
        Hook::PrepareNextTurn | Hook::ShouldStopAfterTurn | Hook::BeforeFinalize => {
            let Some(answer) = &asked.answer else { return Ok(HookAnswer::Proceed) };
            let turn = TurnView { answer, results: &asked.results };
            ask_about_turn(hooks, context, &turn).await
        }
    }
}

async fn ask_about_call(
    hooks: &dyn Hooks,
    context: HookContext<'_>,
    asked: &Asked,
    call: &BatchCall,
) -> Result<HookAnswer, String> {
    if context.call.hook == Hook::BeforeToolCall {
        return hooks.before_tool_call(context, call).await.map(|permission| match permission {
            Permission::Allow => HookAnswer::Proceed,
            Permission::Block(reason) => HookAnswer::Block(reason),
            Permission::Ask(reason) => HookAnswer::Ask(Label::from(reason.as_str())),
        });
    }
    let Some(result) = &asked.result else { return Ok(HookAnswer::Proceed) };
    let patch = if context.call.hook == Hook::AfterToolCall {
        hooks.after_tool_call(context, call, result).await?
    } else {
        hooks.after_tool_outcome(context, call, result).await?
    };
    let patched = patch.apply(result);
    Ok(if patched == *result { HookAnswer::Proceed } else { HookAnswer::Result(patched) })
}

async fn ask_about_turn(
    hooks: &dyn Hooks,
    context: HookContext<'_>,
    turn: &TurnView<'_>,
) -> Result<HookAnswer, String> {
    if context.call.hook == Hook::PrepareNextTurn {
        let next = hooks.prepare_next_turn(context, turn).await?;
        return Ok(if next == NextTurn::default() { HookAnswer::Proceed } else { HookAnswer::Next(next) });
    }
    if context.call.hook == Hook::ShouldStopAfterTurn {
        let is_stop = hooks.should_stop_after_turn(context, turn).await?;
        return Ok(if is_stop { HookAnswer::Stop } else { HookAnswer::Proceed });
    }
    let reason = hooks.before_finalize(context, turn).await?;
    Ok(reason.map_or(HookAnswer::Proceed, HookAnswer::Revise))
}

fn gate(gate: Gate) -> HookAnswer {
    match gate {
        Gate::Allow => HookAnswer::Proceed,
        Gate::Block(reason) => HookAnswer::Block(reason),
    }
}

fn intervention(block: &BatchBlock, asked: &Asked) -> Intervention {
    let call = asked.calls.iter().find(|call| call.index == block.index);
    let (id, tool) = call.map_or(("", ""), |call| (call.call.id.as_str(), call.call.name.as_str()));
    let details = serde_json::json!({
        "kind": "critical-tool-loop", "toolCallId": id, "toolName": tool, "actionKey": block.action_key,
        "detector": block.detector, "count": block.count, "reason": block.reason,
    });
    Intervention { call: block.index, reason: block.reason.clone(), details: JsonText::from(&details) }
}
