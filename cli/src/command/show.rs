//! `sprag show`: one run in full.

use std::io;

use engine::control::Request;
use engine::query;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::{gist, plain};

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

/// Plain fields first; then each group of fields below its name.
fn write(output: &mut Output, fields: &Map<String, Value>) -> io::Result<()> {
    let style = output.style;
    let (groups, singles): (Vec<_>, Vec<_>) = fields.iter().partition(|(_, value)| is_group(value));
    let width = width(singles.iter().map(|(name, _)| name.as_str()));
    for (name, value) in singles {
        let text = if name == "status" { style.status(&plain(value)) } else { gist(&plain(value)) };
        output.line(format!("{}{text}", style.dim(format!("{name:<width$}"))))?;
    }
    for (name, value) in groups {
        output.line(format!("\n{}", style.bold(name)))?;
        for item in value.as_array().into_iter().flatten() {
            output.line(format!("  {}", one_line(item)))?;
        }
        let leaves = value.as_object().map(leaves).unwrap_or_default();
        let width = self::width(leaves.iter().map(|(name, _)| name.as_str()));
        for (name, value) in leaves {
            output.line(format!("  {}{}", style.dim(format!("{name:<width$}")), plain(value)))?;
        }
    }
    Ok(())
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

/// The fields of a group; those of a group in it carry both names.
fn leaves(fields: &Map<String, Value>) -> Vec<(String, &Value)> {
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
    leaves
}

fn one_line(item: &Value) -> String {
    let Value::Object(fields) = item else { return plain(item) };
    let fields = fields.iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name} {}", gist(&plain(value)))).collect::<Vec<_>>().join("  ")
}
