//! `sprag events`: what observers of a run saw, and see.

use std::io::{self, Write};
use std::sync::Arc;

use engine::control::Request;
use engine::{EventReader, Place, query};
use serde_json::Value;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::{clean, content_text, count, field, gist};

/// Print the events of a run
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag events $(sprag ls --limit 1 | cut -f1) --follow")]
pub(crate) struct Events {
    /// The run: its id, or the beginning of it
    run: String,
    /// Only events after this place
    #[arg(long, value_name = "SEQ[.N]")]
    from: Option<Place>,
    /// Go on until the run ends, live updates included
    #[arg(long)]
    follow: bool,
    /// Print one event a line, as JSON
    #[arg(long)]
    json: bool,
}

impl Events {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let mut output = context.output();
        let (is_json, follow) = (self.json, self.follow);
        let mut show = |event: &Value| -> io::Result<()> {
            write_event(&mut output, event, is_json)?;
            // Somebody may be waiting for each.
            if follow { output.flush() } else { Ok(()) }
        };
        let (has_ended, has_owner) = match context.owner()? {
            Some(mut owner) => {
                let after = self.from.map(|from| from.to_string());
                let request = Request::Events { run: self.run, after, follow };
                (owner.follow::<bool>(&request, |event| show(&event))?, true)
            }
            None => {
                let store = context.journal()?;
                let run = query::find_run(&*store, &self.run)?;
                let mut reader = EventReader::open(Arc::clone(&store), run, self.from)?;
                (read_all(&mut reader, show)?, false)
            }
        };
        output.flush()?;
        if follow && !has_ended {
            let what = if has_owner { "the engine has stopped" } else { "no engine runs" };
            let next = context.next("resume");
            // Not part of the events.
            let _ = writeln!(io::stderr(), "{what}, and the run has not ended; to continue it: {next}");
        }
        Ok(Status::Done)
    }
}

/// Shows everything that a reader has; answers whether the run has ended.
pub(super) fn read_all(
    reader: &mut EventReader,
    mut show: impl FnMut(&Value) -> io::Result<()>,
) -> Result<bool, Failure> {
    loop {
        let events = reader.read()?;
        if events.is_empty() {
            return Ok(reader.has_ended());
        }
        for event in events {
            show(&event.to_json())?;
        }
    }
}

/// Writes one event, as JSON or as a line for a person.
pub(super) fn write_event(output: &mut Output, event: &Value, is_json: bool) -> io::Result<()> {
    if is_json {
        return output.json(event);
    }
    let style = output.style;
    let place = match (event.get("seq"), event.get("n")) {
        (Some(seq), Some(n)) => format!("{seq}.{n}"),
        _ => "live".to_owned(),
    };
    let time = field(event, "at").get(11..23).unwrap_or_default().to_owned();
    let line = format!("{place:>8}  {}  {:<22}{}", style.dim(time), field(event, "type"), gist_of(event));
    output.line(line.trim_end())
}

fn gist_of(event: &Value) -> String {
    let message = || {
        let message = &event["message"];
        let text = gist(&content_text(&message["content"]));
        format!("{}  {text}", field(message, "role"))
    };
    let many = |name: &str, noun: &str| {
        let items = event.get(name).and_then(Value::as_array).map_or(0, Vec::len);
        count(items as u64, noun)
    };
    match field(event, "type") {
        "message_start" | "message_end" => message(),
        "message_update" => {
            let update = &event["assistantMessageEvent"];
            format!("{}  {}", field(update, "type"), gist(field(update, "delta")))
        }
        "tool_execution_start" => {
            format!("{}  {}", clean(field(event, "toolName")), gist(&event["args"].to_string()))
        }
        "tool_execution_update" => {
            format!(
                "{}  {}",
                clean(field(event, "toolName")),
                gist(&content_text(&event["partialResult"]["content"]))
            )
        }
        "tool_execution_end" => {
            let how = if event["isError"] == true { "failed" } else { "ok" };
            let text = gist(&content_text(&event["result"]["content"]));
            format!("{}  {how}  {text}", clean(field(event, "toolName")))
        }
        "turn_end" => many("toolResults", "result"),
        "agent_end" => many("messages", "message"),
        _ => String::new(),
    }
}
