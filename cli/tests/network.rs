//! A directory on another machine's disk is refused, in words, before anything is made there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states what it relies on")]

#[allow(
    dead_code,
    unreachable_pub,
    reason = "a module of the crate of tests, whose contents are not needed here"
)]
#[path = "../../tests/src/fuse.rs"]
mod fuse;
mod support;

use support::Session;

#[test]
fn a_store_on_sshfs_is_refused() {
    let mut session = Session::new();
    let data = session.data();
    std::fs::create_dir(&data).unwrap();
    let _mounted = match fuse::Mounted::new(&data, "fuse.sshfs", ()) {
        Ok(mounted) => mounted,
        Err(error) => {
            println!("skipped: nothing can be mounted here ({error})");
            return;
        }
    };
    session.file("hello.json", r#"{"turns":[{"text":"hello"}]}"#);
    let below = data.join("not/yet");
    let run = ["run", "--model", "rehearsal:hello.json", "Say hello"];
    session.sprag(&run);
    session.sprag(&[&["--data", below.to_str().unwrap()], &run[..]].concat());
    session.check("network.txt");
    let doctor = session.command(&["doctor"]).output().unwrap();
    let said = session.normal(&String::from_utf8_lossy(&doctor.stdout));
    assert!(said.contains("ROOT/data is on a network file system (fuse.sshfs)"), "{said}");
}
