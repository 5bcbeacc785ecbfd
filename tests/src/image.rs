//! The disk images that a power cut may leave at a moment, and directories made of them.
//!
//! Owns which of the legal images are tried: all of them up to a bound, else the extremes and a seeded sample. What is
//! legal is said in `moment`.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::content::SECTOR;
use crate::disk::write_file;
use crate::moment::{Choice, Left, Moment, Pick, Tree};

/// A directory as a cut left it.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its files but for sled's; none if the directory itself is gone.
    left: Option<Left>,
    state: State,
    /// What of the unsynced is there.
    pub words: String,
}

/// sled's files as a cut left them.
#[derive(Clone, Debug)]
enum State {
    /// As they were synced.
    Synced(Arc<Tree>),
    /// None.
    Emptied,
    /// Of an earlier moment.
    Stale(Arc<Tree>),
    /// Of an earlier moment, and some of it is missing, though sled can read the rest.
    Holed(Arc<Tree>),
    /// Of an earlier moment, with sectors that never reached the disk.
    Torn(Arc<Tree>),
    /// Bytes.
    Garbage,
}

/// What sled's files may be while sled writes them, for every image in turn.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    trees: Vec<Trees>,
}

/// sled's files at one moment, and two ways in which they may have been half written.
#[derive(Clone, Debug)]
struct Trees {
    /// How much the disk had been told.
    told: usize,
    whole: Arc<Tree>,
    holed: Arc<Tree>,
    torn: Arc<Tree>,
}

impl Stale {
    /// Takes sled's files as they stand in a directory; does nothing if sled cannot read them.
    pub fn take(&mut self, told: usize, dir: &Path) {
        let (Ok(tree), Ok(copy)) = (read_tree(dir), tempfile::tempdir()) else { return };
        let holed =
            write_tree(&tree, &copy.path().join("state")).ok().and_then(|()| pierce(copy.path()).ok());
        if let Some(holed) = holed {
            let torn = tree.iter().map(|(path, bytes)| (path.clone(), torn(bytes))).collect();
            self.trees.push(Trees {
                told,
                whole: Arc::new(tree),
                holed: Arc::new(holed),
                torn: Arc::new(torn),
            });
        }
    }

    /// One of the ways in which sled's files may be when the disk was told so much.
    fn nth(&self, told: usize, nth: usize) -> State {
        let trees = &self.trees[..self.trees.partition_point(|trees| trees.told <= told)];
        let trees = (!trees.is_empty()).then(|| &trees[nth / 5 % trees.len()]);
        match (nth % 5, trees) {
            (1, Some(trees)) => State::Stale(Arc::clone(&trees.whole)),
            (2, Some(trees)) => State::Holed(Arc::clone(&trees.holed)),
            (3, Some(trees)) => State::Torn(Arc::clone(&trees.torn)),
            (4, _) => State::Garbage,
            _ => State::Emptied,
        }
    }
}

/// Removes every third key but the one that says how far sled is.
fn pierce(dir: &Path) -> io::Result<Tree> {
    let state = dir.join("state");
    let db = sled::Config::new().path(&state).cache_capacity(1 << 20).flush_every_ms(None).open()?;
    for (nth, key) in db.iter().keys().enumerate() {
        let key = key?;
        if nth % 3 == 0 && key != [0] {
            db.remove(key)?;
        }
    }
    db.flush()?;
    drop(db);
    read_tree(dir)
}

fn read_tree(dir: &Path) -> io::Result<Tree> {
    fn walk(root: &Path, path: &Path, tree: &mut Tree) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_dir() {
                walk(root, &path, tree)?;
            } else {
                let below = path.strip_prefix(root).unwrap_or(&path).to_owned();
                tree.insert(below, fs::read(&path)?.into());
            }
        }
        Ok(())
    }
    let (root, mut tree) = (dir.join("state"), Tree::new());
    walk(&root, &root, &mut tree)?;
    Ok(tree)
}

fn write_tree(tree: &Tree, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for (path, bytes) in tree {
        let path = dir.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&path, bytes)?;
    }
    Ok(())
}

/// The images of `dir` at a moment at which the disk had been told so much: all there are if they are at most `bound`, else so many of them.
pub fn images(
    moment: &Moment,
    dir: &Path,
    (told, stale): (usize, &Stale),
    bound: usize,
    seed: u64,
) -> Vec<Image> {
    let choices = moment.choices();
    let mut picks = extremes(&choices);
    let all = choices.iter().try_fold(1usize, |all, choice| all.checked_mul(choice.options.len()));
    if let Some(all) = all.filter(|all| *all <= bound) {
        picks.extend((0..all).map(|number| numbered(&choices, number)));
    } else {
        let mut random = Random(seed);
        while picks.len() < bound {
            picks.push(choices.iter().map(|choice| random.below(choice.options.len())).collect());
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    picks.retain(|picks| seen.insert(picks.clone()));
    picks.truncate(bound);
    let image = |(nth, picks): (usize, &Vec<usize>)| {
        let state =
            moment.state().map(Arc::new).map_or_else(|| stale.nth(told, seed as usize + nth), State::Synced);
        image(moment, dir, &choices, picks, state)
    };
    picks.iter().enumerate().map(image).collect()
}

/// Nothing, everything, then each change alone lost and alone kept.
fn extremes(choices: &[Choice]) -> Vec<Vec<usize>> {
    let (none, all): (Vec<_>, Vec<_>) = choices.iter().map(|choice| (0, choice.options.len() - 1)).unzip();
    let but = |picks: &[usize], at: usize, pick: usize| {
        let mut picks = picks.to_vec();
        picks[at] = pick;
        picks
    };
    let singles = (0..choices.len()).flat_map(|at| [but(&all, at, 0), but(&none, at, all[at])]);
    let singles: Vec<_> = singles.collect();
    [none, all].into_iter().chain(singles).collect()
}

/// One of all combinations.
fn numbered(choices: &[Choice], mut number: usize) -> Vec<usize> {
    let mut pick = |count| {
        let pick = number % count;
        number /= count;
        pick
    };
    choices.iter().map(|choice| pick(choice.options.len())).collect()
}

fn image(moment: &Moment, dir: &Path, choices: &[Choice], picks: &[usize], state: State) -> Image {
    let picked: Vec<(&Choice, &Pick)> =
        choices.iter().zip(picks).map(|(choice, pick)| (choice, &choice.options[*pick])).collect();
    let mut words: Vec<String> =
        picked.iter().map(|(choice, pick)| format!("{}: {}", choice.words, pick_words(pick))).collect();
    words.push(format!("sled: {}", state.words()));
    Image { left: moment.left(dir, &picked), state, words: words.join("; ") }
}

fn pick_words(pick: &Pick) -> String {
    match pick {
        Pick::Names(count) => format!("the first {count}"),
        Pick::Nothing => "lost".to_owned(),
        Pick::Length => "length".to_owned(),
        Pick::Half => "half".to_owned(),
        Pick::Sectors(kept) => {
            let kept: String = kept.iter().map(|kept| if *kept { '+' } else { '-' }).collect();
            format!("sectors {kept}")
        }
        Pick::All => "whole".to_owned(),
    }
}

impl State {
    fn words(&self) -> &'static str {
        match self {
            Self::Synced(_) => "synced",
            Self::Emptied => "emptied",
            Self::Stale(_) => "stale",
            Self::Holed(_) => "holed",
            Self::Torn(_) => "torn",
            Self::Garbage => "garbage",
        }
    }

    fn write(&self, state: &Path) -> io::Result<()> {
        match self {
            Self::Emptied => Ok(()),
            Self::Synced(tree) | Self::Stale(tree) | Self::Holed(tree) | Self::Torn(tree) => {
                write_tree(tree, state)
            }
            Self::Garbage => {
                fs::create_dir_all(state)?;
                let mut random = Random(7);
                let bytes: Vec<u8> = (0..40 * SECTOR).map(|_| random.below(256) as u8).collect();
                ["db", "conf"].iter().try_for_each(|name| fs::write(state.join(name), &bytes))
            }
        }
    }
}

fn torn(bytes: &[u8]) -> Arc<[u8]> {
    let mut bytes = bytes.to_vec();
    bytes.chunks_mut(SECTOR).skip(3).step_by(5).for_each(|sector| sector.fill(0));
    bytes.into()
}

impl Image {
    /// Makes the directory, which must not be there.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let Some(left) = &self.left else { return Ok(()) };
        fs::create_dir_all(dir)?;
        for (path, content) in left {
            let path = dir.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            write_file(&path, content)?;
        }
        self.state.write(&dir.join("state"))
    }
}

/// A seeded sequence (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end.max(1) as u64) as usize
    }
}
