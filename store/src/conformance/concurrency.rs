//! What holds when several threads use the store at once.

use std::thread;

use super::{Check, accepted, ceiling, commit, journal, pairs, put, run, run_key};
use crate::{Commit, Durability, Epoch, Error, Receipt, Store, run_prefix};

/// Threads of each check.
const THREADS: u8 = 4;
/// Commits of each thread.
const COMMITS: u64 = 50;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("writers of different streams do not disturb each other", apart),
    ("of racing writers of one sequence exactly one wins", races),
    ("racing writers never pass a ceiling together", shared_ceiling),
    ("load shows whole commits while others are written", whole_commits),
];

/// Runs `body` for each number on a thread of its own.
fn in_threads<T: Send>(body: impl Fn(u8) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn({
                    let body = &body;
                    move || body(number)
                })
            })
            .collect();
        threads.into_iter().flat_map(thread::ScopedJoinHandle::join).collect()
    })
}

fn apart(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let answers = in_threads(|number| {
        (0..COMMITS).try_for_each(|seq| {
            let durability = if seq % 2 == 0 { Durability::Ordered } else { Durability::Durable };
            accepted(store, Commit { durability, ..commit(epoch, run(number), seq) }).map(drop)
        })
    });
    assert_eq!(answers, vec![Ok(()); usize::from(THREADS)]);
    for number in 0..THREADS {
        let seqs = journal(store, run(number))?.into_iter().map(|record| record.head.seq);
        assert!(seqs.eq(0..COMMITS));
    }
    Ok(())
}

fn races(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..COMMITS {
        let answers: Vec<Result<Receipt, Error>> =
            in_threads(|_| accepted(store, commit(epoch, run(1), seq)));
        let conflict = Error::Conflict { stream: run(1), expected: seq, next: seq + 1 };
        let losers = answers.iter().filter(|answer| answer.as_ref() == Err(&conflict)).count();
        let winners = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!((winners, losers), (1, usize::from(THREADS) - 1), "{answers:?}");
    }
    Ok(())
}

fn shared_ceiling(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let max = COMMITS;
    let counts = in_threads(|number| {
        let spend =
            |seq| Commit { requires: vec![ceiling(b"sum", 1, max)], ..commit(epoch, run(number), seq) };
        (0..COMMITS).take_while(|seq| accepted(store, spend(*seq)).is_ok()).count() as u64
    });
    assert_eq!(counts.iter().sum::<u64>(), max, "{counts:?}");
    assert_eq!(store.scan(b"sum", None, 1)?, pairs(&[(b"sum", &max.to_le_bytes())]));
    Ok(())
}

fn whole_commits(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let keys = [b"a", b"b", b"c"].map(|name| [run_prefix(run_key(1)).as_slice(), name].concat());
    let write = || {
        (0..COMMITS * 10).try_for_each(|seq| {
            let puts = keys.iter().map(|key| put(key, &seq.to_le_bytes())).collect();
            accepted(store, Commit { puts, durability: Durability::Ordered, ..commit(epoch, run(1), seq) })
                .map(drop)
        })
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        while !writer.is_finished() {
            let loaded = store.load(run_key(1))?;
            let expected = loaded.head.map(|head| head.seq.to_le_bytes().to_vec());
            let values: Vec<_> = loaded.values.into_iter().map(|(_, value)| value).collect();
            assert_eq!(values, expected.map_or(Vec::new(), |value| vec![value; keys.len()]));
        }
        // A writer that panicked has said so itself.
        writer.join().unwrap_or(Err(Error::Closed))
    })
}
