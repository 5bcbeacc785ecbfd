//! Profiles and failover: accounts that are refused, and what the engine remembers of them.
//!
//! The vendor refuses the accounts that a test names; which account paid for a call is what the vendor saw.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::config::{Api, Config, Defaults, Model, Profile};
use engine::provider::{Intent, ModelProvider, Rehearsal, Request, StreamEvent};
use engine::query::{self, RoutesView};
use engine::{Builder, Engine, Job, JournalView, Rest, RunHandle, TimerClock, rfc3339};
use futures_util::stream::{self, BoxStream, StreamExt};
use model::input::{Failure, FailureKind};
use model::{Millis, Outcome, Record};
use serde_json::{Value, json};
use store::{Pairs, RunKey, Store, Stream};
use tokio_util::sync::CancellationToken;

/// Prefix of the keys under which the health of profiles is committed.
const PROFILES: &[u8] = b"p";

/// What the vendor knows.
#[derive(Clone, Default)]
struct Vendor(Arc<Mutex<Ledger>>);

#[derive(Default)]
struct Ledger {
    /// Accounts that are refused, and how.
    refused: BTreeMap<String, FailureKind>,
    /// Every call: the model and the account that paid.
    calls: Vec<(String, String)>,
}

/// A model of the vendor.
struct Sold {
    script: Rehearsal,
    vendor: Vendor,
}

impl Vendor {
    fn refuse(&self, profile: &str, kind: FailureKind) {
        self.0.lock().unwrap().refused.insert(profile.to_owned(), kind);
    }

    fn accept(&self, profile: &str) {
        self.0.lock().unwrap().refused.remove(profile);
    }

    /// The calls since the last look, as `model by account`.
    fn calls(&self) -> Vec<String> {
        let calls = std::mem::take(&mut self.0.lock().unwrap().calls);
        calls.into_iter().map(|(model, profile)| format!("{model} by {profile}")).collect()
    }

    fn model(&self, script: &Value) -> Sold {
        Sold { script: Rehearsal::from_value(script).unwrap(), vendor: self.clone() }
    }
}

impl ModelProvider for Sold {
    fn prepare(&self, request: &Request) -> Result<Intent, Failure> {
        self.script.prepare(request)
    }

    fn stream(&self, request: Request, abort: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let profile = request.profile.clone().unwrap_or_else(|| "nobody".to_owned());
        let mut ledger = self.vendor.0.lock().unwrap();
        ledger.calls.push((request.model.clone(), profile.clone()));
        match ledger.refused.get(&profile) {
            Some(kind) => stream::iter([StreamEvent::Failed(failure(*kind))]).boxed(),
            None => self.script.stream(request, abort),
        }
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, "")
}

fn config(fallback: &[&str]) -> Config {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let model = |profiles| Model { profiles: owned(profiles), ..Model::new(Api::Rehearsal) };
    let models = [
        ("large".to_owned(), model(&["work", "spare"])),
        ("solo".to_owned(), model(&["work"])),
        ("local".to_owned(), model(&[])),
    ];
    let profile = |name: &str| (name.to_owned(), Profile::ApiKeyEnv(name.to_uppercase()));
    let defaults =
        Defaults { model: Some("large".to_owned()), fallback: owned(fallback), ..Defaults::default() };
    Config {
        models: Arc::new(models.into()),
        profiles: Arc::new(["work", "spare"].map(profile).into()),
        defaults: Arc::new(defaults),
        ..Config::default()
    }
}

/// Each model says its name.
fn sold(builder: Builder, vendor: &Vendor, fallback: &[&str]) -> Builder {
    let names = ["large", "solo", "local"];
    let script = |name: &str| json!({ "turns": [{ "text": name }], "after": "stop" });
    let add = |builder: Builder, name| builder.provider(name, vendor.model(&script(name)));
    names.into_iter().fold(builder.config(config(fallback)), add)
}

/// An engine whose time is the runtime's.
fn in_memory(vendor: &Vendor, fallback: &[&str]) -> Engine {
    let clock = TimerClock::starting_at(Millis(1_767_225_600_000));
    sold(Engine::memory(), vendor, fallback).clock(clock).open().unwrap()
}

async fn run(engine: &Engine, job: Job) -> (RunHandle, Outcome, String) {
    let run = engine.submit(job).await.unwrap();
    match run.outcome().await.unwrap() {
        Rest::Done { outcome, reason } => (run, outcome, reason.unwrap_or_default()),
        rest => panic!("{rest:?}"),
    }
}

async fn outcome(engine: &Engine, model: &str) -> (Outcome, String) {
    let (_, outcome, reason) = run(engine, Job::new("ask").model(model)).await;
    (outcome, reason)
}

fn completed() -> (Outcome, String) {
    (Outcome::Completed, String::new())
}

/// The committed health of all profiles.
fn health(store: &dyn Store) -> Pairs {
    store.scan(PROFILES, None, 100).unwrap()
}

/// The facts of a run whose records change the health of a profile.
fn marking_facts(store: &dyn Store, run: &RunHandle) -> Vec<&'static str> {
    let records = store.read_journal(Stream::Run(RunKey(run.id.0)), 0, 1_000).unwrap();
    let marks = records.iter().filter(|record| record.puts.iter().any(|put| put.key.starts_with(PROFILES)));
    let fact = |record: &store::Record| match Record::from_bytes(record.payload.as_ref().unwrap()).unwrap() {
        Record::Moved(moved) => moved.input.fact.name(),
        Record::Submitted(_) => "submitted",
    };
    marks.map(fact).collect()
}

fn routes(engine: &Engine, run: &RunHandle) -> RoutesView {
    query::show(&**engine.store(), run.id).unwrap().routes
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_remembered_in_the_commit_that_it_decides_and_an_answer_forgets_it() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    let store = &**engine.store();
    let (first, ended, _) = run(&engine, Job::new("ask").model("solo")).await;
    assert_eq!((ended, vendor.calls()), (Outcome::Blocked, vec!["solo by work".to_owned()]));
    assert_eq!(marking_facts(store, &first), ["model_failed"]);
    assert_eq!(health(store).len(), 1);

    vendor.accept("work");
    tokio::time::advance(Duration::from_secs(30)).await;
    let (second, ended, _) = run(&engine, Job::new("ask").model("solo")).await;
    assert_eq!((ended, vendor.calls()), (Outcome::Completed, vec!["solo by work".to_owned()]));
    assert_eq!(marking_facts(store, &second), ["model_answered"]);
    assert_eq!(health(store), []);

    let (third, ended, _) = run(&engine, Job::new("ask").model("solo")).await;
    assert_eq!((ended, marking_facts(store, &third)), (Outcome::Completed, vec![]), "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn while_every_profile_cools_down_no_call_is_made() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    assert_eq!(vendor.calls(), ["solo by work"]);

    let (run, ended, reason) = run(&engine, Job::new("ask").model("solo")).await;
    let until = "2026-01-01T00:00:30.000Z";
    assert_eq!((ended, vendor.calls()), (Outcome::Blocked, vec![]));
    assert!(reason.starts_with(&format!("auth: no profile until {until}")), "{reason}");
    assert_eq!(marking_facts(&**engine.store(), &run), Vec::<&str>::new(), "it was not the vendor's word");
    let routes = serde_json::to_value(routes(&engine, &run)).unwrap();
    let cooling = json!([{ "model": "solo", "profile": "work", "reason": "auth", "until": until }]);
    let expected = json!({ "profile": "work", "fallback": 0, "models": ["solo"], "cooling": cooling });
    assert_eq!(routes, expected);
    let counted = query::show(&**engine.store(), run.id).unwrap().counters.model_calls;
    assert_eq!(counted, 0, "a call that was not made counts for nothing");
}

#[tokio::test(start_paused = true)]
async fn another_run_is_paid_by_the_profile_that_does_not_cool_down_and_its_session_stays_there() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    vendor.calls();
    let ask = |session: &str| Job::new("ask").model("large").session(session);
    let (first, ended, _) = run(&engine, ask("s")).await;
    assert_eq!((ended, vendor.calls()), (Outcome::Completed, vec!["large by spare".to_owned()]));
    assert_eq!(routes(&engine, &first).profile.as_deref(), Some("spare"));

    vendor.accept("work");
    tokio::time::advance(Duration::from_secs(30)).await;
    run(&engine, ask("s")).await;
    run(&engine, ask("s")).await;
    run(&engine, ask("another")).await;
    assert_eq!(vendor.calls(), ["large by spare", "large by spare", "large by work"]);
}

#[tokio::test(start_paused = true)]
async fn of_many_runs_one_probes_an_account_that_cannot_pay() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Billing);
    let engine = in_memory(&vendor, &[]);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    vendor.calls();
    tokio::time::advance(Duration::from_secs(30)).await;
    let jobs = (0..20).map(|_| Job::new("ask").model("solo"));
    let runs = engine.submit_all(jobs).await;
    let mut probes = Vec::new();
    for run in runs {
        let run = run.unwrap();
        run.outcome().await.unwrap();
        probes.extend(marking_facts(&**engine.store(), &run));
    }
    assert_eq!(
        (vendor.calls(), probes),
        (vec!["solo by work".to_owned()], vec!["request_prepared", "model_failed"])
    );

    vendor.accept("work");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(outcome(&engine, "solo").await, completed());
    assert_eq!(health(&**engine.store()), []);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_passes_is_waited_for_without_a_call() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::RateLimit);
    let engine = in_memory(&vendor, &[]);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    vendor.calls();
    vendor.accept("work");
    let before = engine.now();
    assert_eq!(outcome(&engine, "solo").await, completed());
    assert_eq!((engine.now().since(before) / 1_000, vendor.calls()), (30, vec!["solo by work".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn why_says_until_when_a_profile_cannot_be_used() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::RateLimit);
    let engine = in_memory(&vendor, &[]);
    outcome(&engine, "solo").await;
    let until = rfc3339(engine.now().plus(30_000));
    let run = engine.submit(Job::new("ask").model("solo")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let why = query::why(&**engine.store(), run.id, true).unwrap().sentence;
    let expected = format!(
        "It is waiting until {until} before it asks model solo again after rate_limit: no profile until {until} \
         (same_model_rate_limit: again in 30 s) (turn 0, attempt 1); profile work cannot be used until {until} after rate_limit."
    );
    assert_eq!(why, expected);
}

#[tokio::test(start_paused = true)]
async fn a_model_without_profiles_is_always_asked() {
    let vendor = Vendor::default();
    vendor.refuse("nobody", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    for _ in 0..2 {
        let (run, ended, _) = run(&engine, Job::new("ask").model("local")).await;
        assert_eq!((ended, vendor.calls()), (Outcome::Blocked, vec!["local by nobody".to_owned()]));
        assert_eq!(marking_facts(&**engine.store(), &run), Vec::<&str>::new());
    }
    assert_eq!(health(&**engine.store()), []);
}

#[tokio::test(start_paused = true)]
async fn a_refused_account_is_left_for_the_next_one_within_the_run() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    let (run, ended, _) = run(&engine, Job::new("ask").model("large")).await;
    assert_eq!(ended, Outcome::Completed);
    assert_eq!(vendor.calls(), ["large by work", "large by spare"]);
    assert_eq!(marking_facts(&**engine.store(), &run), ["model_failed"]);
    assert_eq!(routes(&engine, &run).profile.as_deref(), Some("spare"));
}

#[tokio::test(start_paused = true)]
async fn when_no_account_is_left_another_model_answers_this_run_alone() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    vendor.refuse("spare", FailureKind::Billing);
    let engine = in_memory(&vendor, &["solo", "local"]);
    let ask = || Job::new("ask").session("s");
    let (first, ended, _) = run(&engine, ask()).await;
    assert_eq!(ended, Outcome::Completed);
    // The account of `solo` was refused a moment ago: it is not asked for nothing.
    assert_eq!(vendor.calls(), ["large by work", "large by spare", "local by nobody"]);
    let shown = serde_json::to_value(routes(&engine, &first)).unwrap();
    assert_eq!((&shown["fallback"], &shown["profile"]), (&json!(2), &Value::Null));
    assert_eq!(shown["models"], json!(["large", "solo", "local"]));
    let transcript = query::transcript(&**engine.store(), first.id).unwrap();
    assert_eq!(transcript.last().unwrap().message.joined_text(), "local");

    vendor.accept("work");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(run(&engine, ask()).await.1, Outcome::Completed);
    assert_eq!(vendor.calls(), ["large by work"], "the next run begins with the model that it asks for");
}

#[tokio::test(start_paused = true)]
async fn while_every_profile_cools_down_another_model_answers_without_a_call_in_vain() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    vendor.refuse("spare", FailureKind::Auth);
    let engine = in_memory(&vendor, &["local"]);
    for _ in 0..2 {
        assert_eq!(run(&engine, Job::new("ask")).await.1, Outcome::Completed);
    }
    let expected = ["large by work", "large by spare", "local by nobody", "local by nobody"];
    assert_eq!(vendor.calls(), expected);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_one_model_gets_no_other() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &["local"]);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    assert_eq!(vendor.calls(), ["solo by work"]);
}

#[tokio::test(start_paused = true)]
async fn a_fault_on_this_side_marks_nobody_and_asks_nobody_else() {
    for kind in [FailureKind::Format, FailureKind::Script, FailureKind::RoleOrdering] {
        let vendor = Vendor::default();
        vendor.refuse("work", kind);
        let engine = in_memory(&vendor, &["local"]);
        assert_ne!(run(&engine, Job::new("ask")).await.1, Outcome::Completed);
        assert_eq!((vendor.calls(), health(&**engine.store())), (vec!["large by work".to_owned()], vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn the_session_stays_with_the_account_that_a_run_has_come_to() {
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Auth);
    let engine = in_memory(&vendor, &[]);
    let ask = || Job::new("ask").session("s");
    assert_eq!(run(&engine, ask()).await.1, Outcome::Completed);
    vendor.accept("work");
    tokio::time::advance(Duration::from_secs(30)).await;
    vendor.calls();
    assert_eq!(run(&engine, ask()).await.1, Outcome::Completed);
    assert_eq!(vendor.calls(), ["large by spare"]);
    vendor.refuse("spare", FailureKind::Auth);
    assert_eq!(run(&engine, ask()).await.1, Outcome::Completed);
    assert_eq!(vendor.calls(), ["large by spare", "large by work"], "the list begins after it");
}

/// Names the directory of the engine that is to be killed.
const VICTIM: &str = "SPRAG_TEST_PROFILES_VICTIM";

fn on_disk(dir: &Path, vendor: &Vendor) -> Engine {
    sold(Engine::builder(dir).without_commands(), vendor, &[]).open().unwrap()
}

/// The process that is killed; without its directory, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    let Some(dir) = std::env::var_os(VICTIM).map(PathBuf::from) else { return };
    let vendor = Vendor::default();
    vendor.refuse("work", FailureKind::Billing);
    let engine = on_disk(&dir.join("data"), &vendor);
    assert_eq!(outcome(&engine, "solo").await.0, Outcome::Blocked);
    std::fs::write(dir.join("marked"), "").unwrap();
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_of_a_profile_survives_a_kill_and_a_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "profiles::victim", "--quiet"])
        .env(VICTIM, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !dir.path().join("marked").exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "the profile was never marked");
        std::thread::sleep(Duration::from_millis(5));
    }
    victim.kill().unwrap();
    victim.wait().unwrap();

    let data = dir.path().join("data");
    let known = health(&JournalView::open(&data).unwrap());
    assert_eq!(known.len(), 1);
    let vendor = Vendor::default();
    let engine = on_disk(&data, &vendor);
    assert_eq!(health(&**engine.store()), known);
    let (_, ended, reason) = run(&engine, Job::new("ask").model("solo")).await;
    assert_eq!((ended, vendor.calls()), (Outcome::Blocked, vec![]), "{reason}");
    engine.close().await.unwrap();

    std::fs::remove_dir_all(data.join("state")).unwrap();
    let engine = on_disk(&data, &vendor);
    assert_eq!(health(&**engine.store()), known);
    assert_eq!(outcome(&engine, "large").await, completed());
    assert_eq!(vendor.calls(), ["large by spare"]);
}
