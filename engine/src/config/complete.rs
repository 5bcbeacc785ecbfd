//! What must hold between keys once all layers are merged.
//!
//! Owns the checks that need more than one key. It must never change a value, nor follow a name from one
//! table to another: what `model`, `fallback` and `profiles` name is looked up when a run asks for it.

use super::draft::Draft;
use super::position::Origin;
use super::unknown::join;
use super::{Api, Mistake};

/// The mistakes of the merged configuration as a whole.
pub(super) fn mistakes(draft: &Draft) -> Vec<Mistake> {
    let models = draft.declared("models").flat_map(|(name, at)| of_model(draft, name, at));
    models.chain(draft.declared("profiles").filter_map(|(name, at)| of_profile(draft, name, at))).collect()
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
    missing.into_iter().chain(unpriced).map(mistake).collect()
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
