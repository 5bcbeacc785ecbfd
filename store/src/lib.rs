//! The store: an append-only journal that is the truth, and the committed state (in sled) that it implies.
//!
//! Owns framing, chaining, durability, fencing and the committed key/value state. It must never know what a
//! run means: it compares heads, checks preconditions and writes bytes. No agent semantics, no clock, no
//! runtime.
//!
//! A commit is one frame, whatever it touches, and carries the exact puts that it causes.

mod api;
mod bytes;
mod catalog;
pub mod conformance;
pub mod faulty;
mod frame;
pub mod fs;
mod heads;
mod index;
mod journal;
mod keys;
pub mod limits;
mod link;
mod lock;
mod memory;
mod piece;
mod purge;
mod random;
mod reader;
mod recover;
mod remains;
mod replay;
mod rewrite;
mod salvage;
mod scan;
mod segment;
mod state;
mod tail;
#[cfg(test)]
mod tests;
mod verify;
mod window;
mod writer;

pub use api::{
    Commit, Durability, Epoch, Error, Hash, Head, Loaded, Pairs, Purge, Purged, Put, Receipt, Record,
    RecordKind, Require, RunKey, Seq, Store, Stream, Ticket,
};
pub use frame::Point;
pub use journal::{CLOSED, JournalStore, OPENED, Opening, Options, Stats};
pub use keys::{is_reserved, run_prefix};
pub use lock::network_file_system;
pub use memory::MemoryStore;
pub use purge::{PURGED, RECLAIMED, REWRITTEN, purged_by};
pub use random::boot_id;
pub use reader::JournalReader;
pub use recover::Cut;
pub use remains::{Remains, Torn};
pub use salvage::{Mended, SALVAGED, Salvaged, salvage, salvage_on};
pub use state::{SledHook, SledStep, StateHealth, StateOptions, frames_known};
pub use verify::{Finding, Report, verify, verify_on};
