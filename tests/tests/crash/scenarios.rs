//! The scenarios that are cut.

use serde_json::{Value, json};
use tests::harness::ALL_HOOKS;
use tests::scenario::{Early, Same, Scenario, Stage, call, job};

use model::input::Hook;

/// Every scenario.
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        plain(),
        one_tool(),
        three_parallel(),
        sequential_steered(),
        follow_up(),
        silent_failure(),
        backoff(),
        blocked_batch(),
        approval(),
        cancel(),
        every_hook(),
        compaction(),
        second_run(),
        ownerless_cancel(),
    ]
}

fn done() -> Value {
    json!({"text": "done"})
}

pub(crate) fn plain() -> Scenario {
    Scenario::new("plain answer", json!([done()]))
}

pub(crate) fn one_tool() -> Scenario {
    let calls = [call("post", json!({"n": 1}))];
    Scenario::new("one tool", json!([{"text": "posting", "calls": calls}, done()]))
}

pub(crate) fn three_parallel() -> Scenario {
    let calls =
        [call("post", json!({"n": 1})), call("charge", json!({"n": 2})), call("ship", json!({"n": 3}))];
    Scenario::new("three parallel", json!([{"calls": calls}, done()]))
}

pub(crate) fn sequential_steered() -> Scenario {
    let calls = [
        call("look", json!({"n": 1})),
        call("charge", json!({"n": 2, "then": "steer", "say": "rather this"})),
        call("post", json!({"n": 3})),
    ];
    let scenario =
        Scenario::new("sequential with steering", json!([{"calls": calls}, {"text": "so be it"}, done()]));
    let jobs =
        vec![engine::Job { tool_execution: Some(engine::config::ToolExecution::Sequential), ..job("first") }];
    Scenario { jobs, early: vec![Early::Steer("quickly")], ..scenario }
}

pub(crate) fn follow_up() -> Scenario {
    let calls = [call("look", json!({"n": 1, "then": "follow_up", "say": "and then that"}))];
    let scenario =
        Scenario::new("follow-up", json!([{"calls": calls}, {"text": "one"}, {"text": "two"}, done()]));
    Scenario { early: vec![Early::FollowUp("also this")], ..scenario }
}

pub(crate) fn silent_failure() -> Scenario {
    let fails = json!([{"kind": "silent"}, {"kind": "connection", "after_chars": 2}]);
    Scenario::new("silent failure", json!([{"text": "done", "chunk_chars": 1, "chunk_ms": 5, "fail": fails}]))
}

pub(crate) fn backoff() -> Scenario {
    let fails = json!([{"kind": "overloaded"}, {"kind": "server_error"}]);
    Scenario::new("backoff", json!([{"text": "done", "fail": fails}]))
}

/// Twenty identical calls may run in one batch; twenty-one go in circles.
pub(crate) fn blocked_batch() -> Scenario {
    let calls = vec![call("look", json!({"n": 1})); 21];
    Scenario::new("blocked batch", json!([{"calls": calls}, done()]))
}

pub(crate) fn approval() -> Scenario {
    let calls = [call("post", json!({"n": 1, "ask": true})), call("charge", json!({"n": 2}))];
    let scenario = Scenario::new("approval", json!([{"calls": calls}, done()]));
    Scenario { hooks: vec![Hook::BeforeToolCall], ..scenario }
}

pub(crate) fn cancel() -> Scenario {
    let calls = [call("look", json!({"n": 1, "then": "cancel"})), call("post", json!({"n": 2}))];
    let scenario = Scenario::new("cancel", json!([{"calls": calls}, done()]));
    Scenario { same: Same::Outcome, ..scenario }
}

pub(crate) fn every_hook() -> Scenario {
    let calls = [call("charge", json!({"n": 1})), call("look", json!({"n": 2, "fail": true}))];
    let scenario = Scenario::new("every hook", json!([{"calls": calls}, {"text": "draft"}, done()]));
    Scenario { hooks: ALL_HOOKS.to_vec(), ..scenario }
}

pub(crate) fn compaction() -> Scenario {
    let calls = [call("look", json!({"n": 1}))];
    let turns = json!([{"calls": calls}, {"text": "done", "fail": [{"kind": "context_overflow"}]}]);
    Scenario { summarises: true, ..Scenario::new("compaction", turns) }
}

pub(crate) fn second_run() -> Scenario {
    let calls = [call("charge", json!({"n": 1}))];
    let scenario = Scenario::new("second run", json!([{"calls": calls}, {"text": "{{custom_id}} done"}]));
    Scenario { jobs: vec![job("first"), job("second")], ..scenario }
}

pub(crate) fn ownerless_cancel() -> Scenario {
    let calls = [call("charge", json!({"n": 1})), call("post", json!({"n": 2, "ask": true}))];
    let scenario = Scenario::new("cancel with no owner", json!([{"calls": calls}, done()]));
    Scenario {
        hooks: vec![Hook::BeforeToolCall],
        stages: vec![Stage::Rest, Stage::Cancel],
        same: Same::Outcome,
        ..scenario
    }
}

/// Four runs at once, of which each parks, is steered, given more to do, and made to wait: what a power cut may meet.
pub(crate) fn several_runs() -> Scenario {
    let look = |n: u8| json!({"calls": [call("look", json!({"n": n}))]});
    let pair = |n: u8| json!({"calls": [call("charge", json!({"n": n})), call("post", json!({"n": n + 1}))]});
    let turns = json!([
        look(1),
        pair(2),
        {"calls": [call("look", json!({"n": 4, "then": "follow_up", "say": "and then that"}))]},
        {"calls": [call("post", json!({"n": 5, "ask": true}))]},
        {"text": "so far so good", "fail": [{"kind": "overloaded"}]},
        pair(6),
        {"calls": [call("ship", json!({"n": 8}))]},
        {"calls": [call("charge", json!({"n": 9, "then": "steer", "say": "rather this"}))]},
        pair(10),
        look(12),
        done(),
        done(),
    ]);
    // Images are directories of their own: a workspace in the first one would be missing in the others.
    let jobs = ["first", "second", "third", "fourth"].map(|name| {
        engine::Job { session: Some(name.to_owned()), ..job(name) }.workspace(std::env::temp_dir())
    });
    Scenario {
        jobs: jobs.to_vec(),
        early: vec![Early::Steer("quickly")],
        stages: vec![Stage::Rest, Stage::Finish],
        hooks: vec![Hook::BeforeToolCall],
        ..Scenario::new("several runs", turns)
    }
}
