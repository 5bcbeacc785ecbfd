//! The script of a rehearsal: its shape, and how it is read.
//!
//! Owns what a file may say, and the words about one that says something else. It must never know a run: what
//! a turn becomes in one is not decided here.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use model::JsonText;
use model::input::FailureKind;
use model::message::{StopReason, Usage};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use super::variables;

/// The most bytes of a script.
pub const SCRIPT_BYTES_MAX: u64 = 16 << 20;

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// There is no such file.
    #[error("no rehearsal at {}; give the path of a script in --model rehearsal:FILE", path.display())]
    Gone {
        /// The absolute path.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("rehearsal {} cannot be read: {source}; give the path of a readable file", path.display())]
    Unreadable {
        /// The absolute path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file is larger than [`SCRIPT_BYTES_MAX`].
    #[error("rehearsal {} is larger than {SCRIPT_BYTES_MAX} bytes; shorten its texts", path.display())]
    TooLarge {
        /// The absolute path.
        path: PathBuf,
    },
    /// It is not a script.
    #[error("{place}: {reason}; correct the rehearsal and try again")]
    Invalid {
        /// `FILE:LINE:COLUMN`, both from 1; `rehearsal` for a script that comes from no file.
        place: String,
        /// What is wrong there.
        reason: String,
    },
}

/// What the model says, turn by turn.
#[derive(Debug)]
pub(super) struct Script {
    /// The turns, from 0.
    pub(super) turns: Vec<Turn>,
    /// What each turn after the last is; none if it fails.
    after: Option<Turn>,
}

/// One turn. Its strings may hold variables.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Turn {
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) calls: Vec<Call>,
    #[serde(deserialize_with = "stop_reason")]
    pub(super) stop: Option<StopReason>,
    #[serde(deserialize_with = "usage")]
    pub(super) usage: Option<Usage>,
    pub(super) delay_ms: u64,
    pub(super) chunk_chars: Option<NonZeroUsize>,
    pub(super) chunk_ms: u64,
    pub(super) fail: Vec<Fail>,
}

/// One tool call of a turn.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub(super) id: Option<String>,
    pub(super) tool: String,
    #[serde(default)]
    pub(super) args: Args,
}

/// Arguments of a call. Those without variables are made canonical once.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Map<String, Value>")]
pub(super) enum Args {
    /// The same in every run.
    Fixed(JsonText),
    /// A string in them holds a variable.
    Varying(Value),
}

/// The outcome of one attempt that fails.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fail {
    #[serde(deserialize_with = "failure_kind")]
    pub(super) kind: FailureKind,
    /// How much of the text arrives first.
    pub(super) after_chars: Option<usize>,
    pub(super) retry_after_ms: Option<u64>,
    #[serde(default)]
    pub(super) message: String,
}

impl Script {
    /// The script that a file holds.
    pub(super) fn from_slice(bytes: &[u8], path: &Path) -> Result<Self, ScriptError> {
        let draft: Draft = serde_json::from_slice(bytes).map_err(|error| {
            let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
            ScriptError::Invalid { place, reason: reason(&error) }
        })?;
        draft.complete(&path.display().to_string())
    }

    /// The script that a value holds.
    pub(super) fn from_value(value: &Value) -> Result<Self, ScriptError> {
        let place = "rehearsal";
        let draft = Draft::deserialize(value)
            .map_err(|error| ScriptError::Invalid { place: place.to_owned(), reason: reason(&error) })?;
        draft.complete(place)
    }

    /// The turn with this ordinal, if the script goes so far.
    pub(super) fn turn(&self, ordinal: u32) -> Option<&Turn> {
        usize::try_from(ordinal).ok().and_then(|at| self.turns.get(at)).or(self.after.as_ref())
    }
}

impl Default for Args {
    fn default() -> Self {
        Self::Fixed(JsonText::empty())
    }
}

impl From<Map<String, Value>> for Args {
    fn from(args: Map<String, Value>) -> Self {
        let args = Value::Object(args);
        let text = JsonText::from(&args);
        if variables::may_be_in(text.as_str()) { Self::Varying(args) } else { Self::Fixed(text) }
    }
}

/// The bytes of the script at an absolute path.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ScriptError> {
    let mut bytes = Vec::new();
    let size = File::open(path).and_then(|file| file.take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut bytes));
    let path = || path.to_owned();
    match size {
        Ok(size) if size as u64 > SCRIPT_BYTES_MAX => Err(ScriptError::TooLarge { path: path() }),
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ScriptError::Gone { path: path() }),
        Err(source) => Err(ScriptError::Unreadable { path: path(), source }),
    }
}

/// A script as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Draft {
    turns: Vec<Turn>,
    #[serde(default)]
    after: After,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum After {
    #[default]
    Fail,
    Stop,
    Repeat,
}

impl Draft {
    fn complete(self, place: &str) -> Result<Script, ScriptError> {
        let Self { turns, after } = self;
        let after = match after {
            After::Fail => None,
            After::Stop => Some(Turn { text: "done".to_owned(), ..Turn::default() }),
            After::Repeat => Some(turns.last().cloned().ok_or_else(|| ScriptError::Invalid {
                place: place.to_owned(),
                reason: "`after` is `repeat`, but there is no turn to repeat".to_owned(),
            })?),
        };
        Ok(Script { turns, after })
    }
}

fn stop_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StopReason>, D::Error> {
    named(deserializer, &[StopReason::Stop, StopReason::ToolUse, StopReason::Length], StopReason::name)
        .map(Some)
}

/// The kinds that a provider can answer with; the other two are for what goes wrong on this side.
fn failure_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FailureKind, D::Error> {
    let mut kinds = FailureKind::ALL.to_vec();
    kinds.retain(|kind| *kind != FailureKind::Script && *kind != FailureKind::Unknown);
    named(deserializer, &kinds, FailureKind::name)
}

/// One of `all`, by its name. The words about another name are those that derived code uses.
fn named<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, D::Error> {
    let given = String::deserialize(deserializer)?;
    all.iter().copied().find(|one| name(*one) == given).ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|one| format!("`{}`", name(*one))).collect();
        de::Error::custom(format!("unknown variant `{given}`, expected one of {}", names.join(", ")))
    })
}

/// Tokens as a script writes them. A rehearsal costs nothing.
fn usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Usage>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Tokens {
        input: u64,
        output: u64,
        cache_read: u64,
        cache_write: u64,
    }
    let Tokens { input, output, cache_read, cache_write } = Tokens::deserialize(deserializer)?;
    Ok(Some(Usage { input, output, cache_read, cache_write, usd_micros: 0 }))
}

/// What serde calls by its own names.
const WORDS: [(&str, &str); 4] = [
    ("unknown field", "unknown key"),
    ("missing field", "missing key"),
    ("duplicate field", "duplicate key"),
    ("unknown variant", "unknown value"),
];

/// What is wrong, without its place, and with the name that was probably meant instead of all that are known.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let rest = |(theirs, ours)| text.strip_prefix(theirs).map(|rest| (ours, rest));
    let Some((what, rest)) = WORDS.into_iter().find_map(rest) else { return text.to_owned() };
    let mut names = rest.split('`').skip(1).step_by(2);
    let name = names.next().unwrap_or_default();
    match nearest(name, names) {
        Some(meant) => format!("{what} `{name}`, did you mean `{meant}`?"),
        None => format!("{what}{rest}"),
    }
}

/// The name that shares most with `name` at its two ends, if that is more than half of both.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |other: &str| {
        let shorter = name.len().min(other.len());
        let head = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let tail = name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
        (head + tail).min(shorter)
    };
    known.filter(|other| likeness(other) * 4 > name.len() + other.len()).max_by_key(|other| likeness(other))
}
