//! The tool `find`: finds files and directories by name.
//!
//! Owns how a glob is matched. It must never show what the walk leaves out.

use async_trait::async_trait;
use globset::GlobBuilder;
use model::ToolResult;
use model::input::RecoveryClass;
use serde::Deserialize;
use serde_json::json;

use super::blocking::{arguments, blocking};
use super::walk::{Go, walk};
use super::workspace::{Target, Workspace, shown};
use super::{CallContext, Tool, ToolSpec};

/// The paths that are shown when the call names no limit.
const LIMIT_DEFAULT: usize = 1000;

/// The tool `find`.
pub(super) struct Find {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Args {
    pattern: String,
    path: Option<String>,
    limit: Option<usize>,
}

impl Find {
    /// The tool.
    pub(super) fn new() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "pattern": {
                    "type": "string",
                    "description": "Glob, such as *.rs for names or src/**/*.rs for paths",
                },
                "path": {"type": "string", "description": "Directory to search; default the workspace"},
                "limit": {"type": "integer", "minimum": 1, "description": "Most paths to show; default 1000"},
            },
            "required": ["pattern"],
        });
        let description = "Find files and directories by a glob, sorted, without what .gitignore names. \
                           Directories end in /.";
        Self { spec: ToolSpec::new("find", description, parameters).class(RecoveryClass::ReadOnly) }
    }
}

#[async_trait]
impl Tool for Find {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, find).await
    }
}

fn find(call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let glob = GlobBuilder::new(&args.pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| format!("the pattern is not a glob: {error}; escape special characters with \\"))?
        .compile_matcher();
    let workspace = Workspace::open(&call.workspace)?;
    let place = workspace.locate(args.path.as_deref().unwrap_or("."))?;
    let path = shown(place.path());
    match place.target() {
        Target::Directory => {}
        Target::Entry(_) => return Err(format!("`{path}` is not a directory; name one to search in")),
        Target::Missing(_) => return Err(format!("`{path}` does not exist; use ls to see what does")),
    }
    let limit = args.limit.unwrap_or(LIMIT_DEFAULT);
    let by_path = args.pattern.contains('/');
    let mut lines = Vec::new();
    let mut is_cut = false;
    walk(call, &workspace, place.path(), |found| {
        let is_match = match found.below.file_name().filter(|_| !by_path) {
            Some(name) => glob.is_match(name),
            None => glob.is_match(&found.below),
        };
        if !is_match {
            return Ok(Go::On);
        }
        if lines.len() >= limit {
            is_cut = true;
            return Ok(Go::Stop);
        }
        let mark = if found.is_dir { "/" } else { "" };
        lines.push(format!("{}{mark}", found.path.to_string_lossy()));
        Ok(Go::On)
    })?;
    if lines.is_empty() {
        return Ok(ToolResult::text("[nothing matches]"));
    }
    let mut text = lines.join("\n");
    if is_cut {
        text.push_str(&format!(
            "\n\n[{limit} paths are shown and there are more; refine pattern or raise limit]"
        ));
    }
    Ok(ToolResult::text(text))
}
