//! The built binary at work in a directory of its own, and what it says as one reviewed text.
//!
//! A golden file is a session: each command, what it printed, lines of stderr marked with `!`, and its exit status.
//! What differs from run to run is replaced by a word. `BLESS=1` writes the files again.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

/// The longest that a test waits for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two turns, one call of a tool that changes something, one that fails.
pub(crate) const HELLO: &str = r#"{"turns":[
  {"thinking":"Look first.","text":"I look around.","calls":[
    {"tool":"write","args":{"path":"a.txt","content":"hello"}},
    {"tool":"read","args":{"path":"nope.txt"}}],"usage":{"input":100,"output":20}},
  {"text":"a.txt says hello.","usage":{"input":150,"output":10}}]}"#;
/// A second turn that takes until somebody ends it. The first one waits for whoever follows the run.
pub(crate) const ENDLESS: &str = r#"{"turns":[
  {"text":"first","delay_ms":300,"calls":[{"tool":"ls","args":{}}],"usage":{"input":10,"output":1}},
  {"text":"never","delay_ms":3600000}]}"#;
/// A second turn that takes a moment.
pub(crate) const SLOW: &str = r#"{"turns":[
  {"text":"first","calls":[{"tool":"write","args":{"path":"a.txt","content":"x"}}],"usage":{"input":10,"output":1}},
  {"text":"second","delay_ms":1500,"usage":{"input":20,"output":2}}]}"#;

/// A directory with a store, scripts and a log of what was done there.
pub(crate) struct Session {
    root: tempfile::TempDir,
    log: String,
}

impl Session {
    pub(crate) fn new() -> Self {
        // Of a fixed length: texts that are cut are cut at the same place everywhere.
        let root = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::create_dir(root.path().join("work")).unwrap();
        Self { root, log: String::new() }
    }

    /// The directory that commands run in.
    pub(crate) fn work(&self) -> PathBuf {
        self.root.path().join("work")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// Writes a file in the working directory.
    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.work().join(name), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
        command
            .args(arguments)
            .current_dir(self.work())
            .env_clear()
            .env("HOME", self.root.path())
            .env("SPRAG_DATA", self.data())
            .env("SPRAG_REHEARSAL_LOG", self.calls_log())
            .stdin(Stdio::null());
        command
    }

    fn calls_log(&self) -> PathBuf {
        self.root.path().join("calls.jsonl")
    }

    /// (turn, attempt) of each model call made.
    pub(crate) fn model_calls(&self) -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(self.calls_log()).unwrap_or_default();
        let calls = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        calls.map(|call| (call["turn"].as_u64().unwrap(), call["attempt"].as_u64().unwrap())).collect()
    }

    /// Model calls made by each run.
    pub(crate) fn billed(&self) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.calls_log()).unwrap_or_default();
        let mut billed = BTreeMap::new();
        for call in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            *billed.entry(call["run"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        billed
    }

    /// Runs a command, and notes what it said.
    pub(crate) fn sprag(&mut self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        self.note(arguments, &output);
        output
    }

    /// Notes what a command said that ran beside others.
    pub(crate) fn note(&mut self, arguments: &[&str], output: &Output) {
        let quote = |argument: &&str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
            let is_word = !argument.is_empty() && argument.chars().all(is_plain);
            if is_word { (*argument).to_owned() } else { format!("'{argument}'") }
        };
        let line: Vec<String> = arguments.iter().map(quote).collect();
        self.log.push_str(&format!("$ sprag {}\n", line.join(" ")));
        self.log.push_str(&String::from_utf8_lossy(&output.stdout));
        for line in String::from_utf8_lossy(&output.stderr).lines() {
            self.log.push_str(&format!("! {line}\n"));
        }
        self.log.push_str(&format!("[{}]\n\n", status(output)));
    }

    /// Starts a command beside the test.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The newest run.
    pub(crate) fn newest(&self) -> String {
        let output = self.command(&["ls", "--limit", "1"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split('\t').next().unwrap().to_owned()
    }

    /// The parked run of a job.
    pub(crate) fn parked(&self, custom_id: &str) -> String {
        let output = self.command(&["ls", "--status", "parked", "--json"]).output().unwrap();
        let runs: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let run = runs.iter().find(|run| run["custom_id"] == custom_id).unwrap();
        run["run"].as_str().unwrap().to_owned()
    }

    /// Waits until the journal of the newest run says this.
    pub(crate) fn wait_for(&self, wanted: &str) -> String {
        self.wait_for_many(wanted, 1)
    }

    /// Waits until the journal of the newest run says this so many times.
    pub(crate) fn wait_for_many(&self, wanted: &str, times: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let run = self.newest();
            if !run.is_empty() {
                let journal = self.command(&["journal", &run]).output().unwrap();
                if String::from_utf8_lossy(&journal.stdout).matches(wanted).count() >= times {
                    return run;
                }
            }
            assert!(Instant::now() < deadline, "nothing says `{wanted}`");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until somebody listens on the control socket.
    pub(crate) fn wait_for_owner(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.data().join("control.sock").exists() {
            assert!(Instant::now() < deadline, "nobody listens");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Compares the log with the golden file.
    pub(crate) fn check(&self, name: &str) {
        check(name, &self.normal(&self.log));
    }

    /// The text with a word for everything that differs from run to run.
    pub(crate) fn normal(&self, text: &str) -> String {
        let root = self.root.path().display().to_string();
        let text = text.replace(&root, "ROOT").replace(env!("CARGO_BIN_EXE_sprag"), "SPRAG");
        let text = tokens(&text, |token| match token.len() {
            36 if is_hex(&token.replace('-', "")) => Some("UUID"),
            64 if is_hex(token) => Some("HASH"),
            32 if is_hex(token) => Some("RUN"),
            16 if is_hex(token) => Some("KEY"),
            24 if token.ends_with('Z') && token.as_bytes()[10] == b'T' => Some("TIME"),
            12 if token.as_bytes()[2] == b':' && token.as_bytes()[8] == b'.' => Some("TIME"),
            _ => None,
        });
        // How far a batch is at which moment depends on the machine.
        let is_progress = |line: &&str| line.starts_with("! ") && line.contains(" turns/s");
        // Which commits share a barrier depends on the disk, and so do the places of records.
        let barrier = |line: &str| {
            let is_row = line.starts_with(|c: char| c.is_ascii_digit()) && line.matches('\t').count() == 6;
            let row = line.rsplit_once('\t').filter(|_| is_row);
            row.map_or_else(|| format!("{line}\n"), |(row, _)| format!("{row}\tBARRIER\n"))
        };
        let text: String = text.lines().filter(|line| !is_progress(line)).map(barrier).collect();
        let values = [
            ("request ", "HASH"),
            ("process ", "PID"),
            ("\"timestamp\":", "MS"),
            ("\"barrier\":", "BARRIER"),
            ("\"groups\":", "N"),
            ("offset ", "N"),
            ("segment, ", "N"),
            ("segments, ", "N"),
        ];
        values.iter().fold(text, |text, (lead, word)| after(&text, lead, word))
    }
}

pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = text.lines().zip(golden.lines()).find(|(got, expected)| got != expected);
    assert_eq!(
        differing, None,
        "{name} differs from what was reviewed; look at it, then accept it with BLESS=1"
    );
    assert_eq!(text.lines().count(), golden.lines().count(), "{name} has lost or won lines");
}

/// The exit status, or the signal that ended it.
pub(crate) fn status(output: &Output) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (output.status.code(), output.status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "?".to_owned(),
    }
}

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Reads lines until one says this, and nothing beyond.
pub(crate) fn read_until(child: &mut Child, wanted: &str) -> String {
    let stdout = child.stdout.as_mut().unwrap();
    let (mut text, mut line) = (String::new(), Vec::new());
    let mut byte = [0];
    loop {
        assert!(has_more(stdout), "nothing says `{wanted}`: {text}");
        if stdout.read(&mut byte).unwrap() == 0 {
            break;
        }
        line.push(byte[0]);
        if byte == *b"\n" {
            text.push_str(&String::from_utf8(std::mem::take(&mut line)).unwrap());
            if text.contains(wanted) {
                return text;
            }
        }
    }
    panic!("the output ended without `{wanted}`: {text}");
}

/// Something can be read, or the end was reached, before patience is at its end.
fn has_more(stdout: &std::process::ChildStdout) -> bool {
    let mut fds = [PollFd::new(stdout, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 })).unwrap() > 0
}

fn is_hex(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Replaces runs of letters, digits, colons, dots and hyphens for which there is a word.
fn tokens(text: &str, word: impl Fn(&str) -> Option<&'static str>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '-' || c == '.';
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let (before, tail) = rest.split_at(start);
        let end = tail.find(|c| !is_part(c)).unwrap_or(tail.len());
        let end = tail[..end].trim_end_matches([':', '.']).len().max(1);
        let (token, after) = tail.split_at(end);
        out.push_str(before);
        out.push_str(word(token).unwrap_or(token));
        rest = after;
    }
    out + rest
}

/// Replaces the letters and digits after each `lead`.
fn after(text: &str, lead: &str, word: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(lead) {
        let (before, tail) = rest.split_at(at + lead.len());
        out.push_str(before);
        let end = tail.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(tail.len());
        let token = &tail[..end];
        let is_value = !token.is_empty() && (is_hex(token) || token == "true" || token == "false");
        out.push_str(if is_value { word } else { token });
        rest = &tail[end..];
    }
    out + rest
}
