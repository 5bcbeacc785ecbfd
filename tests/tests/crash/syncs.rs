//! The images themselves: each sync is taken out, and some image must show that it is missing.
//!
//! Owns the list of syncs of which none does, with the reason.

use std::collections::BTreeMap;

use tests::image::images;
use tests::past::Told;

use crate::enumerate::for_each;
use crate::recorded::{Recorded, temp_dir, uncut};
use crate::scenarios;

/// How many operations later a missing sync may show.
const WITHIN: usize = 90;
/// Images tried at each moment.
const IMAGES: usize = 12;

/// Syncs without which no image is wrong, by what they sync and what came before.
const REDUNDANT: &[(&str, &str)] = &[];

/// What a sync is for: what it syncs, after what.
fn purpose(told: &[Told], at: usize) -> String {
    let kind = |told: &Told| {
        let words = told.to_string();
        let words: String = words.chars().filter(|c| !c.is_ascii_digit()).collect();
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let before = told[..at].iter().rfind(|told| !matches!(told, Told::Known(..)));
    format!("{} after {}", kind(&told[at]), before.map(kind).unwrap_or_default())
}

/// Whether some image shows that the sync at `at` is missing.
fn shows(recorded: &Recorded, at: usize) -> Option<String> {
    for moment in at + 1..=recorded.told.len().min(at + WITHIN) {
        let Some(note) = recorded.notes_at(moment).last() else { continue };
        let disk = recorded.moment(moment, Some(at));
        for image in images(&disk, &recorded.dir, (moment, &recorded.stale), IMAGES, moment as u64) {
            let root = temp_dir();
            if let Err(words) = recorded.open(&image, note, &root.path().join("store"), 2) {
                return Some(format!("{} operations later, {}: {words}", moment - at, image.words));
            }
        }
    }
    None
}

#[test]
fn each_sync_that_is_taken_out_is_missed() {
    let scenario = scenarios::several_runs();
    let recorded = Recorded::new(&scenario, &uncut(&scenario).1);
    let syncs: Vec<usize> =
        (0..recorded.told.len()).filter(|at| recorded.told[*at].synced().is_some()).collect();
    let shown = for_each(&syncs, |at| shows(&recorded, *at));
    let mut by_purpose = BTreeMap::<String, (usize, usize, Option<String>)>::new();
    for (at, shown) in syncs.iter().zip(shown) {
        let count = by_purpose.entry(purpose(&recorded.told, *at)).or_default();
        count.0 += 1;
        count.1 += usize::from(shown.is_some());
        count.2 = count.2.take().or(shown);
    }
    for (purpose, (count, missed, first)) in &by_purpose {
        println!("{missed} of {count}: {purpose}: {}", first.as_deref().unwrap_or("never missed"));
    }
    println!("{} syncs", syncs.len());
    let never: Vec<_> = by_purpose.iter().filter(|(_, (count, missed, _))| missed < count).map(|(purpose, _)| purpose.as_str()).collect();
    let expected: Vec<_> = REDUNDANT.iter().map(|(purpose, _)| *purpose).collect();
    assert_eq!(never, expected);
}
