//! A configuration in the making: the assignments of one layer after the other.
//!
//! Owns the walk along the schema, the origin of every value, and the mistakes met on the way, collected so
//! that one attempt shows all of them. It must never skip a key in silence, nor know a key by name: that is
//! the schema's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::did_you_mean;
use super::position::Source;
use super::schema::{self, Row, Shape};
use super::unknown::{join, suggestion};
use super::value::Given;
use super::{Config, Environment, Error, Loaded, Mistake, Origin, Overrides, SECONDS_MAX, complete};

/// The size up to which a configuration file is read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

const VARIABLE_PREFIX: &str = "SPRAG__";

/// One more than the longest key path has (`models.NAME.price.input`), so that a longer one is seen as
/// unknown.
const VARIABLE_PARTS_MAX: usize = 5;

/// What the layers have said so far.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) config: Config,
    /// By path of a key: its last assignment, also one whose value was refused.
    pub(super) origins: BTreeMap<String, Origin>,
    /// By section and name: the first mention of a named table.
    declared: BTreeMap<(&'static str, String), Origin>,
    mistakes: Vec<Mistake>,
    /// Whether a file could not be read, so that absence proves nothing.
    is_partial: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfMissing {
    Skip,
    Refuse,
}

/// A layer that is being read, and the directory that relative paths in it start from.
#[derive(Clone, Copy)]
struct Layer<'a> {
    source: Source<'a>,
    base: &'a Path,
}

/// A table that is being read: its rows, its path, and the `NAME` in that path.
#[derive(Clone, Copy)]
struct Place<'a> {
    rows: &'static [Row],
    path: &'a str,
    name: &'a str,
}

const TOP: Place<'static> = Place { rows: schema::ROOT, path: "", name: "" };

impl Draft {
    /// The layer of one file; `path` is as shown to people.
    pub(super) fn file(&mut self, environment: &Environment, path: &Path, if_missing: IfMissing) {
        let full = environment.cwd.join(path);
        let text = match read(&full) {
            Ok(text) => text,
            Err(error) if if_missing == IfMissing::Skip && is_absence(&error) => return,
            Err(error) => {
                self.is_partial = true;
                let at = Origin::File { path: path.into(), line: 1, column: 1 };
                return self.mistake(at, format!("cannot be read: {error}"));
            }
        };
        let source = Source::File { path, text: &text };
        let (table, errors) = DeTable::parse_recoverable(&text);
        if errors.is_empty() {
            let base = full.parent().unwrap_or(&environment.cwd);
            return self.table(Layer { source, base }, TOP, table.get_ref());
        }
        // What the parser made of a broken file would only bring mistakes that nobody made.
        self.is_partial = true;
        for error in errors {
            let at = source.at(error.span().unwrap_or_default());
            self.mistake(at, error.message().lines().collect::<Vec<_>>().join(", "));
        }
    }

    /// The layer of the variables: `SPRAG__A__B=value` says what `a.b = value` says in a file.
    pub(super) fn variables(&mut self, environment: &Environment) {
        for (name, value) in &environment.vars {
            let Some(path) = name.strip_prefix(VARIABLE_PREFIX) else { continue };
            let source = Source::Env { name };
            let Some(text) = value.to_str() else {
                self.mistake(source.at(0..0), "expected UTF-8".into());
                continue;
            };
            let path: Vec<_> = path.splitn(VARIABLE_PARTS_MAX, "__").map(str::to_ascii_lowercase).collect();
            let nested = path.into_iter().rfold(scalar_or_list(text), |inner, key| {
                let entry = (Spanned::new(0..0, DeString::Owned(key)), Spanned::new(0..0, inner));
                DeValue::Table(DeTable::from_iter([entry]))
            });
            if let Some(table) = nested.as_table() {
                self.table(Layer { source, base: &environment.cwd }, TOP, table);
            }
        }
    }

    /// The layer of the flags.
    pub(super) fn flags(&mut self, flags: &Overrides) {
        if flags.timeout_s.is_some_and(|seconds| seconds > SECONDS_MAX) {
            self.mistake(
                Origin::Flag,
                format!("`defaults.timeout_s`: expected at most {SECONDS_MAX} seconds"),
            );
        }
        let Overrides {
            model,
            tools,
            timeout_s,
            concurrency,
            max_turns,
            max_calls,
            thinking,
            max_usd,
            max_tokens,
        } = flags.clone();
        let origins = &mut self.origins;
        let defaults = Arc::make_mut(&mut self.config.defaults);
        // Whoever asks for another model than the configured one wants just that one.
        let is_strict = model.is_some() && model != defaults.model;
        replace(origins, "defaults.fallback", &mut defaults.fallback, is_strict.then(Vec::new));
        replace(origins, "defaults.model", &mut defaults.model, model.map(Some));
        replace(origins, "defaults.tools", &mut defaults.tools, tools);
        replace(origins, "defaults.timeout_s", &mut defaults.timeout_s, timeout_s);
        replace(origins, "defaults.concurrency", &mut defaults.concurrency, concurrency);
        replace(origins, "defaults.max_turns", &mut defaults.max_turns, max_turns);
        replace(origins, "defaults.max_calls", &mut defaults.max_calls, max_calls);
        replace(origins, "defaults.thinking", &mut defaults.thinking, thinking);
        replace(origins, "defaults.max_usd", &mut defaults.max_usd, max_usd);
        replace(origins, "defaults.max_tokens", &mut defaults.max_tokens, max_tokens);
    }

    /// The merged configuration, or every mistake in the order of files and lines.
    pub(super) fn finish(mut self) -> Result<Loaded, Error> {
        if !self.is_partial {
            let more = complete::mistakes(&self);
            self.mistakes.extend(more);
        }
        self.mistakes.sort();
        if self.mistakes.is_empty() {
            Ok(Loaded { config: self.config, origins: self.origins })
        } else {
            Err(Error::Invalid(self.mistakes))
        }
    }

    /// The named tables of a section, each with its first mention.
    pub(super) fn declared(&self, section: &str) -> impl Iterator<Item = (&str, &Origin)> + Clone {
        let of_section = self.declared.iter().filter(move |((of, _), _)| *of == section);
        of_section.map(|((_, name), at)| (name.as_str(), at))
    }

    fn table(&mut self, layer: Layer<'_>, place: Place<'_>, table: &DeTable<'_>) {
        for (key, value) in table {
            self.entry(layer, place, key, value);
        }
    }

    fn entry(
        &mut self,
        layer: Layer<'_>,
        place: Place<'_>,
        key: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let path = join(place.path, key.get_ref());
        let at = layer.source.at(key.span());
        let Some((known, shape)) = place.rows.iter().find(|(known, _)| known == key.get_ref()) else {
            let meant = did_you_mean(suggestion(key.get_ref(), place.rows).as_deref());
            return self.mistake(at, format!("unknown key `{path}`{meant}"));
        };
        match shape {
            Shape::Value(set) => {
                let given = Given { value: value.get_ref(), base: layer.base };
                if let Err(reason) = set(&mut self.config, place.name, &given) {
                    self.mistake(layer.source.at(value.span()), format!("`{path}`: {reason}"));
                }
                self.origins.insert(path, at);
            }
            Shape::Table(rows) => {
                if let Some(table) = self.as_table(layer, &path, value) {
                    self.table(layer, Place { rows, path: &path, name: place.name }, table);
                }
            }
            Shape::Named(rows) => {
                if let Some(tables) = self.as_table(layer, &path, value) {
                    self.named(layer, known, rows, tables);
                }
            }
            Shape::TopLevel => self.entry(layer, TOP, key, value),
            Shape::Later => {
                self.mistake(at, format!("`{path}` is not supported yet by this version: remove it"));
            }
        }
    }

    /// The tables `[section.NAME]`.
    fn named(&mut self, layer: Layer<'_>, section: &'static str, rows: &'static [Row], tables: &DeTable<'_>) {
        for (key, value) in tables {
            let at = layer.source.at(key.span());
            let name = match layer.source {
                Source::File { .. } => key.get_ref().to_string(),
                Source::Env { .. } => match self.spelled_as_declared(section, key.get_ref()) {
                    Ok(name) => name,
                    Err(reason) => {
                        self.mistake(at, reason);
                        continue;
                    }
                },
            };
            let path = join(section, &name);
            if let Some(table) = self.as_table(layer, &path, value) {
                self.declared.entry((section, name.clone())).or_insert(at);
                self.table(layer, Place { rows, path: &path, name: &name }, table);
            }
        }
    }

    /// The name that the files gave to what a variable calls `lower`: variables cannot tell upper from lower
    /// case.
    fn spelled_as_declared(&self, section: &str, lower: &str) -> Result<String, String> {
        let alike =
            self.declared(section).map(|(name, _)| name).filter(|name| name.eq_ignore_ascii_case(lower));
        let alike: Vec<_> = alike.collect();
        match alike.as_slice() {
            [] => Ok(lower.into()),
            [name] => Ok((*name).into()),
            several if several.contains(&lower) => Ok(lower.into()),
            several => Err(format!(
                "`{section}` has {}: a variable cannot say which is meant",
                several.join(" and ")
            )),
        }
    }

    fn as_table<'v, 'i>(
        &mut self,
        layer: Layer<'_>,
        path: &str,
        value: &'v Spanned<DeValue<'i>>,
    ) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let given = Given { value: value.get_ref(), base: layer.base };
            self.mistake(layer.source.at(value.span()), format!("`{path}`: {}", given.expected("a table")));
        }
        table
    }

    fn mistake(&mut self, at: Origin, message: String) {
        self.mistakes.push(Mistake { at, message });
    }
}

fn replace<T>(origins: &mut BTreeMap<String, Origin>, key: &str, field: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *field = value;
        origins.insert(key.into(), Origin::Flag);
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The value of a variable: a TOML scalar or list, else the text itself.
fn scalar_or_list(text: &str) -> DeValue<'_> {
    let parsed = DeValue::parse(text).ok().map(Spanned::into_inner);
    parsed.filter(|value| !value.is_table()).unwrap_or_else(|| DeValue::String(text.into()))
}
