//! A harness that takes part in what a scenario says, and tells the world of each time it is asked.
//!
//! Owns answers that depend on the question alone, so that asking again changes nothing.

use std::sync::Arc;

use async_trait::async_trait;
use engine::Harness;
use engine::harness::{
    BatchBlock, BatchCall, Context, Gate, HookContext, Hooks, Permission, ResultPatch, TurnView,
};
use engine::provider::Prepared;
use model::input::{Hook, NextTurn};
use model::{Block, Message, ToolResult};

use crate::world::World;

/// Every hook there is.
pub const ALL_HOOKS: [Hook; 8] = [
    Hook::BeforeAgentRun,
    Hook::BeforeToolBatch,
    Hook::BeforeToolCall,
    Hook::AfterToolCall,
    Hook::AfterToolOutcome,
    Hook::PrepareNextTurn,
    Hook::ShouldStopAfterTurn,
    Hook::BeforeFinalize,
];

/// A harness with these hooks, and a summariser if asked for.
pub fn harness(world: &Arc<World>, wanted: &[Hook], summarises: bool) -> Harness {
    let hooks: Option<Arc<dyn Hooks>> = (!wanted.is_empty())
        .then(|| Arc::new(Asking { world: Arc::clone(world), wanted: wanted.to_vec() }) as Arc<dyn Hooks>);
    let context: Option<Arc<dyn Context>> =
        summarises.then(|| Arc::new(Summariser { world: Arc::clone(world) }) as Arc<dyn Context>);
    Harness { hooks, context, ..Harness::default() }
}

struct Asking {
    world: Arc<World>,
    wanted: Vec<Hook>,
}

impl Asking {
    async fn note(&self, context: &HookContext<'_>) {
        self.world.ask_hook(context.run, context.call).await;
    }
}

#[async_trait]
impl Hooks for Asking {
    fn wanted(&self) -> &[Hook] {
        &self.wanted
    }

    async fn before_agent_run(&self, context: HookContext<'_>, _: &[Message]) -> Result<Gate, String> {
        self.note(&context).await;
        Ok(Gate::Allow)
    }

    async fn before_tool_batch(
        &self,
        context: HookContext<'_>,
        _: &[BatchCall],
    ) -> Result<Option<BatchBlock>, String> {
        self.note(&context).await;
        Ok(None)
    }

    /// A call with the argument `ask` waits for a person.
    async fn before_tool_call(
        &self,
        context: HookContext<'_>,
        call: &BatchCall,
    ) -> Result<Permission, String> {
        self.note(&context).await;
        let asks = call.args["ask"].as_bool() == Some(true);
        Ok(if asks { Permission::Ask("is this right?".to_owned()) } else { Permission::Allow })
    }

    /// Adds a word to the result.
    async fn after_tool_call(
        &self,
        context: HookContext<'_>,
        _: &BatchCall,
        result: &ToolResult,
    ) -> Result<ResultPatch, String> {
        self.note(&context).await;
        let content = Some(vec![Block::Text(format!("{}, seen", result.joined_text()))]);
        Ok(ResultPatch { content, ..ResultPatch::default() })
    }

    async fn after_tool_outcome(
        &self,
        context: HookContext<'_>,
        _: &BatchCall,
        _: &ToolResult,
    ) -> Result<ResultPatch, String> {
        self.note(&context).await;
        Ok(ResultPatch::default())
    }

    async fn prepare_next_turn(
        &self,
        context: HookContext<'_>,
        _: &TurnView<'_>,
    ) -> Result<NextTurn, String> {
        self.note(&context).await;
        Ok(NextTurn::default())
    }

    async fn should_stop_after_turn(
        &self,
        context: HookContext<'_>,
        _: &TurnView<'_>,
    ) -> Result<bool, String> {
        self.note(&context).await;
        Ok(false)
    }

    /// The first answer without calls is asked for once more.
    async fn before_finalize(
        &self,
        context: HookContext<'_>,
        turn: &TurnView<'_>,
    ) -> Result<Option<String>, String> {
        self.note(&context).await;
        let is_draft = turn.answer.content.iter().any(|block| *block == Block::Text("draft".to_owned()));
        Ok(is_draft.then(|| "say it better".to_owned()))
    }
}

struct Summariser {
    world: Arc<World>,
}

#[async_trait]
impl Context for Summariser {
    fn can_summarise(&self) -> bool {
        true
    }

    async fn summarise(&self, messages: &[Arc<Prepared>]) -> Result<String, String> {
        self.world.summarise().await;
        Ok(format!("summary of {} messages", messages.len()))
    }
}
