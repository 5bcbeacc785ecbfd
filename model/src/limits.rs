//! Named bounds of a run's state.
//!
//! Owns the numbers that keep the state small. It must never hold a number that configuration may change.

/// Calls of one answer that may run; each further call gets an error result and does not.
pub const CALLS_MAX: usize = 128;
/// The most bytes of one stored part of the state.
pub const PART_BYTES_MAX: usize = 4096;
/// The most bytes of the core part.
pub const CORE_BYTES_MAX: usize = 1024;
/// The longest a compaction may take, in milliseconds. A deadline that passes meanwhile is put off by as much, once.
pub const COMPACTION_MS_MAX: u64 = 180_000;
/// Revisions that `before_finalize` may ask for in one run.
pub const REVISIONS_MAX: u8 = 3;
