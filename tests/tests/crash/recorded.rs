//! A run of a scenario of which every moment of the disk is known, and what must hold of an image of any of them.
//!
//! Owns the claims about one image: what was acknowledged is there, what is there is a first part of what was written, and
//! the state is what it adds up to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::fs::{Fs, Mode};
use store::{JournalReader, Record, Store, Stream, verify};
use tempfile::TempDir;
use tests::chronicle::{Chronicle, Note};
use tests::image::{Image, Stale};
use tests::life::{Machine, Worked};
use tests::moment::Moment;
use tests::past::Told;
use tests::power::{Act, Blow, Power};
use tests::scenario::Scenario;
use tests::world::World;

use crate::check::Seen;

/// A run, and everything that its disk was told.
pub(crate) struct Recorded {
    pub(crate) dir: PathBuf,
    pub(crate) told: Vec<Told>,
    pub(crate) notes: Vec<Note>,
    pub(crate) stale: Stale,
    /// Every frame of the journal as it ended, in order.
    pub(crate) frames: Vec<Record>,
    /// Deaths of the process while it was recorded.
    pub(crate) deaths: usize,
}

/// So small that a run goes through several.
const SEGMENT_BYTES: u64 = 24 << 10;

/// A directory in memory where there is one: what is lost and kept here is decided by hand.
pub(crate) fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A machine on which somebody has just made the store's directory, and the one above.
fn machine(power: Power, dir: &Path) -> Machine {
    let machine = Machine::new(power).segments(SEGMENT_BYTES);
    machine.disk.open(dir, Mode::Dir).unwrap();
    machine
}

/// The end of a scenario whose process and machine never die.
pub(crate) fn uncut(scenario: &Scenario) -> (Seen, Vec<Act>) {
    let (root, world) = (temp_dir(), World::new());
    let dir = root.path().join("above/store");
    let machine = machine(Power::steady(), &dir);
    assert_eq!(machine.work(scenario, &world, &dir, &mut 0), Worked::Finished);
    let seen = Seen::new(&world, &dir);
    assert_eq!(seen.broken, Vec::<String>::new());
    (seen, machine.power.acts())
}

impl Recorded {
    /// Records a scenario whose process is killed twice, each time with something in the page cache that no sync has
    /// covered.
    pub(crate) fn new(scenario: &Scenario, acts: &[Act]) -> Self {
        let (root, world, mut done) = (temp_dir(), World::new(), 0);
        let dir = root.path().join("above/store");
        let chronicle = Chronicle::new(&dir, &world, 0);
        let is_unsynced = |at: &usize| acts[*at] == Act::Write && acts.get(at + 1) == Some(&Act::Write);
        let first = (acts.len() / 4..acts.len()).find(is_unsynced).unwrap();
        let machine = machine(Power::failing(first, Blow::After), &dir).watched(Arc::clone(&chronicle));
        assert_eq!(machine.work(scenario, &world, &dir, &mut done), Worked::Died);
        let machine = machine.again(Power::failing(acts.len() / 3, Blow::After));
        assert_eq!(machine.work(scenario, &world, &dir, &mut done), Worked::Died);
        let machine = machine.again(Power::steady());
        // So that no name of a segment is made durable by the making of the next one.
        machine.disk.refuse_spare();
        assert_eq!(machine.work(scenario, &world, &dir, &mut done), Worked::Finished);
        Self::of(&machine, &chronicle, &dir, 2)
    }

    /// What was recorded of a machine's work in `dir`.
    pub(crate) fn of(machine: &Machine, chronicle: &Chronicle, dir: &Path, deaths: usize) -> Self {
        let mut frames = Vec::new();
        JournalReader::open(dir).unwrap().each(|_, record| frames.push(record)).unwrap();
        let (told, notes, stale) = (machine.disk.told(), chronicle.notes(), chronicle.stale());
        Self { dir: dir.to_owned(), told, notes, stale, frames, deaths }
    }

    /// Transitions of runs.
    pub(crate) fn transitions(&self) -> usize {
        self.frames.iter().filter(|frame| matches!(frame.stream, Stream::Run(_))).count()
    }

    /// The disk before it was told what stands at `at`; `without` is a sync that does nothing.
    pub(crate) fn moment(&self, at: usize, without: Option<usize>) -> Moment {
        let mut moment = Moment::default();
        // What was there before is noticed when it is touched.
        self.told.iter().filter(|told| matches!(told, Told::Known(..))).for_each(|told| moment.apply(told));
        let rest = self.told[..at].iter().enumerate().filter(|(_, told)| !matches!(told, Told::Known(..)));
        for (nth, told) in rest {
            if without == Some(nth) {
                moment.apply_in_vain(told);
            } else {
                moment.apply(told);
            }
        }
        moment
    }

    /// What may be known when the disk was told so much: nothing happens between two notes but what the disk is told.
    pub(crate) fn notes_at(&self, at: usize) -> &[Note] {
        let end = self.notes.partition_point(|note| note.told <= at);
        let start = self.notes.partition_point(|note| note.told < at);
        &self.notes[start.min(end.saturating_sub(1))..end]
    }

    /// Opens the store on an image in `dir`; answers the frames that are there, or what is wrong.
    pub(crate) fn open(&self, image: &Image, note: &Note, dir: &Path, boot: u8) -> Result<u64, String> {
        image.write(dir).map_err(|error| error.to_string())?;
        let machine = Machine::new(Power::steady()).boot(boot);
        let store = machine.open_store(&note.world, dir).map_err(|error| error.to_string())?;
        let frames = store.opening().frames;
        if frames < note.acknowledged {
            return Err(format!("{frames} frames of {} acknowledged", note.acknowledged));
        }
        let mut broken = None;
        let mut found = 0;
        let reader = JournalReader::open(dir).map_err(|error| error.to_string())?;
        let read = reader.each(|position, record| {
            found += 1;
            if position < frames && self.frames.get(position as usize) != Some(&record) {
                broken.get_or_insert_with(|| format!("frame {position} is {record:?}"));
            }
        });
        read.map_err(|error| error.to_string())?;
        if found != frames + 1 {
            return Err(format!("{found} frames after an open that found {frames}"));
        }
        let report = verify(dir).map_err(|error| error.to_string())?;
        if !report.findings.is_empty() || report.tail.is_some() {
            return Err(format!("verify found {:?}, tail {:?}", report.findings, report.tail));
        }
        let state = store.scan(b"", None, usize::MAX).map_err(|error| error.to_string())?;
        if state != self.state_after(frames) {
            return Err("the state is not what the frames add up to".to_owned());
        }
        broken.map_or(Ok(frames), Err)
    }

    /// What the puts of the first frames add up to.
    fn state_after(&self, frames: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut state = BTreeMap::new();
        for put in self.frames[..frames as usize].iter().flat_map(|frame| &frame.puts) {
            match &put.value {
                Some(value) => drop(state.insert(put.key.clone(), value.clone())),
                None => drop(state.remove(&put.key)),
            }
        }
        state.into_iter().collect()
    }
}
