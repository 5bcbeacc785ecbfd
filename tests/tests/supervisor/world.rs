//! A directory, a workspace, and programs that embed an engine in them.
//!
//! Owns real processes: every one that a test starts ends with it, by its own id.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Longest time that anything here is waited for.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) order: Value,
    pub(crate) variables: Vec<(String, String)>,
}

impl World {
    /// A world whose run calls bash once.
    pub(crate) fn new(command: &str) -> Self {
        Self::with_calls(json!([{ "tool": "bash", "args": { "command": command } }]))
    }

    pub(crate) fn with_calls(calls: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("ws")).unwrap();
        let order =
            json!({ "dir": dir.path().join("data"), "workspace": dir.path().join("ws"), "calls": calls });
        Self { dir, order, variables: Vec::new() }
    }

    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.order[key] = value.into();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A file of the workspace; empty if it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join("ws").join(name)).unwrap_or_default()
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        fs::write(self.dir.path().join("ws").join(name), content).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of the only call.
    pub(crate) fn call_dir(&self) -> PathBuf {
        let runs = wait_for("the call's directory", || {
            fs::read_dir(self.path("data/calls")).ok()?.flatten().next().map(|entry| entry.path())
        });
        runs.join("0.0")
    }

    /// The pid in the mark of the only call.
    pub(crate) fn supervisor(&self) -> i32 {
        let mark = self.call_dir().join("mark");
        wait_for("the mark", || field(&fs::read_to_string(&mark).ok()?, "pid"))
    }

    pub(crate) fn start(&self) -> Engine {
        self.start_with(&[])
    }

    /// Starts the program, with more variables.
    pub(crate) fn start_with(&self, variables: &[(&str, &str)]) -> Engine {
        let mut command = Command::new(env!("CARGO_BIN_EXE_embedder"));
        command.envs(variables.iter().copied());
        self.start_as(command)
    }

    /// Starts the program under another, whose last argument is a file.
    pub(crate) fn start_under(&self, other: &str, arguments: &[&str], file: &Path) -> Engine {
        let mut command = Command::new(other);
        command.args(arguments).arg(file).arg(env!("CARGO_BIN_EXE_embedder"));
        self.start_as(command)
    }

    fn start_as(&self, mut command: Command) -> Engine {
        let order = self.path("order");
        fs::write(&order, self.order.to_string()).unwrap();
        command.arg(order).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines() {
                let Ok(line) = line else { return };
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Engine { child, lines }
    }

    /// Runs to the end; what the model was told.
    pub(crate) fn result(&self) -> Told {
        let mut engine = self.start();
        let told = engine.told();
        engine.close();
        told
    }

    /// Processes that carry the mark of a call of this world's run.
    pub(crate) fn carriers(&self) -> Vec<i32> {
        let run = self.call_dir().parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        carriers(&format!("SPRAG_CALL={run}/"))
    }
}

/// The result of one call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) outcome: String,
    pub(crate) results: Value,
    /// Types of the messages that the engine itself had for the model.
    pub(crate) notes: Value,
}

impl Told {
    fn new(outcome: &str, line: &Value) -> Self {
        Self { outcome: outcome.to_owned(), results: line["results"].clone(), notes: line["notes"].clone() }
    }

    pub(crate) fn text(&self) -> &str {
        self.results[0]["texts"][0].as_str().unwrap()
    }

    /// What it says of a restart; empty if nothing.
    pub(crate) fn note(&self) -> &str {
        self.results[0]["texts"][1].as_str().unwrap_or_default()
    }

    pub(crate) fn details(&self) -> &Value {
        &self.results[0]["details"]
    }

    pub(crate) fn is_error(&self) -> bool {
        self.results[0]["is_error"] == true
    }
}

/// A program that embeds an engine.
pub(crate) struct Engine {
    pub(crate) child: Child,
    lines: Receiver<Value>,
}

impl Engine {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line that has this field; the lines before it are dropped.
    pub(crate) fn wait_for(&self, field: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(WAIT_MAX);
            let line = line.unwrap_or_else(|error| panic!("no `{field}`: {error}"));
            assert!(line.get("error").is_none() || field == "error", "{line}");
            if let Some(value) = line.get(field) {
                return value.clone();
            }
        }
    }

    /// What was found of the call, or how the run ended without anything to find.
    pub(crate) fn found(&self) -> Result<String, Box<Told>> {
        loop {
            let line = self.lines.recv_timeout(WAIT_MAX).expect("the engine says something");
            if let Some(found) = line["found"].as_str() {
                return Ok(found.to_owned());
            }
            if let Some(outcome) = line["outcome"].as_str() {
                return Err(Box::new(Told::new(outcome, &line)));
            }
        }
    }

    pub(crate) fn told(&mut self) -> Told {
        loop {
            let line = self.lines.recv_timeout(WAIT_MAX).expect("the run ends");
            if let Some(outcome) = line["outcome"].as_str() {
                return Told::new(outcome, &line);
            }
        }
    }

    pub(crate) fn say(&mut self, words: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{words}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the program.
    pub(crate) fn close(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < WAIT_MAX, "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number in a line of a call's file.
pub(crate) fn field(text: &str, name: &str) -> Option<i32> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// The letter of a process's state; none if it is gone.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn is_gone(pid: i32) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Stops a process; it stands still when this returns.
pub(crate) fn pause(pid: i32) {
    signal(pid, Signal::STOP);
    wait_for("stop", || (state(pid) == Some('T')).then_some(()));
}

/// The pid that a process wrote before it stopped at a named point, once it stands still.
pub(crate) fn stopped(file: &Path) -> i32 {
    let pid = wait_for("stopped process", || {
        let text = fs::read_to_string(file).ok()?;
        text.ends_with('\n').then(|| text.trim().parse().unwrap())
    });
    wait_for("stop", || (state(pid) == Some('T')).then_some(()));
    pid
}

fn carriers(mark: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    })
    .collect()
}
