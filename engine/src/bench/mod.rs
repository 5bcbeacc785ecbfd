//! Measures this machine: its bare disk, the store on it, and runs through the whole engine.
//!
//! Owns what is measured and in which order. It must never know the inside of what it measures: the store and
//! the engine are used as any program uses them, so the numbers are those that a program gets.

mod long;
mod long_report;
mod meter;
mod raw;
mod recovery;
mod report;
mod retention;
mod runs;
mod session;
mod store;
mod timed;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::raw::RawDisk;
use self::store::Writers;
use crate::error::Error;

pub use self::long::{TRANSITIONS, long};
pub use self::long_report::{LongPoint, LongReport};
pub use self::recovery::{RUNS, Recovered, RecoveryReport, recovery};
pub use self::report::{BenchReport, CommitPoint, RunPoint};
pub use self::retention::{PURGED_RUNS, RetentionReport, Waits, retention};

/// Writers, or runs, that work at the same time.
const WIDTHS: [usize; 3] = [1, 64, 1024];
/// Turns between the disk and the store within one point, so that both see the same moods of the machine.
const SLICES: u32 = 5;
/// The least time that one point takes.
const POINT: Duration = Duration::from_secs(10);
/// The same for a quick look.
const QUICK_POINT: Duration = Duration::from_secs(3);

/// Measures on the disk of `dir`, in a directory of its own there that is removed again. Each point takes 10
/// s at least, 3 s if `quick`. `say` is told each step. Must be called inside a runtime, whose threads are those that the
/// runs get.
pub async fn bench(dir: &Path, quick: bool, mut say: impl FnMut(&str)) -> Result<BenchReport, Error> {
    let point = if quick { QUICK_POINT } else { POINT };
    let place = Place::make(dir)?;
    say("measuring commits");
    let pairs = commits(&place.0, &WIDTHS, point).await?;
    let mut loads = Vec::with_capacity(WIDTHS.len());
    for width in WIDTHS {
        say(&format!("measuring runs, {width} at a time"));
        loads.push(runs::load(&place.0.join(format!("runs-{width}")), width, point).await?);
    }
    Ok(BenchReport::of(three(pairs), three(loads), meter::rss_bytes_max()))
}

/// One width of the store alone, as [`bench()`] measures it: the disk's point and the store's.
pub async fn store_point(dir: &Path, width: usize, time: Duration) -> Result<[CommitPoint; 2], Error> {
    let place = Place::make(dir)?;
    let mut pairs = commits(&place.0, &[width], time).await?;
    let Commits { raw, store } = pairs.pop().unwrap_or_default();
    Ok([CommitPoint::of(raw), CommitPoint::of(store)])
}

/// One width of runs alone, as [`bench()`] measures it.
pub async fn runs_point(dir: &Path, width: usize, time: Duration) -> Result<RunPoint, Error> {
    let place = Place::make(dir)?;
    Ok(RunPoint::of(runs::load(&place.0.join("runs"), width, time).await?))
}

async fn commits(dir: &Path, widths: &[usize], point: Duration) -> Result<Vec<Commits>, Error> {
    let mut pairs = Vec::with_capacity(widths.len());
    let mut writers = Writers::open(&dir.join("store"))?;
    let mut raw = RawDisk::open(&dir.join("raw"), writers.frame_bytes().await?)?;
    for width in widths {
        let mut pair = Commits::default();
        for _ in 0..SLICES {
            raw = raw.slice(*width, point / SLICES, &mut pair.raw).await?;
            writers.slice(*width, point / SLICES, &mut pair.store).await?;
        }
        pairs.push(pair);
    }
    writers.close().await?;
    Ok(pairs)
}

/// What the disk and the store did at one width.
#[derive(Default)]
struct Commits {
    raw: meter::Work,
    store: meter::Work,
}

/// One value for each of [`WIDTHS`].
fn three<T>(values: Vec<T>) -> [T; 3]
where
    T: Default,
{
    let mut values = values.into_iter();
    std::array::from_fn(|_| values.next().unwrap_or_default())
}

/// The directory that this process measures in, in `dir`. A measurement that was stopped may leave it.
pub fn place(dir: &Path) -> PathBuf {
    dir.join(format!("bench-{}", std::process::id()))
}

/// The directory that is measured in. It is removed when this is dropped.
struct Place(PathBuf);

impl Place {
    fn make(dir: &Path) -> Result<Self, Error> {
        let path = place(dir);
        std::fs::create_dir_all(&path).map_err(|error| failed("make", &path, &error))?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is named by the person who looks for space, not by a measurement.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn failed(operation: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Error::Store(::store::Error::Io { operation, path: path.to_owned(), message: error.to_string() })
}

/// Work that blocks, away from the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let lost = |error| Error::Setup(format!("a measurement was lost: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}
