//! Performs effects: which file does what, and what is answered at once.
//!
//! Owns the way from an effect to its performance. Each effect is performed once while it stands in the state.

use std::sync::Arc;
use std::time::Duration;

use model::input::{Admission, DrainedItem, Request as Intended};
use model::limits::COMPACTION_MS_MAX;
use model::message::{Role, UserMessage};
use model::phase::EntryRef;
use model::{Block, Effect, Fact, Label, Message, Source};

use super::context::{cut_result, prepare};
use super::load::{load_state, session_context};
use super::{Driver, Performed};
use crate::error::Error;
use crate::harness::default_conversion;
use crate::keys;
use crate::provider::{Prepared, Request};
use crate::tool::ToolSpec;

/// The longest that a summary may take.
const COMPACTION_MAX: Duration = Duration::from_millis(COMPACTION_MS_MAX);

impl Driver {
    /// Starts every effect that is not under way. Answers the first that is already done.
    pub(super) async fn perform(&mut self) -> Result<Option<Performed>, Error> {
        if let Some(performed) = self.tell_again() {
            return Ok(Some(performed));
        }
        if self.is_stopping {
            return Ok(None);
        }
        let fresh: Vec<Effect> =
            self.effects.iter().filter(|effect| !self.active.contains(effect)).cloned().collect();
        for effect in fresh {
            self.active.push(effect.clone());
            if let Some(fact) = self.start(effect.clone()).await? {
                return Ok(Some(Performed { effect, fact }));
            }
        }
        Ok(None)
    }

    /// What has happened already, and was taken back by a failed barrier.
    fn tell_again(&mut self) -> Option<Performed> {
        let stands =
            |(effect, _): &(Effect, Fact)| self.effects.contains(effect) && !self.active.contains(effect);
        let index = self.untold.iter().position(stands)?;
        let (effect, fact) = self.untold.remove(index);
        Some(Performed { effect, fact })
    }

    /// Starts one effect; answers its fact if it is done at once.
    async fn start(&mut self, effect: Effect) -> Result<Option<Fact>, Error> {
        match effect {
            Effect::AwaitLane => Ok(Some(Fact::Admitted(Box::new(self.admission()?)))),
            Effect::Drain { source } => Ok(Some(self.drain(source).await)),
            Effect::Poll { source } => self.poll(source).await.map(Some),
            Effect::PrepareRequest { turn, attempt } => Ok(Some(self.prepare_request(turn, attempt).await)),
            Effect::CallModel { turn, attempt } => self.call_model(turn, attempt).await,
            Effect::ResolveBatch { .. } => Ok(Some(self.resolve_batch())),
            Effect::RunTool { turn, call, .. } => Ok(self.run_tool(turn, call, &effect)),
            Effect::RunHook(hook) => Ok(self.run_hook(hook, &effect)),
            Effect::Sleep { until } => {
                let left = until.since(self.shared.clock.now());
                let performed = Performed { effect, fact: Fact::TimerFired };
                self.performing.push(Box::pin(async move {
                    tokio::time::sleep(Duration::from_millis(left)).await;
                    performed
                }));
                Ok(None)
            }
            Effect::PlanCompaction => Ok(Some(self.plan_compaction())),
            Effect::Compact { first_kept } => {
                self.compact(first_kept, &effect);
                Ok(None)
            }
            Effect::AwaitApproval { .. } | Effect::AwaitPerson => Ok(None),
        }
    }

    /// The lane is free: what the run starts from.
    fn admission(&mut self) -> Result<Admission, Error> {
        let store = &*self.shared.store;
        let key = keys::session(&self.fold.submission().session);
        let previous = store.scan(&key, None, 1)?.into_iter().find_map(|(_, value)| {
            Some(model::RunId(value.as_slice().try_into().ok()?)).filter(|previous| *previous != self.run)
        });
        let (mut window, mut critical_tool_loop_seen) = (None, false);
        if let Some(previous) = previous {
            if let Some((state, _)) = load_state(store, previous)? {
                // A prompt gives the model a new chance; a continuation does not.
                let is_continuation = self.fold.submission().prompts.is_empty();
                critical_tool_loop_seen = is_continuation && state.core.critical_tool_loop_seen;
                window = Some(state.window);
            }
            let own = std::mem::take(&mut self.context).into_entries();
            for entry in session_context(store, previous)?.into_iter().chain(own) {
                self.context.push(entry);
            }
        }
        let window = window.filter(|window| !window.is_empty());
        let is_tainted = self.context.is_tainted();
        Ok(Admission { previous, window, critical_tool_loop_seen, is_tainted })
    }

    /// The messages that the phase injects.
    async fn drain(&mut self, source: Source) -> Fact {
        let cursors = self.state.core.cursors;
        let drains_all = self.state.core.wants.drains_all;
        let mut left = if drains_all || source == Source::Prompt { usize::MAX } else { 1 };
        // Only sources take messages back.
        let most = if self.shared.harness.sources.is_some() { usize::MAX } else { left };
        let waiting: Vec<(u64, Message)> = match source {
            Source::Prompt => (0..).zip(self.fold.submission().prompts.iter().cloned()).collect(),
            Source::Steering => owned(self.inbox.steering(&cursors).take(most)),
            Source::FollowUp => owned(self.inbox.follow_ups(&cursors).take(most)),
        };
        let mut items = Vec::with_capacity(waiting.len());
        for (position, message) in waiting {
            if left == 0 {
                break;
            }
            let is_withdrawn = match &self.shared.harness.sources {
                Some(sources) => sources.is_withdrawn(self.run, &message).await,
                None => false,
            };
            // What was taken back does not take another message's place.
            left -= usize::from(!is_withdrawn);
            items.push(DrainedItem { position, is_user: message.role() == Role::User, is_withdrawn });
        }
        Fact::Drained { items }
    }

    /// Asks the harness's source; what it gives is in the inbox, durably, before the run goes on.
    async fn poll(&mut self, source: Source) -> Result<Fact, Error> {
        if let Some(sources) = self.shared.harness.sources.clone() {
            let messages = match source {
                Source::Prompt | Source::Steering => sources.steering(self.run).await,
                Source::FollowUp => sources.follow_up(self.run).await,
            };
            let poll = self.poll_key();
            for (n, message) in messages.into_iter().enumerate() {
                let item = match source {
                    Source::Prompt | Source::Steering => model::inbox::Item::Steering(message),
                    Source::FollowUp => model::inbox::Item::FollowUp(message),
                };
                let key = crate::accept::poll_item_key(&poll, n, &item);
                crate::accept::push(&self.shared, self.run, &item, Some(&key)).await?;
            }
        }
        self.read_inbox()?;
        Ok(Fact::Polled)
    }

    /// Names the poll, also for a later owner: a run is in each polling phase once.
    fn poll_key(&self) -> String {
        let phase = postcard::to_stdvec(&self.state.core.phase).unwrap_or_default();
        blake3::hash(&phase).to_hex().to_string()
    }

    async fn prepare_request(&mut self, turn: u32, attempt: u32) -> Fact {
        self.paying = None;
        let provider = match self.shared.models.resolve(self.model_name(), &self.config()) {
            Ok(provider) => provider,
            Err(error) => return Fact::Missing { what: Label::from(error.to_string().as_str()) },
        };
        let profile = match self.choose_profile() {
            Ok(profile) => profile,
            Err(failure) => return self.call_failed(failure),
        };
        let request = self.request(turn, attempt, profile).await;
        let intent = match provider.prepare(&request) {
            Ok(intent) => intent,
            Err(failure) => return self.call_failed(failure),
        };
        let is_kept = provider.has_raw_responses();
        let spool = is_kept.then(|| self.spool(turn, attempt, intent.hash)).flatten();
        self.request = Some(Request { spool, ..request });
        Fact::RequestPrepared(Intended {
            hash: intent.hash,
            converter_version: intent.converter_version,
            edits: None,
            profile,
            reserve: intent.reserve,
        })
    }

    /// The request of a model call: the context as the model is to see it.
    pub(super) async fn request(&mut self, turn: u32, attempt: u32, profile: u8) -> Request {
        let mut messages = match &self.shared.harness.context {
            None => self.context.seen(),
            Some(context) => {
                let whole = context.transform_context(self.context.whole()).await;
                whole.iter().filter_map(|message| converted(&**context, message)).collect()
            }
        };
        if self.state.core.retries.counts.truncations > 0 {
            messages = messages.iter().map(cut_result).collect();
        }
        if let Some(instruction) = self.state.core.retries.instruction {
            let content = vec![Block::Text(instruction.text().to_owned())];
            let message = Message::User(UserMessage { content, at: self.state.core.clock });
            messages.push(Arc::new(prepare(message)));
        }
        Request {
            origin: Arc::clone(&self.origin),
            turn,
            attempt,
            model: self.model_name().to_owned(),
            profile: self.facts.profile(&self.state.core.model, profile).map(str::to_owned),
            thinking: self.state.core.thinking.as_str().to_owned(),
            system: self.facts.system.as_deref().map(Arc::from),
            messages,
            tools: self.tools(),
            spool: None,
            recording: self.recording.clone(),
        }
    }

    /// The run's tools, then those that the harness has found for calls of the context.
    fn tools(&self) -> Arc<[ToolSpec]> {
        let own = self.shared.tool_list(&self.facts.tools);
        let Some(context) = &self.shared.harness.context else { return own };
        let mut found: Vec<ToolSpec> = Vec::new();
        for name in self.context.called() {
            let is_new = |specs: &[ToolSpec]| specs.iter().all(|spec| spec.name != name);
            if is_new(&own)
                && is_new(&found)
                && let Ok(Some(tool)) = context.resolve_tool(name)
                && tool.spec().name == name
            {
                found.push(tool.spec().clone());
            }
        }
        if found.is_empty() { own } else { own.iter().cloned().chain(found).collect() }
    }

    fn plan_compaction(&self) -> Fact {
        match self.context.cut_point() {
            Some(first_kept) => Fact::CompactionPlanned { first_kept },
            None => Fact::CompactFailed { reason: Label::from("there is nothing to summarise") },
        }
    }

    fn compact(&mut self, first_kept: EntryRef, effect: &Effect) {
        let context = self.shared.harness.context.clone();
        let messages = self.context.before(first_kept);
        let (at, effect) = (self.shared.clock.now(), effect.clone());
        self.performing.push(Box::pin(async move {
            let summary = match context {
                Some(context) => {
                    tokio::time::timeout(COMPACTION_MAX, context.summarise(&messages)).await.unwrap_or_else(
                        |_| Err(format!("no summary came within {} s", COMPACTION_MAX.as_secs())),
                    )
                }
                None => Err("this engine has no summariser".to_owned()),
            };
            let fact = match summary {
                Ok(text) => Fact::Compacted { summary: Message::user(text, at) },
                Err(reason) => Fact::CompactFailed { reason: Label::from(reason.as_str()) },
            };
            Performed { effect, fact }
        }));
    }
}

fn owned<'a>(items: impl Iterator<Item = (u64, &'a Message)>) -> Vec<(u64, Message)> {
    items.map(|(position, message)| (position, message.clone())).collect()
}

fn converted(context: &dyn crate::harness::Context, message: &Arc<Prepared>) -> Option<Arc<Prepared>> {
    // What the engine itself tells the model is a user message before the program's conversion sees it.
    let own = match &message.message {
        Message::Custom(_) => default_conversion(&message.message),
        Message::User(_) | Message::Assistant(_) | Message::ToolResult(_) => None,
    };
    let seen = context.convert_to_llm(own.as_ref().unwrap_or(&message.message))?;
    if seen == message.message { Some(Arc::clone(message)) } else { Some(Arc::new(prepare(seen))) }
}
