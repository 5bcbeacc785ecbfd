//! What a disk was told, in order.
//!
//! Owns the words for it, and nothing of what follows from it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::Content;

/// Where sled's files are, by name in the store's directory.
pub(crate) const STATE: &str = "state";

/// One thing that a disk was told.
#[derive(Clone, Debug)]
pub enum Told {
    /// A directory that was there before, and its files.
    Known(PathBuf, Vec<(String, Content)>),
    /// A directory is made, with those above it that are missing.
    MakeDir(PathBuf),
    /// An empty file is made, or an old one emptied.
    Make(PathBuf),
    /// Bytes are written.
    Write(PathBuf, u64, Arc<[u8]>),
    /// Zeros are written past the end, so that the file has this length.
    Extend(PathBuf, u64),
    /// The file gets this length.
    SetLen(PathBuf, u64),
    /// A file or directory is synced.
    Sync(PathBuf),
    /// One of sled's files is synced, with these bytes; or one of its directories.
    SyncState(PathBuf, Option<Arc<[u8]>>),
    /// A sync failed.
    FailedSync(PathBuf),
    /// A file gets another name in its directory.
    Rename(PathBuf, PathBuf),
    /// A file is removed.
    Remove(PathBuf),
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(path, files) => write!(f, "{} files of {}", files.len(), name(path)),
            Self::MakeDir(path) => write!(f, "make directory {}", name(path)),
            Self::Make(path) => write!(f, "make {}", name(path)),
            Self::Write(path, offset, bytes) => {
                write!(f, "write {} bytes at {offset} of {}", bytes.len(), name(path))
            }
            Self::Extend(path, len) => write!(f, "fill {} to {len}", name(path)),
            Self::SetLen(path, len) => write!(f, "cut {} to {len}", name(path)),
            Self::Sync(path) | Self::SyncState(path, _) => write!(f, "sync {}", name(path)),
            Self::FailedSync(path) => write!(f, "fail to sync {}", name(path)),
            Self::Rename(from, to) => write!(f, "rename {} to {}", name(from), name(to)),
            Self::Remove(path) => write!(f, "remove {}", name(path)),
        }
    }
}

impl Told {
    /// The path that is synced, if this is a sync.
    pub fn synced(&self) -> Option<&Path> {
        match self {
            Self::Sync(path) | Self::SyncState(path, _) => Some(path),
            Self::Known(..)
            | Self::MakeDir(_)
            | Self::Make(_)
            | Self::Write(..)
            | Self::Extend(..)
            | Self::SetLen(..)
            | Self::FailedSync(_)
            | Self::Rename(..)
            | Self::Remove(_) => None,
        }
    }
}

/// The path leads into sled's files.
pub fn is_of_state(path: &Path) -> bool {
    path.components().any(|component| component.as_os_str() == STATE)
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
