//! One call of a model behind an address, from its key to its last event.
//!
//! Owns the connection of the call: whatever ends the call (an answer, a failure, an abort, the watchdog,
//! somebody who drops it) drops the connection with it. It must never ask twice.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};
use tokio_util::sync::CancellationToken;

use super::draft::blank_message;
use super::fault::Fault;
use super::http::{Client, Incoming, Outgoing, Tap};
use super::reader::{Reader, Speaker};
use super::recording::Tape;
use super::secret::{self, Secret};
use super::watchdog::Watchdog;
use super::{StreamEvent, classify, price};
use crate::clock::{Clock, SystemClock};
use crate::config::{Price, Profile};

/// How long a complete answer waits for the end of its response, which nearly always comes with it.
const LINGER: Duration = Duration::from_millis(20);

/// What a call needs to be made.
pub(super) struct Plan {
    pub(super) speaker: Speaker,
    /// Tokens of the request, by estimate.
    pub(super) sent: u64,
    pub(super) outgoing: Outgoing,
    pub(super) price: Option<Price>,
    pub(super) respondent: Respondent,
    pub(super) watchdog: Watchdog,
    /// Who sees the raw response.
    pub(super) tap: Option<Box<dyn Tap>>,
}

/// Who answers.
pub(super) enum Respondent {
    /// A server.
    Server {
        client: Client,
        /// Where the key is found; none for a server that wants none.
        account: Option<Profile>,
        /// The header that carries a key, and what stands before the key in it.
        key_header: (&'static str, &'static str),
    },
    /// A recording of one.
    Recording(Tape),
}

/// A call under way.
pub(super) struct Call {
    speaker: Speaker,
    sent: u64,
    price: Option<Price>,
    watchdog: Watchdog,
    abort: CancellationToken,
    stage: Stage,
    key: Option<Secret>,
    /// What was not told yet.
    told: VecDeque<StreamEvent>,
}

enum Stage {
    /// Nothing was sent.
    Ready(Box<Ready>),
    /// The answer arrives.
    Reading { incoming: Box<Incoming>, reader: Box<Reader>, is_open: bool },
    /// The last event is told, or about to be.
    Over,
}

struct Ready {
    outgoing: Outgoing,
    respondent: Respondent,
    tap: Option<Box<dyn Tap>>,
}

/// Why waiting ended before what was waited for.
enum Cut {
    Aborted,
    Idle,
}

impl Call {
    pub(super) fn new(plan: Plan, abort: CancellationToken) -> Self {
        let Plan { speaker, sent, outgoing, price, respondent, watchdog, tap } = plan;
        let stage = Stage::Ready(Box::new(Ready { outgoing, respondent, tap }));
        Self { speaker, sent, price, watchdog, abort, stage, key: None, told: VecDeque::new() }
    }

    /// The call as a stream; nothing happens before it is polled.
    pub(super) fn into_stream(self) -> BoxStream<'static, StreamEvent> {
        stream::unfold(Box::new(self), |mut call| async move {
            let event = call.next().await?;
            Some((event, call))
        })
        .boxed()
    }

    /// The next event; none after the last.
    pub(super) async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Some(event);
            }
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(ready) => self.send(*ready).await,
                Stage::Reading { incoming, reader, is_open } => self.read(incoming, reader, is_open).await,
                Stage::Over => return None,
            }
        }
    }

    async fn send(&mut self, ready: Ready) {
        self.watchdog.arm();
        let exchange = exchange(ready, &mut self.key);
        let sent = within(&self.abort, &self.watchdog, exchange).await;
        let mut incoming = match sent {
            Ok(Ok(incoming)) => Box::new(incoming),
            Ok(Err(fault)) => return self.fail_early(fault),
            Err(Cut::Aborted) => return self.end_aborted(None),
            Err(Cut::Idle) => return self.fail_early(self.idle()),
        };
        let request_id = incoming.headers.request_id().unwrap_or_default();
        tracing::debug!(status = incoming.status, request_id, model = self.speaker.model, "model responded");
        self.watchdog.note(true);
        let is_stream = incoming.status == 200 && is_event_stream(&incoming);
        match Reader::new(self.speaker.clone(), self.sent).filter(|_| is_stream) {
            Some(reader) => {
                self.stage = Stage::Reading { incoming, reader: Box::new(reader), is_open: false };
            }
            None => {
                let body = within(&self.abort, &self.watchdog, incoming.refusal()).await;
                match body {
                    Ok(body) => self.fail_early(refused(&incoming, &body)),
                    Err(Cut::Aborted) => self.end_aborted(None),
                    Err(Cut::Idle) => self.fail_early(refused(&incoming, b"")),
                }
            }
        }
    }

    async fn read(&mut self, mut incoming: Box<Incoming>, mut reader: Box<Reader>, mut is_open: bool) {
        let chunk = within(&self.abort, &self.watchdog, incoming.chunk()).await;
        let taken = match chunk {
            Ok(Ok(Some(chunk))) => reader.push(chunk.as_ref()),
            Ok(Ok(None)) => return self.end(reader.conclude()),
            Ok(Err(fault)) => Err(fault),
            Err(Cut::Aborted) => return self.end_aborted(Some(reader.aborted())),
            Err(Cut::Idle) => return self.end(Err(reader.failed(self.idle()))),
        };
        let events = match taken {
            Ok(events) => events,
            Err(fault) => {
                self.tell(&mut reader, &mut is_open);
                return self.end(Err(reader.failed(fault)));
            }
        };
        self.watchdog.note(events > 0);
        if events > 0 {
            self.tell(&mut reader, &mut is_open);
        }
        if reader.is_over() {
            // A connection whose response was read to its end serves the next call.
            let _ = tokio::time::timeout(LINGER, incoming.drain()).await;
            return self.end(reader.conclude());
        }
        self.stage = Stage::Reading { incoming, reader, is_open };
    }

    fn tell(&mut self, reader: &mut Reader, is_open: &mut bool) {
        if !std::mem::replace(is_open, true) {
            self.told.push_back(StreamEvent::Opened);
        }
        self.told.extend(reader.updates().map(StreamEvent::Update));
    }

    /// Ends before an answer began: nothing is billed.
    fn fail_early(&mut self, fault: Fault) {
        self.end(Err(fault.into_failure(self.blank())));
    }

    fn end_aborted(&mut self, partial: Option<AssistantMessage>) {
        let blank = || AssistantMessage {
            stop_reason: StopReason::Aborted,
            error_message: Some("aborted".to_owned()),
            ..self.blank()
        };
        let message = partial.unwrap_or_else(blank);
        self.end(Ok(message));
    }

    fn end(&mut self, outcome: Result<AssistantMessage, Failure>) {
        let event = match outcome {
            Ok(message) => StreamEvent::Done(Box::new(self.finished(message))),
            Err(failure) => StreamEvent::Failed(Failure {
                usage: price::priced(self.price.as_ref(), failure.usage),
                message: model::Label::from(self.redacted(failure.message.as_str().to_owned()).as_str()),
                partial: failure.partial.map(|partial| Box::new(self.finished(*partial))),
                ..failure
            }),
        };
        self.told.push_back(event);
    }

    /// The message with its time and cost, and without the key in what a server said.
    fn finished(&self, message: AssistantMessage) -> AssistantMessage {
        AssistantMessage {
            usage: price::priced(self.price.as_ref(), message.usage),
            error_message: message.error_message.map(|words| self.redacted(words)),
            at: SystemClock.now(),
            ..message
        }
    }

    fn redacted(&self, words: String) -> String {
        match &self.key {
            Some(key) => key.redact(words),
            None => words,
        }
    }

    fn blank(&self) -> AssistantMessage {
        let Speaker { api, provider, model } = &self.speaker;
        blank_message(&api.to_string(), provider, model)
    }

    fn idle(&self) -> Fault {
        Fault::new(FailureKind::Idle, "nothing arrived for too long")
    }
}

/// Fetches the key, sends the request, waits for the head of the response.
async fn exchange(ready: Ready, key: &mut Option<Secret>) -> Result<Incoming, Fault> {
    let Ready { outgoing, respondent, tap } = ready;
    match respondent {
        Respondent::Server { client, account, key_header: (name, scheme) } => {
            if let Some(account) = &account {
                *key = Some(secret::fetch(account).await?);
            }
            client.send(outgoing, key.as_ref().map(|key| (name, scheme, key)), tap).await
        }
        Respondent::Recording(tape) => tape.play(outgoing.body).await,
    }
}

/// Waits for `work` as long as nobody aborts and the watchdog is quiet.
async fn within<T>(
    abort: &CancellationToken,
    watchdog: &Watchdog,
    work: impl Future<Output = T>,
) -> Result<T, Cut> {
    tokio::select! {
        biased;
        () = abort.cancelled() => Err(Cut::Aborted),
        done = work => Ok(done),
        () = watchdog.expired() => Err(Cut::Idle),
    }
}

/// True for a response that may be read as a stream: some servers name no type; none may pack it.
fn is_event_stream(incoming: &Incoming) -> bool {
    let is_packed = incoming.headers.get("content-encoding").is_some_and(|coding| coding != "identity");
    let media_type = incoming.headers.get("content-type").unwrap_or("text/event-stream");
    !is_packed && media_type.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// A response that is no answer: by its status, or by what it is instead of a stream.
fn refused(incoming: &Incoming, body: &[u8]) -> Fault {
    if incoming.status != 200 {
        return classify::reply(incoming.status, &incoming.headers, body, SystemClock.now());
    }
    let get = |name| incoming.headers.get(name).unwrap_or_default();
    match get("content-encoding") {
        "" => match serde_json::from_slice::<serde_json::Value>(body) {
            Ok(value) if value.get("error").is_some() => classify::event(&value),
            Ok(_) | Err(_) => {
                Fault::broken(format_args!("{:?} in place of an event stream", get("content-type")))
            }
        },
        coding => Fault::broken(format_args!("a response packed as {coding:?}, which was not asked for")),
    }
}
