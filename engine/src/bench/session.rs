//! The recorded session that the measured runs repeat: its texts, and the tool that answers in it.
//!
//! Owns the sizes of messages. Each round asks for something else, so that no loop detector has reason to
//! speak.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use async_trait::async_trait;
use model::encode::Encoded;
use model::input::RecoveryClass;
use model::message::{AssistantMessage, StopReason, ToolCall, Usage};
use model::state::{Owner, Wants};
use model::{Block, Fact, Input, JsonText, Mark, Millis, Moved, RunId, RunState, ToolResult};
use serde_json::{Value, json};

use super::meter::Latencies;
use crate::config::Config;
use crate::configs::Settings;
use crate::job::{self, Job, Requested};
use crate::runs::lock;
use crate::tool::{CallContext, Tool, ToolSpec};

/// Tool rounds of a run; a closing answer follows them.
pub(super) const ROUNDS: u32 = 20;
/// Name of the tool.
const TOOL: &str = "echo";
/// Name of the model.
pub(super) const MODEL: &str = "rehearsal";

const PROMPT: &str = "list files please";
const THINKING: &str = "need to look";
const TEXT: &str = "Running ls.";
const COMMAND: &str = "echo hi-from-tool";
const OUTPUT: &str = "hi-from-tool";
const CLOSING: &str = "Done: the tool said hi.";

/// The rehearsal of one run.
pub(super) fn script() -> Value {
    let round = |round: u32| {
        let args = json!({ "command": format!("{COMMAND} {round}") });
        json!({ "thinking": THINKING, "text": TEXT, "calls": [{ "tool": TOOL, "args": args }] })
    };
    let turns = (0..ROUNDS).map(round).chain([json!({ "text": CLOSING })]);
    json!({ "turns": turns.collect::<Vec<_>>() })
}

/// The job of one run.
pub(super) fn job() -> Job {
    Job::new(PROMPT).model(MODEL).tools([TOOL])
}

/// What a run commits most: the record of an answer, and the core of its state.
pub(super) fn record_and_core() -> (Vec<u8>, Vec<u8>) {
    let run = RunId([0x5a; 16]);
    let owner = Owner { epoch: 1, boot_id: [0x5a; 16] };
    let model = Requested {
        name: MODEL.into(),
        identity: String::new(),
        candidates: Arc::default(),
        models: Default::default(),
    };
    let settings = Settings::new(Config::default());
    let submitted = job::submission(run, owner, &job(), &settings, Wants::default(), model);
    let Ok((submission, _)) = submitted else { return Default::default() };
    let state = RunState::new(&submission, NOW);
    let (_, parts) = Encoded::all(&state);
    let core = parts.into_iter().find_map(|(_, bytes)| bytes).unwrap_or_default();
    let fact = Fact::ModelAnswered { message: Box::new(answer()) };
    let input = Input { at: NOW, waiting: Default::default(), fact };
    let moved = Moved {
        input,
        marks: vec![Mark::TurnStart; 3],
        made: Vec::new(),
        results: Vec::new(),
        decision: None,
    };
    (moved.to_bytes(), core)
}

/// A time that takes as many bytes as the present.
pub(super) const NOW: Millis = Millis(1_796_035_125_784);

fn answer() -> AssistantMessage {
    let arguments = JsonText::from(&json!({ "command": COMMAND }));
    let call = ToolCall { id: "call-0-0".to_owned(), name: TOOL.to_owned(), arguments, is_duplicate: false };
    let thinking = Block::Thinking { text: THINKING.to_owned(), signature: None };
    AssistantMessage {
        content: vec![thinking, Block::Text(TEXT.to_owned()), Block::ToolCall(call)],
        api: MODEL.to_owned(),
        provider: MODEL.to_owned(),
        model: MODEL.to_owned(),
        response_id: None,
        turn_id: Some(model::answer::turn_id(RunId([0x5a; 16]), 0)),
        usage: Usage { input: 1_000, output: 20, ..Usage::default() },
        stop_reason: StopReason::ToolUse,
        error_message: None,
        is_tainted: false,
        at: NOW,
    }
}

/// Answers with what the command would print, and notes how long ago the run's last call was: one turn.
pub(super) struct Echo {
    spec: ToolSpec,
    turns: Arc<Mutex<Turns>>,
}

/// How long turns took.
#[derive(Default)]
pub(super) struct Turns {
    last: HashMap<RunId, Instant>,
    pub(super) latencies: Latencies,
}

impl Echo {
    pub(super) fn new(turns: Arc<Mutex<Turns>>) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": { "command": { "type": "string", "description": "The command" } },
            "required": ["command"],
        });
        let spec = ToolSpec::new(TOOL, "Answers at once.", parameters).class(RecoveryClass::ReadOnly);
        Self { spec, turns }
    }
}

#[async_trait]
impl Tool for Echo {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        lock(&self.turns).note(call.run);
        let round = call.args["command"].as_str().and_then(|command| command.strip_prefix(COMMAND));
        Ok(ToolResult::text(format!("{OUTPUT}{}\n", round.unwrap_or_default())))
    }
}

impl Turns {
    fn note(&mut self, run: RunId) {
        let now = Instant::now();
        if let Some(last) = self.last.insert(run, now) {
            self.latencies.note(now - last);
        }
    }

    /// A run has ended: it has no next turn.
    pub(super) fn forget(&mut self, run: RunId) {
        self.last.remove(&run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_of_the_recorded_session() {
        let recorded = include_str!("../../../tests/cases/sessions/pi-events.jsonl");
        for text in [PROMPT, THINKING, TEXT, COMMAND, OUTPUT, CLOSING] {
            assert!(recorded.contains(&format!("\"{text}")), "{text}");
        }
    }
}
