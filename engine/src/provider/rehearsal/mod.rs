//! The rehearsal model: a scripted provider for offline use, demonstrations and tests.
//!
//! Owns the script's identity. It must never let an answer depend on anything but the script and the request:
//! a restarted engine gets the same answers.

mod digest;
mod log;
mod plan;
mod playback;
mod script;
#[cfg(test)]
mod tests;
mod variables;

use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use model::JsonText;
use model::input::Failure;
use model::message::Usage;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::digest::Digests;
use self::log::Entry;
use self::plan::Plan;
use self::script::Script;
pub use self::script::{SCRIPT_BYTES_MAX, ScriptError};
use super::{IDLE_TIMEOUT, Intent, ModelProvider, Request, StreamEvent, price};
use crate::config::Price;

/// Output tokens that the intent of a call reserves, unless set otherwise. The input that it reserves is an estimate.
const OUTPUT_TOKENS_MAX: u64 = 1_024;

/// Raised whenever equal requests get other hashes or answers.
const CONVERTER_VERSION: u16 = 1;

/// A model that says what a script tells it to.
#[derive(Debug)]
pub struct Rehearsal {
    script: Script,
    /// Absolute; none for a script that comes from no file.
    path: Option<PathBuf>,
    hash: blake3::Hash,
    log: Option<PathBuf>,
    idle_timeout: Option<Duration>,
    output_tokens_max: u64,
    price: Option<Arc<Price>>,
    digests: Digests,
}

impl Rehearsal {
    /// Reads the script at `path`. Each call adds a line to the file `log`, the value of
    /// `SPRAG_REHEARSAL_LOG`.
    pub fn open(path: &Path, log: Option<PathBuf>) -> Result<Self, ScriptError> {
        let path = path::absolute(path)
            .map_err(|source| ScriptError::Unreadable { path: path.to_owned(), source })?;
        let bytes = script::read(&path)?;
        let script = Script::from_slice(&bytes, &path)?;
        Ok(Self { path: Some(path), log, ..Self::new(script, &bytes) })
    }

    /// The script that `value` holds; it is known by its content alone, and its calls are not logged.
    pub fn from_value(value: &Value) -> Result<Self, ScriptError> {
        let script = Script::from_value(value)?;
        Ok(Self::new(script, JsonText::from(value).as_str().as_bytes()))
    }

    /// The same with another time after which the engine gives up a silent call, or none; 120 s at first.
    pub fn idle_timeout(self, idle_timeout: impl Into<Option<Duration>>) -> Self {
        Self { idle_timeout: idle_timeout.into(), ..self }
    }

    /// The same with another number of output tokens that a call reserves; 1,024 at first.
    pub fn output_tokens_max(self, output_tokens_max: u64) -> Self {
        Self { output_tokens_max, ..self }
    }

    /// The same with a price. Without one, a rehearsal costs nothing.
    pub fn price(self, price: Option<Price>) -> Self {
        Self { price: price.map(Arc::new), ..self }
    }

    fn new(script: Script, bytes: &[u8]) -> Self {
        Self {
            script,
            path: None,
            hash: blake3::hash(bytes),
            log: None,
            idle_timeout: Some(IDLE_TIMEOUT),
            output_tokens_max: OUTPUT_TOKENS_MAX,
            price: None,
            digests: Digests::default(),
        }
    }

    fn plan(&self, request: &Request, input: u64) -> Plan {
        Plan::new(&self.script, request, input, self.price.clone())
    }

    fn path_text(&self) -> String {
        self.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }
}

impl ModelProvider for Rehearsal {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        let input = self.digests.input_tokens(request);
        let reserve = price::reserve(self.price.as_deref(), input, self.output_tokens_max);
        // A script may claim any usage; a reservation is the most that a call may use.
        let claimed = self.plan(request, input).usage();
        Ok(Intent {
            hash: self.digests.hash(request),
            converter_version: CONVERTER_VERSION,
            reserve: most(reserve, claimed),
        })
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let input = self.digests.input_tokens(&request);
        let plan = self.plan(&request, input);
        let entry = |log| Box::new(Entry::new(log, &request, self.digests.hash(&request), &plan));
        let entry = self.log.as_deref().map(entry);
        playback::play(plan, request.model, entry, abort)
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// `PATH#HASH`, without a path for a script that comes from no file.
    fn identity(&self) -> String {
        format!("{}#{}", self.path_text(), self.hash.to_hex())
    }

    fn missing(&self, identity: &str) -> Option<String> {
        let (started_with, hash) = identity.rsplit_once('#').unwrap_or((identity, ""));
        let place = self.path_text();
        if started_with != place {
            return Some(format!("the run started with another rehearsal, {started_with}"));
        }
        let is_same = |found: blake3::Hash| found.to_hex().as_str() == hash;
        let on_disk = match self.path.as_deref().map(script::read) {
            Some(Ok(bytes)) => blake3::hash(&bytes),
            Some(Err(ScriptError::Gone { .. })) => {
                return Some(format!("rehearsal {place} is gone; put it back"));
            }
            Some(Err(error)) => return Some(error.to_string()),
            None => self.hash,
        };
        (!is_same(on_disk) || !is_same(self.hash))
            .then(|| format!("rehearsal {place} was changed; put back the one that the run started with"))
    }
}

/// Of each kind of token, and of the money, the larger number.
fn most(one: Usage, other: Usage) -> Usage {
    Usage {
        input: one.input.max(other.input),
        output: one.output.max(other.output),
        cache_read: one.cache_read.max(other.cache_read),
        cache_write: one.cache_write.max(other.cache_write),
        usd_micros: one.usd_micros.max(other.usd_micros),
    }
}
