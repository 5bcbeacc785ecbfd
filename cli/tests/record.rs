//! Recording and replaying through the built binary, against a server that plays recorded responses.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::Value;
use support::{Session, signal, status};

const KEY: &str = "sk-test-0123456789";
const PROMPT: &str = "what is the weather";

/// Protocols, each with an answer that calls tools and one that ends the run.
const STORIES: [(&str, &str, &str); 4] = [
    ("anthropic-messages", "aimock-anthropic-tools", "aimock-anthropic-text"),
    ("openai-chat", "aimock-chat-tools", "aimock-chat-text"),
    ("openai-responses", "aimock-responses-tools", "aimock-responses-text"),
    ("openai-responses", "llama-responses-tools", "llama-responses-text"),
];

/// A server on loopback that plays one response a request, and closes.
struct Server {
    address: String,
    /// Tells of each request once its response was written.
    played: Receiver<()>,
}

impl Server {
    fn playing(responses: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (tell, played) = channel();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for response in responses {
                let (mut connection, _) = listener.accept().unwrap();
                read_request(&mut connection);
                connection.write_all(&response).unwrap();
                // One that was cut off stays open: the client waits for the rest.
                if !response.ends_with(b"0\r\n\r\n") {
                    held.push(connection);
                }
                tell.send(()).unwrap();
            }
        });
        Self { address, played }
    }

    /// `[models.m]` at this address.
    fn config(&self, api: &str) -> String {
        self.config_of("m", api)
    }

    fn config_of(&self, name: &str, api: &str) -> String {
        let address = &self.address;
        let place = format!("[models.{name}]\napi = \"{api}\"\nbase_url = \"{address}\"\nmodel = \"v\"\n");
        place + "api_key_env = \"KEY_A\"\nprice = { input = 1.0, output = 2.0 }\n"
    }
}

fn read_request(connection: &mut TcpStream) {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = connection.read(&mut piece).unwrap();
        assert!(read > 0, "the request broke off");
        request.extend_from_slice(&piece[..read]);
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if request.len() >= end + 4 + length.parse::<usize>().unwrap() {
            return;
        }
    }
}

/// A recorded response.
fn plain_response(name: &str) -> Vec<u8> {
    std::fs::read(root().join(format!("tests/recorded/{name}.http"))).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The same with the key in its head.
fn response(name: &str) -> Vec<u8> {
    let whole = plain_response(name);
    let end = whole.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    [&whole[..end], format!("\r\nx-request-id: {KEY}").as_bytes(), &whole[end..]].concat()
}

/// What a server says that refuses.
fn refusal(status: &str, kind: &str) -> Vec<u8> {
    let body = format!(r#"{{"error":{{"type":"{kind}","message":"no"}}}}"#);
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked");
    format!("{head}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into()
}

/// Runs in the workspace of the session, or below it.
fn run(session: &Session, arguments: &[&str]) -> Output {
    let all = [&["run", "--tools", "ls,find"], arguments].concat();
    session.command(&all).env("KEY_A", KEY).output().unwrap()
}

/// The messages of the newest run, without their times.
fn transcript(session: &Session) -> Vec<Value> {
    transcript_of(session, &session.newest(), &[])
}

fn transcript_of(session: &Session, run: &str, more: &[&str]) -> Vec<Value> {
    let output = session.command(&[&["transcript", run, "--json"], more].concat()).output().unwrap();
    let mut messages: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for message in &mut messages {
        message.as_object_mut().unwrap().remove("timestamp").unwrap();
    }
    messages
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_recorded_run_is_replayed_elsewhere_without_a_server_and_a_change_is_named() {
    for (api, first, second) in STORIES {
        let session = Session::new();
        let server = Server::playing(vec![response(first), response(second)]);
        session.file("sprag.toml", &server.config(api));
        session.file("main.rs", "");
        let recorded = run(&session, &["--model", "m", "--record", "../rec", PROMPT]);
        assert_eq!(status(&recorded), "0", "{api}: {}", stderr(&recorded));
        let expected = transcript(&session);
        assert_eq!(expected.len(), 3 + expected.iter().filter(|m| m["role"] == "toolResult").count());
        drop(server);

        let rec = session.data().parent().unwrap().join("rec");
        let call = ["request.json", "response"];
        let calls = ["0.0", "1.0"].iter().flat_map(|place| call.map(|kind| format!("{place}.{kind}")));
        let names: Vec<String> = calls.chain(["model.json".to_owned()]).collect();
        assert_eq!(files(&rec.join("m")), names, "{api}");
        for name in &names {
            let bytes = std::fs::read(rec.join("m").join(name)).unwrap();
            assert!(!bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes()), "{api}: {name}");
        }

        // No configuration, no key, another workspace.
        std::fs::remove_file(session.work().join("sprag.toml")).unwrap();
        let elsewhere = session.work().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("main.rs"), "").unwrap();
        std::fs::write(elsewhere.join("sprag.toml"), "").unwrap();
        let replay = ["--model", "replay:../rec", "--workspace", "elsewhere"];
        let same = run(&session, &[&replay[..], &[PROMPT]].concat());
        assert_eq!(status(&same), "0", "{api}: {}", stderr(&same));
        assert_eq!(transcript(&session), expected, "{api}");

        let changed = run(&session, &[&replay[..], &["what was the weather"]].concat());
        assert_eq!(status(&changed), "1", "{api}");
        let words = format!("recorded \"{PROMPT}\", now \"what was the weather\"; see ");
        let said = stderr(&changed);
        assert!(said.contains("call 0.0 differs at /") && said.contains(&words), "{api}: {said}");
        assert!(said.contains("m/0.0.request.json, and record again if this is meant"), "{api}: {said}");
        let why = session.command(&["why", &session.newest()]).output().unwrap();
        let why = String::from_utf8(why.stdout).unwrap();
        assert!(why.contains("script: call 0.0 differs at /"), "{api}: {why}");
        std::fs::remove_dir_all(rec).unwrap();
    }
}

#[test]
fn a_run_that_was_killed_in_a_call_goes_on_recording_when_it_is_resumed() {
    let (api, first, second) = STORIES[0];
    let session = Session::new();
    let whole = response(second);
    let cut = whole[..whole.len() / 2].to_vec();
    let server = Server::playing(vec![response(first), cut, whole]);
    session.file("sprag.toml", &server.config(api));
    let arguments = ["run", "--tools", "ls,find", "--model", "m", "--record", "../rec", PROMPT];
    let mut killed = session
        .command(&arguments)
        .env("KEY_A", KEY)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.played.recv().unwrap();
    server.played.recv().unwrap();
    signal(&killed, Signal::KILL);
    killed.wait().unwrap();
    let resumed = session.command(&["resume"]).env("KEY_A", KEY).output().unwrap();
    assert_eq!(status(&resumed), "0", "{}", stderr(&resumed));
    let expected = transcript(&session);
    drop(server);
    let replayed = run(&session, &["--model", "replay:../rec", PROMPT]);
    assert_eq!(status(&replayed), "0", "{}", stderr(&replayed));
    assert_eq!(transcript(&session), expected);
}

#[test]
fn a_replay_that_was_configured_is_a_model_like_others() {
    let session = Session::new();
    let server = Server::playing(vec![response(STORIES[0].2)]);
    session.file("sprag.toml", &server.config(STORIES[0].0));
    let recorded = run(&session, &["--model", "m", "--record", "../rec", PROMPT]);
    assert_eq!(status(&recorded), "0", "{}", stderr(&recorded));
    assert!(!stderr(&recorded).contains("the recording is"), "{}", stderr(&recorded));
    let expected = transcript(&session);
    session.file("sprag.toml", "[models.m]\napi = \"replay\"\nfile = \"../rec\"\n");
    let replayed = run(&session, &["--model", "m", PROMPT]);
    assert_eq!(status(&replayed), "0", "{}", stderr(&replayed));
    assert_eq!(transcript(&session), expected);
}

#[test]
fn a_run_that_fell_back_is_replayed_by_its_models() {
    let session = Session::new();
    let (_, first, second) = STORIES[0];
    let [one, two] =
        [vec![refusal("404 Not Found", "not_found_error")], vec![response(first), response(second)]]
            .map(Server::playing);
    let fallback = "[defaults]\nmodel = \"one\"\nfallback = [\"two\"]\n";
    let models = [one.config_of("one", STORIES[1].0), two.config_of("two", STORIES[0].0)].concat();
    session.file("sprag.toml", &(models + fallback));
    let recorded = run(&session, &["--record", "../rec", "--session", "s", PROMPT]);
    assert_eq!(status(&recorded), "0", "{}", stderr(&recorded));
    let expected = transcript(&session);
    let several = run(&session, &["--model", "replay:../rec", PROMPT]);
    assert_eq!(status(&several), "2");
    assert!(stderr(&several).contains("rec has the recordings of several models"), "{}", stderr(&several));
    let replay = |name| format!("[models.{name}]\napi = \"replay\"\nfile = \"../rec/{name}\"\n");
    session.file("sprag.toml", &(replay("one") + &replay("two") + fallback));
    let replayed = run(&session, &[PROMPT]);
    assert_eq!(status(&replayed), "0", "{}", stderr(&replayed));
    assert_eq!(transcript(&session), expected);
}

#[test]
fn a_run_that_changed_its_account_is_replayed_by_accounts_without_keys() {
    let session = Session::new();
    let (api, first, second) = STORIES[0];
    let refused = refusal("401 Unauthorized", "authentication_error");
    let server = Server::playing(vec![refused, response(first), response(second)]);
    let profiles = |keys: [&str; 2]| {
        let [work, spare] = keys.map(|key| format!("api_key_env = \"{key}\"\n"));
        format!("profiles = [\"work\", \"spare\"]\n[profiles.work]\n{work}[profiles.spare]\n{spare}")
    };
    session.file("sprag.toml", &(server.config(api) + &profiles(["KEY_A", "KEY_A"])));
    let recorded = run(&session, &["--model", "m", "--record", "../rec", PROMPT]);
    assert_eq!(status(&recorded), "0", "{}", stderr(&recorded));
    let expected = transcript(&session);
    let replay = "[models.m]\napi = \"replay\"\nfile = \"../rec\"\n".to_owned();
    session.file("sprag.toml", &(replay + &profiles(["NONE", "NONE"])));
    let fresh = ["--data", "../fresh"];
    let replayed = run(&session, &[&fresh[..], &["--model", "m", PROMPT]].concat());
    assert_eq!(status(&replayed), "0", "{}", stderr(&replayed));
    let runs = session.command(&["ls", "--data", "../fresh"]).output().unwrap();
    let runs = String::from_utf8(runs.stdout).unwrap();
    let run = runs.split('\t').next().unwrap();
    assert_eq!(transcript_of(&session, run, &fresh), expected);
}

#[test]
fn a_recording_holds_one_run() {
    let session = Session::new();
    let (api, _, text) = STORIES[1];
    let server = Server::playing(vec![response(text)]);
    session.file("sprag.toml", &server.config(api));
    let record = ["--model", "m", "--record", "rec", "--key", "k", PROMPT];
    let first = run(&session, &record);
    assert_eq!(status(&first), "0", "{}", stderr(&first));
    assert!(stderr(&first).contains("the recording is inside of the workspace"));
    let again = run(&session, &record);
    assert_eq!(status(&again), "0", "the same run, by its key: {}", stderr(&again));
    let other = run(&session, &["--model", "m", "--record", "rec", PROMPT]);
    assert_eq!(status(&other), "2");
    let elsewhere = run(&session, &["--model", "m", "--record", "rec3", "--key", "k", PROMPT]);
    assert_eq!(status(&elsewhere), "0");
    assert!(stderr(&elsewhere).contains("nothing is recorded in"), "{}", stderr(&elsewhere));
    assert!(!session.work().join("rec3").exists());
    for no_directory in ["sprag.toml", "sprag.toml/x", "/dev/null"] {
        let refused = run(&session, &["--model", "m", "--record", no_directory, PROMPT]);
        assert_eq!(status(&refused), "2");
        let words = "cannot be read: Not a directory (os error 20); name a new directory to record in";
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
    let words = "rec is not empty, and a recording holds one run; name a new directory";
    assert!(stderr(&other).contains(words), "{}", stderr(&other));
    let replayed = run(&session, &["--model", "replay:rec", "--record", "rec2", PROMPT]);
    assert_eq!(status(&replayed), "2");
    assert!(stderr(&replayed).contains("so there is nothing to record"), "{}", stderr(&replayed));
}

#[test]
fn a_disk_that_fails_costs_the_recording_and_the_end_says_so() {
    let session = Session::new();
    let server = Server::playing(vec![response(STORIES[0].2)]);
    // No file system takes a name as long as this one.
    let name = "m".repeat(300);
    session.file("sprag.toml", &server.config_of(&name, STORIES[0].0));
    let ended = run(&session, &["--model", &name, "--record", "../rec", PROMPT]);
    assert_eq!(status(&ended), "0");
    let said = stderr(&ended);
    let words = "the recording is not whole (File name too long (os error 36)); the run is: record again";
    assert!(said.lines().last().is_some_and(|line| line.starts_with(words)), "{said}");
}

/// Makes the recording of the docs again, without what differs from time to time.
fn record_example(dir: &Path) {
    let session = Session::new();
    let (api, first, second) = STORIES[0];
    let server = Server::playing(vec![plain_response(first), plain_response(second)]);
    session.file("sprag.toml", &server.config(api));
    std::fs::create_dir(session.work().join("project")).unwrap();
    std::fs::copy(dir.join("project/main.rs"), session.work().join("project/main.rs")).unwrap();
    let arguments = ["--model", "m", "--record", "rec", "--workspace", "project", PROMPT];
    let recorded =
        session.command(&[&["run", "--tools", "ls"], &arguments[..]].concat()).env("KEY_A", KEY).output();
    assert_eq!(status(&recorded.unwrap()), "0");
    let rec = session.work().join("rec/m");
    let place = dir.join("recording/m");
    std::fs::create_dir_all(&place).unwrap();
    for name in files(&rec) {
        let mut bytes = std::fs::read(rec.join(&name)).unwrap();
        if name == "model.json" {
            let mut cast: Value = serde_json::from_slice(&bytes).unwrap();
            let run = "0".repeat(32);
            cast["run"] = serde_json::json!({ "id": run, "session": run, "workspace": "/home/me/project" });
            cast["model"]["base_url"] = "http://127.0.0.1:8080/".into();
            bytes = format!("{cast:#}\n").into_bytes();
        }
        std::fs::write(place.join(name), bytes).unwrap();
    }
}

/// `BLESS=1` records it again: after a change of what `ls` says of itself, for example.
#[test]
fn the_recording_of_the_docs_is_replayed() {
    let place = "docs/examples/replay";
    if std::env::var_os("BLESS").is_some() {
        record_example(&root().join(place));
    }
    let session = Session::new();
    let (model, project) = (format!("replay:{place}/recording"), format!("{place}/project"));
    let replay = |prompt: &str| {
        let arguments = ["run", "--model", &model, "--workspace", &project, "--tools", "ls", prompt];
        session.command(&arguments).current_dir(root()).output().unwrap()
    };
    let same = replay(PROMPT);
    assert_eq!(status(&same), "0", "{}", stderr(&same));
    assert_eq!(status(&replay("what was the weather")), "1");
}
