//! The tool `write`: makes a file or replaces its content.
//!
//! Owns what the model is told of a write. It must never append, and never touch a file that has the content
//! already.

use async_trait::async_trait;
use model::ToolResult;
use model::guard::loops::ToolKind;
use model::input::RecoveryClass;
use serde::Deserialize;
use serde_json::json;

use super::blocking::{arguments, blocking};
use super::durable::{self, Change, Disk, Door, Site, Snapshot};
use super::workspace::{Target, Workspace, shown};
use super::{CallContext, Execution, Probe, Tool, ToolSpec};

/// The tool `write`.
pub(super) struct Write {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Args {
    path: String,
    content: String,
}

impl Write {
    /// The tool.
    pub(super) fn new() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, relative to the workspace or absolute"},
                "content": {"type": "string", "description": "The whole content"},
            },
            "required": ["path", "content"],
        });
        let description = "Write a file: make it, with the directories above it, or replace its content. \
                           The file is safe on disk when this answers.";
        let spec = ToolSpec::new("write", description, parameters).class(RecoveryClass::Probe);
        // One after another: a probe tells two writes of one file apart only if the second starts after the
        // first.
        Self { spec: ToolSpec { kind: ToolKind::Write, execution: Execution::Sequential, ..spec } }
    }
}

#[async_trait]
impl Tool for Write {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, |call| write(&Disk, call)).await
    }

    async fn probe(&self, call: &CallContext) -> Probe {
        durable::probe(call).await
    }
}

pub(super) fn write(door: &impl Door, call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let place = Workspace::open(&call.workspace)?.locate(&args.path)?;
    let path = shown(place.path());
    if *place.target() == Target::Directory {
        return Err(format!("`{path}` is a directory; name a file"));
    }
    let before = Snapshot::of(&place).map_err(|error| format!("cannot replace `{path}`: {error}"))?;
    let after = args.content.as_bytes();
    let is_changed = before.is_none_or(|before| before.hash != *blake3::hash(after).as_bytes());
    let bytes = after.len();
    let text = match (before, is_changed) {
        (_, false) => format!("`{path}` has this content already ({bytes} bytes); nothing was written"),
        (None, true) => format!("made `{path}` ({bytes} bytes)"),
        (Some(_), true) => format!("replaced `{path}` ({bytes} bytes)"),
    };
    let result = ToolResult::text(text).with_details(&json!({ "changed": is_changed }));
    durable::replace(door, &Site::of(call), Change { place, before, after, result })
}
