//! A scripted provider that others wrote, asked by a whole engine in three protocols.
//!
//! It notes what arrives: the outside witness of how many calls a run made.

use engine::config::{Config, Model};
use engine::query::{AttemptRow, RunView, show};
use engine::{Harness, replay};
use futures_util::future::join_all;
use model::Block;
use serde_json::{Value, json};
use tests::peers::{Peer, aimock};

use super::{
    ANTHROPIC, Api, Arc, CHAT, COMPLETED, Message, RESPONSES, engine, job, transcript, words, workspace,
};

/// A run that has completed, and what the witness noted of it.
struct Seen {
    view: RunView,
    messages: Vec<Arc<Message>>,
    requests: Vec<Value>,
}

impl Seen {
    /// The failures of its calls: the kind, the branch that was taken, the wait in seconds.
    fn failures(&self) -> Vec<(&str, &str, f64)> {
        let failure = |row: &'_ AttemptRow| (row.failure, row.branch.unwrap_or_default(), row.wait_s);
        self.view.attempts.iter().map(failure).collect()
    }

    /// What each response came to, by the witness: its status, and whether it was broken off.
    fn responses(&self) -> Vec<(u64, bool)> {
        let response = |request: &Value| {
            let response = &request["response"];
            (response["status"].as_u64().unwrap(), response["interrupted"] == true)
        };
        self.requests.iter().map(response).collect()
    }

    /// Model calls made and lost, by the run's account.
    fn calls(&self) -> (u64, u64) {
        (self.view.counters.model_calls, self.view.counters.calls_lost)
    }
}

/// Runs one scenario of the script in each protocol at once.
async fn completed(peer: &'static Peer, scenario: &'static str) -> Vec<(Api, Seen)> {
    let run = async |api: Api| {
        let test = format!("{scenario}-{api}");
        let model = Model {
            base_url: Some(peer.of_test(&test)),
            model: Some(scenario.to_owned()),
            ..Model::new(api)
        };
        let models = Arc::new([("m".to_owned(), model)].into());
        let workspace = workspace();
        let engine = engine(Config { models, ..Config::default() }, Harness::default());
        let run = engine.submit(job("m", workspace.path())).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), COMPLETED, "{test}");

        let store = &**engine.store();
        assert_eq!(replay(store, run.id, None).unwrap().difference, None, "{test}");
        let seen = Seen {
            view: show(store, run.id).unwrap(),
            messages: transcript(&engine, run.id),
            requests: peer.witnessed(&test),
        };
        assert_eq!(seen.requests.len() as u64, seen.view.counters.model_calls, "{test}");
        (api, seen)
    };
    join_all([ANTHROPIC, CHAT, RESPONSES].map(run)).await
}

#[tokio::test]
async fn text_and_thinking_arrive_and_one_call_is_made() {
    let Some(peer) = aimock() else { return };
    for (api, seen) in completed(peer, "text").await {
        assert_eq!((seen.calls(), seen.responses()), ((1, 0), vec![(200, false)]), "{api}");
        let blocks = seen.messages.last().unwrap().content();
        let text = |block: &'_ Block| match block {
            Block::Text(text) => (text.to_string(), false),
            Block::Thinking { text, .. } => (text.to_string(), true),
            other => panic!("{api}: {other:?}"),
        };
        let texts: Vec<(String, bool)> = blocks.iter().map(text).collect();
        let expected = [("They greet me.", true), ("Good morning — dzień dobry 🌞.", false)];
        assert_eq!(texts, expected.map(|(text, is_thinking)| (text.to_owned(), is_thinking)), "{api}");
    }
}

#[tokio::test]
async fn a_slow_answer_arrives_whole() {
    let Some(peer) = aimock() else { return };
    for (api, seen) in completed(peer, "slow").await {
        assert_eq!((seen.calls(), seen.responses()), ((1, 0), vec![(200, false)]), "{api}");
        let text = "assistant: One word after the other arrives.";
        assert_eq!(words(&seen.messages), ["user: what is the weather", text], "{api}");
    }
}

#[tokio::test]
async fn two_calls_of_one_answer_are_run_and_their_results_are_what_it_gets() {
    let Some(peer) = aimock() else { return };
    for (api, seen) in completed(peer, "tools").await {
        assert_eq!((seen.calls(), seen.responses()), ((2, 0), vec![(200, false); 2]), "{api}");
        assert_eq!(seen.view.counters.tool_calls, 2, "{api}");
        let said = ["assistant: I look.", "toolResult: main.rs", "toolResult: main.rs"];
        let said = [&["user: what is the weather"], &said[..], &["assistant: There is main.rs."]].concat();
        assert_eq!(words(&seen.messages), said, "{api}");
        // The provider notes every protocol's request as one of Chat Completions.
        let sent = seen.requests[1]["body"]["messages"].as_array().unwrap();
        let results = sent.iter().filter(|message| message["role"] == "tool");
        let results: Vec<Value> =
            results.map(|result| json!([result["tool_call_id"], result["content"]])).collect();
        assert_eq!(results, [json!(["call_001", "main.rs"]), json!(["call_002", "main.rs"])], "{api}");
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_for_as_long_as_the_provider_says() {
    let Some(peer) = aimock() else { return };
    for (api, seen) in completed(peer, "limited").await {
        assert_eq!((seen.calls(), seen.responses()), ((2, 0), vec![(429, false), (200, false)]), "{api}");
        assert_eq!(seen.failures(), [("rate_limit", "same_model_rate_limit", 12.0)], "{api}");
        let at = |at: usize| seen.requests[at]["timestamp"].as_u64().unwrap();
        assert!(at(1) - at(0) >= 12_000, "{api}: {:?}", seen.requests);
        assert_eq!(words(&seen.messages).last().unwrap(), "assistant: Now it works.", "{api}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_call_that_failed_and_is_asked_again() {
    let Some(peer) = aimock() else { return };
    for (api, seen) in completed(peer, "cut").await {
        assert_eq!((seen.calls(), seen.responses()), ((2, 0), vec![(200, true), (200, false)]), "{api}");
        assert_eq!(seen.failures(), [("connection", "passing_retry", 2.0)], "{api}");
        assert_eq!(
            words(&seen.messages),
            ["user: what is the weather", "assistant: This one is whole."],
            "{api}"
        );
    }
}
