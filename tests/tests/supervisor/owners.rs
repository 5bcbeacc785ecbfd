//! What a new owner of a run finds of a call, and does about it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use engine::provider::Rehearsal;
use engine::{Found, Job, Rest};
use futures_util::FutureExt as _;
use model::Outcome;
use rustix::process::Signal;
use serde_json::json;
use store::{MemoryStore, RunKey, Store, Stream};

use crate::world::{Engine, Told, World, field, is_gone, pause, signal, stopped, wait_for};

/// Counts its runs, shows that it runs, and waits for a file.
const COUNTED: &str = "echo ran >> ran; echo one; while ! [ -e go ]; do sleep 0.02; done; echo two";

const ADOPTED: &str =
    "[The engine was restarted during this call: it went on running meanwhile, and this is its result.]";
const COLLECTED: &str =
    "[The engine was restarted during this call: it ran to its end meanwhile, and this is its result.]";
const DID_NOT_RUN: &str =
    "[The engine was restarted during this call: it had not run before, and ran once afterwards.]";
const UNKNOWN: &str = "The engine stopped while this call ran, and its outcome is not known: it may have had its \
                       effect, a part of it, or none. Look before you do it again.";

/// A call that runs, whose engine has just been killed.
fn orphaned(world: &World) {
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "one\n");
    engine.kill();
}

/// A call whose engine and supervisor were killed.
fn lost(world: &World) {
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "one\n");
    let supervisor = world.supervisor();
    pause(engine.pid());
    signal(supervisor, Signal::KILL);
    engine.kill();
    wait_for("end of the supervisor", || is_gone(supervisor).then_some(()));
}

#[test]
fn a_command_that_runs_is_adopted_with_its_later_output() {
    let world = World::new(COUNTED);
    orphaned(&world);
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("adopted"));
    world.put("go", "");
    assert_eq!(engine.wait_for("update"), "one\ntwo\n");
    let told = engine.told();
    assert_eq!((told.text(), told.note(), world.read("ran").as_str()), ("one\ntwo\n", ADOPTED, "ran\n"));
}

#[test]
fn a_stop_leaves_commands_running_and_another_binary_adopts_them() {
    let world = World::new(COUNTED);
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "one\n");
    engine.say("stop");
    engine.wait_for("closed");
    engine.close();
    let other = world.path("other");
    fs::copy(env!("CARGO_BIN_EXE_embedder"), &other).unwrap();
    let world = world.set("supervisor", other.to_str().unwrap());
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("adopted"));
    world.put("go", "");
    assert_eq!(engine.told().note(), ADOPTED);
}

#[test]
fn a_command_that_has_ended_is_collected() {
    let world = World::new(COUNTED);
    orphaned(&world);
    let supervisor = world.supervisor();
    world.put("go", "");
    wait_for("end of the supervisor", || is_gone(supervisor).then_some(()));
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("collected"));
    let told = engine.told();
    assert_eq!((told.text(), told.note(), world.read("ran").as_str()), ("one\ntwo\n", COLLECTED, "ran\n"));
}

/// A call whose engine was killed, and whose supervisor has not yet taken the lock.
fn late(world: &World) -> i32 {
    let file = world.path("stopped");
    let variables = [("SPRAG_CRASH_POINT", "before the lock"), ("SPRAG_CRASH_FILE", file.to_str().unwrap())];
    let mut engine = world.start_with(&variables);
    let supervisor = stopped(&file);
    engine.kill();
    supervisor
}

#[test]
fn a_late_supervisor_of_a_dead_engine_does_not_run() {
    for wakes_early in [true, false] {
        let world = World::new(COUNTED);
        let supervisor = late(&world);
        let mut engine = world.start();
        assert_eq!(engine.found().as_deref(), Ok("started"));
        assert_eq!(engine.wait_for("update"), "one\n");
        if wakes_early {
            signal(supervisor, Signal::CONT);
            std::thread::sleep(Duration::from_millis(200));
        }
        world.put("go", "");
        let told = engine.told();
        signal(supervisor, Signal::CONT);
        wait_for("end of the late supervisor", || is_gone(supervisor).then_some(()));
        assert_eq!(
            (told.text(), told.note(), world.read("ran").as_str()),
            ("one\ntwo\n", DID_NOT_RUN, "ran\n")
        );
    }
}

#[test]
fn a_late_supervisor_that_finds_a_fence_alone_does_not_run() {
    let world = World::new(COUNTED);
    let supervisor = late(&world);
    let dir = world.call_dir();
    fs::write(dir.join("fence"), "sprag fence 1\nepoch 99\nend\n").unwrap();
    signal(supervisor, Signal::CONT);
    wait_for("end of the late supervisor", || is_gone(supervisor).then_some(()));
    assert_eq!(world.read("ran"), "");
    assert!(fs::read_to_string(dir.join("failure")).unwrap().ends_with("a newer owner fenced it"));
}

#[test]
fn an_unknown_outcome_is_told_asked_or_fails() {
    for (policy, outcome) in [("tell", "completed"), ("fail", "failed")] {
        let world = World::new(COUNTED).set("on_unknown", policy);
        lost(&world);
        let mut engine = world.start();
        assert_eq!(engine.found().as_deref(), Ok("unknown"));
        let told = engine.told();
        assert_eq!((told.outcome.as_str(), told.text()), (outcome, UNKNOWN));
        assert_eq!(told.details(), &json!({ "status": "unknown" }));
    }
}

#[test]
fn a_person_decides_on_an_unknown_outcome() {
    let looked =
        |what: &str| format!("The engine stopped while this call ran. A person looked: {what} (I looked)");
    for (words, what) in
        [("ran", "it ran"), ("failed", "it ran and failed"), ("undone", "what it did was undone")]
    {
        let world = World::new(COUNTED).set("on_unknown", "ask");
        let mut engine = parked(&world);
        engine.say(words);
        assert_eq!(engine.told().text(), looked(what));
    }
    let world = World::new(COUNTED).set("on_unknown", "ask");
    let mut engine = parked(&world);
    world.put("go", "");
    engine.say("retry");
    assert_eq!((engine.told().text(), world.read("ran").as_str()), ("one\ntwo\n", "ran\nran\n"));
}

/// A run that waits for a person, and its engine.
fn parked(world: &World) -> Engine {
    lost(world);
    let engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("unknown"));
    assert_eq!(engine.wait_for("parked"), "unknown outcome");
    engine
}

#[test]
fn a_supervisor_that_dies_under_a_living_engine_leaves_nothing_and_is_unknown() {
    let world = World::new("setsid sleep 600 & echo one; sleep 600");
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "one\n");
    wait_for("both processes", || (world.carriers().len() >= 2).then_some(()));
    let carriers = world.carriers();
    signal(world.supervisor(), Signal::KILL);
    assert_eq!(engine.told().text(), UNKNOWN);
    wait_for("end of all", || carriers.iter().all(|pid| is_gone(*pid)).then_some(()));
}

#[test]
fn a_pid_that_was_given_to_another_process_is_left_alone() {
    let world = World::new(COUNTED);
    lost(&world);
    let mut innocent = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let path = world.call_dir().join("mark");
    let mark = fs::read_to_string(&path).unwrap();
    let pid = field(&mark, "pid").unwrap();
    fs::write(&path, mark.replace(&format!("pid {pid}\n"), &format!("pid {}\n", innocent.id()))).unwrap();
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("unknown"));
    engine.told();
    assert!(innocent.try_wait().unwrap().is_none());
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}

#[test]
fn a_supervisor_that_cannot_be_recognised_is_adopted_by_its_lock() {
    let world = World::new(COUNTED);
    orphaned(&world);
    let path = world.call_dir().join("mark");
    let mark = fs::read_to_string(&path).unwrap();
    let ticks = field(&mark, "start_ticks").unwrap();
    fs::write(&path, mark.replace(&format!("start_ticks {ticks}\n"), "start_ticks 1\n")).unwrap();
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("adopted"));
    world.put("go", "");
    assert_eq!(engine.told().text(), "one\ntwo\n");
}

#[test]
fn after_another_boot_only_an_exit_record_proves_anything() {
    // Nothing at all: it may have run, and its traces may not have reached the disk.
    let world = World::new(COUNTED).set("boot", 1);
    let file = world.path("stopped");
    let variables =
        [("SPRAG_CRASH_POINT", "before the directory"), ("SPRAG_CRASH_FILE", file.to_str().unwrap())];
    let mut engine = world.start_with(&variables);
    stopped(&file);
    engine.kill();
    let world = world.set("boot", 2);
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("unknown"));
    assert_eq!((engine.told().text(), world.read("ran").as_str()), (UNKNOWN, ""));
    // An exit record.
    let told = collected_after_another_boot(false);
    assert_eq!(told.text(), "one\ntwo\n");
}

/// A call that ended on one boot, and whose result is collected on the next.
fn collected_after_another_boot(is_durable: bool) -> Told {
    let world = World::new(COUNTED).set("boot", 1).set("durable_workspace", is_durable);
    orphaned(&world);
    let supervisor = world.supervisor();
    world.put("go", "");
    wait_for("end of the supervisor", || is_gone(supervisor).then_some(()));
    let world = world.set("boot", 2);
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("collected"));
    engine.told()
}

#[test]
fn after_another_boot_the_model_is_told_of_files_that_were_not_made_durable() {
    assert_eq!(collected_after_another_boot(false).notes, json!([model::FILES_LOST]));
    assert_eq!(collected_after_another_boot(true).notes, json!([]));
}

/// What a durable workspace costs is one sync of its file system for each batch of calls, before their results count.
#[test]
fn a_durable_workspace_is_synced_before_results_count() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed, and nothing else shows the sync");
        return;
    }
    let call = json!({ "tool": "bash", "args": { "command": "echo 1 > file" } });
    let turn = json!({ "calls": [call, call] });
    for (is_durable, syncs) in [(false, 0), (true, 2)] {
        let world = World::new("true").set("turns", json!([turn, turn])).set("durable_workspace", is_durable);
        let trace = world.path("trace");
        let mut engine = world.start_under("strace", &["-f", "-e", "trace=syncfs", "-o"], &trace);
        let told = engine.told();
        engine.close();
        let trace = fs::read_to_string(trace).unwrap();
        let synced = trace.lines().filter(|line| line.contains("syncfs(")).count();
        assert_eq!((told.outcome.as_str(), synced), ("completed", syncs), "{trace}");
    }
}

#[test]
fn a_cancel_reaches_a_command_that_was_adopted() {
    let world = World::new("echo one; echo $$ > pid; sleep 600");
    orphaned(&world);
    let mut engine = world.start();
    assert_eq!(engine.found().as_deref(), Ok("adopted"));
    engine.say("cancel");
    let told = engine.told();
    assert_eq!((told.outcome.as_str(), told.text()), ("cancelled", "Operation aborted\none\n"));
    assert!(is_gone(world.read("pid").trim().parse().unwrap()));
}

/// An engine in this process, on a store that a later one may take over.
fn owner(world: &World, store: &Arc<dyn Store>) -> engine::Engine {
    let script = json!({ "turns": [{ "calls": world.order["calls"] }, { "text": "done" }] });
    engine::Engine::builder(world.path("data"))
        .store(Arc::clone(store))
        .supervisor(env!("CARGO_BIN_EXE_embedder"))
        .provider("m", Rehearsal::from_value(&script).unwrap())
        .open()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn late_results_of_a_superseded_owner_are_refused() {
    let world = World::new(COUNTED);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let first = owner(&world, &store);
    let job = Job::new("go").model("m").workspace(world.path("ws")).tools(["bash"]);
    let run = first.submit(job).await.unwrap();
    wait_for("output", || (world.read("ran") == "ran\n").then_some(()));
    // Who waits already is told by this engine; who asks later is told what is committed.
    let mut told = Box::pin(run.outcome());
    assert!((&mut told).now_or_never().is_none());
    let second = owner(&world, &store);
    let mut resumed = second.resume(None).unwrap();
    let resumed = resumed.pop().unwrap();
    wait_for("the adoption", || {
        second.report().iter().any(|note| note.found == Found::Adopted).then_some(())
    });
    world.put("go", "");
    let done = Rest::Done { outcome: Outcome::Completed, reason: None };
    assert_eq!(resumed.outcome().await.unwrap(), done);
    // The first engine saw the same end, and may not tell it any more. It is stopped only afterwards: a stop that comes
    // first leaves its run before it has tried.
    assert_eq!(told.await.unwrap(), Rest::Failed("fenced: epoch 1 was superseded by 2".to_owned()));
    first.stop().await;
    let chain = Stream::Run(RunKey(run.id.0));
    let owners: Vec<u64> =
        store.read_journal(chain, 0, 100).unwrap().iter().map(|record| record.epoch.0).collect();
    assert!(owners.is_sorted() && owners.last() > owners.first(), "{owners:?}");
    assert_eq!(world.read("ran"), "ran\n");
}

#[test]
fn an_engine_without_a_supervisor_does_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused =
        runtime.block_on(async { engine::Engine::builder(dir.path()).open().err().unwrap().to_string() });
    assert_eq!(
        refused,
        "nothing can supervise commands: make `engine::supervise_if_asked()` the first line of `main`, name a program \
         that does with `Builder::supervisor`, or open `without_commands`"
    );
}
