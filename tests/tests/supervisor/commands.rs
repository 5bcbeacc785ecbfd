//! What commands may do, and what becomes of it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{World, is_gone, wait_for};

#[test]
fn a_command_works_in_the_workspace_without_input_terminal_or_secrets() {
    let command =
        "pwd; cat; tty; echo $SPRAG__DEFAULTS__MODEL$OPENAI_API_KEY; echo $KEPT; echo err >&2; exit 3";
    let world = World::new(command)
        .variable("SPRAG__DEFAULTS__MODEL", "secret")
        .variable("OPENAI_API_KEY", "secret")
        .variable("KEPT", "kept");
    let told = world.result();
    let workspace = world.path("ws").canonicalize().unwrap();
    assert_eq!(told.text(), format!("{}\nnot a tty\n\nkept\nerr\n", workspace.display()));
    let mut details = told.details().clone();
    assert!(details["durationMs"].take().is_u64());
    let expected = json!({
        "status": "failed", "exitCode": 3, "timedOut": false, "durationMs": null, "truncated": false,
    });
    assert_eq!((details, told.is_error(), told.note()), (expected, true, ""));
}

#[test]
fn nothing_is_left_of_a_call_once_its_result_is_durable() {
    let world = World::new("echo hi");
    assert_eq!(world.result().text(), "hi\n");
    wait_for("empty directory", || {
        std::fs::read_dir(world.path("data/calls")).unwrap().next().is_none().then_some(())
    });
}

#[test]
fn silence_is_told_as_such() {
    assert_eq!(World::new("true").result().text(), "(no output)");
    let told = World::new("exit 7").result();
    assert_eq!((told.text(), told.is_error()), ("(Command exited with code 7)", true));
}

#[test]
fn a_command_that_cannot_be_started_is_told_as_such() {
    let long = "x".repeat(140_000);
    let told = World::new(&format!("true {long}")).result();
    assert!(
        told.text().starts_with("the command has 140005 bytes, at most 131071 can be run"),
        "{}",
        told.text()
    );
    let told = World::new("true").set("supervisor", "/nowhere").result();
    assert!(told.text().starts_with("The command was not started: "), "{}", told.text());
    let told = World::new("true").set("supervisor", "/bin/true").result();
    assert_eq!(told.text(), "The command was not started: its supervisor ended before it");
}

#[test]
fn what_is_left_in_the_background_is_ended() {
    let command = "sleep 600 & (setsid sleep 600 &) ; (env -i setsid sleep 600 & echo $! > scrubbed); \
                   setsid bash -c 'trap \"\" TERM; echo $$ > deaf; sleep 600; sleep 600' >/dev/null & \
                   while ! [ -s deaf ]; do sleep 0.01; done; echo done";
    let world = World::new(command);
    let told = world.result();
    assert_eq!(told.text(), "done\n");
    for name in ["deaf", "scrubbed"] {
        assert!(is_gone(world.read(name).trim().parse().unwrap()), "{name}");
    }
}

#[test]
fn a_command_that_ignores_the_end_of_its_time_is_killed() {
    let world = World::with_calls(json!([{ "tool": "bash", "args": {
        "command": "trap '' TERM; echo $$ > pid; echo started; while :; do sleep 60; done", "timeout": 1,
    } }]));
    let started = Instant::now();
    let told = world.result();
    assert!((2..8).contains(&started.elapsed().as_secs()));
    assert_eq!(told.text(), "started\n\n[The command was ended after 3 s: its time was over]");
    assert_eq!((&told.details()["timedOut"], told.is_error()), (&json!(true), true));
    assert!(is_gone(world.read("pid").trim().parse().unwrap()));
}

#[test]
fn a_cancel_ends_the_command_and_keeps_what_it_printed() {
    let world = World::new("echo before; echo $$ > pid; sleep 600");
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "before\n");
    engine.say("cancel");
    let told = engine.told();
    assert_eq!((told.outcome.as_str(), told.text()), ("cancelled", "Operation aborted\nbefore\n"));
    assert!(is_gone(world.read("pid").trim().parse().unwrap()));
}

#[test]
fn output_is_shown_while_it_comes() {
    let world = World::new("echo one; while ! [ -e go ]; do sleep 0.02; done; echo two");
    let mut engine = world.start();
    assert_eq!(engine.wait_for("update"), "one\n");
    world.put("go", "");
    assert_eq!(engine.told().text(), "one\ntwo\n");
}

#[test]
fn a_gigabyte_is_drained_and_its_ends_are_kept() {
    let world = World::new("echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo last")
        .set("output_bytes_max", 4096);
    let told = world.result();
    let text = told.text();
    assert!(text.len() <= 4096 && text.starts_with("first\nxxx") && text.ends_with("xxxlast\n"));
    let cut = 1_000_000_011 - text.replace(|c| c != 'x', "").len() - "first\nlast\n".len();
    assert!(text.contains(&format!("\n[{cut} bytes cut here]\n")), "{text}");
    assert_eq!(told.details()["truncated"], true);
    let blob = world.path("data/blobs").join(told.details()["blob"].as_str().unwrap());
    let kept = std::fs::read(blob).unwrap();
    assert_eq!((kept.len(), &kept[..8]), (64 << 20, &b"first\nxx"[..]));
    assert_eq!(blake3::hash(&kept).to_hex().as_str(), told.details()["blob"].as_str().unwrap());
}

#[test]
fn a_hundred_at_once() {
    let calls: Vec<_> = (0..100)
        .map(|n| json!({ "tool": "bash", "args": { "command": format!("sleep 0.3; echo {n}") } }))
        .collect();
    let told = World::with_calls(calls.into()).result();
    let texts = told.results.as_array().unwrap().iter().map(|result| result["texts"][0].as_str().unwrap());
    assert_eq!(texts.collect::<Vec<_>>(), (0..100).map(|n| format!("{n}\n")).collect::<Vec<_>>());
}

#[test]
fn two_hundred_in_a_row() {
    let turn = |n| json!({ "calls": [{ "tool": "bash", "args": { "command": format!("echo {n}") } }] });
    let turns: Vec<_> = (0..200).map(turn).collect();
    let told = World::new("").set("turns", turns).result();
    let texts = told.results.as_array().unwrap().iter().map(|result| result["texts"][0].as_str().unwrap());
    assert_eq!(texts.collect::<Vec<_>>(), (0..200).map(|n| format!("{n}\n")).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_loses_output_and_no_outcome() {
    let world = World::new("head -c 3000000 /dev/zero | tr '\\0' x; echo $? > code; exit 5");
    let disk = world.path("data/calls");
    std::fs::create_dir_all(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(&disk)
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("skipped: a small file system cannot be mounted here");
        return;
    }
    let told = world.result();
    std::thread::sleep(Duration::from_millis(50));
    assert!(std::process::Command::new("umount").arg("-l").arg(&disk).status().unwrap().success());
    assert_eq!(told.details()["exitCode"], 5, "{told:?}");
    assert!(told.text().contains("bytes not kept: the disk was full]"), "{}", told.text());
    assert_eq!(world.read("code"), "0\n");
}
