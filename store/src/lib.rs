//! The store: an append-only journal that is the truth, and the committed state (in sled) that it implies.
//!
//! Owns framing, chaining, durability, fencing and the committed key/value state. It must never know what a run
//! means: it compares heads, checks preconditions and writes bytes. No agent semantics, no clock, no runtime.
//!
//! A commit is one frame, whatever it touches, and carries the exact puts that it causes.

mod api;
pub mod conformance;
pub mod faulty;
mod keys;
pub mod limits;
mod memory;
mod state;

pub use api::{
    Commit, Durability, Epoch, Error, Hash, Head, Loaded, Put, Receipt, Record, RecordKind, Require, RunKey,
    Seq, Store, Stream, Ticket,
};
pub use keys::run_prefix;
pub use memory::MemoryStore;
pub use state::{SledHook, SledStep, StateHealth, StateOptions};
