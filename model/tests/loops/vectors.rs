//! One detector question a line: a history, a next call, the verdict.

use std::collections::BTreeMap;

use model::guard::loops::{CallHash, Finding, RunHash, ToolHash, Window};
use serde::Deserialize;
use serde_json::Value;

use crate::{Outcome, cases, facts, outcome_facts};

#[derive(Deserialize)]
struct Vector {
    id: String,
    history: Vec<Call>,
    next: Call,
    expect: Expect,
    #[serde(default)]
    extra: Extra,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Call {
    tool: String,
    args: Value,
    outcome: Option<Outcome>,
    run_id: Option<String>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Expect {
    stuck: bool,
    level: Option<String>,
    detector: Option<String>,
    count: Option<u32>,
}

#[derive(Deserialize, Default, PartialEq, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Extra {
    paired_tool: Option<String>,
    liveness_signal: Option<String>,
}

impl Call {
    fn run(&self) -> Option<RunHash> {
        self.run_id.as_deref().and_then(RunHash::of)
    }
}

fn answer(vector: &Vector) -> Option<Finding> {
    let mut window = Window::default();
    for (at, call) in vector.history.iter().enumerate() {
        let facts = facts(&call.tool, &call.args);
        let id = CallHash::of(&format!("call-{at}"));
        window.record_call(call.run(), &facts, id);
        if let Some(outcome) = &call.outcome {
            window.record_outcome(call.run(), &facts, id, outcome_facts(&facts, outcome));
        }
    }
    window.verdict(vector.next.run(), &facts(&vector.next.tool, &vector.next.args))
}

fn described(vector: &Vector, finding: Option<Finding>) -> (Expect, Extra) {
    let Some(finding) = finding else {
        return (Expect { stuck: false, level: None, detector: None, count: None }, Extra::default());
    };
    let names: BTreeMap<ToolHash, &str> =
        vector.history.iter().map(|call| (ToolHash::of(&call.tool), call.tool.as_str())).collect();
    let expect = Expect {
        stuck: true,
        level: Some(finding.level.name().to_owned()),
        detector: Some(finding.detector.name().to_owned()),
        count: Some(finding.count),
    };
    let extra = Extra {
        paired_tool: finding.paired.map(|paired| names[&paired].to_owned()),
        liveness_signal: finding.is_churning.then(|| "argument_churn".to_owned()),
    };
    (expect, extra)
}

#[test]
fn every_vector_gets_the_reference_verdict() {
    let vectors: Vec<Vector> = cases("loop-vectors.jsonl");
    let wrong: Vec<String> = vectors
        .iter()
        .map(|vector| (vector, described(vector, answer(vector))))
        .filter(|(vector, (expect, extra))| *expect != vector.expect || *extra != vector.extra)
        .map(|(vector, got)| {
            format!("{}: expected {:?} {:?}, got {got:?}", vector.id, vector.expect, vector.extra)
        })
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(vectors.len(), 553);
}
