//! A power cut under a real file system, in the size that fits every change; `cargo run -p tests --bin real_disk` is
//! the whole.
//!
//! Owns no claim: the rig says what held, and ends with 1 if something did not.

use std::process::Command;

use tests::documented::block;

#[test]
fn what_was_acknowledged_outlives_a_cut_under_ext4() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_real_disk")).args(["ext4", "--images", "60"]).output().unwrap();
    // Also says why it was skipped, if it was.
    let printed = String::from_utf8_lossy(&output.stdout);
    print!("{printed}");
    let documented = block("docs/durability.md", "real disks").text;
    assert!(
        printed.starts_with("skipped") || printed.lines().next() == documented.lines().next(),
        "{documented}"
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
