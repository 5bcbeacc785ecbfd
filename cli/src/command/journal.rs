//! `sprag journal`: the transitions of a run.

use engine::query::{self, JournalRow, JournalRows};
use serde_json::Value;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::{field, gist};

/// Print the transitions of a run, from the journal alone
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In a pipe: seq, at, phase before, phase after, input, details and barrier, with tabs between them.

Example:
  sprag journal $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Journal {
    /// The run: its id, or the beginning of it
    run: String,
    /// Print the list of transitions as JSON
    #[arg(long)]
    json: bool,
}

const HEAD: [&str; 7] = ["SEQ", "AT", "BEFORE", "AFTER", "INPUT", "DETAILS", "BARRIER"];

impl Journal {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let store = context.journal()?;
        let run = query::find_run(&*store, &self.run)?;
        let rows = query::journal(&*store, run, 0)?;
        let mut output = context.output();
        if self.json {
            write_json(&mut output, rows)?;
        } else if output.is_terminal {
            let rows: Result<Vec<_>, Failure> = rows.map(|row| Ok(fields(&to_json(row)?))).collect();
            output.rows(&HEAD, rows?)?;
        } else {
            for row in rows {
                output.rows(&HEAD, vec![fields(&to_json(row)?)])?;
            }
        }
        output.flush()?;
        Ok(Status::Done)
    }
}

/// A list, one row a line: a journal may be long.
fn write_json(output: &mut Output, rows: JournalRows<'_>) -> Result<(), Failure> {
    output.text("[")?;
    for (at, row) in rows.enumerate() {
        output.text(if at == 0 { "" } else { ",\n" })?;
        output.text(&to_json(row)?.to_string())?;
    }
    Ok(output.text("]\n")?)
}

fn to_json(row: Result<JournalRow, engine::Error>) -> Result<Value, Failure> {
    Ok(serde_json::to_value(row?).map_err(std::io::Error::other)?)
}

fn fields(row: &Value) -> Vec<String> {
    let phase =
        |name: &str| Some(field(row, name)).filter(|phase| !phase.is_empty()).unwrap_or("-").to_owned();
    vec![
        row["seq"].to_string(),
        field(row, "at").to_owned(),
        phase("before"),
        phase("after"),
        field(row, "input").to_owned(),
        gist(field(row, "details")),
        if row["barrier"] == true { "barrier".to_owned() } else { "-".to_owned() },
    ]
}
