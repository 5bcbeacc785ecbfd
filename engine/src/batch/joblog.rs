//! The joblog: one line a job that has ended, in the columns of GNU parallel's `--joblog`.
//!
//! Owns these columns. The file follows from the result lines alone: it is written again at each start, so nothing of it
//! has to survive a crash.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use chrono::DateTime;

use super::Error;
use super::ending::ResultLine;

const HEAD: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";

/// A joblog.
#[derive(Debug)]
pub(super) struct JobLog {
    path: PathBuf,
    file: File,
}

impl JobLog {
    /// Starts the file again.
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let mut file = File::create(path).map_err(Error::file("write", path))?;
        file.write_all(HEAD.as_bytes()).map_err(Error::file("write", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Adds a job. `seq` is its ordinal among the jobs of the file, from 1; 0 if it is not there any more.
    pub(super) fn append(&mut self, seq: usize, result: &ResultLine) -> Result<(), Error> {
        self.file.write_all(row(seq, result).as_bytes()).map_err(Error::file("write", &self.path))
    }

    /// Makes it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The work is done in this process, which parallel calls `:`; nothing is sent, and the text is received.
fn row(seq: usize, result: &ResultLine) -> String {
    let (started, ended) = (seconds(result.started_at.as_deref()), seconds(result.ended_at.as_deref()));
    let exit = match result.outcome.as_str() {
        "completed" => 0,
        "cancelled" => 5,
        "timed_out" => 6,
        _ => 1,
    };
    let command = result.custom_id.replace(['\t', '\n', '\r'], " ");
    let (runtime, received) = (ended - started, result.text.len());
    format!("{seq}\t:\t{started:.3}\t{runtime:10.3}\t0\t{received}\t{exit}\t0\t{command}\n")
}

fn seconds(time: Option<&str>) -> f64 {
    let time = time.and_then(|time| DateTime::parse_from_rfc3339(time).ok());
    time.map_or(0.0, |time| time.timestamp_millis() as f64 / 1000.0)
}
