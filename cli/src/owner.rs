//! A command that owns the store: an open engine, its control socket, the watch over its configuration, and the signals
//! that stop them.
//!
//! Owns the order of opening and closing. Whatever ends the command, the store is closed cleanly before the process
//! ends; only a second signal ends it at once, as a kill would.

use std::time::Duration;

use engine::config::Config;
use engine::control::Server;
use engine::{Engine, RunHandle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::context::{Context, Layers};
use crate::failure::Failure;
use crate::status::Status;
use crate::watch::Watch;

/// How long the lock of a directory is tried for when nobody answers on its socket.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// An engine that this process owns, and serves to others.
pub(crate) struct Owner {
    pub(crate) engine: Engine,
    server: Server,
    signals: Signals,
    watch: Watch,
}

/// What ended the wait for a piece of work.
pub(crate) enum Ended<T> {
    /// The work is done.
    Done(T),
    /// Somebody asked to stop; the status says who.
    Stopped(Status),
}

impl<T> Ended<T> {
    /// Who asked to stop, if anybody did.
    pub(crate) fn stopped_by(self) -> Option<Status> {
        match self {
            Self::Done(_) => None,
            Self::Stopped(status) => Some(status),
        }
    }
}

/// The signals that ask the process to stop.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

/// Opens the engine of the directory. Fails at once if its owner answers, else after trying for the lock.
pub(crate) fn open_engine(context: &Context, config: Config) -> Result<Engine, Failure> {
    let is_owned = context.owner()?.is_some();
    let lock_wait = if is_owned { Duration::ZERO } else { LOCK_WAIT };
    let engine = Engine::builder(context.dir())
        .config(config)
        .store_options(store::Options { lock_wait, ..store::Options::default() })
        .rehearsal_log(context.file_variable("SPRAG_REHEARSAL_LOG"))
        .open()?;
    Ok(engine)
}

impl Owner {
    /// Opens the engine, listens, and watches the files of the configuration. Must be called inside a runtime.
    pub(crate) fn open(context: &Context, layers: Layers, config: Config) -> Result<Self, Failure> {
        let engine = open_engine(context, config.clone())?;
        let server = Server::start(&engine, context.dir()).map_err(|error| {
            let dir = context.dir().display();
            Failure::new(
                Status::Store,
                format!("no control socket can be made in {dir} ({error}); make it writable"),
            )
        })?;
        let signals = Signals::new()?;
        let watch = Watch::start(&engine, layers, config);
        Ok(Self { engine, server, signals, watch })
    }

    /// Waits for work to end, or for somebody to stop it.
    pub(crate) async fn until<T>(&mut self, work: impl Future<Output = T>) -> Ended<T> {
        let ended = tokio::select! {
            biased;
            status = self.signals.next() => Ended::Stopped(status),
            () = self.server.stop_asked() => Ended::Stopped(Status::Terminated),
            done = work => Ended::Done(done),
        };
        // What ends now may take a while, and somebody may not want to wait.
        end_at_signal();
        ended
    }

    /// Commits what runs have, says goodbye to clients and closes the store.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        self.engine.stop().await;
        self.watch.end().await;
        self.server.close().await;
        Ok(self.engine.close().await?)
    }
}

/// From now on a signal ends the process at once. What is not committed by then is found by the next engine.
fn end_at_signal() {
    tokio::spawn(async {
        if let Ok(mut signals) = Signals::new() {
            let status = signals.next().await;
            std::process::exit(status.code().into());
        }
    });
}

impl Signals {
    /// Catches them from now on. Must be called inside a runtime.
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(
                    Status::Internal,
                    format!("signals cannot be caught ({error}); free some descriptors"),
                )
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The status of the next one.
    pub(crate) async fn next(&mut self) -> Status {
        tokio::select! {
            _ = self.interrupt.recv() => Status::Interrupted,
            _ = self.terminate.recv() => Status::Terminated,
            _ = self.hang_up.recv() => Status::Terminated,
        }
    }
}

/// Where a run rests in an engine that has come to rest; none if it waits behind another run of its session.
pub(crate) async fn rest_of(run: &RunHandle) -> Result<Option<engine::Rest>, Failure> {
    use futures_util::FutureExt;
    Ok(run.outcome().now_or_never().transpose()?)
}
