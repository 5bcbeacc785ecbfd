//! Whole runs over real connections: to servers that others wrote, and to recordings of what these had sent.
#![allow(clippy::unwrap_used, reason = "a test states what it relies on")]

mod aimock;
mod llama;
mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use engine::config::{Api, Config, Model, Price};
use engine::harness::{HookContext, Hooks, TurnView};
use engine::query::session_transcript;
use engine::{Engine, Harness, Job, Rest};
use model::input::{Hook, NextTurn};
use model::{Label, Message, Outcome};
use serde_json::{Value, json};

use server::Server;

const ANTHROPIC: Api = Api::AnthropicMessages;
const CHAT: Api = Api::OpenaiChat;
const RESPONSES: Api = Api::OpenaiResponses;

/// Models by name, each served by one of the servers.
fn config(models: &[(&str, Api, &Server)]) -> Config {
    let usd = |text: &str| text.parse().unwrap();
    let price = Price { input: usd("1"), output: usd("2"), cache_read: Some(usd("0.5")), ..Price::default() };
    let model = |(name, api, server): &(&str, Api, &Server)| {
        let model = Model {
            base_url: Some(server.address.clone()),
            model: Some(format!("vendor-{name}")),
            price: Some(price.clone()),
            ..Model::new(*api)
        };
        ((*name).to_owned(), model)
    };
    let models: BTreeMap<String, Model> = models.iter().map(model).collect();
    Config { models: Arc::new(models), ..Config::default() }
}

fn engine(config: Config, harness: Harness) -> Engine {
    Engine::memory().without_commands().config(config).harness(harness).open().unwrap()
}

/// A directory with one file.
fn workspace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("main.rs"), "").unwrap();
    dir
}

fn job(model: &str, workspace: &Path) -> Job {
    Job::new("what is the weather").model(model).workspace(workspace).tools(["ls", "find"])
}

const COMPLETED: Rest = Rest::Done { outcome: Outcome::Completed, reason: None };

fn transcript(engine: &Engine, run: model::RunId) -> Vec<Arc<Message>> {
    let entries = session_transcript(&**engine.store(), run).unwrap();
    entries.into_iter().map(|entry| entry.message).collect()
}

/// Each message as its role and its text.
fn words(messages: &[Arc<Message>]) -> Vec<String> {
    messages.iter().map(|message| format!("{}: {}", message.role().name(), message.joined_text())).collect()
}

/// What a request says of the calls so far, in the spelling of its protocol: ids, then results.
fn exchange(api: Api, body: &Value) -> (Vec<String>, Vec<Value>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let messages = list(&body["messages"]).into_iter().chain(list(&body["input"]));
    let (mut ids, mut results) = (Vec::new(), Vec::new());
    for message in messages {
        match api {
            Api::AnthropicMessages => {
                for block in list(&message["content"]) {
                    match block["type"].as_str() {
                        Some("tool_use") => ids.push(text(&block["id"])),
                        Some("tool_result") => results.push(block["content"][0]["text"].clone()),
                        _ => {}
                    }
                }
            }
            Api::OpenaiChat => {
                ids.extend(list(&message["tool_calls"]).iter().map(|call| text(&call["id"])));
                if message["role"] == "tool" {
                    results.push(message["content"].clone());
                }
            }
            Api::OpenaiResponses => match message["type"].as_str() {
                Some("function_call") => ids.push(text(&message["call_id"])),
                Some("function_call_output") => results.push(message["output"].clone()),
                _ => {}
            },
            Api::Rehearsal | Api::Replay => unreachable!(),
        }
    }
    (ids, results)
}

#[tokio::test]
async fn a_recorded_call_is_run_and_its_result_goes_back() {
    let two = ["call_001", "call_002"].map(str::to_owned).to_vec();
    let rows = [
        (ANTHROPIC, ["aimock-anthropic-tools", "aimock-anthropic-text"], two.clone()),
        (CHAT, ["aimock-chat-tools", "aimock-chat-text"], two.clone()),
        (RESPONSES, ["aimock-responses-tools", "aimock-responses-text"], two),
        (
            ANTHROPIC,
            ["llama-anthropic-tools", "aimock-anthropic-text"],
            vec!["SMj5Gh60yZSl2kjluY8OwiUT69GdUmp7".to_owned()],
        ),
        (CHAT, ["llama-chat-tools", "aimock-chat-text"], vec!["dYwbd8DRf1Fs4dSSZLhVQUew7Yw91guR".to_owned()]),
        (
            RESPONSES,
            ["llama-responses-tools", "aimock-responses-text"],
            vec!["call_LjnEINbIFJTZSYCB9N4BSlqf210qXGih".to_owned()],
        ),
    ];
    for (api, recordings, ids) in rows {
        let (server, workspace) = (Server::playing(&recordings).await, workspace());
        let engine = engine(config(&[("m", api, &server)]), Harness::default());
        let run = engine.submit(job("m", workspace.path())).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), COMPLETED, "{recordings:?}");

        let results = vec![Value::from("main.rs"); ids.len()];
        let requests = server.requests().await;
        assert_eq!(exchange(api, &requests[0]), (vec![], vec![]), "{recordings:?}");
        assert_eq!(exchange(api, &requests[1]), (ids, results), "{recordings:?}");
        assert_eq!(requests[1]["model"], "vendor-m");
        let said = words(&transcript(&engine, run.id));
        assert_eq!(said.last().unwrap(), "assistant: It is sunny — żółć 🌞, done.");
    }
}

/// Takes another model for the next turn.
struct Switching(&'static str);

#[async_trait]
impl Hooks for Switching {
    fn wanted(&self) -> &[Hook] {
        &[Hook::PrepareNextTurn]
    }

    async fn prepare_next_turn(&self, _: HookContext<'_>, _: &TurnView<'_>) -> Result<NextTurn, String> {
        Ok(NextTurn { model: Some(Label::from(self.0)), ..NextTurn::default() })
    }
}

#[tokio::test]
async fn a_run_goes_on_with_another_provider_in_the_middle_of_its_calls() {
    let rows = [
        (ANTHROPIC, "aimock-anthropic-tools", RESPONSES, "aimock-responses-text"),
        (RESPONSES, "aimock-responses-tools", ANTHROPIC, "aimock-anthropic-text"),
        (CHAT, "llama-chat-tools", ANTHROPIC, "aimock-anthropic-text"),
        (ANTHROPIC, "aimock-anthropic-tools", CHAT, "aimock-chat-text"),
    ];
    for (first_api, first, second_api, second) in rows {
        let (one, two) = (Server::playing(&[first]).await, Server::playing(&[second]).await);
        let workspace = workspace();
        let harness = Harness { hooks: Some(Arc::new(Switching("b"))), ..Harness::default() };
        let engine = engine(config(&[("a", first_api, &one), ("b", second_api, &two)]), harness);
        let run = engine.submit(job("a", workspace.path())).await.unwrap();
        assert_eq!(run.outcome().await.unwrap(), COMPLETED, "{first} then {second}");

        let [request] = two.requests().await.try_into().unwrap();
        let (ids, results) = exchange(second_api, &request);
        assert_eq!((ids.is_empty(), ids.len()), (false, results.len()), "{first} then {second}");
        let sent = request.to_string();
        let foreign = ["signature", "encrypted_content", "thinking"];
        assert_eq!(foreign.map(|word| sent.contains(&format!("\"{word}\""))), [false; 3], "{sent}");
    }
}

#[tokio::test]
async fn an_error_after_the_head_ends_the_run_with_the_servers_words_and_the_cost() {
    let (server, workspace) = (Server::playing(&["llama-anthropic-error"]).await, workspace());
    let engine = engine(config(&[("m", ANTHROPIC, &server)]), Harness::default());
    let job = Job { retries: Some(false), ..job("m", workspace.path()) };
    let run = engine.submit(job).await.unwrap();
    let Rest::Done { outcome: Outcome::Failed, reason: Some(reason) } = run.outcome().await.unwrap() else {
        panic!("the run did not fail")
    };
    assert!(reason.starts_with("server_error: The model produced output"), "{reason}");
    let messages = transcript(&engine, run.id);
    let Some(Message::Assistant(last)) = messages.last().map(|message| &**message) else {
        panic!("{messages:?}")
    };
    let whole = "The model produced output that does not match the expected peg-native format";
    assert_eq!(last.error_message.as_deref(), Some(whole));
    // 114 tokens at one dollar a million and 8 from the cache at half of it.
    assert_eq!((last.usage.input, last.usage.cache_read, last.usage.usd_micros), (114, 8, 118));
}

#[tokio::test]
async fn what_a_session_spends_is_counted_in_money() {
    let (server, workspace) = (Server::playing(&["llama-chat-tools", "llama-chat-text"]).await, workspace());
    let engine = engine(config(&[("m", CHAT, &server)]), Harness::default());
    let run = engine.submit(job("m", workspace.path())).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), COMPLETED);
    let micros: Vec<u64> = transcript(&engine, run.id)
        .iter()
        .filter_map(|message| match &**message {
            Message::Assistant(answer) => Some(answer.usage.usd_micros),
            Message::User(_) | Message::ToolResult(_) | Message::Custom(_) => None,
        })
        .collect();
    // 1 in, 159 cached, 24 out; 1 in, 37 cached, 40 out; each rounded up.
    assert_eq!(micros, [1 + 80 + 48, 1 + 19 + 80]);
    assert_eq!(
        server.requests().await[0]["messages"],
        json!([{ "role": "user", "content": "what is the weather" }])
    );
}
