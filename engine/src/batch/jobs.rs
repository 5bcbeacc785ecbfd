//! Reading a file of jobs.
//!
//! Owns what a job line may hold, in each of its shapes, and where a bad one is bad: line, column, reason. It must never
//! start anything: a file is read whole before its first job runs.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use model::JsonText;
use serde_json::Value;

use super::Error;
use super::lines::{self, Reason};
use crate::job::Job;

/// The most bytes of one line: what fits into one record of the journal, with room for what stands beside it.
pub const LINE_BYTES_MAX: usize = 8 << 20;

/// A file of jobs as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobsFile {
    /// The jobs that can be run, in the file's order.
    pub jobs: Vec<BatchJob>,
    /// The lines that cannot.
    pub bad: Vec<BadLine>,
}

/// A job and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchJob {
    /// Its line, from 1.
    pub line: usize,
    /// Its id.
    pub custom_id: String,
    /// The job.
    pub job: Job,
}

/// A line that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The byte in it, from 1.
    pub column: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file.display(), self.line, self.column, self.reason)
    }
}

/// What jobs get that do not say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Name of the batch.
    pub batch: String,
    /// Where relative workspaces start.
    pub cwd: PathBuf,
    /// The model of lines in a provider's shape, in place of the provider's own name for it.
    pub model: Option<String>,
}

impl JobsFile {
    /// Reads a file of jobs.
    pub fn read(file: &Path, defaults: &Defaults) -> Result<Self, Error> {
        let bytes = std::fs::read(file).map_err(Error::unreadable(file))?;
        Ok(Self::parse(file, &bytes, defaults))
    }

    /// Reads the content of a file of jobs.
    pub fn parse(file: &Path, bytes: &[u8], defaults: &Defaults) -> Self {
        let mut out = Self::default();
        let mut line_of: HashMap<String, usize> = HashMap::new();
        for (line, bytes) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            match job(bytes, defaults) {
                Ok(job) => match line_of.get(&job.0) {
                    Some(first) => out.bad.push(BadLine {
                        file: file.to_owned(),
                        line,
                        column: 1,
                        reason: format!("custom_id `{}` is that of line {first} already", job.0),
                    }),
                    None => {
                        line_of.insert(job.0.clone(), line);
                        out.jobs.push(BatchJob { line, custom_id: job.0, job: job.1 });
                    }
                },
                Err(Reason { column, reason }) => {
                    out.bad.push(BadLine { file: file.to_owned(), line, column, reason });
                }
            }
        }
        out
    }
}

/// One line: its id and its job.
fn job(bytes: &[u8], defaults: &Defaults) -> Result<(String, Job), Reason> {
    if bytes.len() > LINE_BYTES_MAX {
        let reason = format!("the line has {} bytes, at most {LINE_BYTES_MAX} fit", bytes.len());
        return Err(Reason { column: LINE_BYTES_MAX, reason });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Reason { column: error.valid_up_to() + 1, reason: "not UTF-8".to_owned() })?;
    let value: Value = serde_json::from_str(text).map_err(Reason::of)?;
    if !value.is_object() {
        return Err(Reason { column: 1, reason: "expected an object, got another value".to_owned() });
    }
    let parsed = if lines::is_of_provider(&value) { lines::of_provider(text)? } else { lines::own(text)? };
    let custom_id = parsed.custom_id;
    let mut job = parsed.job;
    if let (Some(model), true) = (&defaults.model, lines::is_of_provider(&value)) {
        job.model = Some(model.clone());
    }
    job.workspace = job.workspace.map(|workspace| defaults.cwd.join(workspace));
    job.batch = Some(defaults.batch.clone());
    job.custom_id = Some(custom_id.clone());
    job.version = Some(version(&value));
    Ok((custom_id, job))
}

/// Hash of what a line says, however it is written.
fn version(value: &Value) -> [u8; 16] {
    let mut version = [0; 16];
    let mut hasher = blake3::Hasher::new();
    hasher.update(JsonText::from(value).as_str().as_bytes()).finalize_xof().fill(&mut version);
    version
}
