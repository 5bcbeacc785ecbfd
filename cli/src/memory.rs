//! How the process keeps its memory.
//!
//! Owns one setting of the C library's allocator. It must be called before any other thread begins.

/// From so many bytes on an allocation is a mapping of its own, which is gone when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 128 << 10;

/// Lets the allocator keep as many arenas as there are cores, where it would keep eight for each: what is free in one is
/// of no use to the others, and thousands of runs may wait at once.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(
    unsafe_code,
    reason = "the C library has no other door to its allocator, and this one takes integers"
)]
pub(crate) fn keep_few_arenas() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arenas = libc::c_int::try_from(cores).unwrap_or(libc::c_int::MAX);
    // SAFETY: (1) all arguments are plain integers; (2) no other thread exists yet, so nothing allocates meanwhile;
    // (3) an allocator that refuses keeps its default, which is as correct.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_few_arenas() {}
