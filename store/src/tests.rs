//! Tests of the journal and of the store on it, with a disk that can be cut and made to fail.

mod broken_disk;
mod conformance;
mod crash;
mod damage;
#[path = "../../tests/src/documented.rs"]
#[allow(dead_code, unreachable_pub, reason = "the suites of the workspace share it, and use more of it")]
mod documented;
mod faults;
mod golden;
mod purge;
mod salvage;
mod store;

use std::path::Path;
use std::sync::Arc;

use crate::conformance::{commit, run_key};
use crate::fs::Fs;
use crate::{Durability, Epoch, Error, JournalStore, Options, Put, Receipt, RecordKind, Seq, Store, Stream};

/// A directory in memory where there is one: these tests lose and keep what they mean to by themselves.
fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Options under which every run does the same disk operations in the same order.
fn options(disk: Arc<dyn Fs>) -> Options {
    Options { disk, linger: None, inline_preparation: true, ..Options::default() }
}

fn open(dir: &Path) -> JournalStore {
    JournalStore::open(dir, options(Arc::new(crate::fs::RealFs))).unwrap()
}

fn run(number: u8) -> Stream {
    Stream::Run(run_key(number))
}

fn durable(store: &dyn Store, epoch: Epoch, stream: Stream, seq: Seq) -> Result<Receipt, Error> {
    store.commit(with_put(commit(epoch, stream, seq))).wait()
}

fn ordered(store: &dyn Store, epoch: Epoch, stream: Stream, seq: Seq) -> Result<Receipt, Error> {
    let commit = crate::Commit { durability: Durability::Ordered, ..with_put(commit(epoch, stream, seq)) };
    store.commit(commit).wait()
}

/// The commit with a put that tells stream and sequence number.
fn with_put(mut commit: crate::Commit) -> crate::Commit {
    let name = format!("{:?}", commit.stream);
    commit.puts = vec![Put {
        key: [b"k", name.as_bytes()].concat(),
        value: Some(commit.expect_seq.to_le_bytes().to_vec()),
    }];
    commit.kind = RecordKind { carries_messages: commit.expect_seq.is_multiple_of(2), ..commit.kind };
    commit
}

fn seqs(store: &dyn Store, stream: Stream) -> Vec<Seq> {
    let records = store.read_journal(stream, 0, usize::MAX).unwrap();
    records.iter().map(|record| record.head.seq).collect()
}
