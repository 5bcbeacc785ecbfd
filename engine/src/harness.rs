//! The harness: what an embedding program takes part in.
//!
//! Owns three traits with default methods. The engine knows when to call; the harness knows what to do. A hook may be
//! called more than once for the same key after a crash; it must never rely on being called once.

use std::sync::Arc;

use async_trait::async_trait;
use model::input::{Hook, HookCall, NextTurn};
use model::message::{AssistantMessage, ToolCall};
use model::{Message, RunId, ToolResult};
use tokio_util::sync::CancellationToken;

use crate::provider::Prepared;
use crate::tool::Tool;

/// Where steering and follow-up messages come from, beside the run's inbox. What is returned is put into the inbox
/// durably before the run goes on. After a crash a source may be asked again at the same poll; what it gave there before,
/// in the same place, is not taken twice.
#[async_trait]
pub trait Sources: Send + Sync {
    /// Messages that steer the running work.
    async fn steering(&self, _run: RunId) -> Vec<Message> {
        Vec::new()
    }

    /// Messages for when the run would otherwise end.
    async fn follow_up(&self, _run: RunId) -> Vec<Message> {
        Vec::new()
    }

    /// True if a message was taken back since it was returned or submitted; such a message is not shown to anybody.
    async fn is_withdrawn(&self, _run: RunId, _message: &Message) -> bool {
        false
    }
}

/// What a hook is told beside its own arguments.
#[derive(Debug)]
pub struct HookContext<'a> {
    /// The run; with `call`, the hook's key.
    pub run: RunId,
    /// Which hook, in which turn, about which call.
    pub call: HookCall,
    /// The model's context so far.
    pub messages: &'a [Arc<Prepared>],
    /// Cancelled when the run is.
    pub cancel: CancellationToken,
}

/// A yes or no with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Go on.
    Allow,
    /// Do not, for this reason.
    Block(String),
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Allow,
    /// It may not; the reason goes to the model.
    Block(String),
    /// A person is asked, with this reason.
    Ask(String),
}

/// A valid call of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchCall {
    /// Index of the call in the answer.
    pub index: u16,
    /// The call as the model wrote it.
    pub call: ToolCall,
    /// The arguments, validated and coerced.
    pub args: serde_json::Value,
}

/// A batch that must not run because it goes in circles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchBlock {
    /// Index of the call that triggered it.
    pub index: u16,
    /// Name of the detector.
    pub detector: String,
    /// How often the action was seen.
    pub count: u32,
    /// The text for the model.
    pub reason: String,
    /// What identifies the action.
    pub action_key: String,
}

/// Fields of a result that a hook replaces; none keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultPatch {
    /// Replaces the content.
    pub content: Option<Vec<model::Block>>,
    /// Replaces the details.
    pub details: Option<serde_json::Value>,
    /// Replaces whether it is an error.
    pub is_error: Option<bool>,
    /// Replaces whether it asks the loop to stop.
    pub terminates: Option<bool>,
}

impl ResultPatch {
    /// The result with the fields replaced.
    pub fn apply(self, result: &ToolResult) -> ToolResult {
        ToolResult {
            content: self.content.unwrap_or_else(|| result.content.clone()),
            details: self.details.as_ref().map_or_else(|| result.details.clone(), model::JsonText::from),
            is_error: self.is_error.unwrap_or(result.is_error),
            terminates: self.terminates.unwrap_or(result.terminates),
            is_network: result.is_network,
        }
    }
}

/// A turn that has ended.
#[derive(Debug)]
pub struct TurnView<'a> {
    /// The answer.
    pub answer: &'a AssistantMessage,
    /// The results of its calls.
    pub results: &'a [Message],
}

/// Hooks that change control flow. `Err` is the hook's own failure, in words. Only hooks in `wanted` are ever called.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// The hooks that this harness takes part in; constant.
    fn wanted(&self) -> &[Hook];

    /// May refuse the run before its prompts are shown. A failure refuses it too.
    async fn before_agent_run(
        &self,
        _context: HookContext<'_>,
        _prompts: &[Message],
    ) -> Result<Gate, String> {
        Ok(Gate::Allow)
    }

    /// May block a whole batch. A failure blocks it too.
    async fn before_tool_batch(
        &self,
        _context: HookContext<'_>,
        _calls: &[BatchCall],
    ) -> Result<Option<BatchBlock>, String> {
        Ok(None)
    }

    /// May allow, block or hold one call. A failure is the call's error result.
    async fn before_tool_call(
        &self,
        _context: HookContext<'_>,
        _call: &BatchCall,
    ) -> Result<Permission, String> {
        Ok(Permission::Allow)
    }

    /// Looks at the result of a call that ran. A failure becomes the result.
    async fn after_tool_call(
        &self,
        _context: HookContext<'_>,
        _call: &BatchCall,
        _result: &ToolResult,
    ) -> Result<ResultPatch, String> {
        Ok(ResultPatch::default())
    }

    /// Looks at the result of any call; of one that was refused or blocked, the arguments are as the model wrote them. A
    /// failure becomes the result.
    async fn after_tool_outcome(
        &self,
        _context: HookContext<'_>,
        _call: &BatchCall,
        _result: &ToolResult,
    ) -> Result<ResultPatch, String> {
        Ok(ResultPatch::default())
    }

    /// May replace context, model or thinking level before the next turn. A failure ends the run.
    async fn prepare_next_turn(
        &self,
        _context: HookContext<'_>,
        _turn: &TurnView<'_>,
    ) -> Result<NextTurn, String> {
        Ok(NextTurn::default())
    }

    /// May stop the run after a turn. A failure ends the run.
    async fn should_stop_after_turn(
        &self,
        _context: HookContext<'_>,
        _turn: &TurnView<'_>,
    ) -> Result<bool, String> {
        Ok(false)
    }

    /// May ask for one more pass, with a reason, at most three times in a run. A failure ends the run.
    async fn before_finalize(
        &self,
        _context: HookContext<'_>,
        _turn: &TurnView<'_>,
    ) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// How the context of a model call is made.
#[async_trait]
pub trait Context: Send + Sync {
    /// Changes the context for one call. What is returned is not stored; it must be the same for the same messages.
    async fn transform_context(&self, messages: Vec<Arc<Prepared>>) -> Vec<Arc<Prepared>> {
        messages
    }

    /// The message as the model is to see it; none leaves it out.
    fn convert_to_llm(&self, message: &Message) -> Option<Message> {
        default_conversion(message)
    }

    /// A tool that is not among the run's own, found when a model first calls it.
    fn resolve_tool(&self, _name: &str) -> Result<Option<Arc<dyn Tool>>, String> {
        Ok(None)
    }

    /// True if [`Context::summarise`] works.
    fn can_summarise(&self) -> bool {
        false
    }

    /// A summary that takes the place of `messages`. `Err` says why there is none.
    async fn summarise(&self, _messages: &[Arc<Prepared>]) -> Result<String, String> {
        Err("this engine has no summariser".to_owned())
    }
}

/// Types of the messages that the engine itself has for the model.
const OWN_MESSAGES: [&str; 3] = [model::TURN_ABORTED, model::REVISION, model::FILES_LOST];

/// Messages of this engine's own are user messages to the model; other custom messages are not for it.
pub fn default_conversion(message: &Message) -> Option<Message> {
    match message {
        Message::Custom(custom) => {
            let is_own = OWN_MESSAGES.contains(&custom.custom_type.as_str());
            is_own.then(|| {
                Message::User(model::message::UserMessage { content: custom.content.clone(), at: custom.at })
            })
        }
        Message::User(_) | Message::Assistant(_) | Message::ToolResult(_) => Some(message.clone()),
    }
}

/// What an embedding program takes part in. The default takes part in nothing.
#[derive(Clone, Default)]
pub struct Harness {
    /// Messages from elsewhere.
    pub sources: Option<Arc<dyn Sources>>,
    /// Hooks.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// The context.
    pub context: Option<Arc<dyn Context>>,
}
