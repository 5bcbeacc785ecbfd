//! What the tests of the model share: a run driven by short texts (`> answered calls 2`), and what it shows
//! as text.
//!
//! Owns the words of the scripts. It must never decide anything that `advance` decides.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod facts;
pub(crate) mod print;

use model::input::{Approval, Extension, Fact, HookAnswer, HookCall, Input, NextTurn, Waiting};
use model::input::{Hook, OnUnknown, Resolution, Suspicion};
use model::message::Usage;
use model::phase::{EntryRef, Phase};
use model::state::{Limits, Owner, Wants};
use model::{Budget, Scope, Shortage};
use model::{Label, Message, Millis, Moved, RunId, RunState, Submission, ToolResult, advance};

/// When every scripted run is submitted.
pub(crate) const START: Millis = Millis(1_000_000);
/// The boot on which every scripted run is submitted.
pub(crate) const BOOT: [u8; 16] = [1; 16];

/// Every hook with its name.
pub(crate) const HOOKS: [(&str, Hook); 8] = [
    ("before_agent_run", Hook::BeforeAgentRun),
    ("before_tool_batch", Hook::BeforeToolBatch),
    ("before_tool_call", Hook::BeforeToolCall),
    ("after_tool_call", Hook::AfterToolCall),
    ("after_tool_outcome", Hook::AfterToolOutcome),
    ("prepare_next_turn", Hook::PrepareNextTurn),
    ("should_stop_after_turn", Hook::ShouldStopAfterTurn),
    ("before_finalize", Hook::BeforeFinalize),
];

/// What every test submits.
pub(crate) fn submission(wants: Wants, limits: Limits) -> Submission {
    Submission {
        run: RunId([7; 16]),
        owner: Owner { epoch: 1, boot_id: BOOT },
        session: "main".to_owned(),
        prompts: vec![Message::user("hi", START)],
        base: Vec::new(),
        model: Label::from("rehearsal"),
        thinking: Label::from("low"),
        wants,
        limits,
        job: model::JsonText::empty(),
    }
}

/// The state of a run that was just submitted.
pub(crate) fn submitted(wants: Wants, limits: Limits) -> RunState {
    RunState::new(&submission(wants, limits), START)
}

/// A run, its journal, and what the script has said about the outside so far.
pub(crate) struct Script {
    pub(crate) state: RunState,
    pub(crate) journal: Vec<Moved>,
    at: Millis,
    control: u64,
    calls: u32,
}

impl Script {
    /// A run as its header says: `sources retries hooks=before_tool_call,after_tool_call turns=2`.
    pub(crate) fn new(header: &str) -> Self {
        let (wants, limits) = header_of(header);
        Self { state: submitted(wants, limits), journal: Vec::new(), at: START, control: 0, calls: 0 }
    }

    /// A run after these inputs, separated by `;`, each of which must be legal.
    pub(crate) fn after(header: &str, inputs: &str) -> Self {
        let mut script = Self::new(header);
        script.feed_all(inputs);
        script
    }

    /// Feeds inputs separated by `;`, each of which must be legal.
    pub(crate) fn feed_all(&mut self, inputs: &str) {
        for text in inputs.split(';').map(str::trim).filter(|text| !text.is_empty()) {
            let phase = self.state.core.phase.clone();
            assert!(self.feed(text), "`{text}` was rejected in {phase} (of `{inputs}`)");
        }
    }

    /// Feeds one input; false if it was rejected.
    pub(crate) fn feed(&mut self, text: &str) -> bool {
        let input = self.input(text);
        self.feed_input(input)
    }

    /// Feeds one input; false if it was rejected.
    pub(crate) fn feed_input(&mut self, input: Input) -> bool {
        let Ok(step) = advance(self.state.clone(), &input) else { return false };
        let (state, moved) = step.into_record(input);
        self.state = state;
        self.journal.push(moved);
        true
    }

    /// The input that a text stands for. `+s` and `+f` say what waits in the inbox, `@N` when, in ms after
    /// the start.
    pub(crate) fn input(&mut self, text: &str) -> Input {
        self.at = self.at.plus(1_000);
        let mut waiting = Waiting::default();
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            match word {
                "+s" => waiting.steering = true,
                "+f" => waiting.follow_up = true,
                _ if word.starts_with('@') => self.at = START.plus(number(&word[1..])),
                _ => words.push(word),
            }
        }
        let fact = self.fact(&words);
        Input { at: self.at, waiting, fact }
    }

    fn fact(&mut self, words: &[&str]) -> Fact {
        let (name, rest) = words.split_first().expect("an input has a name");
        let text = rest.join(" ");
        let first = rest.first().copied().unwrap_or("");
        let index = || u16::try_from(number(first)).expect("the index of a call");
        match *name {
            "admitted" => facts::admitted(first == "tainted"),
            "polled" => Fact::Polled,
            "drained" => facts::drained(rest),
            "prepared" => facts::prepared(rest.first().map_or(0, |word| number(word))),
            "budget_refused" => {
                let lacks = rest.first().map_or(1, |word| number(word));
                Fact::BudgetRefused(Shortage { budget: Budget::Calls, scope: Scope::Batch, lacks })
            }
            "opened" => Fact::StreamOpened,
            "answered" => {
                let message = facts::answer(rest);
                self.calls = u32::try_from(message.calls().count()).expect("few calls");
                let message = model::answer::settle(&self.state, self.turn(), message);
                Fact::ModelAnswered { message: Box::new(message) }
            }
            "failed" => facts::failed(rest),
            "lost" => {
                let usage = rest.first().map(|word| Usage { output: number(word), ..Usage::default() });
                Fact::ModelInterrupted { usage }
            }
            "batch" => facts::batch(rest, self.calls),
            "hook" => Fact::HookReturned { hook: self.hook(first), answer: hook_answer(&rest[1..]) },
            "returned" => Fact::ToolReturned { call: index(), result: result(&rest[1..]), recovered: None },
            "unknown" => Fact::ToolUnknown { call: index(), policy: policy(rest[1]) },
            "approve" => self.approval(index(), Approval::Approve),
            "deny" => self.approval(index(), Approval::Deny(Label::from(rest[1..].join(" ").as_str()))),
            "resolve" => Fact::Resolved {
                position: self.next_control(),
                turn: self.turn(),
                call: index(),
                resolution: resolution(rest[1]),
                reason: Label::from("looked"),
            },
            "timer" => Fact::TimerFired,
            "deadline" => Fact::DeadlinePassed,
            "cancel" => self.cancel(false),
            "handoff" => self.cancel(true),
            "resumed" => {
                let boot = self.state.core.owner.boot_id;
                let boot_id = if first == "rebooted" { boot.map(|byte| byte + 1) } else { boot };
                let suspicion = match first {
                    "crashed" => Suspicion::Shared,
                    "on_trial" => Suspicion::Alone,
                    _ => Suspicion::None,
                };
                Fact::Resumed { epoch: self.state.core.owner.epoch + 1, boot_id, suspicion }
            }
            "stopped" => Fact::Stopped,
            "quarantined" => Fact::Quarantined,
            "planned" => Fact::CompactionPlanned {
                first_kept: EntryRef { run: self.state.core.run, seq: self.state.core.seq, n: 0 },
            },
            "compacted" => Fact::Compacted { summary: Message::user("a summary", self.at) },
            "compact_failed" => Fact::CompactFailed { reason: Label::from(text.as_str()) },
            "missing" => Fact::Missing { what: Label::from(text.as_str()) },
            "released" => Fact::Released { position: Some(self.next_control()) },
            "extended" => Fact::Extended { position: self.next_control(), by: extension(rest) },
            _ => panic!("no input is called `{name}`"),
        }
    }

    fn approval(&mut self, call: u16, decision: Approval) -> Fact {
        Fact::ApprovalGiven { position: self.next_control(), turn: self.turn(), call, decision }
    }

    fn cancel(&mut self, is_handoff: bool) -> Fact {
        Fact::CancelRequested {
            position: Some(self.next_control()),
            reason: Label::from("no longer needed"),
            is_handoff,
        }
    }

    fn next_control(&mut self) -> u64 {
        self.control += 1;
        self.control - 1
    }

    /// `before_tool_call.2` is about call 2 of the turn that the run is in.
    fn hook(&self, word: &str) -> HookCall {
        let (name, call) = match word.split_once('.') {
            Some((name, call)) => (name, Some(u16::try_from(number(call)).expect("the index of a call"))),
            None => (word, None),
        };
        let hook = HOOKS.iter().find(|(known, _)| *known == name).expect("a known hook").1;
        HookCall { hook, turn: self.turn(), call }
    }

    /// Ordinal of the turn that the run is in.
    pub(crate) fn turn(&self) -> u32 {
        turn_of(&self.state.core.phase)
    }
}

/// Ordinal of the turn that a phase belongs to.
pub(crate) fn turn_of(phase: &Phase) -> u32 {
    match phase {
        Phase::Queued | Phase::Done { .. } => 0,
        Phase::InjectPending { turn, .. }
        | Phase::Stream { turn, .. }
        | Phase::Dispatch { turn, .. }
        | Phase::ExecuteTools { turn, .. }
        | Phase::Finalize { turn, .. }
        | Phase::Compact { turn, .. } => *turn,
        Phase::Parked { from, .. } => turn_of(from),
    }
}

fn header_of(header: &str) -> (Wants, Limits) {
    let mut wants = Wants { retries: true, loop_detection: true, ..Wants::default() };
    let mut limits = Limits::default();
    for word in header.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "sources" => wants.has_sources = true,
            "compacts" => wants.compacts = true,
            "unretried" => wants.retries = false,
            "synced" => wants.syncs_files = true,
            "undetected" => wants.loop_detection = false,
            "hooks" => {
                let is_named = |name: &str| value == "all" || value.split(',').any(|word| word == name);
                let named = HOOKS.iter().filter(|(name, _)| is_named(name));
                wants = named.fold(wants, |wants, (_, hook)| wants.with_hook(*hook));
            }
            "time_ms" => limits.time_ms = number(value),
            "turns" => limits.turns = number(value),
            "calls" => limits.calls = number(value),
            "tokens" => limits.tokens = number(value),
            _ => panic!("a header has no `{word}`"),
        }
    }
    (wants, limits)
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number"))
}

fn hook_answer(words: &[&str]) -> HookAnswer {
    let text = words[1..].join(" ");
    match words[0] {
        "proceed" => HookAnswer::Proceed,
        "failed" => HookAnswer::Failed(text),
        "block" => HookAnswer::Block(text),
        "ask" => HookAnswer::Ask(Label::from(text.as_str())),
        "intervene" => HookAnswer::Intervene(facts::intervention()),
        "result" => HookAnswer::Result(result(&words[1..])),
        "next" => HookAnswer::Next(NextTurn {
            context: (text == "context").then(|| vec![Message::user("afresh", START)]),
            model: Some(Label::from("other")),
            thinking: None,
        }),
        "stop" => HookAnswer::Stop,
        "revise" => HookAnswer::Revise(text),
        other => panic!("no hook answers `{other}`"),
    }
}

fn result(words: &[&str]) -> ToolResult {
    let has = |word| words.contains(&word);
    ToolResult {
        is_error: has("error"),
        terminates: has("terminates"),
        is_network: has("network"),
        ..ToolResult::text(words.join(" "))
    }
}

fn policy(word: &str) -> OnUnknown {
    match word {
        "ask" => OnUnknown::Ask,
        "tell" => OnUnknown::Tell,
        "fail" => OnUnknown::Fail,
        _ => panic!("no policy is called `{word}`"),
    }
}

fn resolution(word: &str) -> Resolution {
    match word {
        "ran" => Resolution::Ran,
        "failed" => Resolution::Failed,
        "retry" => Resolution::Retry,
        "undone" => Resolution::Undone,
        _ => panic!("no resolution is called `{word}`"),
    }
}

fn extension(words: &[&str]) -> Extension {
    let mut by = Extension::default();
    for word in words {
        let (name, value) = word.split_once('=').expect("name=number");
        match name {
            "time_ms" => by.time_ms = number(value),
            "turns" => by.turns = number(value),
            "calls" => by.calls = number(value),
            "tokens" => by.tokens = number(value),
            _ => panic!("nothing extends `{name}`"),
        }
    }
    by
}

/// Compares a reviewed file with what is so now; with `BLESS=1` in the environment it writes the file
/// instead.
pub(crate) fn assert_reviewed(path: &str, now: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, now).expect("a reviewed file is writable");
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = |(_, (old, new)): &(usize, (&str, &str))| old != new;
    let pairs = reviewed.lines().zip(now.lines()).enumerate().find(differs);
    assert_eq!(pairs, None, "{} differs; look at it, then run with BLESS=1", path.display());
    assert_eq!(
        reviewed.len(),
        now.len(),
        "{} differs at its end; look, then run with BLESS=1",
        path.display()
    );
}
