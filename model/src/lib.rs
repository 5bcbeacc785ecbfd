//! The state machine of Sprag, pure.
//!
//! > The next effect is a function of the committed state alone; the engine commits, then performs, then
//! > commits what happened.
//!
//! 1. [`RunState::new`] makes the state of a submitted run.
//! 2. [`RunState::effects`] says what must happen next.
//! 3. The engine performs an effect and tells what happened as an [`Input`].
//! 4. [`advance()`] answers the next state and what became visible; the store commits both, and it goes on
//!    at 2.
//!
//! Nothing here does I/O, asks a clock or draws a random number; nothing panics.

pub mod advance;
pub mod answer;
pub mod effect;
pub mod encode;
pub mod guard;
pub mod ids;
pub mod inbox;
pub mod input;
pub mod limits;
pub mod message;
pub mod phase;
pub mod record;
pub mod state;

pub use advance::{Rejected, Step, advance};
pub use effect::{Effect, Source, needs_barrier};
pub use guard::budget::{Budget, Charge, Scope, Shortage};
pub use ids::{JsonText, Label, Millis, RunId};
pub use input::{Fact, Input, Submission, Waiting};
pub use message::{Block, Message, Role, ToolResult};
pub use phase::{Outcome, ParkReason, Phase};
pub use record::{Content, LOGIC_VERSION, Mark, Moved, Record};
pub use state::RunState;

/// Custom type of the message that tells the next run's model of an interruption; the name is the
/// reference's.
pub const TURN_ABORTED: &str = "openclaw:turn-aborted";
/// Custom type of the message that tells the model which files a machine crash may have lost.
pub const FILES_LOST: &str = "sprag:files-lost";
/// Custom type of the message that asks for a revision.
pub const REVISION: &str = "sprag:revision";
