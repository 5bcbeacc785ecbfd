//! A planned call as a stream.
//!
//! Owns pace and order of what arrives. It must never yield without reason: a call without delays is ready at
//! every poll, so that what is measured with it is the engine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::Millis;
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, Block, StopReason, Usage};
use tokio_util::sync::CancellationToken;

use super::log::Entry;
use super::plan::{Ending, Part, Plan, end_of, failure};
use crate::provider::{StreamEvent, Update};

const API: &str = "rehearsal";

/// Plays `plan` for `model`, after `entry` is on disk.
pub(super) fn play(
    plan: Plan,
    model: String,
    entry: Option<Entry>,
    abort: CancellationToken,
) -> BoxStream<'static, StreamEvent> {
    let playback = Playback { plan, model, entry, abort, stage: Stage::Called };
    stream::unfold(Box::new(playback), |mut playback| async move {
        let event = playback.next().await?;
        Some((event, playback))
    })
    .boxed()
}

struct Playback {
    plan: Plan,
    model: String,
    entry: Option<Entry>,
    abort: CancellationToken,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Nothing was sent.
    Called,
    /// This part comes next.
    Before { part: usize },
    /// So many bytes of this part were sent.
    Within { part: usize, sent: usize },
    /// The last event was sent.
    Over,
}

impl Playback {
    async fn next(&mut self) -> Option<StreamEvent> {
        match self.stage {
            Stage::Called => Some(self.open().await),
            Stage::Before { part } => Some(self.start(part).await),
            Stage::Within { part, sent } => Some(self.go_on(part, sent).await),
            Stage::Over => None,
        }
    }

    async fn open(&mut self) -> StreamEvent {
        if self.abort.is_cancelled() {
            return self.aborted();
        }
        if let Some(entry) = self.entry.take()
            && let Err(error) = entry.append().await
        {
            return self.failed(failure(FailureKind::Script, &format!("rehearsal log: {error}")));
        }
        if self.is_aborted_within(Duration::from_millis(self.plan.delay_ms)).await {
            return self.aborted();
        }
        if !self.plan.is_opened {
            return self.finish().await;
        }
        self.stage = Stage::Before { part: 0 };
        StreamEvent::Opened
    }

    async fn start(&mut self, part: usize) -> StreamEvent {
        let Some(next) = self.plan.parts.get(part) else { return self.finish().await };
        if self.abort.is_cancelled() {
            return self.aborted();
        }
        let [kind, ..] = next.kinds();
        self.stage = Stage::Within { part, sent: 0 };
        StreamEvent::Update(Update { kind, content_index: part, delta: String::new(), call: None })
    }

    /// The next chunk of a part, or its end.
    async fn go_on(&mut self, part: usize, sent: usize) -> StreamEvent {
        let is_first = part == 0 && sent == 0;
        let Some(current) = self.plan.parts.get(part) else { return self.finish().await };
        let rest = current.text().get(sent..).unwrap_or_default();
        if rest.is_empty() {
            return self.end(part).await;
        }
        let [_, kind, _] = current.kinds();
        let chunk = self.plan.chunk_chars.map_or(rest, |chars| &rest[..end_of(rest, chars.get())]);
        let (delta, sent) = (chunk.to_owned(), sent + chunk.len());
        let wait_ms = if is_first { 0 } else { self.plan.chunk_ms };
        if self.is_aborted_within(Duration::from_millis(wait_ms)).await {
            return self.aborted();
        }
        self.stage = Stage::Within { part, sent };
        StreamEvent::Update(Update { kind, content_index: part, delta, call: None })
    }

    async fn end(&mut self, part: usize) -> StreamEvent {
        let Some(ended) = self.plan.parts.get(part) else { return self.finish().await };
        if self.plan.is_broken && part + 1 == self.plan.parts.len() {
            return self.finish().await;
        }
        let [.., kind] = ended.kinds();
        let (delta, call) = match ended {
            Part::Thinking(text) | Part::Text(text) => (text.clone(), None),
            Part::Call(call) => (String::new(), Some(call.clone())),
        };
        self.stage = Stage::Before { part: part + 1 };
        StreamEvent::Update(Update { kind, content_index: part, delta, call })
    }

    async fn finish(&mut self) -> StreamEvent {
        match &mut self.plan.ending {
            Ending::Done(stop_reason) => {
                let stop_reason = *stop_reason;
                let parts = std::mem::take(&mut self.plan.parts);
                let usage = self.plan.meter.usage(&parts);
                self.done(parts, usage, stop_reason, None)
            }
            Ending::Failed(failure) => {
                let failure = failure.clone();
                self.failed(failure)
            }
            Ending::Silence => {
                self.abort.cancelled().await;
                self.aborted()
            }
        }
    }

    /// Waits so long; true as soon as the call is aborted.
    async fn is_aborted_within(&self, time: Duration) -> bool {
        if time.is_zero() {
            return self.abort.is_cancelled();
        }
        self.abort.run_until_cancelled(tokio::time::sleep(time)).await.is_none()
    }

    /// Ends with what was sent so far.
    fn aborted(&mut self) -> StreamEvent {
        let mut parts = std::mem::take(&mut self.plan.parts);
        match self.stage {
            Stage::Called | Stage::Over => parts.clear(),
            Stage::Before { part } => parts.truncate(part),
            Stage::Within { part, sent } => {
                parts.truncate(part + 1);
                let last = parts.pop().and_then(|part| part.cut(sent));
                parts.extend(last);
            }
        }
        let usage = match self.stage {
            Stage::Called | Stage::Over => Usage::default(),
            Stage::Before { .. } | Stage::Within { .. } => self.plan.meter.usage(&parts),
        };
        self.done(parts, usage, StopReason::Aborted, Some("aborted".to_owned()))
    }

    fn done(
        &mut self,
        parts: Vec<Part>,
        usage: Usage,
        stop_reason: StopReason,
        error_message: Option<String>,
    ) -> StreamEvent {
        self.stage = Stage::Over;
        StreamEvent::Done(Box::new(AssistantMessage {
            content: parts.into_iter().map(Block::from).collect(),
            api: API.to_owned(),
            provider: API.to_owned(),
            model: std::mem::take(&mut self.model),
            response_id: None,
            turn_id: None,
            usage,
            stop_reason,
            error_message,
            is_tainted: false,
            at: now(),
        }))
    }

    fn failed(&mut self, failure: Failure) -> StreamEvent {
        self.stage = Stage::Over;
        StreamEvent::Failed(failure)
    }
}

fn now() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}
