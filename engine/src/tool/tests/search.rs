//! `grep` and `find`.

use std::os::unix::fs::symlink;

use serde_json::json;

use super::World;

fn tree() -> World {
    World::new(&[
        (".gitignore", "/target\n*.log\n"),
        (".github/ci.yml", "fn ci\n"),
        (".git/config", "fn git\n"),
        ("b.rs", "fn b() {}\n// no\nfn b2() {}\n"),
        ("src/a.rs", "use x;\nfn a() {}\n"),
        ("src/deep/c.txt", "FN c\n"),
        ("src/deep/.gitignore", "c.rs\n"),
        ("src/deep/c.rs", "fn hidden\n"),
        ("target/out.rs", "fn out\n"),
        ("x.log", "fn log\n"),
    ])
}

#[test]
fn grep_shows_matches_in_a_fixed_order() {
    let w = tree();
    assert_eq!(
        w.text("grep", json!({"pattern": "fn \\w+"})),
        ".github/ci.yml:1: fn ci\nb.rs:1: fn b() {}\nb.rs:3: fn b2() {}\nsrc/a.rs:2: fn a() {}"
    );
    assert_eq!(w.text("grep", json!({"pattern": "fn c", "ignoreCase": true})).lines().count(), 2);
    assert_eq!(w.text("grep", json!({"pattern": "b()", "literal": true})), "b.rs:1: fn b() {}");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "glob": "a.*"})), "src/a.rs:2: fn a() {}");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "glob": "src/**/*.rs"})), "src/a.rs:2: fn a() {}");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "path": "src"})), "src/a.rs:2: fn a() {}");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "path": "src/a.rs"})), "src/a.rs:2: fn a() {}");
    assert_eq!(w.text("grep", json!({"pattern": "nowhere"})), "[nothing matches]");
}

#[test]
fn what_is_ignored_is_searched_only_when_named() {
    let w = tree();
    assert_eq!(w.text("grep", json!({"pattern": "fn", "path": "target"})), "target/out.rs:1: fn out");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "path": "x.log"})), "x.log:1: fn log");
    assert_eq!(w.text("grep", json!({"pattern": "fn", "path": "src/deep"})), "[nothing matches]");
    assert_eq!(w.text("find", json!({"pattern": "*", "path": "target"})), "target/out.rs");
    std::fs::write(w.dir.path().join(".gitignore"), "b.rs\n").unwrap();
    w.put(".git/info/exclude", "b.rs\n");
    assert_eq!(w.text("find", json!({"pattern": "b.rs"})), "b.rs");
}

#[test]
fn grep_shows_context() {
    let w = World::new(&[("f", "1\n2 x\n3\n4\n5\n6\n7\n8 x\n9 x\n"), ("g", "1 y\n2\n"), ("h", "1 y\n")]);
    assert_eq!(w.text("grep", json!({"pattern": "y", "context": 2})), "g:1: 1 y\ng-2- 2\n--\nh:1: 1 y");
    assert_eq!(
        w.text("grep", json!({"pattern": "x", "context": 1})),
        "f-1- 1\nf:2: 2 x\nf-3- 3\n--\nf-7- 7\nf:8: 8 x\nf:9: 9 x"
    );
    assert_eq!(
        w.text("grep", json!({"pattern": "[28] x", "context": 3})),
        "f-1- 1\nf:2: 2 x\nf-3- 3\nf-4- 4\nf-5- 5\nf-6- 6\nf-7- 7\nf:8: 8 x\nf-9- 9 x"
    );
}

#[test]
fn grep_has_limits_and_says_so() {
    let mut w = World::new(&[("f", "x\nx\nx\n")]);
    w.put("binary", b"x\0x\n");
    w.put("wide", "y".repeat(2000));
    assert_eq!(
        w.text("grep", json!({"pattern": "x", "limit": 2})),
        "f:1: x\nf:2: x\n\n[2 matches are shown and there are more; refine pattern or raise limit]"
    );
    assert_eq!(w.text("grep", json!({"pattern": "x", "limit": 3})), "f:1: x\nf:2: x\nf:3: x");
    assert_eq!(w.text("grep", json!({"pattern": "y"})), format!("wide:1: {}…", "y".repeat(500)));
    w.put("big", vec![b'x'; (32 << 20) + 1]);
    assert_eq!(
        w.text("grep", json!({"pattern": "none"})),
        "[nothing matches]\n\n[1 files of more than 33554432 bytes were not searched]"
    );
    w.put("many", "line\n".repeat(10_000));
    w.output_bytes_max = 300;
    assert!(w.text("grep", json!({"pattern": "line", "limit": 10_000})).len() <= 300);
}

#[test]
fn grep_refuses_bad_patterns() {
    let w = tree();
    let refusal = |pattern: &str| w.refusal("grep", json!({"pattern": pattern}));
    assert!(refusal("(").starts_with("the pattern is not a regular expression: "));
    assert!(refusal("(a)\\1").ends_with("; set literal for plain text"));
    assert!(refusal("\\w{1000}{100}").contains("size limit"));
    assert!(w.refusal("grep", json!({"pattern": "x", "glob": "{a"})).starts_with("glob is not valid: "));
    assert_eq!(
        w.refusal("grep", json!({"pattern": "x", "path": "no"})),
        "`no` does not exist; use find to look for it"
    );
}

#[test]
fn find_matches_names_and_paths() {
    let w = tree();
    assert_eq!(w.text("find", json!({"pattern": "*.rs"})), "b.rs\nsrc/a.rs");
    assert_eq!(w.text("find", json!({"pattern": "src/*"})), "src/a.rs\nsrc/deep/");
    assert_eq!(w.text("find", json!({"pattern": "**/c.txt"})), "src/deep/c.txt");
    assert_eq!(
        w.text("find", json!({"pattern": "deep/*", "path": "src"})),
        "src/deep/.gitignore\nsrc/deep/c.txt"
    );
    assert_eq!(w.text("find", json!({"pattern": ".git*"})), ".github/\n.gitignore\nsrc/deep/.gitignore");
    assert_eq!(w.text("find", json!({"pattern": "none"})), "[nothing matches]");
    assert_eq!(
        w.text("find", json!({"pattern": "*", "limit": 1})),
        ".github/\n\n[1 paths are shown and there are more; refine pattern or raise limit]"
    );
    assert!(w.refusal("find", json!({"pattern": "["})).starts_with("the pattern is not a glob: "));
    assert_eq!(
        w.refusal("find", json!({"pattern": "*", "path": "b.rs"})),
        "`b.rs` is not a directory; name one to search in"
    );
}

#[test]
fn links_are_seen_but_not_followed() {
    let w = World::new(&[("a/f", "text")]);
    symlink("../../secret", w.path("a/out")).unwrap();
    symlink("..", w.path("up")).unwrap();
    symlink("a", w.path("in")).unwrap();
    assert_eq!(w.text("grep", json!({"pattern": "."})), "a/f:1: text");
    assert_eq!(w.text("find", json!({"pattern": "*"})), "a/\na/f\na/out\nin\nup");
    assert_eq!(w.text("grep", json!({"pattern": ".", "path": "in"})), "a/f:1: text");
}
