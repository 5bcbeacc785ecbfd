//! Paths of tools, confined to the workspace.
//!
//! Owns the walk from a path that a model wrote to open directories below the workspace. Every directory is
//! opened from the one above it without following links, and links are resolved here, one name at a time, so
//! a path cannot be swapped for one that leads outside between the check and the use. It must never hand a
//! path to the kernel whole.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;

use super::output::head;

/// The most links that one path may go through, as in Linux.
const LINKS_MAX: u32 = 40;

/// The most directories that a place may be below the workspace: each is held open.
const DEPTH_MAX: usize = 128;

/// The most bytes of a path that an error text repeats.
const SHOWN_BYTES_MAX: usize = 200;

/// A directory that tools may not leave, held open.
#[derive(Debug)]
pub struct Workspace {
    root: File,
    path: PathBuf,
    given: PathBuf,
}

/// Where a path leads.
#[derive(Debug)]
pub struct Place {
    /// The directories from the workspace down to the last one that exists; never empty.
    dirs: Vec<File>,
    /// Where it is below the workspace, without links.
    path: PathBuf,
    /// What is there.
    target: Target,
}

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The last of the open directories.
    Directory,
    /// Something else of this name in the last of the open directories.
    Entry(OsString),
    /// Nothing: these names, of which all but the last are directories to make, do not exist. Never empty.
    Missing(Vec<OsString>),
}

impl Workspace {
    /// Opens the workspace at `path`, which is trusted.
    pub fn open(path: &Path) -> Result<Self, String> {
        let opened = path.canonicalize().and_then(|real| Ok((File::open(&real)?, real)));
        let (root, real) =
            opened.map_err(|error| format!("cannot open the workspace `{}`: {error}", path.display()))?;
        Ok(Self { root, path: real, given: path.to_owned() })
    }

    /// Its path on this machine, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the place that `path` leads to: relative to the workspace, or absolute and inside of it.
    pub fn locate(&self, path: impl AsRef<Path>) -> Result<Place, String> {
        let path = path.as_ref();
        self.walk(path).map_err(|refusal| refusal.text(path))
    }

    fn walk(&self, path: &Path) -> Result<Place, Refusal> {
        if path.as_os_str().is_empty() {
            return Err(Refusal::Empty);
        }
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(Refusal::Nul);
        }
        let mut walk = Walk::new(self, path)?;
        while let Some(step) = walk.pending.pop() {
            walk.step(step)?;
        }
        Ok(walk.into_place())
    }

    /// The path below the workspace that an absolute path names.
    fn below(&self, path: &Path) -> Result<PathBuf, Refusal> {
        let inside = [&self.path, &self.given].into_iter().find_map(|root| path.strip_prefix(root).ok());
        inside.map(Path::to_owned).ok_or(Refusal::Outside)
    }
}

impl Place {
    /// The directories from the workspace down to the last one that exists.
    pub fn dirs(&self) -> &[File] {
        &self.dirs
    }

    /// Where it is below the workspace, without links; empty for the workspace itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is there.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The last directory that exists.
    pub fn dir(&self) -> io::Result<&File> {
        self.dirs.last().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Opens the regular file that is there, for reading.
    pub fn open_file(&self) -> io::Result<File> {
        let name = match &self.target {
            Target::Entry(name) => name,
            Target::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            Target::Missing(_) => return Err(io::ErrorKind::NotFound.into()),
        };
        open_regular(self.dir()?, name)
    }
}

/// Opens the regular file `name` of `dir` for reading, following no link; a pipe or device is refused, not
/// waited for.
pub(super) fn open_regular(dir: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(dir, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Opens the directory `name` of `dir`, following no link.
pub(super) fn open_dir(dir: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(File::from(openat(dir, name, flags, Mode::empty())?))
}

/// Why a path leads nowhere that a tool may go.
#[derive(Debug)]
enum Refusal {
    Empty,
    Nul,
    Outside,
    Links,
    Deep,
    NotDirectory,
    System(io::Error),
}

impl Refusal {
    fn text(&self, path: &Path) -> String {
        let path = shown(path);
        match self {
            Self::Empty => "the path is empty; name a file or directory of the workspace".to_owned(),
            Self::Nul => format!("`{}` holds a NUL character, which no path can", path.replace('\0', "\\0")),
            Self::Outside => {
                format!("`{path}` leads outside of the workspace; use a path inside of it")
            }
            Self::Links => format!("`{path}` goes through more than {LINKS_MAX} symbolic links"),
            Self::Deep => format!("`{path}` goes through more than {DEPTH_MAX} directories"),
            Self::NotDirectory => format!("`{path}` goes through something that is not a directory"),
            Self::System(error) => format!("cannot reach `{path}`: {error}"),
        }
    }
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::System(error.into())
    }
}

/// A path in a message, cut to a bound.
pub(super) fn shown(path: impl AsRef<Path>) -> String {
    let text = path.as_ref().to_string_lossy();
    match head(&text, SHOWN_BYTES_MAX) {
        _ if text.is_empty() => ".".to_owned(),
        whole if whole.len() == text.len() => whole.to_owned(),
        start => format!("{start}…"),
    }
}

/// A walk under way.
struct Walk<'a> {
    workspace: &'a Workspace,
    /// The steps that are left, the next one last.
    pending: Vec<Step>,
    /// The open directories, the workspace first.
    dirs: Vec<File>,
    /// The names of the open directories below the workspace.
    names: Vec<OsString>,
    /// Names that do not exist below the last open directory.
    missing: Vec<OsString>,
    /// The last name, once it turned out to be no directory.
    entry: Option<OsString>,
    links: u32,
}

enum Step {
    Up,
    Down(OsString),
}

impl<'a> Walk<'a> {
    fn new(workspace: &'a Workspace, path: &Path) -> Result<Self, Refusal> {
        let mut walk = Self {
            workspace,
            pending: Vec::new(),
            dirs: vec![workspace.root.try_clone()?],
            names: Vec::new(),
            missing: Vec::new(),
            entry: None,
            links: 0,
        };
        walk.follow(path)?;
        Ok(walk)
    }

    /// Puts the steps of a path before those that are left.
    fn follow(&mut self, path: &Path) -> Result<(), Refusal> {
        let relative = if path.is_absolute() {
            self.dirs.truncate(1);
            self.names.clear();
            self.workspace.below(path)?
        } else {
            path.to_owned()
        };
        self.pending.extend(relative.components().rev().filter_map(|component| match component {
            Component::Normal(name) => Some(Step::Down(name.to_owned())),
            Component::ParentDir => Some(Step::Up),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        }));
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), Refusal> {
        if self.entry.is_some() {
            return Err(Refusal::NotDirectory);
        }
        if self.names.len() + self.missing.len() > DEPTH_MAX {
            return Err(Refusal::Deep);
        }
        match step {
            Step::Up => self.up(),
            Step::Down(name) if self.missing.is_empty() => self.down(name),
            Step::Down(name) => {
                self.missing.push(name);
                Ok(())
            }
        }
    }

    fn up(&mut self) -> Result<(), Refusal> {
        if self.missing.pop().is_some() {
            return Ok(());
        }
        self.names.pop().ok_or(Refusal::Outside)?;
        self.dirs.pop();
        Ok(())
    }

    fn down(&mut self, name: OsString) -> Result<(), Refusal> {
        let dir = self.dirs.last().unwrap_or(&self.workspace.root);
        let kind = match statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => {
                self.missing.push(name);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if kind == FileType::Symlink {
            self.links += 1;
            if self.links > LINKS_MAX {
                return Err(Refusal::Links);
            }
            let target = readlinkat(dir, &name, Vec::new())?;
            return self.follow(Path::new(&OsString::from_vec(target.into_bytes())));
        }
        if kind == FileType::Directory {
            let opened = open_dir(dir, &name)?;
            self.dirs.push(opened);
            self.names.push(name);
        } else {
            self.entry = Some(name);
        }
        Ok(())
    }

    fn into_place(self) -> Place {
        let path = self.names.iter().chain(&self.missing).chain(&self.entry).collect();
        let target = match self.entry {
            Some(name) => Target::Entry(name),
            None if self.missing.is_empty() => Target::Directory,
            None => Target::Missing(self.missing),
        };
        Place { dirs: self.dirs, path, target }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct World {
        _dir: tempfile::TempDir,
        outer: PathBuf,
        workspace: Workspace,
    }

    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let outer = dir.path().canonicalize().unwrap();
        let root = outer.join("ws");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/f"), "inside").unwrap();
        std::fs::write(outer.join("secret"), "outside").unwrap();
        let workspace = Workspace::open(&root).unwrap();
        World { _dir: dir, outer, workspace }
    }

    fn located(world: &World, path: &str) -> Result<(String, Target), String> {
        let place = world.workspace.locate(path)?;
        Ok((place.path().to_string_lossy().into_owned(), place.target().clone()))
    }

    fn entry(path: &str, name: &str) -> Result<(String, Target), String> {
        Ok((path.to_owned(), Target::Entry(name.into())))
    }

    fn outside(path: &str) -> Result<(String, Target), String> {
        Err(format!("`{path}` leads outside of the workspace; use a path inside of it"))
    }

    #[test]
    fn inside_is_found() {
        let w = world();
        let absolute = w.workspace.path().join("a/f");
        assert_eq!(located(&w, "a/f"), entry("a/f", "f"));
        assert_eq!(located(&w, "./a/b/../f"), entry("a/f", "f"));
        assert_eq!(located(&w, absolute.to_str().unwrap()), entry("a/f", "f"));
        assert_eq!(located(&w, "."), Ok((String::new(), Target::Directory)));
        assert_eq!(located(&w, "a/b/"), Ok(("a/b".to_owned(), Target::Directory)));
        let missing = Target::Missing(vec!["new".into(), "file".into()]);
        assert_eq!(located(&w, "a/new/x/../file"), Ok(("a/new/file".to_owned(), missing)));
    }

    #[test]
    fn paths_that_lead_outside_are_refused() {
        let w = world();
        let secret = w.outer.join("secret");
        for path in ["..", "../secret", "a/../../secret", "../new", "a/../../ws/a/f", "/", "/etc/passwd"] {
            assert_eq!(located(&w, path), outside(path));
        }
        let beside = format!("{}-other/f", w.workspace.path().display());
        assert_eq!(located(&w, &beside), outside(&beside));
        assert_eq!(located(&w, secret.to_str().unwrap()), outside(secret.to_str().unwrap()));
    }

    #[test]
    fn links_are_followed_inside_and_refused_outside() {
        let w = world();
        let link = |to: &Path, name: &str| symlink(to, w.workspace.path().join(name)).unwrap();
        link(Path::new("a/f"), "relative");
        link(&w.workspace.path().join("a"), "absolute");
        link(Path::new("a/none"), "dangling");
        link(Path::new("../secret"), "out-file");
        link(Path::new(".."), "out-dir");
        link(&w.outer, "out-absolute");
        link(Path::new("out-dir"), "out-twice");
        link(Path::new("../nothing"), "out-dangling");
        link(Path::new("circle"), "circle");
        assert_eq!(located(&w, "relative"), entry("a/f", "f"));
        assert_eq!(located(&w, "absolute/f"), entry("a/f", "f"));
        assert_eq!(located(&w, "absolute/../a/f"), entry("a/f", "f"));
        assert_eq!(located(&w, "dangling"), Ok(("a/none".to_owned(), Target::Missing(vec!["none".into()]))));
        for path in [
            "out-file",
            "out-dir/secret",
            "out-dir/new/file",
            "out-absolute/secret",
            "out-twice/new",
            "out-dangling",
            "out-dir/ws/a/f",
        ] {
            assert_eq!(located(&w, path), outside(path));
        }
        assert_eq!(
            located(&w, "circle"),
            Err("`circle` goes through more than 40 symbolic links".to_owned())
        );
    }

    #[test]
    fn odd_names_are_refused_with_a_text() {
        let w = world();
        assert_eq!(
            located(&w, ""),
            Err("the path is empty; name a file or directory of the workspace".to_owned())
        );
        assert_eq!(located(&w, "a\0b"), Err("`a\\0b` holds a NUL character, which no path can".to_owned()));
        assert_eq!(
            located(&w, "a/f/g"),
            Err("`a/f/g` goes through something that is not a directory".to_owned())
        );
        let deep = |depth: usize| format!("{}f", "d/".repeat(depth));
        assert!(located(&w, &deep(DEPTH_MAX)).is_ok());
        assert!(
            located(&w, &deep(DEPTH_MAX + 1))
                .unwrap_err()
                .ends_with(" goes through more than 128 directories")
        );
        let long = "x".repeat(5000);
        let refused = located(&w, &long).unwrap_err();
        assert!(refused.starts_with("cannot reach `xxx") && refused.len() < 300, "{refused}");
        let bytes = OsString::from_vec(vec![b'a', 0xff]);
        assert_eq!(w.workspace.locate(&bytes).unwrap().target(), &Target::Missing(vec![bytes]));
    }

    #[test]
    fn a_directory_swapped_for_a_link_is_not_followed() {
        let w = world();
        let place = w.workspace.locate("a/f").unwrap();
        let root = w.workspace.path();
        std::fs::rename(root.join("a"), root.join("old")).unwrap();
        symlink(&w.outer, root.join("a")).unwrap();
        std::fs::write(w.outer.join("f"), "outside").unwrap();
        assert_eq!(io::read_to_string(place.open_file().unwrap()).unwrap(), "inside");
        std::fs::remove_file(root.join("old/f")).unwrap();
        symlink(w.outer.join("secret"), root.join("old/f")).unwrap();
        assert!(place.open_file().is_err());
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let w = world();
        let fifo = w.workspace.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let error = w.workspace.locate("pipe").unwrap().open_file().unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
    }
}
