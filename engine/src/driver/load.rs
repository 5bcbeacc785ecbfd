//! Takes a run over: loads its state, its context and its inbox.
//!
//! Owns what a driver knows before its first step. It must never perform anything.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::FuturesUnordered;
use model::encode::{Encoded, Part};
use model::inbox::Item;
use model::input::Submission;
use model::phase::EntryRef;
use model::{JsonText, Message, Millis, Record, RunId, RunState};
use store::{Store, Stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::inbox::{Inbox, first_needed};
use super::{Attached, Driver};
use crate::error::Error;
use crate::fold::{Entry, Fold};
use crate::job::JobFacts;
use crate::keys;
use crate::provider::Origin;
use crate::shared::Shared;

/// Records read from the journal at once.
const PAGE: usize = 256;
/// The first record of a run.
pub(crate) struct First {
    pub(crate) submission: Arc<Submission>,
    pub(crate) at: Millis,
}

impl Driver {
    /// Takes over a run whose state is committed. `loading` is held until the driver waits for the first time.
    pub(crate) fn load(
        shared: Arc<Shared>,
        run: RunId,
        attached: Attached,
        loading: Option<OwnedSemaphorePermit>,
    ) -> Result<Box<Self>, Error> {
        let store = &*shared.store;
        let (state, inbox_len) = load_state(store, run)?.ok_or_else(|| Error::NoSuchRun(run.to_string()))?;
        let first = read_first(store, run)?;
        let watched = shared.runs.watch(run);
        let mut submission = first.submission;
        let mut facts =
            JobFacts::of(&submission).map_err(|error| Error::Job(format!("run {run}: {error}")))?;
        shared.share(&mut facts);
        let kept = shared.configs.of_run(store, facts.config)?.config;
        if let Some(submission) = Arc::get_mut(&mut submission) {
            // The facts say the same; thousands of runs may wait at once.
            submission.job = JsonText::empty();
        }
        let origin = Origin {
            run,
            session: submission.session.clone(),
            custom_id: facts.custom_id.clone().unwrap_or_default(),
            prompt: submission.prompts.first().map(Message::joined_text).unwrap_or_default(),
            workspace: facts.workspace.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        };
        let (encoded, _) = Encoded::all(&state);
        let is_eventful = attached.sink.is_some();
        let batch = facts.batch.as_deref();
        let budget = batch.map(|batch| shared.budgets.of(store, batch)).transpose()?;
        let mut driver = Box::new(Self {
            budget,
            reservation: None,
            watched,
            attached,
            run,
            submitted_at: first.at,
            recording: shared.recording(&facts, &origin),
            kept,
            origin: Arc::new(origin),
            facts: Arc::new(facts),
            effects: state.effects(),
            encoded,
            state,
            fold: Fold::new(submission, is_eventful),
            context: Context::default(),
            inbox: Inbox::default(),
            active: Vec::new(),
            performing: FuturesUnordered::new(),
            model: None,
            request: None,
            session_profile: None,
            paying: None,
            plans: Vec::new(),
            takeovers: Vec::new(),
            updates: None,
            cancel: CancellationToken::new(),
            deadline: None,
            unsynced: Vec::new(),
            untold: Vec::new(),
            left_over: Vec::new(),
            awaited: None,
            has_to_look: false,
            is_stopping: false,
            is_leaving_call: false,
            sink_failure: None,
            loading,
            seat: None,
            shared,
        });
        driver.inbox.skip_to(first_needed(&driver.state.core.cursors).min(inbox_len));
        driver.read_inbox()?;
        driver.read_context()?;
        Ok(driver)
    }

    /// Loads again after a failed barrier. What is under way stays under way.
    pub(super) fn reload(&mut self) -> Result<(), Error> {
        let store = &*self.shared.store;
        let (state, _) =
            load_state(store, self.run)?.ok_or_else(|| Error::NoSuchRun(self.run.to_string()))?;
        self.encoded = Encoded::all(&state).0;
        self.effects = state.effects();
        self.state = state;
        self.active.retain(|effect| self.effects.contains(effect));
        let is_eventful = self.attached.sink.is_some();
        self.fold = Fold::new(Arc::clone(self.fold.submission()), is_eventful);
        self.context = Context::default();
        self.inbox = Inbox::default();
        self.inbox.skip_to(first_needed(&self.state.core.cursors));
        self.read_inbox()?;
        self.read_context()
    }

    /// What was acknowledged before a checkpoint counts there: reads it if there is something.
    pub(super) fn look_into_inbox(&mut self) -> Result<(), Error> {
        match self.watched.inbox.notified().now_or_never() {
            Some(()) => self.read_inbox(),
            None => Ok(()),
        }
    }

    /// Reads what was accepted since the last look.
    pub(super) fn read_inbox(&mut self) -> Result<(), Error> {
        let stream = Stream::Inbox(keys::run_key(self.run));
        loop {
            let records = self.shared.store.read_journal(stream, self.inbox.len(), PAGE)?;
            if records.is_empty() {
                return Ok(());
            }
            for record in records {
                let Some(payload) = record.payload else {
                    self.inbox.skip_to(record.head.seq.saturating_add(1));
                    continue;
                };
                let item =
                    Item::from_bytes(&payload).map_err(|source| Error::Decode { run: self.run, source })?;
                self.inbox.accept(record.head.seq, item);
            }
        }
    }

    /// Reads the context: of the session's earlier runs as far as they belong to it, then of this run.
    fn read_context(&mut self) -> Result<(), Error> {
        let from = self.state.core.context_from;
        let submission = Arc::clone(self.fold.submission());
        if from.base.is_none() {
            if let Some(previous) = from.previous {
                for entry in session_context(&*self.shared.store, previous)? {
                    self.context.push(entry);
                }
            }
            for (n, message) in (0u32..).zip(&submission.base) {
                let at = EntryRef { run: self.run, seq: 0, n };
                self.context.push(Entry { at, message: Arc::new(message.clone()) });
            }
        }
        // A sink has seen everything since the first record, and `agent_end` names it all.
        let start = if self.attached.sink.is_some() { 1 } else { self.first_seq_needed() };
        let (context, fold) = (&mut self.context, &mut self.fold);
        let inbox = |position| inbox_message(&*self.shared.store, self.run, position);
        let mut next = start;
        loop {
            let stream = Stream::Run(keys::run_key(self.run));
            let records = self.shared.store.read_transcript(stream, next, PAGE)?;
            let Some(last) = records.last() else { return Ok(()) };
            next = last.head.seq.saturating_add(1);
            for record in records {
                let seq = record.head.seq;
                let Some(moved) = decode_moved(self.run, record.payload)? else { continue };
                for entry in fold.apply(seq, &moved, &inbox)?.entries {
                    context.push(entry);
                }
                if let Some(base) = moved.input.fact.base()
                    && from.base == Some(seq)
                {
                    context.replace(self.run, seq, base, from.first);
                }
            }
        }
    }

    /// The first record of this run that its context needs.
    fn first_seq_needed(&self) -> u64 {
        let from = self.state.core.context_from;
        let first = from.first.filter(|first| first.run == self.run).map(|first| first.seq);
        match (from.base, first) {
            (Some(base), Some(first)) => base.min(first),
            (Some(_), None) | (None, _) => 1,
        }
    }
}

/// The committed state of a run and the length of its inbox.
pub(crate) fn load_state(store: &dyn Store, run: RunId) -> Result<Option<(RunState, u64)>, Error> {
    let loaded = store.load(keys::run_key(run))?;
    let value = |part: Part| {
        let key = keys::part(run, part);
        loaded.values.iter().find(|(found, _)| *found == key).map(|(_, value)| value.clone())
    };
    let state = RunState::decode(value).map_err(|source| Error::Decode { run, source })?;
    Ok(state.map(|state| (state, loaded.inbox_len)))
}

/// The first record of a run.
pub(crate) fn read_first(store: &dyn Store, run: RunId) -> Result<First, Error> {
    let records = store.read_journal(Stream::Run(keys::run_key(run)), 0, 1)?;
    let no_such_run = || Error::NoSuchRun(run.to_string());
    let record = records.into_iter().next().ok_or_else(no_such_run)?;
    let payload = record.payload.ok_or_else(no_such_run)?;
    match Record::from_bytes(&payload).map_err(|source| Error::Decode { run, source })? {
        Record::Submitted(submission) => {
            Ok(First { submission: Arc::from(submission), at: Millis(record.at_ms) })
        }
        Record::Moved(_) => Err(no_such_run()),
    }
}

/// A transition's record; none if it was redacted.
pub(crate) fn decode_moved(run: RunId, payload: Option<Vec<u8>>) -> Result<Option<Box<model::Moved>>, Error> {
    let Some(payload) = payload else { return Ok(None) };
    match Record::from_bytes(&payload).map_err(|source| Error::Decode { run, source })? {
        Record::Moved(moved) => Ok(Some(moved)),
        Record::Submitted(_) => Ok(None),
    }
}

/// The message at a position of a run's inbox.
pub(crate) fn inbox_message(store: &dyn Store, run: RunId, position: u64) -> Option<Message> {
    let records = store.read_journal(Stream::Inbox(keys::run_key(run)), position, 1).ok()?;
    match Item::from_bytes(records.into_iter().next()?.payload.as_deref()?).ok()? {
        Item::Steering(message) | Item::FollowUp(message) => Some(message),
        Item::Control(_) => None,
    }
}

/// What a session's next run starts from: the context of its newest run, as that run left it.
pub(crate) fn session_context(store: &dyn Store, newest: RunId) -> Result<Vec<Entry>, Error> {
    let mut runs = vec![newest];
    let mut states = Vec::new();
    // Back to the run whose context does not reach further back; at most one step for each run of the session.
    while let Some(&run) = runs.last() {
        let Some((state, _)) = load_state(store, run)? else { break };
        let from = state.core.context_from;
        states.push(from);
        match (from.base, from.previous) {
            (None, Some(previous)) => runs.push(previous),
            (Some(_), _) | (None, None) => break,
        }
    }
    let mut context = Context::default();
    for (run, from) in runs.into_iter().zip(states).rev() {
        let first = read_first(store, run)?;
        for (n, message) in (0u32..).zip(&first.submission.base) {
            context.push(Entry { at: EntryRef { run, seq: 0, n }, message: Arc::new(message.clone()) });
        }
        let mut fold = Fold::new(first.submission, false);
        let mut next = 1;
        loop {
            let records = store.read_transcript(Stream::Run(keys::run_key(run)), next, PAGE)?;
            let Some(last) = records.last() else { break };
            next = last.head.seq.saturating_add(1);
            for record in records {
                let seq = record.head.seq;
                let Some(moved) = decode_moved(run, record.payload)? else { continue };
                for entry in fold.apply(seq, &moved, &|at| inbox_message(store, run, at))?.entries {
                    context.push(entry);
                }
                if let Some(base) = moved.input.fact.base()
                    && from.base == Some(seq)
                {
                    context.replace(run, seq, base, from.first);
                }
            }
        }
    }
    Ok(context.into_entries())
}
