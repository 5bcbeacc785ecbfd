//! What a run can use of a person's decisions.
//!
//! Owns the refusal of a decision that would change nothing, with what the run waits for instead. It must never accept:
//! what it lets pass may still come too late.

use model::input::Extension;
use model::{ParkReason, Phase, RunState, Scope, Shortage};

use crate::error::Error;

/// Refuses a decision on a call that does not wait for it.
pub(crate) fn check_call(state: &RunState, turn: u32, call: u16, wanted: &str) -> Result<(), Error> {
    let run = state.core.run;
    let phase = &state.core.phase;
    let unparked = if let Phase::Parked { from, .. } = phase { from } else { phase };
    let of = if let Phase::ExecuteTools { turn, .. } = unparked { Some(*turn) } else { None };
    let status = state
        .batch
        .as_ref()
        .and_then(|batch| batch.calls.get(usize::from(call)))
        .filter(|_| of == Some(turn))
        .map(|call| call.status.name());
    match status {
        Some(status) if status == wanted => Ok(()),
        Some(status) => {
            let next = match status {
                "unknown" => format!("`sprag resolve {run}/{turn}.{call}` says what became of it"),
                _ => format!("see `sprag show {run}`"),
            };
            let text = format!("call {run}/{turn}.{call} is {status}, not {wanted}; {next}");
            Err(Error::Decision(text))
        }
        None => Err(Error::Decision(format!(
            "run {run} has no call {turn}.{call} in flight; see `sprag show {run}`"
        ))),
    }
}

/// Refuses a release of a run that none would let go on.
pub(crate) fn check_release(state: &RunState) -> Result<(), Error> {
    let run = state.core.run;
    let Phase::Parked { reason, .. } = &state.core.phase else {
        let text = format!("run {run} is not parked, so there is nothing to release; see `sprag why {run}`");
        return Err(Error::Decision(text));
    };
    match reason {
        ParkReason::Quarantine
        | ParkReason::Missing(_)
        | ParkReason::Budget(Shortage { scope: Scope::Batch, .. }) => Ok(()),
        ParkReason::Approval
        | ParkReason::UnknownOutcome
        | ParkReason::Budget(Shortage { scope: Scope::Run, .. }) => {
            let text = format!(
                "run {run} is parked ({reason}), and a release does not change that; see `sprag why {run}`"
            );
            Err(Error::Decision(text))
        }
    }
}

/// Refuses an extension that raises nothing.
pub(crate) fn check_extension(state: &RunState, by: Extension) -> Result<(), Error> {
    let run = state.core.run;
    if by == Extension::default() {
        let text =
            "nothing is added; name a limit and by how much it is to be raised, more than 0".to_owned();
        return Err(Error::Job(text));
    }
    let limits = &state.core.limits;
    let asked = [
        ("time", by.time_ms, limits.time_ms),
        ("usd", by.usd_micros, limits.usd_micros),
        ("tokens", by.tokens, limits.tokens),
        ("calls", by.calls, limits.calls),
        ("turns", by.turns, limits.turns),
    ];
    match asked.into_iter().find(|(_, added, limit)| *added > 0 && *limit == 0) {
        Some((name, ..)) => Err(Error::Decision(format!(
            "run {run} has no limit on {name}, so there is nothing to raise; see `sprag show {run}`"
        ))),
        None => Ok(()),
    }
}
