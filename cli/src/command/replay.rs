//! `sprag replay`: folds the journal of a run through the state machine again, and compares.

use std::sync::Arc;

use engine::{Difference, EventReader, query};
use serde_json::{Value, json};

use super::events::write_event;
use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::count;

/// Fold the journal of a run again and compare; reads the journal alone
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag replay $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Replay {
    /// The run: its id, or the beginning of it
    run: String,
    /// Stop after this record, and show the phase there
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
    /// Print the events that the records make visible
    #[arg(long)]
    events: bool,
    /// Print the result as JSON; with --events, one event a line
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let store = context.journal().map_err(Failure::while_checking)?;
        let run = query::find_run(&*store, &self.run)?;
        let replay =
            engine::replay(&*store, run, self.at).map_err(|error| Failure::from(error).while_checking())?;
        if let (Some(at), None) = (self.at, &replay.difference)
            && at >= replay.records
        {
            let last = replay.records.saturating_sub(1);
            return Err(Failure::usage(format!("run {run} has no record {at}; its last one is {last}")));
        }
        let mut output = context.output();
        if self.events {
            let mut reader = EventReader::open(Arc::clone(&store), run, None)?;
            let is_wanted =
                |event: &Value| self.at.is_none_or(|at| event["seq"].as_u64().is_none_or(|seq| seq <= at));
            super::events::read_all(&mut reader, |event| {
                if is_wanted(event) { write_event(&mut output, event, self.json) } else { Ok(()) }
            })?;
        }
        let phase = replay.state.as_ref().map(|state| state.core.phase.to_string());
        let difference = replay.difference.as_ref();
        if self.json && !self.events {
            output.json(&json!({
                "run": run.to_string(), "records": replay.records, "phase": phase,
                "difference": difference.map(|difference| json!({
                    "seq": difference.seq, "what": difference.what,
                    "is_other_version": difference.is_other_version,
                })),
            }))?;
        } else if !self.events {
            let records = count(replay.records, "record");
            output.line(match difference {
                None => format!("run {run}: {records} folded, no difference"),
                Some(difference) => format!("run {run}: {records} folded; {}", sentence(difference)),
            })?;
            if let (Some(_), Some(phase)) = (self.at, &phase) {
                output.line(format!("phase there: {phase}"))?;
            }
        }
        output.flush()?;
        match difference {
            None => Ok(Status::Done),
            Some(difference) if self.events => {
                Err(Failure::new(Status::Damage, format!("run {run}: {}", sentence(difference))))
            }
            Some(_) => Ok(Status::Damage),
        }
    }
}

fn sentence(difference: &Difference) -> String {
    let Difference { seq, what, is_other_version } = difference;
    if *is_other_version {
        format!("record {seq} was made by another version and differs: {what}; replay it with that version")
    } else {
        format!("record {seq} differs: {what}; `sprag verify` checks its bytes")
    }
}
