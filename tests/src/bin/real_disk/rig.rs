//! A real file system on a disk that is recorded: made, written on, cut, and looked at.
//!
//! Owns every mount and loop device: all are made in a mount namespace of this process alone, and each loop device
//! goes with its mount, so that nothing is left however the process ends. It must never touch what it has not made.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tests::fuse::{FILE, Mounted};
use tests::image::Random;

use crate::child::Writer;
use crate::record::{Disk, Left, Pages, Record, Told, Walk};

/// Where everything is mounted, in the namespace of this process.
const ROOT: &str = "/mnt";
/// Groups that a writer writes.
const GROUPS: u64 = 120;
/// What chance begins with.
const SEED: u64 = 0x5eed;

/// A file system.
pub(crate) struct FileSystem {
    /// Its name.
    pub(crate) name: &'static str,
    /// How it is made on a device whose name follows.
    make: &'static [&'static str],
    /// The smallest disk that it is made on, in MiB.
    mib: u64,
    /// What makes the kernel forget a device that it was on, if it remembers.
    forget: Option<&'static [&'static str]>,
}

/// All that are tried.
pub(crate) const ALL: [FileSystem; 3] = [
    FileSystem { name: "ext4", make: &["mkfs.ext4", "-q", "-E", "nodiscard"], mib: 64, forget: None },
    FileSystem { name: "xfs", make: &["mkfs.xfs", "-q", "-K"], mib: 320, forget: None },
    FileSystem {
        name: "btrfs",
        make: &["mkfs.btrfs", "-q", "-K"],
        mib: 256,
        forget: Some(&["btrfs", "device", "scan", "--forget"]),
    },
];

/// What was acknowledged, and when.
struct Acknowledged {
    /// How much the disk had been told.
    at: usize,
    /// What the writer said.
    durable: String,
}

/// What came of one writer on one file system.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) acknowledged: usize,
    pub(crate) writes: usize,
    pub(crate) syncs: usize,
    pub(crate) cuts: usize,
    pub(crate) images: usize,
    /// Images that the kernel did not mount.
    pub(crate) unmounted: usize,
    /// Images in which something acknowledged is not there.
    pub(crate) wrong: usize,
    /// Why the first of these is not mounted, and what is wrong with the first of those.
    pub(crate) refusal: Option<String>,
    pub(crate) loss: Option<String>,
}

impl FileSystem {
    /// Why it cannot be tried here, if it cannot.
    pub(crate) fn is_missing(&self) -> Option<String> {
        let make = self.make[0];
        let found = Command::new(make).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            return Some(format!("{make} is not installed"));
        }
        // Not listed before its module is loaded.
        let _ = Command::new("modprobe").arg(self.name).stderr(Stdio::null()).status();
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let is_known = known.lines().any(|line| line.split_whitespace().last() == Some(self.name));
        (!is_known).then(|| format!("the kernel has no {}", self.name))
    }

    const fn bytes(&self) -> u64 {
        self.mib << 20
    }

    /// Lets a writer write, and looks at about `images` of what power cuts may leave.
    pub(crate) fn try_writer(&self, writer: Writer, images: usize) -> Result<Outcome, String> {
        let (mut told, first, acknowledged) = self.record(writer)?;
        let syncs = told[first..].iter().filter(|told| matches!(told, Told::Sync)).count();
        let writes = told.len() - first - syncs;
        if writer == Writer::Unheard {
            told[first..].iter_mut().filter(|told| matches!(told, Told::Sync)).for_each(Told::unhear);
        }
        let mut outcome = Outcome { acknowledged: acknowledged.len(), writes, syncs, ..Outcome::default() };
        let mut random = Random(SEED);
        let mut walk = Walk::new(&told);
        for cut in cuts(&told, first, &acknowledged, images / Left::ALL.len()) {
            walk.go_to(cut);
            outcome.cuts += 1;
            let durable = acknowledged.iter().rfind(|acknowledged| acknowledged.at <= cut);
            let durable = durable.map_or("", |acknowledged| &acknowledged.durable);
            let lefts = if walk.has_unsynced() { &Left::ALL[..] } else { &[Left::Nothing] };
            for left in lefts {
                self.look_at(&walk.image(*left, &mut random), writer, durable, &mut outcome)
                    .map_err(|error| format!("{} with {left:?} left at {cut}: {error}", self.name))?;
            }
        }
        Ok(outcome)
    }

    /// All that the disk was told, how much of it made the file system, and what was acknowledged.
    fn record(&self, writer: Writer) -> Result<(Vec<Told>, usize, Vec<Acknowledged>), String> {
        let (below, live) = (place("below")?, place("live")?);
        let record = Record::default();
        let (_mounted, device) = attach(&below, Disk::new(self.bytes(), record.clone()))?;
        let made = order(self.make[0], &[&self.make[1..], &[&device]].concat())
            .and_then(|_| order("mount", &["-t", self.name, &device, text(&live)]));
        // While it is mounted this only says that it is to go with the mount.
        order("losetup", &["--detach", &device])?;
        made?;
        let first = record.count();
        let acknowledged = follow(writer, &live, &record);
        let told = record.take();
        self.unmount(&live)?;
        acknowledged.map(|acknowledged| (told, first, acknowledged))
    }

    /// Mounts an image, which makes the file system recover, and checks what is there.
    fn look_at(
        &self,
        image: &Pages,
        writer: Writer,
        durable: &str,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let (file, cut) = (Path::new(ROOT).join("image"), place("cut")?);
        image.save(&file, self.bytes()).map_err(|error| format!("image: {error}"))?;
        outcome.images += 1;
        if let Err(error) = order("mount", &["-t", self.name, "-o", "loop", text(&file), text(&cut)]) {
            outcome.unmounted += 1;
            outcome.refusal.get_or_insert(error);
            return self.forget();
        }
        let mut arguments = vec!["check", writer.name(), text(&cut)];
        arguments.extend(durable.split(' ').filter(|count| !count.is_empty()));
        let checked = order("/proc/self/exe", &arguments);
        self.unmount(&cut)?;
        if let Err(error) = checked {
            outcome.wrong += 1;
            outcome.loss.get_or_insert(error);
        }
        Ok(())
    }

    fn unmount(&self, point: &Path) -> Result<(), String> {
        order("umount", &[text(point)])?;
        self.forget()
    }

    fn forget(&self) -> Result<(), String> {
        self.forget.map_or(Ok(()), |forget| order(forget[0], &forget[1..]).map(drop))
    }
}

/// Lets a writer write, and notes when it acknowledged what.
fn follow(writer: Writer, dir: &Path, record: &Record) -> Result<Vec<Acknowledged>, String> {
    let failed = |error: std::io::Error| format!("writer: {error}");
    let mut child = Command::new("/proc/self/exe")
        .args(["write", writer.name(), text(dir), &GROUPS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (Some(mut orders), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("writer: no pipe".to_owned());
    };
    let mut acknowledged = Vec::new();
    for line in BufReader::new(said).lines() {
        // It waits for an answer: nothing that follows this acknowledgement is on the record yet.
        let durable = line.map_err(failed)?;
        acknowledged.push(Acknowledged { at: record.count(), durable });
        orders.write_all(b"\n").map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(format!("writer: {status}"));
    }
    Ok(acknowledged)
}

/// Where to cut, at most `limit` places: before each sync that has something to cover, and at each acknowledgement.
fn cuts(told: &[Told], first: usize, acknowledged: &[Acknowledged], limit: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (first..told.len())
        .filter(|at| {
            matches!(told[*at], Told::Sync) && at.checked_sub(1).is_some_and(|at| is_write(&told[at]))
        })
        .chain(acknowledged.iter().map(|acknowledged| acknowledged.at))
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let limit = limit.clamp(1, cuts.len());
    (0..limit).map(|nth| cuts[nth * (cuts.len() - 1) / limit.saturating_sub(1).max(1)]).collect()
}

const fn is_write(told: &Told) -> bool {
    matches!(told, Told::Write(..))
}

/// Mounts memory where everything is put, which goes with the namespace, and tries what the rest is made of.
pub(crate) fn prepare() -> Result<(), String> {
    order("mount", &["-t", "tmpfs", "tests", ROOT])?;
    let (_mounted, device) = attach(&place("below")?, Disk::new(1 << 20, Record::default()))?;
    order("losetup", &["--detach", &device]).map(drop)
}

/// A loop device on a disk that this process is.
fn attach(point: &Path, disk: Disk) -> Result<(Mounted, String), String> {
    let mounted = Mounted::new(point, "fuse.record", disk).map_err(|error| format!("fuse: {error}"))?;
    let device = order("losetup", &["--find", "--show", text(&point.join(FILE))])?;
    Ok((mounted, device.trim_end().to_owned()))
}

fn place(name: &str) -> Result<PathBuf, String> {
    let place = Path::new(ROOT).join(name);
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(place)
}

/// Every path here is made of ASCII words.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Runs a program to its end; what it printed.
pub(crate) fn order(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}", arguments.join(" "), words.trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
