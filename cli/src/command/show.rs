//! `sprag show`: one run in full.

use std::io;

use engine::control::Request;
use engine::query;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::{count, field, gist, plain};

/// Show one run in full
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag show $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Show {
    /// The run: its id, or the beginning of it
    run: String,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let request = Request::Show { run: self.run.clone() };
        let view = context.ask(&request, |store| query::show(store, query::find_run(store, &self.run)?))?;
        let mut output = context.output();
        if self.json {
            output.json(&view)?;
        } else if let Value::Object(fields) = &view {
            write(&mut output, fields)?;
        }
        output.flush()?;
        Ok(Status::Done)
    }
}

/// What [`plain`] says of nothing.
const NONE: &str = "-";
/// The most turns that a person is shown; programs get all there are.
const TURNS_SHOWN_MAX: usize = 20;

/// Plain fields first; then each group of fields below its name. What is none, and in a group also what is zero, is left
/// out; programs get it.
fn write(output: &mut Output, fields: &Map<String, Value>) -> io::Result<()> {
    let style = output.style;
    let (groups, singles): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| is_group(value));
    let singles: Vec<_> = singles.into_iter().filter(|(_, value)| plain(value) != NONE).collect();
    let width = width(singles.iter().map(|(name, _)| name.as_str()));
    for (name, value) in singles {
        let text = if name == "status" { style.status(&plain(value)) } else { gist(&plain(value)) };
        output.line(format!("{}{text}", style.dim(format!("{name:<width$}"))))?;
    }
    for (name, value) in groups {
        let leaves = value.as_object().map(|fields| leaves(name, fields)).unwrap_or_default();
        if value.is_object() && leaves.is_empty() {
            continue;
        }
        output.line(format!("\n{}", style.bold(name)))?;
        if name == "turn_table" {
            turns(output, value.as_array().map_or(&[], Vec::as_slice))?;
            continue;
        }
        for item in value.as_array().into_iter().flatten() {
            output.line(format!("  {}", one_line(item)))?;
        }
        let width = self::width(leaves.iter().map(|(name, _)| name.as_str()));
        for (name, text) in leaves {
            output.line(format!("  {}{text}", style.dim(format!("{name:<width$}"))))?;
        }
    }
    Ok(())
}

/// A turn a line, the newest last. Of the earlier ones there is a word.
fn turns(output: &mut Output, turns: &[Value]) -> io::Result<()> {
    let left_out = turns.len().saturating_sub(TURNS_SHOWN_MAX);
    if left_out > 0 {
        output.line(format!("  {} before these: --json has them", count(left_out as u64, "turn")))?;
    }
    let shown = turns.iter().skip(left_out).map(cells);
    if output.is_terminal {
        return output.rows(&TURN_COLUMNS.map(|(head, _)| head), shown.collect());
    }
    for cells in shown {
        let named = TURN_COLUMNS.iter().zip(cells).filter(|(_, cell)| cell != "-");
        let named: Vec<String> = named.map(|((head, _), cell)| format!("{head} {cell}")).collect();
        output.line(format!("  {}", named.join("  ")))?;
    }
    Ok(())
}

/// The columns of a turn: what each is called, and where it is found.
const TURN_COLUMNS: [(&str, &str); 13] = [
    ("turn", "/turn"),
    ("model", "/model"),
    ("profile", "/profile"),
    ("calls", "/model_calls"),
    ("lost", "/calls_lost"),
    ("lost_tokens", "/lost/tokens"),
    ("lost_usd", "/lost/usd"),
    ("input", "/usage/input"),
    ("output", "/usage/output"),
    ("cache_read", "/usage/cache_read"),
    ("cache_write", "/usage/cache_write"),
    ("usd", "/usd"),
    ("tools", "/tools"),
];

/// The cells of a turn. Of what it had none there is nothing to read but the first columns.
fn cells(turn: &Value) -> Vec<String> {
    let cell = |(_, path): &(&str, &str)| {
        let value = turn.pointer(path).unwrap_or(&Value::Null);
        let is_shown = matches!(*path, "/turn" | "/model_calls" | "/usd");
        let text = if is_none(value) && !is_shown { NONE.to_owned() } else { gist(&plain(value)) };
        match field(turn, "usd_is") {
            sure @ ("estimated" | "unknown") if *path == "/usd" => format!("{text} ({sure})"),
            _ => text,
        }
    };
    TURN_COLUMNS.iter().map(cell).collect()
}

fn is_group(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => items.iter().any(Value::is_object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The width of a column of names.
fn width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).max().unwrap_or(0) + 2
}

/// True for what there is none of.
fn is_none(value: &Value) -> bool {
    match value {
        Value::Bool(is_so) => !is_so,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Null | Value::Array(_) | Value::Object(_) => plain(value) == NONE,
    }
}

/// The fields of a group that say something; those of a group in it carry both names. A limit of 0 is none.
fn leaves(group: &str, fields: &Map<String, Value>) -> Vec<(String, String)> {
    let mut leaves = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Object(inner) => {
                leaves.extend(inner.iter().map(|(inner, value)| (format!("{name}.{inner}"), value)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                leaves.push((name.clone(), value));
            }
        }
    }
    let text = |value: &Value| match is_none(value) {
        true if group == "limits" => Some("no cap".to_owned()),
        true => None,
        false => Some(plain(value)),
    };
    leaves.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

fn one_line(item: &Value) -> String {
    let Value::Object(fields) = item else { return plain(item) };
    let fields = fields.iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name} {}", gist(&plain(value)))).collect::<Vec<_>>().join("  ")
}
