//! Tools that leave a deed in the world, one for each recovery class, and a model that counts its calls.
//!
//! Owns no claim: whether a deed may stand twice is for the suites to say.

use std::sync::Arc;
use std::time::Duration;

use engine::provider::{Intent, ModelProvider, Rehearsal, Request, StreamEvent};
use engine::tool::{CallContext, Probe, Tool, ToolSpec};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::ToolResult;
use model::input::{Failure, RecoveryClass};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::life::until_heard;
use crate::world::{Ask, Asked, Deed, World};

/// Name and recovery class of each tool.
pub const TOOLS: [(&str, RecoveryClass); 4] = [
    ("look", RecoveryClass::ReadOnly),
    ("charge", RecoveryClass::Keyed),
    ("post", RecoveryClass::AtMostOnce),
    ("ship", RecoveryClass::Probe),
];

/// A tool that leaves a deed.
pub struct Doer {
    spec: ToolSpec,
    world: Arc<World>,
}

impl Doer {
    /// The tool of this name and class.
    pub fn new(name: &str, class: RecoveryClass, world: &Arc<World>) -> Self {
        let parameters = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "then": {"type": "string"}, "say": {"type": "string"},
            "ask": {"type": "boolean"}, "fail": {"type": "boolean"}, "ms": {"type": "integer"},
        }});
        let spec = ToolSpec::new(name, "Leaves a deed.", parameters).class(class);
        Self { spec, world: Arc::clone(world) }
    }

    fn result(&self, call: &CallContext) -> ToolResult {
        ToolResult::text(format!("{} {}", self.spec.name, call.args["n"]))
    }
}

#[async_trait::async_trait]
impl Tool for Doer {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Waits `ms`, leaves the deed, then lets the client ask what the argument `then` says.
    async fn run(&self, call: CallContext) -> Result<ToolResult, String> {
        tokio::time::sleep(Duration::from_millis(call.args["ms"].as_u64().unwrap_or(0))).await;
        let (tool, key) = (self.spec.name.clone(), call.idempotency_key.clone());
        self.world.perform(Deed { tool, class: self.spec.class, key: key.clone() }).await;
        let say = call.args["say"].as_str().unwrap_or_default().to_owned();
        let ask = match call.args["then"].as_str() {
            Some("steer") => Some(Ask::Steer(call.run, say)),
            Some("follow_up") => Some(Ask::FollowUp(call.run, say)),
            Some("cancel") => Some(Ask::Cancel(call.run)),
            Some(_) | None => None,
        };
        if let Some(ask) = ask {
            // A client that is not heard asks again, after the fault or after the death.
            until_heard(&self.world, &format!("ask {key}"), ask).await;
        }
        if call.args["fail"].as_bool() == Some(true) {
            return Err(format!("{} {} failed", self.spec.name, call.args["n"]));
        }
        Ok(self.result(&call))
    }

    async fn probe(&self, call: &CallContext) -> Probe {
        match self.world.deeds_of(&call.idempotency_key) {
            0 => Probe::DidNotRun,
            1.. => Probe::Ran(self.result(call)),
        }
    }
}

/// A scripted model that counts its calls.
pub struct CountedModel {
    script: Rehearsal,
    world: Arc<World>,
}

impl CountedModel {
    /// The model with this script.
    pub fn new(script: Rehearsal, world: &Arc<World>) -> Self {
        Self { script, world: Arc::clone(world) }
    }
}

impl ModelProvider for CountedModel {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        self.script.prepare(request)
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let world = Arc::clone(&self.world);
        let hash = self.script.prepare(&request).map(|intent| intent.hash).unwrap_or_default();
        let asked = Asked { run: request.origin.run, turn: request.turn, attempt: request.attempt, hash };
        let answer = self.script.stream(request, abort);
        let counted = stream::once(async move {
            world.ask_model(asked).await;
            answer
        });
        counted.flatten().boxed()
    }

    fn identity(&self) -> String {
        self.script.identity()
    }

    fn missing(&self, identity: &str) -> Option<String> {
        self.script.missing(identity)
    }
}
