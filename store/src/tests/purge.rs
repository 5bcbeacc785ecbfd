//! Purges: what goes, what stays, and that no instant of it leaves anything between.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::broken_disk::BrokenDisk;
use super::{durable, open, options, run, seqs, temp_dir};
use crate::conformance::{commit, run_key};
use crate::fs::{Fs, RealFs};
use crate::{
    Commit, Epoch, Error, JournalReader, JournalStore, Options, Pairs, Purge, Purged, Put, Record,
    RecordKind, Store, Stream, run_prefix, verify,
};

/// A run of `len` records of so many bytes, with an item in its inbox, that has ended. Each record puts a value of the
/// run's own and one under a key that all runs share; the first puts a key of the run elsewhere.
fn ended(store: &dyn Store, epoch: Epoch, number: u8, len: u64, bytes: usize) -> Result<(), Error> {
    let item = commit(epoch, Stream::Inbox(run_key(number)), 0);
    for seq in 0..len {
        if seq == 1 {
            store.push_inbox(item.clone(), 0).wait()?;
        }
        let kind = RecordKind { code: 5, carries_messages: true, ends_stream: seq + 1 == len };
        let mut puts = vec![put(&own_key(number), &seq.to_le_bytes()), put(b"shared", &[number, seq as u8])];
        if seq == 0 {
            puts.push(put(&[b'k', number], b"known"));
            puts.push(put(&[b'l', number], b"live"));
        } else if kind.ends_stream {
            puts.push(Put { key: vec![b'l', number], value: None });
        }
        let payload = vec![number; bytes];
        store.commit(Commit { kind, puts, payload, ..commit(epoch, run(number), seq) }).wait()?;
    }
    Ok(())
}

fn own_key(number: u8) -> Vec<u8> {
    [run_prefix(run_key(number)).as_slice(), b"c"].concat()
}

fn put(key: &[u8], value: &[u8]) -> Put {
    Put { key: key.to_vec(), value: Some(value.to_vec()) }
}

fn of(numbers: impl IntoIterator<Item = u8>) -> Vec<Purge> {
    let purge =
        |number| Purge { run: run_key(number), puts: vec![put(&[b'p', number], b"was")], requires: vec![] };
    numbers.into_iter().map(purge).collect()
}

fn journal_bytes(dir: &Path) -> u64 {
    RealFs.list(&dir.join("journal")).unwrap().iter().map(|(_, len)| len).sum()
}

fn records(store: &dyn Store, numbers: impl IntoIterator<Item = u8>) -> Vec<Vec<Record>> {
    let streams = numbers.into_iter().flat_map(|number| [run(number), Stream::Inbox(run_key(number))]);
    streams.map(|stream| store.read_journal(stream, 0, usize::MAX).unwrap()).collect()
}

/// Everything that the state says, but for the store's own stream, which each open moves.
fn everything(store: &dyn Store) -> Pairs {
    let scan = |prefix: &[u8]| store.scan(prefix, None, usize::MAX).unwrap();
    [scan(&[]), scan(&[1, 1]), scan(&[1, 2]), scan(&[2])].concat()
}

/// Opens without the state: it is rebuilt.
fn reopen_rebuilt(dir: &Path) -> JournalStore {
    std::fs::remove_dir_all(dir.join("state")).unwrap();
    let store = open(dir);
    assert!(store.opening().rebuilt.is_some());
    store
}

#[test]
fn purging_nine_tenths_of_the_runs_gives_nine_tenths_of_the_bytes_back_and_touches_nothing_else() {
    let dir = temp_dir();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    (1..=50).for_each(|number| ended(&store, epoch, number, 6, 10_000).unwrap());
    store.commit(commit(epoch, run(99), 0)).wait().unwrap();
    store.close().unwrap();
    let full = journal_bytes(dir.path());

    let store = open(dir.path());
    let kept = records(&store, 46..=50);
    let footprint = store.footprint(&(1..=45).map(run_key).collect()).unwrap();
    let purged = store.purge(&of(1..=45)).unwrap();
    assert!(footprint.abs_diff(purged.bytes) < full / 50, "{footprint} and {purged:?}");
    assert_eq!(purged.runs, 45);
    assert_eq!(records(&store, 46..=50), kept);
    assert_eq!(records(&store, 1..=45).concat(), []);
    assert_eq!(seqs(&store, run(99)), [0]);
    assert_eq!(store.scan(b"shared", None, 9).unwrap(), [(b"shared".to_vec(), vec![50, 5])]);
    assert_eq!(store.scan(b"k", None, 99).unwrap().len(), 50);
    assert_eq!(store.scan(b"l", None, 99).unwrap(), []);
    assert_eq!(store.scan(b"p", None, 99).unwrap().len(), 45);
    assert_eq!(store.scan(&run_prefix(run_key(1)), None, 9).unwrap(), []);
    let before = everything(&store);
    store.close().unwrap();
    // Nine tenths of the runs, nine tenths of their bytes at least.
    assert!(purged.bytes * 100 >= full * 9 / 10 * 90, "{purged:?} of {full}");
    assert!(journal_bytes(dir.path()) < full - purged.bytes + 20_000);

    let report = verify(dir.path()).unwrap();
    assert_eq!((report.findings, report.tail, report.purged.len()), (vec![], None, 45));
    assert!(report.dropped >= 45 * 7);
    let store = reopen_rebuilt(dir.path());
    assert_eq!(everything(&store), before);
    assert_eq!(records(&store, 46..=50), kept);
    let reader = JournalReader::open(dir.path()).unwrap();
    assert_eq!(reader.read(run(50), 0, 99).unwrap(), kept[8]);
    let mut frames = 0;
    reader.each(|_, _| frames += 1).unwrap();
    assert!(frames >= 5 * 7);
}

#[test]
fn a_purged_run_never_begins_again() {
    let dir = temp_dir();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    ended(&store, epoch, 1, 3, 10).unwrap();
    durable(&store, epoch, run(2), 0).unwrap();
    let head = store.load(run_key(1)).unwrap().head;
    assert_eq!(store.purge(&of([1, 2])), Err(Error::NotEnded { run: run_key(2) }));
    assert_eq!(seqs(&store, run(1)), [0, 1, 2]);
    assert_eq!(store.purge(&of([1, 9])).unwrap().runs, 1);
    assert_eq!(store.purge(&of([1])), Ok(Purged::default()));
    let check = |store: &JournalStore| {
        let epoch = store.claim().unwrap();
        let loaded = store.load(run_key(1)).unwrap();
        assert_eq!((loaded.head, loaded.inbox_len, loaded.is_ended, loaded.values), (head, 0, true, vec![]));
        let conflict = Error::Conflict { stream: run(1), expected: 0, next: 3 };
        assert_eq!(durable(store, epoch, run(1), 0), Err(conflict));
        assert_eq!(durable(store, epoch, run(1), 3), Err(Error::Ended { run: run_key(1) }));
        let item = commit(epoch, Stream::Inbox(run_key(1)), 0);
        assert_eq!(store.push_inbox(item, 0).wait(), Err(Error::Ended { run: run_key(1) }));
    };
    check(&store);
    drop(store);
    check(&open(dir.path()));
    check(&reopen_rebuilt(dir.path()));
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

/// Three rounds of runs in segments of their own, of which all but one run of each is purged, then work that goes on.
fn scenario(disk: Arc<dyn Fs>, dir: &Path) -> Result<(), Error> {
    let store = JournalStore::open(dir, options(disk))?;
    let epoch = store.claim()?;
    store.purge(&of([1, 2, 4, 5]))?;
    for seq in 1..3 {
        store.commit(commit(epoch, run(10), seq)).wait()?;
    }
    store.close()
}

fn prepare(dir: &Path) {
    for round in 0..3 {
        let store = open(dir);
        let epoch = store.claim().unwrap();
        for number in 1..=3 {
            ended(&store, epoch, 3 * round + number, 3, 2_000).unwrap();
        }
        store.close().unwrap();
    }
    let store = open(dir);
    let epoch = store.claim().unwrap();
    durable(&store, epoch, run(10), 0).unwrap();
    store.close().unwrap();
}

/// Whatever was cut: what stays is whole, and each purged run is there or gone.
fn check(dir: &Path, kept: &[Vec<Record>], at: &str) {
    let store = open(dir);
    assert_eq!(verify(dir).unwrap().findings, [], "{at}");
    assert_eq!(records(&store, [3, 6, 7, 8]), kept, "{at}");
    let gone: BTreeMap<u8, bool> =
        [1, 2, 4, 5].into_iter().map(|number| (number, seqs(&store, run(number)).is_empty())).collect();
    for (number, is_gone) in &gone {
        let values = store.scan(&run_prefix(run_key(*number)), None, 9).unwrap();
        let tombs = store.scan(&[b'p', *number], None, 9).unwrap();
        assert_eq!((values.len(), tombs.len()), if *is_gone { (0, 1) } else { (1, 0) }, "{at}");
    }
    let before = everything(&store);
    store.close().unwrap();
    let store = reopen_rebuilt(dir);
    assert_eq!(everything(&store), before, "{at}");
    store.purge(&of([1, 2, 4, 5])).unwrap();
    assert_eq!(records(&store, [3, 6, 7, 8]), kept, "{at}");
    assert_eq!(store.scan(&[2], None, 9).unwrap(), [], "{at}: a segment is left to rewrite");
    store.close().unwrap();
    let report = verify(dir).unwrap();
    assert_eq!((report.findings, report.tail, report.dropped), (vec![], None, 4 * 4), "{at}");
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = temp_dir();
    std::fs::create_dir(copy.path().join("journal")).unwrap();
    for (name, _) in RealFs.list(&dir.join("journal")).unwrap() {
        std::fs::copy(dir.join("journal").join(&name), copy.path().join("journal").join(&name)).unwrap();
    }
    copy
}

#[test]
fn a_purge_may_be_cut_at_every_operation() {
    let original = temp_dir();
    prepare(original.path());
    let kept = records(&open(copy_of(original.path()).path()), [3, 6, 7, 8]);
    let operations = |scenario: &dyn Fn(Arc<BrokenDisk>, &Path)| {
        let (copy, disk) = (copy_of(original.path()), Arc::new(BrokenDisk::default()));
        scenario(Arc::clone(&disk), copy.path());
        disk.count()
    };
    let first = operations(&|disk, dir| drop(JournalStore::open(dir, options(disk)).unwrap()));
    let end = operations(&|disk, dir| scenario(disk, dir).unwrap());
    assert!(end - first > 50, "{first} to {end}");
    let mut turn = 0;
    for at in first..end {
        // Losing no unsynced sector or name is a kill; losing all or every third is a power cut.
        let losing = at % 3;
        let copy = copy_of(original.path());
        let disk = Arc::new(BrokenDisk::cut(at, at % 2 == 0));
        scenario(Arc::clone(&disk) as _, copy.path()).unwrap_err();
        disk.lose_unsynced(|| {
            turn += 1;
            losing == 1 || (losing == 2 && turn % 3 == 0)
        });
        check(copy.path(), &kept, &format!("operation {at}, losing: {losing}"));
    }
}

#[test]
fn every_flipped_bit_of_a_rewritten_segment_is_found_and_so_is_one_that_no_record_names() {
    let dir = temp_dir();
    prepare(dir.path());
    let path = crate::segment::path(&dir.path().join("journal"), 1);
    let whole = std::fs::read(&path).unwrap();
    let store = open(dir.path());
    store.purge(&of([1, 2])).unwrap();
    store.close().unwrap();
    let once = std::fs::read(&path).unwrap();
    assert!(once.len() < whole.len());
    // Each byte of the heads and of the footer, and of the payloads a part.
    for offset in (0..once.len()).filter(|offset| offset % 5 == 0 || offset % 2_300 < 400) {
        let mut flipped = once.clone();
        flipped[offset] ^= 1 << (offset % 8);
        std::fs::write(&path, flipped).unwrap();
        let found = verify(dir.path()).unwrap().findings;
        assert!(
            found.iter().any(|finding| finding.segment == path && finding.offset <= offset as u64),
            "{offset}"
        );
    }
    // As it was before the purge, it is no damage: a power cut may bring it back.
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(verify(dir.path()).unwrap().findings, []);
    // Rewritten by somebody else, it is.
    std::fs::write(&path, &once).unwrap();
    let copy = copy_of(dir.path());
    let store = open(copy.path());
    store.purge(&of([3])).unwrap();
    store.close().unwrap();
    std::fs::copy(crate::segment::path(&copy.path().join("journal"), 1), &path).unwrap();
    let found = verify(dir.path()).unwrap().findings;
    assert!(found.iter().any(|finding| finding.segment == path), "{found:?}");
}

#[test]
fn reads_and_checks_go_on_beside_a_purge() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), Options::default()).unwrap();
    let epoch = store.claim().unwrap();
    (1..=60).for_each(|number| ended(&store, epoch, number, 8, 8_000).unwrap());
    let kept: Vec<u8> = (1..=60).filter(|number| number % 10 == 0).collect();
    let expected = records(&store, kept.clone());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, is_done, kept, expected) = (&store, &is_done, &kept, &expected);
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(records(store, kept.clone()), *expected);
            }
        });
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                assert_eq!(verify(dir_of(store)).unwrap().findings, []);
                let reader = JournalReader::open(dir_of(store)).unwrap();
                for (number, records) in kept.iter().zip(expected.chunks(2)) {
                    assert_eq!(reader.read(run(*number), 0, 99).unwrap(), records[0]);
                }
                let read = reader.each(|_, _| ());
                assert!(read.is_ok() || reader.has_moved().unwrap(), "{read:?}");
            }
        });
        for tens in 0..6 {
            store.purge(&of(10 * tens + 1..10 * tens + 10)).unwrap();
            (0..40).for_each(|seq| assert!(durable(store, epoch, run(100 + tens), seq).is_ok()));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    store.close().unwrap();
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

fn dir_of(store: &JournalStore) -> &Path {
    &store.shared.dir
}

#[test]
fn a_close_ends_a_purge_and_the_next_one_finishes_it() {
    let dir = temp_dir();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    (1..=40).for_each(|number| ended(&store, epoch, number, 4, 60_000).unwrap());
    std::thread::scope(|scope| {
        let purging = scope.spawn(|| store.purge(&of(1..=36)));
        while store.load(run_key(36)).is_ok_and(|loaded| !loaded.values.is_empty()) {}
        store.close().unwrap();
        let purged = purging.join().unwrap();
        assert!(matches!(purged, Ok(_) | Err(Error::Closed)), "{purged:?}");
    });
    let store = open(dir.path());
    assert_eq!(store.purge(&[]).unwrap().runs, 0);
    store.close().unwrap();
    assert!(journal_bytes(dir.path()) < 4 * 4 * 61_000 + 100_000);
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}
