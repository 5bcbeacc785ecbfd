//! Trials: one tiny call of each configured model, by each of its accounts.
//!
//! Owns what is asked, what the answer proves, and the next step when there is none. A trial is no run: it must
//! never journal, need a store, or try again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, Message, StopReason, UserMessage};
use model::{Block, Millis};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Api, Config, Model};
use crate::models::{ModelError, Models};
use crate::provider::{Origin, Prepared, Request, StreamEvent};

/// What is asked.
const PROMPT: &str = "Answer with the word OK.";
/// Tokens that the answer may have: a model that cannot be kept from thinking needs more than a word takes.
const OUTPUT_TOKENS_MAX: u64 = 256;
/// How long a trial may take. A server may have to load its model first.
const PATIENCE: Duration = Duration::from_secs(60);
/// Trials under way at once.
const TRIALS_MAX: usize = 8;

/// What became of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Name of the model.
    pub model: String,
    /// The protocol it speaks. A rehearsal or a replay is not called: its file is read.
    pub api: Api,
    /// Name of the profile whose key paid; none: the model's own key did, or none was wanted.
    pub profile: Option<String>,
    /// What is wrong; none: it works.
    pub fault: Option<Fault>,
    /// From the request to the end of the answer, or to the failure.
    pub took: Duration,
}

/// What keeps a model from working.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In a word: the kind of failure that a run would have, or `key_missing`, or `configuration`.
    pub kind: &'static str,
    /// What was found, or what the provider said.
    pub words: String,
    /// What to do about it.
    pub remedy: String,
}

/// Tries these models, or all that are configured, each with each of its profiles, in that order. It costs a few
/// tokens a call. Fails, before anything is called, for a name that is not configured.
pub async fn try_models(config: &Config, names: &[String]) -> Result<Vec<Trial>, config::Error> {
    let all: Vec<String> = config.models.keys().cloned().collect();
    let mut candidates = Vec::new();
    for name in if names.is_empty() { &all } else { names } {
        let model = match config.models.get(name) {
            Some(model) => model.clone(),
            None => config.model(name)?,
        };
        let accounts = match model.profiles.as_slice() {
            [] => vec![None],
            profiles => profiles.iter().cloned().map(Some).collect(),
        };
        candidates.extend(accounts.into_iter().map(|profile| Candidate::new(config, name, &model, profile)));
    }
    let models = Models::new(BTreeMap::new(), None);
    Ok(stream::iter(&candidates)
        .map(|candidate| candidate.tried(&models))
        .buffered(TRIALS_MAX)
        .collect()
        .await)
}

/// A model with one account.
struct Candidate {
    name: String,
    model: Model,
    profile: Option<String>,
    /// The configuration, in which the model is as it is here.
    config: Config,
}

impl Candidate {
    fn new(config: &Config, name: &str, model: &Model, profile: Option<String>) -> Self {
        let max_output = Some(model.max_output.unwrap_or(OUTPUT_TOKENS_MAX).min(OUTPUT_TOKENS_MAX));
        let profiles = profile.iter().cloned().collect();
        // A trial leaves nothing at the provider.
        let model = Model { profiles, max_output, background: false, ..model.clone() };
        let models = Arc::new([(name.to_owned(), model.clone())].into());
        Self { name: name.to_owned(), model, profile, config: Config { models, ..config.clone() } }
    }

    async fn tried(&self, models: &Models) -> Trial {
        let since = Instant::now();
        let answer = tokio::time::timeout(PATIENCE, self.answer(models)).await;
        let fault = match answer {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault),
            Err(_) => Some(self.fault(FailureKind::Timeout, format!("there was no answer in {PATIENCE:?}"))),
        };
        let (model, profile) = (self.name.clone(), self.profile.clone());
        Trial { model, api: self.model.api, profile, fault, took: since.elapsed() }
    }

    async fn answer(&self, models: &Models) -> Result<(), Fault> {
        let provider = models.resolve(&self.name, &self.config).map_err(|error| self.unusable(&error))?;
        match self.model.api {
            Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses => {}
            Api::Rehearsal | Api::Replay => return Ok(()),
        }
        if let Some(missing) = provider.missing(&provider.identity()) {
            let variable = missing.trim_start_matches("key ");
            let words = format!("the variable {variable} holds no key");
            return Err(Fault { kind: "key_missing", words, remedy: format!("set the variable {variable}") });
        }
        let mut events = provider.stream(self.request(), CancellationToken::new());
        while let Some(event) = events.next().await {
            match event {
                StreamEvent::Opened | StreamEvent::Update(_) => {}
                StreamEvent::Done(message) => return self.accepted(&message),
                StreamEvent::Failed(failure) => return Err(self.failed(failure)),
                // Told of a call that was taken up, and this one was made.
                StreamEvent::Lost => break,
            }
        }
        Err(self.fault(FailureKind::Missing, "the stream ended without an answer".to_owned()))
    }

    fn request(&self) -> Request {
        let prompt = UserMessage { content: vec![Block::Text(PROMPT.to_owned())], at: Millis::default() };
        Request {
            origin: Arc::new(Origin { prompt: PROMPT.to_owned(), ..Origin::default() }),
            turn: 0,
            attempt: 0,
            model: self.name.clone(),
            profile: self.profile.clone(),
            thinking: "off".to_owned(),
            system: None,
            messages: vec![Arc::new(Prepared { message: Message::User(prompt), hash: [0; 32] })],
            tools: Arc::new([]),
            spool: None,
            recording: None,
        }
    }

    /// An answer that was cut at its most tokens proves as much as a whole one.
    fn accepted(&self, message: &AssistantMessage) -> Result<(), Fault> {
        match message.stop_reason {
            StopReason::Stop | StopReason::Length | StopReason::ToolUse => Ok(()),
            StopReason::Error | StopReason::Aborted => {
                let words = message.error_message.clone();
                Err(self.fault(FailureKind::Unknown, words.unwrap_or_else(|| "the model refused".to_owned())))
            }
        }
    }

    fn failed(&self, failure: Failure) -> Fault {
        let whole = failure.partial.and_then(|partial| partial.error_message);
        self.fault(failure.kind, whole.unwrap_or_else(|| failure.message.as_str().to_owned()))
    }

    fn fault(&self, kind: FailureKind, words: String) -> Fault {
        Fault { kind: kind.name(), words, remedy: self.remedy(kind) }
    }

    fn remedy(&self, kind: FailureKind) -> String {
        let (name, model) = (config::quoted(&self.name), &self.model);
        match kind {
            FailureKind::RateLimit => "wait, or add a profile".to_owned(),
            FailureKind::Overloaded | FailureKind::ServerError => "try again later".to_owned(),
            FailureKind::Timeout | FailureKind::Idle => "try again when the server is less busy".to_owned(),
            FailureKind::Connection => match &model.base_url {
                Some(_) => format!("start the server, or mend models.{name}.base_url"),
                None => "look at the network; HTTPS_PROXY names a proxy".to_owned(),
            },
            FailureKind::Auth | FailureKind::AuthPermanent => self.key_remedy(),
            FailureKind::Billing => "pay, or take another account".to_owned(),
            FailureKind::ModelNotFound => format!("mend models.{name}.model, or its base_url"),
            FailureKind::TlsCertificate => {
                "name the certificate in SSL_CERT_FILE, if it can be trusted".to_owned()
            }
            FailureKind::Format
            | FailureKind::ContextOverflow
            | FailureKind::RoleOrdering
            | FailureKind::ImageSize
            | FailureKind::ThinkingUnsupported
            | FailureKind::SessionExpired
            | FailureKind::Empty
            | FailureKind::ReasoningOnly
            | FailureKind::Missing
            | FailureKind::Silent
            | FailureKind::Unknown => format!("look whether it speaks {}", model.api),
            FailureKind::Script => format!("mend models.{name}.file"),
        }
    }

    fn key_remedy(&self) -> String {
        match (&self.profile, &self.model.api_key_env, &self.model.base_url) {
            (Some(profile), _, _) => format!("put a valid key where profiles.{profile} finds it"),
            (None, Some(variable), _) => format!("put a valid key into {variable}"),
            (None, None, Some(_)) => {
                format!("name its key in models.{}.api_key_env", config::quoted(&self.name))
            }
            (None, None, None) => "put a valid key into the vendor's usual variable".to_owned(),
        }
    }

    fn unusable(&self, error: &ModelError) -> Fault {
        let kind = match error {
            ModelError::Script(_) => FailureKind::Script.name(),
            ModelError::Unnamed | ModelError::Unusable(_) => "configuration",
        };
        Fault {
            kind,
            words: error.to_string(),
            remedy: format!("mend models.{}", config::quoted(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests;
