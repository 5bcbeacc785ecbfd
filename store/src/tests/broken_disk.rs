//! The real disk, until it is told otherwise.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::fs::{Depth, Fs, Handle, Mode, RealFs};

/// Counts operations, cuts the power at one of them, and fails those that a rule names.
#[derive(Default)]
pub(super) struct BrokenDisk {
    plan: Mutex<Plan>,
}

/// Decides the failure of an operation by its name and path.
type Rule = Box<dyn FnMut(&'static str, &Path) -> Option<io::Error> + Send>;

#[derive(Default)]
struct Plan {
    count: usize,
    cut_at: Option<usize>,
    /// The operation at the cut still happens.
    is_after: bool,
    is_cut: bool,
    rule: Option<Rule>,
    /// The next write takes only half of its bytes.
    is_short: bool,
    /// What writes replaced since the file's last sync: path, offset, old bytes.
    undo: Vec<(PathBuf, u64, Vec<u8>)>,
    /// Renames since the last sync of their directory.
    renamed: Vec<Renamed>,
}

struct Renamed {
    from: PathBuf,
    to: PathBuf,
    /// Another name of the file that was replaced, if there was one.
    replaced: Option<PathBuf>,
}

impl BrokenDisk {
    /// Cuts the power before operation `at`, counted from 0, or right after it.
    pub(super) fn cut(at: usize, is_after: bool) -> Self {
        let disk = Self::default();
        {
            let mut plan = disk.plan.lock().unwrap();
            (plan.cut_at, plan.is_after) = (Some(at), is_after);
        }
        disk
    }

    pub(super) fn count(&self) -> usize {
        self.plan.lock().unwrap().count
    }

    pub(super) fn set_rule(&self, rule: Option<Rule>) {
        self.plan.lock().unwrap().rule = rule;
    }

    /// The next write takes only half of its bytes.
    pub(super) fn shorten(&self) {
        self.plan.lock().unwrap().is_short = true;
    }

    /// The process died, the machine did not: what was written is there, synced or not.
    pub(super) fn revive(&self) {
        let mut plan = self.plan.lock().unwrap();
        (plan.cut_at, plan.is_cut) = (None, false);
    }

    /// Takes back unsynced writes and renames as a power cut may: of writes, the 512-byte sectors that `loses`
    /// names.
    pub(super) fn lose_unsynced(&self, mut loses: impl FnMut() -> bool) {
        let mut plan = self.plan.lock().unwrap();
        for (path, offset, old) in std::mem::take(&mut plan.undo).into_iter().rev() {
            let Ok(file) = std::fs::File::options().write(true).open(&path) else { continue };
            let mut at = 0;
            while at < old.len() {
                let sector_end = (offset + at as u64 + 512) / 512 * 512;
                let end = old.len().min((sector_end - offset) as usize);
                if loses() {
                    file.write_all_at(&old[at..end], offset + at as u64).unwrap();
                }
                at = end;
            }
        }
        for Renamed { from, to, replaced } in std::mem::take(&mut plan.renamed).into_iter().rev() {
            if loses() && to.exists() {
                std::fs::rename(&to, from).unwrap();
                replaced.map_or(Ok(()), |replaced| std::fs::rename(replaced, to)).unwrap();
            }
        }
    }

    fn act<T>(
        &self,
        name: &'static str,
        path: &Path,
        act: impl FnOnce(&mut Plan) -> io::Result<T>,
    ) -> io::Result<T> {
        let cut = || io::Error::other("power is off");
        let mut plan = self.plan.lock().unwrap();
        if plan.is_cut {
            return Err(cut());
        }
        if let Some(error) = plan.rule.as_mut().and_then(|rule| rule(name, path)) {
            return Err(error);
        }
        let number = plan.count;
        plan.count += 1;
        if plan.cut_at != Some(number) {
            return act(&mut plan);
        }
        if plan.is_after {
            // It reached the disk, but nobody hears of it.
            let _ = act(&mut plan);
        }
        plan.is_cut = true;
        Err(cut())
    }
}

impl Fs for BrokenDisk {
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Handle> {
        self.act("open", path, |_| RealFs.open(path, mode))
    }

    fn read_at(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.act("read", &file.path, |_| RealFs.read_at(file, offset, buffer))
    }

    fn write_at(&self, file: &Handle, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.act("write", &file.path, |plan| {
            let mut old = vec![0; bytes.len()];
            let mut read = 0;
            while let Ok(count @ 1..) = RealFs.read_at(file, offset + read as u64, &mut old[read..]) {
                read += count;
            }
            plan.undo.push((file.path.clone(), offset, old));
            let is_short = std::mem::take(&mut plan.is_short);
            let bytes = if is_short { &bytes[..bytes.len() / 2] } else { bytes };
            RealFs.write_at(file, offset, bytes)
        })
    }

    fn set_len(&self, file: &Handle, len: u64) -> io::Result<()> {
        self.act("set_len", &file.path, |_| RealFs.set_len(file, len))
    }

    fn sync(&self, file: &Handle, depth: Depth) -> io::Result<()> {
        self.act("sync", &file.path, |plan| {
            plan.undo.retain(|(path, ..)| *path != file.path);
            plan.renamed.retain(|renamed| renamed.to.parent() != Some(&file.path));
            RealFs.sync(file, depth)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.act("rename", from, |plan| {
            let replaced = to.exists().then(|| {
                // Beside the directory, where nobody lists it.
                let name = format!("replaced-{}", plan.renamed.len());
                let replaced = to.parent().and_then(Path::parent).unwrap().join(name);
                let _ = std::fs::remove_file(&replaced);
                std::fs::hard_link(to, &replaced).unwrap();
                replaced
            });
            plan.renamed.push(Renamed { from: from.to_owned(), to: to.to_owned(), replaced });
            RealFs.rename(from, to)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.act("remove", path, |_| RealFs.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<(String, u64)>> {
        self.act("list", dir, |_| RealFs.list(dir))
    }
}
