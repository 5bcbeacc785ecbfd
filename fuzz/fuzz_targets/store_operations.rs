//! Arbitrary operations on two stores: the oracle in memory and the journal give the same answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::{JournalStore, MemoryStore, Options, StateOptions};

fuzz_target!(|bytes: &[u8]| {
    let Ok(dir) = tempfile::tempdir() else { return };
    let state = StateOptions { cache_bytes: 1 << 20, ..StateOptions::default() };
    let options = Options { state, segment_bytes: 16 << 10, ..Options::default() };
    let Ok(journal) = JournalStore::open(dir.path(), options) else { return };
    store::conformance::compare(bytes, &MemoryStore::new(), &journal);
});
