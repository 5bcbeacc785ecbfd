//! What a source of the embedding program gives is accepted once, also if the engine dies before it notes that it asked.
#![allow(clippy::unwrap_used, reason = "a test states what it relies on")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::harness::{Harness, Sources};
use engine::provider::Rehearsal;
use engine::{Engine, Job, Rest, query};
use model::{Message, Millis, RunId};
use serde_json::json;
use store::{
    Commit, Epoch, Error, Loaded, MemoryStore, Pairs, Purge, Purged, Record, RunKey, Seq, Store, Stream,
    Ticket,
};

/// A store that takes nothing more once it has taken an item for a run: its process dies there.
struct Dying {
    store: Arc<MemoryStore>,
    is_dead: AtomicBool,
}

impl Store for Dying {
    fn commit(&self, commit: Commit) -> Ticket {
        if self.is_dead.load(Ordering::Relaxed) {
            return Ticket::ready(Err(Error::Closed));
        }
        self.store.commit(commit)
    }

    fn push_inbox(&self, item: Commit, consumed: u64) -> Ticket {
        self.is_dead.store(true, Ordering::Relaxed);
        self.store.push_inbox(item, consumed)
    }

    fn load(&self, run: RunKey) -> Result<Loaded, Error> {
        self.store.load(run)
    }

    fn claim(&self) -> Result<Epoch, Error> {
        self.store.claim()
    }

    fn read_journal(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.store.read_journal(stream, from, limit)
    }

    fn read_transcript(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Record>, Error> {
        self.store.read_transcript(stream, from, limit)
    }

    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: usize) -> Result<Pairs, Error> {
        self.store.scan(prefix, after, limit)
    }

    fn purge(&self, runs: &[Purge]) -> Result<Purged, Error> {
        self.store.purge(runs)
    }
}

/// Says the same two things at the first poll of a life, and nothing after.
#[derive(Default)]
struct Insistent(AtomicBool);

#[async_trait::async_trait]
impl Sources for Insistent {
    async fn steering(&self, _run: RunId) -> Vec<Message> {
        if self.0.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        vec![Message::user("quickly", Millis(1)), Message::user("quickly", Millis(1))]
    }
}

fn open(store: Arc<dyn Store>) -> Engine {
    let script = Rehearsal::from_value(&json!({ "turns": [{ "text": "done" }], "after": "stop" })).unwrap();
    let harness = Harness { sources: Some(Arc::new(Insistent::default())), ..Harness::default() };
    Engine::memory().store(store).provider("m", script).harness(harness).open().unwrap()
}

#[tokio::test]
async fn a_source_that_is_asked_again_after_a_death_adds_nothing() {
    let store = Arc::new(MemoryStore::new());
    let dying = Dying { store: Arc::clone(&store), is_dead: AtomicBool::new(false) };
    let run =
        open(Arc::new(dying)).submit(Job::new("go").model("m").tools(Vec::<String>::new())).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Failed(Error::Closed.to_string()));

    let engine = open(Arc::clone(&store) as Arc<dyn Store>);
    engine.resume(None).unwrap();
    assert!(matches!(engine.handle(run.id).outcome().await.unwrap(), Rest::Done { .. }));
    let transcript = query::transcript(&*store, run.id).unwrap();
    let said = transcript.iter().map(|entry| entry.message.joined_text()).filter(|text| text == "quickly");
    assert_eq!(said.count(), 2);
}
