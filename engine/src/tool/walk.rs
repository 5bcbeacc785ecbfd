//! The files below a directory of the workspace, in a fixed order, without those that `.gitignore` names.
//!
//! Owns what `grep` and `find` see. It must never follow a link, and never read an ignore file outside of the
//! workspace: the same workspace gives the same files on every machine.

use std::path::{Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};

use super::CallContext;
use super::blocking::refuse_if_cancelled;
use super::workspace::Workspace;

/// Something below the directory.
pub(super) struct Found {
    /// Where it is below the workspace.
    pub(super) path: PathBuf,
    /// Where it is below the directory.
    pub(super) below: PathBuf,
    /// It is a directory.
    pub(super) is_dir: bool,
    /// It is a regular file.
    pub(super) is_file: bool,
}

/// Hands everything below `dir`, a path below the workspace without links, to `each` until that says to stop.
pub(super) fn walk(
    call: &CallContext,
    workspace: &Workspace,
    dir: &Path,
    mut each: impl FnMut(Found) -> Result<Go, String>,
) -> Result<(), String> {
    let target = workspace.path().join(dir);
    let mut visit = |from: &Path| {
        let mut is_reached = false;
        for entry in entries(from, &target) {
            refuse_if_cancelled(call)?;
            // What cannot be read is left out, as if it were ignored.
            let Ok(entry) = entry else { continue };
            is_reached = is_reached || entry.path() == target;
            let Some(found) = found(&entry, workspace.path(), &target) else { continue };
            if each(found)? == Go::Stop {
                break;
            }
        }
        Ok::<bool, String>(is_reached)
    };
    // From the workspace down, so that the ignore files above the directory count; but a directory that is
    // itself ignored was named on purpose.
    if !visit(workspace.path())? {
        visit(&target)?;
    }
    Ok(())
}

/// Whether a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// To the next file.
    On,
    /// No further.
    Stop,
}

fn entries(from: &Path, target: &Path) -> ignore::Walk {
    let target = target.to_owned();
    WalkBuilder::new(from)
        .hidden(false)
        .parents(false)
        .git_global(false)
        .git_exclude(false)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(|a, b| a.cmp(b))
        .filter_entry(move |entry| {
            let is_on_the_way = entry.path().starts_with(&target) || target.starts_with(entry.path());
            is_on_the_way && (entry.depth() == 0 || entry.file_name() != ".git")
        })
        .build()
}

fn found(entry: &DirEntry, workspace: &Path, target: &Path) -> Option<Found> {
    let below = entry.path().strip_prefix(target).ok().filter(|below| !below.as_os_str().is_empty())?;
    let path = entry.path().strip_prefix(workspace).ok()?;
    let kind = entry.file_type()?;
    Some(Found {
        path: path.to_owned(),
        below: below.to_owned(),
        is_dir: kind.is_dir(),
        is_file: kind.is_file(),
    })
}
