//! The log of calls: one line for each call that a real provider would have billed.
//!
//! Owns the line and the way it reaches the disk. It must never report a line as written before it is synced.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use model::RunId;
use serde::Serialize;

use super::plan::Plan;
use crate::provider::Request;

/// One line to come.
#[derive(Debug)]
pub(super) struct Entry {
    path: PathBuf,
    run: RunId,
    turn: u32,
    attempt: u32,
    request: blake3::Hash,
    outcome: &'static str,
}

impl Entry {
    /// The line for `request`, whose hash is `hash`.
    pub(super) fn new(path: &Path, request: &Request, hash: [u8; 32], plan: &Plan) -> Self {
        Self {
            path: path.to_owned(),
            run: request.origin.run,
            turn: request.turn,
            attempt: request.attempt,
            request: blake3::Hash::from_bytes(hash),
            outcome: plan.outcome(),
        }
    }

    /// Writes the line and syncs it. It goes out in one write at the end of the file, so processes may share
    /// the file.
    pub(super) async fn append(self: Box<Self>) -> io::Result<()> {
        tokio::task::spawn_blocking(move || {
            let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            file.write_all(&self.line()?)?;
            file.sync_data()
        })
        .await
        .map_err(io::Error::other)?
    }

    fn line(&self) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Line<'a> {
            run: &'a str,
            turn: u32,
            attempt: u32,
            request: &'a str,
            outcome: &'a str,
        }
        let mut line = serde_json::to_vec(&Line {
            run: &self.run.to_string(),
            turn: self.turn,
            attempt: self.attempt,
            request: &self.request.to_hex(),
            outcome: self.outcome,
        })?;
        line.push(b'\n');
        Ok(line)
    }
}
