//! A model behind an address.
//!
//! Owns what one configured model is: its request in bytes, what a call may cost, which key it takes. It must
//! never send a request that its protocol's grammar refuses, nor keep a key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, Block};
use reqwest::Url;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::ask::{Ask, output_max, vendor_name};
use super::call::{Call, Plan};
use super::conversation::conversation;
use super::draft::{TOKEN_BYTES, blank_message};
use super::fault::Fault;
use super::http::{Client, Outgoing, Tap};
use super::reader::{Reader, Speaker};
use super::secret;
use super::tap::SpoolTap;
use super::violation::Violation;
use super::watchdog::{STALL_FACTOR, Watchdog};
use super::{
    Intent, ModelProvider, Request, Spooled, StreamEvent, anthropic, openai_chat, openai_responses, price,
};
use crate::clock::{Clock, SystemClock};
use crate::config::{Api, Model, Profile};
use crate::job::ModelFacts;

/// Raised whenever equal requests get other bytes.
const CONVERTER_VERSION: u16 = 1;

/// The most bytes of a request that providers take.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// What an estimate takes for one picture, in tokens.
const PICTURE_TOKENS: u64 = 1_600;

/// The version of Messages that this code speaks.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A model behind an address.
pub(crate) struct Remote {
    model: Model,
    speaker: Speaker,
    url: Url,
    /// `[profiles]` of the configuration.
    profiles: Arc<BTreeMap<String, Profile>>,
    client: Client,
}

impl Remote {
    /// The model as configured; in words why it cannot be called. It opens no connection.
    pub(crate) fn new(
        model: Model,
        profiles: Arc<BTreeMap<String, Profile>>,
        client: Client,
    ) -> Result<Self, String> {
        let (vendor, path) = match model.api {
            Api::AnthropicMessages => ("https://api.anthropic.com", "messages"),
            Api::OpenaiChat => ("https://api.openai.com/v1", "chat/completions"),
            Api::OpenaiResponses => ("https://api.openai.com/v1", "responses"),
            Api::Rehearsal | Api::Replay => return Err(format!("api `{}` has no address", model.api)),
        };
        let base = model.base_url.as_deref().unwrap_or(vendor);
        let url =
            address(base, path, model.api).ok_or_else(|| format!("base_url is not an address: {base}"))?;
        let provider = match (&model.base_url, model.api) {
            (None, Api::AnthropicMessages) => "anthropic".to_owned(),
            (None, _) => "openai".to_owned(),
            (Some(_), _) => url.host_str().unwrap_or_default().to_owned(),
        };
        let speaker = Speaker { api: model.api, provider, model: vendor_name(&model).to_owned() };
        if let Some(unknown) = model.profiles.iter().find(|name| !profiles.contains_key(*name)) {
            return Err(format!("profile `{unknown}` is not configured; add a table [profiles.{unknown}]"));
        }
        Ok(Self { model, speaker, url, profiles, client })
    }

    /// The request as it is sent, but for its key.
    pub(super) fn outgoing(&self, request: &Request) -> Result<Outgoing, Fault> {
        let messages = request.messages.iter().map(|prepared| &prepared.message);
        let conversation = conversation(messages, &self.speaker);
        let ask = Ask { model: &self.model, request, conversation: &conversation };
        let body = match self.model.api {
            Api::AnthropicMessages => checked(anthropic::body(&ask), anthropic::check)?,
            Api::OpenaiChat => checked(openai_chat::body(&ask), openai_chat::check)?,
            Api::OpenaiResponses => checked(openai_responses::body(&ask), openai_responses::check)?,
            Api::Rehearsal | Api::Replay => {
                return Err(Fault::new(FailureKind::Format, "this api has no requests"));
            }
        };
        let mut headers =
            vec![("content-type", "application/json".to_owned()), ("accept", "text/event-stream".to_owned())];
        if self.model.api == Api::AnthropicMessages {
            headers.push(("anthropic-version", ANTHROPIC_VERSION.to_owned()));
        }
        Ok(Outgoing { url: self.url.clone(), headers, body })
    }

    /// Where the key is found; none for a server that wants none. The vendor's usual variable is for the
    /// vendor alone.
    pub(super) fn account(&self, profile: Option<&str>) -> Option<Profile> {
        let named = profile.or(self.model.profiles.first().map(String::as_str));
        if let Some(profile) = named.and_then(|name| self.profiles.get(name)) {
            return Some(profile.clone());
        }
        let usual = match self.model.api {
            _ if self.model.base_url.is_some() => None,
            Api::AnthropicMessages => Some("ANTHROPIC_API_KEY"),
            Api::OpenaiChat | Api::OpenaiResponses => Some("OPENAI_API_KEY"),
            Api::Rehearsal | Api::Replay => None,
        };
        self.model.api_key_env.as_deref().or(usual).map(|name| Profile::ApiKeyEnv(name.to_owned()))
    }

    /// The header that carries a key, and what stands before the key in it.
    pub(super) fn key_header(&self) -> (&'static str, &'static str) {
        match self.model.api {
            Api::AnthropicMessages => ("x-api-key", ""),
            Api::OpenaiChat | Api::OpenaiResponses | Api::Rehearsal | Api::Replay => {
                ("authorization", "Bearer ")
            }
        }
    }

    fn unsent(&self, fault: Fault) -> Failure {
        let Speaker { api, provider, model } = &self.speaker;
        let message = blank_message(&api.to_string(), provider, model);
        fault.into_failure(AssistantMessage { at: SystemClock.now(), ..message })
    }
}

impl ModelProvider for Remote {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        let outgoing = self.outgoing(request).map_err(|fault| self.unsent(fault))?;
        let reserve = price::reserve(
            self.model.price.as_ref(),
            sent_tokens(request, outgoing.body.len()),
            output_max(&self.model),
        );
        let hash = *blake3::hash(&outgoing.body).as_bytes();
        Ok(Intent { hash, converter_version: CONVERTER_VERSION, reserve })
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let outgoing = match self.outgoing(&request) {
            Ok(outgoing) => outgoing,
            Err(fault) => {
                return stream::once(std::future::ready(StreamEvent::Failed(self.unsent(fault)))).boxed();
            }
        };
        let sent = sent_tokens(&request, outgoing.body.len());
        let plan = Plan {
            speaker: self.speaker.clone(),
            sent,
            outgoing,
            account: self.account(request.profile.as_deref()),
            key_header: self.key_header(),
            price: self.model.price.clone(),
            client: self.client.clone(),
            watchdog: Watchdog::new(self.model.idle_timeout().unwrap_or_default()),
            tap: request.spool.map(|spool| Box::new(SpoolTap::new(spool, sent)) as Box<dyn Tap>),
        };
        stream::unfold(Box::new(Call::new(plan, abort)), |mut call| async move {
            let event = call.next().await?;
            Some((event, call))
        })
        .boxed()
    }

    fn facts(&self) -> Option<ModelFacts> {
        let Speaker { api, provider, model } = self.speaker.clone();
        Some(ModelFacts { api: api.to_string(), provider, model, is_unpriced: self.model.price.is_none() })
    }

    /// The call itself watches the bytes. The engine's watch is for what arrives and tells nothing: a protocol has
    /// keep-alives of its own.
    fn idle_timeout(&self) -> Option<Duration> {
        self.model.idle_timeout().map(|idle| idle * STALL_FACTOR)
    }

    fn has_raw_responses(&self) -> bool {
        true
    }

    /// A response whose end mark had arrived is the answer; the rest of any other is lost with its connection.
    fn take_up(&self, kept: Spooled, _abort: CancellationToken) -> Option<BoxStream<'static, StreamEvent>> {
        let mut reader = Reader::new(self.speaker.clone(), kept.sent).filter(|_| kept.status == 200)?;
        // What came after the end mark does not matter, nor that it may be malformed.
        let _ = reader.push(&kept.body);
        let message = reader.is_over().then(|| reader.conclude())?.ok()?;
        let message = AssistantMessage {
            usage: price::priced(self.model.price.as_ref(), message.usage),
            at: SystemClock.now(),
            ..message
        };
        let events = [StreamEvent::Opened, StreamEvent::Done(Box::new(message))];
        Some(stream::iter(events).boxed())
    }

    /// A run goes on with a model whose address or price has changed; without a key it cannot.
    fn missing(&self, _identity: &str) -> Option<String> {
        let mut accounts = match self.model.profiles.as_slice() {
            [] => vec![self.account(None)?],
            names => names.iter().filter_map(|name| self.account(Some(name))).collect(),
        };
        if accounts.iter().any(secret::is_there) {
            return None;
        }
        match accounts.pop() {
            Some(Profile::ApiKeyEnv(name)) => Some(format!("key {name}")),
            Some(Profile::ApiKeyCmd(_)) | None => None,
        }
    }
}

/// The body in bytes, after the grammar has accepted it.
fn checked(body: Value, check: fn(&Value) -> Result<(), Violation>) -> Result<Vec<u8>, Fault> {
    check(&body)?;
    let bytes = body.to_string().into_bytes();
    match bytes.len() {
        bytes if bytes > REQUEST_BYTES_MAX => {
            Err(Violation::TooLarge { bytes, most: REQUEST_BYTES_MAX }.into())
        }
        _ => Ok(bytes),
    }
}

/// The address of an endpoint. A base without a path, or for Anthropic one without a version, gets `v1`.
fn address(base: &str, path: &str, api: Api) -> Option<Url> {
    let mut url = Url::parse(base).ok().filter(Url::has_host)?;
    let own = url.path().trim_end_matches('/').to_owned();
    let needs_version = if api == Api::AnthropicMessages { !own.ends_with("/v1") } else { own.is_empty() };
    url.set_path(&format!("{own}/{}{path}", if needs_version { "v1/" } else { "" }));
    Some(url)
}

/// Tokens of a request of so many bytes, by estimate; pictures count as such, not by their bytes.
fn sent_tokens(request: &Request, body_bytes: usize) -> u64 {
    let blocks = request.messages.iter().flat_map(|prepared| prepared.message.content());
    let (mut pictures, mut picture_bytes) = (0u64, 0usize);
    for block in blocks {
        if let Block::Image { data, .. } = block {
            pictures += 1;
            picture_bytes += data.len();
        }
    }
    let text_bytes = body_bytes.saturating_sub(picture_bytes) as u64;
    text_bytes.div_ceil(TOKEN_BYTES).saturating_add(pictures.saturating_mul(PICTURE_TOKENS))
}
