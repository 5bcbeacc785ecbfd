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
    entry: Option<Box<Entry>>,
    abort: CancellationToken,
) -> BoxStream<'static, StreamEvent> {
    let playback = Playback { plan, model, entry, abort, stage: Stage::Called };
    stream::unfold(playback, |mut playback| async move {
        let event = match playback.wait().await {
            Some(event) => event,
            None => playback.next()?,
        };
        Some((event, playback))
    })
    .boxed()
}

struct Playback {
    plan: Plan,
    model: String,
    entry: Option<Box<Entry>>,
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
    /// Waits until the next event is due; answers the one that comes in its place. All that waits is here, so a call
    /// that waits holds little beside its plan.
    async fn wait(&mut self) -> Option<StreamEvent> {
        let pause = self.pause()?;
        if self.abort.is_cancelled() {
            return Some(self.aborted());
        }
        if let Some(entry) = self.entry.take()
            && let Err(error) = entry.append().await
        {
            return Some(self.failed(failure(FailureKind::Script, &format!("rehearsal log: {error}"))));
        }
        let is_aborted = if pause.is_zero() {
            self.abort.is_cancelled()
        } else {
            self.abort.run_until_cancelled(tokio::time::sleep(pause)).await.is_none()
        };
        is_aborted.then(|| self.aborted())
    }

    /// How long nothing arrives before the next event; none if it comes even to a call that was aborted.
    fn pause(&self) -> Option<Duration> {
        let at_end = match &self.plan.ending {
            Ending::Silence => Some(Duration::MAX),
            Ending::Failed(_) | Ending::Done(_) => None,
        };
        match self.stage {
            Stage::Called => {
                let end = at_end.filter(|_| !self.plan.is_opened).unwrap_or_default();
                Some(Duration::from_millis(self.plan.delay_ms).saturating_add(end))
            }
            Stage::Before { part } if part < self.plan.parts.len() => Some(Duration::ZERO),
            Stage::Before { .. } => at_end,
            Stage::Within { part, sent } if self.rest(part, sent).is_empty() => {
                at_end.filter(|_| self.is_break(part))
            }
            Stage::Within { part: 0, sent: 0 } => Some(Duration::ZERO),
            Stage::Within { .. } => Some(Duration::from_millis(self.plan.chunk_ms)),
            Stage::Over => None,
        }
    }

    fn next(&mut self) -> Option<StreamEvent> {
        match self.stage {
            Stage::Called if self.plan.is_opened => {
                self.stage = Stage::Before { part: 0 };
                Some(StreamEvent::Opened)
            }
            Stage::Called => Some(self.finish()),
            Stage::Before { part } => Some(self.start(part)),
            Stage::Within { part, sent } => Some(self.go_on(part, sent)),
            Stage::Over => None,
        }
    }

    fn start(&mut self, part: usize) -> StreamEvent {
        let Some(next) = self.plan.parts.get(part) else { return self.finish() };
        let [kind, ..] = next.kinds();
        self.stage = Stage::Within { part, sent: 0 };
        StreamEvent::Update(Update { kind, content_index: part, delta: String::new(), call: None })
    }

    /// The next chunk of a part, or its end.
    fn go_on(&mut self, part: usize, sent: usize) -> StreamEvent {
        let rest = self.rest(part, sent);
        let Some(current) = self.plan.parts.get(part).filter(|_| !rest.is_empty()) else {
            return self.end(part);
        };
        let [_, kind, _] = current.kinds();
        let chunk = self.plan.chunk_chars.map_or(rest, |chars| &rest[..end_of(rest, chars.get())]);
        let (delta, sent) = (chunk.to_owned(), sent + chunk.len());
        self.stage = Stage::Within { part, sent };
        StreamEvent::Update(Update { kind, content_index: part, delta, call: None })
    }

    fn end(&mut self, part: usize) -> StreamEvent {
        let Some(ended) = self.plan.parts.get(part).filter(|_| !self.is_break(part)) else {
            return self.finish();
        };
        let [.., kind] = ended.kinds();
        let (delta, call) = match ended {
            Part::Thinking(text) | Part::Text(text) => (text.clone(), None),
            Part::Call(call) => (String::new(), Some(call.clone())),
        };
        self.stage = Stage::Before { part: part + 1 };
        StreamEvent::Update(Update { kind, content_index: part, delta, call })
    }

    /// What was not sent of a part.
    fn rest(&self, part: usize, sent: usize) -> &str {
        self.plan.parts.get(part).and_then(|part| part.text().get(sent..)).unwrap_or_default()
    }

    /// The stream breaks off where the part's end would be.
    fn is_break(&self, part: usize) -> bool {
        self.plan.is_broken && part + 1 == self.plan.parts.len()
    }

    fn finish(&mut self) -> StreamEvent {
        match &self.plan.ending {
            Ending::Done(stop_reason) => {
                let stop_reason = *stop_reason;
                let parts = std::mem::take(&mut self.plan.parts);
                let usage = self.plan.meter.usage(&parts);
                self.done(parts, usage, stop_reason, None)
            }
            Ending::Failed(failure) => {
                let failure = failure.as_ref().clone();
                self.failed(failure)
            }
            // Only an abort ends the pause before it.
            Ending::Silence => self.aborted(),
        }
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
