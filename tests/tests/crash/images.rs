//! Power cuts between any two operations of the disk, with every image that they may leave, and again while it recovers.
//!
//! Owns how many images are tried: few enough for every change by default, with `POWER_LOSS=nightly` as many as a night
//! takes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tests::chronicle::{Chronicle, Note};
use tests::image::{Image, Random, images};
use tests::life::{Machine, Worked};
use tests::past::Told;
use tests::power::Power;
use tests::scenario::Scenario;

use crate::check::{Seen, compare};
use crate::enumerate::for_each;
use crate::recorded::{Recorded, temp_dir, uncut};
use crate::scenarios;

/// The boot after the first cut.
const BOOT: u8 = 2;
/// Power fails so many times in one story.
const DEPTH_MAX: usize = 3;
/// A recovery is cut within so many operations: past them it is a run like any other.
const RECOVERY: usize = 60;

/// How much is tried.
struct Size {
    /// Images at each moment; all there are, if they are no more.
    images: usize,
    /// Of the images that leave something new, every so manieth is run to its end.
    ends_every: usize,
    /// Of those that are run to their end, every so manieth is cut again meanwhile.
    again_every: usize,
}

impl Size {
    fn new() -> Self {
        if std::env::var("POWER_LOSS").is_ok_and(|size| size == "nightly") {
            Self { images: 64, ends_every: 1, again_every: 2 }
        } else {
            Self { images: 6, ends_every: 4, again_every: 4 }
        }
    }
}

#[derive(Default)]
struct Counts {
    images: usize,
    ends: usize,
    again: [usize; DEPTH_MAX],
    broken: Vec<String>,
}

struct Suite<'a> {
    scenario: &'a Scenario,
    uncut: &'a Seen,
    size: Size,
    counts: Mutex<Counts>,
    /// What was run to its end: the note, and the frames that were there.
    seen: Mutex<BTreeSet<(usize, u64)>>,
}

impl Suite<'_> {
    /// Tries the images of the moment before operation `at`.
    fn cut(&self, recorded: &Recorded, at: usize) {
        let moment = recorded.moment(at, None);
        let notes = recorded.notes_at(at);
        let Some(last) = notes.last() else { return };
        let all = images(&moment, &recorded.dir, (at, &recorded.stale), self.size.images, at as u64);
        for (nth, image) in all.iter().enumerate() {
            self.count(|counts| counts.images += 1);
            let root = temp_dir();
            let place = format!("after {at} operations ({}), {}", recorded.told[at - 1], image.words);
            match recorded.open(image, last, &root.path().join("store"), BOOT) {
                Ok(frames) => {
                    for note in notes {
                        self.end(recorded, note, frames, image, (at, nth), &place);
                    }
                }
                Err(words) => self.broken(&place, &words),
            }
        }
    }

    /// Runs an image to its end, if what it leaves is new and its turn.
    fn end(
        &self,
        recorded: &Recorded,
        note: &Note,
        frames: u64,
        image: &Image,
        (at, nth): (usize, usize),
        place: &str,
    ) {
        // What a note says differs only if something was told or answered since the one before.
        let key = (note.world.asked().len() + note.world.deeds().len() + note.world.requests().len(), frames);
        let is_its_turn = (at + nth).is_multiple_of(self.size.ends_every);
        if !is_its_turn || !self.seen.lock().unwrap().insert(key) {
            return;
        }
        self.count(|counts| counts.ends += 1);
        let is_cut_again = (at / self.size.ends_every).is_multiple_of(self.size.again_every);
        let mut random = Random(at as u64);
        if let Err(words) = self.go_on(note, image, (recorded.deaths + 1, 1), is_cut_again, &mut random) {
            self.broken(place, &words);
        }
    }

    /// Runs an image to its end; so many deaths lie behind it, of which the last `depth` were cuts. Cuts the recovery as
    /// well if wanted.
    fn go_on(
        &self,
        note: &Note,
        image: &Image,
        (deaths, depth): (usize, usize),
        is_cut_again: bool,
        random: &mut Random,
    ) -> Result<(), String> {
        let (root, world, mut done) = (temp_dir(), note.world.copy(), note.done);
        let dir = root.path().join("store");
        image.write(&dir).map_err(|error| error.to_string())?;
        let boot = BOOT + depth as u8;
        let mut machine = Machine::new(Power::steady()).boot(boot);
        let chronicle = is_cut_again.then(|| Chronicle::new(&dir, &world, note.acknowledged));
        if let Some(chronicle) = &chronicle {
            machine = machine.watched(Arc::clone(chronicle));
        }
        let worked = machine.work(self.scenario, &world, &dir, &mut done);
        if worked != Worked::Finished {
            return Err(format!("after {depth} cuts: {worked:?}"));
        }
        let broken = compare(self.uncut, &Seen::new(&world, &dir), deaths, self.scenario.same);
        if !broken.is_empty() {
            return Err(format!("after {depth} cuts: {}", broken.join("\n  ")));
        }
        let Some(chronicle) = chronicle.filter(|_| depth < DEPTH_MAX) else { return Ok(()) };
        let again = Recorded::of(&machine, &chronicle, &dir, deaths);
        self.cut_again(&again, depth + 1, random)
    }

    /// Cuts a recovery at a random operation of its beginning.
    fn cut_again(&self, recorded: &Recorded, depth: usize, random: &mut Random) -> Result<(), String> {
        let at = 1 + random.below(recorded.told.len().min(RECOVERY));
        let moment = recorded.moment(at, None);
        let Some(note) = recorded.notes_at(at).last() else { return Ok(()) };
        let all = images(&moment, &recorded.dir, (at, &recorded.stale), self.size.images, random.0);
        let image = &all[random.below(all.len())];
        let root = temp_dir();
        self.count(|counts| counts.again[depth - 1] += 1);
        let opened = recorded.open(image, note, &root.path().join("store"), BOOT + depth as u8);
        let went_on =
            opened.and_then(|_| self.go_on(note, image, (recorded.deaths + 1, depth), true, random));
        went_on.map_err(|words| {
            format!("cut {depth} at operation {at} of the recovery, {}: {words}", image.words)
        })
    }

    fn broken(&self, place: &str, words: &str) {
        self.count(|counts| counts.broken.push(format!("{place}: {words}")));
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap());
    }
}

#[test]
fn what_was_acknowledged_outlives_the_power() {
    let scenario = scenarios::several_runs();
    let (uncut, acts) = uncut(&scenario);
    let recorded = Recorded::new(&scenario, &acts);
    let suite = Suite {
        scenario: &scenario,
        uncut: &uncut,
        size: Size::new(),
        counts: Mutex::default(),
        seen: Mutex::default(),
    };
    let moments: Vec<usize> =
        (1..=recorded.told.len()).filter(|at| !matches!(recorded.told[at - 1], Told::Known(..))).collect();
    for_each(&moments, |at| suite.cut(&recorded, *at));
    let counts = suite.counts.into_inner().unwrap();
    println!(
        "{} transitions in {} frames, {} moments, {} images, {} run to their end, {} cut twice, {} cut three times, \
         {} went wrong",
        recorded.transitions(),
        recorded.frames.len(),
        moments.len(),
        counts.images,
        counts.ends,
        counts.again[1],
        counts.again[2],
        counts.broken.len(),
    );
    let shown: Vec<_> = counts.broken.iter().take(12).cloned().collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    assert!(recorded.transitions() >= 200, "only {} transitions", recorded.transitions());
}
