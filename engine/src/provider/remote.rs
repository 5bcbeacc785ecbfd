//! A model behind an address.
//!
//! Owns what a call of one configured model needs beside its request: a connection and a key. It must never
//! keep a key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::Failure;
use model::message::AssistantMessage;
use tokio_util::sync::CancellationToken;

use super::background::Background;
use super::call::{Call, Plan, Respondent, Rest};
use super::endpoint::{Endpoint, sent_tokens};
use super::http::{Client, Tap};
use super::reader::Reader;
use super::recording::{RecordTap, SeamTap};
use super::secret;
use super::tap::SpoolTap;
use super::watchdog::{STALL_FACTOR, Watchdog};
use super::{
    Intent, ModelProvider, Request, Spooled, StreamEvent, TakenUp, Unfinished, openai_responses, price,
};
use crate::clock::{Clock, SystemClock};
use crate::config::{Api, Model, Profile};
use crate::job::ModelFacts;

/// A model behind an address.
pub(crate) struct Remote {
    pub(super) endpoint: Endpoint,
    /// `[profiles]` of the configuration.
    profiles: Arc<BTreeMap<String, Profile>>,
    pub(super) client: Client,
}

impl Remote {
    /// The model as configured; in words why it cannot be called. It opens no connection.
    pub(crate) fn new(
        model: Model,
        profiles: Arc<BTreeMap<String, Profile>>,
        client: Client,
    ) -> Result<Self, String> {
        let endpoint = Endpoint::new(model)?;
        if let Some(unknown) = endpoint.model.profiles.iter().find(|name| !profiles.contains_key(*name)) {
            return Err(format!("profile `{unknown}` is not configured; add a table [profiles.{unknown}]"));
        }
        Ok(Self { endpoint, profiles, client })
    }

    /// Where the key is found; none for a server that wants none. The vendor's usual variable is for the
    /// vendor alone.
    pub(super) fn account(&self, profile: Option<&str>) -> Option<Profile> {
        let model = &self.endpoint.model;
        let named = profile.or(model.profiles.first().map(String::as_str));
        if let Some(profile) = named.and_then(|name| self.profiles.get(name)) {
            return Some(profile.clone());
        }
        let usual = match model.api {
            _ if model.base_url.is_some() => None,
            Api::AnthropicMessages => Some("ANTHROPIC_API_KEY"),
            Api::OpenaiChat | Api::OpenaiResponses => Some("OPENAI_API_KEY"),
            Api::Rehearsal | Api::Replay => None,
        };
        model.api_key_env.as_deref().or(usual).map(|name| Profile::ApiKeyEnv(name.to_owned()))
    }

    /// Who sees the call. What the spool has, the recording has already: a call that is taken up from the
    /// spool is whole in both.
    fn tap(&self, request: Request, sent: u64) -> Box<dyn Tap> {
        let recorder = RecordTap::of(&request, &self.endpoint.model).map(|tap| Box::new(tap) as Box<dyn Tap>);
        let spool = request.spool.map(|spool| Box::new(SpoolTap::new(spool, sent)) as Box<dyn Tap>);
        Box::new(recorder.into_iter().chain(spool).collect::<Vec<_>>())
    }

    /// The header that carries a key, and what stands before the key in it.
    pub(super) fn key_header(&self) -> (&'static str, &'static str) {
        match self.endpoint.model.api {
            Api::AnthropicMessages => ("x-api-key", ""),
            Api::OpenaiChat | Api::OpenaiResponses | Api::Rehearsal | Api::Replay => {
                ("authorization", "Bearer ")
            }
        }
    }

    /// Where an answer in the background is found again.
    fn background(&self, profile: Option<&str>) -> Option<Background> {
        let Endpoint { model, url, .. } = &self.endpoint;
        model.background.then(|| Background {
            client: self.client.clone(),
            url: url.clone(),
            account: self.account(profile),
            key_header: self.key_header(),
            has_reasoning: openai_responses::has_reasoning(model),
        })
    }
}

impl ModelProvider for Remote {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        self.endpoint.intent(request)
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let outgoing = match self.endpoint.outgoing(&request) {
            Ok(outgoing) => outgoing,
            Err(fault) => return self.endpoint.refusal(fault),
        };
        let sent = sent_tokens(&request, &outgoing.body);
        let plan = Plan {
            speaker: self.endpoint.speaker.clone(),
            sent,
            outgoing,
            price: self.endpoint.model.price.clone(),
            respondent: Respondent::Server {
                client: self.client.clone(),
                account: self.account(request.profile.as_deref()),
                key_header: self.key_header(),
            },
            background: self.background(request.profile.as_deref()),
            watchdog: Watchdog::new(self.endpoint.model.idle_timeout().unwrap_or_default()),
            tap: Some(self.tap(request, sent)),
        };
        Call::new(plan, abort).into_stream()
    }

    fn facts(&self) -> Option<ModelFacts> {
        Some(self.endpoint.facts())
    }

    /// The call itself watches the bytes. The engine's watch is for what arrives and tells nothing: a protocol has
    /// keep-alives of its own.
    fn idle_timeout(&self) -> Option<Duration> {
        self.endpoint.model.idle_timeout().map(|idle| idle * STALL_FACTOR)
    }

    fn has_raw_responses(&self) -> bool {
        true
    }

    fn has_lasting_responses(&self) -> bool {
        self.endpoint.model.background
    }

    /// A response whose end mark had arrived is the answer. The rest of one in the background is asked for; that of any
    /// other is lost with its connection.
    fn take_up(&self, call: Unfinished, abort: CancellationToken) -> Option<TakenUp> {
        let Unfinished { kept: Spooled { sent, status, body }, spool, profile, recording } = call;
        let mut reader = Reader::new(self.endpoint.speaker.clone(), sent).filter(|_| status == 200)?;
        if self.endpoint.model.background {
            // What was kept may have a seam.
            reader.rejoin();
        }
        // What came after the end mark does not matter, nor that it may be malformed.
        let read = reader.push(&body);
        let price = self.endpoint.model.price.clone();
        if reader.is_over() {
            let message = reader.conclude().ok()?;
            let usage = price::priced(price.as_ref(), message.usage);
            let message = AssistantMessage { usage, at: SystemClock.now(), ..message };
            let events = [StreamEvent::Opened, StreamEvent::Done(Box::new(message))];
            return Some(TakenUp::Answered(stream::iter(events).boxed()));
        }
        read.ok()?;
        reader.place()?;
        let background = self.background(profile.as_deref())?;
        let seam = recording.map(|recording| Box::new(SeamTap(recording)) as Box<dyn Tap>);
        let spool = Box::new(SpoolTap::kept(spool, sent, status)) as Box<dyn Tap>;
        let rest = Rest {
            speaker: self.endpoint.speaker.clone(),
            price,
            background,
            watchdog: Watchdog::new(self.endpoint.model.idle_timeout().unwrap_or_default()),
            reader,
            tap: Some(Box::new(seam.into_iter().chain([spool]).collect::<Vec<_>>())),
        };
        Some(TakenUp::GoesOn(Call::rest(rest, abort).into_stream()))
    }

    /// A run goes on with a model whose address or price has changed; without a key it cannot.
    fn missing(&self, _identity: &str) -> Option<String> {
        let mut accounts = match self.endpoint.model.profiles.as_slice() {
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
