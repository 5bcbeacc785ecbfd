//! The raw response of a model call: where it is kept, and what a new owner makes of it.
//!
//! Owns the question whether a call that was in flight has to be made again. It must never take a response for that of
//! another call: the committed intent names the only one.

use model::{Effect, Fact};
use store::Stream;

use super::model_call::ModelNews;
use super::{Driver, decode_moved};
use crate::error::Error;
use crate::keys;
use crate::provider::{TakenUp, Unfinished};
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
        let Some(dir) = self.shared.dir.clone() else { return Ok(false) };
        if !spool::path(&dir, self.run, turn, attempt).exists() {
            return Ok(false);
        }
        let Some((request, epoch)) = self.intent()? else { return Ok(false) };
        let name = CallName { run: self.run, turn, attempt, epoch, request };
        let Some((spool, kept)) =
            self.spool_of(name).and_then(|spool| spool.read().map(|kept| (spool, kept)))
        else {
            return Ok(false);
        };
        let Ok(provider) = self.shared.models.resolve(self.model_name(), &self.config()) else {
            return Ok(false);
        };
        self.learn_who_pays();
        let profile = self.paying.as_deref().map(str::to_owned);
        let recording = self.recording.clone();
        let call = Unfinished { kept, spool: spool.clone(), profile, recording };
        let Some(taken) = provider.take_up(call, self.cancel.clone()) else { return Ok(false) };
        let (stream, is_sought) = match taken {
            TakenUp::Answered(stream) => (stream, false),
            TakenUp::GoesOn(stream) => (stream, true),
        };
        if !is_sought {
            let words = "the model's answer was complete, and was not asked for again";
            self.shared.report.note(self.run, None, Found::Collected, words);
        }
        self.active.push(Effect::CallModel { turn, attempt });
        let mut call = self.under_way((turn, attempt), &*provider, stream, Some(spool));
        call.is_sought = is_sought;
        self.model = Some(call);
        Ok(true)
    }

    /// Reports what became of an answer that went on at its provider, once that is known.
    pub(super) fn note_found(&mut self, news: &ModelNews) {
        let Some(call) = &mut self.model else { return };
        if !std::mem::take(&mut call.is_sought) {
            return;
        }
        let (found, words) = match news {
            ModelNews::Lost => (Found::Repeated, "the model's answer was not found at its provider any more"),
            ModelNews::Nothing
            | ModelNews::Opened
            | ModelNews::Update(_)
            | ModelNews::Answered(_)
            | ModelNews::Failed(_) => (Found::Adopted, "the model's answer went on at its provider"),
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
