//! What a purge promises: what goes, what stays, and that a purged run stays known.

use super::{Check, absent, accepted, assert_untouched, commit, inbox, journal, pairs, put, run, run_key};
use crate::{Commit, Epoch, Error, Purge, Purged, RecordKind, Require, Store, run_prefix};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a purge takes records, inbox and own values of a run, and nothing else", takes_the_run),
    ("a purge makes its own changes with it", makes_changes),
    ("values that a purged run put elsewhere hold", leaves_values),
    ("a run that has not ended is not purged, and nothing is", refuses_the_living),
    ("a purged run never begins again", stays_known),
    ("runs that are not there are passed over", passes_over),
    ("a run whose requirements do not hold stays", keeps_what_changed),
];

fn purge(store: &dyn Store, number: u8) -> Result<u64, Error> {
    Ok(store.purge(&[Purge { run: run_key(number), puts: Vec::new(), requires: Vec::new() }])?.runs)
}

/// A run of three records that has ended, with an item in its inbox.
fn ended(store: &dyn Store, epoch: Epoch, number: u8) -> Result<(), Error> {
    let own = [run_prefix(run_key(number)).as_slice(), b"a"].concat();
    for seq in 0..3 {
        let kind = RecordKind { code: 1, carries_messages: true, ends_stream: seq == 2 };
        let puts = vec![put(&own, &[seq as u8]), put(b"s", &[number]), put(&[b'k', number], b"v")];
        accepted(store, Commit { kind, puts, ..commit(epoch, run(number), seq) })?;
        if seq == 0 {
            store.push_inbox(commit(epoch, inbox(number), 0), 0).wait()?;
        }
    }
    Ok(())
}

fn takes_the_run(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    (1..=2).try_for_each(|number| ended(store, epoch, number))?;
    let (records, items) = (journal(store, run(2))?, journal(store, inbox(2))?);
    assert_eq!(purge(store, 1)?, 1);
    assert_untouched(store, run(1), 0)?;
    assert_untouched(store, inbox(1), 0)?;
    assert_eq!(store.read_transcript(run(1), 0, 9)?, []);
    assert_eq!(store.scan(&run_prefix(run_key(1)), None, 9)?, []);
    assert_eq!((journal(store, run(2))?, journal(store, inbox(2))?), (records, items));
    assert_eq!(store.load(run_key(2))?.values.len(), 1);
    Ok(())
}

fn makes_changes(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    ended(store, epoch, 1)?;
    let puts = vec![super::delete(b"s"), put(b"p", b"was here")];
    store.purge(&[Purge { run: run_key(1), puts, requires: Vec::new() }])?;
    assert_eq!(store.scan(b"s", None, 9)?, []);
    assert_eq!(store.scan(b"p", None, 9)?, pairs(&[(b"p", b"was here")]));
    Ok(())
}

fn leaves_values(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    (1..=2).try_for_each(|number| ended(store, epoch, number))?;
    purge(store, 2)?;
    assert_eq!(store.scan(b"s", None, 9)?, pairs(&[(b"s", &[2])]));
    let again = Commit { requires: vec![absent(&[b'k', 2])], ..commit(epoch, run(3), 0) };
    assert_eq!(accepted(store, again), Err(Error::Duplicate { value: b"v".to_vec() }));
    Ok(())
}

fn refuses_the_living(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    ended(store, epoch, 1)?;
    accepted(store, commit(epoch, run(2), 0))?;
    let purges = [1, 2].map(|number| Purge { run: run_key(number), puts: Vec::new(), requires: Vec::new() });
    assert_eq!(store.purge(&purges), Err(Error::NotEnded { run: run_key(2) }));
    assert_untouched(store, run(1), 3)?;
    assert_untouched(store, run(2), 1)?;
    Ok(())
}

fn stays_known(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    ended(store, epoch, 1)?;
    let head = store.load(run_key(1))?.head;
    purge(store, 1)?;
    let loaded = store.load(run_key(1))?;
    assert_eq!((loaded.head, loaded.inbox_len, loaded.is_ended, loaded.values), (head, 0, true, vec![]));
    let conflict = Error::Conflict { stream: run(1), expected: 0, next: 3 };
    assert_eq!(accepted(store, commit(epoch, run(1), 0)), Err(conflict));
    assert_eq!(accepted(store, commit(epoch, run(1), 3)), Err(Error::Ended { run: run_key(1) }));
    let pushed = store.push_inbox(commit(epoch, inbox(1), 0), 0).wait();
    assert_eq!(pushed, Err(Error::Ended { run: run_key(1) }));
    Ok(())
}

fn passes_over(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    ended(store, epoch, 1)?;
    assert_eq!([purge(store, 9)?, purge(store, 1)?, purge(store, 1)?], [0, 1, 0]);
    assert_eq!(store.purge(&[])?, Purged::default());
    Ok(())
}

fn keeps_what_changed(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    (1..=3).try_for_each(|number| ended(store, epoch, number))?;
    let holds =
        |value: Option<u8>| Require::Holds { key: b"s".to_vec(), value: value.map(|value| vec![value]) };
    let purge =
        |number, value| Purge { run: run_key(number), puts: Vec::new(), requires: vec![holds(value)] };
    assert_eq!(store.purge(&[purge(1, None), purge(2, Some(9))])?.runs, 0);
    assert_eq!(store.purge(&[purge(1, Some(3))])?.runs, 1);
    assert_untouched(store, run(1), 0)?;
    assert_untouched(store, run(2), 3)?;
    let commit = Commit { requires: vec![holds(Some(2))], ..commit(epoch, run(4), 0) };
    assert_eq!(accepted(store, commit), Err(Error::Changed { key: b"s".to_vec() }));
    Ok(())
}
