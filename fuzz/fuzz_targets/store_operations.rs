//! Arbitrary operations on two stores: the oracle in memory and the journal give the same answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::{JournalStore, MemoryStore, Options};

fuzz_target!(|bytes: &[u8]| {
    let Ok(dir) = tempfile::tempdir() else { return };
    let Ok(journal) = JournalStore::open(dir.path(), Options::default()) else { return };
    store::conformance::compare(bytes, &MemoryStore::new(), &journal);
});
