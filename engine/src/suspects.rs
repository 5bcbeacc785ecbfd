//! Suspects: runs that were under way when the engine ended uncleanly again, resumed one at a time.
//!
//! Owns the line in which they stand. A suspect holds the others back until what it had under way is over, or it rests;
//! everything else goes on as usual. It must never blame a run: the model does, from what is committed.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use model::{Effect, ParkReason, Phase, RunId, RunState};
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::report::Found;
use crate::runs::lock;

/// The suspects of one engine.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    line: Mutex<Line>,
    /// The one on trial has got past it, or rests.
    passed: Notify,
}

#[derive(Debug, Default)]
struct Line {
    /// All that were ever in line: each is tried once in a life.
    known: HashSet<RunId>,
    waiting: VecDeque<RunId>,
    tried: Option<RunId>,
    /// Somebody takes them from the line.
    is_served: bool,
}

/// The place of a suspect in the line. First what runs code of tools and hooks, the most blamed first, so that a culprit is
/// found in the fewest ends; then what asks a model, the least blamed first, so that ends which come from elsewhere are
/// not all blamed on the same one.
pub(crate) type Rank = (bool, u8);

/// The place of a run in the line, if it is a suspect.
pub(crate) fn rank(state: &RunState) -> Option<Rank> {
    let runs_code = |effect: &Effect| matches!(effect, Effect::RunTool { .. } | Effect::RunHook(_));
    let runs_none = !state.effects().iter().any(|effect| effect.is_in_engine() && runs_code(effect));
    // The one that was on trial is about to be blamed.
    let crashes = &state.core.crashes;
    let blames = crashes.since_turn.saturating_add(u8::from(crashes.is_tried));
    let order = if runs_none { blames } else { u8::MAX - blames };
    state.is_suspect().then_some((runs_none, order))
}

impl Suspects {
    /// The run stands in line and waits for its turn.
    pub(crate) fn is_waiting(&self, run: RunId) -> bool {
        lock(&self.line).waiting.contains(&run)
    }

    /// The run is the one on trial.
    pub(crate) fn is_tried(&self, run: RunId) -> bool {
        lock(&self.line).tried == Some(run)
    }

    /// The run was in line in this life, or is.
    pub(crate) fn is_known(&self, run: RunId) -> bool {
        lock(&self.line).known.contains(&run)
    }

    /// The run is past what it had under way, or rests: it holds nobody back any more.
    pub(crate) fn pass(&self, run: RunId) {
        let mut line = lock(&self.line);
        if line.tried == Some(run) {
            line.tried = None;
            self.passed.notify_waiters();
        }
    }

    /// Puts runs into the line; true if nobody serves it yet.
    fn join(&self, runs: &[RunId]) -> bool {
        let mut line = lock(&self.line);
        line.known.extend(runs);
        line.waiting.extend(runs);
        !std::mem::replace(&mut line.is_served, true)
    }

    /// The next to be tried; none if the line is empty, which is then no longer served.
    fn next(&self) -> Option<RunId> {
        let mut line = lock(&self.line);
        line.tried = line.waiting.pop_front();
        line.is_served = line.tried.is_some();
        line.tried
    }

    fn let_go(&self) -> VecDeque<RunId> {
        std::mem::take(&mut lock(&self.line).waiting)
    }

    async fn until_passed(&self, run: RunId) {
        loop {
            let passed = self.passed.notified();
            tokio::pin!(passed);
            // From here on a pass is not missed.
            passed.as_mut().enable();
            if !self.is_tried(run) {
                return;
            }
            passed.await;
        }
    }
}

impl Engine {
    /// Resumes suspects one at a time.
    pub(crate) fn try_alone(&self, mut suspects: Vec<(Rank, RunId)>) {
        suspects.sort_by_key(|(rank, _)| *rank);
        let runs: Vec<RunId> = suspects.into_iter().map(|(_, run)| run).collect();
        for run in &runs {
            let words = "it was under way when the engine ended uncleanly again, and goes on alone";
            self.shared().report.note(*run, None, Found::Resumed, words);
        }
        if runs.is_empty() || !self.shared().suspects.join(&runs) {
            return;
        }
        let engine = self.clone();
        // Who waits in line will move.
        let waiting = self.driving.waits();
        tokio::spawn(async move {
            engine.serve_line().await;
            drop(waiting);
        });
    }

    async fn serve_line(&self) {
        let shared = self.shared();
        while let Some(run) = shared.suspects.next() {
            self.set_going(run, true);
            if !lock(&shared.lanes).is_moving(run) {
                // Another run of its session goes first, and cannot move: nobody waits for that.
                shared.suspects.pass(run);
            }
            self.run_ready();
            tokio::select! {
                () = shared.suspects.until_passed(run) => {}
                () = shared.stop.cancelled() => return,
                () = shared.drain.cancelled() => return,
            }
            if self.is_quarantined(run) {
                // It was this one; the others are as innocent as after a first end.
                shared.suspects.let_go().into_iter().for_each(|run| self.set_going(run, false));
                self.run_ready();
            }
        }
        shared.lives.acquit(shared).await;
    }

    fn is_quarantined(&self, run: RunId) -> bool {
        let loaded = crate::driver::load_state(&*self.shared().store, run).ok().flatten();
        loaded.is_some_and(|(state, _)| {
            matches!(state.core.phase, Phase::Parked { reason: ParkReason::Quarantine, .. })
        })
    }
}
