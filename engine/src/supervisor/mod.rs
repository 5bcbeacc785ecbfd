//! Commands that outlive the engine: one tiny process a call, which the lock of the call's directory says to live.
//!
//! Owns the protocol between the engine and its supervisors. It must never tell from a pid who lives: pids only serve
//! to kill, after the recorded identity was compared.
//!
//! 1. The engine commits `Started`, then makes the call's directory and its `spec`, then spawns a supervisor.
//! 2. The supervisor takes the `lock`, then looks: a `mark`, a `fence` for a newer epoch or a `spec` of another one make
//!    it end without running. Otherwise it makes what its end will need, writes the `mark`, and runs the command.
//! 3. It keeps the output, and syncs the `exit` record before it ends; with its end the lock is free.
//! 4. Whoever owns the run waits for the lock. Free: the exit record is the result; a mark alone is unknown; neither
//!    means that it did not run, once a `fence` keeps a supervisor that comes late from running.

mod child;
mod command;
mod spawn;
mod spec;
mod spool;
mod sys;
mod watch;

pub(crate) use child::is_asked;
pub use child::supervise_if_asked;
pub(crate) use spawn::{Supervisors, start};
pub(crate) use spec::{COMMAND_BYTES_MAX, EndedBy, Exit, OUTPUT, Spec, Status};
pub(crate) use spool::{read_ends, read_live};
pub(crate) use watch::{Standing, Watch, ask_to_end, settle};
