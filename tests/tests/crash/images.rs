//! Power cuts between any two operations of the disk, with every image that they may leave, and again while it recovers.
//!
//! Owns how many images are tried: few enough for every change by default, with `POWER_LOSS=nightly` as many as a night
//! takes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tests::chronicle::{Chronicle, Note};
use tests::documented::{assert_counted, shown};
use tests::image::{Image, Random, images};
use tests::life::{Machine, Worked};
use tests::past::Told;
use tests::power::Power;
use tests::scenario::Scenario;

use crate::check::{Seen, compare};
use crate::enumerate::for_each;
use crate::recorded::{Recorded, temp_dir, uncut};
use crate::scenarios;

/// Where the counts are documented.
const PAGE: &str = "docs/durability.md";

/// The boot after the first cut.
const BOOT: u8 = 2;
/// Power fails so many times in one story.
const DEPTH_MAX: usize = 3;
/// A recovery is cut within so many operations: past them it is a run like any other.
const RECOVERY: usize = 60;

/// How much is tried.
struct Size {
    /// Name of the block that documents it.
    name: &'static str,
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
            Self { name: "images of a night", images: 64, ends_every: 1, again_every: 2 }
        } else {
            Self { name: "images", images: 6, ends_every: 4, again_every: 4 }
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

/// What stands for a story that was run to its end: how much the world had seen, and the frames that were there.
type Left = (usize, u64);

/// An image that opened, and may be run to its end.
struct Opened<'a> {
    left: Left,
    at: usize,
    note: &'a Note,
    image: Image,
}

struct Suite<'a> {
    scenario: &'a Scenario,
    uncut: &'a Seen,
    size: Size,
    counts: Mutex<Counts>,
}

impl Suite<'_> {
    /// Opens the images of the moment before operation `at`; answers those whose turn it is to be run to their end.
    fn cut<'r>(&self, recorded: &'r Recorded, at: usize) -> Vec<Opened<'r>> {
        let moment = recorded.moment(at, None);
        let (notes, mut opened) = (recorded.notes_at(at), Vec::new());
        let Some(last) = notes.last() else { return opened };
        let all = images(&moment, &recorded.dir, (at, &recorded.stale), self.size.images, at as u64);
        for (nth, image) in all.iter().enumerate() {
            self.count(|counts| counts.images += 1);
            let root = temp_dir();
            match recorded.open(image, last, &root.path().join("store"), BOOT) {
                Ok(frames) if (at + nth).is_multiple_of(self.size.ends_every) => {
                    opened.extend(notes.iter().map(|note| {
                        // What a note says differs only if something was told or answered since the one before.
                        let world = &note.world;
                        let seen = world.asked().len() + world.deeds().len() + world.requests().len();
                        Opened { left: (seen, frames), at, note, image: image.clone() }
                    }));
                }
                Ok(_) => {}
                Err(words) => self.broken(&place(recorded, at, image), &words),
            }
        }
        opened
    }

    /// Runs an image to its end.
    fn end(&self, recorded: &Recorded, Opened { left: _, at, note, image }: &Opened<'_>) {
        self.count(|counts| counts.ends += 1);
        let is_cut_again = (at / self.size.ends_every).is_multiple_of(self.size.again_every);
        let mut random = Random(*at as u64);
        if let Err(words) = self.go_on(note, image, (recorded.deaths + 1, 1), is_cut_again, &mut random) {
            self.broken(&place(recorded, *at, image), &words);
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

fn place(recorded: &Recorded, at: usize, image: &Image) -> String {
    format!("after {at} operations ({}), {}", recorded.told[at - 1], image.words)
}

#[test]
fn what_was_acknowledged_outlives_the_power() {
    let scenario = scenarios::several_runs();
    let (uncut, acts) = uncut(&scenario);
    let recorded = Recorded::new(&scenario, &acts);
    let suite = Suite { scenario: &scenario, uncut: &uncut, size: Size::new(), counts: Mutex::default() };
    let moments: Vec<usize> =
        (1..=recorded.told.len()).filter(|at| !matches!(recorded.told[at - 1], Told::Known(..))).collect();
    let opened = for_each(&moments, |at| suite.cut(&recorded, *at));
    // Only what leaves something new, and of that always the same, whichever thread was first.
    let mut seen = BTreeSet::new();
    let new: Vec<_> = opened.into_iter().flatten().filter(|opened| seen.insert(opened.left)).collect();
    for_each(&new, |opened| suite.end(&recorded, opened));
    let counts = suite.counts.into_inner().unwrap();
    let found = format!(
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
    println!("{found}");
    let broken: Vec<_> = counts.broken.iter().take(12).cloned().collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(recorded.transitions() >= 200, "only {} transitions", recorded.transitions());
    assert_counted(PAGE, suite.size.name, &shown(&found));
}
