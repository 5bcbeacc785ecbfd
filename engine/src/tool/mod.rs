//! Tools: what the engine asks of a tool, and the tools that live in the process.
//!
//! Owns the seam between the loop and a tool. A tool must never decide whether it may run again after a crash: its
//! declared recovery class does.

pub(crate) mod bash;
mod blob;
mod blocking;
pub mod builtin;
mod coerce;
mod diff;
mod durable;
mod edit;
mod find;
mod grep;
mod ls;
pub mod output;
mod read;
pub mod registry;
#[cfg(test)]
mod tests;
pub mod validate;
mod walk;
pub mod workspace;
mod write;

use std::path::PathBuf;

use async_trait::async_trait;
use model::guard::loops::ToolKind;
use model::input::RecoveryClass;
use model::{RunId, ToolResult};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What a tool says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name by which a model calls it, unique in a run.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether its calls may run beside others.
    pub execution: Execution,
    /// What the loop detectors must know of it: whether it runs commands, polls, writes or sends.
    pub kind: ToolKind,
    /// What may be done about a call after a crash.
    pub class: RecoveryClass,
    /// Its results hold content from the network.
    pub is_network: bool,
}

impl ToolSpec {
    /// A tool with the defaults of one that declares nothing: beside others, never again after a crash, and of the kind
    /// that the loop detectors' reference gives to its name, plain for most.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        let name = name.into();
        let kind = ToolKind::of_reference_name(&detector_name(&name));
        Self {
            name,
            description: description.into(),
            parameters,
            execution: Execution::Parallel,
            kind,
            class: RecoveryClass::AtMostOnce,
            is_network: false,
        }
    }

    /// The same as another kind of tool: a tool of a server elsewhere may poll too.
    pub fn kind(self, kind: ToolKind) -> Self {
        Self { kind, ..self }
    }

    /// The same with another recovery class.
    pub fn class(self, class: RecoveryClass) -> Self {
        Self { class, ..self }
    }
}

/// The name under which the loop detectors know a tool.
pub(crate) fn detector_name(name: &str) -> String {
    let name = name.trim().to_lowercase();
    match name.as_str() {
        "" => "tool".to_owned(),
        "bash" => "exec".to_owned(),
        "apply-patch" => "apply_patch".to_owned(),
        "cron" => "automations".to_owned(),
        _ => name,
    }
}

/// Whether a tool's calls may run beside others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// They may.
    #[default]
    Parallel,
    /// A batch with such a call runs one after another.
    Sequential,
}

/// One call, ready to run.
#[derive(Debug)]
pub struct CallContext {
    /// The run.
    pub run: RunId,
    /// The call's id in the transcript.
    pub call_id: String,
    /// The same for every try of this call, and for no other call: `RUN/TURN.N`.
    pub idempotency_key: String,
    /// The arguments, validated and coerced.
    pub args: Value,
    /// The directory that the tool works in; paths are confined to it.
    pub workspace: PathBuf,
    /// A directory of this call alone that outlives the engine and is removed once the result is durable; none for an
    /// engine without a directory. The tool creates it when it needs it.
    pub scratch: Option<PathBuf>,
    /// The most bytes of text that the result may hold.
    pub output_bytes_max: usize,
    /// The most bytes of output that a command's supervisor writes to disk in whole; of more it keeps the ends.
    pub output_spool_bytes_max: u64,
    /// The longest that the call may take, in seconds; 0 for no limit.
    pub timeout_s: u64,
    /// Epoch of the engine that owns the run.
    pub epoch: u64,
    /// The call was started on another boot of the machine: the absence of a trace proves nothing.
    pub is_of_other_boot: bool,
    /// Cancelled when the run is.
    pub cancel: CancellationToken,
    /// Takes partial results while the tool runs; dropped when nobody listens.
    pub updates: mpsc::Sender<ToolResult>,
}

/// What became of a call that crashed, as far as its tool can tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe {
    /// It had its effect; this is its result.
    Ran(ToolResult),
    /// It had no effect: it may run again.
    DidNotRun,
    /// It still runs, outside of the engine: to run it again is to wait for its end.
    Running,
    /// Nobody can tell.
    Unknown,
}

/// A tool that was looked at before it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Preparation {
    /// It may run with these arguments (they are validated next).
    Args(Value),
    /// It answers without running.
    Immediate(ToolResult),
}

/// A tool that lives in the engine's process.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What it says of itself; constant.
    fn spec(&self) -> &ToolSpec;

    /// Turns raw arguments into those that are validated. `Err` is the text of the call's error result.
    fn prepare(&self, args: Value) -> Result<Preparation, String> {
        Ok(Preparation::Args(args))
    }

    /// Runs. `Err` is the text of the call's error result; it is never a failure of the engine.
    async fn run(&self, call: CallContext) -> Result<ToolResult, String>;

    /// The same for a tool of recovery class `Adoptable`, whose work may be lost while the engine lives: it answers none
    /// when nobody can know any more what became of the call.
    async fn run_to_end(&self, call: CallContext) -> Option<Result<ToolResult, String>> {
        Some(self.run(call).await)
    }

    /// For recovery classes `Probe` and `Adoptable`: what became of a call that may have run.
    async fn probe(&self, _call: &CallContext) -> Probe {
        Probe::Unknown
    }
}
