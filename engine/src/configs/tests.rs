//! Runs keep what they started with, under one name for all that started with the same.

use std::path::Path;

use async_trait::async_trait;
use model::{RunId, ToolResult};
use serde_json::json;
use store::MemoryStore;
use store::faulty::{At, Fault, Faulty, Operation};

use super::*;
use crate::config::{Api, Defaults, Model};
use crate::engine::Engine;
use crate::job::Job;
use crate::query;
use crate::runs::Rest;
use crate::tool::{CallContext, Tool, ToolSpec};

/// Model `m` is this script.
fn config(script: &Path) -> Config {
    let m = Model { file: Some(script.display().to_string()), ..Model::new(Api::Rehearsal) };
    Config {
        models: Arc::new([("m".to_owned(), m)].into()),
        defaults: Arc::new(Defaults { model: Some("m".to_owned()), ..Defaults::default() }),
        ..Config::default()
    }
}

/// The same, with one profile more.
fn with_profile(config: Config, name: &str, variable: &str) -> Config {
    let profile = Profile::ApiKeyEnv(variable.to_owned());
    Config { profiles: Arc::new([(name.to_owned(), profile)].into()), ..config }
}

fn script(dir: &Path, name: &str, turns: &serde_json::Value) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, json!({ "turns": turns }).to_string()).unwrap();
    path
}

/// Snapshots in a store.
fn snapshots(engine: &Engine) -> usize {
    engine.store().read_journal(keys::SNAPSHOTS, 0, usize::MAX).unwrap().len()
}

fn kept(engine: &Engine, run: RunId) -> Option<Config> {
    query::settings(&**engine.store(), run).unwrap()
}

#[tokio::test]
async fn what_many_runs_start_with_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let script = script(dir.path(), "a.json", &json!([{ "text": "done" }]));
    let (first, second) = (config(&script), Config { sync_spool: true, ..config(&script) });
    let engine = Engine::memory().config(first.clone()).open().unwrap();
    let mut runs = Vec::new();
    // In force, a change, and back again.
    for config in [&first, &second, &first] {
        engine.reload(with_profile(config.clone(), "p", "KEY"));
        for submitted in engine.submit_all((0..10).map(|_| Job::new("go"))).await {
            runs.push((submitted.unwrap().id, config));
        }
        runs.push((engine.submit(Job::new("go")).await.unwrap().id, config));
    }
    engine.rested().await;
    assert_eq!(snapshots(&engine), 2);
    for (run, config) in runs {
        assert_eq!(kept(&engine, run).as_ref(), Some(config), "profiles are no part of it");
    }
}

/// A tool that gives the engine another configuration.
struct Swap {
    spec: ToolSpec,
    engine: Arc<Mutex<Option<Engine>>>,
    config: Config,
}

#[async_trait]
impl Tool for Swap {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _call: CallContext) -> Result<ToolResult, String> {
        let engine = lock(&self.engine).clone();
        engine.unwrap().reload(self.config.clone());
        Ok(ToolResult::text("swapped"))
    }
}

#[tokio::test]
async fn a_run_goes_on_with_its_model_and_a_later_one_gets_the_new() {
    let dir = tempfile::tempdir().unwrap();
    let swap = json!([{ "calls": [{ "tool": "swap" }] }, { "text": "old" }]);
    let old = config(&script(dir.path(), "old.json", &swap));
    let new = config(&script(dir.path(), "new.json", &json!([{ "text": "new" }])));
    let opened: Arc<Mutex<Option<Engine>>> = Arc::default();
    let spec = ToolSpec::new("swap", "Swaps.", json!({ "type": "object" }));
    let tool = Swap { spec, engine: Arc::clone(&opened), config: new };
    let engine = Engine::memory().config(old).tool(tool).open().unwrap();
    *lock(&opened) = Some(engine.clone());
    let said = async |job: Job| {
        let run = engine.submit(job).await.unwrap();
        assert!(matches!(run.outcome().await.unwrap(), Rest::Done { .. }));
        let messages = query::transcript(&**engine.store(), run.id).unwrap();
        messages.last().unwrap().message.joined_text()
    };
    assert_eq!(said(Job::new("go")).await, "old");
    assert_eq!(said(Job::new("go")).await, "new");
    lock(&opened).take();
}

#[tokio::test]
async fn keys_are_looked_for_where_the_configuration_in_force_says() {
    let dir = tempfile::tempdir().unwrap();
    let old = config(&script(dir.path(), "a.json", &json!([])));
    let configs = Configs::new(with_profile(old.clone(), "work", "OLD_KEY"));
    let started = configs.in_force();
    let new = with_profile(Config::default(), "work", "NEW_KEY");
    configs.replace(new.clone());
    assert_eq!(configs.now(&started.config), Config { profiles: new.profiles, ..old });
    let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
    let all = names(&["ANTHROPIC_API_KEY", "NEW_KEY", "OLD_KEY", "OPENAI_API_KEY"]);
    assert_eq!(configs.key_names().all(), all, "no command is given a key, of whichever configuration");
}

#[tokio::test]
async fn a_run_whose_settings_are_not_known_goes_by_those_in_force() {
    let engine = Engine::memory().config(Config::default()).open().unwrap();
    let (configs, store) = (&engine.shared().configs, &**engine.store());
    let in_force = configs.in_force().hash;
    assert_eq!(configs.of_run(store, None).unwrap().hash, in_force);
    assert_eq!(configs.of_run(store, Some(SnapshotHash::of(b"lost"))).unwrap().hash, in_force);
}

/// As after a damaged journal was salvaged: the state names a place where the snapshot no longer is.
#[tokio::test]
async fn a_snapshot_that_was_lost_is_stored_again() {
    let engine = Engine::memory().open().unwrap();
    let (shared, lost) = (engine.shared(), Settings::new(Config { sync_spool: true, ..Config::default() }));
    let place = u64::to_be_bytes(0).to_vec();
    let fact = shared.fact(keys::SNAPSHOTS, 0, keys::snapshot(lost.hash), place);
    shared.store.commit(Commit { payload: b"{}".to_vec(), ..fact }).await.unwrap();
    assert_eq!(stored(&*shared.store, lost.hash).unwrap(), None);
    let required = shared.configs.keep(shared, &lost).await.unwrap();
    assert_eq!(stored(&*shared.store, lost.hash).unwrap().as_ref(), Some(&*lost.config));
    let value = Some(u64::to_be_bytes(1).to_vec());
    assert_eq!(required, Require::Holds { key: keys::snapshot(lost.hash), value });
}

#[tokio::test]
async fn no_job_is_accepted_whose_settings_were_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&script(dir.path(), "a.json", &json!([{ "text": "done" }])));
    let faulty = Arc::new(Faulty::new(MemoryStore::new()));
    let engine = Engine::memory().config(config).store(Arc::clone(&faulty) as Arc<dyn Store>).open().unwrap();
    let commits = faulty.count(Operation::Commit);
    faulty.inject(At::Nth(Operation::Commit, commits), Fault::Before(store::Error::Void));
    assert!(matches!(engine.submit(Job::new("go")).await, Err(Error::Store(store::Error::Void))));
    assert_eq!((engine.live_runs().unwrap(), snapshots(&engine)), (Vec::new(), 0));
    let run = engine.submit(Job::new("go")).await.unwrap();
    assert!(kept(&engine, run.id).is_some());
    engine.rested().await;
}

#[tokio::test]
async fn settings_that_an_older_version_wrote_are_read_and_those_of_a_newer_one_are_not() {
    let engine = Engine::memory().open().unwrap();
    let shared = engine.shared();
    let written = async |seq: u64, text: &str| {
        let hash = SnapshotHash::of(text.as_bytes());
        let fact = shared.fact(keys::SNAPSHOTS, seq, keys::snapshot(hash), u64::to_be_bytes(seq).to_vec());
        shared.store.commit(Commit { payload: text.as_bytes().to_vec(), ..fact }).await.unwrap();
        shared.configs.of_run(&*shared.store, Some(hash)).map(|settings| (*settings.config).clone())
    };
    let older = written(0, r#"{"sync_spool":true}"#).await.unwrap();
    assert_eq!(older, Config { sync_spool: true, ..Config::default() });
    let words = written(1, r#"{"of_tomorrow":1}"#).await.unwrap_err().to_string();
    assert!(words.ends_with("; use the version of sprag that started the run"), "{words}");
}
