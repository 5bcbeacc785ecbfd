//! `write` and `edit`, cut after every operation on the disk.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;

use model::ToolResult;
use serde_json::{Value, json};

use super::World;
use crate::tool::durable::{Door, Site, probe_through};
use crate::tool::edit::edit;
use crate::tool::write::write;
use crate::tool::{CallContext, Probe};

/// A disk that stops for good after some operations, and remembers them. It does not sync: a process that dies
/// loses nothing that it wrote, and the order of the syncs is checked as it is remembered.
struct Cut {
    left: Cell<usize>,
    done: RefCell<Vec<&'static str>>,
}

impl Cut {
    fn after(operations: usize) -> Self {
        Self { left: Cell::new(operations), done: RefCell::default() }
    }

    fn never() -> Self {
        Self::after(usize::MAX)
    }
}

impl Door for Cut {
    fn pass<T>(&self, name: &'static str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| io::Error::other("cut"))?;
        self.left.set(left);
        self.done.borrow_mut().push(name);
        operation()
    }

    fn sync(&self, name: &'static str, _file: &File) -> io::Result<()> {
        self.pass(name, || Ok(()))
    }
}

/// A call whose crashes are tried, and what it is to leave behind.
struct Case {
    tool: &'static str,
    args: Value,
    path: &'static str,
    before: Option<String>,
    after: String,
}

impl Case {
    fn world(&self) -> World {
        let world = World::new(&[("other", "other")]);
        if let Some(content) = &self.before {
            world.put(self.path, content);
        }
        world
    }

    fn run(&self, door: &impl Door, call: &CallContext) -> Result<ToolResult, String> {
        if self.tool == "edit" { edit(door, call) } else { write(door, call) }
    }

    fn content(&self, world: &World) -> Option<String> {
        std::fs::read_to_string(world.path(self.path)).ok()
    }

    /// Asks what became of the call and checks the answer against the file.
    fn probe(&self, world: &World, expected: &ToolResult) -> Probe {
        let content = self.content(world);
        assert!(content == self.before || content.as_ref() == Some(&self.after), "a half file");
        let is_changed = content != self.before;
        let probe = probe_through(&Cut::never(), &Site::of(&world.call(self.args.clone())));
        match &probe {
            Probe::Ran(result) => {
                assert!(is_changed || self.before.as_ref() == Some(&self.after));
                assert_eq!(result, expected);
            }
            Probe::DidNotRun => assert!(!is_changed),
            Probe::Running | Probe::Unknown => panic!("nothing else touched the file"),
        }
        probe
    }

    /// Cuts the first try after `first` operations and the next one after `second`, then lets it through.
    /// Returns whether each cut happened.
    fn crash_twice(&self, first: usize, second: usize, expected: &ToolResult) -> (bool, bool) {
        let world = self.world();
        let call = world.call(self.args.clone());
        let mut cuts = [false; 3];
        for (is_cut, operations) in cuts.iter_mut().zip([first, second, usize::MAX]) {
            if matches!(self.probe(&world, expected), Probe::Ran(_)) {
                break;
            }
            match self.run(&Cut::after(operations), &call) {
                Ok(result) => {
                    assert_eq!(&result, expected);
                    break;
                }
                Err(_) => *is_cut = true,
            }
        }
        assert_eq!(self.content(&world).as_ref(), Some(&self.after));
        let name = self.path.rsplit('/').next().unwrap();
        let mut names = world.names(self.path.strip_suffix(name).unwrap());
        names.retain(|found| found != "other");
        assert_eq!(names, [name], "a file is left over");
        (cuts[0], cuts[1])
    }

    /// What a whole run answers.
    fn expected(&self) -> ToolResult {
        let world = self.world();
        self.run(&Cut::never(), &world.call(self.args.clone())).unwrap()
    }

    /// Tries every cut; the number of operations of a whole run.
    fn crash_everywhere(&self) -> usize {
        let expected = self.expected();
        (0..).find(|&first| !self.crash_twice(first, usize::MAX, &expected).0).unwrap()
    }
}

fn writes(path: &'static str, before: Option<&str>, after: &str) -> Case {
    Case {
        tool: "write",
        args: json!({"path": path, "content": after}),
        path,
        before: before.map(str::to_owned),
        after: after.to_owned(),
    }
}

#[test]
fn every_cut_of_a_write_is_told_and_mended() {
    assert_eq!(writes("f", Some("old"), "new").crash_everywhere(), 16);
    assert_eq!(writes("a/b/f", None, "new").crash_everywhere(), 19);
    assert_eq!(writes("f", None, "").crash_everywhere(), 14);
}

#[test]
fn every_cut_of_a_write_that_changes_nothing_is_told() {
    assert_eq!(writes("f", Some("same"), "same").crash_everywhere(), 11);
}

fn an_edit() -> Case {
    Case {
        tool: "edit",
        args: json!({"path": "d/f", "edits": [{"oldText": "b", "newText": "bb"}]}),
        path: "d/f",
        before: Some("a b c".into()),
        after: "a bb c".into(),
    }
}

#[test]
fn every_cut_of_an_edit_is_told_and_mended() {
    assert_eq!(an_edit().crash_everywhere(), 17);
}

#[test]
fn every_cut_of_a_second_try_is_told_and_mended() {
    let case = an_edit();
    let expected = case.expected();
    for (first, second) in (0..17).flat_map(|first| (0..17).map(move |second| (first, second))) {
        assert!(case.crash_twice(first, second, &expected).0);
    }
}

#[test]
fn a_cut_in_the_middle_of_a_big_file_leaves_the_old_one() {
    let case = writes("f", Some("old"), &"x".repeat(3 << 20));
    let world = case.world();
    let call = world.call(case.args.clone());
    let whole = Cut::never();
    let expected = case.run(&whole, &call).unwrap();
    assert_eq!(whole.done.borrow().iter().filter(|name| **name == "write").count(), 4);
    let middle = whole.done.borrow().iter().rposition(|name| *name == "write").unwrap();
    case.crash_twice(middle, middle, &expected);
}

#[test]
fn the_order_of_operations() {
    let order = |case: Case| {
        let world = case.world();
        let door = Cut::never();
        case.run(&door, &world.call(case.args.clone())).unwrap();
        door.done.take()
    };
    let scratch = ["make directory", "sync directory", "sync directory", "sync directory"];
    let intent = ["create", "write", "sync file", "rename", "sync directory"];
    let fresh = ["make directory", "make directory", "remove", "create", "write", "sync file", "rename"];
    let expected = [scratch.as_slice(), &intent, &fresh, &["sync directory"; 3]].concat();
    assert_eq!(order(writes("a/b/f", None, "new")), expected);
    let replaced =
        ["remove", "create", "write", "set mode", "sync file", "rename", "sync directory", "sync directory"];
    assert_eq!(order(writes("a/f", Some("old"), "new")), [scratch.as_slice(), &intent, &replaced].concat());
    let unchanged = ["sync file", "sync directory", "sync directory"];
    assert_eq!(order(writes("a/f", Some("new"), "new")), [scratch.as_slice(), &intent, &unchanged].concat());
}

#[test]
fn a_file_that_someone_else_changed_is_unknown() {
    let case = writes("f", Some("old"), "new");
    let world = case.world();
    let call = world.call(case.args.clone());
    case.run(&Cut::after(12), &call).unwrap_err();
    for (content, expected) in [("other", Probe::Unknown), ("old", Probe::DidNotRun)] {
        world.put("f", content);
        assert_eq!(probe_through(&Cut::never(), &Site::of(&call)), expected);
    }
    std::fs::remove_file(world.path("f")).unwrap();
    assert_eq!(probe_through(&Cut::never(), &Site::of(&call)), Probe::Unknown);
}

#[test]
fn a_probe_without_an_intent_or_with_a_damaged_one() {
    let case = writes("f", None, "new");
    let world = case.world();
    let mut call = world.call(case.args.clone());
    assert_eq!(probe_through(&Cut::never(), &Site::of(&call)), Probe::DidNotRun);
    case.run(&Cut::never(), &call).unwrap();
    std::fs::write(call.scratch.as_ref().unwrap().join("intent"), "damaged").unwrap();
    assert_eq!(probe_through(&Cut::never(), &Site::of(&call)), Probe::Unknown);
    call.scratch = None;
    assert_eq!(probe_through(&Cut::never(), &Site::of(&call)), Probe::Unknown);
}

#[test]
fn a_probe_syncs_what_it_found_before_it_answers() {
    let case = writes("a/f", None, "new");
    let world = case.world();
    let call = world.call(case.args.clone());
    case.run(&Cut::never(), &call).unwrap();
    let door = Cut::never();
    assert!(matches!(probe_through(&door, &Site::of(&call)), Probe::Ran(_)));
    assert_eq!(door.done.take(), ["remove", "sync file", "sync directory", "sync directory"]);
    assert_eq!(probe_through(&Cut::after(1), &Site::of(&call)), Probe::Unknown);
}

#[test]
fn a_tool_without_scratch_writes_all_the_same() {
    let case = writes("f", None, "new");
    let world = case.world();
    let call = CallContext { scratch: None, ..world.call(case.args.clone()) };
    assert_eq!(case.run(&Cut::never(), &call).unwrap().joined_text(), "made `f` (3 bytes)");
    assert_eq!(world.content("f"), "new");
    assert!(!world.dir.path().join("data").exists());
}
