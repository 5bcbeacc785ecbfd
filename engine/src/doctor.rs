//! What is wrong with a directory, its disk or this machine, and how to mend it.
//!
//! Owns the questions. It must never change anything but files of its own, which it removes: what mends is a command that
//! a person types.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{Millis, RunId};
use store::Stream;

use crate::control::Client;
use crate::salvage;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing; nothing fails for it.
    Note,
    /// Something fails, or will.
    Bad,
}

impl Level {
    /// The name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
        }
    }
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub about: &'static str,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub words: String,
    /// What to do about it; none if nothing needs to be done.
    pub remedy: Option<String>,
}

impl Check {
    fn good(about: &'static str, words: impl Into<String>) -> Self {
        Self { about, level: Level::Good, words: words.into(), remedy: None }
    }

    fn note(about: &'static str, words: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, level: Level::Note, words: words.into(), remedy: Some(remedy.into()) }
    }

    fn bad(about: &'static str, words: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, level: Level::Bad, words: words.into(), remedy: Some(remedy.into()) }
    }
}

/// Space below which new runs may be refused soon: the spare segment, and one more.
const FREE_BYTES_MIN: u64 = 2 * (64 << 20);
/// Syncs that a disk is asked for.
const SYNCS: usize = 32;
/// A sync that takes longer makes every turn wait for the disk.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// Descriptors that an engine with the default concurrency may need.
const DESCRIPTORS_MIN: u64 = 1024;

/// Looks at everything, in the order in which a person would.
pub fn examine(dir: &Path, now: Millis) -> Vec<Check> {
    let mut checks = vec![directory(dir)];
    if checks.iter().all(|check| check.level == Level::Good) && dir.is_dir() {
        checks.extend([owner(dir), space(dir), sync(dir)]);
        checks.extend(journal(dir, now));
    }
    checks.extend([bash(), processes(), descriptors()]);
    checks
}

fn directory(dir: &Path) -> Check {
    const ABOUT: &str = "directory";
    if let Some(kind) = store::network_file_system(dir) {
        let words = format!(
            "{} is on a network file system ({kind}), whose locks and syncs prove nothing",
            dir.display()
        );
        return Check::bad(ABOUT, words, "use a local directory with --data");
    }
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Check::good(ABOUT, dir.display().to_string()),
        Ok(_) => Check::bad(ABOUT, format!("{} is a file", dir.display()), "choose another with --data"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Check::good(ABOUT, format!("{} is not there yet; the first run makes it", dir.display()))
        }
        Err(error) => Check::bad(
            ABOUT,
            format!("{} cannot be read ({error})", dir.display()),
            "make it readable, or choose another with --data",
        ),
    }
}

fn owner(dir: &Path) -> Check {
    const ABOUT: &str = "owner";
    match Client::connect(dir) {
        Ok(Some(_)) => Check::good(ABOUT, "an engine is at work here, and answers"),
        Ok(None) => Check::good(ABOUT, "no engine is at work here"),
        Err(error) => Check::bad(ABOUT, error.to_string(), "stop that process, or use its version of sprag"),
    }
}

fn space(dir: &Path) -> Check {
    const ABOUT: &str = "space";
    match rustix::fs::statvfs(dir) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let words = format!("{} MiB are free", free >> 20);
            if free < FREE_BYTES_MIN {
                return Check::bad(
                    ABOUT,
                    words,
                    "free some space: new runs are refused before live ones must stop",
                );
            }
            Check::good(ABOUT, words)
        }
        Err(error) => {
            Check::bad(ABOUT, format!("free space cannot be asked for ({error})"), "look at the disk")
        }
    }
}

/// Appends and syncs, as the journal does.
fn sync(dir: &Path) -> Check {
    const ABOUT: &str = "sync";
    let probe = Probe(dir.join(format!("doctor.{}.probe", std::process::id())));
    match probe.syncs() {
        Ok(mut times) => {
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied().unwrap_or_default();
            let words = format!("an append and its sync take {:.2} ms", median.as_secs_f64() * 1e3);
            if median > SYNC_SLOW {
                return Check::note(
                    ABOUT,
                    words,
                    "a faster disk makes every turn faster; many runs at once share syncs",
                );
            }
            Check::good(ABOUT, words)
        }
        Err(error) => Check::bad(
            ABOUT,
            format!("{} cannot be written ({error})", dir.display()),
            "make it writable, free space, or choose another with --data",
        ),
    }
}

/// A file of the doctor's own, removed with it.
struct Probe(PathBuf);

impl Probe {
    fn syncs(&self) -> std::io::Result<Vec<Duration>> {
        let mut file = File::create(&self.0)?;
        let mut append = || {
            let since = Instant::now();
            file.write_all(&[0; 4096])?;
            file.sync_data()?;
            Ok(since.elapsed())
        };
        (0..SYNCS).map(|_| append()).collect()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // One that was never made cannot be removed either.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn journal(dir: &Path, now: Millis) -> Vec<Check> {
    const ABOUT: &str = "journal";
    if !dir.join("journal").is_dir() {
        return match dir.join("state").exists() {
            true => vec![Check::bad(
                ABOUT,
                "there is a state and no journal: data is missing",
                "restore it from a copy",
            )],
            false => vec![Check::good(ABOUT, "no run was ever started here")],
        };
    }
    // Before the journal: an engine that begins meanwhile makes it longer, never shorter.
    let known = store::frames_known(dir);
    match store::verify(dir) {
        // Nothing is wrong with it.
        Err(error @ store::Error::Newer { .. }) => {
            vec![Check::bad(
                "version",
                error.to_string(),
                "use the version of sprag that wrote it, or a newer one",
            )]
        }
        Err(error) => {
            vec![Check::bad(ABOUT, error.to_string(), "restore the directory `journal` from a copy")]
        }
        Ok(report) => {
            let mut checks: Vec<Check> =
                report.findings.iter().map(|finding| found(ABOUT, finding)).collect();
            if !checks.is_empty() {
                checks.extend(losses(ABOUT, dir));
            } else {
                let words = format!("every hash of its {} frames is right", report.frames);
                checks.push(Check::good(ABOUT, words));
            }
            checks.extend(behind(known, report.end.position));
            checks.extend(clock(dir, now));
            checks
        }
    }
}

/// An end that is missing as a whole looks like what a crash leaves, but the state may know of more.
fn behind(known: Result<Option<u64>, store::Error>, journal: u64) -> Option<Check> {
    const ABOUT: &str = "state";
    match known {
        Ok(Some(state)) if state > journal => {
            let words = store::Error::Behind { journal, state }.to_string();
            let remedy =
                "sprag doctor --rebuild, only if there is no such copy: it goes on without what is missing";
            Some(Check::bad(ABOUT, words, remedy))
        }
        Ok(_) => None,
        Err(error) => {
            Some(Check::note(ABOUT, error.to_string(), "it is rebuilt from the journal if it cannot be used"))
        }
    }
}

/// A stream as a person reads it.
pub fn stream_name(stream: Stream) -> String {
    match stream {
        Stream::Run(run) => format!("run {}", RunId(run.0)),
        Stream::Inbox(run) => format!("the inbox of run {}", RunId(run.0)),
        Stream::Own(0) => "the store's opens and closes".to_owned(),
        Stream::Own(number) => format!("the store's stream {number}"),
    }
}

fn found(about: &'static str, finding: &store::Finding) -> Check {
    let place = format!("{} at offset {}", finding.segment.display(), finding.offset);
    let record = finding.record.map(|(stream, seq)| format!(", record {seq} of {}", stream_name(stream)));
    let record = record.unwrap_or_default();
    Check::bad(about, format!("{place}{record}: {}", finding.reason), "restore that file from a copy")
}

/// What a salvage would find.
fn losses(about: &'static str, dir: &Path) -> Option<Check> {
    match salvage::losses(dir) {
        Ok(None) => None,
        Ok(Some(losses)) => {
            let shortened: usize = losses.torn.iter().map(|torn| torn.continued_by.len()).sum();
            let shortened = match shortened {
                0 => String::new(),
                count => format!("; {count} that have not ended would go on without messages of these"),
            };
            let (whole, torn) = (losses.whole, losses.torn.len());
            let words = format!("{whole} runs are whole, {torn} miss records{shortened}");
            let remedy = "sprag doctor --salvage, if no copy is as new: it saves the whole runs and forgets the others";
            Some(Check::bad(about, words, remedy))
        }
        Err(error) => {
            Some(Check::bad(about, error.to_string(), "restore the directory `journal` from a copy"))
        }
    }
}

/// Times of records never decrease within a run, so a clock that was set back makes waits longer.
fn clock(dir: &Path, now: Millis) -> Option<Check> {
    const ABOUT: &str = "clock";
    let newest = std::fs::read_dir(dir.join("journal")).ok()?.flatten();
    let newest = newest.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max()?;
    let newest = newest.duration_since(std::time::UNIX_EPOCH).ok()?;
    let ahead = i64::try_from(newest.as_millis()).ok()?.saturating_sub(now.0);
    (ahead > 60_000).then(|| {
        let words = format!("the clock is {} s behind the newest file of the journal", ahead / 1000);
        Check::note(ABOUT, words, "set the clock: deadlines and backoffs follow it")
    })
}

fn bash() -> Check {
    const ABOUT: &str = "bash";
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|dir| dir.join("bash")).find(|bash| bash.is_file()) {
        Some(bash) => Check::good(ABOUT, bash.display().to_string()),
        None => Check::bad(
            ABOUT,
            "bash is not in PATH",
            "install it, or leave the tool `bash` out of `defaults.tools`",
        ),
    }
}

/// Commands that outlive an engine are recognised and ended by these.
fn processes() -> Check {
    const ABOUT: &str = "processes";
    let own = rustix::process::getpid();
    let opened = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    match (opened, Path::new("/proc/self/stat").is_file()) {
        (Ok(_), true) => Check::good(ABOUT, "pidfd and /proc are there"),
        (Err(error), _) => Check::bad(ABOUT, format!("pidfd_open fails ({error})"), "use Linux 5.4 or newer"),
        (Ok(_), false) => {
            Check::bad(ABOUT, "/proc is not mounted", "mount it: commands are ended by what it says")
        }
    }
}

fn descriptors() -> Check {
    const ABOUT: &str = "descriptors";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(limit) if limit < DESCRIPTORS_MIN => Check::note(
            ABOUT,
            format!("{limit} files may be open at once"),
            format!("raise it (`ulimit -n {DESCRIPTORS_MIN}`) before many commands run at once"),
        ),
        Some(limit) => Check::good(ABOUT, format!("{limit} files may be open at once")),
        None => Check::good(ABOUT, "as many files as one likes may be open at once"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(dir: &Path) -> Vec<(&'static str, Level)> {
        examine(dir, Millis(0)).into_iter().map(|check| (check.about, check.level)).collect()
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let found = levels(&dir.path().join("not/yet"));
        assert_eq!(found[0], ("directory", Level::Good));
        assert!(found.iter().all(|(about, _)| *about != "journal"), "{found:?}");
    }

    #[test]
    fn a_state_without_its_journal_is_a_fault_and_a_probe_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(levels(dir.path()).contains(&("journal", Level::Good)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::create_dir(dir.path().join("state")).unwrap();
        assert!(levels(dir.path()).contains(&("journal", Level::Bad)));
    }

    #[test]
    fn a_file_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(levels(&file)[0], ("directory", Level::Bad));
    }
}
