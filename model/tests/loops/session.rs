//! Whole sessions: the batches a model emits and, for each, what ran, what was blocked, and whether the run
//! ended. Drives the window as the engine does: admit, veto or record, classify, file.

use model::guard::loops::{CallFacts, CallHash, Detector, Finding, Level, RunHash, Warnings, Window};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Outcome, cases, facts, outcome_facts};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    id: String,
    mode: Mode,
    enabled: bool,
    prompts: Vec<Prompt>,
    expect: Vec<Value>,
    final_history_length: usize,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Batch,
    Single,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    run_id: Option<String>,
    batches: Vec<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    id: String,
    tool: String,
    args: Value,
    outcome: Outcome,
}

impl Call {
    /// The name as the reference's callers normalise it.
    fn tool(&self) -> &str {
        if self.tool == "bash" { "exec" } else { &self.tool }
    }

    fn facts(&self) -> CallFacts {
        facts(self.tool(), &self.args)
    }
}

/// What happened to one batch, in the vectors' shape.
#[derive(Default)]
struct Report {
    signals: Vec<Value>,
    executed: Vec<String>,
    blocked: Vec<String>,
    intervention: Option<Value>,
    is_terminated: bool,
}

impl Report {
    fn signal(&mut self, call: &Call, finding: Finding) {
        self.signals.push(json!({
            "level": finding.level.name(),
            "detector": finding.detector.name(),
            "count": finding.count,
            "tool": call.tool(),
        }));
    }

    fn into_json(self, prompt: usize, batch: usize) -> Value {
        let mut json = json!({
            "prompt": prompt,
            "batch": batch,
            "signals": self.signals,
            "executed": self.executed,
            "blocked": self.blocked,
        });
        if let Some(intervention) = self.intervention {
            json["intervention"] = intervention;
        }
        if self.is_terminated {
            json["runTerminated"] = json!(true);
        }
        json
    }
}

struct Driver {
    mode: Mode,
    is_enabled: bool,
    window: Window,
    warnings: Warnings,
    run: Option<RunHash>,
    has_intervened: bool,
}

impl Driver {
    fn batch(&mut self, calls: &[Call]) -> Report {
        let mut report = Report::default();
        let admitted = match (self.is_enabled, self.mode) {
            (false, _) => calls.iter().collect(),
            (true, Mode::Batch) => self.admit(calls, &mut report),
            (true, Mode::Single) => calls.iter().filter(|call| self.admit_alone(call, &mut report)).collect(),
        };
        for call in &admitted {
            self.finish(call);
            report.executed.push(call.id.clone());
        }
        report
    }

    /// All or nothing; the calls that may run are recorded.
    fn admit<'a>(&mut self, calls: &'a [Call], report: &mut Report) -> Vec<&'a Call> {
        let facts: Vec<CallFacts> = calls.iter().map(Call::facts).collect();
        let admission = self.window.admit(self.run, &facts);
        for warning in admission.warnings.iter().filter(|warning| self.warnings.is_new(warning)) {
            report.signal(&calls[warning.place], warning.finding);
        }
        let Some(intervention) = admission.intervention else {
            for (call, facts) in calls.iter().zip(&facts) {
                self.window.record_call(self.run, facts, CallHash::of(&call.id));
            }
            return calls.iter().collect();
        };
        let trigger = &calls[intervention.place];
        report.signal(trigger, intervention.finding);
        report.blocked = calls.iter().map(|call| call.id.clone()).collect();
        report.intervention = Some(json!({
            "toolCallId": trigger.id,
            "toolName": trigger.tool(),
            "detector": intervention.finding.detector.name(),
            "count": intervention.finding.count,
        }));
        report.is_terminated = self.has_intervened;
        self.has_intervened = true;
        let batch = facts.iter().zip(calls).map(|(facts, call)| (*facts, CallHash::of(&call.id)));
        self.window.record_vetoes(self.run, batch, facts[intervention.place].key);
        Vec::new()
    }

    /// The reference's older path, each call for itself: a veto is a result, and ends nothing.
    fn admit_alone(&mut self, call: &Call, report: &mut Report) -> bool {
        let facts = call.facts();
        let id = CallHash::of(&call.id);
        let verdict = self.window.verdict(self.run, &facts);
        if let Some(finding @ Finding { level: Level::Critical, .. }) = verdict {
            report.signal(call, finding);
            report.blocked.push(call.id.clone());
            self.window.record_veto(self.run, &facts, id);
            return false;
        }
        for warning in self.window.admit(self.run, &[facts]).warnings {
            if self.warnings.is_new(&warning) {
                report.signal(call, warning.finding);
            }
        }
        self.window.record_call(self.run, &facts, id);
        true
    }

    fn finish(&mut self, call: &Call) {
        let facts = call.facts();
        self.window.record_outcome(
            self.run,
            &facts,
            CallHash::of(&call.id),
            outcome_facts(&facts, &call.outcome),
        );
    }
}

/// Drives `session` and returns what happened to each batch, and how many calls the window holds in the end.
fn drive(session: &Session) -> (Vec<Value>, usize) {
    let mut driver = Driver {
        mode: session.mode,
        is_enabled: session.enabled,
        window: Window::default(),
        warnings: Warnings::default(),
        run: None,
        has_intervened: false,
    };
    let mut reports = Vec::new();
    for (at, prompt) in session.prompts.iter().enumerate() {
        driver.run = prompt.run_id.as_deref().and_then(RunHash::of);
        driver.has_intervened = false;
        for (batch, calls) in prompt.batches.iter().enumerate() {
            let report = driver.batch(calls);
            let is_terminated = report.is_terminated;
            reports.push(report.into_json(at, batch));
            if is_terminated {
                break;
            }
        }
    }
    (reports, driver.window.len())
}

/// Without warning signals of batches: the reference repeats those by mistake, we do not.
fn without_warnings(report: &Value, mode: Mode) -> Value {
    let mut report = report.clone();
    if mode == Mode::Batch {
        let signals = report["signals"].as_array_mut().expect("signals are a list");
        signals.retain(|signal| signal["level"] == "critical");
    }
    report
}

/// The batch from which on we decide otherwise than the reference, if there is one: a call that was blocked
/// comes again unchanged, and is blocked again where the reference only warns. What follows has no
/// counterpart there.
fn decided_otherwise(reports: &[Value]) -> Option<usize> {
    reports.iter().position(|report| report["intervention"]["detector"] == Detector::BlockedRepeat.name())
}

#[test]
fn every_session_goes_as_in_the_reference_until_we_decide_otherwise() {
    let sessions: Vec<Session> = cases("session-vectors.jsonl");
    let mut decisions = Vec::new();
    for session in &sessions {
        let (got, length) = drive(session);
        let decision = decided_otherwise(&got);
        let compared = decision.unwrap_or(session.expect.len());
        let stripped = |reports: &[Value]| -> Vec<Value> {
            reports.iter().take(compared).map(|report| without_warnings(report, session.mode)).collect()
        };
        assert_eq!(stripped(&got), stripped(&session.expect), "{}", session.id);
        match decision {
            Some(batch) => decisions.push((session.id.as_str(), without_warnings(&got[batch], session.mode))),
            None => {
                assert_eq!(got.len(), session.expect.len(), "{}", session.id);
                assert_eq!(length, session.final_history_length, "{}", session.id);
            }
        }
    }
    assert_eq!(sessions.len(), 17);
    let detector = Detector::BlockedRepeat.name();
    let alternation = json!({
        "prompt": 0,
        "batch": 11,
        "signals": [{"level": "critical", "detector": detector, "count": 1, "tool": "read"}],
        "executed": [],
        "blocked": ["c22", "c23"],
        "intervention": {"toolCallId": "c22", "toolName": "read", "detector": detector, "count": 1},
        "runTerminated": true,
    });
    assert_eq!(decisions, [("pingpong-in-batches-of-two", alternation)]);
}

/// A session of one run whose batches hold one call each, and what happened to each.
fn drive_calls(calls: Vec<Call>) -> Vec<Value> {
    let session = Session {
        id: "ours".to_owned(),
        mode: Mode::Batch,
        enabled: true,
        prompts: vec![Prompt {
            run_id: Some("r".to_owned()),
            batches: calls.into_iter().map(|call| vec![call]).collect(),
        }],
        expect: Vec::new(),
        final_history_length: 0,
    };
    drive(&session).0
}

fn signals(reports: &[Value]) -> Vec<(usize, &str, u64)> {
    let of_report = |(at, report): (usize, &'_ Value)| -> Vec<(usize, &str, u64)> {
        let signals = reports[at]["signals"].as_array().expect("signals are a list");
        assert_eq!(report["batch"], at);
        signals
            .iter()
            .map(|signal| (at, signal["detector"].as_str().unwrap(), signal["count"].as_u64().unwrap()))
            .collect()
    };
    reports.iter().enumerate().flat_map(of_report).collect()
}

#[test]
fn a_missing_tool_asked_for_unchanged_is_blocked_and_then_ends_the_run() {
    let calls = (0..25).map(|at| Call {
        id: format!("c{at}"),
        tool: "frob".to_owned(),
        args: json!({}),
        outcome: Outcome::Error("tool frob not found".to_owned()),
    });
    let reports = drive_calls(calls.collect());
    assert_eq!(signals(&reports), [(10, "unknown_tool_repeat", 10), (11, "blocked_repeat", 1)]);
    assert_eq!(reports.len(), 12);
    assert_eq!(reports[11]["runTerminated"], true);
}

#[test]
fn a_warning_is_given_once_per_ten_counts() {
    let calls = (0..40).map(|at| Call {
        id: format!("c{at}"),
        tool: "read".to_owned(),
        args: json!({}),
        outcome: Outcome::Result(json!({"content": [{"type": "text", "text": at.to_string()}]})),
    });
    let reports = drive_calls(calls.collect());
    assert_eq!(
        signals(&reports),
        [(10, "generic_repeat", 10), (20, "generic_repeat", 20), (30, "generic_repeat", 30)]
    );
}
