//! The other side of the socket: a command that finds an owner at work.
//!
//! Owns one connection, used from a plain thread: it blocks, and needs no runtime. It must never take silence for an
//! answer.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::SOCKET;
use super::address::Address;
use super::protocol::{PROTOCOL, Refusal, Reply, Request, Welcome};

/// How long an owner may take to greet.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the process that owns a directory.
#[derive(Debug)]
pub struct Client {
    dir: PathBuf,
    stream: BufReader<UnixStream>,
    /// What the owner said of itself.
    pub owner: Welcome,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The owner has refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection broke, or the owner says what no owner says.
    #[error("the engine that owns {dir} gives no answer ({reason}); look for its process, or repeat the command", dir = .dir.display())]
    Lost {
        /// The directory.
        dir: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The caller's own output failed.
    #[error(transparent)]
    Output(io::Error),
}

impl Client {
    /// Connects to the owner of `dir`; none if no process listens there. One that hangs up before its first word is about to
    /// be gone: a connection that a process has not taken when it dies is broken with it.
    pub fn connect(dir: &Path) -> Result<Option<Self>, ClientError> {
        let lost = |error: &io::Error| ClientError::Lost { dir: dir.to_owned(), reason: error.to_string() };
        let stream = match Address::new(dir, SOCKET).and_then(|address| UnixStream::connect(address.path())) {
            Ok(stream) => stream,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(lost(&error)),
        };
        check_peer(dir, &stream)?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT)).map_err(|error| lost(&error))?;
        let owner = Welcome { protocol: PROTOCOL, version: String::new(), pid: 0 };
        let mut client = Self { dir: dir.to_owned(), stream: BufReader::new(stream), owner };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        // It fails if the owner has hung up, which reading shows too.
        let _ = client.send(&Request::Hello { protocol: PROTOCOL, version });
        match client.stream.fill_buf() {
            Ok([]) => return Ok(None),
            Err(error) if is_hung_up(&error) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(lost(&error)),
        }
        client.owner = client.answer(|_| Ok(()))?;
        client.stream.get_ref().set_read_timeout(None).map_err(|error| lost(&error))?;
        Ok(Some(client))
    }

    /// Asks and waits for the answer.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.follow(request, |_| Ok(()))
    }

    /// Asks, hands each event on as it arrives, and answers what follows the last.
    pub fn follow<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        each: impl FnMut(Value) -> io::Result<()>,
    ) -> Result<T, ClientError> {
        // It fails if the owner has hung up, which reading shows too, after what the owner may have said before.
        let _ = self.send(request);
        self.answer(each)
    }

    fn answer<T: DeserializeOwned>(
        &mut self,
        mut each: impl FnMut(Value) -> io::Result<()>,
    ) -> Result<T, ClientError> {
        loop {
            match self.receive()? {
                Reply::Event(event) => each(event).map_err(ClientError::Output)?,
                Reply::Ok(answer) => {
                    return serde_json::from_value(answer).map_err(|error| self.lost(&error));
                }
                Reply::Error(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Waits until the owner's process has ended.
    pub fn wait_for_end(mut self) {
        // Whatever arrives, and however it ends: the owner closes its side when it is gone.
        let _ = io::copy(&mut self.stream, &mut io::sink());
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)
    }

    fn receive(&mut self) -> Result<Reply, ClientError> {
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                serde_json::from_slice(&line).map_err(|error| self.lost(&error))
            }
            Ok(_) => Err(self.lost(&"it has closed the connection")),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, reason: &dyn ToString) -> ClientError {
        ClientError::Lost { dir: self.dir.clone(), reason: reason.to_string() }
    }
}

/// True if nobody listens for this user. The file of an owner that was killed stays behind; the next owner replaces it.
/// Where the way is barred, the store itself will say what is allowed.
fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, PermissionDenied};
    [NotFound, ConnectionRefused, PermissionDenied, NotADirectory].contains(&error.kind())
}

/// True if the other side is gone.
fn is_hung_up(error: &io::Error) -> bool {
    [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind())
}

/// A prompt is for the owner of the directory only: whoever listens must be the same user.
fn check_peer(dir: &Path, stream: &UnixStream) -> Result<(), ClientError> {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    match peer.map(|peer| peer.uid) {
        Ok(uid) if uid == rustix::process::geteuid() => Ok(()),
        Ok(uid) => {
            let reason = format!("it belongs to user {}, not to you", uid.as_raw());
            Err(ClientError::Lost { dir: dir.to_owned(), reason })
        }
        Err(error) => Err(ClientError::Lost { dir: dir.to_owned(), reason: error.to_string() }),
    }
}
