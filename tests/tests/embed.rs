//! The library's example, killed in the middle and started again.
#![allow(clippy::unwrap_used, reason = "a test states what it relies on")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The example's binary, which stands beside the directory of the tests' own. Built here: a test of this crate alone
/// would otherwise run an old one.
fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "embed", "--package", "engine"]);
    if own.components().any(|part| part.as_os_str() == "release") {
        build.arg("--release");
    }
    assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    own.ancestors().nth(2).unwrap().join("examples/embed")
}

fn start(example: &Path, dir: &Path) -> Child {
    Command::new(example).arg(dir).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until the ledger has a line.
fn wait_for_ledger(dir: &Path) -> String {
    let since = Instant::now();
    loop {
        let ledger = fs::read_to_string(dir.join("ledger")).unwrap_or_default();
        if ledger.ends_with('\n') {
            return ledger;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the tool never ran");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_goes_on_after_a_kill_and_books_once() {
    let (example, dir) = (example(), tempfile::tempdir().unwrap());
    let mut first = start(&example, dir.path());
    let ledger = wait_for_ledger(dir.path());
    first.kill().unwrap();
    first.wait().unwrap();

    fs::write(dir.path().join("open"), "").unwrap();
    let second = start(&example, dir.path()).wait_with_output().unwrap();

    assert_eq!(String::from_utf8_lossy(&second.stdout), "Done { outcome: Completed, reason: None }\n");
    assert!(second.status.success());
    assert_eq!(fs::read_to_string(dir.path().join("ledger")).unwrap(), ledger);

    let third = start(&example, dir.path()).wait_with_output().unwrap();
    assert_eq!(third.stdout, second.stdout, "the key finds the run that has ended");
    assert_eq!(fs::read_to_string(dir.path().join("ledger")).unwrap(), ledger);
}
