//! What the store does in good weather, across opens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{durable, open, options, ordered, run, seqs, with_put};
use crate::conformance::{commit, run_key};
use crate::fs::RealFs;
use crate::limits::FRAME_BYTES_MAX;
use crate::{
    CLOSED, Epoch, Error, JournalReader, JournalStore, OPENED, Opening, Options, StateOptions, Stats, Store,
    Stream, verify,
};

#[test]
fn what_was_committed_is_there_after_a_close_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    for (round, is_clean) in [(0, true), (1, false), (2, true)] {
        let store = open(dir.path());
        let epoch = store.claim().unwrap();
        assert_eq!(epoch, Epoch(round + 1));
        assert_eq!(durable(&store, epoch, run(1), 2 * round).unwrap().head.seq, 2 * round);
        ordered(&store, epoch, run(1), 2 * round + 1).unwrap();
        if is_clean {
            store.close().unwrap();
            assert_eq!(durable(&store, epoch, run(1), 2 * round + 2), Err(Error::Closed));
        }
    }
    let store = open(dir.path());
    assert_eq!(store.opening(), &Opening { cut: None, rebuilt: None, frames: 3 + 6 + 2 });
    assert_eq!(seqs(&store, run(1)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(store.load(run_key(1)).unwrap().head.map(|head| head.seq), Some(5));
    let own: Vec<_> = store
        .read_journal(Stream::Own(0), 0, usize::MAX)
        .unwrap()
        .iter()
        .map(|record| (record.kind.code, record.epoch.0))
        .collect();
    assert_eq!(own, [(OPENED, 1), (CLOSED, 1), (OPENED, 2), (OPENED, 3), (CLOSED, 3), (OPENED, 4)]);
    drop(store);
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

#[test]
fn an_ordered_commit_costs_no_barrier_and_is_read_once_one_covers_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    let Stats { barriers, .. } = store.stats();
    ordered(&store, epoch, run(1), 0).unwrap();
    ordered(&store, epoch, run(1), 1).unwrap();
    assert_eq!(store.stats().barriers, barriers);
    assert_eq!(seqs(&store, run(1)), []);
    assert_eq!(store.load(run_key(1)).unwrap().head.map(|head| head.seq), Some(1));
    durable(&store, epoch, run(2), 0).unwrap();
    assert_eq!(store.stats().barriers, barriers + 1);
    let records = store.read_journal(run(1), 0, 9).unwrap();
    assert_eq!(
        records.iter().map(|record| (record.head.seq, record.barrier)).collect::<Vec<_>>(),
        [(0, false), (1, false)]
    );
}

#[test]
fn an_ordered_commit_becomes_durable_by_itself_after_the_linger() {
    let dir = tempfile::tempdir().unwrap();
    let lingering = Options { linger: Some(Duration::ZERO), ..options(Arc::new(RealFs)) };
    let store = JournalStore::open(dir.path(), lingering).unwrap();
    let epoch = store.claim().unwrap();
    ordered(&store, epoch, run(1), 0).unwrap();
    while seqs(&store, run(1)).is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn a_later_claim_fences_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let first = store.claim().unwrap();
    let second = store.claim().unwrap();
    assert_eq!((first, second), (Epoch(1), Epoch(2)));
    assert_eq!(durable(&store, first, run(1), 0), Err(Error::Fenced { got: 1, current: 2 }));
    durable(&store, second, run(1), 0).unwrap();
    drop(store);
    assert_eq!(open(dir.path()).claim(), Ok(Epoch(3)));
}

#[test]
fn a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs)));
    assert!(matches!(refused, Err(Error::Locked { pid, .. }) if pid == std::process::id()));
    drop(store);
    open(dir.path());
}

#[test]
fn records_are_found_across_many_segments_by_footers_and_beside_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    // A quarter of a segment each, so that four runs of eight records fill several segments of growing size.
    for seq in 0..8 {
        for number in 1..=4 {
            let mut commit = with_put(commit(epoch, run(number), seq));
            commit.payload = vec![number; 256 << 10];
            store.commit(commit).wait().unwrap();
        }
    }
    let check = |read: &dyn Fn(Stream, u64, usize) -> Vec<u64>| {
        for number in 1..=4 {
            assert_eq!(read(run(number), 0, 99), [0, 1, 2, 3, 4, 5, 6, 7]);
            assert_eq!(read(run(number), 3, 2), [3, 4]);
            assert_eq!(read(run(number), 7, 9), [7]);
            assert_eq!(read(run(number), 8, 9), [0; 0]);
        }
        assert_eq!(read(run(9), 0, 9), [0; 0]);
    };
    let of_store = |store: &JournalStore, stream, from, limit| {
        let records = store.read_journal(stream, from, limit).unwrap();
        records.iter().map(|record| record.head.seq).collect::<Vec<_>>()
    };
    check(&|stream, from, limit| of_store(&store, stream, from, limit));
    let transcript = store.read_transcript(run(2), 1, 2).unwrap();
    assert_eq!(transcript.iter().map(|record| record.head.seq).collect::<Vec<_>>(), [2, 4]);

    let reader = JournalReader::open(dir.path()).unwrap();
    check(&|stream, from, limit| {
        let records = reader.read(stream, from, limit).unwrap();
        records.iter().map(|record| record.head.seq).collect()
    });
    let report = verify(dir.path()).unwrap();
    assert_eq!((report.findings, report.tail, report.frames), (vec![], None, 33));
    let mut positions = Vec::new();
    reader.each(|position, _| positions.push(position)).unwrap();
    assert_eq!(positions, (0..33).collect::<Vec<_>>());

    drop(store);
    let store = open(dir.path());
    check(&|stream, from, limit| of_store(&store, stream, from, limit));
}

#[test]
fn a_journal_behind_its_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    durable(&store, epoch, run(1), 0).unwrap();
    store.close().unwrap();
    std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    let refused = JournalStore::open(dir.path(), options(Arc::new(RealFs)));
    assert_eq!(refused.map(drop), Err(Error::Behind { journal: 0, state: 3 }));
}

#[test]
fn a_commit_up_to_the_limit_is_taken_whatever_the_segment_and_a_larger_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let epoch = store.claim().unwrap();
    let sized = |payload| {
        let mut commit = commit(epoch, run(1), 0);
        commit.payload = vec![5; payload];
        store.commit(commit).wait()
    };
    let fixed = crate::frame::FRAME_FIXED + crate::frame::SALT;
    let (got, max) = (FRAME_BYTES_MAX + 1, FRAME_BYTES_MAX);
    assert_eq!(sized(got - fixed), Err(Error::TooLarge { what: "a commit", got, max }));
    sized(max - fixed).unwrap();
    drop(store);
    let records = open(dir.path()).read_journal(run(1), 0, 1).unwrap();
    assert_eq!(records[0].payload.as_ref().map(Vec::len), Some(max - fixed));
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

#[test]
fn commits_reads_and_the_next_open_do_without_a_sled_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let state = StateOptions {
        lag_puts_max: 64,
        stall_after: Duration::from_millis(20),
        last_answer_wait: Duration::from_millis(20),
        hook: Some(Arc::new(move |_| {
            // Until the test ends.
            let _ = held.lock().unwrap().recv();
            Ok(())
        })),
        ..StateOptions::default()
    };
    let store = JournalStore::open(dir.path(), Options { state, ..options(Arc::new(RealFs)) }).unwrap();
    let epoch = store.claim().unwrap();
    for seq in 0..200 {
        durable(&store, epoch, run(1), seq).unwrap();
    }
    assert_eq!(seqs(&store, run(1)).len(), 200);
    assert_ne!(store.state_health().unwrap().degraded, None);
    drop((let_go, store));
    let store = open(dir.path());
    assert!(store.opening().rebuilt.is_some());
    let value = (b"kRun(01010101010101010101010101010101)".to_vec(), 199u64.to_le_bytes().to_vec());
    assert_eq!(store.scan(b"k", None, 9).unwrap(), [value]);
}

#[test]
fn many_writers_share_barriers() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), Options::default()).unwrap();
    let epoch = store.claim().unwrap();
    std::thread::scope(|scope| {
        for number in 1..=32 {
            let store = &store;
            scope.spawn(move || {
                for seq in 0..50 {
                    durable(store, epoch, run(number), seq).unwrap();
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.frames, 1 + 32 * 50);
    assert!(stats.barriers < stats.frames / 2, "{stats:?}");
    store.close().unwrap();
    assert_eq!(verify(dir.path()).unwrap().findings, []);
}

#[test]
fn a_journal_is_read_and_verified_beside_its_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = JournalStore::open(dir.path(), Options::default()).unwrap();
    let epoch = store.claim().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                let mut seq = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let mut commit = with_put(commit(epoch, run(number), seq));
                    commit.payload = vec![number; 5_000];
                    store.commit(commit).wait().unwrap();
                    seq += 1;
                }
            });
        }
        // Long enough for a few segments to fill up.
        let mut last = 0;
        while last < 4 {
            let report = verify(dir.path()).unwrap();
            assert_eq!(report.findings, []);
            last = report.end.segment;
            let reader = JournalReader::open(dir.path()).unwrap();
            let mut frames = 0;
            reader.each(|_, _| frames += 1).unwrap();
            assert_eq!(frames, reader.end().position);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
