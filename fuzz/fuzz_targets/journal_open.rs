//! Arbitrary bytes as the segments of a journal: reading, verifying and opening answer, whatever the bytes are; and what
//! opens goes on: it takes a commit, and opens again with it.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use store::conformance::{commit, run_key};
use store::fs::RealFs;
use store::{JournalReader, JournalStore, Options, StateOptions, Store, Stream};

/// The first byte of an input: checksums are made right, so that what lies behind them is reached.
const MENDS: u8 = 1;
/// The same: there are two segments; the next two bytes say where the second begins.
const SPLITS: u8 = 2;
/// The same: what can be read is opened to go on, which takes a hundred times as long.
const GOES_ON: u8 = 4;
/// The stream that is committed to: no input is likely to hold it.
const NEW: Stream = Stream::Run(run_key(0xf5));

fuzz_target!(|bytes: &[u8]| {
    let Some((&flags, bytes)) = bytes.split_first() else { return };
    let Ok(dir) = tempfile::tempdir() else { return };
    let journal = dir.path().join("journal");
    if std::fs::create_dir(&journal).is_err() {
        return;
    }
    for (number, segment) in (1u64..).zip(segments(flags, bytes)) {
        let mut segment = segment.to_vec();
        if flags & MENDS != 0 {
            mend(&mut segment, number);
        }
        if std::fs::write(journal.join(format!("{number:08}.seg")), segment).is_err() {
            return;
        }
    }
    let _ = store::verify(dir.path());
    if let Ok(reader) = JournalReader::open(dir.path())
        && reader.each(|_, _| {}).is_ok()
        && flags & GOES_ON != 0
    {
        goes_on(dir.path());
    }
});

fn segments(flags: u8, bytes: &[u8]) -> Vec<&[u8]> {
    match bytes.split_first_chunk::<2>() {
        Some((at, rest)) if flags & SPLITS != 0 => {
            let (first, second) = rest.split_at(usize::from(u16::from_le_bytes(*at)).min(rest.len()));
            vec![first, second]
        }
        Some(_) | None => vec![bytes],
    }
}

/// Puts the right checksum before each block, as far as their lengths lead.
fn mend(bytes: &mut [u8], segment: u64) {
    let mut offset = 0;
    while let Some((len, rest)) = bytes.get_mut(offset..).and_then(<[u8]>::split_first_chunk_mut::<4>) {
        let len = u32::from_le_bytes(*len) as usize;
        let Some((crc, rest)) = rest.split_first_chunk_mut::<4>() else { return };
        let Some(content) = rest.get(..len) else { return };
        let place = [segment.to_le_bytes(), (offset as u64).to_le_bytes()].concat();
        *crc = crc32c::crc32c_append(crc32c::crc32c(&place), content).to_le_bytes();
        offset += 8 + len;
    }
}

/// A journal that can be read may still be refused, as one whose records do not continue each other. One that opens
/// takes a commit and opens again with it.
fn goes_on(dir: &Path) {
    let options = || Options {
        disk: Arc::new(RealFs),
        boot_id: [1; 16],
        linger: None,
        segment_bytes: 4 << 10,
        inline_preparation: true,
        state: StateOptions { cache_bytes: 1 << 20, ..StateOptions::default() },
        ..Options::default()
    };
    let Ok(store) = JournalStore::open(dir, options()) else { return };
    let frames = store.opening().frames;
    let Ok(epoch) = store.claim() else { return };
    let seq = store.read_journal(NEW, 0, usize::MAX).map_or(0, |records| records.len() as u64);
    let taken = store.commit(commit(epoch, NEW, seq)).wait();
    drop(store);
    let again = JournalStore::open(dir, options()).expect("what was opened once opens again");
    if let Ok(receipt) = taken {
        assert_eq!(again.opening().frames, receipt.position + 1, "after {frames}");
        let records = again.read_journal(NEW, seq, usize::MAX).expect("what was committed can be read");
        assert_eq!(records.iter().map(|record| record.head).collect::<Vec<_>>(), [receipt.head]);
    }
}
