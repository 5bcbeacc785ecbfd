//! What one configured model is asked, and at which address, without asking it.
//!
//! Owns the request in bytes and what a call of it may cost. It must never open a connection, nor let a
//! request out that its protocol's grammar refuses.

use std::future::ready;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, Block, Message};
use reqwest::{Method, Url};
use serde_json::Value;

use super::ask::{Ask, output_max, vendor_name};
use super::conversation::conversation;
use super::draft::{TOKEN_BYTES, blank_message};
use super::fault::Fault;
use super::http::Outgoing;
use super::reader::Speaker;
use super::violation::Violation;
use super::{Intent, Request, StreamEvent, anthropic, openai_chat, openai_responses, price};
use crate::clock::{Clock, SystemClock};
use crate::config::{Api, Model};
use crate::job::ModelFacts;

/// Raised whenever equal requests get other bytes.
const CONVERTER_VERSION: u16 = 1;

/// The most bytes of a request that providers take.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// What an estimate takes for one picture, in tokens.
const PICTURE_TOKENS: u64 = 1_600;

/// The bytes of `\u` and its four digits.
const ESCAPE_BYTES: usize = 6;

/// The version of Messages that this code speaks.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A model as its requests see it.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) model: Model,
    pub(super) speaker: Speaker,
    pub(super) url: Url,
}

impl Endpoint {
    /// The model as configured; in words why it cannot be asked.
    pub(super) fn new(model: Model) -> Result<Self, String> {
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
        Ok(Self { model, speaker, url })
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
        Ok(Outgoing { method: Method::POST, url: self.url.clone(), headers, body })
    }

    /// What is committed of a request before it is sent.
    pub(super) fn intent(&self, request: &Request) -> Result<Intent, Failure> {
        let outgoing = self.outgoing(request).map_err(|fault| self.unsent(fault))?;
        let reserve = price::reserve(
            self.model.price.as_ref(),
            sent_tokens(request, &outgoing.body).max(counted_tokens(request)),
            output_max(&self.model),
        );
        let hash = *blake3::hash(&outgoing.body).as_bytes();
        Ok(Intent { hash, converter_version: CONVERTER_VERSION, reserve })
    }

    /// What runs keep of the model.
    pub(super) fn facts(&self) -> ModelFacts {
        let Speaker { api, provider, model } = self.speaker.clone();
        ModelFacts { api: api.to_string(), provider, model, is_unpriced: self.model.price.is_none() }
    }

    /// The stream of a call whose request is not sent.
    pub(super) fn refusal(&self, fault: Fault) -> BoxStream<'static, StreamEvent> {
        stream::once(ready(StreamEvent::Failed(self.unsent(fault)))).boxed()
    }

    fn unsent(&self, fault: Fault) -> Failure {
        let Speaker { api, provider, model } = &self.speaker;
        let message = blank_message(&api.to_string(), provider, model);
        fault.into_failure(AssistantMessage { at: SystemClock.now(), ..message })
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

/// Tokens of a request with this body, by estimate; pictures count as such, not by their bytes.
pub(super) fn sent_tokens(request: &Request, body: &[u8]) -> u64 {
    let blocks = request.messages.iter().flat_map(|prepared| prepared.message.content());
    let (mut pictures, mut picture_bytes) = (0u64, 0usize);
    for block in blocks {
        if let Block::Image { data, .. } = block {
            pictures += 1;
            picture_bytes += data.len();
        }
    }
    let dense = dense_bytes(body);
    let plain = body.len().saturating_sub(picture_bytes).saturating_sub(dense) as u64;
    let text = plain.div_ceil(TOKEN_BYTES).saturating_add(dense as u64);
    text.saturating_add(pictures.saturating_mul(PICTURE_TOKENS))
}

/// Bytes that may be a token each, which is the most that a tokenizer makes of one: what is not ASCII, as itself or as an
/// escape of a text in a text.
fn dense_bytes(body: &[u8]) -> usize {
    let escape = |window: &&[u8]| match window {
        [b'\\', b'u', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        _ => false,
    };
    let escapes = body.windows(ESCAPE_BYTES).filter(escape).count();
    body.iter().filter(|byte| !byte.is_ascii()).count() + escapes * ESCAPE_BYTES
}

/// The prompt of the newest answer as its provider counted it: what is sent next holds it, unless it was summed up since.
fn counted_tokens(request: &Request) -> u64 {
    let mut answers = request.messages.iter().rev().filter_map(|prepared| {
        if let Message::Assistant(answer) = &prepared.message { Some(answer.usage) } else { None }
    });
    let usage = answers.next().unwrap_or_default();
    usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write)
}
