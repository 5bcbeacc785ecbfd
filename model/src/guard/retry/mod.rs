//! What follows from a model call: again, otherwise, elsewhere, or not at all.
//!
//! Owns the counters of a run's retries ([`Retries`]) and the one decision about them ([`decide()`]). A retry
//! re-issues the *model call* on the committed transcript; it must never touch a committed tool result, so
//! nothing that ran runs again. Its contract, for every outcome of a call:
//!
//! 1. The caller tells what came ([`CallOutcome`]) and what else could be asked ([`Context`]).
//! 2. [`Retries::judge`] notes it, decides by the flat list of branches, and counts the decision: one counter
//!    and one cap a branch, one charge a retry.
//! 3. The caller carries the [`Action`] out and journals the [`Decision`].
//!
//! The numbers are those of the reference (2026.8.1), which keeps them in memory; here all are committed.

mod backoff;
mod branch;
mod breaker;
mod counters;
mod decide;
mod failover;
mod liveness;
mod said;
mod thinking;
mod words;

pub use backoff::{overload_chain_ms, passing_ms, same_model_rate_limit_ms};
pub use branch::{Action, Branch, CallOutcome, CompactCause, Context, Decision};
pub use breaker::{IDLE_BREAKER_MAX, idle_breaker};
pub use counters::{Chain, Counts, Instruction, Retries, Streak, Thinking, charges_max};
pub use decide::decide;
pub use failover::{FailoverReason, Stage, Suspect, Verdict, verdict};
pub use liveness::Liveness;
pub use said::{RateWindow, Said, retry_after_ms};
pub use thinking::ThinkingLevel;
pub use words::{gave_up, shown_text};
