//! What a supervisor costs. It also pins the first format of a call's directory: the files here are written by hand.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::world::wait_for;

/// Starts a supervisor by hand, as an engine of the first epoch would.
fn supervise(dir: &Path, command: &str) -> std::process::Child {
    fs::create_dir(dir).unwrap();
    let workspace = dir.parent().unwrap().display();
    let spec = format!(
        "sprag spec 1\ncall 00000000000000000000000000000000/0.0\nepoch 1\ntimeout_ms 0\n\
         output_spool_bytes_max 1048576\ntail_bytes_max 1024\nend\n{workspace}\0{command}"
    );
    fs::write(dir.join("spec"), spec).unwrap();
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_embedder"));
    supervisor.arg0("sprag-supervisor").args(["call", "1"]).current_dir(dir);
    supervisor.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn milliseconds(durations: &mut [Duration]) -> (f64, f64) {
    durations.sort();
    let ms = |at: usize| durations[at].as_secs_f64() * 1000.0;
    (ms(0), ms(durations.len() / 2))
}

#[test]
fn a_supervisor_starts_and_ends_in_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for n in 0..40 {
        let call = dir.path().join(n.to_string());
        let before = SystemTime::now();
        let mut supervisor = supervise(&call, "echo $EPOCHREALTIME");
        supervisor.wait().unwrap();
        let ended = SystemTime::now();
        let printed = fs::read_to_string(call.join("output")).unwrap();
        let ran = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(printed.trim().parse().unwrap());
        starts.push(ran.duration_since(before).unwrap_or_default());
        ends.push(ended.duration_since(ran).unwrap_or_default());
        let exit = fs::read(call.join("exit")).unwrap();
        let exit = String::from_utf8(exit).unwrap();
        let (exit, zeros) = exit.split_at(exit.find('\0').unwrap());
        assert!(exit.starts_with("sprag exit 1\ncode 0\nended_by itself\nduration_ms "), "{exit}");
        assert!(exit.ends_with("\noutput_bytes 18\nspooled_bytes 18\ntail_bytes_max 0\nend\n"), "{exit}");
        assert!(zeros.bytes().all(|byte| byte == 0));
    }
    let ((best, median), (end_best, end_median)) = (milliseconds(&mut starts), milliseconds(&mut ends));
    println!("from spawn to the command's first act: best {best:.2} ms, median {median:.2} ms");
    println!(
        "from the command's act to the supervisor's end, syncs included: best {end_best:.2} ms, median {end_median:.2} ms"
    );
    // The best of many is what it costs; the rest is what the machine was busy with. Without optimisation a program has
    // several times the relocations.
    let most = if cfg!(debug_assertions) { 40.0 } else { 4.0 };
    assert!(best < most, "{best} ms to start");
}

#[test]
fn a_supervisor_weighs_nearly_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let call = dir.path().join("call");
    // Another process of the same program shares its pages, as an engine does.
    let mut other = supervise(&dir.path().join("other"), "sleep 600");
    let mut supervisor = supervise(&call, "head -c 3000000 /dev/zero; echo > done; sleep 600");
    wait_for("output", || dir.path().join("done").exists().then_some(()));
    // The least of several looks: on a busy machine one may fall into a moment that passes.
    let look = |_| {
        std::thread::sleep(Duration::from_millis(20));
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", supervisor.id())).unwrap();
        let kilobytes = |name: &str| -> u64 {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        (kilobytes("Private_Dirty:"), kilobytes("Private_Clean:"))
    };
    let (dirty, clean) = (0..10).map(look).min().unwrap();
    println!("private memory of a supervisor: {dirty} kB written, {clean} kB only read");
    for child in [&mut other, &mut supervisor] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let most = if cfg!(debug_assertions) { 2048 } else { 1024 };
    assert!(dirty + clean <= most, "{dirty} kB written, {clean} kB only read");
}

#[test]
fn a_supervisor_takes_an_older_or_newer_format_for_none_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let call = dir.path().join("call");
    fs::create_dir(&call).unwrap();
    fs::write(call.join("spec"), "sprag spec 2\nepoch 1\nend\n").unwrap();
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_embedder"));
    supervisor.arg0("sprag-supervisor").args(["call", "1"]).current_dir(&call);
    let started = Instant::now();
    assert_eq!(supervisor.status().unwrap().code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(
        fs::read_to_string(call.join("failure")).unwrap(),
        "expected `sprag spec 1`, got `sprag spec 2`"
    );
    assert!(!call.join("mark").exists());
}
