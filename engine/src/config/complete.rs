//! What must hold between keys once all layers are merged.
//!
//! Owns the checks that need more than one key. It must never change a value. What `model` names is looked up when a run
//! asks for it: a program may bring models of its own. What `fallback` and `profiles` name is needed when something
//! else has failed already, so it must be there from the start.

use model::guard::profiles::PROFILES_MAX;

use super::draft::Draft;
use super::error::did_you_mean;
use super::position::Origin;
use super::unknown::{join, nearest};
use super::{Api, FALLBACKS_MAX, Mistake, Model};

/// The mistakes of the merged configuration as a whole.
pub(super) fn mistakes(draft: &Draft) -> Vec<Mistake> {
    let models = draft.declared("models").flat_map(|(name, at)| of_model(draft, name, at));
    let profiles = draft.declared("profiles").filter_map(|(name, at)| of_profile(draft, name, at));
    models.chain(profiles).chain(of_fallback(draft)).collect()
}

/// Every fallback is a model, and named once.
fn of_fallback(draft: &Draft) -> Vec<Mistake> {
    let is_path = |name: &str| name.starts_with("rehearsal:") || name.starts_with("replay:");
    let models = draft.config.models.keys().map(String::as_str);
    let names = &draft.config.defaults.fallback;
    of_names(draft, "defaults.fallback", names, FALLBACKS_MAX, |name| {
        if is_path(name) { None } else { not_configured("model", name, models.clone()) }
    })
}

/// Every profile of a model is configured, and named once.
fn of_profiles(draft: &Draft, table: &str, names: &[String]) -> Vec<Mistake> {
    let profiles = draft.config.profiles.keys().map(String::as_str);
    let key = join(table, "profiles");
    of_names(draft, &key, names, PROFILES_MAX, |name| not_configured("profile", name, profiles.clone()))
}

/// What is wrong with a name that is not among the known ones of its kind.
fn not_configured<'a>(
    kind: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<String> {
    if known.clone().any(|known| known == name) {
        return None;
    }
    let next = match nearest(name, known) {
        meant @ Some(_) => did_you_mean(meant),
        None => format!("; add a table [{}]", join(&format!("{kind}s"), name)),
    };
    Some(format!("{kind} `{name}` is not configured{next}"))
}

/// The mistakes in a list of names, at the place of its key.
fn of_names(
    draft: &Draft,
    key: &str,
    names: &[String],
    most: usize,
    wrong: impl Fn(&str) -> Option<String>,
) -> Vec<Mistake> {
    let Some(at) = draft.origins.get(key) else { return Vec::new() };
    let is_twice = |position: usize| names.iter().position(|name| *name == names[position]) != Some(position);
    let twice = (0..names.len()).find(|position| is_twice(*position));
    let twice = twice.map(|position| format!("`{}` is named twice: keep the first", names[position]));
    let many = (names.len() > most).then(|| format!("{} names, at most {most} are used", names.len()));
    let unknown = names.iter().filter_map(|name| wrong(name));
    let reasons = unknown.chain(twice).chain(many);
    reasons.map(|reason| Mistake { at: at.clone(), message: format!("`{key}`: {reason}") }).collect()
}

fn of_model(draft: &Draft, name: &str, at: &Origin) -> Vec<Mistake> {
    let table = join("models", name);
    let is_given = |key: &str| draft.origins.contains_key(&join(&table, key));
    let mistake = |message: String| Mistake { at: at.clone(), message };
    let Some(model) = draft.config.models.get(name).filter(|_| is_given("api")) else {
        return vec![mistake(format!("`{table}` has no `api`: add one, like api = \"rehearsal\""))];
    };
    let missing = match model.api {
        Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses if model.model.is_none() => {
            Some(format!("`{table}` has no `model`: add the vendor's name of it"))
        }
        Api::Rehearsal if model.file.is_none() => {
            Some(format!("`{table}` has no `file`: add the path of the rehearsal's script"))
        }
        Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses | Api::Rehearsal | Api::Replay => {
            None
        }
    };
    let price = join(&table, "price");
    let unpriced = ["input", "output"]
        .into_iter()
        .filter(|key| model.price.is_some() && !draft.origins.contains_key(&join(&price, key)));
    let unpriced = unpriced.map(|key| format!("`{price}` has no `{key}`: add dollars per million tokens"));
    let unknown = of_profiles(draft, &table, &model.profiles);
    let unheard = of_background(draft, &table, model);
    missing.into_iter().chain(unpriced).map(mistake).chain(unknown).chain(unheard).collect()
}

/// Only one protocol has answers that go on without a connection.
fn of_background(draft: &Draft, table: &str, model: &Model) -> Option<Mistake> {
    let key = join(table, "background");
    let at = draft.origins.get(&key).filter(|_| model.background && model.api != Api::OpenaiResponses)?;
    let message = format!("`{key}`: api `{}` has no answers in the background: remove it", model.api);
    Some(Mistake { at: at.clone(), message })
}

/// A profile has one source of its key. A later layer may replace the other kind; no layer may give both.
fn of_profile(draft: &Draft, name: &str, at: &Origin) -> Option<Mistake> {
    let table = join("profiles", name);
    let given = |key: &str| draft.origins.get(&join(&table, key));
    match (given("api_key_env"), given("api_key_cmd")) {
        (None, None) => {
            let message = format!("`{table}` has no key: add `api_key_env` or `api_key_cmd`");
            Some(Mistake { at: at.clone(), message })
        }
        (Some(env), Some(cmd)) if is_one_layer(env, cmd) => {
            let message = format!("`{table}` has both `api_key_env` and `api_key_cmd`: keep one");
            Some(Mistake { at: env.max(cmd).clone(), message })
        }
        (Some(_), _) | (None, Some(_)) => None,
    }
}

fn is_one_layer(a: &Origin, b: &Origin) -> bool {
    match (a, b) {
        (Origin::File { path: a, .. }, Origin::File { path: b, .. }) => a == b,
        (Origin::Env { .. }, Origin::Env { .. }) => true,
        (Origin::Default | Origin::File { .. } | Origin::Env { .. } | Origin::Flag, _) => false,
    }
}
