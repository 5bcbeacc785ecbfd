//! Whole answers: what `ls`, `show`, `why`, `transcript` and `journal` say of runs at rest.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use model::inbox::{Control, Item};
use model::input::{Approval, Hook};
use model::{Message, Millis, ParkReason, RunId, ToolResult};
use serde::Serialize;
use serde_json::{Value, json};
use store::Store;

use crate::builder::Builder;
use crate::harness::{BatchCall, HookContext, Hooks, Permission};
use crate::provider::Rehearsal;
use crate::query::{self, Filter, Status};
use crate::tool::{CallContext, Tool, ToolSpec};
use crate::{AgentEvent, Clock, Engine, Entry, Harness, Job, JournalView, Rest, RunHandle, Stamped};

/// A clock that stands still, so that every time in an answer is known.
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Millis {
        Millis(1_798_761_600_000)
    }
}

const NOON: &str = "2027-01-01T00:00:00.000Z";

/// Asks a person about every call of `write`.
struct AskAboutWrites;

#[async_trait]
impl Hooks for AskAboutWrites {
    fn wanted(&self) -> &[Hook] {
        &[Hook::BeforeToolCall]
    }

    async fn before_tool_call(&self, _: HookContext<'_>, call: &BatchCall) -> Result<Permission, String> {
        if call.call.name == "write" {
            return Ok(Permission::Ask("it changes files".to_owned()));
        }
        Ok(Permission::Allow)
    }
}

/// A tool that tells when its body is entered, and never returns.
struct Hang {
    spec: ToolSpec,
    entered: Arc<tokio::sync::Notify>,
}

#[async_trait]
impl Tool for Hang {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _: CallContext) -> Result<ToolResult, String> {
        self.entered.notify_one();
        std::future::pending().await
    }
}

fn hang() -> (Hang, Arc<tokio::sync::Notify>) {
    let entered = Arc::new(tokio::sync::Notify::new());
    let spec = ToolSpec::new("hang", "never returns", json!({ "type": "object" }));
    (Hang { spec, entered: Arc::clone(&entered) }, entered)
}

fn rehearsed(builder: Builder, script: &Value) -> Builder {
    builder.clock(Noon).provider("m", Rehearsal::from_value(script).unwrap())
}

fn asking(builder: Builder) -> Builder {
    builder.harness(Harness { hooks: Some(Arc::new(AskAboutWrites)), ..Harness::default() })
}

fn job(custom_id: &str, work: &Path) -> Job {
    Job {
        batch: Some("night".to_owned()),
        custom_id: Some(custom_id.to_owned()),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        ..Job::new("please").model("m").session("s").workspace(work).tools(["write", "ls"])
    }
}

fn write_then_done() -> Value {
    let usage = json!({ "input": 10, "output": 2 });
    json!({ "turns": [
        { "text": "writing", "usage": usage, "calls": [
            { "tool": "ls", "args": {} },
            { "tool": "write", "args": { "path": "a.txt", "content": "x" } },
        ] },
        { "text": "done", "usage": usage },
    ] })
}

/// The JSON of an answer. What differs from run to run (ids, hashes, workspace, the provider's times) is
/// replaced by a word.
fn json_of(run: RunId, answer: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(answer).unwrap();
    plain(&mut value, &run.to_string());
    value
}

fn plain(value: &mut Value, run: &str) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            *text = text.replace(run, "RUN");
            if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                *text = "HASH".to_owned();
            } else if text.starts_with("request ") {
                *text = "request HASH".to_owned();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| plain(item, run)),
        Value::Object(fields) => {
            fields.remove("turnId");
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    "timestamp" => *field = 0.into(),
                    "workspace" => *field = "WORK".into(),
                    _ => plain(field, run),
                }
            }
        }
    }
}

fn why(engine: &Engine, run: RunId, has_owner: bool) -> (String, Option<String>) {
    why_in(&**engine.store(), run, has_owner)
}

fn why_in(store: &dyn Store, run: RunId, has_owner: bool) -> (String, Option<String>) {
    let why = query::why(store, run, has_owner).unwrap();
    let plain = |text: String| text.replace(&run.to_string(), "RUN");
    (plain(why.sentence), why.command.map(plain))
}

fn pair(sentence: &str, command: &str) -> (String, Option<String>) {
    (sentence.to_owned(), Some(command.to_owned()))
}

fn alone(sentence: &str) -> (String, Option<String>) {
    (sentence.to_owned(), None)
}

/// Every answer about a run, as one value.
fn answers(store: &dyn Store, run: RunId) -> Value {
    let rows: Vec<_> = query::journal(store, run, 0).unwrap().map(Result::unwrap).collect();
    json!({
        "list": query::list(store, &Filter::default()).unwrap(),
        "show": query::show(store, run).unwrap(),
        "why": query::why(store, run, false).unwrap(),
        "transcript": query::transcript(store, run).unwrap(),
        "session": query::session_transcript(store, run).unwrap(),
        "journal": rows,
        "inbox": query::inbox_rows(store, run).unwrap(),
        "counts": query::counts(store, None).unwrap(),
    })
}

/// What the list says of the run with one call that waits for approval.
fn parked_row() -> Value {
    json!({
        "run": "RUN", "custom_id": "one", "batch": "night", "session": "s", "status": "parked",
        "phase": "parked(approval, from execute_tools(turn 0, prepare))", "model": "m", "turns": 1,
        "started_at": NOON, "updated_at": NOON, "waiting_for": "approval of RUN/0.1",
        "labels": { "team": "a" },
    })
}

/// What `show` adds to it.
fn parked_view() -> Value {
    json!({
        "prompt": "please", "thinking": "off", "workspace": "WORK", "tools": ["write", "ls"],
        "config": "HASH", "reason": null,
        "routes": { "profile": null, "fallback": 0, "models": ["m"], "cooling": [] },
        "counters": {
            "transitions": 8, "model_calls": 1, "calls_lost": 0, "tool_calls": 1,
            "retries": {
                "charges": 1, "budget": 32, "fallback": 0, "chain_restarts": 0, "profile": 0, "passing": 0,
                "transport_drops": 0, "silent": 0, "reasoning_only": 0, "missing": 0, "empty": 0,
                "rate_limit": 0, "rate_limit_rotations": 0, "overload_rotations": 0, "same_model_idle": 0,
                "overflow_compactions": 0, "timeout_compactions": 0, "compaction_continuations": 0,
                "finalize_revisions": 0, "truncations": 0, "idle_breaker": 0,
            },
        },
        "guards": {
            "critical_tool_loop_seen": false, "idle_breaker": 0, "loop_window": 1, "loop_warnings": 0,
            "blocked_loop": null,
            "crashes": 0, "is_tainted": false,
        },
        "usage": { "input": 10, "output": 2, "cache_read": 0, "cache_write": 0 },
        "usd": 0.0,
        "usd_is": "counted",
        "limits": { "timeout_s": 172_800, "turns": 0, "calls": 0, "tokens": 0, "usd": 0.0 },
        "deadline": { "at": "2027-01-03T00:00:00.000Z", "paused_since": NOON },
        "heads": { "seq": 8, "hash": "HASH" },
        "journal_head": "HASH",
        "owner_epoch": 1,
        "inbox": { "accepted": 1, "taken": { "steering": 0, "follow_up": 0, "control": 0 } },
        "calls": [
            { "call": "RUN/0.0", "tool": "ls", "id": "call-0-0", "args": {}, "status": "done",
              "class": "read_only", "reason": null },
            { "call": "RUN/0.1", "tool": "write", "id": "call-0-1",
              "args": { "path": "a.txt", "content": "x" }, "status": "awaiting_approval", "class": "probe",
              "reason": "it changes files" },
        ],
        "earlier_turns": null,
        "turn_table": [
            { "turn": 0, "model": "m", "profile": null, "attempts": 1, "model_calls": 1, "calls_lost": 0,
              "lost": { "tokens": 0, "usd": 0.0 },
              "usage": { "input": 10, "output": 2, "cache_read": 0, "cache_write": 0 },
              "usd": 0.0, "usd_is": "counted", "tools": ["ls", "write"] },
        ],
        "attempts": [],
    })
}

async fn parked_for_approval(engine: &Engine, work: &Path) -> RunHandle {
    let run = engine.submit(job("one", work)).await.unwrap();
    assert_eq!(run.outcome().await.unwrap(), Rest::Parked(ParkReason::Approval));
    run
}

#[tokio::test]
async fn a_run_that_waits_for_approval_is_shown_in_full() {
    let work = tempfile::tempdir().unwrap();
    let engine = asking(rehearsed(Engine::memory(), &write_then_done())).open().unwrap();
    let run = parked_for_approval(&engine, work.path()).await;
    run.steer(Message::user("be  quick\nplease", Millis(7)), None).await.unwrap();
    let store = &**engine.store();

    assert_eq!(json_of(run.id, &query::list(store, &Filter::default()).unwrap()), json!([parked_row()]));
    let mut whole = parked_row();
    whole.as_object_mut().unwrap().extend(parked_view().as_object().unwrap().clone());
    assert_eq!(json_of(run.id, &query::show(store, run.id).unwrap()), whole);
    assert_eq!(
        why(&engine, run.id, true),
        pair("It waits for a person to approve RUN/0.1 (write): it changes files.", "sprag approve RUN/0.1")
    );
    let inbox = json!([
        { "position": 0, "at": NOON, "item": "steering", "details": "be quick please", "is_taken": false },
    ]);
    assert_eq!(json_of(run.id, &query::inbox_rows(store, run.id).unwrap()), inbox);
}

#[tokio::test]
async fn the_journal_shows_each_transition_and_can_begin_anywhere() {
    let work = tempfile::tempdir().unwrap();
    let engine = asking(rehearsed(Engine::memory(), &write_then_done())).open().unwrap();
    let run = parked_for_approval(&engine, work.path()).await;
    run.decide(0, 1, Approval::Approve, None).await.unwrap();
    run.outcome().await.unwrap();
    let rows: Vec<_> = query::journal(&**engine.store(), run.id, 0).unwrap().map(Result::unwrap).collect();
    let lines: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row.seq, row.input, row.details).trim().to_owned())
        .collect();
    let expected = [
        "0 submitted 1 prompt, model m",
        "1 admitted",
        "2 drained 1 message",
        "3 request_prepared",
        "4 model_answered toolUse, 2 calls, 12 tokens",
        "5 batch_admitted 2 calls, 0 refused, sequential",
        "6 hook_returned before_tool_call on call 0: proceed",
        "7 tool_returned call 0: ok",
        "8 hook_returned before_tool_call on call 1: ask: it changes files",
        "9 approval_given call 0.1: approved",
        "10 tool_returned call 1: ok",
        "11 request_prepared",
        "12 model_answered stop, 0 calls, 12 tokens",
    ];
    let without_hash = |line: &String| line.split(" request ").next().unwrap_or_default().to_owned();
    assert_eq!(lines.iter().map(without_hash).collect::<Vec<_>>(), expected);

    let tail: Vec<_> = query::journal(&**engine.store(), run.id, 11).unwrap().map(Result::unwrap).collect();
    assert_eq!(tail, rows[11..]);
    let newest = json!({
        "seq": 12, "at": NOON, "before": "stream(turn 1, attempt 0, in_flight)", "after": "done(completed)",
        "input": "model_answered", "details": "stop, 0 calls, 12 tokens", "barrier": true, "epoch": 1,
        "hash": "HASH",
    });
    assert_eq!(json_of(run.id, &rows[12]), newest);
}

#[tokio::test]
async fn a_transcript_is_of_one_run_and_a_session_of_all_before_it() {
    let work = tempfile::tempdir().unwrap();
    let script = json!({ "turns": [{ "text": "to {{custom_id}}" }] });
    let engine = rehearsed(Engine::memory(), &script).open().unwrap();
    let texts = |entries: Vec<Entry>| -> Vec<String> {
        entries.iter().map(|entry| entry.message.joined_text()).collect()
    };
    let first = engine.submit(job("one", work.path())).await.unwrap();
    first.outcome().await.unwrap();
    let second = engine.submit(job("two", work.path())).await.unwrap();
    second.outcome().await.unwrap();
    let store = &**engine.store();
    assert_eq!(texts(query::transcript(store, second.id).unwrap()), ["please", "to two"]);
    let session = query::session_transcript(store, second.id).unwrap();
    assert_eq!(texts(session), ["please", "to one", "please", "to two"]);
    let user = json!({ "role": "user", "content": [{ "type": "text", "text": "please" }], "timestamp": 0 });
    assert_eq!(json_of(first.id, &query::transcript(store, first.id).unwrap())[0], user);
    assert_eq!(why(&engine, first.id, false), alone("It completed after 1 turn."));
}

#[tokio::test]
async fn a_journal_alone_gives_the_same_answers_as_its_store() {
    let (dir, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine =
        asking(rehearsed(Engine::builder(dir.path()).without_commands(), &write_then_done())).open().unwrap();
    let run = parked_for_approval(&engine, work.path()).await;
    run.follow_up(Message::user("and then", Millis(7)), None).await.unwrap();
    let view = JournalView::open(dir.path()).unwrap();
    assert_eq!(answers(&view, run.id), answers(&**engine.store(), run.id));
    run.decide(0, 1, Approval::Deny("no".into()), None).await.unwrap();
    run.outcome().await.unwrap();
    let view = JournalView::open(dir.path()).unwrap();
    let all = answers(&view, run.id);
    assert_eq!(all, answers(&**engine.store(), run.id));
    assert_eq!(all["counts"]["failed"], 1);
    engine.close().await.unwrap();
}

/// Seventeen runs that have ended, in order of submission; of so many ids, two begin with the same digit.
async fn seventeen(engine: &Engine, work: &Path) -> Vec<RunId> {
    let mut runs = Vec::new();
    for index in 0..17 {
        let labels = [("parity".to_owned(), (index % 2).to_string())].into();
        let custom_id = format!("job-{index}");
        let job = Job { labels, session: Some(custom_id.clone()), ..job(&custom_id, work) };
        let run = engine.submit(job).await.unwrap();
        run.outcome().await.unwrap();
        runs.push(run.id);
    }
    runs
}

#[tokio::test]
async fn the_list_is_newest_first_and_takes_filters() {
    let work = tempfile::tempdir().unwrap();
    let script = json!({ "turns": [{ "text": "hi" }] });
    let engine = rehearsed(Engine::memory(), &script).open().unwrap();
    let runs = seventeen(&engine, work.path()).await;
    let store = &**engine.store();
    let listed = |filter: Filter| -> Vec<RunId> {
        query::list(store, &filter).unwrap().iter().map(|row| row.run).collect()
    };
    // The clock stands still, so the ids alone give the order.
    let mut sorted = runs.clone();
    sorted.sort();
    assert_eq!(listed(Filter::default()), sorted);
    assert_eq!(listed(Filter { limit: 3, ..Filter::default() }), sorted[..3]);
    assert_eq!(listed(Filter { limit: 0, ..Filter::default() }), sorted);
    assert_eq!(listed(Filter { session: Some("job-3".into()), ..Filter::default() }), [runs[3]]);
    assert_eq!(listed(Filter { status: Some(Status::Parked), ..Filter::default() }), []);
    assert_eq!(listed(Filter { batch: Some("day".into()), ..Filter::default() }), []);
    let is_odd = |run: &RunId| runs.iter().position(|other| other == run).unwrap() % 2 == 1;
    let odd: Vec<RunId> = sorted.iter().copied().filter(is_odd).collect();
    let labels = [("parity".to_owned(), "1".to_owned())].into();
    assert_eq!(listed(Filter { labels, ..Filter::default() }), odd);
    let counts = query::counts(store, Some("night")).unwrap();
    assert_eq!(counts, query::Counts { completed: 17, ..query::Counts::default() });
    assert_eq!(query::counts(store, Some("day")).unwrap().total(), 0);
}

#[tokio::test]
async fn the_beginning_of_an_id_finds_one_run_or_says_which_it_may_be() {
    let work = tempfile::tempdir().unwrap();
    let script = json!({ "turns": [{ "text": "hi" }] });
    let engine = rehearsed(Engine::memory(), &script).open().unwrap();
    let mut runs = seventeen(&engine, work.path()).await;
    let store = &**engine.store();
    runs.sort();
    for run in &runs {
        let id = run.to_string();
        assert_eq!(query::find_run(store, &id).unwrap(), *run);
        assert_eq!(query::find_run(store, &id[..9].to_uppercase()).unwrap(), *run);
    }
    let digit = |run: &RunId| run.to_string()[..1].to_owned();
    let shared = runs.windows(2).map(|two| (digit(&two[0]), digit(&two[1]))).find(|(a, b)| a == b).unwrap().0;
    let same: Vec<String> = runs.iter().filter(|run| digit(run) == shared).map(RunId::to_string).collect();
    let error = query::find_run(store, &shared).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("run `{shared}` may be any of {}; give more digits of the id", same.join(", "))
    );
    let error = query::find_run(store, "").unwrap_err().to_string();
    assert_eq!(error, "no run is named; give the beginning of its id");
    for nothing in ["xyz", &"0".repeat(33), "fffffffffff"] {
        let error = query::find_run(store, nothing).unwrap_err().to_string();
        assert_eq!(error, format!("no run {nothing}; `sprag ls` lists the runs there are"));
    }
}

#[test]
fn calls_are_named_by_run_turn_and_index() {
    assert_eq!(query::parse_call("3f2a/12.0").unwrap(), ("3f2a".to_owned(), 12, 0));
    for bad in ["3f2a", "3f2a/1", "/0.1", "3f2a/a.1", "3f2a/0.70000", "x/0.1"] {
        let error = query::parse_call(bad).unwrap_err().to_string();
        let expected = "expected RUN/TURN.N, like 3f2a/0.1 (`sprag show` lists them)";
        assert_eq!(error, format!("`{bad}` does not name a call; {expected}"));
    }
}

#[tokio::test]
async fn a_used_up_budget_names_the_cap_and_the_command_that_raises_it() {
    let work = tempfile::tempdir().unwrap();
    let engine = rehearsed(Engine::memory(), &write_then_done()).open().unwrap();
    let job = Job { max_calls: Some(1), ..job("one", work.path()) };
    let run = engine.submit(job).await.unwrap();
    run.outcome().await.unwrap();
    let sentence = "It has used 1 of 1 model calls, and the next call would pass the cap.";
    assert_eq!(why(&engine, run.id, true), pair(sentence, "sprag extend RUN --calls 1"));
    let rows = query::list(&**engine.store(), &Filter::default()).unwrap();
    assert_eq!(rows[0].waiting_for.as_deref(), Some("budget: calls"));
}

#[tokio::test]
async fn a_loop_is_named_with_its_count() {
    let work = tempfile::tempdir().unwrap();
    let turn = json!({ "calls": [{ "tool": "ls", "args": {} }] });
    let script = json!({ "turns": [turn], "after": "repeat" });
    let engine = rehearsed(Engine::memory(), &script).open().unwrap();
    let run = engine.submit(job("one", work.path())).await.unwrap();
    run.outcome().await.unwrap();
    let sentence = "It failed after 22 turns: a second critical tool loop; the loop detector generic_repeat \
                    blocked its last calls at a count of 21.";
    assert_eq!(why(&engine, run.id, true), alone(sentence));
}

#[tokio::test(start_paused = true)]
async fn a_backoff_says_until_when_and_why_and_the_lane_who_goes_first() {
    let work = tempfile::tempdir().unwrap();
    let script =
        json!({ "turns": [{ "text": "hi", "fail": [{ "kind": "rate_limit", "message": "slow down" }] }] });
    let engine = rehearsed(Engine::memory(), &script).open().unwrap();
    let first = engine.submit(job("one", work.path())).await.unwrap();
    let second = engine.submit(job("two", work.path())).await.unwrap();
    while query::counts(&**engine.store(), None).unwrap().waiting == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let sentence = "It is waiting until 2027-01-01T00:00:10.000Z before it asks model m again after \
                    rate_limit: slow down (same_model_rate_limit: again in 10 s) (turn 0, attempt 1).";
    assert_eq!(why(&engine, first.id, true), alone(sentence));
    let attempts = json_of(first.id, &query::show(&**engine.store(), first.id).unwrap().attempts);
    let expected = json!([{
        "turn": 0, "attempt": 0, "at": NOON, "model": "m", "profile": 0, "failure": "rate_limit",
        "message": "slow down", "branch": "same_model_rate_limit", "followed": "again in 10 s", "wait_s": 10.0,
    }]);
    assert_eq!(attempts, expected);
    let rows = query::journal(&**engine.store(), first.id, 0).unwrap();
    let failed = rows.map(Result::unwrap).find(|row| row.input == "model_failed").unwrap();
    assert_eq!(failed.details, "rate_limit: slow down -> same_model_rate_limit: again in 10 s");
    let sentence = format!("It waits for run {}, which goes first in session s.", first.id);
    assert_eq!(why(&engine, second.id, true), (sentence, Some(format!("sprag why {}", first.id))));
    let status = Filter { status: Some(Status::Queued), ..Filter::default() };
    let rows = query::list(&**engine.store(), &status).unwrap();
    assert_eq!(rows[0].waiting_for.as_deref(), Some("its lane"));
}

/// A run whose engine dies while a call that may not run twice is under way.
#[test]
fn an_unknown_outcome_names_the_call_and_its_resolutions() {
    let (dir, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let script = json!({ "turns": [{ "calls": [{ "tool": "hang", "args": {} }] }] });
    let job = Job { tools: Some(vec!["hang".to_owned()]), ..job("one", work.path()) };
    let dying = tokio::runtime::Runtime::new().unwrap();
    let id = dying.block_on(async {
        let (tool, entered) = hang();
        let engine =
            rehearsed(Engine::builder(dir.path()).without_commands(), &script).tool(tool).open().unwrap();
        let run = engine.submit(job).await.unwrap();
        entered.notified().await;
        assert_eq!(why(&engine, run.id, true), alone("It is running RUN/0.0 (hang)."));
        run.id
    });
    drop(dying);
    let view = JournalView::open(dir.path()).unwrap();
    let left = "It was left running RUN/0.0 (hang), and no engine works on this store.";
    assert_eq!(why_in(&view, id, false), pair(left, "sprag resume RUN"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let engine =
            rehearsed(Engine::builder(dir.path()).without_commands(), &script).tool(hang().0).open().unwrap();
        let runs = engine.resume(None).unwrap();
        assert_eq!(runs[0].outcome().await.unwrap(), Rest::Parked(ParkReason::UnknownOutcome));
        let sentence = "It waits for a person to say what became of RUN/0.0 (hang), which may have run \
                        when its engine ended: ran, failed, retry or undone.";
        let command = "sprag resolve RUN/0.0 --as 'ran|failed|retry|undone' --reason '...'";
        assert_eq!(why(&engine, id, true), pair(sentence, command));
        let rows = query::list(&**engine.store(), &Filter::default()).unwrap();
        assert_eq!(rows[0].waiting_for, Some(format!("unknown outcome of {id}/0.0")));
        engine.close().await.unwrap();
    });
}

#[tokio::test]
async fn something_missing_is_named_with_the_way_on() {
    let (dir, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let gone = work.path().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let script = json!({ "turns": [{ "text": "hi", "chunk_chars": 1, "chunk_ms": 600_000 }] });
    let engine = rehearsed(Engine::builder(dir.path()).without_commands(), &script).open().unwrap();
    let handle = engine.submit(job("one", &gone)).await.unwrap();
    let run = handle.id;
    let events = handle.events(None).unwrap();
    let is_update = |event: &Stamped| matches!(event.event, AgentEvent::MessageUpdate { .. });
    assert!(pin!(events).any(async |event| is_update(&event.unwrap())).await);
    engine.close().await.unwrap();
    std::fs::remove_dir(&gone).unwrap();
    let engine = rehearsed(Engine::builder(dir.path()).without_commands(), &script).open().unwrap();
    let what = format!("workspace {}", gone.display());
    let runs = engine.resume(None).unwrap();
    assert_eq!(runs[0].outcome().await.unwrap(), Rest::Parked(ParkReason::Missing(what.as_str().into())));
    let sentence = format!("It needs something that is not there ({what}); put it back first.");
    assert_eq!(why(&engine, run, true), pair(&sentence, "sprag release RUN"));
    assert_eq!(why(&engine, run, false), pair(&sentence, "sprag resume RUN"));
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_decision_that_nobody_has_taken_waits_for_an_engine() {
    let work = tempfile::tempdir().unwrap();
    let engine = asking(rehearsed(Engine::memory(), &write_then_done())).open().unwrap();
    let run = parked_for_approval(&engine, work.path()).await;
    run.steer(Message::user("first this", Millis(7)), None).await.unwrap();
    let parked = why(&engine, run.id, true);
    assert_eq!(why(&engine, run.id, false), parked);
    // Accepted as the process that acknowledges it dies.
    let item = Item::Control(Control::Cancel { reason: "enough".into() });
    crate::accept::push(engine.shared(), run.id, &item, None).await.unwrap();
    let sentence = "A decision was accepted for it and waits for an engine to carry it out.";
    assert_eq!(why(&engine, run.id, false), pair(sentence, "sprag resume RUN"));
    let rows = query::inbox_rows(&**engine.store(), run.id).unwrap();
    let cancel =
        json!({ "position": 1, "at": NOON, "item": "cancel", "details": "enough", "is_taken": false });
    assert_eq!(json_of(run.id, &rows[1]), cancel);
    engine.resume(None).unwrap();
    run.outcome().await.unwrap();
    assert_eq!(why(&engine, run.id, false), alone("It was cancelled after 1 turn: enough."));
}
