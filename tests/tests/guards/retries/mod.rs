//! Every branch of the retry guard at work: a batch of one job, its rehearsal, and what followed.
//!
//! Owns the table of branches: what the docs page shows is made from it, and it has the branches of the code in their
//! order. What each rehearsal leads to is the reviewed file `tests/cases/retries.txt`; run with `BLESS=1` and review the
//! difference.

mod bench;
mod rows;

use std::path::{Path, PathBuf};

use model::guard::retry::Branch;
use tests::documented::{assert_documented, root};

use self::bench::{drive, waits_the_remainder};
use self::rows::{ROWS, Row};

/// The rehearsal of a row.
fn rehearsal(branch: &str) -> PathBuf {
    root().join(format!("docs/examples/retries/{branch}.rehearsal.json"))
}

/// Compares a reviewed text with what is so now; with `BLESS=1` it is written.
fn assert_reviewed(path: &Path, now: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, now).unwrap();
    }
    let reviewed = std::fs::read_to_string(path).unwrap_or_default();
    let differs = |(_, (old, new)): &(usize, (&str, &str))| old != new;
    let pairs = reviewed.lines().zip(now.lines()).enumerate().find(differs);
    assert_eq!(pairs, None, "{} differs; look at it, then run with BLESS=1", path.display());
    assert_eq!(reviewed.len(), now.len(), "{} differs at its end", path.display());
}

#[test]
fn the_table_has_every_branch_in_the_order_of_the_code() {
    let names: Vec<&str> = ROWS.iter().map(|row| row.branch).collect();
    assert_eq!(names, Branch::all().map(Branch::name).collect::<Vec<_>>());
}

#[test]
fn the_docs_show_the_table() {
    let mut table = "| | branch | when | what is done | shown by |\n|---|---|---|---|---|\n".to_owned();
    for (number, Row { branch, when, then, needs, .. }) in (1..).zip(ROWS) {
        let file = format!("[{branch}](examples/retries/{branch}.rehearsal.json)");
        let shown = if needs.is_empty() { file } else { format!("{file}, {needs}") };
        table += &format!("| {number} | `{branch}` | {when} | {then} | {shown} |\n");
    }
    assert_documented("docs/guards.md", "branches", &table);
}

#[test]
fn every_branch_is_taken_in_a_real_batch() {
    let mut shown = String::new();
    for row in ROWS {
        let story = drive(row, &rehearsal(row.branch));
        assert!(
            row.branch == "success" || story.branches.contains(&row.branch),
            "{} was not taken:\n{}",
            row.branch,
            story.text
        );
        shown += &format!("## {}\n{}\n", row.branch, story.text);
    }
    assert_reviewed(&root().join("tests/cases/retries.txt"), &shown);
}

#[test]
fn a_restart_in_the_middle_of_a_wait_waits_the_remainder() {
    let waited_ms = waits_the_remainder(&rehearsal("same_model_rate_limit"), 4_000, 3_000);
    assert_eq!(waited_ms, [10_000, 20_000, 30_000]);
    let waited_ms = waits_the_remainder(&rehearsal("same_model_rate_limit"), 4_000, 60_000);
    assert_eq!(waited_ms, [64_000, 20_000, 30_000], "a wait that is long over is not begun again");
}
