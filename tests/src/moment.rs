//! A disk at one moment of its past, and what a power cut then may leave of it.
//!
//! Owns what is legal after a cut:
//!
//! 1. What a sync covered is there: of a file its bytes and its length, of a directory its names.
//! 2. Of the writes since, any subset is there: each whole, or only some of its sectors of 512 bytes, or its length alone,
//!    with zeros. The same of every change of a length.
//! 3. Of the names that a directory was given or lost since, any first part: a journaling file system keeps their order. A
//!    name leads to its file, whatever of the file is there.
//! 4. What a failed sync was to cover may be there or not, for ever: a later sync does not cover it.
//! 5. sled's files are not told of one by one. They are what they were at their last sync while the mark says that they
//!    are closed; otherwise they are anything.
//!
//! It must never ask what a byte means, but for that mark.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::{Content, SECTOR};
use crate::past::{STATE, Told, name};

/// The mark that says whether sled's files may be used as found, by name in the store's directory.
const MARK: &str = "state.mark";
/// How a mark ends that says that they may.
const CLOSED: &[u8] = b" closed\n";

/// A change of a file that may or may not be on the disk.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write(u64, Arc<[u8]>),
    Extend(u64),
    SetLen(u64),
}

/// What a cut may do to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Any of what is legal.
    Open,
    /// The same, and no sync will end that.
    Stuck,
    /// Nothing: it is there.
    Kept,
}

/// A file, whatever its names.
#[derive(Clone, Debug, Default)]
struct File {
    /// What is there for sure, before all changes.
    base: Content,
    changes: Vec<(Change, Fate)>,
}

/// A directory.
#[derive(Clone, Debug, Default)]
struct Dir {
    /// What is there for sure.
    base: BTreeMap<String, usize>,
    changes: Vec<Naming>,
    /// As the process sees it.
    now: BTreeMap<String, usize>,
}

/// A change of a directory.
#[derive(Clone, Debug)]
enum Naming {
    Give(String, usize),
    Move(String, String),
    Take(String),
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Give(name, node) => drop(names.insert(name.clone(), *node)),
            Self::Move(from, to) => {
                if let Some(node) = names.remove(from) {
                    names.insert(to.clone(), node);
                }
            }
            Self::Take(name) => drop(names.remove(name)),
        }
    }
}

#[derive(Clone, Debug)]
enum Node {
    File(File),
    Dir(Dir),
}

/// sled's files by their path below its directory.
pub type Tree = BTreeMap<PathBuf, Arc<[u8]>>;

/// A disk at one moment: what is on it for sure, and what may be.
#[derive(Clone, Debug)]
pub struct Moment {
    nodes: Vec<Node>,
    /// sled's files and directories that were synced since it last wrote; no bytes for a directory.
    state: BTreeMap<PathBuf, Option<Arc<[u8]>>>,
    /// sled may have written since.
    is_state_open: bool,
    /// sled's data was not synced when it should have been.
    is_state_lost: bool,
    /// The mark has just said that sled's files are open: they will be, once that was synced.
    opens_state: bool,
}

/// A place where a cut has a choice.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    node: usize,
    /// Which change of a file; none for the names of a directory.
    change: Option<usize>,
    pub(crate) words: String,
    /// Nothing of it first, all of it last.
    pub(crate) options: Vec<Pick>,
}

/// What a cut leaves of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// So many changes of a directory.
    Names(usize),
    Nothing,
    /// The length, and zeros.
    Length,
    /// The file was made longer, but only by half.
    Half,
    /// These sectors, by their place in the write.
    Sectors(Vec<bool>),
    All,
}

/// A directory and its files as a cut left them; files of a tree below have longer paths.
pub(crate) type Left = BTreeMap<PathBuf, Content>;

impl Default for Moment {
    fn default() -> Self {
        Self {
            nodes: vec![Node::Dir(Dir::default())],
            state: BTreeMap::new(),
            is_state_open: true,
            is_state_lost: false,
            opens_state: false,
        }
    }
}

impl Moment {
    /// What follows if a sync is only said to have worked.
    pub fn apply_in_vain(&mut self, told: &Told) {
        self.open_state(told);
        if let Told::SyncState(path, Some(_)) = told {
            // sled's data may then be as of any moment; without one of its other files it does not open.
            self.is_state_lost = path.file_name().is_some_and(|name| name == "db");
        }
    }

    /// The store believes that the mark is durable: sled may write.
    fn open_state(&mut self, told: &Told) {
        if matches!(told, Told::Sync(_)) {
            self.is_state_open |= std::mem::take(&mut self.opens_state);
        }
    }

    /// What follows.
    pub fn apply(&mut self, told: &Told) {
        self.open_state(told);
        match told {
            Told::Known(dir, files) => {
                let dir = self.dir_at(dir, true);
                for (name, content) in files {
                    let file = File { base: content.clone(), changes: Vec::new() };
                    let node = self.add(Node::File(file));
                    self.name(dir, name, node, true);
                }
            }
            Told::MakeDir(path) => drop(self.dir_at(path, false)),
            Told::Make(path) => self.make(path),
            Told::Write(path, offset, bytes) => {
                self.change(path, Change::Write(*offset, Arc::clone(bytes)));
            }
            Told::Extend(path, len) => self.change(path, Change::Extend(*len)),
            Told::SetLen(path, len) => self.change(path, Change::SetLen(*len)),
            Told::Sync(path) => self.sync(path),
            Told::SyncState(path, bytes) => {
                if std::mem::take(&mut self.is_state_open) {
                    self.state.clear();
                    self.is_state_lost = false;
                }
                self.state.insert(below_state(path), bytes.clone());
            }
            Told::FailedSync(path) => {
                if let Some(file) = self.file(path) {
                    let open = file.changes.iter_mut().filter(|(_, fate)| *fate == Fate::Open);
                    open.for_each(|(_, fate)| *fate = Fate::Stuck);
                }
            }
            Told::Rename(from, to) => {
                self.rename(from, to);
                self.look_at_mark(to);
            }
            Told::Remove(path) => {
                let name = name(path);
                self.rename_in(path, |dir| dir.tell(Naming::Take(name)));
                self.look_at_mark(path);
            }
        }
    }

    /// Whether sled may be opened next.
    fn look_at_mark(&mut self, path: &Path) {
        if path.file_name().is_none_or(|name| name != MARK) {
            return;
        }
        self.opens_state = !self.file(path).is_some_and(|file| file.now().to_bytes().ends_with(CLOSED));
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn name(&mut self, dir: usize, name: &str, node: usize, is_sure: bool) {
        if let Some(Node::Dir(dir)) = self.nodes.get_mut(dir) {
            if is_sure {
                dir.base.insert(name.to_owned(), node);
                dir.now.insert(name.to_owned(), node);
            } else {
                dir.tell(Naming::Give(name.to_owned(), node));
            }
        }
    }

    /// The directory at `path`; what is missing of it is made.
    fn dir_at(&mut self, path: &Path, is_sure: bool) -> usize {
        let mut at = 0;
        for part in parts(path) {
            at = match self.child(at, &part) {
                Some(node) => node,
                None => {
                    let node = self.add(Node::Dir(Dir::default()));
                    self.name(at, &part, node, is_sure);
                    node
                }
            };
        }
        at
    }

    fn child(&self, dir: usize, name: &str) -> Option<usize> {
        match self.nodes.get(dir)? {
            Node::Dir(dir) => dir.now.get(name).copied(),
            Node::File(_) => None,
        }
    }

    fn find(&self, path: &Path) -> Option<usize> {
        parts(path).iter().try_fold(0, |dir, part| self.child(dir, part))
    }

    fn file(&mut self, path: &Path) -> Option<&mut File> {
        let node = self.find(path)?;
        match self.nodes.get_mut(node)? {
            Node::File(file) => Some(file),
            Node::Dir(_) => None,
        }
    }

    fn change(&mut self, path: &Path, change: Change) {
        let Some(file) = self.file(path) else { return };
        match (&change, file.changes.last_mut()) {
            // A file that is filled piece by piece is one that grows.
            (Change::Extend(len), Some((Change::Extend(before), Fate::Open))) => *before = *len,
            _ => file.changes.push((change, Fate::Open)),
        }
    }

    fn make(&mut self, path: &Path) {
        if self.find(path).is_some() {
            return self.change(path, Change::SetLen(0));
        }
        let Some(dir) = path.parent().map(|parent| self.dir_at(parent, true)) else { return };
        let node = self.add(Node::File(File::default()));
        self.name(dir, &name(path), node, false);
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        assert_eq!(from.parent(), to.parent(), "a file changes its name, not its directory");
        let naming = Naming::Move(name(from), name(to));
        self.rename_in(from, |dir| dir.tell(naming));
    }

    fn rename_in(&mut self, path: &Path, tell: impl FnOnce(&mut Dir)) {
        let dir = path.parent().and_then(|parent| self.find(parent));
        if let Some(Node::Dir(dir)) = dir.and_then(|dir| self.nodes.get_mut(dir)) {
            tell(dir);
        }
    }

    fn sync(&mut self, path: &Path) {
        match self.find(path).and_then(|node| self.nodes.get_mut(node)) {
            Some(Node::File(file)) => file.sync(),
            Some(Node::Dir(dir)) => {
                dir.base = dir.now.clone();
                dir.changes.clear();
            }
            None => {}
        }
    }

    /// Everything that a cut may choose.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (node, path) in self.reachable() {
            match self.nodes.get(node) {
                Some(Node::Dir(dir)) if !dir.changes.is_empty() => {
                    let words = format!("{} names of {path}", dir.changes.len());
                    let options = (0..=dir.changes.len()).map(Pick::Names).collect();
                    choices.push(Choice { node, change: None, words, options });
                }
                Some(Node::File(file)) => choices.extend(file.choices(node, &path)),
                Some(Node::Dir(_)) | None => {}
            }
        }
        choices
    }

    /// Every node that some cut may leave with a name, and the last part of that name.
    fn reachable(&self) -> BTreeMap<usize, String> {
        let mut found = BTreeMap::from([(0, "/".to_owned())]);
        for node in &self.nodes {
            let Node::Dir(dir) = node else { continue };
            let given = dir.changes.iter().filter_map(|naming| match naming {
                Naming::Give(name, node) => Some((*node, name.clone())),
                Naming::Move(..) | Naming::Take(_) => None,
            });
            found.extend(dir.base.iter().map(|(name, node)| (*node, name.clone())).chain(given));
        }
        found
    }

    /// What is left below `dir` after a cut that picked so.
    pub(crate) fn left(&self, dir: &Path, picks: &[(&Choice, &Pick)]) -> Option<Left> {
        let mut at = 0;
        for part in parts(dir) {
            at = *self.names(at, picks)?.get(&part)?;
        }
        let mut left = Left::new();
        self.collect(at, Path::new(""), picks, &mut left);
        Some(left)
    }

    fn collect(&self, dir: usize, path: &Path, picks: &[(&Choice, &Pick)], left: &mut Left) {
        for (name, node) in self.names(dir, picks).unwrap_or_default() {
            match self.nodes.get(node) {
                Some(Node::File(file)) => drop(left.insert(path.join(name), file.left(node, picks))),
                Some(Node::Dir(_)) => self.collect(node, &path.join(name), picks, left),
                None => {}
            }
        }
    }

    fn names(&self, dir: usize, picks: &[(&Choice, &Pick)]) -> Option<BTreeMap<String, usize>> {
        let Some(Node::Dir(found)) = self.nodes.get(dir) else { return None };
        let pick = picks.iter().find(|(choice, _)| choice.node == dir).map(|(_, pick)| *pick);
        let count = match pick {
            Some(Pick::Names(count)) => *count,
            _ => 0,
        };
        let mut names = found.base.clone();
        found.changes.iter().take(count).for_each(|naming| naming.apply(&mut names));
        Some(names)
    }

    /// sled's files, if they are what they were at their last sync.
    pub fn state(&self) -> Option<Tree> {
        if self.is_state_open || self.is_state_lost {
            return None;
        }
        let dirs: BTreeSet<&Path> =
            self.state.iter().filter_map(|(path, bytes)| bytes.is_none().then_some(path.as_path())).collect();
        let is_named = |path: &Path| path.ancestors().skip(1).all(|dir| dirs.contains(dir));
        let files = self.state.iter().filter_map(|(path, bytes)| Some((path, bytes.as_ref()?)));
        Some(
            files
                .filter(|(path, _)| is_named(path))
                .map(|(path, bytes)| (path.clone(), Arc::clone(bytes)))
                .collect(),
        )
    }
}

impl Dir {
    fn tell(&mut self, naming: Naming) {
        naming.apply(&mut self.now);
        self.changes.push(naming);
    }
}

impl File {
    fn sync(&mut self) {
        let open = self.changes.iter_mut().filter(|(_, fate)| *fate == Fate::Open);
        open.for_each(|(_, fate)| *fate = Fate::Kept);
        let kept = self.changes.iter().take_while(|(_, fate)| *fate == Fate::Kept).count();
        for (change, _) in self.changes.drain(..kept) {
            change.apply(&mut self.base, &Pick::All);
        }
    }

    /// As the process sees it.
    fn now(&self) -> Content {
        let mut content = self.base.clone();
        self.changes.iter().for_each(|(change, _)| change.apply(&mut content, &Pick::All));
        content
    }

    fn choices<'a>(&'a self, node: usize, name: &'a str) -> impl Iterator<Item = Choice> + 'a {
        let open = self.changes.iter().enumerate().filter(|(_, (_, fate))| *fate != Fate::Kept);
        open.map(move |(at, (change, _))| Choice {
            node,
            change: Some(at),
            words: format!("{name}: {}", change.words()),
            options: change.options(self.base.len()),
        })
    }

    fn left(&self, node: usize, picks: &[(&Choice, &Pick)]) -> Content {
        let mut content = self.base.clone();
        for (at, (change, fate)) in self.changes.iter().enumerate() {
            let picked = picks.iter().find(|(choice, _)| choice.node == node && choice.change == Some(at));
            let pick = match fate {
                Fate::Kept => &Pick::All,
                Fate::Open | Fate::Stuck => picked.map_or(&Pick::Nothing, |(_, pick)| *pick),
            };
            change.apply(&mut content, pick);
        }
        content
    }
}

impl Change {
    fn words(&self) -> String {
        match self {
            Self::Write(offset, bytes) => format!("{} bytes at {offset}", bytes.len()),
            Self::Extend(len) | Self::SetLen(len) => format!("length {len}"),
        }
    }

    fn options(&self, base_len: u64) -> Vec<Pick> {
        match self {
            Self::Write(offset, bytes) => {
                let first = *offset as usize % SECTOR;
                let sectors = (first + bytes.len()).div_ceil(SECTOR);
                let grows = (offset + bytes.len() as u64 > base_len).then_some(Pick::Length);
                let torn = torn(sectors).into_iter().map(Pick::Sectors);
                [Pick::Nothing].into_iter().chain(grows).chain(torn).chain([Pick::All]).collect()
            }
            Self::Extend(_) => vec![Pick::Nothing, Pick::Half, Pick::All],
            Self::SetLen(_) => vec![Pick::Nothing, Pick::All],
        }
    }

    fn apply(&self, content: &mut Content, pick: &Pick) {
        match (self, pick) {
            (_, Pick::Nothing | Pick::Names(_)) => {}
            (Self::Write(offset, bytes), Pick::Sectors(kept)) => {
                content.write(*offset, bytes, |nth| kept.get(nth) == Some(&true));
            }
            (Self::Write(offset, bytes), Pick::Length | Pick::Half) => {
                content.set_len(content.len().max(offset + bytes.len() as u64));
            }
            (Self::Write(offset, bytes), Pick::All) => content.write(*offset, bytes, |_| true),
            (Self::Extend(len), Pick::Half) => content.set_len(content.len().max(len / 2)),
            (Self::Extend(len), Pick::Length | Pick::Sectors(_) | Pick::All) => {
                content.set_len(content.len().max(*len));
            }
            (Self::SetLen(len), Pick::Length | Pick::Half | Pick::Sectors(_) | Pick::All) => {
                content.set_len(*len)
            }
        }
    }
}

/// Ways to tear a write of so many sectors: all there are of a few, else those that cost most to tell apart.
fn torn(sectors: usize) -> Vec<Vec<bool>> {
    const ALL_UP_TO: usize = 3;
    if sectors <= ALL_UP_TO {
        let ways = 1..(1usize << sectors) - 1;
        return ways.map(|way| (0..sectors).map(|nth| way >> nth & 1 == 1).collect()).collect();
    }
    let kept = |keeps: &dyn Fn(usize) -> bool| (0..sectors).map(keeps).collect();
    let (half, last) = (sectors / 2, sectors - 1);
    vec![
        kept(&|nth| nth < half),
        kept(&|nth| nth >= half),
        kept(&|nth| nth != 0),
        kept(&|nth| nth != last),
        kept(&|nth| nth != half),
        kept(&|nth| nth % 2 == 0),
    ]
}

fn parts(path: &Path) -> Vec<String> {
    path.iter().filter(|part| *part != "/").map(|part| part.to_string_lossy().into_owned()).collect()
}

fn below_state(path: &Path) -> PathBuf {
    path.iter().skip_while(|part| *part != STATE).skip(1).collect()
}
