//! Retry: what is done about a model call that did not bring an answer.
//!
//! Owns how a decision of the retry guard is carried out. It must never decide itself, and it touches no result
//! of a tool: the next call is made on the transcript as it is committed.

use super::{Mover, Resumption};
use crate::guard::retry::{
    Action, Branch, CallOutcome, Context, Decision, Liveness, ThinkingLevel, gave_up, shown_text,
};
use crate::ids::Label;
use crate::input::{Failure, Routes};
use crate::message::{Message, StopReason, Usage};
use crate::phase::{CompactStage, Outcome, Phase, StreamStage};
use crate::record::Content;
use crate::state::{Abort, AbortCause};

impl Mover<'_> {
    /// Asks the guard what follows, and notes its answer for the record.
    pub(super) fn judge(
        &mut self,
        outcome: &CallOutcome<'_>,
        routes: &Routes,
        prompt_tokens: u64,
    ) -> Decision {
        let core = &mut self.state.core;
        let context = Context {
            at: self.at,
            routes,
            thinking: ThinkingLevel::named(core.thinking.as_str()),
            compacts: core.wants.compacts,
            has_side_effects: core.has_side_effects,
            last_batch: core.last_batch,
            prompt_tokens,
        };
        let decision = core.retries.judge(outcome, &context);
        self.decision = Some(decision.clone());
        decision
    }

    /// A failed call, or an answer that cannot be used.
    pub(super) fn failed(&mut self, turn: u32, attempt: u32, failure: &Failure, routes: &Routes) {
        let prompt_tokens = input_tokens(failure.usage).max(input_tokens(self.state.core.spent.reserved));
        self.settle(failure.usage);
        if self.is_aborting() {
            self.show_failure(failure, failure.message.as_str());
            return self.end_interrupted();
        }
        if !self.state.core.wants.retries {
            self.show_failure(failure, failure.message.as_str());
            return self.end_failed(Outcome::Failed, Label::from(plain(failure).as_str()));
        }
        let requested = self.state.core.retries.thinking.requested;
        let decision = self.judge(&CallOutcome::Failed(failure), routes, prompt_tokens);
        // Another profile or model is asked with the level that was asked for first.
        if let (Some(level), None) = (requested, self.state.core.retries.thinking.requested) {
            self.state.core.thinking = Label::from(level.name());
        }
        self.carry_out(turn, attempt, &decision);
        if let Action::End(liveness) = decision.action {
            self.give_up(decision.branch, failure, liveness);
        }
    }

    /// Every action but the end.
    fn carry_out(&mut self, turn: u32, attempt: u32, decision: &Decision) {
        let attempt = attempt.saturating_add(1);
        match &decision.action {
            Action::Compact(cause) => {
                let after = Resumption { turn, attempt, cause: *cause };
                return self.enter_compact(after, CompactStage::Ready);
            }
            Action::LowerThinking { to, .. } => self.state.core.thinking = Label::from(to.name()),
            Action::Fallback { model } => self.state.core.model = model.clone(),
            Action::RestartChain { model: Some(model), .. } => self.state.core.model = model.clone(),
            Action::Retry { .. }
            | Action::Truncate
            | Action::RefreshKey
            | Action::RotateProfile { .. }
            | Action::RestartChain { model: None, .. } => {}
            Action::Revise | Action::Proceed | Action::End(_) => return,
        }
        let stage = match decision.action.wait_ms() {
            0 => StreamStage::Ready,
            wait_ms => StreamStage::Backoff { until: self.at.plus(wait_ms) },
        };
        self.enter(Phase::Stream { turn, attempt, stage });
    }

    fn give_up(&mut self, branch: Branch, failure: &Failure, liveness: Liveness) {
        let core = &self.state.core;
        let has_effects = core.has_side_effects;
        let reason = gave_up(branch, failure, &core.retries, self.at, has_effects);
        let text = shown_text(branch, failure, has_effects);
        self.show_failure(failure, &text);
        self.end_failed(liveness.outcome(), reason);
    }

    /// The failed answer stands in the transcript: as the provider left it, or in these words.
    fn show_failure(&mut self, failure: &Failure, words: &str) {
        if failure.partial.is_some() {
            return self.show_answer(Content::Answer);
        }
        let text = if words.is_empty() { failure.kind.name() } else { words };
        let message: Message = self.failure_message(StopReason::Error, text.to_owned());
        let content = self.make(message);
        self.show_answer(content);
    }

    /// No summary could be made of a context that does not fit.
    pub(super) fn overflow_stands(&mut self, after: Resumption, reason: &Label) {
        let decision = self.judge(&CallOutcome::CompactionFailed, &Routes::default(), 0);
        let Action::End(liveness) = decision.action else { return self.ask_again(after) };
        let text = format!("The context does not fit the model, and could not be made smaller: {reason}");
        let message = self.failure_message(StopReason::Error, text);
        let content = self.make(message);
        self.show_answer(content);
        let reason = format!("{}; start a fresh session", decision.branch.name());
        self.end_failed(liveness.outcome(), Label::from(reason.as_str()));
    }

    /// The calls after a compaction were one and the same: nothing of the run goes on.
    pub(super) fn end_compaction_loop(&mut self) {
        let decision = self.judge(&CallOutcome::LoopAfterCompaction, &Routes::default(), 0);
        let times = crate::guard::loops::AFTER_COMPACTION_CALLS;
        let reason = format!("{}: the same call and result {times} times", decision.branch.name());
        let abort = Abort { cause: AbortCause::LoopAfterCompaction, reason: Label::from(reason.as_str()) };
        self.state.core.abort.get_or_insert(abort);
    }
}

/// Kind and words of a failure.
fn plain(failure: &Failure) -> String {
    let words = failure.message.as_str();
    let kind = failure.kind.name();
    if words.is_empty() { kind.to_owned() } else { format!("{kind}: {words}") }
}

fn input_tokens(usage: Usage) -> u64 {
    usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write)
}
