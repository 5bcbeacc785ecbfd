//! The tool `ls`: shows what a directory holds.
//!
//! Owns the listing. It must never leave out a name because of how it begins or what ignores it: a listing
//! that hides files makes a model write them again.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use async_trait::async_trait;
use model::ToolResult;
use model::input::RecoveryClass;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use serde::Deserialize;
use serde_json::json;

use super::blocking::{arguments, blocking, refuse_if_cancelled};
use super::workspace::{Place, Target, Workspace, shown};
use super::{CallContext, Tool, ToolSpec};

/// The names that are shown when the call names no limit.
const LIMIT_DEFAULT: usize = 500;

/// The tool `ls`.
pub(super) struct Ls {
    spec: ToolSpec,
}

#[derive(Deserialize)]
struct Args {
    path: Option<String>,
    limit: Option<usize>,
}

impl Ls {
    /// The tool.
    pub(super) fn new() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Directory to list; default the workspace"},
                "limit": {"type": "integer", "minimum": 1, "description": "Most names to show; default 500"},
            },
        });
        let description = "List a directory, sorted by name, hidden and ignored names too. \
                           Directories end in /, symbolic links in @.";
        Self { spec: ToolSpec::new("ls", description, parameters).class(RecoveryClass::ReadOnly) }
    }
}

#[async_trait]
impl Tool for Ls {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        blocking(call, ls).await
    }
}

fn ls(call: &CallContext) -> Result<ToolResult, String> {
    let args: Args = arguments(call)?;
    let place = Workspace::open(&call.workspace)?.locate(args.path.as_deref().unwrap_or("."))?;
    let path = shown(place.path());
    match place.target() {
        Target::Directory => {}
        Target::Entry(_) => return Err(format!("`{path}` is not a directory; use read to see it")),
        Target::Missing(_) => return Err(format!("`{path}` does not exist; use find to look for it")),
    }
    let mut names = names(call, &place)?.map_err(|error| format!("cannot list `{path}`: {error}"))?;
    names.sort();
    let total = names.len();
    let limit = args.limit.unwrap_or(LIMIT_DEFAULT);
    if total == 0 {
        return Ok(ToolResult::text("[the directory is empty]"));
    }
    let shown_names: Vec<String> =
        names.iter().take(limit).map(|(name, mark)| format!("{}{mark}", name.to_string_lossy())).collect();
    let mut text = shown_names.join("\n");
    if total > limit {
        text.push_str(&format!("\n\n[{limit} of {total} names are shown; raise limit to see more]"));
    }
    Ok(ToolResult::text(text))
}

/// The names with the mark of their kind. The outer error is a cancelled call.
fn names(call: &CallContext, place: &Place) -> Result<io::Result<Vec<(OsString, &'static str)>>, String> {
    let listing = match place.dir().and_then(|dir| Ok((dir, Dir::read_from(dir)?))) {
        Ok(listing) => listing,
        Err(error) => return Ok(Err(error)),
    };
    let (dir, entries) = listing;
    let mut names = Vec::new();
    for entry in entries {
        refuse_if_cancelled(call)?;
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(Err(error.into())),
        };
        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
        if [b".".as_slice(), b".."].contains(&name.as_bytes()) {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            let stat = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
            kind = stat.map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode));
        }
        let mark = if kind == FileType::Directory {
            "/"
        } else if kind == FileType::Symlink {
            "@"
        } else {
            ""
        };
        names.push((name, mark));
    }
    Ok(Ok(names))
}
