//! `sprag show`: one run in full.

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

/// Widest name of a field.
const WIDTH: usize = 24;

/// Plain fields first; then each group of fields below its name.
fn write(output: &mut Output, fields: &Map<String, Value>) -> std::io::Result<()> {
    let style = output.style;
    let is_group = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => items.iter().any(Value::is_object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    for (name, value) in fields.iter().filter(|(_, value)| !is_group(value)) {
        let text = if name == "status" { style.status(&plain(value)) } else { gist(&plain(value)) };
        output.line(format!("{}{text}", style.dim(format!("{name:<WIDTH$}"))))?;
    }
    for (name, value) in fields.iter().filter(|(_, value)| is_group(value)) {
        output.line(format!("\n{}", style.bold(name)))?;
        match value {
            Value::Array(items) => {
                for item in items {
                    output.line(format!("  {}", one_line(item)))?;
                }
            }
            Value::Object(fields) => {
                for (name, value) in leaves(fields) {
                    output.line(format!(
                        "  {}{}",
                        style.dim(format!("{name:<width$}", width = WIDTH - 2)),
                        plain(value)
                    ))?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
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
