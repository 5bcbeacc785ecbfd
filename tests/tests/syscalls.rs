//! What the writer asks of the kernel, and in which order: traced from outside, with nothing of ours in between.
//!
//! Owns the promises of `docs/durability.md` about syncs. Without strace nothing is shown, and the test says so.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Groups that are written.
const GROUPS: usize = 40;
const TRACED: &str = "trace=write,pwrite64,fsync,fdatasync,rename,renameat,renameat2";

/// One system call: when it began and ended, counted in lines of the trace.
#[derive(Clone, Debug)]
struct Call {
    began: usize,
    ended: usize,
    name: String,
    /// The file that it is about, by the name that it had when the call began; of a rename, the old one.
    path: String,
    /// The new name of a rename.
    to: String,
    has_succeeded: bool,
}

impl Call {
    fn is_sync_of(&self, path: &str) -> bool {
        matches!(self.name.as_str(), "fsync" | "fdatasync") && self.path == path && self.has_succeeded
    }

    fn is_write_of(&self, suffix: &str) -> bool {
        self.name == "pwrite64" && self.path.ends_with(suffix)
    }

    fn is_rename(&self) -> bool {
        self.name.starts_with("rename")
    }

    /// The writer says that a group is durable.
    fn is_acknowledgement(&self) -> bool {
        self.name == "write" && self.path.ends_with("/acknowledged")
    }
}

/// What strace wrote, as calls in the order in which they began.
fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished = HashMap::new();
    for (at, line) in trace.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let has_succeeded = !rest.contains(" = -1 ");
        if rest.trim_start().starts_with("<...") {
            if let Some(call) = unfinished.remove(thread).and_then(|nth: usize| calls.get_mut(nth)) {
                (call.ended, call.has_succeeded) = (at, has_succeeded);
            }
            continue;
        }
        let Some((name, arguments)) = rest.trim_start().split_once('(') else { continue };
        let is_rename = name.starts_with("rename");
        let mut quoted = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
        let (path, to) = if is_rename {
            (quoted.next().unwrap(), quoted.next().unwrap())
        } else {
            let path = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
            (path.map_or_else(String::new, |(path, _)| path.to_owned()), String::new())
        };
        if rest.ends_with("<unfinished ...>") {
            unfinished.insert(thread, calls.len());
            calls.push(Call {
                began: at,
                ended: usize::MAX,
                name: name.to_owned(),
                path,
                to,
                has_succeeded: false,
            });
        } else {
            calls.push(Call { began: at, ended: at, name: name.to_owned(), path, to, has_succeeded });
        }
    }
    calls
}

/// A sync of `path` lies whole between the end of `call` and the beginning of `next`.
fn is_synced_between(calls: &[Call], call: &Call, path: &str, next: &Call) -> bool {
    calls.iter().any(|sync| sync.is_sync_of(path) && sync.began > call.ended && sync.ended < next.began)
}

fn dir_of(path: &str) -> &str {
    Path::new(path).parent().unwrap().to_str().unwrap()
}

/// Every place where a promise does not hold.
fn broken(calls: &[Call]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut last = 0;
    for acknowledgement in calls.iter().filter(|call| call.is_acknowledgement()) {
        let before = |call: &&Call| call.began < acknowledgement.began;
        let written: Vec<&Call> =
            calls.iter().filter(before).filter(|call| call.is_write_of(".seg")).collect();
        // A call that never ended ended after everything.
        for write in &written {
            if !is_synced_between(calls, write, &write.path, acknowledgement) {
                broken.push(format!("acknowledged before a sync of what was written: {write:?}"));
            }
        }
        if !written.iter().any(|write| write.began > last) {
            broken.push(format!("acknowledged without a write: {acknowledgement:?}"));
        }
        for rename in calls.iter().filter(before).filter(|call| call.to.ends_with("/state.mark")) {
            if !is_synced_between(calls, rename, dir_of(&rename.to), acknowledgement) {
                broken.push(format!("acknowledged before the mark's name is synced: {rename:?}"));
            }
        }
        last = acknowledgement.began;
    }
    for rename in calls.iter().filter(|call| call.is_rename()) {
        let filled = |call: &&Call| call.is_write_of(&rename.path) && call.began < rename.began;
        for write in calls.iter().filter(filled) {
            if !is_synced_between(calls, write, &rename.path, rename) {
                broken.push(format!("renamed before it is synced: {rename:?}"));
            }
        }
        let used =
            |call: &&Call| call.is_write_of(".seg") && call.path == rename.to && call.began > rename.began;
        for write in calls.iter().filter(used).take(1) {
            if !is_synced_between(calls, rename, dir_of(&rename.to), write) {
                broken.push(format!("written before its name is synced: {write:?}"));
            }
        }
    }
    broken
}

#[test]
fn every_acknowledgement_follows_a_completed_sync_of_its_segment() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed, and nothing else shows the system calls");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (trace, orders) = (root.join("trace"), root.join("orders"));
    fs::write(&orders, "\n".repeat(GROUPS)).unwrap();
    let status = Command::new("strace")
        .args(["-f", "-y", "-s", "0", "-e", TRACED, "-o"])
        .arg(&trace)
        .arg(env!("CARGO_BIN_EXE_real_disk"))
        .args(["write", "store"])
        .arg(&root)
        .arg(GROUPS.to_string())
        .stdin(Stdio::from(fs::File::open(orders).unwrap()))
        .stdout(Stdio::from(fs::File::create(root.join("acknowledged")).unwrap()))
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let calls = calls(&fs::read_to_string(trace).unwrap());
    let count = |is: fn(&Call) -> bool| calls.iter().filter(|call| is(call)).count();
    let segments = count(|call| call.to.ends_with(".seg"));
    let barriers = count(|call| call.name == "fdatasync" && call.path.ends_with(".seg"));
    println!("{GROUPS} groups acknowledged, {barriers} fdatasyncs of segments, {segments} segments made");
    assert_eq!((broken(&calls), count(Call::is_acknowledgement)), (Vec::new(), GROUPS));
    assert!(segments > 3 && barriers >= GROUPS, "{segments} {barriers}");
    // The same trace with one kind of sync taken out breaks a promise.
    let kinds: [fn(&Call) -> bool; 4] = [
        |call| call.name == "fdatasync" && call.path.ends_with(".seg"),
        |call| call.path.ends_with(".tmp"),
        |call| call.path.ends_with("/journal"),
        |call| call.path.ends_with("/store"),
    ];
    for (nth, is_of_kind) in kinds.into_iter().enumerate() {
        let kept = |call: &&Call| !(is_of_kind(call) && call.name.ends_with("sync"));
        let fewer: Vec<Call> = calls.iter().filter(kept).cloned().collect();
        assert!(fewer.len() < calls.len() && !broken(&fewer).is_empty(), "kind {nth} is not needed");
    }
}
