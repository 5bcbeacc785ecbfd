//! `sprag transcript`: the messages of a run.

use engine::query;
use serde_json::Value;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::{clean, field, gist};

/// Print the messages of a run, from the journal alone
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag transcript $(sprag ls --limit 1 | cut -f1)")]
pub(crate) struct Transcript {
    /// The run: its id, or the beginning of it
    run: String,
    /// Print the list of messages as JSON
    #[arg(long)]
    json: bool,
}

impl Transcript {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let store = context.journal()?;
        let run = query::find_run(&*store, &self.run)?;
        let messages = query::transcript(&*store, run)?;
        let messages: Vec<Value> = messages.iter().map(|entry| entry.message.to_json()).collect();
        let mut output = context.output();
        if self.json {
            output.json(&Value::Array(messages))?;
        } else {
            for message in &messages {
                write(&mut output, message)?;
            }
        }
        output.flush()?;
        Ok(Status::Done)
    }
}

fn write(output: &mut Output, message: &Value) -> std::io::Result<()> {
    let style = output.style;
    let role = match field(message, "role") {
        "toolResult" if message["isError"] == true => {
            style.bad(format!("{} failed", field(message, "toolName")))
        }
        "assistant" if field(message, "stopReason") == "error" => style.bad("assistant failed"),
        "assistant" if field(message, "stopReason") == "aborted" => style.bad("assistant aborted"),
        "toolResult" => style.bold(format!("{} answers", field(message, "toolName"))),
        "custom" => style.bold(field(message, "customType")),
        role => style.bold(role),
    };
    output.line(role)?;
    for block in message["content"].as_array().map(Vec::as_slice).unwrap_or_default() {
        match field(block, "type") {
            "text" => indented(output, &clean(field(block, "text")))?,
            "thinking" => indented(output, &style.dim(clean(field(block, "thinking"))))?,
            "toolCall" => {
                let call = format!("→ {} {}", field(block, "name"), gist(&block["arguments"].to_string()));
                indented(output, &clean(&call))?;
            }
            other => indented(output, &style.dim(format!("({other})")))?,
        }
    }
    let error = field(message, "errorMessage");
    if !error.is_empty() {
        // Words of the provider or the engine, not of the model.
        indented(output, &style.bad(format!("error: {}", clean(error))))?;
    }
    output.line("")
}

fn indented(output: &mut Output, text: &str) -> std::io::Result<()> {
    text.lines().try_for_each(|line| output.line(format!("  {line}")))
}
