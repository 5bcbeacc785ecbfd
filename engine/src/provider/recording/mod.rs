//! Recordings: the model calls of one run as files, and the provider that plays them.
//!
//! Owns the form of the files. It must never hold a key, and never be needed by the run that is recorded.
//!
//! ```text
//! DIR/MODEL/model.json                  the model, and what the recorded run alone has
//! DIR/MODEL/TURN.ATTEMPT.request.json   what was asked: the body as it was sent, set out in lines
//! DIR/MODEL/TURN.ATTEMPT.response       what was answered, or nothing if no response came:
//!
//! sprag response 1
//! status 200
//! content-type: text/event-stream       headers that say something of the answer
//!                                       (an empty line, then the body, byte for byte)
//! ```
//!
//! A call that is made again, because an engine died with it, takes the place of the first.

mod difference;
mod mask;
mod neutral;
mod record;
mod replay;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::Origin;
use super::http::Headers;
use crate::config::Model;

pub(super) use record::{RecordTap, SeamTap};
pub(super) use replay::Tape;
pub use replay::{RecordingError, Replay};

/// The version of the files' form.
const FORMAT: u32 = 1;

/// The first line of a response.
const RESPONSE_MARK: &str = "sprag response 1";

/// The name of the file that says which model was recorded.
const CAST: &str = "model.json";

/// The most bytes of a file that are read: more than any request or response has.
const FILE_BYTES_MAX: u64 = 160 << 20;

/// Headers that say something of an answer, beside those about rate limits. No other one is kept: a cookie is
/// a secret too.
const HEADERS: [&str; 9] = [
    "content-type",
    "content-encoding",
    "date",
    "retry-after",
    "retry-after-ms",
    "request-id",
    "x-request-id",
    "x-oai-request-id",
    "cf-ray",
];

/// Where the calls of one run are recorded.
#[derive(Debug, PartialEq, Eq)]
pub struct Recording {
    dir: PathBuf,
    run: RunNames,
    /// Why something is missing in it.
    lost: OnceLock<String>,
}

/// Who speaks in a recording: what a replay must know to ask the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cast {
    format: u32,
    /// The run that was recorded.
    run: RunNames,
    /// The model, without what is said of its keys.
    model: Model,
}

/// What a run's requests may hold that is of this run alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunNames {
    id: String,
    session: String,
    workspace: String,
}

/// The place of a call in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    turn: u32,
    attempt: u32,
}

/// A response that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    status: u16,
    headers: Headers,
    body: Vec<u8>,
}

impl Recording {
    /// The recording of a run in a directory.
    pub(crate) fn new(dir: PathBuf, origin: &Origin) -> Self {
        Self { dir, run: RunNames::of(origin), lost: OnceLock::new() }
    }

    /// Why something is missing in it; none as long as nothing is.
    pub fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Something is missing from now on.
    pub(super) fn lose(&self, error: &io::Error) {
        let dir = self.dir.display();
        if self.lost.set(error.to_string()).is_ok() {
            tracing::warn!(run = self.run.id, %dir, %error, "the run is not recorded any more; it goes on");
        }
    }

    /// The directory of one model's calls; made, if it is not there.
    fn open(&self, name: &str, model: &Model) -> io::Result<PathBuf> {
        let dir = self.dir.join(file_name(name));
        match Cast::read(&dir) {
            Ok(cast) if cast.run.id == self.run.id => {}
            Ok(_) => return Err(io::Error::other("the directory holds the recording of another run")),
            // One that a crash has left half written is written again.
            Err(_) => self.cast(model).write(&dir)?,
        }
        Ok(dir)
    }

    fn cast(&self, model: &Model) -> Cast {
        let model = Model {
            base_url: model.base_url.as_deref().map(without_secrets),
            profiles: Vec::new(),
            api_key_env: None,
            file: None,
            ..model.clone()
        };
        Cast { format: FORMAT, run: self.run.clone(), model }
    }
}

impl Cast {
    fn read(dir: &Path) -> io::Result<Self> {
        let cast: Self = serde_json::from_slice(&read(&dir.join(CAST))?)?;
        match cast.format {
            FORMAT => Ok(cast),
            format => Err(io::Error::other(format!("it has format {format}, and {FORMAT} is expected"))),
        }
    }

    fn write(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(CAST), format!("{:#}\n", serde_json::to_value(self)?))
    }
}

impl RunNames {
    fn of(origin: &Origin) -> Self {
        let Origin { run, session, workspace, .. } = origin;
        Self { id: run.to_string(), session: session.clone(), workspace: workspace.clone() }
    }
}

impl Place {
    fn request(self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.{}.request.json", self.turn, self.attempt))
    }

    fn response(self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.{}.response", self.turn, self.attempt))
    }
}

impl Recorded {
    /// Everything before the body.
    fn head(status: u16, headers: &Headers) -> String {
        let mut head = format!("{RESPONSE_MARK}\nstatus {status}\n");
        for (name, value) in headers.all().filter(|(name, _)| is_kept(name)) {
            // Writing to a string cannot fail.
            let _ = writeln!(head, "{name}: {value}");
        }
        head.push('\n');
        head
    }

    /// The response that a file holds; none if it has no whole head.
    fn of(mut bytes: Vec<u8>) -> Option<Self> {
        let end = bytes.windows(2).position(|pair| pair == b"\n\n")?;
        let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let mut lines = head.lines();
        lines.next().filter(|mark| *mark == RESPONSE_MARK)?;
        let status = lines.next()?.strip_prefix("status ")?.parse().ok()?;
        let headers = lines.map(|line| line.split_once(": ")).collect::<Option<Vec<_>>>()?;
        let headers = Headers::of(&headers);
        bytes.drain(..end + 2);
        Some(Self { status, headers, body: bytes })
    }
}

fn is_kept(name: &str) -> bool {
    HEADERS.contains(&name) || name.contains("ratelimit")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A model's name as that of a directory: what is not a letter, a digit, `-`, `_` or a dot within is spelled
/// by its number, so that two names never meet.
fn file_name(name: &str) -> String {
    let mut out = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(char::from(byte)),
            b'.' if at > 0 => out.push('.'),
            // Writing to a string cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// An address without a user, a password or a query, any of which may be a key.
fn without_secrets(base: &str) -> String {
    let Ok(mut url) = Url::parse(base) else { return String::new() };
    // Only an address that can have neither refuses.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}
