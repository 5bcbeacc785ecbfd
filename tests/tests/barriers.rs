//! How many barriers a run needs, counted on a real directory.
//!
//! With R tool rounds: one before each of its R + 1 model calls, one before each batch, one at the end. Calls
//! that run one after another need one each. The submission's own is not counted.

use async_trait::async_trait;
use engine::config::ToolExecution;
use engine::provider::Rehearsal;
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job, Rest};
use model::{Outcome, ToolResult};
use serde_json::json;

const ROUNDS: u64 = 3;

struct Noop(ToolSpec);

#[async_trait]
impl Tool for Noop {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        Ok(ToolResult::text("done"))
    }
}

/// Barriers of a run with so many calls a round, after its submission.
async fn barriers(calls: u64, mode: ToolExecution) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let call = |n: u64| json!({ "tool": "noop", "args": { "n": n } });
    let round =
        |round: u64| json!({ "calls": (0..calls).map(|n| call(round * calls + n)).collect::<Vec<_>>() });
    let turns = (0..ROUNDS).map(round).chain([json!({ "text": "done" })]);
    let script = json!({ "turns": turns.collect::<Vec<_>>() });
    let engine = Engine::builder(dir.path())
        .without_commands()
        // Ordered commits wait for the next barrier, however slow this machine is.
        .store_options(store::Options { linger: None, ..store::Options::default() })
        .provider("m", Rehearsal::from_value(&script).unwrap())
        .tool(Noop(ToolSpec::new("noop", "Does nothing.", json!({ "type": "object" }))))
        .open()
        .unwrap();
    let before = engine.journal().unwrap().stats().barriers;
    let job = Job { tool_execution: Some(mode), ..Job::new("go").model("m").tools(["noop"]) };
    let run = engine.submit(job).await.unwrap();
    let rest = run.outcome().await.unwrap();
    assert_eq!(rest, Rest::Done { outcome: Outcome::Completed, reason: None });
    let submission = 1;
    let counted = engine.journal().unwrap().stats().barriers - before - submission;
    engine.close().await.unwrap();
    counted
}

#[tokio::test]
async fn calls_that_run_at_once_share_their_barrier() {
    for calls in [1, 2, 5] {
        assert_eq!(barriers(calls, ToolExecution::Parallel).await, 2 * ROUNDS + 2);
    }
}

#[tokio::test]
async fn calls_that_run_one_after_another_need_one_more_each() {
    for calls in [1, 2, 5] {
        let further = ROUNDS * (calls - 1);
        assert_eq!(barriers(calls, ToolExecution::Sequential).await, 2 * ROUNDS + 2 + further);
    }
}
