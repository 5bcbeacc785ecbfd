//! What a commit promises: order, chain, sequence, fencing, durability, limits.

use super::{Check, accepted, assert_untouched, commit, delete, journal, pairs, put, run, run_key};
use crate::limits::VALUE_BYTES_MAX;
use crate::{
    Commit, Durability, Epoch, Error, Hash, Receipt, Record, RecordKind, Store, Stream, Ticket, run_prefix,
};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a commit is read back as it was given", reads_back),
    ("records of a stream chain by hash from zero", chains),
    ("receipts name the head, and positions grow over all streams", receipts),
    ("streams count and chain apart from each other", streams_are_apart),
    ("a wrong sequence is a conflict and writes nothing", conflicts),
    ("a claim fences every older epoch", fences),
    ("puts apply in order within a commit", puts_in_order),
    ("an ordered commit holds at once and is read after the next durable one", ordered),
    ("commits sent without waiting keep their order", pipelined),
    ("a dropped ticket takes nothing back", dropped_ticket),
    ("a value beyond the limit is refused and writes nothing", too_large),
];

fn reads_back(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let kind = RecordKind { code: 9, carries_messages: true, ends_stream: true };
    let given = Commit { kind, puts: vec![put(b"a", b"1"), delete(b"b")], ..commit(epoch, run(1), 0) };
    let receipt = accepted(store, given.clone())?;
    let expected = Record {
        stream: given.stream,
        head: receipt.head,
        prev_hash: Hash::default(),
        epoch,
        at_ms: given.at_ms,
        logic_version: given.logic_version,
        kind,
        payload: Some(given.payload),
        puts: given.puts,
        state_hash: given.state_hash,
        barrier: true,
    };
    assert_eq!(journal(store, run(1))?, [expected]);
    Ok(())
}

fn chains(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    for seq in 0..5 {
        accepted(store, commit(epoch, run(1), seq))?;
    }
    let records = journal(store, run(1))?;
    let mut prev_hash = Hash::default();
    for (seq, record) in (0..).zip(&records) {
        assert_eq!((record.head.seq, record.prev_hash), (seq, prev_hash));
        assert_ne!(record.head.hash, prev_hash);
        prev_hash = record.head.hash;
    }
    assert_eq!(records.len(), 5);
    Ok(())
}

fn receipts(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let mut last_position = None;
    for (stream, seq) in [(run(1), 0), (run(2), 0), (run(1), 1), (Stream::Own(7), 0)] {
        let Receipt { head, position } = accepted(store, commit(epoch, stream, seq))?;
        assert_eq!(journal(store, stream)?.last().map(|record| record.head), Some(head));
        assert!(last_position < Some(position), "{last_position:?} then {position}");
        last_position = Some(position);
    }
    Ok(())
}

fn streams_are_apart(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let streams = [run(1), run(2), Stream::Own(7), Stream::Own(8)];
    let inbox = Stream::Inbox(run_key(1));
    for seq in 0..2 {
        for stream in streams {
            accepted(store, commit(epoch, stream, seq))?;
        }
        store.push_inbox(commit(epoch, inbox, seq), 0).wait()?;
    }
    for stream in streams.into_iter().chain([inbox]) {
        let payloads: Vec<_> = journal(store, stream)?.into_iter().map(|record| record.payload).collect();
        let expected = [0, 1].map(|seq| Some(commit(epoch, stream, seq).payload));
        assert_eq!(payloads, expected);
    }
    Ok(())
}

fn conflicts(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let conflict = |expected, next| Err(Error::Conflict { stream: run(1), expected, next });
    assert_eq!(accepted(store, commit(epoch, run(1), 1)), conflict(1, 0));
    accepted(store, commit(epoch, run(1), 0))?;
    let again = Commit { puts: vec![put(b"a", b"1")], ..commit(epoch, run(1), 0) };
    assert_eq!(accepted(store, again), conflict(0, 1));
    assert_eq!(accepted(store, commit(epoch, run(1), 2)), conflict(2, 1));
    assert_untouched(store, run(1), 1)?;
    assert_eq!(store.scan(b"a", None, 9)?, []);
    accepted(store, commit(epoch, run(1), 1)).map(drop)
}

fn fences(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    accepted(store, commit(epoch, run(1), 0))?;
    let newer = store.claim()?;
    assert!(newer > epoch, "{newer:?} after {epoch:?}");
    let fenced = || Err(Error::Fenced { got: epoch.0, current: newer.0 });
    assert_eq!(accepted(store, commit(epoch, run(1), 1)), fenced());
    assert_eq!(accepted(store, commit(epoch, run(2), 0)), fenced());
    assert_eq!(store.push_inbox(commit(epoch, Stream::Inbox(run_key(1)), 0), 0).wait(), fenced());
    assert_untouched(store, run(2), 0)?;
    assert_untouched(store, Stream::Inbox(run_key(1)), 0)?;
    accepted(store, commit(newer, run(1), 1))?;
    let epochs: Vec<_> = journal(store, run(1))?.into_iter().map(|record| record.epoch).collect();
    assert_eq!(epochs, [epoch, newer]);
    Ok(())
}

fn puts_in_order(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let puts =
        vec![put(b"a", b"1"), put(b"b", b"1"), put(b"a", b"2"), delete(b"b"), delete(b"c"), put(b"c", b"1")];
    accepted(store, Commit { puts: puts.clone(), ..commit(epoch, run(1), 0) })?;
    let values = [store.scan(b"a", None, 9)?, store.scan(b"b", None, 9)?, store.scan(b"c", None, 9)?];
    assert_eq!(values, [pairs(&[(b"a", b"2")]), pairs(&[]), pairs(&[(b"c", b"1")])]);
    assert_eq!(journal(store, run(1))?.pop().map(|record| record.puts), Some(puts));
    Ok(())
}

fn ordered(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let key = [run_prefix(run_key(1)).as_slice(), b"a"].concat();
    let first =
        Commit { durability: Durability::Ordered, puts: vec![put(&key, b"1")], ..commit(epoch, run(1), 0) };
    let receipt = accepted(store, first)?;
    let loaded = store.load(run_key(1))?;
    assert_eq!((loaded.head, loaded.values), (Some(receipt.head), pairs(&[(&key, b"1")])));
    assert_eq!(store.scan(&key, None, 9)?, pairs(&[(&key, b"1")]));
    let position = accepted(store, commit(epoch, run(2), 0))?.position;
    assert!(position > receipt.position, "{position} after {}", receipt.position);
    assert_eq!(journal(store, run(1))?.first().map(|record| record.head), Some(receipt.head));
    Ok(())
}

fn pipelined(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let send = |seq| {
        let durability = if seq % 3 == 0 { Durability::Durable } else { Durability::Ordered };
        store.commit(Commit { durability, puts: vec![put(b"a", &[seq as u8])], ..commit(epoch, run(1), seq) })
    };
    let tickets: Vec<Ticket> = (0..100).map(send).collect();
    let receipts: Vec<Receipt> = tickets.into_iter().map(Ticket::wait).collect::<Result<_, _>>()?;
    assert!(receipts.iter().map(|receipt| receipt.head.seq).eq(0..100));
    assert!(receipts.is_sorted_by(|one, next| one.position < next.position));
    assert_eq!(store.scan(b"a", None, 9)?, pairs(&[(b"a", &[99])]));
    Ok(())
}

fn dropped_ticket(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    drop(store.commit(commit(epoch, run(1), 0)));
    accepted(store, commit(epoch, run(1), 1))?;
    assert_untouched(store, run(1), 2)
}

fn too_large(store: &dyn Store, epoch: Epoch) -> Result<(), Error> {
    let sized = |bytes| Commit { puts: vec![put(b"a", &vec![1; bytes])], ..commit(epoch, run(1), 0) };
    let answer = accepted(store, sized(VALUE_BYTES_MAX + 1));
    let is_refused = matches!(answer, Err(Error::TooLarge { got: 4_097, max: 4_096, .. }));
    assert!(is_refused, "{answer:?}");
    assert_untouched(store, run(1), 0)?;
    accepted(store, sized(VALUE_BYTES_MAX))?;
    assert_eq!(store.scan(b"a", None, 9)?, pairs(&[(b"a", &[1; VALUE_BYTES_MAX])]));
    Ok(())
}
