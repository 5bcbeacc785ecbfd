//! Jobs: what a caller asks for, and what is journaled of it.
//!
//! Owns the way from a job to the first record of a run. It must never read the environment or the disk.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use model::input::Submission;
use model::message::UserMessage;
use model::state::{Limits, Owner, Wants};
use model::{Block, JsonText, Label, Message, Millis, RunId};
use serde::{Deserialize, Serialize};

use crate::config::{OnUnknown, SnapshotHash, ToolExecution, Usd};
use crate::configs::Settings;
use crate::error::Error;
use crate::routes::{self, Candidate};
use model::guard::retry::ThinkingLevel;

/// What a caller asks for. Only the prompt is required; everything else has the configuration's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// What the model is asked, oldest first. Empty to continue from `base`.
    pub prompts: Vec<Message>,
    /// A transcript from elsewhere that stands before the prompts.
    pub base: Vec<Message>,
    /// Session to run in; a new one of its own if none.
    pub session: Option<String>,
    /// Makes the submission idempotent: the same key finds the same run.
    pub key: Option<String>,
    /// Name of the model.
    pub model: Option<String>,
    /// Directory that tools work in.
    pub workspace: Option<PathBuf>,
    /// Names of the tools that the model may call.
    pub tools: Option<Vec<String>>,
    /// System prompt.
    pub system: Option<String>,
    /// Thinking level.
    pub thinking: Option<ThinkingLevel>,
    /// How calls of one answer run.
    pub tool_execution: Option<ToolExecution>,
    /// Wall-clock limit in seconds, 0 for none.
    pub timeout_s: Option<u64>,
    /// Most turns, 0 for no cap.
    pub max_turns: Option<u64>,
    /// Most model calls, 0 for no cap.
    pub max_calls: Option<u64>,
    /// Most tokens of all kinds, 0 for no cap.
    pub max_tokens: Option<u64>,
    /// Most money, 0 for no cap.
    pub max_usd: Option<Usd>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Id of the job in its batch.
    pub custom_id: Option<String>,
    /// Name of the batch.
    pub batch: Option<String>,
    /// Hash of the line that the job was read from: under one id, a batch takes one version only.
    pub version: Option<[u8; 16]>,
    /// Failed model calls are tried again; true if none.
    pub retries: Option<bool>,
    /// Directory in which the model calls are recorded, new or empty; none: they are not.
    pub record: Option<PathBuf>,
    /// Each poll takes every message that waits, not one.
    pub drains_all: bool,
}

impl Job {
    /// A job with one prompt.
    pub fn new(prompt: impl Into<String>) -> Self {
        let content = vec![Block::Text(prompt.into())];
        let prompt = Message::User(UserMessage { content, at: Millis::default() });
        Self { prompts: vec![prompt], ..Self::default() }
    }

    /// The same with a model.
    pub fn model(self, model: impl Into<String>) -> Self {
        Self { model: Some(model.into()), ..self }
    }

    /// The same with a workspace.
    pub fn workspace(self, workspace: impl Into<PathBuf>) -> Self {
        Self { workspace: Some(workspace.into()), ..self }
    }

    /// The same with a session.
    pub fn session(self, session: impl Into<String>) -> Self {
        Self { session: Some(session.into()), ..self }
    }

    /// The same with tools.
    pub fn tools<T: Into<String>>(self, tools: impl IntoIterator<Item = T>) -> Self {
        Self { tools: Some(tools.into_iter().map(Into::into).collect()), ..self }
    }

    /// The same with an idempotency key.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }
}

/// What a run keeps of its job and of the configuration it started with, beside what the state machine reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    /// Id in its batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_id: Option<String>,
    /// Name of its batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Directory that tools work in; none for a run without files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<PathBuf>,
    /// Names of its tools.
    pub tools: Arc<[String]>,
    /// System prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Free labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of its model, if it is longer than what the state keeps of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the model's provider said of itself at the start.
    pub model_identity: String,
    /// The models that may be asked, the requested one first; empty: that one alone, without profiles.
    #[serde(default, skip_serializing_if = "<[Candidate]>::is_empty")]
    pub candidates: Arc<[Candidate]>,
    /// What those of them are known by that are served somewhere, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelFacts>,
    /// Directory in which its model calls are recorded: whoever resumes the run goes on recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
    /// How calls of one answer run.
    pub tool_execution: ToolExecution,
    /// Limits of each tool.
    pub tool_limits: Arc<BTreeMap<String, ToolLimits>>,
    /// Names the settings that it keeps; none in a record of a version that kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SnapshotHash>,
}

/// What a run keeps of a model that is served somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// The protocol, as answers name it.
    pub api: String,
    /// The provider, as answers name it.
    pub provider: String,
    /// The vendor's name of the model, as answers name it.
    pub model: String,
    /// Nobody has said what its tokens cost: its calls count no money.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unpriced: bool,
}

/// The limits of one tool in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    /// The most bytes of text in a result.
    pub output_bytes_max: u64,
    /// The most bytes of a command's output that are written to disk in whole.
    pub output_spool_bytes_max: u64,
    /// The longest a call may take, in seconds; 0 for no limit.
    pub timeout_s: u64,
    /// What follows when the outcome of a call is unknown.
    pub on_unknown: OnUnknown,
}

/// What `ls` shows of a run beside its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) session: String,
    pub(crate) custom_id: String,
    pub(crate) batch: String,
    pub(crate) model: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) submitted_at_ms: i64,
    pub(crate) version: Option<[u8; 16]>,
}

/// The most characters of a batch's name that the list of runs keeps.
pub(crate) const BATCH_CHARS_MAX: usize = 200;
/// The most bytes of labels that the list of runs keeps; the journal keeps all.
const META_LABEL_BYTES_MAX: usize = 2048;

impl Meta {
    pub(crate) fn new(job: &Job, submission: &Submission, facts: &JobFacts, at: Millis) -> Self {
        let cut = |text: &str| Label::from(text).as_str().to_owned();
        let mut left = META_LABEL_BYTES_MAX;
        let fitting = facts.labels.iter().take_while(|(name, value)| {
            let bytes = name.len() + value.len();
            let is_fitting = bytes <= left;
            left = left.saturating_sub(bytes);
            is_fitting
        });
        Self {
            session: cut(&submission.session),
            custom_id: facts.custom_id.as_deref().map(cut).unwrap_or_default(),
            batch: facts.batch.as_deref().unwrap_or_default().chars().take(BATCH_CHARS_MAX).collect(),
            model: submission.model.as_str().to_owned(),
            labels: fitting.map(|(name, value)| (name.clone(), value.clone())).collect(),
            submitted_at_ms: at.0,
            version: job.version,
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

impl JobFacts {
    /// The facts as a run keeps them.
    pub(crate) fn to_text(&self) -> Result<JsonText, Error> {
        let facts = serde_json::to_value(self);
        let unkept =
            |error| Error::Job(format!("the job cannot be kept: {error}; name paths that are UTF-8"));
        Ok(JsonText::from(&facts.map_err(unkept)?))
    }

    /// What the run may ask of a model; none if there is nothing to choose.
    pub(crate) fn candidate(&self, model: &Label) -> Option<&Candidate> {
        self.candidates.get(routes::position(&self.candidates, model)?)
    }

    /// Name of a profile of a model.
    pub(crate) fn profile(&self, model: &Label, position: u8) -> Option<&str> {
        self.candidate(model)?.profiles.get(usize::from(position)).map(String::as_str)
    }

    /// What is known of a model that is served somewhere.
    pub(crate) fn served(&self, model: &Label) -> Option<&ModelFacts> {
        self.models.iter().find(|(name, _)| Label::from(name.as_str()) == *model).map(|(_, facts)| facts)
    }

    /// The facts of a submission.
    pub(crate) fn of(submission: &Submission) -> Result<Self, serde_json::Error> {
        serde_json::from_str(submission.job.as_str())
    }
}

/// The model that a job asks for.
pub(crate) struct Requested<'a> {
    /// Its name.
    pub(crate) name: Cow<'a, str>,
    /// What its provider says of itself.
    pub(crate) identity: String,
    /// See [`JobFacts::candidates`].
    pub(crate) candidates: Arc<[Candidate]>,
    /// See [`JobFacts::models`].
    pub(crate) models: BTreeMap<String, ModelFacts>,
}

/// The first record of the run that a job becomes.
pub(crate) fn submission(
    run: RunId,
    owner: Owner,
    job: &Job,
    settings: &Settings,
    wants: Wants,
    model: Requested<'_>,
) -> Result<(Submission, JobFacts), Error> {
    let config = &settings.config;
    let defaults = &config.defaults;
    let tools = job.tools.clone().unwrap_or_else(|| defaults.tools.clone());
    let limits_of = |name: &String| {
        let tool = config.tool(name);
        let limits = ToolLimits {
            output_bytes_max: tool.output_bytes_max,
            output_spool_bytes_max: tool.output_spool_bytes_max,
            timeout_s: config.tool_timeout_s(name),
            on_unknown: tool.on_unknown,
        };
        (name.clone(), limits)
    };
    let asked = Label::from(&*model.name);
    let facts = JobFacts {
        custom_id: job.custom_id.clone(),
        batch: job.batch.clone(),
        workspace: job.workspace.clone(),
        tool_limits: Arc::new(tools.iter().map(limits_of).collect()),
        tools: tools.into(),
        system: job.system.clone(),
        labels: job.labels.clone(),
        model: (Label::from(&*model.name).as_str() != model.name).then(|| model.name.to_string()),
        model_identity: model.identity,
        candidates: model.candidates,
        models: model.models,
        record: job.record.clone(),
        tool_execution: job.tool_execution.unwrap_or(defaults.tool_execution),
        config: Some(settings.hash),
    };
    let submission = Submission {
        run,
        owner,
        session: job.session.clone().unwrap_or_else(|| run.to_string()),
        prompts: job.prompts.clone(),
        base: job.base.clone(),
        model: asked,
        thinking: Label::from(job.thinking.unwrap_or(defaults.thinking).name()),
        wants: Wants {
            retries: job.retries.unwrap_or(true),
            loop_detection: defaults.loop_detection,
            drains_all: job.drains_all,
            syncs_files: config.durable_workspace,
            ..wants
        },
        limits: Limits {
            time_ms: job.timeout_s.unwrap_or(defaults.timeout_s).saturating_mul(1000),
            turns: job.max_turns.unwrap_or(defaults.max_turns),
            calls: job.max_calls.unwrap_or(defaults.max_calls),
            tokens: job.max_tokens.unwrap_or(defaults.max_tokens),
            usd_micros: job.max_usd.unwrap_or(defaults.max_usd).micros(),
        },
        job: facts.to_text()?,
    };
    Ok((submission, facts))
}

/// The job that continues the session of a run that has ended, without a prompt, and the name of the settings that the
/// run has kept.
pub(crate) fn continuation(
    store: &dyn store::Store,
    run: RunId,
) -> Result<(Job, Option<SnapshotHash>), Error> {
    let first = crate::driver::read_first(store, run)?;
    let facts = JobFacts::of(&first.submission).map_err(|error| Error::Job(format!("run {run}: {error}")))?;
    let job = Job {
        session: Some(first.submission.session.clone()),
        model: Some(facts.model.unwrap_or_else(|| first.submission.model.as_str().to_owned())),
        workspace: facts.workspace,
        tools: Some(facts.tools.to_vec()),
        system: facts.system,
        tool_execution: Some(facts.tool_execution),
        labels: facts.labels,
        ..Job::default()
    };
    Ok((job, facts.config))
}
