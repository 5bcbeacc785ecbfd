//! Configuration: the typed settings a run starts with.
//!
//! Owns the shape of every setting, its default, and the snapshot that a run keeps. It holds no secret: keys
//! are *named* here (a variable, a command) and fetched elsewhere. Nothing in it reads the process's own
//! environment except [`Environment::of_process`].
//!
//! [`load`] merges the layers; [`Loaded::origin`] tells where a value comes from. The keys themselves, with
//! the way each is read, are one table in `schema.rs`: adding a key is a field here and a row there.

mod complete;
mod draft;
mod environment;
mod error;
mod layers;
mod position;
mod prices;
mod schema;
mod snapshot;
mod unknown;
mod usd;
mod value;

#[cfg(test)]
mod tests;

use model::guard::retry::ThinkingLevel;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

pub use draft::FILE_BYTES_MAX;
pub use environment::{Environment, data_dir};
pub use error::{Error, Mistake};
pub use layers::{Loaded, Overrides, files, load};
pub use position::Origin;
pub use snapshot::SnapshotHash;
pub(crate) use unknown::quoted;
pub use usd::Usd;

/// The longest duration a setting may have: ten years. It keeps `now + duration` far from overflow.
pub const SECONDS_MAX: u64 = 10 * 365 * 24 * 3600;

/// The bounds of `tools.NAME.output_bytes_max`: room for the note of what was cut, and one journal frame.
pub const OUTPUT_BYTES: std::ops::RangeInclusive<u64> = 1024..=16 << 20;

/// The most models that `defaults.fallback` may name.
pub const FALLBACKS_MAX: usize = 16;

/// The bounds of `tools.NAME.output_spool_bytes_max`: a page, and one terabyte.
pub const OUTPUT_SPOOL_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 40;

/// All settings. Cloning it costs four reference counts; a clone never sees a later change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[models.NAME]`: what `--model NAME` means.
    pub models: Arc<BTreeMap<String, Model>>,
    /// `[profiles.NAME]`: where the key of an account is found. Not part of a snapshot: a command may hold a
    /// secret, and a key that moved while a run slept must be found where it is now.
    #[serde(skip)]
    pub profiles: Arc<BTreeMap<String, Profile>>,
    /// `[defaults]`: what a job gets that does not say otherwise.
    pub defaults: Arc<Defaults>,
    /// `[tools.NAME]`: settings of single tools; a tool without a table has [`Tool::default`].
    pub tools: Arc<BTreeMap<String, Tool>>,
    /// One `syncfs` per call batch before its results count.
    pub durable_workspace: bool,
    /// A finished answer survives power loss before its barrier.
    pub sync_spool: bool,
}

impl Config {
    /// The settings as canonical JSON, without `profiles`: every key is there, sorted, with no white space
    /// between, so equal settings have equal bytes. Money is an exact decimal in a string.
    pub fn snapshot(&self) -> String {
        // `to_value` fails only for (1) a map whose keys are not strings: all are `String`; (2) a number that
        // JSON lacks: all are integers; (3) a failing `Serialize`: all are derived, or go through `String`.
        let mut value = match serde_json::to_value(self) {
            Ok(value) => value,
            Err(error) => unreachable!("a configuration is always JSON: {error}"),
        };
        value.sort_all_objects();
        value.to_string()
    }

    /// The settings that [`Config::snapshot`] wrote; `profiles` is empty. A key that an older version did not
    /// know has its default; a key that this version does not know is an error, never ignored.
    pub fn from_snapshot(json: &str) -> Result<Self, Error> {
        serde_json::from_str(json).map_err(|error| Error::Snapshot { reason: error.to_string() })
    }

    /// The model that `name` means: a `[models.NAME]` table, or `rehearsal:FILE` or `replay:DIR`, which need
    /// none and whose path is kept as written. A well-known model without a price has its vendor's. Fails for
    /// an unknown name.
    pub fn model(&self, name: &str) -> Result<Model, Error> {
        let model = match name.split_once(':') {
            Some(("rehearsal", file)) if !file.is_empty() => Model::at(Api::Rehearsal, file),
            Some(("replay", directory)) if !directory.is_empty() => Model::at(Api::Replay, directory),
            Some(_) | None => self.models.get(name).cloned().ok_or_else(|| self.unknown_model(name))?,
        };
        match model.api {
            Api::Rehearsal | Api::Replay => Ok(model),
            Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses => {
                let price = model.price.clone().or_else(|| prices::of_vendor(&model));
                Ok(Model { price, ..model })
            }
        }
    }

    /// The settings of the tool `name`.
    pub fn tool(&self, name: &str) -> Tool {
        self.tools.get(name).copied().unwrap_or_default()
    }

    /// After how many seconds a call of the tool `name` is ended; 0 is never.
    pub fn tool_timeout_s(&self, name: &str) -> u64 {
        self.tools.get(name).and_then(|tool| tool.timeout_s).unwrap_or(self.defaults.tool_timeout_s)
    }

    fn unknown_model(&self, name: &str) -> Error {
        let nearest = unknown::nearest(name, self.models.keys().map(String::as_str)).map(str::to_owned);
        Error::UnknownModel { model: name.into(), nearest }
    }
}

/// One model, as `[models.NAME]` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The protocol it speaks.
    pub api: Api,
    /// Where it is served; none: the vendor's address.
    pub base_url: Option<String>,
    /// The vendor's name of it; always there for an api that goes over the network.
    pub model: Option<String>,
    /// The script of a rehearsal or the directory of a replay. From a file: absolute.
    pub file: Option<String>,
    /// The profiles whose keys are tried, in order; empty: one profile from `api_key_env`.
    #[serde(default)]
    pub profiles: Vec<String>,
    /// The variable that holds the key when there are no profiles; none: the vendor's usual one.
    pub api_key_env: Option<String>,
    /// Tokens that fit into one request with its answer.
    pub context_window: Option<u64>,
    /// Tokens that one answer may have.
    pub max_output: Option<u64>,
    /// Seconds without a byte after which a call is given up; see [`Model::idle_timeout_s`].
    pub idle_timeout_s: Option<u64>,
    /// What tokens cost; none: as [`Config::model`] knows it of the vendor, else money is not counted.
    pub price: Option<Price>,
    /// Whether an answer must call a tool.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// The provider goes on with an answer when the connection is gone, and keeps it for a while. Only with Responses.
    #[serde(default)]
    pub background: bool,
}

impl Model {
    /// A model of which nothing but its protocol is known.
    pub fn new(api: Api) -> Self {
        Self {
            api,
            base_url: None,
            model: None,
            file: None,
            profiles: Vec::new(),
            api_key_env: None,
            context_window: None,
            max_output: None,
            idle_timeout_s: None,
            price: None,
            tool_choice: ToolChoice::Auto,
            background: false,
        }
    }

    fn at(api: Api, file: &str) -> Self {
        Self { file: Some(file.into()), ..Self::new(api) }
    }

    /// Seconds without a byte after which a call is given up; 0 is never. Unless set: 120, and 300 when a
    /// `base_url` says that it is served elsewhere, where a cold model may have to be loaded first.
    pub fn idle_timeout_s(&self) -> u64 {
        let unset = if self.base_url.is_some() { 300 } else { 120 };
        self.idle_timeout_s.unwrap_or(unset)
    }

    /// The same as a duration; none is never.
    pub fn idle_timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.idle_timeout_s())).filter(|timeout| !timeout.is_zero())
    }
}

/// The protocol of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Anthropic's Messages.
    AnthropicMessages,
    /// OpenAI's Chat Completions, and every server that speaks it.
    OpenaiChat,
    /// OpenAI's Responses.
    OpenaiResponses,
    /// A scripted model; no network.
    Rehearsal,
    /// Recorded answers; no network.
    Replay,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What a million tokens cost, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens sent.
    pub input: Usd,
    /// Tokens answered.
    pub output: Usd,
    /// Tokens read from the vendor's cache; none: as `input`.
    pub cache_read: Option<Usd>,
    /// Tokens written to the vendor's cache; none: as `input`.
    pub cache_write: Option<Usd>,
    /// The day on which somebody looked these up.
    pub as_of: Option<NaiveDate>,
}

/// Whether an answer must call a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// Every answer calls one.
    Required,
}

/// Where the key of an account is found; never the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// In this variable of the engine's environment.
    ApiKeyEnv(String),
    /// In what this shell command prints.
    ApiKeyCmd(String),
}

/// What a job gets that does not say otherwise. In every limit 0 means none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// The model of a job that names none.
    pub model: Option<String>,
    /// The models that follow, in order, when it fails for good.
    pub fallback: Vec<String>,
    /// The tools a run may call.
    pub tools: Vec<String>,
    /// Wall clock of a run, in seconds; waiting for a person does not count.
    pub timeout_s: u64,
    /// Wall clock of one call of a tool, in seconds.
    pub tool_timeout_s: u64,
    /// How the calls of one answer run.
    pub tool_execution: ToolExecution,
    /// Runs of one engine that hold a slot at once.
    pub concurrency: NonZeroU32,
    /// Turns of a run.
    pub max_turns: u64,
    /// Model calls of a run.
    pub max_calls: u64,
    /// How much a model is asked to think.
    pub thinking: ThinkingLevel,
    /// Whether the loop detectors run. Their thresholds are fixed.
    pub loop_detection: bool,
    /// Money of a run.
    pub max_usd: Usd,
    /// Tokens of a run.
    pub max_tokens: u64,
}

impl Defaults {
    /// `concurrency` as a number of slots.
    pub(crate) fn slots(&self) -> usize {
        usize::try_from(self.concurrency.get()).unwrap_or(usize::MAX)
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            model: None,
            fallback: Vec::new(),
            tools: ["bash", "read", "write", "edit", "ls", "grep", "find"].map(String::from).into(),
            timeout_s: 48 * 3600,
            tool_timeout_s: 120,
            tool_execution: ToolExecution::Parallel,
            concurrency: const { NonZeroU32::MIN.saturating_add(7) },
            max_turns: 0,
            max_calls: 0,
            thinking: ThinkingLevel::Off,
            loop_detection: true,
            max_usd: Usd::default(),
            max_tokens: 0,
        }
    }
}

/// How the calls of one answer run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolExecution {
    /// At once, as far as their tools allow it.
    #[default]
    Parallel,
    /// One after the other.
    Sequential,
}

/// Settings of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tool {
    /// What happens when nobody can know whether a call ran.
    pub on_unknown: OnUnknown,
    /// How much of its output is kept, in bytes.
    pub output_bytes_max: u64,
    /// How much of a command's output is written to disk in whole while it runs, in bytes.
    pub output_spool_bytes_max: u64,
    /// Wall clock of one call, in seconds, 0 for none; unset: `defaults.tool_timeout_s`.
    pub timeout_s: Option<u64>,
}

impl Default for Tool {
    fn default() -> Self {
        Self {
            on_unknown: OnUnknown::Ask,
            output_bytes_max: 1 << 20,
            output_spool_bytes_max: 64 << 20,
            timeout_s: None,
        }
    }
}

/// What happens when nobody can know whether a call ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnUnknown {
    /// The run parks until a person says.
    #[default]
    Ask,
    /// The model is told, and goes on.
    Tell,
    /// The run fails.
    Fail,
}
