//! Commits a transition and takes in what it made visible.
//!
//! Owns the moment between `advance` and the next effect. When this file's `apply` returns, the new state is linked in
//! the store; if an effect that follows from it reaches outside, it is durable.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use model::encode::{Change, Part};
use model::input::RecoveryClass;
use model::{Effect, Fact, Input, LOGIC_VERSION, Moved, Phase, RunState, ToolResult};
use model::{advance, needs_barrier};
use store::{Commit, Durability, Hash, Put, RecordKind, Require, Stream};

use super::Driver;
use crate::crash_point;
use crate::error::Error;
use crate::keys;
use crate::profiles::HealthChange;

/// Wait between tries while the disk refuses to take a commit.
const DISK_RETRY: Duration = Duration::from_secs(1);
/// Code of a transition in raw listings.
pub(crate) const KIND_MOVED: u8 = 1;

impl Driver {
    /// Applies a fact: advances, commits, publishes. A fact that has no meaning any more is dropped.
    pub(super) async fn apply(&mut self, effect: Option<Effect>, fact: Fact) -> Result<(), Error> {
        self.sync_workspace(&fact).await;
        let mut input = Input { at: self.shared.clock.now(), waiting: Default::default(), fact };
        loop {
            self.look_into_inbox()?;
            input.waiting = self.inbox.waiting(&self.state.core.cursors);
            input.at = self.shared.clock.now();
            let step = match advance(self.state.clone(), &input) {
                Ok(step) => step,
                // What was asked for must have a meaning; what came by itself may be too late.
                Err(rejected) if effect.is_some() => return Err(Error::Internal(rejected.to_string())),
                Err(rejected) => {
                    tracing::debug!(run = %self.run, %rejected, "dropped");
                    return Ok(());
                }
            };
            let (after, moved) = step.into_record(input);
            match self.commit(&after, &moved).await {
                Ok(is_durable) => return self.take_over(effect, after, moved, is_durable).await,
                // Something was accepted that this step has not seen: it is decided again with it.
                Err(store::Error::InboxMoved { .. }) => {
                    self.read_inbox()?;
                    input = moved.input;
                }
                // The session has another newest run than the one that this run was to continue: it is admitted again.
                Err(store::Error::Changed { .. }) => return self.take_back(None),
                // A barrier failed and took back what this step builds on: what happened since is told again.
                Err(store::Error::Void | store::Error::Conflict { .. }) => {
                    return self.take_back(effect.map(|effect| (effect, moved.input.fact)));
                }
                Err(
                    error @ (store::Error::NoSpace { .. }
                    | store::Error::ReadOnly { .. }
                    | store::Error::Io { .. }),
                ) => {
                    tracing::warn!(run = %self.run, %error, "the run waits for the disk");
                    tokio::select! {
                        // What was not committed is found again by whoever resumes the run.
                        () = self.shared.stop.cancelled() => return Err(error.into()),
                        () = tokio::time::sleep(DISK_RETRY) => input = moved.input,
                    }
                }
                Err(error @ store::Error::Ceiling { .. }) => {
                    let fact = self.call_refused(error, effect.as_ref(), moved.input.fact)?;
                    let Some(fact) = fact else { return Ok(()) };
                    input = Input { fact, ..moved.input };
                }
                Err(store::Error::TooLarge { what, got, max }) => {
                    let words = format!("{what} is {got} bytes, at most {max} fit in the journal");
                    input = Input { fact: smaller(moved.input.fact, &words)?, ..moved.input };
                }
                Err(error) => {
                    if let store::Error::Fenced { .. } = error {
                        // Another engine owns the store: nothing of this one may take effect any more.
                        self.shared.stop.cancel();
                    }
                    return Err(error.into());
                }
            }
        }
    }

    async fn commit(&mut self, after: &RunState, moved: &Moved) -> Result<bool, store::Error> {
        self.hold_reservation(after);
        let verdict = self.verdict(after, &moved.input.fact);
        let health = match &verdict {
            Some(verdict) => self.shared.profiles.change(verdict).await,
            None => None,
        };
        // What other runs go by is not taken back.
        let is_durable = health.is_some() || needs_barrier(&self.effects, after);
        let mut encoded = self.encoded.clone();
        let changes = encoded.update(&self.state, after);
        let is_done = matches!(after.core.phase, Phase::Done { .. });
        let run = keys::run_key(self.run);
        let mut puts = self.puts(changes, moved, is_done);
        puts.extend(health.as_ref().map(HealthChange::put));
        let commit = Commit {
            stream: Stream::Run(run),
            expect_seq: after.core.seq,
            epoch: self.shared.epoch,
            at_ms: after.core.clock.0,
            logic_version: LOGIC_VERSION,
            kind: RecordKind {
                code: KIND_MOVED,
                carries_messages: moved.carries_messages(),
                ends_stream: is_done,
            },
            payload: moved.to_bytes(),
            puts,
            state_hash: Hash(encoded.state_hash()),
            requires: self.requires(after, moved, is_done),
            durability: if is_durable { Durability::Durable } else { Durability::Ordered },
        };
        let ticket = self.shared.store.commit(commit);
        if is_durable {
            ticket.await?;
        } else if let Some(Err(error @ store::Error::TooLarge { .. })) = ticket.now_or_never() {
            // It never reached the writer. Whatever else befalls an ordered commit is met at the next barrier.
            return Err(error);
        }
        health.into_iter().for_each(HealthChange::keep);
        self.encoded = encoded;
        Ok(is_durable)
    }

    /// Nothing that was acknowledged is left behind by an end, and an end gets its place in its batch. The batch counts
    /// what the run counts. A run continues the newest run of its session, which must not be purged at that moment.
    fn requires(&self, after: &RunState, moved: &Moved, is_done: bool) -> Vec<Require> {
        let mut requires = self.charges(after);
        if let Fact::Admitted(admission) = &moved.input.fact {
            let key = keys::session(&self.fold.submission().session);
            let value = admission.previous.map(|previous| previous.0.to_vec());
            requires.push(Require::Holds { key, value });
        }
        if is_done {
            requires.push(Require::InboxLen { run: keys::run_key(self.run), len: self.inbox.len() });
            let place = |batch: &String| Require::Ceiling { key: keys::ends(batch), add: 1, max: u64::MAX };
            requires.extend(self.facts.batch.as_ref().map(place));
        }
        requires
    }

    fn puts(&self, changes: Vec<Change>, moved: &Moved, is_done: bool) -> Vec<Put> {
        let mut puts: Vec<Put> = changes
            .into_iter()
            .map(|(part, value): (Part, _)| Put { key: keys::part(self.run, part), value })
            .collect();
        if let Fact::Admitted(_) = moved.input.fact {
            let key = keys::session(&self.fold.submission().session);
            puts.push(Put { key, value: Some(self.run.0.to_vec()) });
        }
        if let Fact::ToolReturned { result, .. } = &moved.input.fact
            && let Some(name) = blob_name(result)
        {
            puts.push(Put { key: keys::blob(&name, self.run), value: Some(Vec::new()) });
        }
        if is_done {
            puts.push(Put { key: keys::live(self.submitted_at.0, self.run), value: None });
        }
        puts
    }

    /// The transition is linked: the driver's own view follows, and observers learn of it.
    async fn take_over(
        &mut self,
        effect: Option<Effect>,
        after: RunState,
        moved: Moved,
        is_durable: bool,
    ) -> Result<(), Error> {
        let seq = after.core.seq;
        self.leave_over(&moved.input.fact, &after);
        let is_result = matches!(moved.input.fact, Fact::ToolReturned { .. });
        if after.core.spent.turns > self.state.core.spent.turns {
            self.shared.turns.fetch_add(1, Ordering::Relaxed);
        }
        if self.state.core.crashes.is_tried && !after.core.crashes.is_tried {
            self.shared.suspects.pass(self.run);
        }
        self.effects = after.effects();
        self.state = after;
        self.settle_reservation();
        let inbox = &self.inbox;
        let shown = self.fold.apply(seq, &moved, &|position| inbox.message(position))?;
        for entry in shown.entries {
            self.context.push(entry);
        }
        if let Some(base) = moved.input.fact.base()
            && self.state.core.context_from.base == Some(seq)
        {
            self.context.replace(self.run, seq, base, self.state.core.context_from.first);
        }
        self.inbox.forget(&self.state.core.cursors);
        if is_durable {
            self.unsynced = Vec::new();
            self.untold.retain(|(effect, _)| self.effects.contains(effect));
            self.sweep_calls();
        } else if let Some(effect) = effect {
            self.unsynced.push((effect, moved.input.fact));
        }
        if is_result {
            crash_point::reach("after the result's commit");
        }
        self.watched.set_committed(seq);
        for event in shown.events {
            self.emit(event).await;
        }
        Ok(())
    }

    /// Notes what calls leave that nobody needs once this transition is durable: each its own directory when it has its
    /// result, and all of them when the run ends.
    fn leave_over(&mut self, fact: &Fact, after: &RunState) {
        let Some(dir) = &self.shared.dir else { return };
        if let Phase::Done { .. } = after.core.phase {
            let dirs = [keys::calls_dir(dir, self.run), crate::spool::run_dir(dir, self.run)];
            self.left_over.extend(dirs.into_iter().filter(|dir| dir.exists()));
        } else if let (Fact::ToolReturned { call, .. }, Phase::ExecuteTools { turn, .. }) =
            (fact, &self.state.core.phase)
            && let Some(batch) = &self.state.batch
            && let Some(model::state::Call { class: RecoveryClass::Probe | RecoveryClass::Adoptable, .. }) =
                batch.calls.get(usize::from(*call))
        {
            self.left_over.push(keys::call_dir(dir, self.run, *turn, *call));
        }
    }

    /// Removes what calls have left whose results are durable.
    fn sweep_calls(&mut self) {
        if self.left_over.is_empty() {
            return;
        }
        let left_over = std::mem::take(&mut self.left_over);
        tokio::task::spawn_blocking(move || {
            for path in left_over {
                // A tool that kept nothing has no directory. What a crash leaves here goes with the run's own.
                let removed = std::fs::remove_file(&path);
                let _ = removed.or_else(|_| std::fs::remove_dir_all(path));
            }
        });
    }

    /// A failed barrier took back everything since the last one. What happened did happen: it is told again.
    fn take_back(&mut self, newest: Option<(Effect, Fact)>) -> Result<(), Error> {
        if let Some((effect, _)) = &newest {
            self.active.retain(|active| active != effect);
        }
        let untold = std::mem::take(&mut self.untold);
        self.untold = std::mem::take(&mut self.unsynced);
        self.untold.extend(newest);
        self.untold.extend(untold);
        // Their results are not durable after all.
        self.left_over.clear();
        self.reload()
    }

    /// Gives an event to the awaited sink. Its failure aborts the run.
    pub(super) async fn emit(&mut self, event: crate::event::Stamped) {
        if self.sink_failure.is_some() {
            return;
        }
        if let Some(sink) = &self.attached.sink
            && let Err(failure) = sink.emit(event).await
        {
            self.sink_failure = Some(failure);
        }
    }
}

/// The file in `DIR/blobs` that a result names.
fn blob_name(result: &ToolResult) -> Option<String> {
    let details = Some(&result.details).filter(|details| !details.is_empty_object())?.value();
    details.get("blob")?.as_str().map(str::to_owned)
}

/// The same fact without what does not fit into one record.
fn smaller(fact: Fact, words: &str) -> Result<Fact, store::Error> {
    if let Fact::ModelAnswered { .. } = fact {
        let failure = model::input::Failure::new(model::input::FailureKind::Format, words);
        let failure = model::input::Failure { had_text: true, ..failure };
        return Ok(Fact::ModelFailed { failure, routes: model::input::Routes::default() });
    }
    if let Fact::ToolReturned { call, recovered, result } = fact
        && result != ToolResult::error(words)
    {
        return Ok(Fact::ToolReturned { call, recovered, result: ToolResult::error(words) });
    }
    Err(store::Error::TooLarge { what: "a transition", got: 0, max: 0 })
}
