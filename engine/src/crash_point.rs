//! Named points at which a crash test stops this process.
//!
//! Owns nothing: without the feature `crash-points` the function is empty, and no shipped binary has it.

/// Stops the process at this point if the environment names it, until somebody continues or kills it.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn reach(_point: &str) {}

/// Stops the process at this point if `SPRAG_CRASH_POINT` names it, once in a test: the file that
/// `SPRAG_CRASH_FILE` names must not exist, and holds the pid afterwards.
#[cfg(feature = "crash-points")]
pub(crate) fn reach(point: &str) {
    use std::io::Write as _;

    if std::env::var_os("SPRAG_CRASH_POINT").is_none_or(|wanted| wanted != point) {
        return;
    }
    let Some(path) = std::env::var_os("SPRAG_CRASH_FILE") else { return };
    let Ok(mut file) = std::fs::File::options().write(true).create_new(true).open(path) else { return };
    let pid = rustix::process::getpid();
    // The test waits for the line, so a failure shows as a test that waits in vain.
    let _ = writeln!(file, "{}", pid.as_raw_nonzero());
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
    // The kernel may take a moment to stop the thread that asks.
    std::thread::sleep(std::time::Duration::from_millis(50));
}
