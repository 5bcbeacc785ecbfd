//! The store's named limits. Everything that can grow has its maximum here.
//!
//! Owns numbers only.

/// Most frames that one group holds.
pub const GROUP_FRAMES_MAX: usize = 1_024;
/// Most bytes that the frames of one group take, unless a single frame is larger.
pub const GROUP_BYTES_MAX: usize = 4 << 20;
/// Largest frame in bytes. Larger output belongs in a file of its own.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Size in bytes of the first segment that an open makes; each further one is twice as large.
pub const SEGMENT_BYTES_FIRST: u64 = 1 << 20;
/// Size in bytes at which segments stop doubling.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Commits that wait for the writer before producers block.
pub const WRITER_QUEUE_MAX: usize = 8_192;
/// Largest value of the committed state in bytes.
pub const VALUE_BYTES_MAX: usize = 4 << 10;
/// Largest key of the committed state in bytes.
pub const KEY_BYTES_MAX: usize = 1 << 10;
/// Items of one inbox that no run has consumed yet.
pub const INBOX_ITEMS_MAX: u64 = 1_000;
/// Streams whose newest record the writer keeps in memory; past it they are loaded again from the state.
pub const LIVE_STREAMS_MAX: usize = 65_536;
/// Sealed segments whose index stays in memory.
pub const INDEXES_MAX: usize = 16;
/// Bytes zeroed by one write while a segment is made. The kernel's cache keeps what one write brought as one
/// piece, and walks a whole piece at each later write and sync in it: larger ones make each barrier dearer.
pub const ZERO_BYTES: usize = 128 << 10;
/// Bytes of keys and values that are folded in memory while the state is rebuilt.
pub const REPLAY_BYTES_MAX: usize = 32 << 20;
/// Puts that are folded in memory while the state is rebuilt: about a second of the state's slowest measured
/// rate.
pub const REPLAY_PUTS_MAX: usize = 65_536;
