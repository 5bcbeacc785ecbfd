//! Trials against peers on loopback that answer, refuse, or are not there.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::config::Profile;

/// A peer that answers every request with these bytes; its address.
async fn saying(response: impl Into<Vec<u8>>) -> String {
    let response = response.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert!(connection.read_buf(&mut request).await.unwrap() > 0, "the request broke off");
            }
            connection.write_all(&response).await.unwrap();
        }
    });
    address
}

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../tests/recorded/{name}.http", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn refusing(status: &str, message: &str) -> String {
    let body = format!("{{\"error\":{{\"message\":\"{message}\"}}}}");
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close");
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn at(api: Api, address: &str) -> Model {
    Model { base_url: Some(address.to_owned()), model: Some("m".to_owned()), ..Model::new(api) }
}

fn config(models: impl IntoIterator<Item = (&'static str, Model)>) -> Config {
    let models = models.into_iter().map(|(name, model)| (name.to_owned(), model)).collect();
    let profiles = [
        ("here", Profile::ApiKeyCmd("echo sk-123456".to_owned())),
        ("gone", Profile::ApiKeyEnv("SPRAG_TEST_NO_SUCH_KEY".to_owned())),
    ];
    let profiles = profiles.map(|(name, profile)| (name.to_owned(), profile)).into();
    Config { models: Arc::new(models), profiles: Arc::new(profiles), ..Config::default() }
}

/// Each trial: model, profile, and what is wrong with its remedy.
async fn tried(config: &Config) -> Vec<[String; 4]> {
    let trials = try_models(config, &[]).await.unwrap();
    let row = |trial: Trial| {
        let fault = trial.fault.map(|fault| [format!("{}: {}", fault.kind, fault.words), fault.remedy]);
        let [words, remedy] = fault.unwrap_or(["works".to_owned(), String::new()]);
        [trial.model, trial.profile.unwrap_or_default(), words, remedy]
    };
    trials.into_iter().map(row).collect()
}

fn rows<const N: usize>(rows: [[&str; 4]; N]) -> Vec<[String; 4]> {
    rows.map(|row| row.map(str::to_owned)).into()
}

#[tokio::test]
async fn a_model_of_each_protocol_works_with_each_of_its_keys() {
    let work = at(Api::AnthropicMessages, &saying(recorded("aimock-anthropic-text")).await);
    let config = config([
        ("a", Model { profiles: ["gone", "here"].map(str::to_owned).into(), ..work }),
        ("b", at(Api::OpenaiChat, &saying(recorded("aimock-chat-text")).await)),
        ("c", at(Api::OpenaiResponses, &saying(recorded("aimock-responses-text")).await)),
        // Cut at its most tokens.
        ("d", at(Api::OpenaiChat, &saying(recorded("llama-chat-text")).await)),
    ]);
    let missing = "key_missing: the variable SPRAG_TEST_NO_SUCH_KEY holds no key";
    let expected = rows([
        ["a", "gone", missing, "set the variable SPRAG_TEST_NO_SUCH_KEY"],
        ["a", "here", "works", ""],
        ["b", "", "works", ""],
        ["c", "", "works", ""],
        ["d", "", "works", ""],
    ]);
    assert_eq!(tried(&config).await, expected);
}

#[tokio::test]
async fn what_is_wrong_is_named_with_the_next_step() {
    // A port that was free a moment ago, on an address that nothing else here uses.
    let free = TcpListener::bind("127.77.0.1:0").await.unwrap();
    let closed = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let refused = saying(refusing("401 Unauthorized", "bad key sk-123456")).await;
    let unknown = saying(refusing("404 Not Found", "no model m")).await;
    let limited = saying(refusing("429 Too Many Requests", "slow down")).await;
    let chat = |address: &str| at(Api::OpenaiChat, address);
    let config = config([
        ("closed", chat(&closed)),
        ("keyless", chat(&refused)),
        ("limited", chat(&limited)),
        ("refused", Model { profiles: vec!["here".to_owned()], ..chat(&refused) }),
        (
            "silent",
            chat(
                &saying("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                    .await,
            ),
        ),
        ("unknown", chat(&unknown)),
    ]);
    let expected = rows([
        ["closed", "", "connection: ", "start the server, or mend models.closed.base_url"],
        [
            "keyless",
            "",
            "auth: bad key sk-123456 (HTTP status 401)",
            "name its key in models.keyless.api_key_env",
        ],
        ["limited", "", "rate_limit: slow down (HTTP status 429)", "wait, or add a profile"],
        [
            "refused",
            "here",
            "auth: bad key [key] (HTTP status 401)",
            "put a valid key where profiles.here finds it",
        ],
        ["silent", "", "missing: the stream ended without an answer", "look whether it speaks openai-chat"],
        [
            "unknown",
            "",
            "model_not_found: no model m (HTTP status 404)",
            "mend models.unknown.model, or its base_url",
        ],
    ]);
    let mut found = tried(&config).await;
    // The rest is the system's.
    found[0][2].truncate("connection: ".len());
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_rehearsal_works_if_its_script_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        Model { file: Some(file.display().to_string()), ..Model::new(Api::Rehearsal) }
    };
    let (good, bad) = (script("good.json", r#"{"turns":[{"text":"hello"}]}"#), script("bad.json", "{"));
    let config = config([("good", good.clone()), ("bad", bad)]);
    let trials = try_models(&config, &[]).await.unwrap();
    let faults: Vec<_> = trials.iter().map(|trial| trial.fault.as_ref().map(|fault| fault.kind)).collect();
    assert_eq!(faults, [Some("script"), None]);

    let named = format!("rehearsal:{}", good.file.unwrap());
    let trials = try_models(&config, &["good".to_owned(), named.clone()]).await.unwrap();
    let names: Vec<_> = trials.iter().map(|trial| (trial.model.as_str(), trial.fault.is_none())).collect();
    assert_eq!(names, [("good", true), (&named, true)]);
    let unknown = try_models(&config, &["goood".to_owned()]).await.unwrap_err();
    assert_eq!(unknown.to_string(), "model `goood` is not configured, did you mean `good`?");
}
