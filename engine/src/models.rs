//! Which provider answers for a model's name.
//!
//! Owns the way from `--model` to a provider. It must never call one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::config::{Api, Config, Model};
use crate::provider::{ModelProvider, Rehearsal};
use crate::runs::lock;

/// The providers of one engine, by model name.
pub(crate) struct Models {
    given: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// Rehearsals that were read, by model name.
    opened: Mutex<BTreeMap<String, Arc<dyn ModelProvider>>>,
    rehearsal_log: Option<PathBuf>,
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
    /// The script of a rehearsal cannot be used.
    #[error("{0}")]
    Script(String),
}

impl Models {
    pub(crate) fn new(
        given: BTreeMap<String, Arc<dyn ModelProvider>>,
        rehearsal_log: Option<PathBuf>,
    ) -> Self {
        Self { given, opened: Mutex::new(BTreeMap::new()), rehearsal_log }
    }

    /// The provider for a model's name: one that the embedding program gave, `rehearsal:FILE`, or a configured one.
    pub(crate) fn resolve(&self, name: &str, config: &Config) -> Result<Arc<dyn ModelProvider>, ModelError> {
        if let Some(provider) = self.given.get(name) {
            return Ok(Arc::clone(provider));
        }
        if let Some(file) = name.strip_prefix("rehearsal:") {
            return self.rehearsal(name, Path::new(file), &Model::new(Api::Rehearsal));
        }
        let model = config.model(name).map_err(|error| ModelError::Unusable(error.to_string()))?;
        match (model.api, &model.file) {
            (Api::Rehearsal, Some(file)) => self.rehearsal(name, Path::new(file), &model),
            _ => Err(ModelError::Unusable(format!(
                "model `{name}` uses an API that this version cannot call yet"
            ))),
        }
    }

    /// The script is read once; a run that finds it changed at resume parks.
    fn rehearsal(
        &self,
        name: &str,
        file: &Path,
        model: &Model,
    ) -> Result<Arc<dyn ModelProvider>, ModelError> {
        let mut opened = lock(&self.opened);
        if let Some(provider) = opened.get(name) {
            return Ok(Arc::clone(provider));
        }
        let rehearsal = Rehearsal::open(file, self.rehearsal_log.clone())
            .map_err(|error| ModelError::Script(error.to_string()))?;
        let rehearsal = rehearsal.idle_timeout(model.idle_timeout()).price(model.price.clone());
        let provider: Arc<dyn ModelProvider> = Arc::new(match model.max_output {
            Some(tokens) => rehearsal.output_tokens_max(tokens),
            None => rehearsal,
        });
        opened.insert(name.to_owned(), Arc::clone(&provider));
        Ok(provider)
    }
}
