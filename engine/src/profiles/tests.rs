//! A change shows when its commit is durable, changes go one after the other, and what is committed is read back.

use futures_util::FutureExt;
use model::input::FailureKind;
use model::message::Usage;
use store::{Commit, Durability, Hash, MemoryStore, RecordKind, RunKey, Stream};

use super::*;

const NOW: Millis = Millis(1_000_000);

fn auth() -> Failure {
    Failure {
        kind: FailureKind::Auth,
        message: Label::from(""),
        retry_after_ms: None,
        had_text: false,
        usage: Usage::default(),
        partial: None,
    }
}

fn verdict(what: What<'_>) -> Verdict<'_> {
    Verdict { profile: "work".into(), model: Label::from("m"), at: NOW, what }
}

#[tokio::test]
async fn a_change_whose_commit_fails_has_not_happened() {
    let profiles = Profiles::default();
    let failure = auth();
    let failed = verdict(What::Failed { failure: &failure, had_started: false });
    drop(profiles.change(&failed).await.unwrap());
    assert_eq!(profiles.health("work"), Health::default());
    profiles.change(&failed).await.unwrap().keep();
    assert_eq!(profiles.health("work").errors, 1);
}

#[tokio::test]
async fn of_two_failures_at_once_the_second_builds_on_the_first() {
    let profiles = Profiles::default();
    let failure = auth();
    let failed = verdict(What::Failed { failure: &failure, had_started: false });
    let first = profiles.change(&failed).await.unwrap();
    let mut second = std::pin::pin!(profiles.change(&failed));
    assert!(second.as_mut().now_or_never().is_none(), "it waits for the commit of the first");
    first.keep();
    second.await.unwrap().keep();
    assert_eq!(profiles.health("work").errors, 2);
}

#[tokio::test]
async fn an_answer_of_a_profile_that_is_well_changes_nothing() {
    let profiles = Profiles::default();
    assert!(profiles.change(&verdict(What::Answered)).await.is_none());
    assert!(profiles.change(&verdict(What::Asked)).await.is_none());
}

#[tokio::test]
async fn a_probe_that_was_taken_meanwhile_is_not_forgotten() {
    let profiles = Profiles::default();
    let failure = auth();
    let failed = verdict(What::Failed { failure: &failure, had_started: false });
    profiles.change(&failed).await.unwrap().keep();
    let second = profiles.change(&failed).await.unwrap();
    profiles.probe("work", NOW.plus(1));
    second.keep();
    assert_eq!(profiles.health("work").probed_at, Some(NOW.plus(1)));
}

async fn commit(store: &MemoryStore, seq: u64, change: &HealthChange<'_>) {
    let commit = Commit {
        stream: Stream::Run(RunKey([1; 16])),
        expect_seq: seq,
        epoch: store.claim().unwrap(),
        at_ms: NOW.0,
        logic_version: 1,
        kind: RecordKind { code: 1, carries_messages: false, ends_stream: false },
        payload: Vec::new(),
        puts: vec![change.put()],
        state_hash: Hash::default(),
        requires: Vec::new(),
        durability: Durability::Durable,
    };
    store.commit(commit).await.unwrap();
}

#[tokio::test]
async fn what_is_committed_is_read_back_and_a_profile_that_is_well_has_no_entry() {
    let (store, profiles) = (MemoryStore::new(), Profiles::default());
    let failure = auth();
    let failed = verdict(What::Failed { failure: &failure, had_started: false });
    let change = profiles.change(&failed).await.unwrap();
    commit(&store, 0, &change).await;
    change.keep();
    let again = Profiles::load(&store).unwrap();
    assert_eq!((again.health("work"), again.health("spare")), (profiles.health("work"), Health::default()));

    let answered = verdict(What::Answered);
    let change = again.change(&answered).await.unwrap();
    commit(&store, 1, &change).await;
    change.keep();
    assert_eq!(again.health("work"), Health::default());
    assert_eq!(read(&store).unwrap(), []);
}
