//! `sprag ls`: the list of runs.

use std::io::Write;

use engine::control::Request;
use engine::query::{self, Filter};
use serde_json::Value;

use crate::arguments::label;
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::{count, field, plain};

/// List runs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
In a pipe: run, status, turns, updated_at, model, custom_id, session and waiting_for, with tabs between them.

Example:
  sprag ls --status parked")]
pub(crate) struct Ls {
    /// Only runs in this status: queued, running, waiting, parked, completed, failed, blocked, cancelled or timed_out
    #[arg(long, value_name = "STATUS")]
    status: Option<query::Status>,
    /// Only runs of this batch
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
    /// Only runs of this session
    #[arg(long, value_name = "KEY")]
    session: Option<String>,
    /// Only runs with this label; may be given more than once
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Most runs; 0 for all [default: 100, and stderr says if there are more]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let filter = Filter {
            status: self.status,
            batch: self.batch,
            session: self.session,
            labels: self.labels.into_iter().collect(),
            // One more than are shown tells whether there are more.
            limit: self.limit.unwrap_or(LIMIT_DEFAULT + 1),
        };
        let request = Request::Ls { filter: filter.clone() };
        let mut list = context.ask(&request, |store| query::list(store, &filter))?;
        let found = list.as_array_mut().filter(|_| self.limit.is_none());
        let has_more = found.is_some_and(|runs| {
            let has_more = runs.len() > LIMIT_DEFAULT;
            runs.truncate(LIMIT_DEFAULT);
            has_more
        });
        let mut output = context.output();
        if self.json {
            output.json(&list)?;
        } else {
            let runs = list.as_array().map(Vec::as_slice).unwrap_or_default();
            let rows = runs.iter().map(|run| row(run, output.is_terminal)).collect();
            output.rows(&HEAD, rows)?;
        }
        output.flush()?;
        if has_more {
            let _ = writeln!(
                std::io::stderr(),
                "the newest {LIMIT_DEFAULT} runs are shown and there are more; --limit 0 shows all"
            );
        }
        if list.as_array().is_some_and(Vec::is_empty) && !self.json {
            // Not an error, and nothing for a pipe.
            let is_filtered = filter.status.is_some()
                || filter.batch.is_some()
                || filter.session.is_some()
                || !filter.labels.is_empty();
            let none = if is_filtered { "no run matches" } else { "no runs" };
            let _ = writeln!(std::io::stderr(), "{none} in {}", context.dir().display());
        }
        let left = list.as_array().map_or(0, |runs| runs.iter().filter(|run| goes_on_by_itself(run)).count());
        if left > 0 && !self.json && context.owner()?.is_none() {
            let (runs, next) = (count(left as u64, "run"), context.next("resume"));
            let _ =
                writeln!(std::io::stderr(), "no engine is at work here; `{next}` continues {runs} of these");
        }
        Ok(Status::Done)
    }
}

const HEAD: [&str; 8] = ["RUN", "STATUS", "TURNS", "UPDATED", "MODEL", "JOB", "SESSION", "WAITING FOR"];
/// Runs that are shown if nobody says how many.
const LIMIT_DEFAULT: usize = 100;
/// Digits of a run id that a table has; nearly always more than enough to name it.
const DIGITS: usize = 12;
/// Characters of a name that a table has.
const NAME_CHARS_MAX: usize = 24;

fn row(run: &Value, is_table: bool) -> Vec<String> {
    let id = field(run, "run");
    let of = |name: &str| run.get(name).map_or_else(|| "-".to_owned(), plain);
    // The session of a run that named none is the run itself.
    let session = if field(run, "session") == id { "-".to_owned() } else { of("session") };
    let row = ["run", "status", "turns", "updated_at", "model", "custom_id"].map(of);
    let row = row.into_iter().chain([session, of("waiting_for")]);
    if !is_table {
        return row.collect();
    }
    row.zip(HEAD)
        .map(|(text, head)| if head == "RUN" { first(&text, DIGITS) } else { short(head, text) })
        .collect()
}

/// True for a run that needs nobody but an engine.
fn goes_on_by_itself(run: &Value) -> bool {
    ["queued", "running", "waiting"].contains(&field(run, "status"))
}

fn short(head: &str, text: String) -> String {
    let is_name = ["MODEL", "JOB", "SESSION"].contains(&head);
    let chars = text.chars().count();
    if is_name && chars > NAME_CHARS_MAX {
        // Of a path the end says more than the beginning.
        let end: String = text.chars().skip(chars - NAME_CHARS_MAX + 1).collect();
        return format!("…{end}");
    }
    text
}

fn first(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
