//! The raw response of a model call: where it is kept, and what a new owner makes of it.
//!
//! Owns the question whether a call that was in flight has to be made again. It must never take a response for that of
//! another call: the committed intent names the only one.

use model::{Effect, Fact, Label};
use store::Stream;

use super::model_call::ModelNews;
use super::{Driver, decode_moved};
use crate::error::Error;
use crate::keys;
use crate::provider::{ModelProvider, Spooled, TakenUp, Unfinished};
use crate::report::Found;
use crate::spool::{self, CallName, Spool};

/// Records after an intent that are looked through for it: a first byte, and every owner that died since.
const INTENT_WITHIN: u64 = 256;
/// Records that are read at once.
const PAGE: u64 = 8;

impl Driver {
    /// Where the response of a call is kept that this engine is about to make.
    pub(super) fn spool(&self, turn: u32, attempt: u32, request: [u8; 32]) -> Option<Spool> {
        self.spool_of(CallName { run: self.run, turn, attempt, epoch: self.shared.epoch.0, request })
    }

    fn spool_of(&self, name: CallName) -> Option<Spool> {
        self.shared.dir.as_deref().map(|dir| Spool::of(dir, name))
    }

    /// Takes up the call that a dead engine had in flight. False if nothing is left of it, and it has to be made again.
    pub(super) fn take_up_call(&mut self, turn: u32, attempt: u32) -> Result<bool, Error> {
        let Some((spool, kept)) = self.kept_of_call(turn, attempt)? else { return Ok(false) };
        let Ok(provider) = self.shared.models.resolve(self.model_name(), &self.config()) else {
            return Ok(false);
        };
        let Some(taken) = self.taken_up(&*provider, spool.clone(), kept) else { return Ok(false) };
        let (stream, sought) = match taken {
            TakenUp::Answered(stream) => (stream, Found::Collected),
            TakenUp::GoesOn(stream) => (stream, Found::Adopted),
        };
        self.active.push(Effect::CallModel { turn, attempt });
        let mut call = self.under_way((turn, attempt), &*provider, stream, Some(spool));
        // A complete answer is found again too.
        call.is_lasting |= sought == Found::Collected;
        call.sought = Some(sought);
        self.model = Some(call);
        Ok(true)
    }

    /// What is missing to take up a call whose answer may still be found. Whoever took the run over now would have to
    /// give that answer up, so nobody does, unless the run is to end.
    pub(super) fn awaited(&mut self) -> Result<Option<Label>, Error> {
        let Some(&Effect::CallModel { turn, attempt }) = self.effects.first() else { return Ok(None) };
        if self.state.core.abort.is_some() || self.has_control() || self.is_past_deadline() {
            return Ok(None);
        }
        let Some(what) = self.missing_of_model() else { return Ok(None) };
        let Some((spool, kept)) = self.kept_of_call(turn, attempt)? else { return Ok(None) };
        let is_awaited = match self.shared.models.resolve(self.model_name(), &self.config()) {
            Err(_) => true,
            Ok(provider) => match self.taken_up(&*provider, spool, kept) {
                Some(TakenUp::GoesOn(_)) => true,
                Some(TakenUp::Answered(_)) | None => false,
            },
        };
        Ok(is_awaited.then(|| Label::from(what.as_str())))
    }

    fn taken_up(&mut self, provider: &dyn ModelProvider, spool: Spool, kept: Spooled) -> Option<TakenUp> {
        self.learn_who_pays();
        let profile = self.paying.as_deref().map(str::to_owned);
        let recording = self.recording.clone();
        provider.take_up(Unfinished { kept, spool, profile, recording }, self.cancel.clone())
    }

    /// What was kept of the call in flight.
    fn kept_of_call(&self, turn: u32, attempt: u32) -> Result<Option<(Spool, Spooled)>, Error> {
        let Some(dir) = &self.shared.dir else { return Ok(None) };
        if !spool::path(dir, self.run, turn, attempt).exists() {
            return Ok(None);
        }
        let Some((request, epoch)) = self.intent()? else { return Ok(None) };
        let spool = self.spool_of(CallName { run: self.run, turn, attempt, epoch, request });
        Ok(spool.and_then(|spool| spool.read().map(|kept| (spool, kept))))
    }

    /// Reports what became of the answer to a dead engine's call, once that is known.
    pub(super) fn note_found(&mut self, news: &ModelNews) {
        let Some(sought) = self.model.as_mut().and_then(|call| call.sought.take()) else { return };
        let (found, words) = match news {
            ModelNews::Lost => (Found::Repeated, "the model's answer was not found at its provider any more"),
            ModelNews::Nothing
            | ModelNews::Opened
            | ModelNews::Update(_)
            | ModelNews::Answered(_)
            | ModelNews::Failed(_) => (sought, words_of(sought)),
        };
        self.shared.report.note(self.run, None, found, words);
    }

    /// The call is over. What was kept of it goes once its end is durable; until then a finished answer survives what
    /// the configuration says it is to survive.
    pub(super) async fn leave_spool(&mut self, spool: Spool, fact: &Fact) {
        if !spool.path().exists() {
            return;
        }
        self.left_over.push(spool.path().to_owned());
        if self.kept.sync_spool && matches!(fact, Fact::ModelAnswered { .. }) {
            let synced = tokio::task::spawn_blocking(move || spool.sync()).await;
            if let Ok(Err(error)) = synced {
                tracing::warn!(run = %self.run, %error, "a response could not be made durable before its barrier");
            }
        }
    }

    /// Nothing came of what was kept of a call.
    pub(super) fn forget_spool(&self, turn: u32, attempt: u32) {
        if let Some(dir) = &self.shared.dir {
            // Most calls have left none.
            let _ = std::fs::remove_file(spool::path(dir, self.run, turn, attempt));
        }
    }

    /// Hash of the request in flight, and the epoch of the engine that made it.
    fn intent(&self) -> Result<Option<([u8; 32], u64)>, Error> {
        let chain = Stream::Run(keys::run_key(self.run));
        let newest = self.state.core.seq;
        let oldest = newest.saturating_sub(INTENT_WITHIN);
        let mut end = newest + 1;
        while end > oldest {
            let from = end.saturating_sub(PAGE).max(oldest);
            let limit = usize::try_from(end - from).unwrap_or(usize::MAX);
            for record in self.shared.store.read_journal(chain, from, limit)?.into_iter().rev() {
                let Some(moved) = decode_moved(self.run, record.payload)? else { continue };
                if let Fact::RequestPrepared(request) = moved.input.fact {
                    return Ok(Some((request.hash, record.epoch.0)));
                }
            }
            end = from;
        }
        Ok(None)
    }
}

/// What the report says of an answer that was found.
fn words_of(sought: Found) -> &'static str {
    if sought == Found::Collected {
        "the model's answer was complete, and was not asked for again"
    } else {
        "the model's answer went on at its provider"
    }
}
