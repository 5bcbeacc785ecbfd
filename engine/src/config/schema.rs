//! Every key that a file or a variable may have: one row each, with the way it is read and the field it sets.
//!
//! Owns the list of known keys; there is no second one. A row must never look at another key: what holds
//! between keys is checked in `complete.rs`, after all layers are merged.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::value::Given;
use super::{Api, Config, Defaults, Model, OUTPUT_BYTES, OUTPUT_SPOOL_BYTES, Price, Profile, Tool};

/// A key and what it holds.
pub(super) type Row = (&'static str, Shape);

/// Reads a value and stores it; the text is `NAME` of the table it stands in.
pub(super) type Set = fn(&mut Config, &str, &Given<'_>) -> Result<(), String>;

/// What a key holds.
pub(super) enum Shape {
    /// A value.
    Value(Set),
    /// A table with these keys.
    Table(&'static [Row]),
    /// Tables of any name, each with these keys.
    Named(&'static [Row]),
    /// What the same key at the top level holds: it belongs there, but a line written below the last line of
    /// `[defaults]` is, for TOML, inside of it.
    TopLevel,
    /// Something of a later version.
    Later,
}

use Shape::{Later, Named, Table, TopLevel, Value};

/// The top level.
pub(super) static ROOT: &[Row] = &[
    ("models", Named(MODEL)),
    ("profiles", Named(PROFILE)),
    ("defaults", Table(DEFAULTS)),
    ("tools", Named(TOOL)),
    ("durable_workspace", Value(|c, _, v| put(&mut c.durable_workspace, v.boolean()))),
    ("sync_spool", Value(|c, _, v| put(&mut c.sync_spool, v.boolean()))),
    ("policy", Later),
    ("mcp", Later),
];

static MODEL: &[Row] = &[
    ("api", Value(|c, name, v| put(&mut model(c, name).api, v.choice()))),
    ("base_url", Value(|c, name, v| put(&mut model(c, name).base_url, v.address().map(Some)))),
    ("model", Value(|c, name, v| put(&mut model(c, name).model, v.text().map(Some)))),
    ("file", Value(|c, name, v| put(&mut model(c, name).file, v.path().map(Some)))),
    ("profiles", Value(|c, name, v| put(&mut model(c, name).profiles, v.names()))),
    ("api_key_env", Value(|c, name, v| put(&mut model(c, name).api_key_env, v.variable().map(Some)))),
    (
        "context_window",
        Value(|c, name, v| put(&mut model(c, name).context_window, v.whole(1..=MANY).map(Some))),
    ),
    ("max_output", Value(|c, name, v| put(&mut model(c, name).max_output, v.whole(1..=MANY).map(Some)))),
    ("idle_timeout_s", Value(|c, name, v| put(&mut model(c, name).idle_timeout_s, v.seconds().map(Some)))),
    ("price", Table(PRICE)),
    ("tool_choice", Value(|c, name, v| put(&mut model(c, name).tool_choice, v.choice()))),
    ("background", Value(|c, name, v| put(&mut model(c, name).background, v.boolean()))),
];

static PRICE: &[Row] = &[
    ("input", Value(|c, name, v| put(&mut price(c, name).input, v.usd()))),
    ("output", Value(|c, name, v| put(&mut price(c, name).output, v.usd()))),
    ("cache_read", Value(|c, name, v| put(&mut price(c, name).cache_read, v.usd().map(Some)))),
    ("cache_write", Value(|c, name, v| put(&mut price(c, name).cache_write, v.usd().map(Some)))),
    ("as_of", Value(|c, name, v| put(&mut price(c, name).as_of, v.day().map(Some)))),
];

static PROFILE: &[Row] = &[
    ("api_key_env", Value(|c, name, v| profile(c, name, v.variable().map(Profile::ApiKeyEnv)))),
    ("api_key_cmd", Value(|c, name, v| profile(c, name, v.text().map(Profile::ApiKeyCmd)))),
];

static DEFAULTS: &[Row] = &[
    ("model", Value(|c, _, v| put(&mut defaults(c).model, v.text().map(Some)))),
    ("fallback", Value(|c, _, v| put(&mut defaults(c).fallback, v.names()))),
    ("tools", Value(|c, _, v| put(&mut defaults(c).tools, v.names()))),
    ("timeout_s", Value(|c, _, v| put(&mut defaults(c).timeout_s, v.seconds()))),
    ("tool_timeout_s", Value(|c, _, v| put(&mut defaults(c).tool_timeout_s, v.seconds()))),
    ("tool_execution", Value(|c, _, v| put(&mut defaults(c).tool_execution, v.choice()))),
    ("concurrency", Value(|c, _, v| put(&mut defaults(c).concurrency, slots(v)))),
    ("max_turns", Value(|c, _, v| put(&mut defaults(c).max_turns, v.whole(0..=MANY)))),
    ("max_calls", Value(|c, _, v| put(&mut defaults(c).max_calls, v.whole(0..=MANY)))),
    ("thinking", Value(|c, _, v| put(&mut defaults(c).thinking, v.choice()))),
    ("loop_detection", Value(|c, _, v| put(&mut defaults(c).loop_detection, v.boolean()))),
    ("max_usd", Value(|c, _, v| put(&mut defaults(c).max_usd, v.usd()))),
    ("max_tokens", Value(|c, _, v| put(&mut defaults(c).max_tokens, v.whole(0..=MANY)))),
    ("durable_workspace", TopLevel),
    ("sync_spool", TopLevel),
];

static TOOL: &[Row] = &[
    ("sandbox", Later),
    ("on_unknown", Value(|c, name, v| put(&mut tool(c, name).on_unknown, v.choice()))),
    ("output_bytes_max", Value(|c, name, v| put(&mut tool(c, name).output_bytes_max, v.whole(OUTPUT_BYTES)))),
    (
        "output_spool_bytes_max",
        Value(|c, name, v| put(&mut tool(c, name).output_spool_bytes_max, v.whole(OUTPUT_SPOOL_BYTES))),
    ),
    ("timeout_s", Value(|c, name, v| put(&mut tool(c, name).timeout_s, v.seconds().map(Some)))),
];

const MANY: u64 = u64::MAX;

fn put<T>(field: &mut T, read: Result<T, String>) -> Result<(), String> {
    *field = read?;
    Ok(())
}

/// The api is a stand-in until its row is read, and the one that needs no other key, so that a mistake in it
/// brings no others with it. `complete.rs` refuses a model whose api no layer gives.
fn model<'a>(config: &'a mut Config, name: &str) -> &'a mut Model {
    let models = Arc::make_mut(&mut config.models);
    models.entry(name.into()).or_insert_with(|| Model::new(Api::Replay))
}

fn price<'a>(config: &'a mut Config, name: &str) -> &'a mut Price {
    model(config, name).price.get_or_insert_default()
}

fn profile(config: &mut Config, name: &str, read: Result<Profile, String>) -> Result<(), String> {
    Arc::make_mut(&mut config.profiles).insert(name.into(), read?);
    Ok(())
}

fn defaults(config: &mut Config) -> &mut Defaults {
    Arc::make_mut(&mut config.defaults)
}

fn tool<'a>(config: &'a mut Config, name: &str) -> &'a mut Tool {
    Arc::make_mut(&mut config.tools).entry(name.into()).or_default()
}

fn slots(given: &Given<'_>) -> Result<NonZeroU32, String> {
    let number = given.whole(1..=u32::MAX.into())?;
    u32::try_from(number).and_then(NonZeroU32::try_from).map_err(|error| error.to_string())
}
