//! The layers: where they are found, and how a later one replaces what an earlier one said.
//!
//! Owns the order of layers and what flags may say. Merging is making the assignments of one layer after the
//! other in a [`Draft`]. It must never stop at a mistake before all layers are read.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::draft::{Draft, IfMissing};
use super::{Config, Environment, Error, Origin, Usd};
use model::guard::retry::ThinkingLevel;

/// What the flags of a command say; unset ones leave the other layers as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the field of `Defaults` of the same name")]
pub struct Overrides {
    pub model: Option<String>,
    pub tools: Option<Vec<String>>,
    pub timeout_s: Option<u64>,
    pub concurrency: Option<NonZeroU32>,
    pub max_turns: Option<u64>,
    pub max_calls: Option<u64>,
    pub thinking: Option<ThinkingLevel>,
    pub max_usd: Option<Usd>,
    pub max_tokens: Option<u64>,
}

/// A configuration, with the origin of every value in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The merged configuration.
    pub config: Config,
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Loaded {
    /// Where the value of `key` comes from. `key` is written as in TOML: `models."gpt-4.1".price.input`.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }
}

/// Merges all layers, later ones winning: built-in defaults, `/etc/sprag/config.toml`,
/// `$XDG_CONFIG_HOME/sprag/config.toml`, `./sprag.toml`, `file` (`--config`), variables
/// `SPRAG__SECTION__KEY`, flags. Of the files only `file` must exist. Fails with every mistake of every
/// layer.
pub fn load(environment: &Environment, file: Option<&Path>, flags: &Overrides) -> Result<Loaded, Error> {
    let mut draft = Draft::default();
    for path in default_files(environment) {
        if file.is_none_or(|file| environment.cwd.join(file) != environment.cwd.join(&path)) {
            draft.file(environment, &path, IfMissing::Skip);
        }
    }
    if let Some(path) = file {
        draft.file(environment, path, IfMissing::Refuse);
    }
    draft.variables(environment);
    draft.flags(flags);
    draft.finish()
}

/// The files that [`load`] reads if they are there, absolute.
pub fn files(environment: &Environment, file: Option<&Path>) -> Vec<PathBuf> {
    let named = default_files(environment).into_iter().chain(file.map(Path::to_owned));
    named.map(|path| environment.cwd.join(path)).collect()
}

/// The files that are read without being asked for, as shown to people.
fn default_files(environment: &Environment) -> Vec<PathBuf> {
    let user = environment.xdg("XDG_CONFIG_HOME", ".config");
    let shared = [Some(environment.etc.clone()), user].into_iter().flatten();
    shared.map(|directory| directory.join("sprag/config.toml")).chain([PathBuf::from("sprag.toml")]).collect()
}
