//! Models: what the engine asks of a provider, and the providers.
//!
//! Owns the seam between the loop and a model. A provider must never retry, sleep between tries or remember a call:
//! retries belong to the journal.

mod anthropic;
mod ask;
mod background;
mod call;
mod call_ids;
mod classify;
mod conversation;
mod draft;
mod endpoint;
mod fault;
mod fields;
mod grammar;
mod http;
mod openai_chat;
mod openai_responses;
mod price;
mod reader;
mod recording;
mod rehearsal;
mod remote;
mod retry_after;
mod secret;
mod sse;
mod tap;
#[cfg(test)]
mod tests;
mod violation;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use model::RunId;
use model::input::Failure;
use model::message::{AssistantMessage, Message, Usage};
use tokio_util::sync::CancellationToken;

pub use recording::{Recording, RecordingError, Replay};
pub use rehearsal::{Rehearsal, SCRIPT_BYTES_MAX, ScriptError};

pub(crate) use http::Client;
pub(crate) use remote::Remote;

use crate::job::ModelFacts;
pub use crate::spool::{Spool, Spooled};
use crate::tool::ToolSpec;

/// One model call, complete. Equal requests have equal hashes.
#[derive(Clone, Debug)]
pub struct Request {
    /// The run, its job and the place of the call in it.
    pub origin: Arc<Origin>,
    /// Ordinal of the turn within the run, from 0.
    pub turn: u32,
    /// Ordinal of the try within the turn, from 0.
    pub attempt: u32,
    /// The model's name.
    pub model: String,
    /// Name of the profile whose key pays; none: the model's own key does. Not part of the request's hash.
    pub profile: Option<String>,
    /// The thinking level, `off` for none.
    pub thinking: String,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The context, oldest first.
    pub messages: Vec<Arc<Prepared>>,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// Where the raw response is kept as it arrives, by a provider that has such. Not part of what is asked.
    pub spool: Option<Spool>,
    /// Where the call is recorded, by a provider that has raw responses. Not part of what is asked.
    pub recording: Option<Arc<Recording>>,
}

/// Where a request comes from; constant within a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The run.
    pub run: RunId,
    /// Key of its session.
    pub session: String,
    /// Id of its job in a batch; empty outside of one.
    pub custom_id: String,
    /// Text of its first prompt.
    pub prompt: String,
    /// Its workspace.
    pub workspace: String,
}

/// A message of the context with the hash of its stored bytes, computed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The message.
    pub message: Message,
    /// blake3 of its stored bytes.
    pub hash: [u8; 32],
}

/// What is committed of a request before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Hash of the request.
    pub hash: [u8; 32],
    /// Version of the code that turns a request into the provider's bytes.
    pub converter_version: u16,
    /// The most that the call may use.
    pub reserve: Usage,
}

/// What a stream tells, in order. It ends with `Done`, `Failed` or `Lost`; nothing follows them.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The first byte of the answer arrived.
    Opened,
    /// A part of the answer arrived.
    Update(Update),
    /// The answer is complete.
    Done(Box<AssistantMessage>),
    /// The call failed.
    Failed(Failure),
    /// The rest of an answer was not found: the call counts as lost, and is made again. Only what
    /// [`ModelProvider::take_up`] gives may end so.
    Lost,
}

/// A call that a dead engine had made.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// What was kept of its response.
    pub kept: Spooled,
    /// Where that is, and where the rest is kept.
    pub spool: Spool,
    /// Name of the profile whose key pays; none: the model's own key does.
    pub profile: Option<String>,
    /// Where the run is recorded.
    pub recording: Option<Arc<Recording>>,
}

/// A call that was taken up.
pub enum TakenUp {
    /// All of its answer was there.
    Answered(BoxStream<'static, StreamEvent>),
    /// The answer goes on at its provider. The stream ends in `Lost` if the rest is not found.
    GoesOn(BoxStream<'static, StreamEvent>),
}

/// A part of an answer, as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What kind of part.
    pub kind: UpdateKind,
    /// Which content block of the answer, from 0.
    pub content_index: usize,
    /// The text of the part; empty at starts.
    pub delta: String,
    /// For `ToolCallEnd`: the call. For the other ends the whole text is in `delta`.
    pub call: Option<model::message::ToolCall>,
}

/// Kinds of parts of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// A text block begins.
    TextStart,
    /// More of a text block.
    TextDelta,
    /// A text block is complete.
    TextEnd,
    /// A thinking block begins.
    ThinkingStart,
    /// More of a thinking block.
    ThinkingDelta,
    /// A thinking block is complete.
    ThinkingEnd,
    /// A tool call begins.
    ToolCallStart,
    /// More of a tool call's arguments.
    ToolCallDelta,
    /// A tool call is complete.
    ToolCallEnd,
}

impl UpdateKind {
    /// The name used in `assistantMessageEvent.type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextStart => "text_start",
            Self::TextDelta => "text_delta",
            Self::TextEnd => "text_end",
            Self::ThinkingStart => "thinking_start",
            Self::ThinkingDelta => "thinking_delta",
            Self::ThinkingEnd => "thinking_end",
            Self::ToolCallStart => "toolcall_start",
            Self::ToolCallDelta => "toolcall_delta",
            Self::ToolCallEnd => "toolcall_end",
        }
    }
}

/// How long a call may be silent, unless its provider says otherwise.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// A model.
pub trait ModelProvider: Send + Sync {
    /// The intent of a call, before it is committed. Pure and quick: no network, no disk beyond files read at open.
    fn prepare(&self, request: &Request) -> Result<Intent, Failure>;

    /// Makes the call. Nothing happens before the stream is polled. When `abort` is cancelled the stream ends soon, in
    /// a `Done` with stop reason `aborted` and what had arrived, or in a `Failed`.
    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent>;

    /// What runs keep of a model that is served somewhere, so that its answers can be named before they are there, and it
    /// is known whether money is counted.
    fn facts(&self) -> Option<ModelFacts> {
        None
    }

    /// How long nothing may arrive, from the start of a call to its first event and between two events, before the
    /// engine gives it up; none: for ever. The provider need not watch the time itself.
    fn idle_timeout(&self) -> Option<Duration> {
        Some(IDLE_TIMEOUT)
    }

    /// True if `Request::spool` is used.
    fn has_raw_responses(&self) -> bool {
        false
    }

    /// Takes up a call that a dead engine had made, from what was kept of its response, so that nothing is asked again that
    /// was paid for. None: nothing can be made of it, and the call is made again. Nothing happens before what it gives is
    /// polled: it is also asked only to learn whether there would be something.
    fn take_up(&self, _call: Unfinished, _abort: CancellationToken) -> Option<TakenUp> {
        None
    }

    /// True if an answer goes on at its provider when the connection is closed, and can be taken up: an engine that stops
    /// leaves the call to the next one.
    fn has_lasting_responses(&self) -> bool {
        false
    }

    /// What must still be as it was when the run started, for example a script's path and hash; journaled with the run
    /// and compared at resume by [`ModelProvider::missing`]. Empty if there is nothing.
    fn identity(&self) -> String {
        String::new()
    }

    /// What keeps a run that started with `identity` from going on with this provider, in a few words.
    fn missing(&self, identity: &str) -> Option<String> {
        (identity != self.identity()).then(|| "the model is not the one that the run started with".to_owned())
    }
}
