//! A language model on this machine that really calls tools.
//!
//! Nothing here relies on what the model says: it must call a tool, and the tool says when it is enough.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use engine::config::{Config, Model, ToolChoice};
use engine::query::{Counters, show};
use engine::tool::{CallContext, Tool, ToolSpec};
use engine::{Engine, Job, Rest, replay};
use model::{Outcome, ToolResult};
use serde_json::json;
use tests::peers::{Peer, llama};

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

const APIS: [Api; 3] = [ANTHROPIC, CHAT, RESPONSES];

/// An engine with one tool, whose models are named after their protocols.
fn engine(peer: &Peer, tool_choice: ToolChoice, ran: &Arc<AtomicU64>) -> Engine {
    let city = json!({ "type": "string", "enum": ["Paris", "Rome"] });
    let parameters = json!({ "type": "object", "properties": { "city": city }, "required": ["city"] });
    let spec = ToolSpec::new("weather", "Tells the weather of a city.", parameters);
    let served = |api: Api| Model {
        base_url: Some(peer.address.clone()),
        model: Some("smollm2".to_owned()),
        tool_choice,
        max_output: Some(32),
        ..Model::new(api)
    };
    let models = Arc::new(APIS.map(|api| (api.to_string(), served(api))).into());
    let engine = Engine::memory().without_commands().config(Config { models, ..Config::default() });
    engine.tool(Weather { spec, ran: Arc::clone(ran) }).open().unwrap()
}

fn job(api: Api) -> Job {
    Job::new("What is the weather?").model(api.to_string()).session("one").tools(["weather"])
}

#[tokio::test]
async fn a_model_calls_a_tool_in_one_session_of_three_protocols() {
    let Some(peer) = llama() else { return };
    let ran = Arc::new(AtomicU64::new(0));
    let engine = engine(peer, ToolChoice::Required, &ran);
    for api in APIS {
        let run = engine.submit(job(api)).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), COMPLETED, "{api}");

        let view = show(&**engine.store(), run.id).unwrap();
        let Counters { model_calls, calls_lost, tool_calls, .. } = view.counters;
        assert_eq!(tool_calls, ran.swap(0, Ordering::Relaxed), "{api}");
        assert!(tool_calls >= ENOUGH, "{api}: {view:?}");
        let calls = view.row.turns + view.attempts.len() as u64;
        assert_eq!((model_calls, calls_lost), (calls, 0), "{api}: {:?}", view.attempts);
        assert_eq!(replay(&**engine.store(), run.id, None).unwrap().difference, None, "{api}");

        // What the other protocols had left in the session was taken, and every call had a result.
        for message in transcript(&engine, run.id) {
            assert!(
                !matches!(&*message, Message::ToolResult(of) if of.result.is_error),
                "{api}: {message:?}"
            );
        }
    }
}

/// So small a model, asked to choose, rarely finds the form of a call, and then the server fails.
#[tokio::test]
async fn a_model_that_may_choose_answers_or_fails_with_the_servers_words() {
    let Some(peer) = llama() else { return };
    let engine = engine(peer, ToolChoice::Auto, &Arc::default());
    for api in APIS {
        let run = engine.submit(Job { retries: Some(false), ..job(api) }).await.unwrap();
        let end = run.outcome().await.unwrap();
        let has_failed = matches!(&end, Rest::Done { outcome: Outcome::Failed, reason: Some(reason) }
            if ["server_error: ", "empty: "].iter().any(|kind| reason.starts_with(kind)));
        assert!(end == COMPLETED || has_failed, "{api}: {end:?}");

        let view = show(&**engine.store(), run.id).unwrap();
        let spent = (view.counters.model_calls, view.spending.usage.input > 0);
        assert_eq!(spent, (view.row.turns + u64::from(has_failed), true), "{api}: {view:?}");
        assert_eq!(replay(&**engine.store(), run.id, None).unwrap().difference, None, "{api}");
    }
}
