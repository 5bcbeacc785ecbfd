//! Workspaces of the engine's own: `DIR/work/H` for a job of a batch that names none.
//!
//! Owns their making. One is made before its run leaves the queue, and its name is durable before any tool works in
//! it; one that is gone later is never made again: its run parks, because its files are gone too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// The directory of all of them.
#[derive(Debug)]
pub(crate) struct Workspaces {
    root: PathBuf,
    /// How many were made since the engine was opened.
    made: AtomicU64,
    /// How many of these have a durable name. Whoever holds it syncs for all that were made before.
    synced: Mutex<u64>,
}

impl Workspaces {
    /// Those of the engine in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { root: dir.join("work"), made: AtomicU64::new(0), synced: Mutex::new(0) }
    }

    /// Makes a workspace, unless it is somebody else's directory. Once it returns, the name is durable.
    pub(crate) async fn make(&self, workspace: &Path) -> io::Result<()> {
        if workspace.parent() != Some(&self.root) {
            return Ok(());
        }
        if !self.root.is_dir() {
            std::fs::create_dir_all(&self.root)?;
            self.root.parent().map_or(Ok(()), sync_dir)?;
        }
        match std::fs::create_dir(workspace) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let own = self.made.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.synced.lock().await;
        if *synced < own {
            let made = self.made.load(Ordering::Acquire);
            let root = self.root.clone();
            tokio::task::spawn_blocking(move || sync_dir(&root)).await.map_err(io::Error::other)??;
            *synced = made;
        }
        Ok(())
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}
