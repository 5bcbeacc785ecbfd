//! An item that is accepted between a driver's last look at the inbox and the commit that ends the run: the end names
//! the inbox that it has seen, so the item is delivered and not left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::provider::Rehearsal;
use engine::{Engine, Job, Rest};
use model::inbox::Item;
use model::{Message, Millis, Outcome};
use serde_json::json;
use store::{
    Commit, Durability, Epoch, Error, Hash, Loaded, MemoryStore, Record, RecordKind, RunKey, Seq, Store,
    Stream, Ticket,
};

/// Accepts a follow-up for a run right before the first commit that would end it.
#[derive(Default)]
struct Late {
    inner: MemoryStore,
    has_come: AtomicBool,
}

impl Store for Late {
    fn commit(&self, commit: Commit) -> Ticket {
        if let (Stream::Run(run), true) = (commit.stream, commit.kind.ends_stream)
            && !self.has_come.swap(true, Ordering::AcqRel)
        {
            let item = Item::FollowUp(Message::user("and this", Millis(commit.at_ms)));
            let kind = RecordKind { code: 2, carries_messages: false, ends_stream: false };
            let pushed = Commit {
                stream: Stream::Inbox(run),
                kind,
                payload: item.to_bytes(),
                puts: Vec::new(),
                state_hash: Hash::default(),
                requires: Vec::new(),
                durability: Durability::Durable,
                ..commit.clone()
            };
            // The store in memory answers at once.
            drop(self.inner.push_inbox(pushed, 0));
        }
        self.inner.commit(commit)
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        self.inner.push_inbox(item, consumed)
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.inner.load(run)
    }

    fn claim(&self) -> Result<Epoch, Error> {
        self.inner.claim()
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.inner.read_journal(stream, from, limit)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.inner.read_transcript(stream, from, limit)
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<store::Pairs, Error> {
        self.inner.scan(prefix, after, limit)
    }

    fn purge(&self, runs: &[store::Purge]) -> Result<store::Purged, Error> {
        self.inner.purge(runs)
    }
}

#[tokio::test]
async fn an_item_accepted_at_the_last_moment_is_delivered() {
    let script = json!({ "turns": [{ "text": "done" }, { "text": "and that too" }] });
    let engine = Engine::memory()
        .store(Arc::new(Late::default()))
        .provider("m", Rehearsal::from_value(&script).unwrap())
        .open()
        .unwrap();
    let run = engine.submit(Job::new("this").model("m")).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Completed, reason: None });
    let transcript = engine::query::transcript(&**engine.store(), run.id).unwrap();
    let texts: Vec<String> = transcript.iter().map(|entry| entry.message.joined_text()).collect();
    assert_eq!(texts, ["this", "done", "and this", "and that too"]);
}
