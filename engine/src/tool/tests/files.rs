//! `read`, `write`, `edit` and `ls`.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use model::ToolResult;
use model::guard::loops::ToolKind;
use model::input::RecoveryClass;
use model::message::Block;
use serde_json::{Value, json};

use super::World;
use crate::tool::Execution;
use crate::tool::builtin::{BUILTIN, builtin};

fn outside(path: &str) -> String {
    format!("`{path}` leads outside of the workspace; use a path inside of it")
}

#[test]
fn classes_and_kinds() {
    let facts = BUILTIN.map(|name| {
        let tool = builtin(name).unwrap();
        let spec = tool.spec();
        assert!(!spec.is_network);
        (name, spec.class, spec.kind, spec.execution)
    });
    let looks = |name| (name, RecoveryClass::ReadOnly, ToolKind::Plain, Execution::Parallel);
    let expected = [
        looks("read"),
        ("write", RecoveryClass::Probe, ToolKind::Write, Execution::Sequential),
        ("edit", RecoveryClass::Probe, ToolKind::Plain, Execution::Sequential),
        looks("ls"),
        looks("grep"),
        looks("find"),
    ];
    assert_eq!(facts, expected);
}

#[test]
fn no_tool_leaves_the_workspace() {
    let w = World::new(&[("a", "x")]);
    symlink("../secret", w.path("link")).unwrap();
    symlink("..", w.path("up")).unwrap();
    symlink("../made", w.path("dangling")).unwrap();
    let secret = w.dir.path().join("secret");
    let absolute = secret.to_str().unwrap();
    for path in ["../secret", "link", "up/secret", "up/new/file", "dangling", absolute] {
        let one = json!({"oldText": "outside", "newText": "x"});
        for (tool, args) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "content": "x"})),
            ("edit", json!({"path": path, "edits": [one]})),
            ("ls", json!({"path": path})),
            ("grep", json!({"path": path, "pattern": "x"})),
            ("find", json!({"path": path, "pattern": "*"})),
        ] {
            assert_eq!(w.refusal(tool, args), outside(path), "{tool}");
        }
    }
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "outside");
    assert!(!w.dir.path().join("made").exists() && !w.dir.path().join("new").exists());
}

#[test]
fn odd_paths_are_error_texts() {
    let w = World::new(&[("f", "x")]);
    let long = "x".repeat(300);
    let deep = "d/".repeat(3000) + "f";
    for path in ["", "a\0b", "f/g", &long, &deep] {
        for (tool, args) in [
            ("read", json!({"path": path})),
            ("write", json!({"path": path, "content": "x"})),
            ("edit", json!({"path": path, "oldText": "x", "newText": "y"})),
            ("ls", json!({"path": path})),
            ("grep", json!({"path": path, "pattern": "x"})),
            ("find", json!({"path": path, "pattern": "*"})),
        ] {
            let result = w.run(tool, args);
            assert!(result.as_ref().is_err_and(|text| text.len() < 400), "{tool} {path:?}: {result:?}");
        }
    }
}

#[test]
fn names_that_are_odd_but_legal_work() {
    let w = World::new(&[]);
    for path in ["\u{202e}", "\n", " ", "-rf", "*", "~", "[a]", "é€😀"] {
        w.run("write", json!({"path": path, "content": "x"})).unwrap();
        w.run("edit", json!({"path": path, "oldText": "x", "newText": "y"})).unwrap();
        assert_eq!(w.text("read", json!({"path": path})), "y");
    }
}

#[test]
fn a_cancelled_call_does_nothing() {
    let w = World::new(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for name in BUILTIN {
        let call = w.call(json!({"path": "f", "content": "x"}));
        call.cancel.cancel();
        let result = runtime.block_on(builtin(name).unwrap().run(call));
        assert_eq!(result, Err("Operation aborted".to_owned()));
    }
    assert_eq!(w.names(""), Vec::<String>::new());
}

#[test]
fn read_shows_text_as_it_is() {
    let w = World::new(&[("a/f", "one\ntwo\r\nthree"), ("empty", ""), ("bom", "\u{feff}text\n")]);
    assert_eq!(w.text("read", json!({"path": "a/f"})), "one\ntwo\r\nthree");
    assert_eq!(w.text("read", json!({"path": w.path("a/f")})), "one\ntwo\r\nthree");
    assert_eq!(w.text("read", json!({"path": "empty"})), "");
    assert_eq!(w.text("read", json!({"path": "bom"})), "text\n");
    w.put("latin", b"caf\xe9\n");
    assert_eq!(
        w.text("read", json!({"path": "latin"})),
        "caf\u{fffd}\n\n[bytes that are not UTF-8 are shown as \u{fffd}]"
    );
}

#[test]
fn read_shows_parts_and_says_how_to_go_on() {
    let w = World::new(&[("f", "1\n2\n3\n4\n")]);
    let part =
        |offset: u64, limit: u64| w.run("read", json!({"path": "f", "offset": offset, "limit": limit}));
    let text = |text: &str| Ok(ToolResult::text(text));
    assert_eq!(part(1, 2), text("1\n2\n\n[lines 1 to 2 are shown; continue with offset 3]"));
    assert_eq!(part(3, 2), text("3\n4\n"));
    assert_eq!(part(4, 9), text("4\n"));
    assert_eq!(part(5, 1), Err("`f` has 4 lines; offset 5 is past its end".to_owned()));
    assert_eq!(part(u64::MAX, 1), Err(format!("`f` has 4 lines; offset {} is past its end", u64::MAX)));
    assert!(part(0, 1).unwrap_err().contains("  - offset: must be >= 1"));
}

#[test]
fn read_holds_the_cap() {
    let mut w = World::new(&[]);
    let line = "0123456789".repeat(5) + "\n";
    w.put("many", line.repeat(100_000));
    w.put("long", "é".repeat(1_000_000) + "\nend\n");
    w.output_bytes_max = 1000;
    let many = w.text("read", json!({"path": "many"}));
    assert_eq!(many, format!("{}\n[lines 1 to 15 are shown; continue with offset 16]", line.repeat(15)));
    let last = w.text("read", json!({"path": "many", "offset": 100_000}));
    assert_eq!(last, line);
    let note = "[line 1 is too long to be shown whole; lines 1 to 1 are shown; continue with offset 2]";
    assert_eq!(w.text("read", json!({"path": "long"})), format!("{}\n\n{note}", "é".repeat(400)));
    assert_eq!(w.text("read", json!({"path": "long", "offset": 2})), "end\n");
    for output_bytes_max in (0..300).step_by(7) {
        w.output_bytes_max = output_bytes_max;
        assert!(w.text("read", json!({"path": "long"})).len() <= output_bytes_max);
    }
}

#[test]
fn read_refuses_what_is_no_text() {
    let w = World::new(&[("d/f", "")]);
    w.put("program", b"\x7fELF\0\0");
    assert_eq!(
        w.refusal("read", json!({"path": "program"})),
        "`program` is a binary file of 6 bytes; read shows text and pictures"
    );
    assert_eq!(w.refusal("read", json!({"path": "d"})), "`d` is a directory; use ls to see what it holds");
    assert_eq!(w.refusal("read", json!({"path": "none"})), "`none` does not exist; use find to look for it");
}

#[test]
fn read_shows_pictures() {
    let w = World::new(&[]);
    w.put("p.png", b"\x89PNG\r\n\x1a\n\0\xff");
    let picture = Block::Image { data: "iVBORw0KGgoA/w==".into(), media_type: "image/png".into() };
    let text = Block::Text("`p.png` (image/png, 10 bytes)".into());
    assert_eq!(w.run("read", json!({"path": "p.png"})).unwrap().content, [text, picture]);
    w.put("big.gif", [b"GIF89a".as_slice(), &vec![0; 5 << 20]].concat());
    assert_eq!(
        w.refusal("read", json!({"path": "big.gif"})),
        "`big.gif` is a picture of 5242886 bytes; read shows at most 5242880, so make it smaller"
    );
}

fn written(text: &str, is_changed: bool) -> ToolResult {
    ToolResult::text(text).with_details(&json!({ "changed": is_changed }))
}

#[test]
fn write_makes_replaces_and_leaves_alone() {
    let w = World::new(&[]);
    let write = |content: &str| w.run("write", json!({"path": "a/b/f", "content": content}));
    assert_eq!(write("one"), Ok(written("made `a/b/f` (3 bytes)", true)));
    assert_eq!(write("two!"), Ok(written("replaced `a/b/f` (4 bytes)", true)));
    let unchanged = "`a/b/f` has this content already (4 bytes); nothing was written";
    assert_eq!(write("two!"), Ok(written(unchanged, false)));
    assert_eq!(w.content("a/b/f"), "two!");
    assert_eq!(w.names("a/b"), ["f"]);
    assert_eq!(w.run("write", json!({"path": "e", "content": ""})), Ok(written("made `e` (0 bytes)", true)));
}

#[test]
fn write_keeps_the_mode_and_writes_through_links() {
    let w = World::new(&[("script", "old")]);
    std::fs::set_permissions(w.path("script"), std::fs::Permissions::from_mode(0o751)).unwrap();
    symlink("script", w.path("link")).unwrap();
    assert_eq!(w.text("write", json!({"path": "link", "content": "new"})), "replaced `script` (3 bytes)");
    assert_eq!(w.content("script"), "new");
    assert!(w.path("link").is_symlink());
    let mode = std::fs::metadata(w.path("script")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o751);
}

#[test]
fn write_refuses_what_is_no_file() {
    let w = World::new(&[("d/f", "x")]);
    let refusal = |path: &str| w.refusal("write", json!({"path": path, "content": "x"}));
    assert_eq!(refusal("d"), "`d` is a directory; name a file");
    assert_eq!(refusal("."), "`.` is a directory; name a file");
    assert_eq!(refusal("d/f/g"), "`d/f/g` goes through something that is not a directory");
}

fn edit(w: &World, old: &str, new: &str) -> Result<ToolResult, String> {
    w.run("edit", json!({"path": "f", "oldText": old, "newText": new}))
}

#[test]
fn edit_replaces_the_only_occurrence() {
    let w = World::new(&[("f", "a\nb\nc\n")]);
    let diff = "--- f\n+++ f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n";
    let expected =
        ToolResult::text("edited `f` (1 replacement)").with_details(&json!({"changed": true, "diff": diff}));
    assert_eq!(edit(&w, "b", "B"), Ok(expected));
    assert_eq!(w.content("f"), "a\nB\nc\n");
    let expected = ToolResult::text("`f` was not changed: the new text is the old text")
        .with_details(&json!({"changed": false, "diff": ""}));
    assert_eq!(edit(&w, "B", "B"), Ok(expected));
}

#[test]
fn edit_takes_a_list_matched_against_the_file_as_it_is() {
    let w = World::new(&[("f", "one two three")]);
    let list = |edits: Value| w.run("edit", json!({"path": "f", "edits": edits}));
    let pair = |old: &str, new: &str| json!({"oldText": old, "newText": new});
    let result = list(json!([pair("three", "one"), pair("one", "three")]));
    assert_eq!(result.unwrap().joined_text(), "edited `f` (2 replacements)");
    assert_eq!(w.content("f"), "three two one");
    assert_eq!(
        list(json!([pair("three two", "x"), pair("two", "y")])),
        Err("`f`: two of the edits overlap; join them into one".to_owned())
    );
    assert!(list(json!([])).unwrap_err().starts_with("Validation failed for tool \"edit\":\n  - edits: "));
    assert_eq!(
        w.refusal("edit", json!({"path": "f", "oldText": "a", "edits": []})),
        "give either edits or oldText and newText, not both"
    );
    assert!(
        w.refusal("edit", json!({"path": "f", "oldText": "a"}))
            .contains("  - edits.0.newText: must have required properties newText")
    );
    assert_eq!(w.content("f"), "three two one");
}

#[test]
fn edit_says_why_it_cannot() {
    let w = World::new(&[("f", "x\naa\nx\nx\nx\nx\nx\naaa\n"), ("d/g", "")]);
    assert_eq!(
        edit(&w, "nothing", ""),
        Err(
            "`f`: oldText was not found; it must match the file exactly, white space included; read it again"
                .to_owned()
        )
    );
    assert_eq!(
        edit(&w, "x", "y"),
        Err("`f`: oldText occurs 6 times (lines 1, 3, 4, 5, 6, …); add lines around it until it occurs once"
            .to_owned())
    );
    assert_eq!(
        edit(&w, "aa", "b"),
        Err("`f`: oldText occurs 3 times (lines 2, 8, 8); add lines around it until it occurs once"
            .to_owned())
    );
    assert_eq!(
        edit(&w, "", "b"),
        Err("`f`: oldText is empty; name the text to replace, or use write for a whole file".to_owned())
    );
    let refusal = |path: &str| w.refusal("edit", json!({"path": path, "oldText": "a", "newText": "b"}));
    assert_eq!(refusal("d"), "`d` is a directory; name a file");
    assert_eq!(refusal("none"), "`none` does not exist; use write to make it");
    w.put("latin", b"a\xe9");
    assert_eq!(refusal("latin"), "`latin` is not UTF-8 text; edit takes text only");
}

#[test]
fn edit_keeps_line_endings_and_the_byte_order_mark() {
    let w = World::new(&[("f", "\u{feff}a\r\nb\r\nc\nd\r\n")]);
    edit(&w, "a\nb", "A\nB\nmore").unwrap();
    assert_eq!(w.content("f"), "\u{feff}A\r\nB\r\nmore\r\nc\nd\r\n");
    edit(&w, "\nc\n", "\nC\n").unwrap();
    assert_eq!(w.content("f"), "\u{feff}A\r\nB\r\nmore\r\nC\r\nd\r\n");
    edit(&w, "\u{feff}A\r\n", "x\n").unwrap();
    assert_eq!(w.content("f"), "\u{feff}x\r\nB\r\nmore\r\nC\r\nd\r\n");
    w.put("f", "a\nb\r\n");
    edit(&w, "a", "x\ny").unwrap();
    assert_eq!(w.content("f"), "x\ny\nb\r\n");
}

#[test]
fn edit_of_a_big_file_keeps_its_diff_short() {
    let w = World::new(&[]);
    let text: String = (0..200_000).map(|n| format!("line {n} of the file\n")).collect();
    w.put("f", &text);
    edit(&w, "line 150000 of", &"x".repeat(100_000)).unwrap();
    assert_eq!(w.content("f"), text.replace("line 150000 of", &"x".repeat(100_000)));
    let details = edit(&w, "line 160000 of", &"y".repeat(100_000)).unwrap().details.value();
    assert!(details["diff"].as_str().is_some_and(|diff| diff.len() <= 16 << 10));
    w.put("f", vec![b'x'; (32 << 20) + 1]);
    assert_eq!(edit(&w, "y", "z"), Err("`f` has more than the 33554432 bytes that edit takes".to_owned()));
}

#[test]
fn ls_shows_everything_sorted() {
    let w = World::new(&[("b/x", ""), ("a", ""), (".hidden", ""), ("C", ""), (".gitignore", "a\n")]);
    symlink("a", w.path("link")).unwrap();
    assert_eq!(w.text("ls", json!({})), ".gitignore\n.hidden\nC\na\nb/\nlink@");
    assert_eq!(w.text("ls", json!({"path": "b"})), "x");
    assert_eq!(
        w.text("ls", json!({"limit": "2"})),
        ".gitignore\n.hidden\n\n[2 of 6 names are shown; raise limit to see more]"
    );
    std::fs::create_dir(w.path("empty")).unwrap();
    assert_eq!(w.text("ls", json!({"path": "empty"})), "[the directory is empty]");
    assert_eq!(w.refusal("ls", json!({"path": "a"})), "`a` is not a directory; use read to see it");
    assert_eq!(w.refusal("ls", json!({"path": "no"})), "`no` does not exist; use find to look for it");
}
