//! Which provider answers for a model's name.
//!
//! Owns the way from `--model` to a provider. It must never call one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::config::{Api, Config, Model};
use crate::provider::{Client, ModelProvider, Rehearsal, Remote, Replay};
use crate::runs::lock;

/// A rehearsal or a recording that was read, and the description that it was read for.
type Opened = (Model, Arc<dyn ModelProvider>);

/// The providers of one engine, by model name.
pub(crate) struct Models {
    given: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// Rehearsals and recordings that were read, by model name: one for each description that configurations have had
    /// for it.
    opened: Mutex<BTreeMap<String, Vec<Opened>>>,
    rehearsal_log: Option<PathBuf>,
    /// Made for the first model that needs it.
    client: OnceLock<Result<Client, String>>,
}

/// Why no provider answers for a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Nothing says which model to use.
    #[error("no model is named; say `--model NAME`, or set `defaults.model` in the configuration")]
    Unnamed,
    /// The configuration has no such model, or one that this version cannot call.
    #[error("{0}")]
    Unusable(String),
    /// The script of a rehearsal, or a recording, cannot be used.
    #[error("{0}")]
    Script(String),
}

impl Models {
    pub(crate) fn new(
        given: BTreeMap<String, Arc<dyn ModelProvider>>,
        rehearsal_log: Option<PathBuf>,
    ) -> Self {
        Self { given, opened: Mutex::new(BTreeMap::new()), rehearsal_log, client: OnceLock::new() }
    }

    /// The provider for a model's name: one that the embedding program gave, `rehearsal:FILE`, `replay:DIR`,
    /// or a configured one.
    pub(crate) fn resolve(&self, name: &str, config: &Config) -> Result<Arc<dyn ModelProvider>, ModelError> {
        if let Some(provider) = self.given.get(name) {
            return Ok(Arc::clone(provider));
        }
        if let Some(file) = name.strip_prefix("rehearsal:") {
            return self.rehearsal(name, Path::new(file), &Model::new(Api::Rehearsal));
        }
        let model = config.model(name).map_err(|error| ModelError::Unusable(error.to_string()))?;
        let unusable = |words: String| ModelError::Unusable(format!("model `{name}`: {words}"));
        match (model.api, &model.file) {
            (Api::Rehearsal, Some(file)) => self.rehearsal(name, Path::new(file), &model),
            (Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses, _) => {
                let client = self.client.get_or_init(Client::new).clone().map_err(unusable)?;
                let remote = Remote::new(model, Arc::clone(&config.profiles), client).map_err(unusable)?;
                Ok(Arc::new(remote))
            }
            (Api::Replay, Some(dir)) => self.replay(name, Path::new(dir), &model),
            (Api::Rehearsal, None) => {
                Err(unusable("add `file`, the path of the rehearsal's script".to_owned()))
            }
            (Api::Replay, None) => Err(unusable("add `file`, the directory of a recording".to_owned())),
        }
    }

    /// Waits for what calls have left behind, a second at most.
    pub(crate) async fn quiet(&self) {
        if let Some(Ok(client)) = self.client.get() {
            client.quiet().await;
        }
    }

    /// The script is read once; a run that finds it changed at resume parks.
    fn rehearsal(
        &self,
        name: &str,
        file: &Path,
        model: &Model,
    ) -> Result<Arc<dyn ModelProvider>, ModelError> {
        self.once(name, model, || {
            let rehearsal = Rehearsal::open(file, self.rehearsal_log.clone())
                .map_err(|error| ModelError::Script(error.to_string()))?;
            let rehearsal = rehearsal.idle_timeout(model.idle_timeout()).price(model.price.clone());
            Ok(Arc::new(match model.max_output {
                Some(tokens) => rehearsal.output_tokens_max(tokens),
                None => rehearsal,
            }))
        })
    }

    fn replay(&self, name: &str, dir: &Path, model: &Model) -> Result<Arc<dyn ModelProvider>, ModelError> {
        self.once(name, model, || {
            let replay = Replay::open(dir).map_err(|error| ModelError::Script(error.to_string()))?;
            Ok(Arc::new(replay))
        })
    }

    /// The provider of a model that is described like this, which is opened the first time.
    fn once(
        &self,
        name: &str,
        model: &Model,
        open: impl FnOnce() -> Result<Arc<dyn ModelProvider>, ModelError>,
    ) -> Result<Arc<dyn ModelProvider>, ModelError> {
        let mut opened = lock(&self.opened);
        let mut of_name = opened.get(name).into_iter().flatten();
        if let Some((_, provider)) = of_name.find(|(described, _)| described == model) {
            return Ok(Arc::clone(provider));
        }
        let provider = open()?;
        opened.entry(name.to_owned()).or_default().push((model.clone(), Arc::clone(&provider)));
        Ok(provider)
    }
}
