//! The replay model: what a server once answered, to the requests that it once got.
//!
//! Owns the comparison of each request with the recorded one. It must never answer a request that differs,
//! and never use the network: what it answers is read like a response that arrives, byte for byte.

use std::fmt::Display;
use std::io;
use std::path::{self, Path, PathBuf};
use std::time::Duration;

use futures_util::stream::BoxStream;
use model::input::{Failure, FailureKind};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::neutral::Neutral;
use super::{CAST, Cast, Place, Recorded, RunNames, difference, read};
use crate::job::ModelFacts;
use crate::provider::call::{Call, Plan, Respondent};
use crate::provider::endpoint::{Endpoint, sent_tokens};
use crate::provider::fault::Fault;
use crate::provider::http::Incoming;
use crate::provider::watchdog::Watchdog;
use crate::provider::{Intent, ModelProvider, Request, StreamEvent};

/// Why a recording cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// There is none.
    #[error("no recording in {}; make one with `sprag run --record DIR`", path.display())]
    Gone {
        /// The absolute path.
        path: PathBuf,
    },
    /// More than one model was recorded.
    #[error("{} has the recordings of several models; name one of: {}", path.display(), names.join(", "))]
    Several {
        /// The absolute path.
        path: PathBuf,
        /// The names of the directories below it.
        names: Vec<String>,
    },
    /// It cannot be read.
    #[error("recording {} cannot be read: {reason}; record again", path.display())]
    Unreadable {
        /// The absolute path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A model that says what it said when a run was recorded.
#[derive(Debug)]
pub struct Replay {
    /// Absolute.
    dir: PathBuf,
    cast: Cast,
    endpoint: Endpoint,
}

impl Replay {
    /// The recording in a directory: of the one model in it, or of the model whose directory it is.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let unreadable = |path: &Path, reason: String| {
            let path = path.to_owned();
            RecordingError::Unreadable { path, reason }
        };
        let absolute = path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let dir = only_model(absolute.canonicalize().unwrap_or(absolute))?;
        let cast = Cast::read(&dir).map_err(|error| unreadable(&dir, error.to_string()))?;
        let endpoint = Endpoint::new(cast.model.clone()).map_err(|reason| unreadable(&dir, reason))?;
        Ok(Self { dir, cast, endpoint })
    }
}

/// The directory with the calls of the one model that was recorded.
fn only_model(path: PathBuf) -> Result<PathBuf, RecordingError> {
    if path.join(CAST).exists() {
        return Ok(path);
    }
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(RecordingError::Gone { path }),
        Err(error) => return Err(RecordingError::Unreadable { path, reason: error.to_string() }),
    };
    let dirs = entries.flatten().map(|entry| entry.path()).filter(|dir| dir.join(CAST).exists());
    let mut dirs: Vec<PathBuf> = dirs.collect();
    dirs.sort();
    match dirs.len() {
        0 | 1 => dirs.pop().ok_or(RecordingError::Gone { path }),
        _ => {
            let names = dirs.iter().map(|dir| dir.display().to_string()).collect();
            Err(RecordingError::Several { path, names })
        }
    }
}

impl ModelProvider for Replay {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        self.endpoint.intent(request)
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let outgoing = match self.endpoint.outgoing(&request) {
            Ok(outgoing) => outgoing,
            Err(fault) => return self.endpoint.refusal(fault),
        };
        let tape = Tape {
            dir: self.dir.clone(),
            place: Place { turn: request.turn, attempt: request.attempt },
            neutral: Neutral::new([&self.cast.run, &RunNames::of(&request.origin)]),
        };
        let plan = Plan {
            speaker: self.endpoint.speaker.clone(),
            sent: sent_tokens(&request, &outgoing.body),
            outgoing,
            price: self.endpoint.model.price.clone(),
            respondent: Respondent::Recording(tape),
            background: None,
            watchdog: Watchdog::new(Duration::ZERO),
            tap: None,
        };
        Call::new(plan, abort).into_stream()
    }

    fn facts(&self) -> Option<ModelFacts> {
        Some(self.endpoint.facts())
    }

    /// A file does not fall silent.
    fn idle_timeout(&self) -> Option<Duration> {
        None
    }

    /// The directory and the run that was recorded in it: a resumed replay goes on with the same recording.
    fn identity(&self) -> String {
        format!("{}#{}", self.dir.display(), self.cast.run.id)
    }
}

/// The recording of one call.
#[derive(Debug)]
pub(in crate::provider) struct Tape {
    dir: PathBuf,
    place: Place,
    neutral: Neutral,
}

impl Tape {
    /// What was answered to the request with this body, if it is the recorded one.
    pub(in crate::provider) async fn play(self, body: Vec<u8>) -> Result<Incoming, Fault> {
        let played = tokio::task::spawn_blocking(move || {
            self.compare(&body)?;
            self.response()
        });
        let Recorded { status, headers, body } =
            played.await.map_err(|error| script(format!("the recording was not read: {error}")))??;
        Ok(Incoming::recorded(status, headers, body))
    }

    fn compare(&self, body: &[u8]) -> Result<(), Fault> {
        let path = self.place.request(&self.dir);
        let Place { turn, attempt } = self.place;
        let recorded = match read(&path) {
            Ok(recorded) => recorded,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (dir, calls) = (self.dir.display(), self.calls());
                let words = format!("call {turn}.{attempt} was not recorded: {dir} has no more than {calls}");
                return Err(script(format!("{words}; record again")));
            }
            Err(error) => return Err(unreadable(&path, error)),
        };
        let mut recorded: Value =
            serde_json::from_slice(&recorded).map_err(|error| unreadable(&path, error))?;
        let mut present: Value = serde_json::from_slice(body).map_err(|error| unreadable(&path, error))?;
        self.neutral.of(&mut recorded);
        self.neutral.of(&mut present);
        match difference::first(&recorded, &present) {
            None => Ok(()),
            Some(difference) => Err(script(format!(
                "call {turn}.{attempt} differs at {difference}; see {}, and record again if this is meant",
                path.display()
            ))),
        }
    }

    /// A call that has no response had no connection.
    fn response(&self) -> Result<Recorded, Fault> {
        let path = self.place.response(&self.dir);
        match read(&path) {
            Ok(bytes) => Recorded::of(bytes)
                .ok_or_else(|| script(format!("{} is no recorded response; record again", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Fault::new(FailureKind::Connection, "no response to this call was recorded"))
            }
            Err(error) => Err(unreadable(&path, error)),
        }
    }

    /// How many calls there are, in words.
    fn calls(&self) -> String {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        match names.filter(|name| name.ends_with(".request.json")).count() {
            1 => "1 call".to_owned(),
            count => format!("{count} calls"),
        }
    }
}

fn unreadable(path: &Path, error: impl Display) -> Fault {
    script(format!("{} cannot be read: {error}; record again", path.display()))
}

/// What goes wrong with a recording is nothing that another try or another model could mend.
fn script(words: String) -> Fault {
    Fault::new(FailureKind::Script, words)
}
