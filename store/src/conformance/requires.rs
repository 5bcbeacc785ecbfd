//! What a commit's preconditions promise: all hold at the moment of linking, or nothing is written.

use super::{
    Check, absent, accepted, assert_untouched, ceiling, commit, delete, inbox, journal, pairs, put, run,
    run_key,
};
use crate::{Commit, Durability, Epoch, Error, Require, Store};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a used key is a duplicate and answers what it holds", duplicates),
    ("a key put by an ordered commit is used at once", ordered_duplicates),
    ("a deleted key is absent again", deleted_key),
    ("the inbox must hold exactly as many items as were seen", inbox_len),
    ("a counter rises to its ceiling and not beyond", ceilings),
    ("a counter falls by what is taken away, and not below zero", falls),
    ("a sum that no counter holds is past every ceiling", overflow),
    ("the sums are part of the commit's puts", sums_are_puts),
    ("one requirement that fails leaves nothing of the others", all_or_nothing),
    ("a conflict is found before a requirement", conflict_first),
];

fn duplicates(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let keyed = |stream, seq, value| Commit {
        puts: vec![put(b"key", value)],
        requires: vec![absent(b"key")],
        ..commit(epoch, stream, seq)
    };
    accepted(store, keyed(run(1), 0, b"first"))?;
    let duplicate = Err(Error::Duplicate { value: b"first".to_vec() });
    assert_eq!(accepted(store, keyed(run(2), 0, b"second")), duplicate);
    assert_eq!(accepted(store, keyed(run(1), 1, b"third")), duplicate);
    assert_untouched(store, run(2), 0)?;
    assert_eq!(store.scan(b"key", None, 9)?, pairs(&[(b"key", b"first")]));
    Ok(())
}

fn ordered_duplicates(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let keyed = |stream| Commit {
        puts: vec![put(b"key", b"1")],
        requires: vec![absent(b"key")],
        durability: Durability::Ordered,
        ..commit(epoch, stream, 0)
    };
    accepted(store, keyed(run(1)))?;
    assert_eq!(accepted(store, keyed(run(2))), Err(Error::Duplicate { value: b"1".to_vec() }));
    Ok(())
}

fn deleted_key(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    accepted(store, Commit { puts: vec![put(b"key", b"1")], ..commit(epoch, run(1), 0) })?;
    accepted(store, Commit { puts: vec![delete(b"key")], ..commit(epoch, run(1), 1) })?;
    accepted(store, Commit { requires: vec![absent(b"key")], ..commit(epoch, run(1), 2) }).map(drop)
}

fn inbox_len(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let seen = |seq, len| Commit {
        requires: vec![Require::InboxLen { run: run_key(1), len }],
        ..commit(epoch, run(1), seq)
    };
    accepted(store, seen(0, 0))?;
    store.push_inbox(commit(epoch, inbox(1), 0), 0).wait()?;
    let moved = |seen, len| Err(Error::InboxMoved { run: run_key(1), seen, len });
    assert_eq!(accepted(store, seen(1, 0)), moved(0, 1));
    assert_eq!(accepted(store, seen(1, 2)), moved(2, 1));
    accepted(store, seen(1, 1))?;
    assert_untouched(store, run(1), 2)
}

fn ceilings(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let spend =
        |stream, seq, add| Commit { requires: vec![ceiling(b"sum", add, 10)], ..commit(epoch, stream, seq) };
    accepted(store, spend(run(1), 0, 4))?;
    accepted(store, Commit { durability: Durability::Ordered, ..spend(run(2), 0, 5) })?;
    let past = Error::Ceiling { key: b"sum".to_vec(), current: 9, add: 2, max: 10 };
    assert_eq!(accepted(store, spend(run(1), 1, 2)), Err(past));
    assert_untouched(store, run(1), 1)?;
    accepted(store, spend(run(1), 1, 1))?;
    accepted(store, spend(run(1), 2, 0))?;
    assert_eq!(store.scan(b"sum", None, 9)?, pairs(&[(b"sum", &10u64.to_le_bytes())]));
    Ok(())
}

fn falls(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let add =
        |seq, add, max| Commit { requires: vec![ceiling(b"sum", add, max)], ..commit(epoch, run(1), seq) };
    let holds = |sum: u64| -> Result<(), Error> {
        assert_eq!(store.scan(b"sum", None, 9)?, pairs(&[(b"sum", &sum.to_le_bytes())]));
        Ok(())
    };
    accepted(store, add(0, 9, 10))?;
    accepted(store, Commit { durability: Durability::Ordered, ..add(1, -4, u64::MAX) })?;
    accepted(store, add(2, 5, 10))?;
    holds(10)?;
    accepted(store, add(3, -11, u64::MAX))?;
    holds(0)
}

fn overflow(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let add =
        |seq, add| Commit { requires: vec![ceiling(b"sum", add, u64::MAX)], ..commit(epoch, run(1), seq) };
    accepted(store, add(0, i64::MAX))?;
    accepted(store, add(1, i64::MAX))?;
    accepted(store, add(2, 1))?;
    let past = Error::Ceiling { key: b"sum".to_vec(), current: u64::MAX, add: 1, max: u64::MAX };
    assert_eq!(accepted(store, add(3, 1)), Err(past));
    Ok(())
}

fn sums_are_puts(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let requires = vec![ceiling(b"x", 1, 9), absent(b"z"), ceiling(b"y", 2, 9), ceiling(b"x", 3, 9)];
    accepted(store, Commit { puts: vec![put(b"a", b"1")], requires, ..commit(epoch, run(1), 0) })?;
    let sum = |key, sum: u64| put(key, &sum.to_le_bytes());
    let puts = journal(store, run(1))?.pop().map(|record| record.puts);
    assert_eq!(puts, Some(vec![put(b"a", b"1"), sum(b"x", 1), sum(b"y", 2), sum(b"x", 4)]));
    Ok(())
}

fn all_or_nothing(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    accepted(store, Commit { puts: vec![put(b"key", b"1")], ..commit(epoch, run(1), 0) })?;
    let both = Commit {
        puts: vec![put(b"other", b"1")],
        requires: vec![ceiling(b"sum", 1, 9), absent(b"key")],
        ..commit(epoch, run(1), 1)
    };
    assert_eq!(accepted(store, both), Err(Error::Duplicate { value: b"1".to_vec() }));
    assert_untouched(store, run(1), 1)?;
    assert_eq!((store.scan(b"sum", None, 9)?, store.scan(b"other", None, 9)?), (Vec::new(), Vec::new()));
    Ok(())
}

fn conflict_first(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    accepted(store, Commit { puts: vec![put(b"key", b"1")], ..commit(epoch, run(1), 0) })?;
    let stale = Commit { requires: vec![absent(b"key")], ..commit(epoch, run(1), 0) };
    let conflict = Error::Conflict { stream: run(1), expected: 0, next: 1 };
    assert_eq!(accepted(store, stale), Err(conflict));
    Ok(())
}
