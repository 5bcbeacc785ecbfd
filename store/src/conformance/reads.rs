//! What the reads promise: order, bounds, filters, and that they see every acknowledged durable commit.

use super::{Check, Pairs, accepted, commit, delete, inbox, journal, pairs, put, run, run_key};
use crate::{Commit, Epoch, Error, Loaded, Record, RecordKind, Seq, Store, run_prefix};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a read after a durable commit sees it", sees_what_was_acknowledged),
    ("the journal is read from a position, in order, within the limit", bounds),
    ("the transcript holds only records that carry messages", transcript),
    ("a scan keeps to its prefix, cursor and limit, in key order", scans),
    ("a scan goes on where the last one stopped, across changes", scan_pages),
    ("what does not exist is empty, not an error", nothing_there),
    ("load answers the run's head, inbox, end and values, and nobody else's", loads),
];

fn seqs(records: Vec<Record>) -> Vec<Seq> {
    records.into_iter().map(|record| record.head.seq).collect()
}

fn sees_what_was_acknowledged(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..50 {
        let head =
            accepted(store, Commit { puts: vec![put(b"a", &[seq as u8])], ..commit(epoch, run(1), seq) })?
                .head;
        assert_eq!(store.read_journal(run(1), seq, 1)?.pop().map(|record| record.head), Some(head));
        assert_eq!(store.load(run_key(1))?.head, Some(head));
        assert_eq!(store.scan(b"a", None, 9)?, pairs(&[(b"a", &[seq as u8])]));
    }
    Ok(())
}

fn bounds(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..5 {
        accepted(store, commit(epoch, run(1), seq))?;
        accepted(store, commit(epoch, run(2), seq))?;
    }
    let read = |from, limit| store.read_journal(run(1), from, limit).map(seqs);
    assert_eq!(read(0, 9)?, [0, 1, 2, 3, 4]);
    assert_eq!(read(1, 2)?, [1, 2]);
    assert_eq!(read(4, 9)?, [4]);
    assert_eq!([read(5, 9)?, read(Seq::MAX, 9)?, read(0, 0)?], [[], [], []]);
    Ok(())
}

fn transcript(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..10 {
        let kind = RecordKind { code: 1, carries_messages: seq % 3 == 1, ends_stream: false };
        accepted(store, Commit { kind, ..commit(epoch, run(1), seq) })?;
    }
    let read = |from, limit| store.read_transcript(run(1), from, limit).map(seqs);
    assert_eq!(read(0, 9)?, [1, 4, 7]);
    assert_eq!(read(2, 9)?, [4, 7]);
    assert_eq!(read(0, 2)?, [1, 4]);
    assert_eq!([read(8, 9)?, read(0, 0)?], [[], []]);
    let whole = store.read_transcript(run(1), 0, 9)?;
    let filtered = journal(store, run(1))?.into_iter().filter(|record| record.kind.carries_messages);
    assert_eq!(whole, filtered.collect::<Vec<_>>());
    Ok(())
}

fn scans(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let keys: [&[u8]; 6] = [b"b", b"a", b"a\xff", b"a\xff\xff", b"ab", b"a\0"];
    let puts = keys.iter().map(|key| put(key, key)).collect();
    accepted(store, Commit { puts, ..commit(epoch, run(1), 0) })?;
    accepted(store, Commit { puts: vec![delete(b"ab")], ..commit(epoch, run(1), 1) })?;
    let scan = |prefix: &[u8], after: Option<&[u8]>, limit| -> Result<Vec<Vec<u8>>, Error> {
        Ok(store.scan(prefix, after, limit)?.into_iter().map(|(key, _)| key).collect())
    };
    assert_eq!(scan(b"a", None, 9)?, [b"a".as_slice(), b"a\0", b"a\xff", b"a\xff\xff"]);
    assert_eq!(scan(b"a", None, 2)?, [b"a".as_slice(), b"a\0"]);
    assert_eq!(scan(b"a", Some(b"a\0"), 9)?, [b"a\xff".as_slice(), b"a\xff\xff"]);
    assert_eq!(scan(b"a", Some(b"ab"), 1)?, [b"a\xff".as_slice()]);
    assert_eq!(scan(b"a\xff", Some(b"A"), 9)?, [b"a\xff".as_slice(), b"a\xff\xff"]);
    let empty: [Vec<u8>; 0] = [];
    assert_eq!(scan(b"a", Some(b"b"), 9)?, empty);
    assert_eq!(scan(b"a", None, 0)?, empty);
    Ok(())
}

fn scan_pages(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let key = |number: u8| [b'a', number];
    let puts = (0..20).map(|number| put(&key(number), &[number])).collect();
    accepted(store, Commit { puts, ..commit(epoch, run(1), 0) })?;
    let mut seen: Pairs = Vec::new();
    loop {
        let after = seen.last().map(|(key, _)| key.clone());
        let page = store.scan(b"a", after.as_deref(), 7)?;
        if page.is_empty() {
            break;
        }
        let seq = store.load(run_key(1))?.head.map_or(0, |head| head.seq + 1);
        let touched = page.iter().map(|(key, _)| delete(key)).collect();
        accepted(store, Commit { puts: touched, ..commit(epoch, run(1), seq) })?;
        seen.extend(page);
    }
    let expected: Pairs = (0..20).map(|number| (key(number).to_vec(), vec![number])).collect();
    assert_eq!(seen, expected);
    Ok(())
}

fn nothing_there(store: &dyn Store, _epoch: Epoch) -> Result<(), Error> {
    assert_eq!(store.read_journal(run(1), 0, 9)?, []);
    assert_eq!(store.read_transcript(inbox(1), 3, 9)?, []);
    assert_eq!(store.scan(b"a", None, 9)?, []);
    let nothing = Loaded { head: None, inbox_len: 0, is_ended: false, values: Vec::new() };
    assert_eq!(store.load(run_key(1))?, nothing);
    Ok(())
}

fn loads(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let key = |number, name: &[u8]| [run_prefix(run_key(number)).as_slice(), name].concat();
    let puts =
        vec![put(&key(1, b"b"), b"1"), put(&key(1, b"a"), b"2"), put(&key(2, b"a"), b"3"), put(b"r", b"4")];
    accepted(store, Commit { puts, ..commit(epoch, run(1), 0) })?;
    store.push_inbox(commit(epoch, inbox(1), 0), 0).wait()?;
    let kind = RecordKind { code: 1, carries_messages: false, ends_stream: true };
    let puts = vec![delete(&key(1, b"b")), put(&key(1, b"c"), b"5")];
    let head = accepted(store, Commit { kind, puts, ..commit(epoch, run(1), 1) })?.head;
    let values = pairs(&[(&key(1, b"a"), b"2"), (&key(1, b"c"), b"5")]);
    let expected = Loaded { head: Some(head), inbox_len: 1, is_ended: true, values };
    assert_eq!(store.load(run_key(1))?, expected);
    Ok(())
}
