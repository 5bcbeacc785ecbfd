//! Hooks of the harness and their answers.
//!
//! Owns the keys of hooks: a key is the same before and after a crash. It must never call one.

use serde::{Deserialize, Serialize};

use crate::ids::{JsonText, Label};
use crate::message::{Message, ToolResult};

/// One call of a hook. Its key is the run with this: the same after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HookCall {
    /// Which hook.
    pub hook: Hook,
    /// Turn that it is asked in.
    pub turn: u32,
    /// Index of the call that it is asked about, if it is about one.
    pub call: Option<u16>,
}

/// The hooks of a harness that change control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hook {
    /// May refuse the run.
    BeforeAgentRun,
    /// May block a whole batch.
    BeforeToolBatch,
    /// May allow, block or hold one call.
    BeforeToolCall,
    /// May replace the result of a call that ran.
    AfterToolCall,
    /// May replace the result of any call.
    AfterToolOutcome,
    /// May replace context, model or thinking level.
    PrepareNextTurn,
    /// May stop the run.
    ShouldStopAfterTurn,
    /// May ask for one more pass.
    BeforeFinalize,
}

/// A hook's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookAnswer {
    /// Nothing to change: allow, keep, go on.
    Proceed,
    /// The hook failed; the text says how.
    Failed(String),
    /// `before_agent_run`, `before_tool_call`: no, for this reason.
    Block(String),
    /// `before_tool_call`: ask a person.
    Ask(Label),
    /// `before_tool_batch`: a critical loop.
    Intervene(Intervention),
    /// `after_tool_call`, `after_tool_outcome`: the result as it now is.
    Result(ToolResult),
    /// `prepare_next_turn`: what changes.
    Next(NextTurn),
    /// `should_stop_after_turn`: yes.
    Stop,
    /// `before_finalize`: one more pass, for this reason.
    Revise(String),
}

/// A critical loop that blocks a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intervention {
    /// Index of the call that triggered it.
    pub call: u16,
    /// The text for the model.
    pub reason: String,
    /// The details that the results carry under `intervention`.
    pub details: JsonText,
}

/// What `prepare_next_turn` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextTurn {
    /// Replaces the context.
    pub context: Option<Vec<Message>>,
    /// Replaces the model.
    pub model: Option<Label>,
    /// Replaces the thinking level.
    pub thinking: Option<Label>,
}
