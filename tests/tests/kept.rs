//! A directory as this version leaves it, kept in `tests/golden/store-v1`, journal and state: it decodes, verifies, replays
//! and goes on, with its state as found and without, and with any of its files changed.
//!
//! `BLESS=1` makes it where it is missing; only a new format version may need that, under a new name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::doctor::Level;
use engine::provider::Rehearsal;
use engine::query::{self, Filter, Status};
use engine::{Engine, Entry, Job, JournalView, Rest, replay, salvage};
use model::{Millis, Outcome, RunId};
use serde_json::json;
use tests::documented::{assert_counted, shown};

/// Files by their path in DIR.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/store-v1")
}

/// `late` answers so late that the directory is closed before it does.
fn try_open(dir: &Path) -> Result<Engine, engine::Error> {
    let answer = |delay_ms: u64| json!({ "turns": [{ "text": "That is all.", "delay_ms": delay_ms }] });
    Engine::builder(dir)
        .without_commands()
        .provider("m", Rehearsal::from_value(&answer(0)).unwrap())
        .provider("late", Rehearsal::from_value(&answer(100)).unwrap())
        .open()
}

fn open(dir: &Path) -> Engine {
    try_open(dir).unwrap()
}

fn job(model: &str, session: &str) -> Job {
    Job::new("Say all there is.").model(model).session(session).tools([] as [&str; 0])
}

/// Two runs that have ended, and one that waits for its model.
async fn make(dir: &Path) {
    let engine = open(dir);
    for session in ["one", "two"] {
        engine.submit(job("m", session)).await.unwrap().outcome().await.unwrap();
    }
    leave(engine, "three").await;
}

/// Closes the engine while a run waits for its model.
async fn leave(engine: Engine, session: &str) {
    let run = engine.submit(job("late", session)).await.unwrap();
    while query::show(&**engine.store(), run.id).unwrap().row.status == Status::Queued {
        tokio::task::yield_now().await;
    }
    engine.close().await.unwrap();
}

fn files(dir: &Path) -> Files {
    let mut files = Files::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
            } else if entry.is_file() {
                files.insert(entry.strip_prefix(dir).unwrap().to_owned(), std::fs::read(&entry).unwrap());
            }
        }
    }
    files
}

fn lay(files: &Files) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    dir
}

/// What is known of each run: its transcript and its status.
fn known(view: &JournalView) -> BTreeMap<RunId, (Vec<Entry>, Status)> {
    let runs = query::list(view, &Filter::default()).unwrap();
    runs.into_iter().map(|row| (row.run, (query::transcript(view, row.run).unwrap(), row.status))).collect()
}

/// Every run that is there goes on to its end. Answers why the state was rebuilt, if it was.
async fn continue_all(dir: &Path) -> Option<String> {
    let engine = open(dir);
    let rebuilt = engine.journal().unwrap().opening().rebuilt.clone();
    for run in engine.resume(None).unwrap() {
        assert_eq!(run.outcome().await.unwrap(), Rest::Done { outcome: Outcome::Completed, reason: None });
    }
    engine.close().await.unwrap();
    assert_eq!(store::verify(dir).unwrap().findings, []);
    rebuilt
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_format_1_decodes_verifies_replays_and_goes_on() {
    if std::env::var_os("BLESS").is_some() && !golden().exists() {
        let made = tempfile::tempdir().unwrap();
        make(made.path()).await;
        for (path, bytes) in files(made.path()).iter().filter(|(path, _)| path.as_path() != Path::new("lock"))
        {
            std::fs::create_dir_all(golden().join(path).parent().unwrap()).unwrap();
            std::fs::write(golden().join(path), bytes).unwrap();
        }
    }
    let kept = files(&golden());
    let of = |dir: &str| kept.iter().filter(|(path, _)| path.starts_with(dir)).collect::<Vec<_>>();
    let bytes = |files: &[(&PathBuf, &Vec<u8>)]| files.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    let mut counts = String::new();
    for is_without_state in [false, true] {
        let mut files = kept.clone();
        files.retain(|path, _| path.starts_with("journal") || !is_without_state);
        let dir = lay(&files);
        let verified = store::verify(dir.path()).unwrap();
        assert_eq!(verified.findings, []);
        counts = format!(
            "{} frames in a journal of {} bytes, a state of {} bytes in {} files",
            verified.frames,
            bytes(&of("journal")),
            bytes(&of("state")),
            of("state").len(),
        );
        let before = known(&JournalView::open(dir.path()).unwrap());
        let mut statuses: Vec<Status> = before.values().map(|(_, status)| *status).collect();
        statuses.sort_by_key(|status| format!("{status:?}"));
        assert_eq!(statuses, [Status::Completed, Status::Completed, Status::Running]);
        for run in before.keys() {
            let replayed = replay(&JournalView::open(dir.path()).unwrap(), *run, None).unwrap();
            assert_eq!(replayed.difference, None, "{run}");
        }
        // What was closed is used as it was found.
        assert_eq!(continue_all(dir.path()).await.is_some(), is_without_state);
        let after = known(&JournalView::open(dir.path()).unwrap());
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(after.values().all(|(_, status)| *status == Status::Completed), "{after:?}");
    }
    assert_counted("docs/durability.md", "kept", &shown(&counts));
}

/// Changes of a file of so many bytes: bits flipped, and cuts.
fn changes(bytes: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let stride = bytes.len() / count + 1;
    let flips = (0..bytes.len()).step_by(stride).map(|at| {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1 << (at % 8);
        changed
    });
    flips.chain((0..bytes.len()).step_by(stride).map(|len| bytes[..len].to_vec()))
}

/// Nothing is wrong with the journal but that the state has more of it.
fn misses_an_end(dir: &Path) -> bool {
    let known = store::frames_known(dir).unwrap();
    let journal = store::verify(dir).unwrap();
    journal.findings.is_empty() && known.is_some_and(|known| known > journal.end.position)
}

/// Verify, doctor and open agree on whether the newest segment is damaged.
fn agree(files: &Files) {
    let dir = lay(files);
    let findings = store::verify(dir.path()).unwrap().findings;
    let checks = engine::doctor::examine(dir.path(), Millis(7));
    let is_bad = |check: &engine::doctor::Check| check.about == "journal" && check.level == Level::Bad;
    let refused = try_open(dir.path()).map(drop);
    let is_refused = matches!(refused, Err(engine::Error::Store(store::Error::Damaged { .. })));
    assert_eq!(
        (checks.iter().any(is_bad), is_refused),
        (!findings.is_empty(), !findings.is_empty()),
        "{findings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_file_changes_the_whole_runs_are_read_saved_and_go_on() {
    let made = tempfile::tempdir().unwrap();
    make(made.path()).await;
    continue_all(made.path()).await;
    leave(open(made.path()), "four").await;
    let whole = known(&JournalView::open(made.path()).unwrap());
    let files = files(made.path());
    let last = files.keys().rfind(|path| path.starts_with("journal"));
    for (path, bytes) in &files {
        let is_journal = path.starts_with("journal");
        for changed in changes(bytes, if is_journal { 16 } else { 4 }) {
            let mut files = files.clone();
            files.insert(path.clone(), changed);
            let dir = lay(&files);
            if Some(path) == last {
                agree(&files);
            }
            if misses_an_end(dir.path()) {
                // Looks like what a crash leaves, but the state knows of more.
                let refused = try_open(dir.path()).map(drop);
                assert!(
                    matches!(refused, Err(engine::Error::Store(store::Error::Behind { .. }))),
                    "{path:?}"
                );
                assert_eq!(Some(path), last, "{path:?}");
                continue;
            }
            let view = JournalView::open(dir.path()).unwrap();
            let torn = view.remains().map_or(0, |remains| remains.torn().len());
            assert!(torn == 0 || is_journal, "{path:?}");
            let found = known(&view);
            salvage::salvage(dir.path(), Millis(7)).unwrap();
            // An end that is cut off where a group ends looks like what a crash leaves; the state knows of more.
            let refused = try_open(dir.path()).map(drop);
            if let Err(engine::Error::Store(store::Error::Behind { .. })) = refused {
                assert_eq!(Some(path), last, "{path:?}");
                continue;
            }
            let expected = whole.iter().filter(|(run, _)| found.contains_key(*run));
            assert_eq!(found, expected.map(|(run, known)| (*run, known.clone())).collect(), "{path:?}");
            continue_all(dir.path()).await;
            let saved = known(&JournalView::open(dir.path()).unwrap());
            assert_eq!(saved.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{path:?}");
        }
    }
}
