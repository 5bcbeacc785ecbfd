//! The words about a run that gave up.
//!
//! Owns the reason that its end carries: what happened how often, and the next step, within a label. It must never decide.

use super::branch::Branch;
use super::counters::{Retries, Streak};
use crate::ids::{Label, Millis};
use crate::input::{Failure, FailureKind};

/// The reason of an end that `branch` has brought about: `rate_limit 4 times over 60 s; wait, or add a profile`.
pub fn gave_up(branch: Branch, failure: &Failure, retries: &Retries, at: Millis, has_effects: bool) -> Label {
    let kind = failure.kind.name();
    let message = failure.message.as_str();
    let streak = retries.streak.filter(|streak| streak.failures > 1);
    let words = match streak {
        Some(streak) => counted(&streak, at),
        None if message.is_empty() => kind.to_owned(),
        None => format!("{kind}: {message}"),
    };
    let text = match prefix(branch) {
        Some(prefix) if prefix == kind => words,
        Some(prefix) => format!("{prefix}: {words}"),
        None => words,
    };
    let step = next_step(branch, failure.kind, has_effects);
    if step.is_empty() {
        return Label::from(text.as_str());
    }
    // The words of a single failure that leave no room for the step stand alone.
    let room = Label::BYTES_MAX.saturating_sub(step.len() + "; ".len());
    Label::from(format!("{}; {step}", cut(&text, room)).as_str())
}

/// What stands in the transcript in place of an answer that did not come.
pub fn shown_text(branch: Branch, failure: &Failure, has_effects: bool) -> String {
    let words = failure.message.as_str();
    let said = if words.is_empty() { failure.kind.name() } else { words };
    if branch == Branch::IncompleteTurn && has_effects {
        format!(
            "The model gave no answer that can be read ({said}). Calls of this run have had effects: verify \
             what was done before you ask for it again."
        )
    } else if branch == Branch::IncompleteTurn {
        format!("The model gave no answer that can be read ({said}). Ask again.")
    } else if branch == Branch::ContextOverflow || branch == Branch::RequestTooLarge {
        format!("The context does not fit the model ({said}). Start a fresh session.")
    } else {
        said.to_owned()
    }
}

fn counted(streak: &Streak, at: Millis) -> String {
    let Streak { kind, times, failures, since } = streak;
    let seconds = at.since(*since).div_ceil(1_000);
    let others = failures.saturating_sub(*times);
    match others {
        0 => format!("{} {times} times over {seconds} s", kind.name()),
        1.. => format!("{} {times} of {failures} failures over {seconds} s", kind.name()),
    }
}

/// The kind of the end, where it is not that of the failure.
fn prefix(branch: Branch) -> Option<&'static str> {
    if branch == Branch::IdleBreaker {
        return Some(Branch::RetryLimit.name());
    }
    let is_typed =
        [Branch::RetryLimit, Branch::IncompleteTurn, Branch::ContextOverflow, Branch::RequestTooLarge];
    is_typed.contains(&branch).then(|| branch.name())
}

/// What a person may do; nothing where the failure's own words say it.
fn next_step(branch: Branch, kind: FailureKind, has_effects: bool) -> &'static str {
    if branch == Branch::IncompleteTurn {
        return if has_effects { "verify what was done" } else { "ask again" };
    }
    if branch == Branch::RequestTooLarge {
        return "shorten the request";
    }
    match kind {
        FailureKind::RateLimit => "wait, or add a profile",
        FailureKind::Overloaded | FailureKind::ServerError | FailureKind::Timeout => "try later",
        FailureKind::Idle => "raise idle_timeout_s",
        FailureKind::Connection | FailureKind::TlsCertificate => "check the network",
        FailureKind::Auth | FailureKind::AuthPermanent | FailureKind::SessionExpired => "check the key",
        FailureKind::Billing => "check the account",
        FailureKind::ModelNotFound => "check the model",
        FailureKind::ContextOverflow => "start a fresh session",
        FailureKind::ThinkingUnsupported => "set thinking off",
        FailureKind::ImageSize => "send a smaller image",
        FailureKind::RoleOrdering => "start a fresh session",
        FailureKind::Format
        | FailureKind::Empty
        | FailureKind::ReasoningOnly
        | FailureKind::Missing
        | FailureKind::Silent
        | FailureKind::Script
        | FailureKind::Unknown => "",
    }
}

/// The beginning of a text, in at most so many bytes.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let room = bytes_max.saturating_sub("…".len());
    let end = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}
