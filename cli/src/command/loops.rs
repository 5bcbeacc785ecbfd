//! `sprag loops`: what the loop detectors say of histories of tool calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use model::guard::loops::{
    CallFacts, CallHash, RunHash, ToolHash, ToolKind, ToolOutcome, Window, call_facts, classify,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::failure::Failure;
use crate::status::Status;
use crate::text::content_text;

/// Say what the loop detectors find in histories of tool calls
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A line holds a question,
  {\"id\", \"history\": [{\"tool\", \"args\", \"outcome\", \"runId\"}], \"next\": {\"tool\", \"args\"}},
or the messages of a transcript, whose last call is then the next one.

Example:
  echo '{\"id\":\"a\",\"history\":[],\"next\":{\"tool\":\"read\",\"args\":{}}}' | sprag loops -")]
pub(crate) struct Loops {
    /// File with one JSON value a line; `-` reads stdin
    file: PathBuf,
}

/// A line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Question(Question),
    Messages(Vec<Value>),
    Transcript {
        #[serde(default)]
        id: Value,
        messages: Vec<Value>,
    },
}

#[derive(Deserialize)]
struct Question {
    #[serde(default)]
    id: Value,
    history: Vec<Call>,
    next: Call,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Call {
    tool: String,
    #[serde(default)]
    args: Value,
    outcome: Option<Outcome>,
    run_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Result(Value),
    Error(String),
}

impl Loops {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        let mut output = context.output();
        for (at, line) in (1..).zip(open(&self.file)?.lines()) {
            let line = line.map_err(|error| Failure::usage(format!("line {at} cannot be read: {error}")))?;
            if line.trim().is_empty() {
                continue;
            }
            match parse(&line) {
                Ok(question) => output.json(&answer(&question))?,
                Err(reason) => {
                    output.flush()?;
                    return Err(Failure::usage(format!("line {at} of {}: {reason}", self.file.display())));
                }
            }
        }
        output.flush()?;
        Ok(Status::Done)
    }
}

fn open(file: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = File::open(file).map_err(|error| {
        Failure::usage(format!("{} cannot be read ({error}); name a file, or - for stdin", file.display()))
    })?;
    Ok(Box::new(BufReader::new(opened)))
}

fn parse(line: &str) -> Result<Question, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    let expected = "neither a question {\"id\",\"history\",\"next\"} nor a list of messages";
    let (id, messages) = match serde_json::from_value(value).map_err(|_| expected)? {
        Line::Question(question) => return Ok(question),
        Line::Messages(messages) => (Value::Null, messages),
        Line::Transcript { id, messages } => (id, messages),
    };
    let mut history = calls_of(&messages);
    let next = history.pop().ok_or("the transcript has no tool call")?;
    Ok(Question { id, history, next })
}

/// The calls of a transcript, each with what it led to.
fn calls_of(messages: &[Value]) -> Vec<Call> {
    let mut results: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for message in messages.iter().rev().filter(|message| message["role"] == "toolResult") {
        results.entry(message["toolCallId"].as_str().unwrap_or_default()).or_default().push(message);
    }
    let answers = messages.iter().filter(|message| message["role"] == "assistant");
    let blocks =
        answers.flat_map(|answer| answer["content"].as_array().map(Vec::as_slice).unwrap_or_default());
    let calls = blocks.filter(|block| block["type"] == "toolCall");
    calls
        .map(|call| {
            // An id that comes again is of a later call: results are taken in their order.
            let result = results.get_mut(call["id"].as_str().unwrap_or_default()).and_then(Vec::pop);
            Call {
                tool: call["name"].as_str().unwrap_or_default().to_owned(),
                args: call["arguments"].clone(),
                outcome: result.map(outcome_of),
                run_id: None,
            }
        })
        .collect()
}

/// As the engine sees a result: one that only reports an error counts as that error.
fn outcome_of(message: &Value) -> Outcome {
    let (content, details) = (&message["content"], &message["details"]);
    if message["isError"] == true && (details.is_null() || *details == json!({})) {
        return Outcome::Error(content_text(content));
    }
    Outcome::Result(json!({ "content": content, "details": details }))
}

impl Call {
    fn run(&self) -> Option<RunHash> {
        self.run_id.as_deref().and_then(RunHash::of)
    }

    /// The reference calls it `exec`; detection treats both alike.
    fn name(&self) -> &str {
        if self.tool == "bash" { "exec" } else { &self.tool }
    }

    fn facts(&self) -> CallFacts {
        call_facts(self.name(), &self.args, ToolKind::of_reference_name(self.name()))
    }
}

fn answer(question: &Question) -> Value {
    let mut window = Window::default();
    for (at, call) in question.history.iter().enumerate() {
        let facts = call.facts();
        let id = CallHash::of(&format!("call-{at}"));
        window.record_call(call.run(), &facts, id);
        let outcome = match &call.outcome {
            Some(Outcome::Result(result)) => ToolOutcome::Result(result),
            Some(Outcome::Error(text)) => ToolOutcome::Error(text),
            None => continue,
        };
        window.record_outcome(call.run(), &facts, id, classify(&facts, outcome));
    }
    let Question { id, history, next } = question;
    let facts = next.facts();
    let mut out = Map::new();
    out.insert("id".into(), id.clone());
    let verdict = window.verdict(next.run(), &facts);
    out.insert("stuck".into(), verdict.is_some().into());
    if let Some(finding) = verdict {
        out.insert("level".into(), finding.level.name().into());
        out.insert("detector".into(), finding.detector.name().into());
        out.insert("count".into(), finding.count.into());
        let paired = finding.paired.and_then(|paired| {
            history.iter().find(|call| ToolHash::of(call.name()) == paired).map(|call| call.tool.as_str())
        });
        if let Some(paired) = paired {
            out.insert("pairedTool".into(), paired.into());
        }
        if finding.is_churning {
            out.insert("livenessSignal".into(), "argument_churn".into());
        }
    }
    match window.times_blocked(next.run(), &facts) {
        0 => {}
        times => drop(out.insert("blocked_repeat".into(), times.into())),
    }
    Value::Object(out)
}
