//! HTTP: one client for all providers.
//!
//! Owns connections and their limits. It must never retry, follow a redirect, unpack what is compressed, or
//! show a request's headers: retries belong to the journal, and a key goes to the address in the
//! configuration and nowhere else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::input::FailureKind;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};
use tokio::task::JoinSet;

use super::fault::Fault;
use super::secret::Secret;
use crate::runs::lock;

/// How long a connection may take to be made, its TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection with TLS is kept for the next call. Vendors close theirs after a minute or more.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes that are read of the body of a refusal.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) url: Url,
    /// Headers without the key.
    pub(super) headers: Vec<(&'static str, String)>,
    /// JSON, or nothing.
    pub(super) body: Vec<u8>,
}

/// Sees a call on the wire: what is sent, and the response as it arrives, before anything is made of it.
pub(crate) trait Tap: Send {
    /// The body of the request, which is about to be sent, and the key that goes with it.
    fn on_send(&mut self, _body: &[u8], _key: Option<&Secret>) {}

    /// The status and the headers.
    fn on_head(&mut self, status: u16, headers: &Headers);

    /// The next bytes of the body, exactly as the server framed them.
    fn on_bytes(&mut self, bytes: &[u8]);

    /// The connection was lost, and the response goes on in another one: of its body the first `whole` bytes stand, and
    /// what comes next belongs behind them.
    fn on_rejoin(&mut self, whole: u64);
}

/// Headers of a response, in order, with names in small letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first value of `name`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The id that the server gave the exchange.
    pub(super) fn request_id(&self) -> Option<&str> {
        ["request-id", "x-request-id", "x-oai-request-id", "cf-ray"].iter().find_map(|name| self.get(name))
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

impl From<&HeaderMap> for Headers {
    fn from(map: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Self(map.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect())
    }
}

/// The client. Cloning it shares its connections.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    inner: reqwest::Client,
    /// What goes on although nobody waits for it.
    left_behind: Arc<Mutex<JoinSet<()>>>,
}

impl Client {
    /// A client that trusts what the system trusts. It speaks HTTP/1.1 only: a head of more than 100 headers
    /// or about 400 KiB is refused, and dropping an unfinished response closes its connection.
    pub(crate) fn new() -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls()?)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .user_agent(concat!("sprag/", env!("CARGO_PKG_VERSION")))
            .build();
        client.map(|inner| Self { inner, left_behind: Arc::default() }).map_err(|error| in_full(&error))
    }

    /// Sends a request; answers the head of the response. Dropping the future closes the connection. A kept
    /// connection that turns out to be closed before a byte of the request was written is replaced, which
    /// repeats nothing.
    pub(super) async fn send(
        &self,
        outgoing: Outgoing,
        key: Option<(&'static str, &str, &Secret)>,
        mut tap: Option<Box<dyn Tap>>,
    ) -> Result<Incoming, Fault> {
        let mut headers = HeaderMap::new();
        if outgoing.url.scheme() == "http" {
            // Local servers close after seconds, or after every stream although they announce to keep the
            // connection, and a request that meets its end has failed. A new one costs little without TLS.
            headers.insert(reqwest::header::CONNECTION, HeaderValue::from_static("close"));
        }
        for (name, value) in outgoing.headers {
            let value = HeaderValue::try_from(value).map_err(|_| unsendable(name))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some((name, scheme, key)) = key {
            let text = format!("{scheme}{}", key.reveal());
            let mut value = HeaderValue::try_from(text).map_err(|_| unsendable(name))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some(tap) = &mut tap {
            tap.on_send(&outgoing.body, key.map(|(.., key)| key));
        }
        let request = self.inner.request(outgoing.method, outgoing.url).headers(headers).body(outgoing.body);
        let response = request.send().await.map_err(|error| broken(&error))?;
        let (status, headers) = (response.status().as_u16(), Headers::from(response.headers()));
        if let Some(tap) = &mut tap {
            tap.on_head(status, &headers);
        }
        Ok(Incoming { status, headers, response, tap })
    }

    /// Lets something go on that nobody waits for. It must end by itself, and soon.
    pub(super) fn leave_behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut left_behind = lock(&self.left_behind);
        while left_behind.try_join_next().is_some() {}
        left_behind.spawn(work);
    }

    /// Waits for what was left behind.
    pub(crate) async fn quiet(&self) {
        let left_behind = std::mem::take(&mut *lock(&self.left_behind));
        left_behind.join_all().await;
    }
}

/// A response: its head, and its body as it arrives. Dropping it closes the connection.
pub(super) struct Incoming {
    pub(super) status: u16,
    pub(super) headers: Headers,
    response: Response,
    tap: Option<Box<dyn Tap>>,
}

impl Incoming {
    /// The same response, seen by somebody.
    pub(super) fn seen_by(self, tap: Option<Box<dyn Tap>>) -> Self {
        Self { tap, ..self }
    }

    /// Who has seen it.
    pub(super) fn into_tap(self) -> Option<Box<dyn Tap>> {
        self.tap
    }

    /// A response that arrived earlier, to be read as if it arrived now.
    pub(super) fn recorded(status: u16, headers: Headers, body: Vec<u8>) -> Self {
        Self { status, headers, response: http::Response::new(body).into(), tap: None }
    }

    /// The next bytes of the body; none at its end. An end that the framing did not announce is an error.
    pub(super) async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Fault> {
        let chunk = self.response.chunk().await.map_err(|error| broken(&error))?;
        if let (Some(chunk), Some(tap)) = (&chunk, &mut self.tap) {
            tap.on_bytes(chunk);
        }
        Ok(chunk)
    }

    /// Reads the rest of the body, of which nothing counts.
    pub(super) async fn drain(&mut self) {
        while let Ok(Some(_)) = self.chunk().await {}
    }

    /// The beginning of the body of a refusal. What breaks it off does not matter: the status is known.
    pub(super) async fn refusal(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = self.chunk().await {
            let room = REFUSAL_BYTES_MAX - body.len();
            let chunk = chunk.as_ref();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == REFUSAL_BYTES_MAX {
                break;
            }
        }
        body
    }
}

/// TLS by rustls with ring, without touching the process's own choice. Where no certificates are found, plain
/// HTTP still works and every certificate is refused.
fn tls() -> Result<rustls::ClientConfig, String> {
    use rustls_platform_verifier::BuilderVerifierExt;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = || {
        rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())
    };
    let config = match builder()?.with_platform_verifier() {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(%error, "no trusted certificates were found; install the system's ca-certificates");
            builder()?.with_root_certificates(rustls::RootCertStore::empty())
        }
    };
    Ok(config.with_no_client_auth())
}

fn unsendable(name: &str) -> Fault {
    Fault::new(
        FailureKind::Auth,
        format!("the value of the header {name} holds characters that no header may have"),
    )
}

/// A connection that could not be made or broke off.
fn broken(error: &reqwest::Error) -> Fault {
    let is_certificate = causes(error).any(|cause| {
        matches!(cause.downcast_ref::<rustls::Error>(), Some(rustls::Error::InvalidCertificate(_)))
    });
    let kind = if is_certificate { FailureKind::TlsCertificate } else { FailureKind::Connection };
    Fault::new(kind, in_full(error))
}

/// The causes of an error, those included that an I/O error carries inside.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        carried.map(|inner| inner as &(dyn std::error::Error + 'static)).or_else(|| error.source())
    })
}

/// An error with its causes, without the address, which may have a query that is nobody's business.
fn in_full(error: &reqwest::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    for cause in causes(error).skip(1) {
        let text = cause.to_string();
        if words.last() != Some(&text) {
            words.push(text);
        }
    }
    if words.is_empty() { "the connection failed".to_owned() } else { words.join(": ") }
}
