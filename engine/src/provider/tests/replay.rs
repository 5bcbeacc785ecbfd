//! Calls recorded over real connections and played without one.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use model::RunId;
use model::input::{Failure, FailureKind};
use model::message::AssistantMessage;
use tokio_util::sync::CancellationToken;

use super::connection::saying;
use super::{configured, recorded, request, text, user};
use crate::config::{Api, Model, Price, Profile};
use crate::provider::{Client, ModelProvider, Origin, Recording, Remote, Replay, Request, StreamEvent};

const KEY: &str = "sk-test-123456";

/// A model at an address, with a key and a price.
fn remote(api: Api, address: &str) -> Remote {
    let model = Model {
        base_url: Some(address.to_owned()),
        profiles: vec!["work".to_owned()],
        price: Some(Price { input: "1".parse().unwrap(), output: "2".parse().unwrap(), ..Price::default() }),
        ..configured(api)
    };
    let profile = Profile::ApiKeyCmd(format!("echo {KEY}"));
    let profiles = Arc::new([("work".to_owned(), profile)].into());
    Remote::new(model, profiles, Client::new().unwrap()).unwrap()
}

/// A request of a run in a workspace.
fn asked(run: u8, workspace: &str, prompt: &str) -> Request {
    let origin = Origin { run: RunId([run; 16]), workspace: workspace.to_owned(), ..Origin::default() };
    Request { origin: Arc::new(origin), ..request([user(vec![text(prompt)])], &["ls"]) }
}

fn recording(dir: &Path, request: &Request) -> Arc<Recording> {
    Arc::new(Recording::new(dir.to_owned(), &request.origin))
}

/// Everything that a call tells, without its time.
async fn told(provider: &dyn ModelProvider, request: Request) -> Vec<StreamEvent> {
    let timeless = |message: AssistantMessage| AssistantMessage { at: model::Millis(0), ..message };
    let events = provider.stream(request, CancellationToken::new()).map(|event| match event {
        StreamEvent::Done(message) => StreamEvent::Done(Box::new(timeless(*message))),
        StreamEvent::Failed(failure) => {
            let partial = failure.partial.map(|partial| Box::new(timeless(*partial)));
            StreamEvent::Failed(Failure { partial, ..failure })
        }
        event @ (StreamEvent::Opened | StreamEvent::Update(_) | StreamEvent::Lost) => event,
    });
    events.collect().await
}

/// Records a call that a server answers with `response`; answers what it told.
async fn record(api: Api, response: Vec<u8>, dir: &Path, request: Request) -> Vec<StreamEvent> {
    let peer = saying(response).await;
    let recording = recording(dir, &request);
    let request = Request { recording: Some(Arc::clone(&recording)), ..request };
    let events = told(&remote(api, &peer.address), request).await;
    assert_eq!(recording.lost(), None);
    events
}

/// The kind and the whole words of the failure of a call.
async fn failure(provider: &dyn ModelProvider, request: Request) -> (FailureKind, String) {
    match told(provider, request).await.pop() {
        Some(StreamEvent::Failed(failure)) => (failure.kind, failure.partial.unwrap().error_message.unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Every file below a directory, by its path there.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found
                .push((path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn what_was_recorded_is_told_again_and_costs_the_same() {
    let rows = [
        (Api::AnthropicMessages, "aimock-anthropic-text"),
        (Api::AnthropicMessages, "aimock-anthropic-tools"),
        (Api::AnthropicMessages, "aimock-anthropic-limit"),
        (Api::AnthropicMessages, "llama-anthropic-error"),
        (Api::OpenaiChat, "aimock-chat-tools"),
        (Api::OpenaiChat, "llama-chat-text"),
        (Api::OpenaiChat, "llama-chat-error"),
        (Api::OpenaiResponses, "aimock-responses-text"),
        (Api::OpenaiResponses, "llama-responses-tools"),
    ];
    for (api, name) in rows {
        let dir = tempfile::tempdir().unwrap();
        let events = record(api, recorded(name), dir.path(), asked(1, "/w", "hi")).await;
        let replay = Replay::open(dir.path()).unwrap();
        assert_eq!(told(&replay, asked(2, "/elsewhere", "hi")).await, events, "{name}");
        let [(_, response)] =
            files(dir.path()).try_into().map(|[_, response, _]: [_; 3]| [response]).unwrap();
        let body = response.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
        assert!(response[body..] == super::body(&recorded(name)), "{name}");
    }
}

#[tokio::test]
async fn a_response_that_broke_off_or_never_came_fails_as_it_did() {
    let whole = recorded("llama-anthropic-text");
    for length in [0, whole.len() / 2] {
        let dir = tempfile::tempdir().unwrap();
        let response = whole[..length].to_vec();
        let events = record(Api::AnthropicMessages, response, dir.path(), asked(1, "/w", "hi")).await;
        let again = told(&Replay::open(dir.path()).unwrap(), asked(2, "/w", "hi")).await;
        let last = |events: &[StreamEvent]| match events.last() {
            Some(StreamEvent::Failed(failure)) => (failure.kind, failure.usage, failure.had_text),
            other => panic!("{other:?}"),
        };
        assert_eq!(last(&again), last(&events), "{length} bytes");
        assert_eq!(again.len(), events.len(), "{length} bytes");
    }
}

#[tokio::test]
async fn a_key_is_in_no_file_whatever_the_server_says() {
    let dir = tempfile::tempdir().unwrap();
    let body = format!("data: {{\"error\":{{\"message\":\"bad key {KEY}, {KEY}\"}}}}\n\n");
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: {KEY}\r\nset-cookie: a=b"
    );
    let response = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let request = asked(1, "/w", &format!("is {KEY} a key?"));
    record(Api::OpenaiChat, response.into(), dir.path(), request).await;
    let files = files(dir.path());
    let has_key = |bytes: &[u8]| bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes());
    let texts: Vec<&str> = files.iter().map(|(_, bytes)| std::str::from_utf8(bytes).unwrap()).collect();
    assert!(!files.iter().any(|(_, bytes)| has_key(bytes)), "{texts:#?}");
    let stars = "*".repeat(KEY.len());
    let response = format!(
        "sprag response 1\nstatus 200\ncontent-type: text/event-stream\nx-request-id: {stars}\n\n{}",
        body.replace(KEY, &stars)
    );
    assert_eq!(texts[1], response);
    assert!(texts[0].contains(&format!("is {stars} a key?")), "{}", texts[0]);
}

#[tokio::test]
async fn the_first_difference_is_told_and_nothing_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    record(Api::OpenaiChat, recorded("aimock-chat-text"), dir.path(), asked(1, "/w", "in /w of hi")).await;
    let replay = Replay::open(dir.path()).unwrap();
    let at = dir.path().join("configured/0.0.request.json");
    let differs = |difference: &str| {
        let at = at.display();
        let words = format!("call 0.0 differs at {difference}; see {at}, and record again if this is meant");
        (FailureKind::Script, words)
    };
    let same = |workspace: &str| asked(2, workspace, &format!("in {workspace} of hi"));
    let rows = [
        (
            asked(2, "/elsewhere", "in /w of him"),
            differs(
                "/messages/1/content: recorded \"in {{workspace}} of hi\", now \"in {{workspace}} of him\"",
            ),
        ),
        (
            Request { thinking: "high".to_owned(), ..same("/v") },
            differs("/reasoning_effort: recorded nothing, now \"high\""),
        ),
        (
            Request { tools: Arc::default(), ..same("/v") },
            differs(r#"/tools: recorded [{"type":"function","function":{"name":"ls","des…, now nothing"#),
        ),
        (
            Request { turn: 1, ..same("/v") },
            (
                FailureKind::Script,
                format!(
                    "call 1.0 was not recorded: {} has no more than 1 call; record again",
                    dir.path().join("configured").display()
                ),
            ),
        ),
    ];
    for (request, expected) in rows {
        assert_eq!(failure(&replay, request).await, expected);
    }
    assert!(matches!(told(&replay, same("/elsewhere")).await.pop(), Some(StreamEvent::Done(_))));
}

#[tokio::test]
async fn a_call_that_is_made_again_takes_the_place_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = recorded("aimock-chat-tools");
    record(Api::OpenaiChat, first[..first.len() / 2].to_vec(), dir.path(), asked(1, "/w", "hi")).await;
    let events =
        record(Api::OpenaiChat, recorded("aimock-chat-text"), dir.path(), asked(1, "/w", "hi")).await;
    // Each server has a port of its own; what was recorded is the model of the first call.
    let replayed = told(&Replay::open(dir.path()).unwrap(), asked(2, "/w", "hi")).await;
    assert_eq!(replayed, events);
    assert_eq!(files(dir.path()).len(), 3);
}

#[tokio::test]
async fn a_disk_that_fails_costs_the_recording_and_not_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    let peer = saying(recorded("aimock-chat-text")).await;
    let request = asked(1, "/w", "hi");
    let recording = recording(&blocked, &request);
    let request = Request { recording: Some(Arc::clone(&recording)), ..request };
    let events = told(&remote(Api::OpenaiChat, &peer.address), request).await;
    assert!(matches!(events.last(), Some(StreamEvent::Done(_))), "{events:?}");
    assert_eq!(recording.lost(), Some("Not a directory (os error 20)"));
}

#[tokio::test]
async fn what_is_no_recording_of_one_model_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || Replay::open(dir.path()).err().map(|error| error.to_string()).unwrap_or_default();
    let place = dir.path().display();
    assert_eq!(refused(), format!("no recording in {place}; make one with `sprag run --record DIR`"));
    let two = [("one", "aimock-chat-text"), ("two", "aimock-chat-text")];
    for (name, response) in two {
        let request = Request { model: name.to_owned(), ..asked(1, "/w", "hi") };
        record(Api::OpenaiChat, recorded(response), dir.path(), request).await;
    }
    let several =
        format!("{place} has the recordings of several models; name one of: {place}/one, {place}/two");
    assert_eq!(refused(), several);
    let one = dir.path().join("one");
    let replay = Replay::open(&one).unwrap();
    assert_eq!(replay.identity(), format!("{}#{}", one.display(), RunId([1; 16])));
    std::fs::write(one.join("0.0.response"), "HTTP/1.1 200 OK\n\n").unwrap();
    let words = format!("{place}/one/0.0.response is no recorded response; record again");
    assert_eq!(failure(&replay, asked(2, "/w", "hi")).await, (FailureKind::Script, words));
    std::fs::write(one.join("model.json"), "{}").unwrap();
    let error = Replay::open(&one).unwrap_err().to_string();
    assert!(error.starts_with(&format!("recording {place}/one cannot be read: missing field")), "{error}");
}
