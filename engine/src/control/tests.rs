//! The socket between an engine and clients of the same process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use model::RunId;
use serde_json::{Value, json};
use store::Stream;

use super::*;
use crate::provider::Rehearsal;
use crate::query::Filter;
use crate::{AgentEvent, Engine, Error, Job, RunHandle, Stamped, keys};

/// An engine whose model takes long, with one run.
async fn owner(dir: &Path) -> (Engine, Server, RunHandle) {
    let script = json!({ "turns": [{ "text": "at last", "delay_ms": 3_600_000 }] });
    let rehearsal = Rehearsal::from_value(&script).unwrap();
    let engine = Engine::memory().provider("slow", rehearsal).open().unwrap();
    let server = Server::start(&engine, dir).unwrap();
    let run = engine.submit(Job::new("go").model("slow")).await.unwrap();
    (engine, server, run)
}

/// A client on a thread of its own, as a command is.
async fn with_client<T: Send + 'static>(dir: &Path, ask: impl FnOnce(Client) -> T + Send + 'static) -> T {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || ask(Client::connect(&dir).unwrap().unwrap())).await.unwrap()
}

/// What the owner says to these lines, until it closes the connection.
async fn say(dir: &Path, lines: Vec<Vec<u8>>) -> Vec<Value> {
    let path = dir.join(SOCKET);
    let talk = move || {
        let mut stream = UnixStream::connect(path).unwrap();
        for line in lines {
            // The owner may have hung up.
            let _ = stream.write_all(&line);
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let lines = BufReader::new(stream).lines();
        lines.map_while(Result::ok).map(|line| serde_json::from_str(&line).unwrap()).collect()
    };
    tokio::task::spawn_blocking(talk).await.unwrap()
}

fn hello(protocol: u32) -> Vec<u8> {
    format!("{{\"op\":\"hello\",\"protocol\":{protocol},\"version\":\"0\"}}\n").into_bytes()
}

fn refusal(message: &str) -> Value {
    json!({ "error": { "kind": "request", "message": message } })
}

async fn inbox_len(engine: &Engine, run: RunId) -> usize {
    engine.store().read_journal(Stream::Inbox(keys::run_key(run)), 0, 100).unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_answers_questions() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, server, run) = owner(dir.path()).await;
    let mode = std::fs::metadata(dir.path().join(SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let id = run.id.to_string();
    let answers = with_client(dir.path(), move |mut client| {
        let filter = Filter::default();
        let list: Value = client.ask(&Request::Ls { filter }).unwrap();
        let ping: Value = client.ask(&Request::Ping).unwrap();
        let shown: Value = client.ask(&Request::Show { run: id[..8].to_owned() }).unwrap();
        let none = client.ask::<Value>(&Request::Why { run: "0".repeat(32) }).unwrap_err().to_string();
        (client.owner.pid, list[0]["run"].clone(), ping, shown["run"].clone(), none)
    });
    let id = json!(run.id.to_string());
    let none = format!("no run {}; `sprag ls` lists the runs there are", "0".repeat(32));
    assert_eq!(answers.await, (std::process::id(), id.clone(), Value::Null, id, none));
    server.close().await;
    assert!(Client::connect(dir.path()).unwrap().is_none());
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_with_the_same_key_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, _server, run) = owner(dir.path()).await;
    let id = run.id.to_string();
    with_client(dir.path(), move |mut client| {
        let act = Act::Steer { text: "left".to_owned() };
        let request = Request::Act { run: id.clone(), key: "k".to_owned(), act };
        for _ in 0..3 {
            assert_eq!(client.ask::<String>(&request).unwrap(), id);
        }
        let act = Act::Steer { text: "right".to_owned() };
        let other = Request::Act { run: id.clone(), key: "k".to_owned(), act };
        let refused = client.ask::<String>(&other).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the key `k` was used before for something else; nothing was done, use another key"
        );
    })
    .await;
    assert_eq!(inbox_len(&engine, run.id).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_followed_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, _server, run) = owner(dir.path()).await;
    // The cancel below must not overtake the prompt.
    let events = run.events(None).unwrap();
    let is_prompted = |event: &Result<Stamped, Error>| {
        std::future::ready(matches!(event.as_ref().unwrap().event, AgentEvent::MessageEnd { .. }))
    };
    events.filter(is_prompted).boxed().next().await.unwrap().unwrap();
    let id = run.id.to_string();
    let following = with_client(dir.path(), move |mut client| {
        let mut names = Vec::new();
        let request = Request::Events { run: id, after: Some("1".to_owned()), follow: true };
        let has_ended: bool = client
            .follow(&request, |event| {
                names.push(event["type"].as_str().unwrap().to_owned());
                Ok(())
            })
            .unwrap();
        (has_ended, names.first().cloned(), names.last().cloned())
    });
    let id = run.id.to_string();
    let cancelling = with_client(dir.path(), move |mut client| {
        let act = Act::Cancel { reason: "enough".to_owned() };
        client.ask::<String>(&Request::Act { run: id, key: "c".to_owned(), act }).unwrap();
    });
    let (followed, ()) = tokio::join!(following, cancelling);
    assert_eq!(followed, (true, Some("message_start".to_owned()), Some("agent_end".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_says_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, server, _run) = owner(dir.path()).await;
    let asked =
        with_client(dir.path(), |mut client| client.ask::<Left>(&Request::Stop { drain: false }).unwrap());
    let (left, ()) = tokio::join!(asked, server.stop_asked());
    assert_eq!(left, Left { pid: std::process::id(), left: 1, commands: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_refused_and_costs_the_owner_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, _server, _run) = owner(dir.path()).await;
    let version = env!("CARGO_PKG_VERSION");
    let other = format!(
        "this engine is sprag {version} and speaks protocol 1, the command speaks protocol 9; use the same \
         version for both"
    );
    assert_eq!(say(dir.path(), vec![hello(9)]).await, [refusal(&other)]);
    assert_eq!(say(dir.path(), vec![b"{\"op\":\"ping\"}\n".to_vec()]).await, [refusal("say hello first")]);
    let long = format!("a request is one line of at most {REQUEST_BYTES_MAX} bytes");
    assert_eq!(say(dir.path(), vec![vec![b' '; REQUEST_BYTES_MAX]]).await, [refusal(&long)]);
    let unknown = say(dir.path(), vec![hello(1), b"{\"op\":\"dance\"}\n".to_vec()]).await;
    assert_eq!(unknown.len(), 2);
    assert!(unknown[1]["error"]["message"].as_str().unwrap().starts_with("not a request: unknown variant"));
    with_client(dir.path(), |mut client| {
        assert_eq!(client.ask::<Value>(&Request::Ping).unwrap(), Value::Null)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_too_many_is_told_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, _server, _run) = owner(dir.path()).await;
    let path = dir.path().to_owned();
    let refused = tokio::task::spawn_blocking(move || {
        let served: Vec<Client> =
            (0..CLIENTS_MAX).map(|_| Client::connect(&path).unwrap().unwrap()).collect();
        let refused = Client::connect(&path).unwrap_err().to_string();
        drop(served);
        refused
    });
    assert_eq!(refused.await.unwrap(), "64 clients are connected already; repeat the command later");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_too_long_for_an_address_is_reached_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let long: PathBuf = dir.path().join("d".repeat(120));
    std::fs::create_dir(&long).unwrap();
    let (_engine, _server, _run) = owner(&long).await;
    let pid = with_client(&long, |client| client.owner.pid).await;
    assert_eq!(pid, std::process::id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_nobody_listens_on_is_no_owner_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Client::connect(dir.path()).unwrap().is_none());
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).unwrap());
    assert!(Client::connect(dir.path()).unwrap().is_none());
    let (_engine, _server, _run) = owner(dir.path()).await;
    assert!(with_client(dir.path(), |client| client.owner.pid).await > 0);
}

/// As an owner that was killed before it took the connection.
#[test]
fn who_hangs_up_before_the_first_word_is_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let owner = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert!(Client::connect(dir.path()).unwrap().is_none());
    owner.join().unwrap();
    assert!(Client::connect(dir.path()).unwrap().is_none(), "nobody listens");
}
