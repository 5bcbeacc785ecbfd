//! The owner's side of the socket.
//!
//! Owns listening, who may connect, and how long a client may take. Everything it does is a task of its own: a client
//! that is slow, silent or hostile costs the engine nothing. It must never answer for an act before it is durable.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use model::RunId;
use model::input::RecoveryClass;
use model::state::{Call, CallStatus};
use serde_json::Value;
use store::Store;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SOCKET;
use super::act::Act;
use super::address::Address;
use super::protocol::{Kind, Left, PROTOCOL, REQUEST_BYTES_MAX, Refusal, Reply, Request, Welcome};
use crate::driver::load_state;
use crate::engine::Engine;
use crate::error::Error;
use crate::event::{Place, Stamped};
use crate::events::EventReader;
use crate::query;

/// Clients served at once; a further one is told to come again.
pub const CLIENTS_MAX: usize = 64;
/// How long a client may take to say hello.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may be silent between two requests.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long a client may leave a reply unread; someone may be reading events page by page.
const STALL_MAX: Duration = Duration::from_secs(600);
/// How long an owner that ends waits for clients to get their last reply.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Wait after a connection could not be taken, for example because there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens until it is closed or dropped. The socket's file is then gone.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    clients: Arc<Semaphore>,
    /// Cancelled when a client asks the owner to stop.
    stop_asked: CancellationToken,
    /// Cancelled when no further request is served.
    closing: CancellationToken,
}

/// What a connection needs.
#[derive(Clone)]
struct Service {
    engine: Engine,
    stop_asked: CancellationToken,
    closing: CancellationToken,
}

impl Server {
    /// Listens in `dir` for the engine that holds its lock. Must be called inside a runtime.
    pub fn start(engine: &Engine, dir: &Path) -> io::Result<Self> {
        let listener = listen(dir)?;
        let service = Service {
            engine: engine.clone(),
            stop_asked: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        let server = Self {
            socket: dir.join(SOCKET),
            clients: Arc::new(Semaphore::new(CLIENTS_MAX)),
            stop_asked: service.stop_asked.clone(),
            closing: service.closing.clone(),
        };
        tokio::spawn(accept(listener, service, Arc::clone(&server.clients)));
        Ok(server)
    }

    /// Returns when a client has asked the owner to stop.
    pub async fn stop_asked(&self) {
        self.stop_asked.cancelled().await;
    }

    /// Serves no further request, and waits a moment until clients have what they were promised.
    pub async fn close(self) {
        self.closing.cancel();
        let everybody = u32::try_from(CLIENTS_MAX).unwrap_or(u32::MAX);
        // Whoever does not read its reply in time is left behind.
        let _ = timeout(FAREWELL_MAX, self.clients.acquire_many(everybody)).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.cancel();
        // The lock is still held, so the file is our own. One that stays is replaced by the next owner.
        let _ = fs::remove_file(&self.socket);
    }
}

/// Binds beside the final name and renames: the name never shows a socket with other rights, and one that a killed
/// owner left behind is replaced. Only the holder of the lock may call this.
fn listen(dir: &Path) -> io::Result<UnixListener> {
    const BESIDE: &str = "control.sock.new";
    let beside = dir.join(BESIDE);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let address = Address::new(dir, BESIDE)?;
    let listener = UnixListener::bind(address.path())?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600))?;
    fs::rename(&beside, dir.join(SOCKET))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, service: Service, clients: Arc<Semaphore>) {
    loop {
        let stream = tokio::select! {
            () = service.closing.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a client could not connect");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let refusal = match (is_same_user(&stream), Arc::clone(&clients).try_acquire_owned()) {
            (true, Ok(permit)) => {
                let service = service.clone();
                tokio::spawn(async move {
                    // A client that goes away in the middle concerns nobody else.
                    let _ = service.converse(stream, permit).await;
                });
                continue;
            }
            (false, _) => Refusal::request("this engine serves its own user only"),
            (true, Err(_)) => Refusal {
                kind: Kind::Busy,
                message: format!("{CLIENTS_MAX} clients are connected already; repeat the command later"),
            },
        };
        let _ = stream.try_write(&Reply::Error(refusal).to_line());
    }
}

fn is_same_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

impl Service {
    async fn converse(&self, stream: UnixStream, permit: OwnedSemaphorePermit) -> io::Result<()> {
        let (reading, writing) = stream.into_split();
        let mut peer = Peer { reading: BufReader::new(reading), writing };
        match peer.request(GREETING_TIMEOUT).await? {
            Some(Ok(Request::Hello { protocol: PROTOCOL, .. })) => peer.reply(&Reply::ok(&welcome())).await?,
            Some(Ok(Request::Hello { protocol, .. })) => {
                let Welcome { protocol: own, version, .. } = welcome();
                let message = format!(
                    "this engine is sprag {version} and speaks protocol {own}, the command speaks protocol \
                     {protocol}; use the same version for both"
                );
                return peer.reply(&Reply::Error(Refusal::request(message))).await;
            }
            Some(Ok(_)) => return peer.reply(&Reply::Error(Refusal::request("say hello first"))).await,
            Some(Err(refusal)) => return peer.reply(&Reply::Error(refusal)).await,
            None => return Ok(()),
        }
        loop {
            let request = tokio::select! {
                () = self.closing.cancelled() => return Ok(()),
                request = peer.request(SILENCE_MAX) => request?,
            };
            match request {
                None => return Ok(()),
                Some(Err(refusal)) => return peer.reply(&Reply::Error(refusal)).await,
                Some(Ok(Request::Stop { drain })) => {
                    let reply = self.stop(drain).await;
                    peer.reply(&reply).await?;
                    drop(permit);
                    // Held open until the process ends: that is how the client learns of it.
                    return std::future::pending().await;
                }
                Some(Ok(request)) => self.serve(request, &mut peer).await?,
            }
        }
    }

    async fn serve(&self, request: Request, peer: &mut Peer) -> io::Result<()> {
        let reply = match request {
            Request::Hello { .. } | Request::Ping => Reply::Ok(Value::Null),
            Request::Ls { filter } => {
                self.read(move |store| Ok(Reply::ok(&query::list(store, &filter)?))).await
            }
            Request::Show { run } => {
                self.read(move |store| Ok(Reply::ok(&query::show(store, find(store, &run)?)?))).await
            }
            Request::Why { run } => {
                self.read(move |store| Ok(Reply::ok(&query::why(store, find(store, &run)?, true)?))).await
            }
            Request::Events { run, after, follow } => {
                self.events(&run, after.as_deref(), follow, peer).await?
            }
            Request::Act { run, key, act } => {
                let store = Arc::clone(self.engine.store());
                let found = tokio::task::spawn_blocking(move || find(&*store, &run)).await;
                match found {
                    Ok(Ok(run)) => self.act(run, &key, &act).await,
                    Ok(Err(error)) => Reply::Error(Refusal::from(&error)),
                    Err(error) => internal(&error),
                }
            }
            Request::Gc { retention } => match self.engine.gc(&retention).await {
                Ok(reclaimed) => Reply::ok(&reclaimed),
                Err(error) => Reply::Error(Refusal::from(&error)),
            },
            Request::Stop { drain } => self.stop(drain).await,
        };
        peer.reply(&reply).await
    }

    /// Answers a question beside the runtime's own threads: it reads the disk.
    async fn read<F>(&self, question: F) -> Reply
    where
        F: FnOnce(&dyn Store) -> Result<Reply, Error> + Send + 'static,
    {
        let store = Arc::clone(self.engine.store());
        match tokio::task::spawn_blocking(move || question(&*store)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => Reply::Error(Refusal::from(&error)),
            Err(error) => internal(&error),
        }
    }

    async fn act(&self, run: RunId, key: &str, act: &Act) -> Reply {
        match act.perform(&self.engine, run, key).await {
            Ok(()) => Reply::ok(&run.to_string()),
            Err(error) => Reply::Error(Refusal::from(&error)),
        }
    }

    async fn stop(&self, drain: bool) -> Reply {
        if drain {
            self.engine.drain().await;
        }
        self.stop_asked.cancel();
        self.engine.stop().await;
        let engine = self.engine.clone();
        match tokio::task::spawn_blocking(move || left(&engine)).await {
            Ok(Ok(left)) => Reply::ok(&left),
            Ok(Err(error)) => Reply::Error(Refusal::from(&error)),
            Err(error) => internal(&error),
        }
    }

    /// Sends the events of a run; answers whether it has ended.
    async fn events(
        &self,
        run: &str,
        after: Option<&str>,
        follow: bool,
        peer: &mut Peer,
    ) -> io::Result<Reply> {
        let after = match after.map(str::parse::<Place>).transpose() {
            Ok(after) => after,
            Err(message) => return Ok(Reply::Error(Refusal::request(message))),
        };
        let sent = match find(&**self.engine.store(), run) {
            Err(error) => Err(error),
            Ok(run) if follow => self.follow(run, after, peer).await?,
            Ok(run) => self.page(run, after, peer).await?,
        };
        Ok(sent.map_or_else(|error| Reply::Error(Refusal::from(&error)), |ended| Reply::ok(&ended)))
    }

    /// Sends what there is.
    async fn page(
        &self,
        run: RunId,
        after: Option<Place>,
        peer: &mut Peer,
    ) -> io::Result<Result<bool, Error>> {
        let mut reader = match EventReader::open(Arc::clone(self.engine.store()), run, after) {
            Ok(reader) => reader,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            match reader.read() {
                Ok(events) if events.is_empty() => return Ok(Ok(reader.has_ended())),
                Ok(events) => {
                    for event in events {
                        peer.event(&event).await?;
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Sends what there is and what happens, until the run ends, the client goes or the owner closes.
    async fn follow(
        &self,
        run: RunId,
        mut after: Option<Place>,
        peer: &mut Peer,
    ) -> io::Result<Result<bool, Error>> {
        let mut events = match self.engine.handle(run).events(after) {
            Ok(events) => Box::pin(events),
            Err(error) => return Ok(Err(error)),
        };
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                // What is committed is still told.
                () = self.closing.cancelled() => return self.page(run, after, peer).await,
                // The client is gone, or asks something else.
                _ = peer.reading.fill_buf() => return Ok(Ok(false)),
            };
            match event {
                Some(Ok(event)) => {
                    peer.event(&event).await?;
                    after = event.place.or(after);
                }
                Some(Err(error)) => return Ok(Err(error)),
                None => return Ok(Ok(true)),
            }
        }
    }
}

/// What a stopped engine leaves.
fn left(engine: &Engine) -> Result<Left, Error> {
    let runs = engine.live_runs()?;
    let mut commands = 0;
    for run in &runs {
        let state = load_state(&**engine.store(), *run)?.map(|(state, _)| state);
        let calls = state.into_iter().filter_map(|state| state.batch).flat_map(|batch| batch.calls);
        let runs_on =
            |call: &Call| call.status == CallStatus::Started && call.class == RecoveryClass::Adoptable;
        commands += calls.filter(runs_on).count();
    }
    Ok(Left { pid: std::process::id(), left: runs.len(), commands })
}

fn find(store: &dyn Store, run: &str) -> Result<RunId, Error> {
    query::find_run(store, run)
}

fn internal(error: &tokio::task::JoinError) -> Reply {
    Reply::Error(Refusal { kind: Kind::Internal, message: error.to_string() })
}

fn welcome() -> Welcome {
    Welcome { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
}

/// The client of one connection.
struct Peer {
    reading: BufReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
}

impl Peer {
    /// The next request; none if the client has gone or was silent for too long. After a refusal nothing that follows
    /// can be read.
    async fn request(&mut self, patience: Duration) -> io::Result<Option<Result<Request, Refusal>>> {
        let mut line = Vec::new();
        let most = u64::try_from(REQUEST_BYTES_MAX).unwrap_or(u64::MAX);
        let mut bounded = (&mut self.reading).take(most);
        let Ok(read) = timeout(patience, bounded.read_until(b'\n', &mut line)).await else { return Ok(None) };
        read?;
        if line.is_empty() {
            return Ok(None);
        }
        if !line.ends_with(b"\n") {
            let message = format!("a request is one line of at most {REQUEST_BYTES_MAX} bytes");
            return Ok(Some(Err(Refusal::request(message))));
        }
        let request = serde_json::from_slice(&line);
        Ok(Some(request.map_err(|error| Refusal::request(format!("not a request: {error}")))))
    }

    async fn event(&mut self, event: &Stamped) -> io::Result<()> {
        self.reply(&Reply::Event(event.to_json())).await
    }

    async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        timeout(STALL_MAX, self.writing.write_all(&reply.to_line())).await?
    }
}
