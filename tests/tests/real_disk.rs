//! A power cut under a real file system, in the size that fits every change; `cargo run -p tests --bin real_disk` is
//! the whole.
//!
//! Owns no claim: the rig says what held, and ends with 1 if something did not.

use std::process::Command;

#[test]
fn what_was_acknowledged_outlives_a_cut_under_ext4() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_real_disk")).args(["ext4", "--images", "60"]).output().unwrap();
    // Also says why it was skipped, if it was.
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
