//! An answer that goes on at its provider while nobody listens, and how it is found again.
//!
//! Owns the two requests about a response that is under way: for the rest of it, and that nobody wants it any
//! more. It must never ask for an answer: neither request makes the provider bill anything.

use std::time::Duration;

use reqwest::{Method, Url};

use super::call::is_event_stream;
use super::fault::Fault;
use super::http::{Client, Incoming, Outgoing};
use super::secret::{self, Secret};
use crate::config::Profile;

/// Waits before the tries to reach a response; a try that brought an event of it begins the list anew.
pub(super) const WAITS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(4)];

/// The longest that a provider is told for that nobody wants an answer any more.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// How far a response was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The provider's id of it.
    pub(super) id: String,
    /// The number of the newest whole event.
    pub(super) after: u64,
    /// Bytes of the body up to the end of that event.
    pub(super) whole: u64,
}

/// Why a response was not reached.
#[derive(Debug)]
pub(super) enum Unreached {
    /// It may be reached later.
    Passing,
    /// The provider does not give it.
    Gone,
}

/// Where the responses of a model are, and who may ask for them.
#[derive(Clone)]
pub(super) struct Background {
    pub(super) client: Client,
    /// The address that answers are asked for at.
    pub(super) url: Url,
    /// Where the key is found; none for a server that wants none.
    pub(super) account: Option<Profile>,
    /// The header that carries a key, and what stands before the key in it.
    pub(super) key_header: (&'static str, &'static str),
    /// The answer may hold sealed reasoning, which has to be asked for.
    pub(super) has_reasoning: bool,
}

impl Background {
    /// The rest of a response. `key` is fetched if it was not yet.
    pub(super) async fn rest(&self, place: &Place, key: &mut Option<Secret>) -> Result<Incoming, Unreached> {
        let Some(mut url) = self.address(&place.id) else { return Err(Unreached::Gone) };
        let after = place.after.to_string();
        url.query_pairs_mut().append_pair("stream", "true").append_pair("starting_after", &after);
        if self.has_reasoning {
            url.query_pairs_mut().append_pair("include[]", "reasoning.encrypted_content");
        }
        if key.is_none()
            && let Some(account) = &self.account
        {
            *key = Some(secret::fetch(account).await.map_err(|_| Unreached::Passing)?);
        }
        let headers = vec![("accept", "text/event-stream".to_owned())];
        let incoming = self.exchange(Method::GET, url, headers, key.as_ref()).await;
        let incoming = incoming.map_err(|_| Unreached::Passing)?;
        match incoming.status {
            200 if is_event_stream(&incoming) => Ok(incoming),
            // A key that is refused says nothing of the response.
            401 | 403 | 408 | 429 | 500.. => Err(Unreached::Passing),
            _ => Err(Unreached::Gone),
        }
    }

    /// Tells the provider that nobody wants a response any more, so that it bills no more of it. Nobody waits for
    /// it, and what comes of it does not matter: a provider that is not reached bills on.
    pub(super) fn abandon(&self, place: Place, key: Option<Secret>) {
        let background = self.clone();
        self.client.leave_behind(async move {
            let told = tokio::time::timeout(ABANDON_TIMEOUT, background.cancel(&place.id, key)).await;
            let is_told = matches!(told, Ok(Some(200)));
            tracing::debug!(response = place.id, is_told, "an answer was abandoned");
        });
    }

    async fn cancel(&self, id: &str, mut key: Option<Secret>) -> Option<u16> {
        let mut url = self.address(id)?;
        url.path_segments_mut().ok()?.push("cancel");
        if key.is_none()
            && let Some(account) = &self.account
        {
            key = secret::fetch(account).await.ok();
        }
        let incoming = self.exchange(Method::POST, url, Vec::new(), key.as_ref()).await.ok()?;
        Some(incoming.status)
    }

    async fn exchange(
        &self,
        method: Method,
        url: Url,
        headers: Vec<(&'static str, String)>,
        key: Option<&Secret>,
    ) -> Result<Incoming, Fault> {
        let (name, scheme) = self.key_header;
        let outgoing = Outgoing { method, url, headers, body: Vec::new() };
        self.client.send(outgoing, key.map(|key| (name, scheme, key)), None).await
    }

    /// The address of a response; none for an id that could name something else.
    fn address(&self, id: &str) -> Option<Url> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let mut url = self.url.clone();
        url.path_segments_mut().ok()?.push(Some(id).filter(|id| id.bytes().all(is_plain))?);
        Some(url)
    }
}
