//! What must hold for any sequence of calls, and for any JSON.

use model::guard::loops::{CallFacts, CallHash, Level, OutcomeFacts, RunHash, Warnings, Window};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{Outcome, facts, outcome_facts};

/// The largest encoding of one stored part of a run's state.
const STATE_VALUE_BYTES_MAX: usize = 4_096;

/// Something that happens to a window.
#[derive(Clone, Debug)]
enum Step {
    Call { run: usize, call: usize },
    Outcome { run: usize, call: usize, outcome: usize },
    Veto { run: usize, call: usize },
}

const RUNS: [&str; 3] = ["", "a", "b"];

fn run(at: usize) -> Option<RunHash> {
    RunHash::of(RUNS[at % RUNS.len()])
}

fn call(at: usize) -> CallFacts {
    const TOOLS: [&str; 5] = ["read", "exec", "write", "process", "command_status"];
    facts(TOOLS[at % TOOLS.len()], &json!({"action": "poll", "n": at / TOOLS.len()}))
}

fn outcome(call: &CallFacts, at: usize) -> OutcomeFacts {
    let failure = json!({"details": {"status": "failed", "exitCode": 1, "aggregated": "boom in 3ms"}});
    let outcomes = [
        Outcome::Error("denied".to_owned()),
        Outcome::Error("unknown tool: frob".to_owned()),
        Outcome::Result(json!({"details": {"status": "blocked", "deniedReason": "tool-loop"}})),
        Outcome::Result(failure),
        Outcome::Result(json!({"details": {"changed": false}})),
    ];
    outcome_facts(call, &outcomes[at % outcomes.len()])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3usize, 0..10usize).prop_map(|(run, call)| Step::Call { run, call }),
        (0..3usize, 0..10usize, 0..5usize).prop_map(|(run, call, outcome)| Step::Outcome {
            run,
            call,
            outcome
        }),
        (0..3usize, 0..10usize).prop_map(|(run, call)| Step::Veto { run, call }),
    ]
}

fn apply(window: &mut Window, step: &Step) {
    match *step {
        Step::Call { run: at, call: which } => window.record_call(run(at), &call(which), CallHash::of("id")),
        Step::Outcome { run: at, call: which, outcome: what } => {
            let facts = call(which);
            window.record_outcome(run(at), &facts, CallHash::of("id"), outcome(&facts, what));
        }
        Step::Veto { run: at, call: which } => window.record_veto(run(at), &call(which), CallHash::of("id")),
    }
}

fn window_of(steps: &[Step]) -> Window {
    let mut window = Window::default();
    steps.iter().for_each(|step| apply(&mut window, step));
    window
}

/// JSON with everything in it that may be spelled or ordered in more than one way.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\é]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[a-d]{1,2}", inner), 0..4).prop_map(|fields| Value::from(Map::from_iter(fields))),
        ]
    })
}

/// The same value with fields in the opposite order and integers spelled as doubles.
fn spelled_otherwise(value: &Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
        Value::Number(number) => json!(number.as_f64().unwrap()),
        Value::Array(items) => items.iter().map(spelled_otherwise).collect(),
        Value::Object(fields) => {
            let reversed = fields.iter().rev().map(|(key, value)| (key.clone(), spelled_otherwise(value)));
            Value::Object(reversed.collect())
        }
    }
}

fn result_hash(tool: &str, result: &Value) -> OutcomeFacts {
    outcome_facts(&facts(tool, &Value::Null), &Outcome::Result(result.clone()))
}

proptest! {
    #[test]
    fn a_window_stays_within_its_bounds(steps in vec(step(), 0..120)) {
        let mut window = Window::default();
        for step in &steps {
            apply(&mut window, step);
            prop_assert!(window.len() <= 30);
        }
        let bytes = postcard::to_allocvec(&window).unwrap();
        prop_assert!(bytes.len() <= STATE_VALUE_BYTES_MAX);
        prop_assert_eq!(postcard::from_bytes::<Window>(&bytes).unwrap(), window);
    }

    #[test]
    fn asking_is_deterministic_and_changes_nothing(
        steps in vec(step(), 0..60),
        batch in vec(0..10usize, 0..40),
        at in 0..3usize,
    ) {
        let window = window_of(&steps);
        let before = window.clone();
        let calls: Vec<CallFacts> = batch.iter().map(|which| call(*which)).collect();
        let admission = window.admit(run(at), &calls);
        prop_assert_eq!(&window.admit(run(at), &calls), &admission);
        prop_assert_eq!(&window_of(&steps).admit(run(at), &calls), &admission);
        prop_assert_eq!(window, before);
    }

    #[test]
    fn admission_of_one_call_is_the_verdict_or_the_memory_of_a_block(
        steps in vec(step(), 0..60),
        which in 0..10usize,
        at in 0..3usize,
    ) {
        let (window, call) = (window_of(&steps), call(which));
        let admission = window.admit(run(at), &[call]);
        let verdict = window.verdict(run(at), &call);
        let is_critical = verdict.is_some_and(|finding| finding.level == Level::Critical);
        let is_blocked = is_critical || window.times_blocked(run(at), &call) > 0;
        prop_assert_eq!(admission.intervention.is_some(), is_blocked);
        if is_critical {
            prop_assert_eq!(admission.intervention.map(|it| it.finding), verdict);
        } else if !is_blocked {
            prop_assert_eq!(admission.warnings.first().map(|it| it.finding), verdict);
        }
    }

    #[test]
    fn a_longer_batch_is_judged_like_its_beginning(
        steps in vec(step(), 0..60),
        batch in vec(0..10usize, 1..40),
    ) {
        let window = window_of(&steps);
        let calls: Vec<CallFacts> = batch.iter().map(|which| call(*which)).collect();
        let whole = window.admit(None, &calls);
        let beginning = window.admit(None, &calls[..calls.len() - 1]);
        if beginning.intervention.is_some() {
            prop_assert_eq!(whole, beginning);
        } else {
            prop_assert!(whole.warnings.starts_with(&beginning.warnings));
        }
    }

    #[test]
    fn calls_of_other_runs_change_no_verdict_while_nothing_leaves(
        steps in vec(step(), 0..15),
        others in vec(0..10usize, 0..15),
        which in 0..10usize,
    ) {
        let mut crowded = Window::default();
        let mut others = others.iter();
        for step in &steps {
            apply(&mut crowded, step);
            if let Some(other) = others.next() {
                crowded.record_veto(RunHash::of("someone else"), &call(*other), None);
            }
        }
        for at in 0..RUNS.len() {
            let alone = window_of(&steps).verdict(run(at), &call(which));
            prop_assert_eq!(crowded.verdict(run(at), &call(which)), alone);
        }
    }

    #[test]
    fn a_critical_verdict_needs_ten_records(steps in vec(step(), 0..10), which in 0..10usize) {
        let verdict = window_of(&steps).verdict(None, &call(which));
        prop_assert!(verdict.is_none_or(|finding| finding.level == Level::Warning));
    }

    #[test]
    fn warnings_stay_within_their_bounds(tools in vec("[a-z]{1,6}", 0..400)) {
        let mut warnings = Warnings::default();
        for tool in &tools {
            let call = facts(tool, &Value::Null);
            for warning in Window::default().admit(None, &[call; 12]).warnings {
                warnings.is_new(&warning);
            }
        }
        prop_assert!(warnings.len() <= 256);
        prop_assert!(postcard::to_allocvec(&warnings).unwrap().len() <= STATE_VALUE_BYTES_MAX);
    }

    #[test]
    fn spelling_and_order_of_keys_make_no_difference(value in json_value()) {
        let other = spelled_otherwise(&value);
        prop_assert_eq!(facts("read", &value), facts("read", &other));
        prop_assert_eq!(result_hash("read", &value), result_hash("read", &other));
        let text = serde_json::to_string_pretty(&other).unwrap();
        prop_assert_eq!(facts("read", &value), facts("read", &serde_json::from_str(&text).unwrap()));
    }

    #[test]
    fn different_values_have_different_keys(left in json_value(), right in json_value()) {
        prop_assert_eq!(facts("read", &left).key == facts("read", &right).key, left == right);
    }

    #[test]
    fn any_json_and_any_text_is_an_outcome(value in json_value(), text in any::<String>()) {
        let details = json!({"status": "failed", "exitCode": 1});
        let texts = json!({"content": [{"type": text, "text": text}], "details": details});
        for tool in ["exec", "write", "process", "message", "sessions_send", "read"] {
            result_hash(tool, &value);
            result_hash(tool, &json!({"details": value}));
            result_hash(tool, &texts);
            outcome_facts(&facts(tool, &value), &Outcome::Error(text.clone()));
        }
    }
}

#[test]
fn a_full_window_of_the_largest_records_fits_a_state_value() {
    let exec = facts("exec", &Value::Null);
    let details = json!({"status": "failed", "exitCode": 1, "aggregated": "boom"});
    let settled = outcome_facts(&exec, &Outcome::Result(json!({ "details": details })));
    let unknown = outcome_facts(&exec, &Outcome::Error("unknown tool: frob".to_owned()));
    let (OutcomeFacts::Settled(mut largest), OutcomeFacts::Settled(unknown)) = (settled, unknown) else {
        panic!("both came to something");
    };
    largest.unknown = unknown.unknown;
    assert!(largest.failure.is_some() && largest.unknown.is_some());
    let mut window = Window::default();
    for _ in 0..31 {
        window.record_outcome(RunHash::of("r"), &exec, CallHash::of("c"), OutcomeFacts::Settled(largest));
    }
    let bytes = postcard::to_allocvec(&window).unwrap();
    assert_eq!(bytes.len(), 1 + 30 * 87);
    assert!(bytes.len() <= STATE_VALUE_BYTES_MAX);
}
