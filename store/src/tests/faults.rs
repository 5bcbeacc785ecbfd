//! A disk that is full, or fails: typed errors, nothing acknowledged, and the store goes on by itself.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::broken_disk::BrokenDisk;
use super::documented::{assert_counted, shown};
use super::{durable, open, options, ordered, run, seqs, temp_dir, with_put};
use crate::conformance::commit;
use crate::{Epoch, Error, JournalStore, Require, RunKey, Store, verify};

fn open_on(disk: &Arc<BrokenDisk>, dir: &Path) -> (JournalStore, Epoch) {
    let store = JournalStore::open(dir, options(Arc::clone(disk) as _)).unwrap();
    let epoch = store.claim().unwrap();
    (store, epoch)
}

/// Fails the next operation of this name.
fn fail_once(disk: &BrokenDisk, operation: &'static str) {
    let mut is_done = false;
    disk.set_rule(Some(Box::new(move |name, _| {
        (name == operation && !std::mem::replace(&mut is_done, true)).then(|| io::Error::other("broken"))
    })));
}

#[test]
fn after_a_failed_barrier_waiting_commits_go_to_a_new_segment_and_ordered_ones_are_void() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    durable(&store, epoch, run(1), 0).unwrap();
    ordered(&store, epoch, run(1), 1).unwrap();
    fail_once(&disk, "sync");
    durable(&store, epoch, run(2), 0).unwrap();
    // Void: built on a record that does not exist.
    assert_eq!(durable(&store, epoch, run(1), 2), Err(Error::Void));
    assert_eq!(store.load(crate::conformance::run_key(1)).unwrap().head.map(|head| head.seq), Some(0));
    durable(&store, epoch, run(1), 1).unwrap();
    let far = durable(&store, epoch, run(1), 7);
    assert_eq!(far, Err(Error::Conflict { stream: run(1), expected: 7, next: 2 }));
    let check = |store: &JournalStore| {
        assert_eq!((seqs(store, run(1)), seqs(store, run(2))), (vec![0, 1], vec![0]));
        let report = verify(dir.path()).unwrap();
        assert_eq!((report.findings, report.tail), (vec![], None));
    };
    check(&store);
    drop(store);
    check(&open(dir.path()));
}

#[test]
fn a_commit_that_waits_on_a_void_one_is_void_itself() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    ordered(&store, epoch, run(1), 0).unwrap();
    fail_once(&disk, "sync");
    assert_eq!(durable(&store, epoch, run(1), 1), Err(Error::Void));
    assert_eq!(seqs(&store, run(1)), []);
    durable(&store, epoch, run(1), 0).unwrap();
}

#[test]
fn a_counter_does_not_keep_what_a_void_commit_added() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    let reserving = |stream, durability| {
        let mut commit = with_put(commit(epoch, stream, 0));
        commit.requires = vec![Require::Ceiling { key: b"cost".to_vec(), add: 6, max: 10 }];
        commit.durability = durability;
        commit
    };
    store.commit(reserving(run(1), crate::Durability::Ordered)).wait().unwrap();
    fail_once(&disk, "sync");
    durable(&store, epoch, run(2), 0).unwrap();
    store.commit(reserving(run(3), crate::Durability::Durable)).wait().unwrap();
    let refused = store.commit(reserving(run(4), crate::Durability::Durable)).wait();
    assert_eq!(refused, Err(Error::Ceiling { key: b"cost".to_vec(), current: 6, add: 6, max: 10 }));
}

#[test]
fn sled_gets_nothing_that_no_barrier_covers() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    let put = |seq, value: &[u8], durability| {
        let mut commit = commit(epoch, run(1), seq);
        commit.puts = vec![crate::Put { key: b"word".to_vec(), value: Some(value.to_vec()) }];
        commit.durability = durability;
        commit
    };
    store.commit(put(0, b"kept", crate::Durability::Durable)).wait().unwrap();
    store.commit(put(1, b"void", crate::Durability::Ordered)).wait().unwrap();
    // Answered once the writer is past both.
    store.load(RunKey([1; 16])).unwrap();
    store.settle().unwrap();
    // The record of this open, and what is durable of the run.
    assert_eq!(store.state_health().map(|health| health.applied), Some(2));
    fail_once(&disk, "sync");
    durable(&store, epoch, run(2), 0).unwrap();
    store.settle().unwrap();
    assert_eq!(store.scan(b"word", None, 1).unwrap(), vec![(b"word".to_vec(), b"kept".to_vec())]);
}

#[test]
fn a_key_is_known_only_once_what_it_stands_for_is_durable() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    let keyed = |stream, durability| {
        let mut commit = commit(epoch, stream, 0);
        commit.puts = vec![crate::Put { key: b"kkey".to_vec(), value: Some(b"1".to_vec()) }];
        commit.requires = vec![Require::Absent { key: b"kkey".to_vec() }];
        commit.durability = durability;
        commit
    };
    store.commit(keyed(run(1), crate::Durability::Ordered)).wait().unwrap();
    fail_once(&disk, "sync");
    // The barrier under which it would have been told fails, and takes back what had the key.
    store.commit(keyed(run(2), crate::Durability::Durable)).wait().unwrap();
    let again = store.commit(keyed(run(3), crate::Durability::Durable)).wait();
    assert_eq!(again, Err(Error::Duplicate { value: b"1".to_vec() }));
    assert_eq!((seqs(&store, run(1)), seqs(&store, run(2))), (vec![], vec![0]));
}

#[test]
fn a_failed_or_short_write_loses_nothing() {
    for kind in ["write", "short"] {
        let dir = temp_dir();
        let disk = Arc::new(BrokenDisk::default());
        let (store, epoch) = open_on(&disk, dir.path());
        ordered(&store, epoch, run(1), 0).unwrap();
        if kind == "write" {
            fail_once(&disk, "write");
        } else {
            let mut tries = 0;
            disk.set_rule(Some(Box::new(move |name, _| {
                tries += usize::from(name == "write");
                (name == "write" && tries == 1).then(|| io::ErrorKind::Interrupted.into())
            })));
        }
        durable(&store, epoch, run(2), 0).unwrap();
        drop(store);
        let store = open(dir.path());
        assert_eq!(seqs(&store, run(2)), [0]);
    }
}

#[test]
fn a_disk_that_stays_broken_is_an_error_until_it_is_whole_again() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    durable(&store, epoch, run(1), 0).unwrap();
    disk.set_rule(Some(Box::new(|name, _| (name == "sync").then(|| io::Error::other("broken")))));
    let failed = durable(&store, epoch, run(1), 1);
    assert!(matches!(failed, Err(Error::Io { operation: "sync" | "make a segment in", .. })), "{failed:?}");
    assert_eq!(seqs(&store, run(1)), [0]);
    disk.set_rule(None);
    assert_eq!(durable(&store, epoch, run(1), 2), Err(Error::Void));
    durable(&store, epoch, run(1), 1).unwrap();
    assert_eq!(seqs(&store, run(1)), [0, 1]);
    drop(store);
    assert_eq!(seqs(&open(dir.path()), run(1)), [0, 1]);
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

#[test]
fn what_was_refused_is_not_there_after_a_kill() {
    for failing in ["sync", "write"] {
        let dir = temp_dir();
        let disk = Arc::new(BrokenDisk::default());
        let (store, epoch) = open_on(&disk, dir.path());
        durable(&store, epoch, run(1), 0).unwrap();
        disk.set_rule(Some(Box::new(move |name, _| (name == failing).then(|| io::Error::other("broken")))));
        assert!(matches!(durable(&store, epoch, run(1), 1), Err(Error::Io { .. })));
        drop(store);
        assert_eq!(seqs(&open(dir.path()), run(1)), [0]);
    }
}

#[test]
fn a_full_disk_refuses_new_runs_first_and_the_store_goes_on_when_space_is_back() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let (store, epoch) = open_on(&disk, dir.path());
    durable(&store, epoch, run(1), 0).unwrap();
    // No segment can be made any more; what was made can be written.
    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    disk.set_rule(Some(Box::new(move |_, path| {
        let is_new = path.extension().is_some_and(|extension| extension == "tmp");
        (is_new && full.load(Ordering::Relaxed)).then(|| io::ErrorKind::StorageFull.into())
    })));
    let large = |stream, seq| {
        let mut commit = with_put(commit(epoch, stream, seq));
        commit.payload = vec![7; 600 << 10];
        store.commit(commit).wait()
    };
    // One segment is full, the spare one is taken, none can be made after it.
    large(run(1), 1).unwrap();
    large(run(1), 2).unwrap();
    let no_space = Err(Error::NoSpace { path: dir.path().to_owned() });
    assert_eq!(durable(&store, epoch, run(2), 0), no_space);
    durable(&store, epoch, run(1), 3).unwrap();
    while large(run(1), seqs(&store, run(1)).len() as u64).is_ok() {}
    let next = seqs(&store, run(1)).len() as u64;
    assert_eq!(large(run(1), next), no_space);
    is_full.store(false, Ordering::Relaxed);
    large(run(1), next).unwrap();
    durable(&store, epoch, run(2), 0).unwrap();
    drop(store);
    assert_eq!(verify(dir.path()).unwrap().findings, []);
    assert_eq!(seqs(&open(dir.path()), run(1)).len() as u64, next + 1);
}

/// How operations fail.
const WAYS: [io::ErrorKind; 4] = [
    io::ErrorKind::StorageFull,
    io::ErrorKind::QuotaExceeded,
    io::ErrorKind::ReadOnlyFilesystem,
    io::ErrorKind::Other,
];

/// Fails so many operations of any kind, after so many that work.
fn fail_some(disk: &BrokenDisk, after: usize, count: usize, way: io::ErrorKind) {
    let mut nth = 0;
    disk.set_rule(Some(Box::new(move |_, _| {
        nth += 1;
        (nth > after && nth <= after + count).then(|| way.into())
    })));
}

/// The error names the directory and what a person can do, as far as the way says it.
fn assert_typed(error: &Error, way: io::ErrorKind, dir: &Path) {
    let is_full = matches!(way, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    // A commit is void if one before it failed.
    let is_typed = *error == Error::Void
        || (is_full && *error == Error::NoSpace { path: dir.to_owned() })
        || (way == io::ErrorKind::ReadOnlyFilesystem && *error == Error::ReadOnly { path: dir.to_owned() })
        || (way == io::ErrorKind::Other && matches!(error, Error::Io { path, .. } if path.starts_with(dir)));
    assert!(is_typed, "{way:?}: {error:?}");
}

/// Options whose segments are full after a few commits.
fn small_segments(disk: &Arc<BrokenDisk>) -> crate::Options {
    crate::Options { segment_bytes: 8 << 10, ..options(Arc::clone(disk) as _) }
}

/// Commits to two runs through several segments, whatever fails; answers how many records each must have.
fn commit_all(store: &JournalStore, epoch: Epoch, way: io::ErrorKind, dir: &Path) -> [u64; 2] {
    let mut told = [0, 0];
    for _ in 0..5 {
        for (number, next) in (1..).zip(&mut told) {
            let mut commit = with_put(commit(epoch, run(number), *next));
            commit.payload = vec![number; 3 << 10];
            match store.commit(commit).wait() {
                Ok(receipt) => *next = receipt.head.seq + 1,
                Err(error) => assert_typed(&error, way, dir),
            }
        }
    }
    told
}

/// Nothing is lost or half there, and the store goes on, in this process and in the next.
fn assert_goes_on(store: JournalStore, epoch: Epoch, told: [u64; 2], dir: &Path) {
    for (number, next) in (1..).zip(told) {
        assert_eq!(seqs(&store, run(number)), (0..next).collect::<Vec<_>>());
        durable(&store, epoch, run(number), next).unwrap();
    }
    drop(store);
    assert_eq!(verify(dir).unwrap().findings, []);
    let store = open(dir);
    for (number, next) in (1..).zip(told) {
        assert_eq!(seqs(&store, run(number)), (0..=next).collect::<Vec<_>>());
    }
}

#[test]
fn whatever_fails_the_error_is_typed_and_the_store_goes_on() {
    let mut faults = 0;
    for way in WAYS {
        // Once is made good by the store itself; more is told.
        for count in [1, 6] {
            for after in 0.. {
                let dir = temp_dir();
                let disk = Arc::new(BrokenDisk::default());
                let store = JournalStore::open(dir.path(), small_segments(&disk)).unwrap();
                let epoch = store.claim().unwrap();
                let before = disk.count();
                fail_some(&disk, after, count, way);
                let told = commit_all(&store, epoch, way, dir.path());
                let is_reached = disk.count() > before + after;
                disk.set_rule(None);
                assert_goes_on(store, epoch, told, dir.path());
                if !is_reached {
                    break;
                }
                faults += 1;
            }
        }
    }
    let found = format!("{faults} faults in {} ways, 0 claims broken", WAYS.len());
    assert_counted("docs/durability.md", "faults under the store", &shown(&found));
}

#[test]
fn a_write_that_takes_half_is_finished() {
    for after in 0..5 {
        let dir = temp_dir();
        let disk = Arc::new(BrokenDisk::default());
        let (store, epoch) = open_on(&disk, dir.path());
        for seq in 0..after {
            durable(&store, epoch, run(1), seq).unwrap();
        }
        disk.shorten();
        durable(&store, epoch, run(1), after).unwrap();
        durable(&store, epoch, run(2), 0).unwrap();
        assert_goes_on(store, epoch, [after + 1, 1], dir.path());
    }
}

#[test]
fn an_open_that_fails_anywhere_says_why_and_the_next_one_works() {
    for way in WAYS {
        for after in 0.. {
            let dir = temp_dir();
            let disk = Arc::new(BrokenDisk::default());
            let (store, epoch) = open_on(&disk, dir.path());
            durable(&store, epoch, run(1), 0).unwrap();
            ordered(&store, epoch, run(1), 1).unwrap();
            durable(&store, epoch, run(2), 0).unwrap();
            drop(store);
            let before = disk.count();
            fail_some(&disk, after, usize::MAX - after, way);
            let opened = JournalStore::open(dir.path(), options(Arc::clone(&disk) as _));
            let is_reached = disk.count() == before + after && opened.is_err();
            match opened {
                Ok(store) => drop(store),
                Err(error) => assert_typed(&error, way, dir.path()),
            }
            disk.set_rule(None);
            let (store, epoch) = open_on(&disk, dir.path());
            assert_goes_on(store, epoch, [2, 1], dir.path());
            if !is_reached {
                break;
            }
        }
    }
}

#[test]
fn a_directory_that_is_away_for_a_while_is_an_error_meanwhile() {
    let dir = temp_dir();
    let disk = Arc::new(BrokenDisk::default());
    let store = JournalStore::open(dir.path(), small_segments(&disk)).unwrap();
    let epoch = store.claim().unwrap();
    durable(&store, epoch, run(1), 0).unwrap();
    durable(&store, epoch, run(2), 0).unwrap();
    let (journal, away) = (dir.path().join("journal"), dir.path().join("away"));
    std::fs::rename(&journal, &away).unwrap();
    let (mut next, mut failed) = (1, None);
    while failed.is_none() {
        let mut commit = with_put(commit(epoch, run(1), next));
        commit.payload = vec![1; 3 << 10];
        match store.commit(commit).wait() {
            Ok(_) => next += 1,
            Err(error) => failed = Some(error),
        }
    }
    assert!(matches!(failed, Some(Error::Io { operation: "make a segment in", .. })), "{failed:?}");
    std::fs::rename(&away, &journal).unwrap();
    assert_goes_on(store, epoch, [next, 1], dir.path());
}
