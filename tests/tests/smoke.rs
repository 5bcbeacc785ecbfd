use engine::{Engine, Job, Rest, provider::Rehearsal, replay};
use futures_util::StreamExt;
use serde_json::json;

#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let script = json!({"turns":[{"text":"hi","calls":[{"tool":"write","args":{"path":"a.txt","content":"x"}},{"tool":"ls","args":{}}]},{"text":"done"}]});
    let engine =
        Engine::builder(dir.path()).provider("m", Rehearsal::from_value(&script).unwrap()).open().unwrap();
    let run = engine.submit(Job::new("hello").model("m").workspace(work.path())).await.unwrap();
    let mut events = Box::pin(run.events(None).unwrap());
    while let Some(event) = events.next().await {
        println!("{}", event.unwrap().to_json());
    }
    println!("{:?}", run.outcome().await);
    let replayed = replay(&**engine.store(), run.id, None).unwrap();
    println!("{:?}", replayed);
    assert_eq!(replayed.difference, None);
    println!("{:?}", engine.journal().unwrap().stats());
    engine.close().await.unwrap();
}
