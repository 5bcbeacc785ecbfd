//! Loop detection: has this run been making the same calls without getting anywhere?
//!
//! A [`Window`] remembers the last calls of a session as hashes and answers two questions: what do the six
//! detectors say about one more call ([`Window::verdict`]), and may this batch of calls run
//! ([`Window::admit`])? Its contract, in the order of one call batch:
//!
//! 1. [`call_facts`] turns each call into hashes; no name and no argument enters the state.
//! 2. [`Window::admit`] answers for the whole batch and changes nothing.
//! 3. Blocked: [`Window::record_vetoes`], and none of the batch runs. Admitted: [`Window::record_call`] when
//!    a call starts.
//! 4. [`classify`] reduces what came back, [`Window::record_outcome`] files it under its call.
//!
//! The thresholds are constants on purpose: admission and detection cannot drift apart. Nothing here reads a
//! clock, draws a random number, or keeps a string.

mod admission;
mod call;
mod canon;
mod compaction;
mod detect;
mod hash;
mod mask;
mod nonce;
mod outcome;
mod reason;
mod streaks;
mod text;
mod unknown;
mod warnings;
mod window;

pub use admission::{Admission, Intervention, Warning};
pub use call::{CallFacts, CallKind, PollKind, ToolKind, call_facts};
pub use compaction::CompactionWatch;
pub use detect::{Detector, Finding, Level};
pub use hash::{ActionKey, CallHash, FailureHash, ResultHash, RunHash, ToolHash, UnknownHash, WarningKey};
pub use outcome::{OutcomeFacts, Settled, ToolOutcome, classify};
pub use reason::reason;
pub use unknown::unknown_tool_name;
pub use warnings::Warnings;
pub use window::Window;

/// Calls a session's window remembers, all of its runs together.
pub const WINDOW_SLOTS_MAX: usize = 30;
/// Repetitions from which a call is warned about.
pub const WARNING_AT: u32 = 10;
/// Errors about one missing tool in a row from which the call is blocked.
pub const UNKNOWN_TOOL_AT: u32 = 10;
/// Repetitions without progress from which a call is blocked.
pub const CRITICAL_AT: u32 = 20;
/// Repetitions without progress from which any call is blocked by the global breaker.
pub const BREAKER_AT: u32 = 30;
/// How often each argument variant must have failed before it counts as churned.
pub const CHURN_VARIANT_AT: u32 = 3;
/// A warning is worth repeating once per this many further counts.
pub const WARNING_BUCKET: u32 = 10;
/// Warnings remembered for that purpose.
pub const WARNING_KEYS_MAX: usize = 256;
/// Finished calls after a compaction that, all the same, show that the loop has survived it.
pub const AFTER_COMPACTION_CALLS: u8 = 3;
