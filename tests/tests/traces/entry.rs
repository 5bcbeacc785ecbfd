//! The entry points: streams with back-pressure, stored runs that go on, queues that nobody loses.

use std::sync::Arc;

use engine::{
    AgentEvent, Engine, Error, Job, LoopConfig, Rest, RunHandle, TranscriptNotContinuable, agent_loop,
    agent_loop_continue,
};
use futures_util::StreamExt;
use model::{Message, Outcome, Role};

use crate::harness::{Shown, script, user};
use crate::log::{Log, event_line, label};
use crate::parts::{Body, Reply, ScriptedModel, ScriptedTool, calls, text, tool};

const DONE: Rest = Rest::Done { outcome: Outcome::Completed, reason: None };

/// Turns that have more events than a stream holds.
fn long() -> Vec<Reply> {
    (0..20).map(|_| calls(&[("1", "t")])).chain([text("end")]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_delays_the_run() {
    let scenario = script("").tools([tool("t", "y")]).model(long());
    let (config, log) = scenario.config();
    let mut events = Box::pin(agent_loop(&config, scenario.prompts.clone(), Vec::new()));
    assert_eq!(events.next().await.unwrap().event, AgentEvent::AgentStart);
    // The clock of the test moves only when nothing else can.
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(log.has("MODEL#2(ctx=uatr)"), "the run has begun");
    let calls_before = log.events().len();
    assert!(calls_before < 15, "the run waits for its reader, after {calls_before} model calls");
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event_line(&event.event));
    }
    assert_eq!(log.events().len(), 21);
    assert!(last.unwrap().starts_with("agent_end[user:hi, "));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_leaves_ends_the_run() {
    let scenario = script("").tools([tool("t", "y")]).model(long());
    let (config, log) = scenario.config();
    let mut events = Box::pin(agent_loop(&config, scenario.prompts.clone(), Vec::new()));
    events.next().await.unwrap();
    drop(events);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(log.events().len() < 15);
    assert_eq!(config.engine.live_runs().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_start_still_ends_in_agent_end() {
    let (config, _) = script("").config();
    let job = Job { model: Some("nobody".into()), ..config.job.clone() };
    let config = LoopConfig { job, ..config };
    let events: Vec<String> = agent_loop(&config, vec![user("hi")], Vec::new())
        .map(|event| event_line(&event.event))
        .collect()
        .await;
    let expected = [
        "message_start(assistant:error)",
        "message_end(assistant:error)",
        "turn_end(assistant:error; results=)",
        "agent_end[assistant:error]",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn a_transcript_that_cannot_go_on_gives_no_stream() {
    let (config, log) = script("").config();
    let refused = |transcript| agent_loop_continue(&config, transcript).map(|_| ()).unwrap_err();
    let empty = TranscriptNotContinuable { last_role: None, dangling_calls: Vec::new() };
    assert_eq!(refused(Vec::new()), empty);
    let dangling = calls(&[("1", "t"), ("2", "t")]).message();
    let answered = TranscriptNotContinuable {
        last_role: Some(Role::Assistant),
        dangling_calls: vec!["1".into(), "2".into()],
    };
    assert_eq!(refused(vec![user("u"), dangling]), answered);
    assert_eq!(log.events(), [""; 0]);
}

/// An engine on a directory, with one scripted model and one tool.
fn open(dir: &std::path::Path, replies: &[Reply], body: Body) -> (Engine, Arc<Log>) {
    let log = Arc::new(Log::new(None, Shown::Calls));
    let engine = Engine::builder(dir)
        .provider("m", ScriptedModel::new(&log, replies))
        .tool(ScriptedTool::new(&log, body))
        .without_commands()
        .open()
        .unwrap();
    (engine, log)
}

fn job(prompt: &str) -> Job {
    Job::new(prompt).model("m").tools(["t"]).session("s")
}

/// The transcript of a run that has ended, from its events.
async fn transcript(run: &RunHandle) -> Vec<String> {
    let mut events = Box::pin(run.events(None).unwrap());
    let mut labels = Vec::new();
    while let Some(event) = events.next().await {
        if let AgentEvent::MessageEnd { message } = event.unwrap().event {
            labels.push(label(&message));
        }
    }
    labels
}

#[tokio::test]
async fn a_stored_run_goes_on_from_its_phase_and_a_finished_one_from_its_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let (first, log) = open(dir.path(), &[text("").hangs()], tool("t", "y"));
    let run = first.submit(job("hi")).await.unwrap();
    log.written("MODEL#1").await;
    first.close().await.unwrap();

    let (second, log) = open(dir.path(), &[calls(&[("1", "t")]), text("end")], tool("t", "y"));
    let again = second.agent_loop_continue(run.id).await.unwrap();
    assert_eq!(again.id, run.id);
    assert_eq!(again.outcome().await.unwrap(), DONE);
    assert_eq!(log.events(), ["MODEL#1(ctx=u)", "EXEC 1", "MODEL#2(ctx=uatr)"]);

    let refused = second.agent_loop_continue(run.id).await.map(|run| run.id).unwrap_err();
    let Error::NotContinuable(refused) = refused else { panic!("{refused}") };
    assert_eq!(
        refused,
        TranscriptNotContinuable { last_role: Some(Role::Assistant), dangling_calls: Vec::new() }
    );
    second.close().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_run_is_continued_by_a_new_one_that_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, log) =
        open(dir.path(), &[calls(&[("1", "t")]), text("resumed")], tool("t", "y").waits_for_cancel());
    let run = engine.submit(job("hi")).await.unwrap();
    log.written("EXEC 1").await;
    run.cancel("enough", None).await.unwrap();
    let cancelled = Rest::Done { outcome: Outcome::Cancelled, reason: Some("enough".into()) };
    assert_eq!(run.outcome().await.unwrap(), cancelled);

    let next = engine.agent_loop_continue(run.id).await.unwrap();
    assert_ne!(next.id, run.id);
    assert_eq!(next.outcome().await.unwrap(), DONE);
    assert_eq!(log.events(), ["MODEL#1(ctx=u)", "EXEC 1", "MODEL#2(ctx=uatrau)"]);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn what_is_queued_while_a_call_runs_is_taken_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let replies: Vec<Reply> = [calls(&[("1", "t")])].into_iter().chain((0..5).map(|_| text("a"))).collect();
    let (engine, log) = open(dir.path(), &replies, tool("t", "y").waits_for("GO"));
    let run = engine.submit(job("hi")).await.unwrap();
    log.written("EXEC 1").await;
    run.follow_up(user("f1"), None).await.unwrap();
    run.steer(user("s1"), None).await.unwrap();
    run.follow_up(user("f2"), None).await.unwrap();
    run.steer(user("s2"), Some("key")).await.unwrap();
    run.steer(user("s2"), Some("key")).await.unwrap();
    log.whisper("GO");
    assert_eq!(run.outcome().await.unwrap(), DONE);
    let expected = [
        "user:hi",
        "assistant:toolUse+calls",
        "toolResult:1",
        "user:s1",
        "assistant:stop",
        "user:s2",
        "assistant:stop",
        "user:f1",
        "assistant:stop",
        "user:f2",
        "assistant:stop",
    ];
    assert_eq!(transcript(&run).await, expected);
    let late: Result<(), Error> = run.steer(Message::user("late", engine.now()), None).await;
    assert!(matches!(late, Err(Error::RunEnded(_))));
    engine.close().await.unwrap();
}
