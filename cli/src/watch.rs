//! The watch over the files of the configuration, while a command owns the engine.
//!
//! Owns when changed files are read again, and what is said of them. A configuration that is not valid changes
//! nothing: the one in force is kept, and the mistakes are told. It must never stop a run, nor take half a file for a
//! whole one, nor read a pipe: what it said before the watch began holds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
use engine::config::{Config, Error};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, block_in_place, spawn_blocking};

use crate::context::Layers;

/// How long the files must say the same before they count: whoever saves one may do it in several steps.
const SETTLE: Duration = Duration::from_millis(100);

/// What is said of a change that is taken.
const CHANGED: &str = "jobs accepted from now on get it; runs accepted before keep theirs; \
                       [profiles] and concurrency hold at once";

/// A watch that goes on until it is ended.
pub(crate) struct Watch {
    task: JoinHandle<()>,
}

impl Watch {
    /// Watches the files whose configuration the engine was opened with. Must be called inside a runtime.
    pub(crate) fn start(engine: &Engine, layers: Layers, config: Config) -> Self {
        Self { task: tokio::spawn(follow(engine.clone(), Arc::new(layers), config)) }
    }

    /// Nothing is taken from here on, and nobody waits for what is being read.
    pub(crate) async fn end(self) {
        self.task.abort();
        // It was aborted, or had ended before.
        let _ = self.task.await;
    }
}

/// What each file holds; none if it is not there or cannot be read.
type Texts = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// What the files say, and how they say it.
type Found = (Result<Config, Error>, Texts);

/// Gives the engine each configuration that the files come to say, also before the watch had begun.
async fn follow(engine: Engine, layers: Arc<Layers>, config: Config) {
    let Some((_, mut texts)) = read(&layers).await else { return };
    let changed = Arc::new(Notify::new());
    let mut places = match Places::new(Arc::clone(&changed)) {
        Ok(places) => places,
        Err(error) => return say_unwatched(&error),
    };
    let mut known = Ok(config);
    loop {
        if let Err(error) = block_in_place(|| places.watch(&layers.files())) {
            return say_unwatched(&error);
        }
        if let Some((found, now)) = settled(&layers).await
            && found != known
        {
            take(&engine, &found, &changed_files(&layers, &texts, &now));
            (known, texts) = (found, now);
        }
        changed.notified().await;
    }
}

/// What the files say, once they say it twice; none as long as one of them cannot be read again.
async fn settled(layers: &Arc<Layers>) -> Option<Found> {
    let mut before = read(layers).await?;
    loop {
        tokio::time::sleep(SETTLE).await;
        let now = read(layers).await?;
        if now == before {
            return Some(now);
        }
        before = now;
    }
}

/// On a thread of its own: a pipe that takes the place of a file right now may hold it for ever.
async fn read(layers: &Arc<Layers>) -> Option<Found> {
    let layers = Arc::clone(layers);
    spawn_blocking(move || layers.can_be_read_again().then(|| (layers.load(), texts(&layers)))).await.ok()?
}

fn texts(layers: &Layers) -> Texts {
    let read = |file: PathBuf| {
        let text = std::fs::read(&file).ok();
        (file, text)
    };
    layers.files().into_iter().map(read).collect()
}

/// The files that hold something else than before, as a person names them.
fn changed_files(layers: &Layers, before: &Texts, now: &Texts) -> String {
    let changed = now.iter().filter(|(file, text)| before.get(*file) != Some(*text));
    let names: Vec<String> = changed.map(|(file, _)| layers.name(file).display().to_string()).collect();
    names.join(", ")
}

fn take(engine: &Engine, found: &Result<Config, Error>, files: &str) {
    match found {
        Ok(config) => {
            engine.reload(config.clone());
            let files = if files.is_empty() { String::new() } else { format!(" ({files})") };
            say(&format!("the configuration has changed{files}: {CHANGED}"));
        }
        Err(Error::Invalid(mistakes)) => {
            mistakes.iter().for_each(|mistake| say(&mistake.to_string()));
            let what = if mistakes.len() == 1 { "this mistake" } else { "these mistakes" };
            say(&format!("the configuration in force is kept: correct {what}, and it is read again"));
        }
        Err(error @ (Error::NoDataDir | Error::UnknownModel { .. } | Error::Snapshot { .. })) => {
            say(&format!("{error}; the configuration in force is kept"))
        }
    }
}

/// The directories in which something happens when one of the files changes. A file itself is not watched: who saves
/// it puts a new one in its place.
struct Places {
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
}

impl Places {
    /// None yet. `changed` is told whenever something happens in one.
    fn new(changed: Arc<Notify>) -> notify::Result<Self> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // What cannot be read, and what was lost in a full queue, may have been a change.
            let is_access = event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_)));
            if !is_access {
                changed.notify_one();
            }
        })?;
        Ok(Self { watcher, watched: BTreeSet::new() })
    }

    /// Watches the places of these files as they are now. One that was watched is watched anew: it may be another
    /// directory under the same name.
    fn watch(&mut self, files: &[PathBuf]) -> notify::Result<()> {
        let places: BTreeSet<PathBuf> = files.iter().flat_map(|file| places_of(file)).collect();
        for gone in self.watched.difference(&places) {
            // It is forgotten already if its directory is gone.
            let _ = self.watcher.unwatch(gone);
        }
        for place in &places {
            match self.watcher.watch(place, RecursiveMode::NonRecursive) {
                Err(error) if is_passing(&error) => {}
                watched => watched?,
            }
        }
        self.watched = places;
        Ok(())
    }
}

/// The directory of a file and, if it is a link, that of what it leads to; where one is not there, the nearest above.
fn places_of(file: &Path) -> Vec<PathBuf> {
    let target = file.canonicalize().ok();
    let named = [Some(file), target.as_deref()].into_iter().flatten();
    named
        .filter_map(|path| path.ancestors().skip(1).find(|above| above.is_dir()).map(Path::to_owned))
        .collect()
}

/// The directory went away meanwhile, which is a change above it, or is not ours to look into.
fn is_passing(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => true,
        notify::ErrorKind::Io(error) => {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        }
        notify::ErrorKind::Generic(_)
        | notify::ErrorKind::InvalidConfig(_)
        | notify::ErrorKind::MaxFilesWatch => false,
    }
}

fn say_unwatched(error: &notify::Error) {
    say(&format!("the configuration is not watched ({error}): a change takes effect with the next command"));
}

fn say(line: &str) {
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{line}");
}
