//! Arbitrary bytes as a segment of a journal: opening and verifying answer, whatever the bytes are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::JournalReader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(dir) = tempfile::tempdir() else { return };
    let journal = dir.path().join("journal");
    if std::fs::create_dir(&journal).is_err() || std::fs::write(journal.join("00000000.seg"), bytes).is_err() {
        return;
    }
    if let Ok(reader) = JournalReader::open(dir.path()) {
        let _ = reader.each(|_, _| {});
    }
    let _ = store::verify(dir.path());
});
