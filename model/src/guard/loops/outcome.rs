//! Reduces what a call led to, to what says something about progress: the same result as before, the same
//! failure, the same missing tool, a veto. What does not matter for that (ids, clocks, order of keys) is left
//! out. The first rule that fits decides; the rules stand in their order in [`classify`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::call::{CallFacts, CallKind, PollKind};
use super::canon::{Canon, Form, double};
use super::hash::{FailureHash, ResultHash, UnknownHash};
use super::mask::mask;
use super::text::trim;
use super::unknown::unknown_tool_name;

/// What came back from a call. A call without an outcome has none of these: it stays pending.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ToolOutcome<'a> {
    /// It returned, usually `{"content": [...], "details": {...}}`.
    Result(&'a Value),
    /// It failed, with this text.
    Error(&'a str),
}

/// An outcome as the window keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OutcomeFacts {
    /// Loop detection kept it from running.
    Vetoed,
    /// It came to something.
    Settled(Settled),
}

/// What a call came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settled {
    /// Equal for outcomes that tell the model the same.
    pub result: ResultHash,
    /// For a command that ended with a failure of its own: equal if only times and numbers of attempts
    /// differ.
    pub failure: Option<FailureHash>,
    /// For an error about a missing tool: which.
    pub unknown: Option<UnknownHash>,
    /// The outcome itself says that nothing changed: an error, or a write that wrote what was there.
    pub is_no_progress: bool,
}

/// Which rule made a result hash. In front of what the rule hashes, so that results of two rules never
/// compare equal. The numbers live on in stored hashes: they keep their meaning.
#[derive(Clone, Copy)]
enum Rule {
    Error = 1,
    Bare,
    Running,
    Ended,
    Approval,
    Unchanged,
    Poll,
    Log,
    Send,
    Answer,
    Failure,
}

/// The facts of what `call` led to.
pub fn classify(call: &CallFacts, outcome: ToolOutcome<'_>) -> OutcomeFacts {
    let answer = match outcome {
        ToolOutcome::Error(text) => return OutcomeFacts::Settled(error(text)),
        ToolOutcome::Result(Value::Object(answer)) => answer,
        ToolOutcome::Result(bare) => {
            return OutcomeFacts::Settled(settled(hashed(Rule::Bare, |to| to.value(bare))));
        }
    };
    let none = Map::new();
    let details = answer.get("details").and_then(Value::as_object).unwrap_or(&none);
    let text = |key| details.get(key).and_then(Value::as_str);
    if text("status") == Some("blocked") && text("deniedReason") == Some("tool-loop") {
        return OutcomeFacts::Vetoed;
    }
    let special = match call.kind {
        CallKind::Exec => exec(answer, details),
        CallKind::Write => unchanged_write(details),
        CallKind::Poll(PollKind::Poll) => Some(settled(poll(answer, details))),
        CallKind::Poll(PollKind::Log) => Some(settled(log(answer, details))),
        CallKind::Send => Some(settled(send(details))),
        CallKind::Poll(PollKind::CommandStatus) | CallKind::Plain => None,
    };
    OutcomeFacts::Settled(special.unwrap_or_else(|| {
        settled(hashed(Rule::Answer, |to| {
            to.object(details);
            to.text(trim(&texts(answer)));
        }))
    }))
}

/// An error: its text is the result, and it is never progress.
fn error(text: &str) -> Settled {
    Settled {
        unknown: unknown_tool_name(text).map(|name| UnknownHash::of(&name)),
        is_no_progress: true,
        ..settled(hashed(Rule::Error, |to| to.text(text)))
    }
}

/// A command's report, by its status; `None` for a status of some other kind.
fn exec(answer: &Map<String, Value>, details: &Map<String, Value>) -> Option<Settled> {
    let text = |key| details.get(key).and_then(Value::as_str);
    let status = text("status")?;
    match status {
        "running" => Some(settled(hashed(Rule::Running, |to| to.text(text("tail").unwrap_or_default())))),
        "completed" | "failed" => Some(ended(status, answer, details)),
        "approval-pending" | "approval-unavailable" => Some(settled(hashed(Rule::Approval, |to| {
            to.text(status);
            for key in ["reason", "host"] {
                to.text_or_null(text(key));
            }
            for key in ["command", "warningText"] {
                to.text(text(key).unwrap_or_default());
            }
        }))),
        // Statuses are open: any other one is not a command's.
        _ => None,
    }
}

/// A command that has ended. If it failed by itself and said something about it, it also has a failure
/// identity.
fn ended(status: &str, answer: &Map<String, Value>, details: &Map<String, Value>) -> Settled {
    let exit_code = details.get("exitCode").and_then(Value::as_number).map(double);
    let is_timed_out = details.get("timedOut") == Some(&Value::Bool(true));
    let aggregated = trim(details.get("aggregated").and_then(Value::as_str).unwrap_or_default());
    let texts = if aggregated.is_empty() { texts(answer) } else { String::new() };
    let output = if aggregated.is_empty() { trim(&texts) } else { aggregated };
    let report = |rule, output: &str| {
        hash_in(Form::Stable, rule, |to| {
            to.text(status);
            match exit_code {
                Some(code) => to.number(code),
                None => to.null(),
            }
            to.bool(is_timed_out);
            to.text(output);
        })
    };
    let failed_with = exit_code.filter(|code| *code != 0.0 && code.is_finite() && !is_timed_out);
    let is_telling =
        |code: &f64| !output.is_empty() && output != format!("(Command exited with code {code})");
    Settled {
        failure: failed_with
            .filter(is_telling)
            .map(|_| FailureHash::of_hasher(report(Rule::Failure, &mask(output)).hasher())),
        ..settled(ResultHash::of_hasher(report(Rule::Ended, output).hasher()))
    }
}

/// A write that changed nothing: one result for all of them, whatever the file.
fn unchanged_write(details: &Map<String, Value>) -> Option<Settled> {
    (details.get("changed") == Some(&Value::Bool(false)))
        .then(|| Settled { is_no_progress: true, ..settled(hashed(Rule::Unchanged, |_| ())) })
}

fn poll(answer: &Map<String, Value>, details: &Map<String, Value>) -> ResultHash {
    hashed(Rule::Poll, |to| looked_at(to, answer, details, &["exitCode", "exitSignal", "aggregated"]))
}

fn log(answer: &Map<String, Value>, details: &Map<String, Value>) -> ResultHash {
    let fields = ["totalLines", "totalChars", "truncated", "exitCode", "exitSignal"];
    hashed(Rule::Log, |to| looked_at(to, answer, details, &fields))
}

/// A process's status, the named details (absent is null, except for the status) and the texts; nothing else
/// of it.
fn looked_at(to: &mut Canon, answer: &Map<String, Value>, details: &Map<String, Value>, fields: &[&str]) {
    match details.get("status") {
        Some(status) => to.value(status),
        None => to.absent(),
    }
    for field in fields {
        to.value(details.get(*field).unwrap_or(&Value::Null));
    }
    to.text(trim(&texts(answer)));
}

/// A delivery: its details without what each delivery makes anew; what it says to the model repeats those
/// ids.
fn send(details: &Map<String, Value>) -> ResultHash {
    ResultHash::of_hasher(hash_in(Form::Delivery, Rule::Send, |to| to.object(details)).hasher())
}

/// A result that has nothing to it but its hash.
fn settled(result: ResultHash) -> Settled {
    Settled { result, failure: None, unknown: None, is_no_progress: false }
}

fn hashed(rule: Rule, write: impl FnOnce(&mut Canon)) -> ResultHash {
    ResultHash::of_hasher(hash_in(Form::Stable, rule, write).hasher())
}

fn hash_in(form: Form, rule: Rule, write: impl FnOnce(&mut Canon)) -> Canon {
    let mut canon = Canon::new(form);
    canon.number(f64::from(rule as u8));
    write(&mut canon);
    canon
}

/// The texts of an answer's content, one a line; whatever type of content carries them.
fn texts(answer: &Map<String, Value>) -> String {
    let items = answer.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = items
        .iter()
        .filter(|item| item.get("type").is_some_and(Value::is_string))
        .filter_map(|item| item.get("text")?.as_str())
        .collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::guard::loops::{ToolKind, call_facts};

    fn facts(tool: &str, args: &Value, result: &Value) -> OutcomeFacts {
        classify(&call_facts(tool, args, ToolKind::of_reference_name(tool)), ToolOutcome::Result(result))
    }

    fn settle(tool: &str, args: &Value, result: &Value) -> Settled {
        match facts(tool, args, result) {
            OutcomeFacts::Settled(settled) => settled,
            OutcomeFacts::Vetoed => panic!("vetoed: {result}"),
        }
    }

    fn settle_error(text: &str) -> Settled {
        match classify(&call_facts("read", &json!({}), ToolKind::Plain), ToolOutcome::Error(text)) {
            OutcomeFacts::Settled(settled) => settled,
            OutcomeFacts::Vetoed => panic!("vetoed: {text}"),
        }
    }

    /// Whether `tool`, called with `args`, tells the same with these two results.
    fn is_same(tool: &str, args: Value, left: Value, right: Value) -> bool {
        settle(tool, &args, &left).result == settle(tool, &args, &right).result
    }

    fn answer(text: &str, details: Value) -> Value {
        json!({"content": [{"type": "text", "text": text}], "details": details})
    }

    /// A command's report, and what a report of a failure must have.
    fn report(output: &str, change: Value) -> Value {
        let mut details =
            json!({"status": "completed", "exitCode": 1, "timedOut": false, "aggregated": output});
        for (key, value) in change.as_object().unwrap() {
            details[key] = value.clone();
        }
        answer("text", details)
    }

    fn exec(result: &Value) -> Settled {
        settle("exec", &json!({}), result)
    }

    #[test]
    fn an_error_is_its_text_and_never_progress() {
        let denied = settle_error("denied");
        assert_eq!(denied, Settled { is_no_progress: true, ..settled(denied.result) });
        assert_ne!(denied.result, settle_error("denied ").result);
        assert_ne!(denied.result, settle("read", &json!({}), &json!("denied")).result);
        assert_eq!(settle_error("Unknown tool: Frob").unknown, Some(UnknownHash::of("frob")));
        assert_eq!(settle_error("tool frob not found").unknown, settle_error("unknown tool 'frob'").unknown);
    }

    #[test]
    fn an_error_wins_over_every_kind_of_call() {
        for (tool, args) in
            [("exec", json!({})), ("write", json!({})), ("process", json!({"action": "poll"}))]
        {
            let call = call_facts(tool, &args, ToolKind::of_reference_name(tool));
            assert_eq!(
                classify(&call, ToolOutcome::Error("denied")),
                OutcomeFacts::Settled(settle_error("denied"))
            );
        }
    }

    #[test]
    fn a_bare_result_is_compared_whole() {
        for (left, right) in [(json!(null), json!(0)), (json!("x"), json!("x ")), (json!([1]), json!([2]))] {
            assert!(is_same("read", json!({}), left.clone(), left.clone()));
            assert!(!is_same("read", json!({}), left, right));
        }
        assert!(!is_same("read", json!({}), json!([]), json!({})));
        let settled_bare = settle("exec", &json!({}), &json!("boom"));
        assert_eq!(settled_bare, settled(settled_bare.result));
    }

    #[test]
    fn a_loop_veto_is_recognised_for_every_tool() {
        let veto = json!({"details": {"status": "blocked", "deniedReason": "tool-loop", "reason": "x"}});
        for tool in ["exec", "write", "command_status", "sessions_send", "read"] {
            assert_eq!(facts(tool, &json!({}), &veto), OutcomeFacts::Vetoed);
        }
        for details in [
            json!({"status": "blocked"}),
            json!({"status": "blocked", "deniedReason": "plugin-before-tool-call"}),
            json!({"status": "Blocked", "deniedReason": "tool-loop"}),
            json!([{"status": "blocked", "deniedReason": "tool-loop"}]),
        ] {
            assert_ne!(facts("read", &json!({}), &json!({"details": details})), OutcomeFacts::Vetoed);
        }
    }

    #[test]
    fn a_running_command_is_its_tail() {
        let running =
            |text: &str, tail: Value| answer(text, json!({"status": "running", "tail": tail, "pid": text}));
        assert!(is_same("exec", json!({}), running("a", json!("t")), running("b", json!("t"))));
        assert!(!is_same("exec", json!({}), running("a", json!("t")), running("a", json!("u"))));
        assert!(is_same(
            "exec",
            json!({}),
            running("a", json!("")),
            answer("b", json!({"status": "running"}))
        ));
        assert!(is_same("exec", json!({}), running("a", json!(null)), running("b", json!(""))));
    }

    #[test]
    fn an_ended_command_is_status_exit_code_timeout_and_output() {
        let is_same_report = |left: Value, right: Value| is_same("exec", json!({}), left, right);
        let base = || report("boom", json!({}));
        assert!(is_same_report(base(), report(" boom\n", json!({"durationMs": 7}))));
        assert!(is_same_report(base(), report("boom", json!({"exitCode": 1.0, "timedOut": "true"}))));
        assert!(!is_same_report(base(), report("bang", json!({}))));
        assert!(!is_same_report(base(), report("boom", json!({"status": "failed"}))));
        assert!(!is_same_report(base(), report("boom", json!({"exitCode": 2}))));
        assert!(!is_same_report(base(), report("boom", json!({"timedOut": true}))));
        assert!(is_same_report(
            report("x", json!({"exitCode": "1"})),
            report("x", json!({"exitCode": null}))
        ));
        assert!(is_same_report(report(" ", json!({})), report("", json!({"aggregated": 5}))));
        assert!(is_same_report(report("text", json!({})), report("", json!({}))));
    }

    #[test]
    fn a_failure_of_its_own_has_an_identity_without_times() {
        let (three, four) =
            (exec(&report("boom in 3ms", json!({}))), exec(&report("boom in 4ms", json!({}))));
        assert_ne!(three.result, four.result);
        assert_eq!(three.failure, four.failure);
        assert!(three.failure.is_some() && !three.is_no_progress);
        assert_ne!(three.failure, exec(&report("bang in 3ms", json!({}))).failure);
        assert_ne!(three.failure, exec(&report("boom in 3ms", json!({"exitCode": 2}))).failure);
        assert_ne!(three.failure, exec(&report("boom in 3ms", json!({"status": "failed"}))).failure);
    }

    #[test]
    fn not_every_end_is_a_failure_of_its_own() {
        for change in [
            json!({"exitCode": 0}),
            json!({"exitCode": -0.0}),
            json!({"exitCode": null}),
            json!({"exitCode": "1"}),
            json!({"timedOut": true}),
            json!({"status": "running"}),
            json!({"status": "other"}),
        ] {
            assert_eq!(exec(&report("boom", change)).failure, None);
        }
        assert_eq!(exec(&report("(Command exited with code 1)", json!({"exitCode": 1.0}))).failure, None);
        assert!(exec(&report("(Command exited with code 1)", json!({"exitCode": 2}))).failure.is_some());
        assert_eq!(exec(&json!({"details": {"status": "failed", "exitCode": 1}})).failure, None);
        assert!(exec(&report("boom", json!({"exitCode": -1, "timedOut": null}))).failure.is_some());
        let by_another_tool = settle("bash", &json!({}), &report("boom", json!({})));
        assert_eq!(by_another_tool, settled(by_another_tool.result));
    }

    #[test]
    fn a_command_waiting_for_approval_is_what_it_waits_with() {
        let wait = |change: Value| {
            let mut details =
                json!({"status": "approval-pending", "command": "m", "approvalId": change.to_string()});
            for (key, value) in change.as_object().unwrap() {
                details[key] = value.clone();
            }
            answer("t", details)
        };
        let is_same_wait = |left: Value, right: Value| is_same("exec", json!({}), wait(left), wait(right));
        assert!(is_same_wait(json!({}), json!({"reason": 1, "host": null, "warningText": ""})));
        assert!(is_same_wait(json!({"command": ""}), json!({"command": null})));
        for change in [
            json!({"status": "approval-unavailable"}),
            json!({"reason": ""}),
            json!({"host": "h"}),
            json!({"command": "n"}),
            json!({"warningText": "w"}),
        ] {
            assert!(!is_same_wait(json!({}), change));
        }
        assert!(!is_same_wait(json!({"reason": "x"}), json!({"host": "x"})));
    }

    #[test]
    fn a_command_with_another_status_is_an_ordinary_answer() {
        for status in [json!("blocked"), json!(""), json!(1), json!("Completed")] {
            let with = |text: &str| answer(text, json!({"status": status}));
            assert!(!is_same("exec", json!({}), with("a"), with("b")));
        }
    }

    #[test]
    fn all_unchanged_writes_are_one_result() {
        let unchanged = settle("write", &json!({"path": "/a"}), &answer("x", json!({"changed": false})));
        assert!(unchanged.is_no_progress);
        assert_eq!(
            unchanged,
            settle("write", &json!({"path": "/b"}), &answer("y", json!({"changed": false, "n": 1})))
        );
        for details in
            [json!({"changed": "false"}), json!({"changed": true}), json!({"changed": null}), json!({})]
        {
            assert!(!settle("write", &json!({}), &answer("x", details)).is_no_progress);
        }
        assert!(!settle("edit", &json!({}), &answer("x", json!({"changed": false}))).is_no_progress);
    }

    #[test]
    fn a_poll_is_status_exit_and_text() {
        let poll = || json!({"action": "poll"});
        let nulls =
            json!({"exitCode": null, "exitSignal": null, "aggregated": null, "pid": 1, "totalLines": 3});
        assert!(is_same("process", poll(), answer("x", json!({})), answer(" x", nulls)));
        assert!(!is_same("process", poll(), answer("x", json!({})), answer("x", json!({"status": null}))));
        for details in [
            json!({"exitCode": 0}),
            json!({"exitSignal": "TERM"}),
            json!({"aggregated": ""}),
            json!({"status": "s"}),
        ] {
            assert!(!is_same("process", poll(), answer("x", json!({})), answer("x", details)));
        }
        assert!(!is_same("process", poll(), answer("x", json!({})), answer("y", json!({}))));
    }

    #[test]
    fn a_log_is_size_status_exit_and_text() {
        let log = || json!({"action": "log"});
        let nulls = json!({"totalLines": null, "totalChars": null, "truncated": null, "aggregated": "x"});
        assert!(is_same("process", log(), answer("x", json!({})), answer("x", nulls)));
        for details in [
            json!({"totalLines": 1}),
            json!({"totalChars": 1}),
            json!({"truncated": false}),
            json!({"exitCode": 1}),
            json!({"exitSignal": 1}),
            json!({"status": null}),
        ] {
            assert!(!is_same("process", log(), answer("x", json!({})), answer("x", details)));
        }
        assert!(!is_same(
            "process",
            log(),
            answer("x", json!({"totalLines": 1})),
            answer("x", json!({"totalChars": 1}))
        ));
    }

    #[test]
    fn other_actions_and_command_status_are_ordinary_answers() {
        let extra = |n: u8| answer("x", json!({"extra": n}));
        assert!(!is_same("process", json!({"action": "kill"}), extra(1), extra(2)));
        assert!(!is_same("command_status", json!({}), extra(1), extra(2)));
        assert!(is_same("process", json!({"action": "poll"}), extra(1), extra(2)));
    }

    #[test]
    fn a_send_is_its_details_without_what_is_new_each_time() {
        let sent = |text: &str, details: Value| answer(text, details);
        let args = || json!({"action": "send"});
        assert!(is_same(
            "message",
            args(),
            sent("m1", json!({"messageId": 1})),
            sent("m2", json!({"messageId": 2}))
        ));
        assert!(!is_same("message", args(), sent("m", json!({"ok": true})), sent("m", json!({"ok": false}))));
        assert!(!is_same("message", json!({"action": "edit"}), sent("m1", json!({})), sent("m2", json!({}))));
        assert!(is_same("sessions_send", json!({}), sent("m1", json!([1])), sent("m2", json!({}))));
    }

    #[test]
    fn an_ordinary_answer_is_its_texts_and_details() {
        let content =
            |items: Value, details: Value| json!({"content": items, "details": details, "isError": items});
        let of = |items: Value| content(items, json!({}));
        let is_same_answer = |left: Value, right: Value| is_same("read", json!({}), left, right);
        let item = |kind: &str, text: &str| json!({"type": kind, "text": text});
        assert!(is_same_answer(
            of(json!([item("text", " a\n")])),
            of(json!([item("note", "a"), {"type": "image"}]))
        ));
        assert!(is_same_answer(
            of(json!([item("text", "a\nb")])),
            of(json!([item("text", "a"), item("x", "b")]))
        ));
        assert!(!is_same_answer(
            of(json!([item("text", "ab")])),
            of(json!([item("text", "a"), item("x", "b")]))
        ));
        assert!(!is_same_answer(
            of(json!([item("text", "a")])),
            of(json!([item("text", "a"), 1, item("x", ""), item("x", "b")]))
        ));
        assert!(is_same_answer(of(json!([{"text": "a"}, {"type": 1, "text": "a"}, "a"])), of(json!([]))));
        assert!(is_same_answer(of(json!("a")), json!({})));
        assert!(is_same_answer(content(json!([]), json!("x")), content(json!([]), json!([1]))));
        assert!(!is_same_answer(content(json!([]), json!({"n": null})), content(json!([]), json!({}))));
    }
}
