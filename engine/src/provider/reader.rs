//! Raw bytes of a response, read as an answer.
//!
//! Owns the way from bytes to a message, without a connection: the same bytes give the same answer whenever
//! they are read, and a part of them never gives another one.

use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};

use super::background::Place;
use super::draft::{Draft, blank_message};
use super::fault::Fault;
use super::sse::{Event, Events};
use super::{Update, anthropic, openai_chat, openai_responses};
use crate::config::Api;

/// The most bytes of one response: a long answer in many small parts.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// How one protocol tells an answer. A decoder ignores what it does not know, and refuses what contradicts
/// itself.
pub(super) trait Decode: Send {
    /// Takes in one event.
    fn take(&mut self, event: &Event, draft: &mut Draft) -> Result<(), Fault>;
}

/// Who answers, as the message names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Speaker {
    /// The protocol.
    pub(super) api: Api,
    /// The provider's name.
    pub(super) provider: String,
    /// The vendor's name of the model.
    pub(super) model: String,
}

/// A response while it is read.
pub(super) struct Reader {
    speaker: Speaker,
    events: Events,
    decoder: Box<dyn Decode>,
    draft: Draft,
    bytes: usize,
    /// Tokens of the request, by estimate.
    sent: u64,
}

impl Reader {
    /// Reads an answer of `speaker` to a request of about `sent` tokens; none if its protocol has no stream.
    pub(super) fn new(speaker: Speaker, sent: u64) -> Option<Self> {
        let decoder: Box<dyn Decode> = match speaker.api {
            Api::AnthropicMessages => Box::new(anthropic::Decoder::default()),
            Api::OpenaiChat => Box::new(openai_chat::Decoder::default()),
            Api::OpenaiResponses => Box::new(openai_responses::Decoder::default()),
            Api::Rehearsal | Api::Replay => return None,
        };
        let (events, draft) = (Events::default(), Draft::default());
        Some(Self { speaker, events, decoder, draft, bytes: 0, sent })
    }

    /// Takes in the next bytes; answers how many events ended in them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if self.bytes > RESPONSE_BYTES_MAX {
            return Err(Fault::broken(format_args!("more than {RESPONSE_BYTES_MAX} bytes")));
        }
        let mut events = Vec::new();
        let read = self.events.push(bytes, &mut events);
        for event in &events {
            if !self.draft.is_over {
                self.decoder.take(event, &mut self.draft)?;
            }
        }
        // What came before the malformed event still counts: the end mark may be among it.
        match read {
            Err(malformed) if !self.draft.is_over => Err(Fault::broken(malformed)),
            Ok(()) | Err(_) => Ok(events.len()),
        }
    }

    /// True once the protocol's own end mark has arrived; nothing after it counts.
    pub(super) fn is_over(&self) -> bool {
        self.draft.is_over
    }

    /// Where the rest of the response begins; none if it cannot be named, or there is none.
    pub(super) fn place(&self) -> Option<Place> {
        let Draft { response_id, sequence, is_over, is_given_up, .. } = &self.draft;
        let (Some(id), Some(after), false) = (response_id, sequence, *is_over || *is_given_up) else {
            return None;
        };
        Some(Place { id: id.clone(), after: *after, whole: self.events.whole() })
    }

    /// Reads on in another connection, at the place that [`Reader::place`] says.
    pub(super) fn rejoin(&mut self) {
        self.draft.is_rejoined = true;
        self.events.rejoin();
    }

    /// The parts that were not told yet.
    pub(super) fn updates(&mut self) -> impl Iterator<Item = Update> + '_ {
        self.draft.updates()
    }

    /// What the response amounts to if no more comes.
    pub(super) fn conclude(&self) -> Result<AssistantMessage, Failure> {
        match self.draft.conclude() {
            Ok((stop_reason, error_message)) => {
                let is_complete = stop_reason == StopReason::ToolUse;
                Ok(AssistantMessage { stop_reason, error_message, ..self.message(is_complete) })
            }
            Err(fault) => Err(self.failed(fault)),
        }
    }

    /// The failure of a response that ended by `fault`.
    pub(super) fn failed(&self, fault: Fault) -> Failure {
        fault.into_failure(self.message(false))
    }

    /// What had arrived when the call was aborted.
    pub(super) fn aborted(&self) -> AssistantMessage {
        let error_message = Some("aborted".to_owned());
        AssistantMessage { stop_reason: StopReason::Aborted, error_message, ..self.message(false) }
    }

    fn message(&self, keeps_calls: bool) -> AssistantMessage {
        let Speaker { api, provider, model } = &self.speaker;
        AssistantMessage {
            content: self.draft.content(keeps_calls),
            response_id: self.draft.response_id.clone(),
            usage: self.draft.usage(self.sent),
            ..blank_message(&api.to_string(), provider, model)
        }
    }
}

/// An event's data as JSON.
pub(super) fn data(event: &Event) -> Result<serde_json::Value, Fault> {
    serde_json::from_str(&event.data)
        .map_err(|error| Fault::new(FailureKind::ServerError, format!("the server sent no JSON: {error}")))
}
