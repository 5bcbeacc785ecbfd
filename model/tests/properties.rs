//! What holds for every run, whatever happens to it.
//!
//! A driver looks at the effects of the state and answers one of them with a plausible fact; now and then it
//! says something else. All choices come from proptest, so a failure shrinks to a short run.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use model::effect::Effect;
use model::encode::{Encoded, Part};
use model::guard::retry::Retries;
use model::input::{Fact, Hook, Input, Waiting};
use model::message::{AssistantMessage, Message, ToolResult};
use model::state::{CallStatus, Limits, Wants};
use model::{Charge, Content, Mark, Millis, Moved, Phase, Record, RunState, Step, advance};
use proptest::prelude::*;
use support::{HOOKS, START, Script, facts, submitted};

/// The most steps that an aborting run may take to its end: each call of a batch has at most three questions.
const ENDING_STEPS_MAX: usize = 3 * 140 + 50;

/// Where choices come from; 0 when there are none left.
struct Choices<'a> {
    left: std::slice::Iter<'a, u16>,
}

impl Choices<'_> {
    fn next(&mut self, options: usize) -> usize {
        usize::from(self.left.next().copied().unwrap_or(0)) % options.max(1)
    }

    fn is_one_in(&mut self, many: usize) -> bool {
        self.next(many) == many - 1
    }

    fn pick<'b>(&mut self, options: &[&'b str]) -> &'b str {
        options[self.next(options.len())]
    }
}

/// A run under way, with all that was shown of it.
struct Drive {
    script: Script,
    shown: Shown,
    position: u64,
}

impl Drive {
    fn new(wants: Wants, limits: Limits) -> Self {
        let mut script = Script::new("");
        script.state = submitted(wants, limits);
        Self { script, shown: Shown::default(), position: 0 }
    }

    /// Feeds an input and checks what holds after every step.
    fn feed(&mut self, input: Input) {
        let before = self.script.state.clone();
        let step = advance(before.clone(), &input);
        assert_eq!(step, advance(before.clone(), &input), "advance is a function");
        let Ok(step) = step else { return };
        assert!(!is_done(&before), "done absorbs every input");
        check_step(&before, &step);
        self.shown.performed(&before.effects());
        let (state, moved) = step.into_record(input);
        check_record(&moved);
        self.shown.take(&moved);
        self.script.state = state;
        self.script.journal.push(moved);
    }

    fn say(&mut self, text: &str, waiting: Waiting) {
        let input = self.script.input(text);
        self.feed(Input { waiting, ..input });
    }

    /// One thing that happens: mostly what was asked for.
    fn step(&mut self, choices: &mut Choices<'_>) {
        let waiting = Waiting { steering: choices.is_one_in(6), follow_up: choices.is_one_in(6) };
        let text = if choices.is_one_in(12) { self.surprise(choices) } else { self.answer(choices) };
        self.say(&text, waiting);
    }

    /// A plausible answer to one of the effects.
    fn answer(&mut self, choices: &mut Choices<'_>) -> String {
        let effects = self.script.state.effects();
        let Some(effect) = effects.get(choices.next(effects.len())) else { return "cancel".to_owned() };
        match effect {
            Effect::AwaitLane => choices.pick(&["admitted", "admitted tainted"]).to_owned(),
            Effect::Poll { .. } => "polled".to_owned(),
            Effect::Drain { source } => self.drained(*source, choices),
            Effect::PrepareRequest { .. } => {
                choices.pick(&["prepared 0", "prepared 40", "prepared 0", "budget_refused"]).to_owned()
            }
            Effect::CallModel { .. } => self.called(choices),
            Effect::Sleep { .. } => "timer".to_owned(),
            Effect::ResolveBatch { .. } => batch(choices),
            Effect::RunHook(asked) => {
                let name = HOOKS.iter().find(|(_, hook)| *hook == asked.hook).expect("a known hook").0;
                let call = asked.call.map_or_else(String::new, |call| format!(".{call}"));
                format!("hook {name}{call} {}", hook_answer(asked.hook, choices))
            }
            Effect::RunTool { call, .. } => {
                let results = ["returned", "returned", "returned", "unknown"];
                let how = match choices.pick(&results) {
                    "unknown" => choices.pick(&["ask", "ask", "ask", "tell", "tell", "fail"]),
                    _ => choices.pick(&["", "terminates", "error", "network"]),
                };
                let what = if ["ask", "tell", "fail"].contains(&how) { "unknown" } else { "returned" };
                format!("{what} {call} {how}")
            }
            Effect::PlanCompaction => {
                choices.pick(&["planned", "planned", "compact_failed small"]).to_owned()
            }
            Effect::Compact { .. } => {
                choices.pick(&["compacted", "compacted", "compact_failed no"]).to_owned()
            }
            Effect::AwaitApproval { call, .. } => {
                format!("{} {call}", choices.pick(&["approve", "deny"]))
            }
            Effect::AwaitPerson => self.decided(choices),
        }
    }

    fn drained(&mut self, source: model::Source, choices: &mut Choices<'_>) -> String {
        let mut text = "drained".to_owned();
        for index in 0..choices.next(3) as u64 {
            let position = if source == model::Source::Prompt { index } else { self.position };
            text += &format!(" {position}{}", choices.pick(&["", "", "", "", "", "c", "c", "-"]));
            self.position += 1;
        }
        text
    }

    fn called(&mut self, choices: &mut Choices<'_>) -> String {
        match choices.next(24) {
            0 => choices.pick(&["answered text", "answered length 2"]).to_owned(),
            1 => choices
                .pick(&["answered error", "answered aborted", "failed auth", "answered text"])
                .to_owned(),
            2..4 => {
                choices.pick(&["failed connection", "failed context_overflow", "failed empty"]).to_owned()
            }
            4..6 => choices.pick(&["lost", "lost 3", "failed idle text"]).to_owned(),
            6..9 => "opened".to_owned(),
            9..11 => "answered repeated 3".to_owned(),
            11 if choices.is_one_in(8) => "answered calls 131".to_owned(),
            _ => format!("answered calls {}", 1 + choices.next(5)),
        }
    }

    /// What a person decides, about the first call that waits for it.
    fn decided(&mut self, choices: &mut Choices<'_>) -> String {
        let calls = self.script.state.batch.iter().flat_map(|batch| &batch.calls);
        let waits = calls.zip(0..).find_map(|(call, index)| match call.status {
            CallStatus::AwaitingApproval => Some((index, true)),
            CallStatus::Unknown => Some((index, false)),
            CallStatus::Planned(_)
            | CallStatus::Started
            | CallStatus::Judged { .. }
            | CallStatus::Ended(_) => None,
        });
        match waits {
            Some((call, true)) if !choices.is_one_in(4) => {
                format!("{} {call}", choices.pick(&["approve", "deny"]))
            }
            Some((call, false)) if !choices.is_one_in(4) => {
                format!("resolve {call} {}", choices.pick(&["ran", "failed", "retry", "undone"]))
            }
            Some(_) | None => choices
                .pick(&["released", "extended calls=2 turns=2 tokens=100", "extended tokens=1", "cancel"])
                .to_owned(),
        }
    }

    /// Something that nobody asked for, sensible or not.
    fn surprise(&mut self, choices: &mut Choices<'_>) -> String {
        let call = choices.next(4);
        let indexed = ["returned", "approve", "deny"];
        match choices.next(8) {
            0 => choices.pick(&["cancel", "handoff", "deadline"]).to_owned(),
            1 => choices
                .pick(&["resumed", "resumed rebooted", "resumed crashed", "resumed on_trial"])
                .to_owned(),
            2 => choices.pick(&["stopped", "missing the key", "quarantined"]).to_owned(),
            3 => choices.pick(&["released", "extended tokens=50"]).to_owned(),
            4 => format!("{} {call}", choices.pick(&indexed)),
            5 => format!("resolve {call} {}", choices.pick(&["ran", "retry"])),
            6 => choices.pick(&["admitted", "polled", "drained", "prepared", "opened", "timer"]).to_owned(),
            _ => {
                let name = HOOKS[choices.next(HOOKS.len())].0;
                format!("hook {name} proceed @{}", choices.next(5_000))
            }
        }
    }

    /// Cancels the run and answers what is asked until it has ended.
    fn end(&mut self) {
        self.say("cancel", Waiting::default());
        let mut none = Choices { left: [].iter() };
        for _ in 0..ENDING_STEPS_MAX {
            if is_done(&self.script.state) {
                return;
            }
            let text = match self.script.state.effects().first() {
                Some(Effect::ResolveBatch { .. }) => "batch valid".to_owned(),
                Some(_) | None => self.answer(&mut none),
            };
            self.say(&text, Waiting::default());
        }
        panic!("an aborted run ends, and this one is in {}", self.script.state.core.phase);
    }
}

fn batch(choices: &mut Choices<'_>) -> String {
    let verdicts = ["valid", "valid", "valid:same", "missing", "invalid", "refused", "immediate"];
    let mode = choices.pick(&["", "", "sequential "]);
    format!("batch {mode}{} {} {}", choices.pick(&verdicts), choices.pick(&verdicts), choices.pick(&verdicts))
}

/// Mostly `proceed`; rarely what changes the run, more rarely what ends it or has no meaning.
fn hook_answer(hook: Hook, choices: &mut Choices<'_>) -> &'static str {
    let answers: [&str; 3] = match hook {
        Hook::BeforeAgentRun => ["proceed", "block no", "failed"],
        Hook::BeforeToolBatch => ["intervene", "failed", "block no"],
        Hook::BeforeToolCall => ["ask", "block no", "failed"],
        Hook::AfterToolCall => ["result terminates", "failed", "result network"],
        Hook::AfterToolOutcome => ["result", "failed", "ask"],
        Hook::PrepareNextTurn => ["next", "next context", "failed"],
        Hook::ShouldStopAfterTurn => ["proceed", "stop", "failed"],
        Hook::BeforeFinalize => ["revise again", "proceed", "failed"],
    };
    match choices.next(12) {
        0..3 => answers[0],
        3 => answers[1],
        4 if choices.is_one_in(4) => answers[2],
        _ => "proceed",
    }
}

fn is_done(state: &RunState) -> bool {
    state.effects().is_empty()
}

/// What holds after every transition.
fn check_step(before: &RunState, step: &Step) {
    let (old, new) = (&before.core, &step.state.core);
    let is_ended = matches!(new.phase, Phase::Done { .. });
    assert_eq!(step.state.effects().is_empty(), is_ended, "only a run that has ended has nothing to do");
    assert!(new.clock >= old.clock, "time never decreases");
    assert_eq!(new.seq, old.seq + 1);
    assert!(new.cursors.steering >= old.cursors.steering && new.cursors.follow_up >= old.cursors.follow_up);
    assert!(new.spent.model_calls >= old.spent.model_calls && new.spent.turns >= old.spent.turns);
    if new.spent.model_calls > old.spent.model_calls {
        let (charge, limits) = (Charge::of(&new.spent), new.limits);
        let is_within = |used: u64, cap: u64| cap == 0 || used <= cap;
        assert!(is_within(charge.calls, limits.calls) && is_within(charge.tokens, limits.tokens));
    }
    assert!(step.marks.contains(&Mark::AgentEnd) == is_ended, "the end is shown when it comes");

    let (mut encoded, parts) = Encoded::all(before);
    let mut stored: BTreeMap<Part, Vec<u8>> =
        parts.into_iter().filter_map(|(part, bytes)| Some((part, bytes?))).collect();
    for (part, bytes) in encoded.update(before, &step.state) {
        match bytes {
            Some(bytes) => stored.insert(part, bytes),
            None => stored.remove(&part),
        };
    }
    assert!(stored.values().all(|bytes| bytes.len() <= model::limits::PART_BYTES_MAX));
    assert!(stored[&Part::Core].len() <= model::limits::CORE_BYTES_MAX);
    assert_eq!(
        encoded.state_hash(),
        Encoded::all(&step.state).0.state_hash(),
        "changes hash as the whole does"
    );
    let decoded = RunState::decode(|part| stored.get(&part).cloned()).expect("what was encoded decodes");
    assert_eq!(decoded.as_ref(), Some(&step.state));
}

fn check_record(moved: &Moved) {
    let record = Record::Moved(Box::new(moved.clone()));
    assert_eq!(Record::from_bytes(&moved.to_bytes()).as_ref(), Ok(&record));
    assert_eq!(moved.to_bytes(), record.to_bytes());
}

/// What an observer has seen so far, checked as it grows.
#[derive(Default)]
struct Shown {
    is_started: bool,
    has_ended: bool,
    is_turn_open: bool,
    open_message: Option<Content>,
    has_message: bool,
    /// Calls of the newest answer; how many have a result in the transcript.
    calls: u32,
    answered: u32,
    /// Per call of the turn: started to be looked at, ended, may have run, and the newest result.
    looked_at: Vec<u32>,
    ended: Vec<u32>,
    ran: Vec<u32>,
    results: BTreeMap<u32, ToolResult>,
}

impl Shown {
    fn take(&mut self, moved: &Moved) {
        if let Some((call, result)) = moved.input.fact.result() {
            self.results.insert(call, result.clone());
        }
        self.results.extend(moved.results.iter().cloned());
        for mark in &moved.marks {
            assert!(!self.has_ended, "agent_end comes last");
            assert_eq!(self.is_started, *mark != Mark::AgentStart, "agent_start comes first, once");
            match mark {
                Mark::AgentStart => self.is_started = true,
                Mark::TurnStart => {
                    assert!(!self.is_turn_open, "a turn starts once");
                    self.is_turn_open = true;
                }
                Mark::MessageStart(content) => {
                    assert_eq!(self.open_message.replace(*content), None, "one message at a time");
                }
                Mark::MessageEnd(content) => self.message_ended(*content, moved),
                Mark::ToolStart { call } => {
                    assert!(*call < self.calls && !self.looked_at.contains(call), "a call is looked at once");
                    self.looked_at.push(*call);
                }
                Mark::ToolEnd { call, is_started, .. } => {
                    assert_eq!(self.ran.contains(call), *is_started, "a call that may have run says so");
                    assert!(self.looked_at.contains(call) && !self.ended.contains(call), "a call ends once");
                    assert!(self.results.contains_key(call), "a call that ends has a result");
                    self.ended.push(*call);
                }
                Mark::TurnEnd => self.turn_ended(),
                Mark::AgentEnd => {
                    self.has_ended = true;
                    assert!(
                        !self.is_turn_open || !self.has_message,
                        "every turn ends, unless all was withdrawn"
                    );
                    assert_eq!(self.open_message, None, "every message ends");
                }
            }
        }
    }

    /// The effects that may have been performed before the next input.
    fn performed(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::RunTool { call, .. } = effect {
                self.ran.push(u32::from(*call));
            }
        }
    }

    fn turn_ended(&mut self) {
        assert!(self.is_turn_open, "a turn ends once");
        assert_eq!(self.answered, self.calls, "every call has its result before the turn ends");
        *self = Self { is_turn_open: false, calls: 0, answered: 0, ..std::mem::take(self) };
        self.looked_at.clear();
        self.ended.clear();
        self.ran.clear();
        self.results.clear();
    }

    fn message_ended(&mut self, content: Content, moved: &Moved) {
        let started = self.open_message.take();
        assert!(started == Some(content) || started == Some(Content::Opening), "a message that starts ends");
        self.has_message = true;
        match content {
            Content::Answer => self.answer(moved.input.fact.answer().expect("the answer is in the input")),
            Content::Made(index) => {
                if let Message::Assistant(answer) = &moved.made[index as usize] {
                    self.answer(answer);
                }
            }
            Content::Result(call) => {
                assert_eq!(call, self.answered, "results stand in the order of their calls");
                assert!(self.ended.contains(&call), "a result is shown when its call has ended");
                self.answered += 1;
            }
            Content::Prompt(_) | Content::Inbox(_) => {
                assert_eq!(self.answered, self.calls, "no message comes between a call and its result");
            }
            Content::Opening => panic!("an opening is no message"),
        }
    }

    fn answer(&mut self, answer: &AssistantMessage) {
        assert!(self.is_turn_open, "an answer belongs to a turn");
        assert_eq!(self.answered, self.calls, "every call has its result before the next answer");
        self.calls = u32::try_from(answer.calls().count()).expect("few calls");
        self.answered = 0;
    }
}

fn wants() -> impl Strategy<Value = Wants> {
    (0u16..256, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(hooks, has_sources, compacts, retries, loop_detection)| Wants {
            hooks,
            has_sources,
            compacts,
            retries,
            syncs_files: false,
            loop_detection,
            drains_all: true,
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    (0u64..9, 0u64..9, prop_oneof![Just(0), Just(200)]).prop_map(|(turns, calls, tokens)| Limits {
        turns,
        calls,
        tokens,
        time_ms: 60_000,
        usd_micros: 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_run_keeps_the_rules_and_can_be_ended(
        wants in wants(),
        limits in limits(),
        choices in prop::collection::vec(any::<u16>(), 0..1_200),
    ) {
        let mut drive = Drive::new(wants, limits);
        let mut choices = Choices { left: choices.iter() };
        while choices.left.len() > 0 && !is_done(&drive.script.state) {
            drive.step(&mut choices);
        }
        drive.end();
        prop_assert!(drive.shown.has_ended);

        let mut folded = submitted(wants, limits);
        for moved in &drive.script.journal {
            let step = advance(folded, &moved.input).expect("what was legal is legal again");
            let (state, again) = step.into_record(moved.input.clone());
            prop_assert_eq!(&again, moved);
            folded = state;
        }
        prop_assert_eq!(folded, drive.script.state);
    }

    #[test]
    fn done_rejects_everything(choices in prop::collection::vec(any::<u16>(), 40)) {
        let mut script = Script::after("", "cancel");
        let state = script.state.clone();
        let mut choices = Choices { left: choices.iter() };
        while choices.left.len() > 0 {
            let mut drive = Drive::new(Wants::default(), Limits::default());
            let text = drive.surprise(&mut choices);
            prop_assert!(!script.feed(&text));
        }
        prop_assert_eq!(script.state, state);
    }
}

/// The phases that a journal's inputs lead to from another beginning, as far as they are legal there.
fn refold(mut state: RunState, journal: &[Moved]) -> Vec<Phase> {
    let mut phases = Vec::new();
    for moved in journal {
        let Ok(step) = advance(state, &moved.input) else { break };
        phases.push(step.state.core.phase.clone());
        state = step.state;
    }
    phases
}

fn phases(script: &Script) -> Vec<Phase> {
    refold(submitted(script.state.core.wants, script.state.core.limits), &script.journal)
}

#[test]
fn a_replay_without_loop_detection_differs() {
    let script = Script::after("", "admitted; drained 0; prepared; answered calls 21; batch valid:same");
    let other = Wants { loop_detection: false, ..script.state.core.wants };
    assert_ne!(refold(submitted(other, Limits::default()), &script.journal), phases(&script));
}

#[test]
fn a_replay_with_another_count_of_retries_differs() {
    let script =
        Script::after("", "admitted; drained 0; prepared; failed connection; timer; prepared; answered text");
    let mut other = submitted(script.state.core.wants, Limits::default());
    other.core.retries = Retries { passing: 3, ..Retries::new() };
    assert_ne!(refold(other, &script.journal), phases(&script));
}

#[test]
fn time_never_goes_back() {
    let mut script = Script::after("", "admitted @5000; drained 0 @4000");
    assert_eq!(script.state.core.clock, START.plus(5_000));
    assert!(script.feed_input(Input {
        at: Millis(i64::MIN),
        waiting: Waiting::default(),
        fact: facts::prepared(0)
    }));
    assert!(script.feed_input(Input {
        at: Millis(i64::MAX),
        waiting: Waiting::default(),
        fact: facts::failed(&["connection"]),
    }));
    assert!(script.feed_input(Input { at: START, waiting: Waiting::default(), fact: Fact::TimerFired }));
    assert_eq!(script.state.core.clock, Millis(i64::MAX));
}

/// Steps of a run that must be durable before what follows from them.
fn barriers(header: &str, inputs: &[&str]) -> usize {
    let mut script = Script::new(header);
    let mut count = 0;
    for text in inputs.iter().flat_map(|text| text.split("; ")) {
        let before = script.state.effects();
        assert!(script.feed(text), "{text}");
        count += usize::from(model::needs_barrier(&before, &script.state));
    }
    assert!(is_done(&script.state));
    count
}

#[test]
fn a_run_of_r_rounds_needs_two_barriers_a_round_and_two_more() {
    let round = "prepared; opened; answered calls 3; batch valid; returned 1; returned 0; returned 2";
    let run = ["admitted; drained 0", round, round, round, "prepared; opened; answered text"];
    assert_eq!(barriers("", &run), 2 * 3 + 2);

    let round = "polled; prepared; answered calls 1; batch valid; hook before_tool_batch proceed; \
                 hook before_tool_call.0 proceed; polled; returned 0; hook after_tool_call.0 proceed; \
                 hook after_tool_outcome.0 proceed; hook prepare_next_turn proceed; \
                 hook should_stop_after_turn proceed";
    let run = [
        "admitted; hook before_agent_run proceed; drained 0",
        round,
        round,
        "polled; prepared; answered text; hook prepare_next_turn proceed",
        "hook should_stop_after_turn proceed",
        "polled; polled; polled; hook before_finalize proceed",
    ];
    assert_eq!(barriers("sources hooks=all", &run), 2 * 2 + 2);
}

#[test]
fn one_after_another_each_call_after_the_first_adds_a_barrier() {
    let round = "prepared; answered calls 3; batch sequential valid; returned 0; returned 1; returned 2";
    assert_eq!(barriers("", &["admitted; drained 0", round, "prepared; answered text"]), 2 + 2 + 2);
}
