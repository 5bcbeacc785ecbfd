//! A language model on this machine that really calls tools.
//!
//! Nothing here relies on what the model says: it must call a tool, and the tool says when it is enough.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use engine::config::{Config, Model, ToolChoice};
use engine::query::show;
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job, replay};
use model::ToolResult;
use serde_json::json;
use tests::peers::llama;

use super::{ANTHROPIC, Api, Arc, CHAT, COMPLETED, Message, RESPONSES, transcript};

/// Calls after which the tool ends the run.
const ENOUGH: u64 = 3;

/// Counts its calls.
struct Weather {
    spec: ToolSpec,
    ran: Arc<AtomicU64>,
}

#[async_trait]
impl Tool for Weather {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _: CallContext) -> Result<ToolResult, String> {
        let ran = self.ran.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(ToolResult { terminates: ran >= ENOUGH, ..ToolResult::text("sunny") })
    }
}

#[tokio::test]
async fn a_model_calls_a_tool_in_one_session_of_three_protocols() {
    let Some(peer) = llama() else { return };
    let city = json!({ "type": "string", "enum": ["Paris", "Rome"] });
    let parameters = json!({ "type": "object", "properties": { "city": city }, "required": ["city"] });
    let spec = ToolSpec::new("weather", "Tells the weather of a city.", parameters);
    let ran = Arc::new(AtomicU64::new(0));

    let served = |api: Api| Model {
        base_url: Some(peer.address.clone()),
        model: Some("smollm2".to_owned()),
        tool_choice: ToolChoice::Required,
        max_output: Some(256),
        ..Model::new(api)
    };
    let apis = [ANTHROPIC, CHAT, RESPONSES];
    let models = Arc::new(apis.map(|api| (api.to_string(), served(api))).into());
    let engine = Engine::memory()
        .without_commands()
        .config(Config { models, ..Config::default() })
        .tool(Weather { spec, ran: Arc::clone(&ran) })
        .open()
        .unwrap();
    for api in apis {
        let job = Job::new("What is the weather?").model(api.to_string()).session("one").tools(["weather"]);
        let run = engine.submit(job).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), COMPLETED, "{api}");

        let view = show(&**engine.store(), run.id).unwrap();
        assert_eq!(view.counters.tool_calls, ran.swap(0, Ordering::Relaxed), "{api}");
        assert!(view.counters.tool_calls >= ENOUGH, "{api}: {view:?}");
        let calls = view.row.turns + view.attempts.len() as u64;
        assert_eq!(
            (view.counters.model_calls, view.counters.calls_lost),
            (calls, 0),
            "{api}: {:?}",
            view.attempts
        );
        assert_eq!(replay(&**engine.store(), run.id, None).unwrap().difference, None, "{api}");

        // What the other protocols had left in the session was taken, and every call of this one had its result.
        let messages = transcript(&engine, run.id);
        assert!(
            messages
                .iter()
                .all(|message| !matches!(&**message, Message::ToolResult(of) if of.result.is_error))
        );
    }
}
