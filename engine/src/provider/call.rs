//! One call of a model behind an address, from its key to its last event.
//!
//! Owns the connection of the call: whatever ends the call (an answer, a failure, an abort, the watchdog,
//! somebody who drops it) drops the connection with it. It must never ask twice: what it asks for again is the rest
//! of an answer that goes on at its provider, which bills nothing.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};
use tokio_util::sync::CancellationToken;

use super::background::{Background, Unreached, WAITS};
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
    /// Where the answer is found again; none if it ends with its connection.
    pub(super) background: Option<Background>,
    pub(super) watchdog: Watchdog,
    /// Who sees the raw response.
    pub(super) tap: Option<Box<dyn Tap>>,
}

/// What the rest of an answer is looked for with, which a dead engine had asked for.
pub(super) struct Rest {
    pub(super) speaker: Speaker,
    pub(super) price: Option<Price>,
    pub(super) background: Background,
    pub(super) watchdog: Watchdog,
    /// It has read what was kept.
    pub(super) reader: Reader,
    /// Who sees the rest.
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
    background: Option<Background>,
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
    Reading(Box<Incoming>, Box<Reading>),
    /// The connection is gone, and the rest of the answer is looked for.
    Away(Box<Away>),
    /// The last event is told, or about to be.
    Over,
}

struct Ready {
    outgoing: Outgoing,
    respondent: Respondent,
    tap: Option<Box<dyn Tap>>,
}

struct Reading {
    reader: Reader,
    /// The first event was told.
    is_open: bool,
    /// Tries to reach the rest since the newest event.
    tries: usize,
}

struct Away {
    reading: Reading,
    tap: Option<Box<dyn Tap>>,
    /// Why the connection is gone; none if it was a dead engine's.
    fault: Option<Fault>,
}

/// Why waiting ended before what was waited for.
enum Cut {
    Aborted,
    Idle,
}

impl Call {
    pub(super) fn new(plan: Plan, abort: CancellationToken) -> Self {
        let Plan { speaker, sent, outgoing, price, respondent, background, watchdog, tap } = plan;
        let stage = Stage::Ready(Box::new(Ready { outgoing, respondent, tap }));
        Self { speaker, sent, price, background, watchdog, abort, stage, key: None, told: VecDeque::new() }
    }

    /// The rest of a call that a dead engine had made.
    pub(super) fn rest(rest: Rest, abort: CancellationToken) -> Self {
        let Rest { speaker, price, background, watchdog, reader, tap } = rest;
        let reading = Reading { reader, is_open: false, tries: 0 };
        let stage = Stage::Away(Box::new(Away { reading, tap, fault: None }));
        let (background, told) = (Some(background), VecDeque::new());
        Self { speaker, sent: 0, price, background, watchdog, abort, stage, key: None, told }
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
                Stage::Reading(incoming, reading) => self.read(incoming, reading).await,
                Stage::Away(away) => self.reach(away).await,
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
                let reading = Reading { reader, is_open: false, tries: 0 };
                self.stage = Stage::Reading(incoming, Box::new(reading));
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

    async fn read(&mut self, mut incoming: Box<Incoming>, mut reading: Box<Reading>) {
        let chunk = within(&self.abort, &self.watchdog, incoming.chunk()).await;
        let taken = match chunk {
            Ok(Ok(Some(chunk))) => reading.reader.push(chunk.as_ref()),
            Ok(Ok(None)) => return self.broken(*incoming, reading, None),
            Ok(Err(fault)) => return self.broken(*incoming, reading, Some(fault)),
            Err(cut) => return self.cut(&reading.reader, cut),
        };
        let events = match taken {
            Ok(events) => events,
            Err(fault) => {
                self.abandon(&reading.reader);
                return self.fail(&mut reading, fault);
            }
        };
        self.watchdog.note(events > 0);
        if events > 0 {
            reading.tries = 0;
            self.tell(&mut reading);
        }
        if reading.reader.is_over() {
            // A connection whose response was read to its end serves the next call.
            let _ = tokio::time::timeout(LINGER, incoming.drain()).await;
            return self.end(reading.reader.conclude());
        }
        self.stage = Stage::Reading(incoming, reading);
    }

    /// The connection has ended before the answer, in order or by a fault. An answer in the background goes on.
    fn broken(&mut self, incoming: Incoming, mut reading: Box<Reading>, fault: Option<Fault>) {
        if self.background.is_some() && reading.reader.place().is_some() {
            let fault = fault.or_else(|| Some(Fault::new(FailureKind::Connection, "the answer broke off")));
            let away = Away { reading: *reading, tap: incoming.into_tap(), fault };
            self.stage = Stage::Away(Box::new(away));
            return;
        }
        match fault {
            Some(fault) => self.fail(&mut reading, fault),
            None => self.end(reading.reader.conclude()),
        }
    }

    /// Looks for the rest of an answer once.
    async fn reach(&mut self, mut away: Box<Away>) {
        let (Some(background), Some(place)) = (&self.background, away.reading.reader.place()) else {
            return self.lose(away);
        };
        let Some(wait) = WAITS.get(away.reading.tries) else {
            self.abandon(&away.reading.reader);
            return self.lose(away);
        };
        if away.fault.is_none() && away.reading.tries == 0 {
            self.watchdog.arm();
        }
        away.reading.tries += 1;
        let key = &mut self.key;
        let rest = async {
            tokio::time::sleep(*wait).await;
            background.rest(&place, key).await
        };
        match within(&self.abort, &self.watchdog, rest).await {
            Ok(Ok(incoming)) => {
                self.watchdog.note(false);
                let Away { mut reading, mut tap, fault: _ } = *away;
                if let Some(tap) = &mut tap {
                    tap.on_rejoin(place.whole);
                }
                reading.reader.rejoin();
                self.tell(&mut reading);
                self.stage = Stage::Reading(Box::new(incoming.seen_by(tap)), Box::new(reading));
            }
            Ok(Err(Unreached::Passing)) => self.stage = Stage::Away(away),
            Ok(Err(Unreached::Gone)) => self.lose(away),
            Err(cut) => self.cut(&away.reading.reader, cut),
        }
    }

    /// The rest of an answer is out of reach.
    fn lose(&mut self, mut away: Box<Away>) {
        match away.fault.take() {
            Some(fault) => self.fail(&mut away.reading, fault),
            None => self.told.push_back(StreamEvent::Lost),
        }
    }

    /// Nobody wants the answer any more, or nobody believes that it still comes.
    fn cut(&mut self, reader: &Reader, cut: Cut) {
        self.abandon(reader);
        match cut {
            Cut::Aborted => self.end_aborted(Some(reader.aborted())),
            Cut::Idle => self.end(Err(reader.failed(self.idle()))),
        }
    }

    /// An answer that goes on without being wanted is billed on, unless its provider is told.
    fn abandon(&self, reader: &Reader) {
        if let (Some(background), Some(place)) = (&self.background, reader.place()) {
            background.abandon(place, self.key.clone());
        }
    }

    fn tell(&mut self, reading: &mut Reading) {
        if !std::mem::replace(&mut reading.is_open, true) {
            self.told.push_back(StreamEvent::Opened);
        }
        self.told.extend(reading.reader.updates().map(StreamEvent::Update));
    }

    fn fail(&mut self, reading: &mut Reading, fault: Fault) {
        self.tell(reading);
        self.end(Err(reading.reader.failed(fault.without(self.key.as_ref()))));
    }

    /// Ends before an answer began: nothing is billed.
    fn fail_early(&mut self, fault: Fault) {
        self.end(Err(fault.without(self.key.as_ref()).into_failure(self.blank())));
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
            error_message: message.error_message.map(|words| match &self.key {
                Some(key) => key.redact(words),
                None => words,
            }),
            at: SystemClock.now(),
            ..message
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
pub(super) fn is_event_stream(incoming: &Incoming) -> bool {
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
