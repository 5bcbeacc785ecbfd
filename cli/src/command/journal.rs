//! `sprag journal`: the transitions of a run.

use engine::query;
use serde_json::Value;

use crate::context::Context;
use crate::failure::Failure;
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
    /// Print one transition a line, as JSON
    #[arg(long)]
    json: bool,
}

const HEAD: [&str; 7] = ["SEQ", "AT", "BEFORE", "AFTER", "INPUT", "DETAILS", "BARRIER"];

impl Journal {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let store = context.journal()?;
        let run = query::find_run(&*store, &self.run)?;
        let mut output = context.output();
        let mut rows = Vec::new();
        for row in query::journal(&*store, run, 0)? {
            let row = serde_json::to_value(row?).unwrap_or_default();
            if self.json {
                output.json(&row)?;
            } else if output.is_terminal {
                rows.push(fields(&row));
            } else {
                output.rows(&HEAD, vec![fields(&row)])?;
            }
        }
        if !rows.is_empty() {
            output.rows(&HEAD, rows)?;
        }
        output.flush()?;
        Ok(Status::Done)
    }
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
