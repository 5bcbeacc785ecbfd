//! What `push_inbox` promises: items keep their order, never outlive their run, and never exceed the limit.

use super::{Check, absent, accepted, assert_untouched, commit, inbox, journal, put, run, run_key};
use crate::limits::INBOX_ITEMS_MAX;
use crate::{Commit, Durability, Epoch, Error, RecordKind, Store, Ticket};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("items get the next position, whatever they asked for", positions),
    ("an inbox may be filled before its run exists", before_the_run),
    ("an ended run refuses every item", ended),
    ("an item sent again is a duplicate even after the end", duplicate_before_ended),
    ("a full inbox refuses items until some are consumed", full),
];

fn push(store: &dyn Store, item: Commit, consumed: u64) -> Result<u64, Error> {
    store.push_inbox(item, consumed).wait().map(|receipt| receipt.head.seq)
}

/// Commits the record that ends the first run.
fn end(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let kind = RecordKind { code: 1, carries_messages: false, ends_stream: true };
    accepted(store, Commit { kind, ..commit(epoch, run(1), 0) }).map(drop)
}

fn positions(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for (asked, position) in [(0, 0), (7, 1), (0, 2)] {
        let item = Commit { durability: Durability::Ordered, ..commit(epoch, inbox(1), asked) };
        assert_eq!(push(store, item, 0), Ok(position));
    }
    let payloads: Vec<_> = journal(store, inbox(1))?.into_iter().map(|record| record.payload).collect();
    let expected = [0, 7, 0].map(|asked| Some(commit(epoch, inbox(1), asked).payload));
    assert_eq!(payloads, expected);
    assert_eq!(store.load(run_key(1))?.inbox_len, 3);
    Ok(())
}

fn before_the_run(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    assert_eq!(push(store, commit(epoch, inbox(1), 0), 0), Ok(0));
    let loaded = store.load(run_key(1))?;
    assert_eq!((loaded.head, loaded.inbox_len, loaded.is_ended), (None, 1, false));
    accepted(store, commit(epoch, run(1), 0)).map(drop)
}

fn ended(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    assert_eq!(push(store, commit(epoch, inbox(1), 0), 0), Ok(0));
    end(store, epoch)?;
    assert_eq!(push(store, commit(epoch, inbox(1), 1), 0), Err(Error::Ended { run: run_key(1) }));
    assert_eq!(push(store, commit(epoch, inbox(2), 0), 0), Ok(0));
    let loaded = store.load(run_key(1))?;
    assert_eq!((loaded.is_ended, loaded.inbox_len), (true, 1));
    assert_untouched(store, inbox(1), 1)
}

fn duplicate_before_ended(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let keyed = || Commit {
        puts: vec![put(b"key", b"1")],
        requires: vec![absent(b"key")],
        ..commit(epoch, inbox(1), 0)
    };
    assert_eq!(push(store, keyed(), 0), Ok(0));
    end(store, epoch)?;
    assert_eq!(push(store, keyed(), 0), Err(Error::Duplicate { value: b"1".to_vec() }));
    Ok(())
}

fn full(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let item = || commit(epoch, inbox(1), 0);
    let tickets: Vec<Ticket> = (0..INBOX_ITEMS_MAX).map(|_| store.push_inbox(item(), 0)).collect();
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    let full = Err(Error::InboxFull { run: run_key(1), max: INBOX_ITEMS_MAX });
    assert_eq!(push(store, item(), 0), full);
    assert_eq!(push(store, item(), 2), Ok(INBOX_ITEMS_MAX));
    assert_eq!(push(store, item(), 2), Ok(INBOX_ITEMS_MAX + 1));
    assert_eq!(push(store, item(), 2), full);
    assert_eq!(push(store, commit(epoch, inbox(2), 0), 0), Ok(0));
    assert_untouched(store, inbox(1), INBOX_ITEMS_MAX as usize + 2)
}
