//! What a change of the configuration does: to a run that was killed, and under a command that goes on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Session, signal, status};

/// The longest that a test waits for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that gives one answer after the other, each on a connection of its own; none is no answer at all.
struct Server {
    address: String,
    served: thread::JoinHandle<Vec<Value>>,
}

impl Server {
    fn answering(answers: Vec<Option<String>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let served = thread::spawn(move || {
            let mut held = Vec::new();
            let serve = |answer: Option<String>| {
                let (mut connection, _) = listener.accept().unwrap();
                let (_, request) = read_request(&mut connection);
                match answer {
                    Some(answer) => connection.write_all(answer.as_bytes()).unwrap(),
                    None => held.push(connection),
                }
                request
            };
            answers.into_iter().map(serve).collect()
        });
        Self { address, served }
    }

    /// The models that were asked for, once every answer was given.
    fn asked(self) -> Vec<Value> {
        self.served.join().unwrap().iter().map(|request| request["model"].clone()).collect()
    }
}

/// The head, in small letters, and the body.
fn read_request(connection: &mut TcpStream) -> (String, Value) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = connection.read(&mut buffer).unwrap();
        assert!(count > 0, "the request broke off");
        request.extend_from_slice(&buffer[..count]);
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if request.len() >= end + 4 + length.parse::<usize>().unwrap() {
            return (head, serde_json::from_slice(&request[end + 4..]).unwrap());
        }
    }
}

/// An answer in Chat Completions for 1,000,000 tokens in and none out.
fn answer(delta: &Value, finish: &str) -> Option<String> {
    let chunk = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
    let usage = json!({ "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [],
        "usage": { "prompt_tokens": 1_000_000, "completion_tokens": 0, "total_tokens": 1_000_000 } });
    let body = format!("data: {chunk}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
    Some(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

fn call() -> Option<String> {
    let call = json!({ "index": 0, "id": "c1", "type": "function", "function": { "name": "ls", "arguments": "{}" } });
    answer(&json!({ "role": "assistant", "tool_calls": [call] }), "tool_calls")
}

fn text(text: &str) -> Option<String> {
    answer(&json!({ "role": "assistant", "content": text }), "stop")
}

/// Model `m` at an address, for so many dollars a million tokens.
fn served_at(server: &Server, vendor_name: &str, usd: u32) -> String {
    format!(
        "[models.m]\napi = \"openai-chat\"\nbase_url = \"{}\"\nmodel = \"{vendor_name}\"\n\
         price = {{ input = {usd}, output = {usd} }}\n",
        server.address
    )
}

fn show(session: &Session, run: &str) -> Value {
    let shown = session.command(&["show", run, "--json"]).output().unwrap();
    serde_json::from_slice(&shown.stdout).unwrap()
}

#[test]
fn a_killed_run_goes_on_with_what_it_started_with_and_a_later_one_gets_the_new() {
    let session = Session::new();
    let old = Server::answering(vec![call(), None, text("the old model says")]);
    let new = Server::answering(vec![text("the new model says")]);
    session.file("sprag.toml", &served_at(&old, "old", 2));
    let run = ["run", "--model", "m", "--tools", "ls", "look around"];
    let mut owner = session.start(&run);
    let killed = session.wait_for("stream(turn 1, attempt 0, in_flight)");
    owner.kill().unwrap();
    owner.wait().unwrap();
    session.file("sprag.toml", &served_at(&new, "new", 7));
    let resumed = session.command(&["resume"]).output().unwrap();
    assert_eq!(status(&resumed), "0", "{}", String::from_utf8_lossy(&resumed.stderr));
    assert_eq!(status(&session.command(&run).output().unwrap()), "0");
    assert_eq!((old.asked(), new.asked()), (vec![json!("old"); 3], vec![json!("new")]));
    let (killed, later) = (show(&session, &killed), show(&session, &session.newest()));
    assert_eq!((&killed["status"], &later["status"]), (&json!("completed"), &json!("completed")));
    assert_eq!(later["usd"], 7.0);
    // Two answers, and the call that was lost, which was reserved as no less than the prompt before it.
    assert_eq!(killed["usd"].as_f64().map(f64::floor), Some(6.0), "{killed}");
    assert!(killed["config"].is_string() && killed["config"] != later["config"], "{killed} {later}");
    let rebuilt = session.command(&["doctor", "--rebuild"]).output().unwrap();
    let rebuilt = String::from_utf8(rebuilt.stdout).unwrap();
    assert!(rebuilt.contains("\nok    state          built from"), "{rebuilt}");
    let id = killed["run"].as_str().unwrap();
    for check in [&["verify"][..], &["replay", id]] {
        assert_eq!(status(&session.command(check).output().unwrap()), "0", "{check:?}");
    }
    assert_eq!(show(&session, id), killed);
}

#[test]
fn a_killed_run_goes_on_after_its_model_has_vanished_and_nobody_else_gets_it() {
    let session = Session::new();
    let server = Server::answering(vec![None, text("still here")]);
    session.file("sprag.toml", &served_at(&server, "kept", 1));
    let run = ["run", "--model", "m", "go on"];
    let mut owner = session.start(&run);
    session.wait_for("stream(turn 0, attempt 0, in_flight)");
    owner.kill().unwrap();
    owner.wait().unwrap();
    session.file("sprag.toml", "");
    assert_eq!(status(&session.command(&["resume"]).output().unwrap()), "0");
    let refused = session.command(&run).output().unwrap();
    let words = "error: model `m` is not configured; add a table [models.m] or use --model rehearsal:FILE\n";
    assert_eq!(
        (status(&refused).as_str(), String::from_utf8(refused.stderr).unwrap().as_str()),
        ("2", words)
    );
    assert_eq!(server.asked(), [json!("kept"), json!("kept")]);
}

/// A batch that goes on until it is ended, and what it says on stderr.
struct Going {
    session: Session,
    owner: Child,
}

/// What is said of a valid change of `sprag.toml`.
const CHANGED: &str = "the configuration has changed (sprag.toml): jobs accepted from now on get it; \
                       runs accepted before keep theirs; [profiles] and concurrency hold at once";

impl Going {
    fn new(session: Session, jobs: usize) -> Self {
        Self::configured(session, jobs, &[], Stdio::null())
    }

    fn configured(session: Session, jobs: usize, arguments: &[&str], stdin: Stdio) -> Self {
        session.file("endless.json", r#"{"turns":[{"text":"at last","delay_ms":3600000}]}"#);
        let line = |n| format!("{{\"custom_id\":\"j{n}\",\"prompt\":\"go\"}}\n");
        session.file("jobs.jsonl", &(0..jobs).map(line).collect::<String>());
        let stderr = fs::File::create(session.work().join("stderr")).unwrap();
        let mut command: Command =
            session.command(&["batch", "run", "jobs.jsonl", "--model", "rehearsal:endless.json", "--json"]);
        command.args(arguments).stdin(stdin);
        let owner = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let going = Self { session, owner };
        going.wait("a call", |going| !going.session.model_calls().is_empty());
        going
    }

    /// Lines on stderr, but for those that say how far the batch is.
    fn said(&self) -> Vec<String> {
        let text = fs::read_to_string(self.session.work().join("stderr")).unwrap();
        let is_progress = |line: &&str| line.contains(" turns/s");
        text.lines().filter(|line| !is_progress(line)).map(str::to_owned).collect()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "no {what}; said {:?}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until this was said last, and so many lines in all.
    fn wait_for_line(&self, line: &str, lines: usize) {
        self.wait(line, |going| going.said().len() >= lines);
        let said = self.said();
        assert_eq!((said.last().map(String::as_str), said.len()), (Some(line), lines), "{said:?}");
    }

    /// Ends the batch; answers all that was said.
    fn end(mut self) -> Vec<String> {
        signal(&self.owner, Signal::TERM);
        self.owner.wait().unwrap();
        self.said()
    }
}

#[test]
fn an_invalid_file_is_told_with_its_place_and_the_configuration_in_force_is_kept() {
    let session = Session::new();
    session.file("sprag.toml", "[defaults]\nconcurrency = 1\n");
    let going = Going::new(session, 2);
    going
        .session
        .file("sprag.toml", "[defaults]\nconcurrency = 2\nthinkin = \"off\"\nmax_turns = \"many\"\n");
    let kept = "the configuration in force is kept: correct these mistakes, and it is read again";
    going.wait_for_line(kept, 3);
    // What was said once is not said again for a file that says the same.
    going.session.file("other.toml", "");
    going
        .session
        .file("sprag.toml", "[defaults]\nconcurrency = 2\nthinkin = \"off\"\nmax_turns = \"many\"\n# !\n");
    assert_eq!(going.session.model_calls().len(), 1);
    going.session.file("sprag.toml", "[defaults]\nconcurrency = 2\nmax_turns = 3\n");
    going.wait_for_line(CHANGED, 4);
    going.wait("second call", |going| going.session.model_calls().len() == 2);
    let said = going.end();
    assert_eq!(
        said[..4],
        [
            "sprag.toml:3:1: unknown key `defaults.thinkin`, did you mean `thinking`?",
            "sprag.toml:4:13: `defaults.max_turns`: expected a whole number of at least 0, got a string",
            kept,
            CHANGED,
        ]
    );
}

#[test]
fn a_key_is_looked_for_in_the_new_place_by_a_run_that_is_under_way() {
    let session = Session::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = |key: &str| {
        format!(
            "[models.m]\napi = \"openai-chat\"\nbase_url = \"http://{address}\"\nmodel = \"x\"\nprofiles = [\"p\"]\n\
             [profiles.p]\napi_key_cmd = \"echo {key}\"\n"
        )
    };
    session.file("sprag.toml", &config("first"));
    let stderr = fs::File::create(session.work().join("stderr")).unwrap();
    let mut command = session.command(&["run", "--model", "m", "--tools", "ls", "look"]);
    let owner = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    let going = Going { session, owner };
    let paid_by = |before: &dyn Fn(), answer: Option<String>| {
        let (mut connection, _) = listener.accept().unwrap();
        let (head, _) = read_request(&mut connection);
        before();
        connection.write_all(answer.unwrap().as_bytes()).unwrap();
        let header = head.lines().find_map(|line| line.strip_prefix("authorization: bearer "));
        header.unwrap().to_owned()
    };
    let change = || {
        going.session.file("sprag.toml", &config("second"));
        going.wait_for_line(CHANGED, 1);
    };
    let keys = [paid_by(&change, call()), paid_by(&|| {}, text("done"))];
    assert_eq!(keys, ["first", "second"]);
    let Going { mut owner, .. } = going;
    assert_eq!(owner.wait().unwrap().code(), Some(0));
}

#[test]
fn every_way_to_save_a_file_is_seen() {
    let session = Session::new();
    session.file("real.toml", "[defaults]\nmax_turns = 1\n");
    fs::create_dir(session.work().join("elsewhere")).unwrap();
    let going = Going::new(session, 1);
    let work = going.session.work();
    let home = work.parent().unwrap().to_owned();
    let mut lines = 0;
    let mut changed_as = |file: &str, how: &dyn Fn()| {
        how();
        lines += 1;
        going.wait_for_line(&CHANGED.replace("sprag.toml", file), lines);
    };
    let mut changed = |how: &dyn Fn()| changed_as("sprag.toml", how);
    changed(&|| fs::write(work.join("sprag.toml"), "[defaults]\nmax_turns = 2\n").unwrap());
    changed(&|| fs::write(work.join("sprag.toml"), "[defaults]\nmax_turns = 3\n").unwrap());
    changed(&|| {
        fs::write(work.join("sprag.toml~"), "[defaults]\nmax_turns = 4\n").unwrap();
        fs::rename(work.join("sprag.toml~"), work.join("sprag.toml")).unwrap();
    });
    changed(&|| fs::remove_file(work.join("sprag.toml")).unwrap());
    changed(&|| {
        fs::write(work.join("elsewhere/real.toml"), "[defaults]\nmax_turns = 5\n").unwrap();
        std::os::unix::fs::symlink("elsewhere/real.toml", work.join("sprag.toml")).unwrap();
    });
    changed(&|| fs::write(work.join("elsewhere/real.toml"), "[defaults]\nmax_turns = 6\n").unwrap());
    let user = home.join(".config/sprag/config.toml").display().to_string();
    let mut changed = |how: &dyn Fn()| changed_as(&user, how);
    // Directories that were not there when the watch began.
    changed(&|| {
        fs::create_dir_all(home.join(".config/sprag")).unwrap();
        fs::write(home.join(".config/sprag/config.toml"), "[defaults]\nmax_calls = 7\n").unwrap();
    });
    changed(&|| fs::write(home.join(".config/sprag/config.toml"), "[defaults]\nmax_calls = 8\n").unwrap());
    changed(&|| fs::remove_dir_all(home.join(".config")).unwrap());
    changed(&|| {
        fs::create_dir_all(home.join(".config/sprag")).unwrap();
        fs::write(home.join(".config/sprag/config.toml"), "[defaults]\nmax_calls = 9\n").unwrap();
    });
    going.end();
}

#[test]
fn a_pipe_is_read_once_and_holds_up_no_end() {
    // What is on stdin cannot be read a second time.
    let session = Session::new();
    let (stdin, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"[defaults]\nmax_turns = 1\n").unwrap();
    drop(writer);
    let going = Going::configured(session, 1, &["--config", "/dev/stdin"], stdin.into());
    going.session.file("sprag.toml", "[defaults]\nmax_turns = 2\n");
    let is_reload = |line: &String| line.contains("configuration");
    assert!(!going.end().iter().any(is_reload));

    // Whoever opens a pipe that nobody writes to waits for ever.
    let session = Session::new();
    session.file("sprag.toml", "");
    let going = Going::new(session, 1);
    going.session.file("sprag.toml", "[defaults]\nmax_turns = 3\n");
    going.wait_for_line(CHANGED, 1);
    let work = going.session.work();
    rustix::fs::mkfifoat(rustix::fs::CWD, work.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
    fs::rename(work.join("pipe"), work.join("sprag.toml")).unwrap();
    assert_eq!(going.end().iter().filter(|line| is_reload(line)).count(), 1);
}
