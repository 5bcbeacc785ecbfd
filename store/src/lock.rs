//! Who may write a store: one process per directory, on a local file system that it can write.
//!
//! Owns the lock of DIR, which is on the directory itself: no file in it can be removed to get past it. The lock alone
//! says who lives; the process id in `DIR/lock` only serves to name the holder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, statfs};

use crate::Error;

/// File systems that keep their data on another machine, by the magic number of statfs(2) (linux/magic.h).
const REMOTE: [(u64, &str); 10] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x564c, "ncp"),
];
/// statfs(2) says only "fuse"; which one it is stands in the mount table.
const FUSE: u64 = 0x6573_5546;
/// Kinds of fuse mounts that are known to be local.
const FUSE_LOCAL: [&str; 8] = [
    "fuseblk",
    "fuse.ntfs",
    "fuse.exfat",
    "fuse.bindfs",
    "fuse.fuse-overlayfs",
    "fuse.encfs",
    "fuse.gocryptfs",
    "fuse.mergerfs",
];
/// Time between two tries for a lock that is held.
const RETRY: Duration = Duration::from_millis(10);

/// The right to write a store, until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    // Close-on-exec: whoever outlives this process does not hold it.
    dir: File,
}

impl Drop for Lock {
    /// Unlocks rather than closes alone: a child between its fork and its exec has the open directory too, and would hold
    /// the lock as long.
    fn drop(&mut self) {
        // It fails for what is not open, which this is. Closing follows.
        let _ = flock(&self.dir, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Makes `dir` if it is missing and takes its lock, trying for up to `wait`.
    pub(crate) fn take(dir: &Path, wait: Duration) -> Result<Self, Error> {
        let failed = |operation, error: &io::Error| {
            let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
            if is_denied {
                Error::ReadOnly { path: dir.to_owned() }
            } else {
                crate::fs::error(operation, dir, error)
            }
        };
        if let Some(kind) = network_file_system(dir) {
            return Err(Error::NotLocal { path: dir.to_owned(), kind });
        }
        fs::create_dir_all(dir).map_err(|error| failed("make", &error))?;
        let opened = File::open(dir).map_err(|error| failed("open", &error))?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("lock"))
            .map_err(|error| failed("open the lock of", &error))?;
        let deadline = Instant::now() + wait;
        while let Err(error) = flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed("lock", &error.into()));
            }
            if Instant::now() >= deadline {
                return Err(held(dir, &mut file));
            }
            thread::sleep(RETRY);
        }
        sign(&mut file).map_err(|error| failed("write the lock of", &error))?;
        Ok(Self { dir: opened })
    }
}

/// Leaves this process's id and command line in the lock file.
fn sign(file: &mut File) -> io::Result<()> {
    let command = fs::read("/proc/self/cmdline").unwrap_or_default();
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{}\n{command}\n", std::process::id())
}

fn held(dir: &Path, file: &mut File) -> Error {
    let mut text = String::new();
    // An unreadable lock file names nobody; the lock holds all the same.
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0);
    let command = lines.next().unwrap_or("unknown").to_owned();
    Error::Locked { path: dir.to_owned(), pid, command }
}

/// The kind of network file system that a directory is on, or would be once it is made; none if it is local. On one of
/// them locks and syncs do not hold what the journal needs.
pub fn network_file_system(dir: &Path) -> Option<String> {
    let dir = std::path::absolute(dir).ok()?;
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    // The field is signed or narrow on some targets; the magic numbers fit 32 bits.
    let magic = u64::from(statfs(there).ok()?.f_type as u32);
    if magic == FUSE {
        return Some(fuse_kind(there)).filter(|kind| !FUSE_LOCAL.contains(&kind.as_str()));
    }
    REMOTE.iter().find(|(known, _)| *known == magic).map(|(_, kind)| (*kind).to_owned())
}

/// The type of the mount that holds `dir`, from the mount table.
fn fuse_kind(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    // The last mount over a point is the one that is seen.
    let found = table.lines().filter_map(mount).rfind(|(point, _)| dir.starts_with(point));
    found.map_or_else(|| "fuse".to_owned(), |(_, kind)| kind.to_owned())
}

/// Mount point and type of one line of mountinfo (proc(5): the type follows a lone hyphen).
fn mount(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    Some((left.split(' ').nth(4)?, right.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_taker_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path(), Duration::ZERO).unwrap();
        let Err(Error::Locked { path, pid, command }) = Lock::take(dir.path(), Duration::ZERO) else {
            panic!("taken twice");
        };
        assert_eq!((path.as_path(), pid), (dir.path(), std::process::id()));
        assert!(command.contains("store"), "{command}");
        drop(lock);
        Lock::take(dir.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_child_that_is_being_made_does_not_hold_what_was_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path(), Duration::ZERO).unwrap();
        // What a fork leaves in the child until it becomes another program.
        let _of_child = lock.dir.try_clone().unwrap();
        drop(lock);
        Lock::take(dir.path(), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let _lock = Lock::take(dir.path(), Duration::ZERO).unwrap();
        fs::remove_file(dir.path().join("lock")).unwrap();
        let refused = Lock::take(dir.path(), Duration::ZERO).map(drop);
        assert!(matches!(refused, Err(Error::Locked { pid: 0, .. })), "{refused:?}");
    }

    #[test]
    fn a_directory_here_is_local_before_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network_file_system(&dir.path().join("not/yet")), None);
    }

    #[test]
    fn a_mount_line_names_point_and_type() {
        let line = "98 29 0:52 / /mnt/far rw,nosuid shared:44 - fuse.sshfs me@far:/ rw,user_id=0";
        assert_eq!(mount(line), Some(("/mnt/far", "fuse.sshfs")));
    }
}
