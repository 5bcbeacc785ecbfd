//! Why a run is where it is, in one sentence, and the command that moves it.
//!
//! Owns what a person reads first about a run that does not go on. It must never name a command that does not
//! help.

use model::inbox::Item;
use model::phase::ParkReason;
use model::state::{CallStatus, Core};
use model::{Budget, Label, Outcome, Phase, RunId, Scope, Shortage};
use serde::Serialize;
use store::{Store, Stream};

use super::doing::{Doing, named_calls};
use super::names::call_name;
use super::recent::{BlockedLoop, Recent};
use super::routes::RoutesView;
use super::status::{calls_in, turn_of};
use super::words::quoted;
use super::{PAGE, Snapshot};
use crate::budgets::{BatchFacts, CapReached, amount};
use crate::driver::read_first;
use crate::error::Error;
use crate::job::JobFacts;
use crate::keys;

/// Why a run is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// What it waits for, or how and why it ended.
    pub sentence: String,
    /// The command that moves it; none if it moves by itself, or has ended.
    pub command: Option<String>,
}

impl Why {
    fn new(sentence: impl Into<String>, command: impl Into<Option<String>>) -> Self {
        Self { sentence: sentence.into(), command: command.into() }
    }
}

/// Why a run is where it is. `has_owner` says that an engine drives the runs of this store.
pub fn why(store: &dyn Store, run: RunId, has_owner: bool) -> Result<Why, Error> {
    let snapshot = Snapshot::load(store, run)?;
    let recent = Recent::read(store, &snapshot)?;
    let resume = || format!("sprag resume {run}");
    let is_ended = matches!(snapshot.core().phase, Phase::Done { .. });
    let mut why = if !is_ended && !has_owner && has_decision(store, &snapshot)? {
        Why::new("A decision was accepted for it and waits for an engine to carry it out", resume())
    } else {
        match &snapshot.core().phase {
            Phase::Done { outcome, reason } => ended(&snapshot, *outcome, reason.as_ref()),
            Phase::Parked { reason, .. } => parked(store, &snapshot, &recent, reason, has_owner)?,
            Phase::Queued => queued(store, &snapshot, has_owner)?,
            Phase::InjectPending { .. }
            | Phase::Stream { .. }
            | Phase::Dispatch { .. }
            | Phase::ExecuteTools { .. }
            | Phase::Finalize { .. }
            | Phase::Compact { .. } => live(&snapshot, &recent, has_owner),
        }
    };
    if let Some(blocked) = &recent.blocked_loop {
        let BlockedLoop { detector, count } = blocked;
        let text = format!("; the loop detector {detector} blocked its last calls at a count of {count}");
        why.sentence.push_str(&text);
    }
    if !is_ended {
        let routes = RoutesView::of(store, run, snapshot.core())?;
        why.sentence.push_str(&routes.cooling_text(snapshot.core()));
    }
    why.sentence.push('.');
    Ok(why)
}

/// A decision of a person was accepted and not yet taken.
fn has_decision(store: &dyn Store, snapshot: &Snapshot) -> Result<bool, Error> {
    let mut next = snapshot.core().cursors.control;
    while next < snapshot.inbox_len {
        let records = store.read_journal(Stream::Inbox(keys::run_key(snapshot.run)), next, PAGE)?;
        let Some(last) = records.last() else { break };
        next = last.head.seq.saturating_add(1);
        let is_control = |payload: &Vec<u8>| matches!(Item::from_bytes(payload), Ok(Item::Control(_)));
        if records.iter().filter_map(|record| record.payload.as_ref()).any(is_control) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ended(snapshot: &Snapshot, outcome: Outcome, reason: Option<&Label>) -> Why {
    let how = match outcome {
        Outcome::Completed => "It completed",
        Outcome::Failed => "It failed",
        Outcome::Blocked => "It needs action outside before it could be tried again",
        Outcome::Cancelled => "It was cancelled",
        Outcome::TimedOut => "It ran out of time",
    };
    let turns = match snapshot.core().spent.turns {
        1 => "1 turn".to_owned(),
        turns => format!("{turns} turns"),
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Why::new(format!("{how} after {turns}{reason}"), None)
}

fn parked(
    store: &dyn Store,
    snapshot: &Snapshot,
    recent: &Recent,
    reason: &ParkReason,
    has_owner: bool,
) -> Result<Why, Error> {
    let run = snapshot.run;
    Ok(match reason {
        ParkReason::Approval => approval(snapshot, recent, "It waits").unwrap_or_else(|| {
            // A parked batch always holds the call that it waits for.
            Why::new("It waits for an approval", format!("sprag show {run}"))
        }),
        ParkReason::UnknownOutcome => unknown_outcome(snapshot, recent),
        ParkReason::Quarantine => {
            let sentence = format!("It is held back, because {}", quarantine(snapshot.core()));
            Why::new(sentence, format!("sprag release {run}"))
        }
        ParkReason::Budget(shortage) => budget(store, snapshot, *shortage)?,
        ParkReason::Missing(label) => {
            let verb = if has_owner { "release" } else { "resume" };
            let sentence = format!("It needs something that is not there ({label}); put it back first");
            Why::new(sentence, format!("sprag {verb} {run}"))
        }
    })
}

/// What a quarantined run did.
pub(super) fn quarantine(core: &Core) -> String {
    let verdict = core.crashes.verdict();
    // A quarantine keeps what it was decided from.
    verdict.map_or_else(|| "it ended the engine again and again".to_owned(), |verdict| verdict.to_string())
}

/// The first call that waits for approval.
fn approval(snapshot: &Snapshot, recent: &Recent, who: &str) -> Option<Why> {
    let calls = calls_in(&snapshot.state, CallStatus::AwaitingApproval);
    let first = *calls.first()?;
    let turn = turn_of(&snapshot.core().phase).unwrap_or_default();
    let reason = recent.asked(first).map(|reason| format!(": {reason}")).unwrap_or_default();
    let names = named_calls(snapshot.run, turn, &calls, recent);
    let command = format!("sprag approve {}", call_name(snapshot.run, turn, first));
    Some(Why::new(format!("{who} for a person to approve {names}{reason}"), command))
}

fn unknown_outcome(snapshot: &Snapshot, recent: &Recent) -> Why {
    let calls = calls_in(&snapshot.state, CallStatus::Unknown);
    let turn = turn_of(&snapshot.core().phase).unwrap_or_default();
    let names = named_calls(snapshot.run, turn, &calls, recent);
    let first = call_name(snapshot.run, turn, calls.first().copied().unwrap_or_default());
    Why::new(
        format!(
            "It waits for a person to say what became of {names}, which may have run when its engine ended: \
             ran, failed, retry or undone"
        ),
        // Pasted as it is, it is refused with the choices: only who has looked may choose.
        format!("sprag resolve {first} --as 'ran|failed|retry|undone' --reason '...'"),
    )
}

/// The command raises the cap by as much again, and by no less than what is short.
fn budget(store: &dyn Store, snapshot: &Snapshot, shortage: Shortage) -> Result<Why, Error> {
    let Shortage { budget, scope, lacks } = shortage;
    if scope == Scope::Batch {
        return batch_budget(store, snapshot.run, shortage);
    }
    let Core { limits, spent, .. } = snapshot.core();
    let (used, cap) = match budget {
        Budget::Turns => (spent.turns, limits.turns),
        Budget::Calls => (spent.model_calls, limits.calls),
        Budget::Tokens => (spent.usage.tokens(), limits.tokens),
        Budget::Usd => (spent.usage.usd_micros, limits.usd_micros),
    };
    let more = amount(budget, cap.max(lacks));
    let command = format!("sprag extend {} --{} {more}", snapshot.run, budget.name());
    let reached = CapReached { budget, used, cap, enough: cap.saturating_add(cap.max(lacks)) };
    Ok(Why::new(format!("It {reached}"), command))
}

/// A batch that was read from no file is raised by the program that submitted it.
fn batch_budget(store: &dyn Store, run: RunId, shortage: Shortage) -> Result<Why, Error> {
    let first = read_first(store, run)?;
    let facts = JobFacts::of(&first.submission).map_err(|error| Error::Job(format!("run {run}: {error}")))?;
    let batch = facts.batch.unwrap_or_default();
    let reached = CapReached::of(store, &batch, shortage)?;
    let jobs = BatchFacts::read(store, &batch)?.jobs;
    let command = (!jobs.is_empty()).then(|| {
        let name = if jobs == batch { String::new() } else { format!(" --batch {}", quoted(&batch)) };
        format!("sprag batch run {}{name} {}", quoted(&jobs), reached.flag())
    });
    Ok(Why::new(format!("Its batch {batch} {reached}"), command))
}

fn queued(store: &dyn Store, snapshot: &Snapshot, has_owner: bool) -> Result<Why, Error> {
    let run = snapshot.run;
    if let Some(first) = ahead(store, snapshot)? {
        let session = &snapshot.meta.session;
        let sentence = format!("It waits for run {first}, which goes first in session {session}");
        return Ok(Why::new(sentence, format!("sprag why {first}")));
    }
    Ok(if has_owner {
        Why::new("It waits for one of the engine's slots", None)
    } else {
        Why::new("It has not started, and no engine works on this store", format!("sprag resume {run}"))
    })
}

/// The run of the same session that holds its lane.
fn ahead(store: &dyn Store, snapshot: &Snapshot) -> Result<Option<RunId>, Error> {
    if snapshot.meta.session == snapshot.run.to_string() {
        return Ok(None);
    }
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = store.scan(keys::LIVE, after.as_deref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(None) };
        after = Some(last.clone());
        for run in page.iter().filter_map(|(key, _)| keys::run_of(key)) {
            if run == snapshot.run {
                return Ok(None);
            }
            if Snapshot::load(store, run)?.meta.session == snapshot.meta.session {
                return Ok(Some(run));
            }
        }
    }
}

fn live(snapshot: &Snapshot, recent: &Recent, has_owner: bool) -> Why {
    let doing = Doing { snapshot, recent }.text();
    let doing = match &snapshot.core().abort {
        Some(abort) => format!("{doing}, and ends after that: {}", abort.reason),
        None => doing,
    };
    if !has_owner {
        let sentence = format!("It was left {doing}, and no engine works on this store");
        return Why::new(sentence, format!("sprag resume {}", snapshot.run));
    }
    let running = format!("It is {doing}");
    approval(snapshot, recent, &format!("{running}, and waits")).unwrap_or_else(|| Why::new(running, None))
}
