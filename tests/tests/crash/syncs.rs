//! The images themselves: each sync is taken out, and some image must show that it is missing.
//!
//! Owns the list of syncs of which none does, with the reason.

use std::collections::BTreeMap;
use std::path::Path;

use tests::documented::assert_counted;
use tests::image::images;
use tests::past::{Told, is_of_state};

use crate::enumerate::for_each;
use crate::recorded::{Recorded, temp_dir, uncut};
use crate::scenarios;

/// How many operations later a missing sync may show.
const WITHIN: usize = 90;
/// The same for a barrier: the next thing that happens is an answer.
const WITHIN_BARRIER: usize = 3;
/// Images tried at each moment.
const IMAGES: usize = 8;
/// Syncs tried of a purpose whose syncs are never missed.
const REDUNDANT_MAX: usize = 2;

/// What most syncs are: each of these is tried.
const BARRIER: &str = "a segment, after something was written";

/// Syncs without which there may be no image that is wrong, and why.
const REDUNDANT: [(&str, &str); 9] = [
    (
        "a segment in the making, after something was filled",
        "the barrier of its first group covers its length",
    ),
    (
        "sled's data, after something was synced",
        "a state that is behind is brought up to the journal, a torn one does not open",
    ),
    (
        "DIR, after something was made",
        "the mark's name is synced in the same directory, before anything is answered",
    ),
    (
        "DIR, after something was synced",
        "the mark's name is synced in the same directory, before anything is answered",
    ),
    (
        "DIR, after something was written",
        "the mark's name is synced in the same directory, before a store that is opened again answers",
    ),
    (
        "another of sled's files, after something was synced",
        "sled does not open without it: the state is rebuilt",
    ),
    (
        "the journal's directory, after something was removed",
        "a segment that comes back holds nothing that is accepted, and is removed again",
    ),
    (
        "the journal's directory, after something was synced",
        "a segment has its name for good before its first group; removals come before later names",
    ),
    ("the new mark, after something was written", "an empty mark means that the state is rebuilt"),
];

/// What a sync is for: what it syncs, after what.
fn purpose(told: &[Told], at: usize) -> String {
    let before = told[..at].iter().rfind(|told| !matches!(told, Told::Known(..)));
    let after = match before {
        Some(Told::MakeDir(_)) => "made",
        Some(Told::Write(..)) => "written",
        Some(Told::Extend(..)) => "filled",
        Some(Told::Rename(..)) => "renamed",
        Some(Told::Remove(_)) => "removed",
        Some(Told::Sync(_) | Told::SyncState(..)) => "synced",
        Some(Told::Known(..) | Told::Make(_) | Told::SetLen(..) | Told::FailedSync(_)) | None => "found",
    };
    format!("{}, after something was {after}", told[at].synced().map_or("", what))
}

/// The kind of a file or directory.
fn what(path: &Path) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.as_ref() {
        "db" => "sled's data",
        _ if is_of_state(path) => "another of sled's files",
        "journal" => "the journal's directory",
        "store" => "DIR",
        "above" => "the new directory above DIR",
        "state.mark.new" => "the new mark",
        _ if name.ends_with(".seg") => "a segment",
        _ if name.ends_with(".tmp") => "a segment in the making",
        _ => "an older directory above",
    }
}

/// What some image shows of the sync at `at` being missing, at most so many operations later: the image, and what is wrong.
fn shows(recorded: &Recorded, at: usize, within: usize) -> Option<(String, String)> {
    for moment in at + 1..=recorded.told.len().min(at + within) {
        let Some(note) = recorded.notes_at(moment).last() else { continue };
        let disk = recorded.moment(moment, Some(at));
        for image in images(&disk, &recorded.dir, (moment, &recorded.stale), IMAGES, moment as u64) {
            let root = temp_dir();
            let store = root.path().join("store");
            if let Err(words) = recorded.open(&image, note, &store, 2) {
                let image = format!("{} operations later, {}", moment - at, image.words);
                return Some((image, words.replace(&format!("{}/", store.display()), "")));
            }
        }
    }
    None
}

/// How many syncs were tried, how many were missed, and how the first was.
type Tried = (usize, usize, Option<(String, String)>);

/// Takes out the syncs of one purpose, one after the other: of barriers each, of others until one is missed.
fn take_out(recorded: &Recorded, purpose: &str, syncs: &[usize]) -> Tried {
    let mut tried: Tried = (0, 0, None);
    let is_barrier = purpose == BARRIER;
    let is_redundant = REDUNDANT.iter().any(|(redundant, _)| *redundant == purpose);
    for at in syncs {
        if (!is_barrier && tried.1 > 0) || (is_redundant && tried.0 >= REDUNDANT_MAX) {
            break;
        }
        let shown = shows(recorded, *at, if is_barrier { WITHIN_BARRIER } else { WITHIN });
        tried.0 += 1;
        tried.1 += usize::from(shown.is_some());
        tried.2 = tried.2.or(shown);
    }
    tried
}

#[test]
fn each_sync_that_is_taken_out_is_missed() {
    let scenario = scenarios::several_runs();
    let recorded = Recorded::new(&scenario, &uncut(&scenario).1);
    let mut purposes = BTreeMap::<String, Vec<usize>>::new();
    for at in (0..recorded.told.len()).filter(|at| recorded.told[*at].synced().is_some()) {
        purposes.entry(purpose(&recorded.told, at)).or_default().push(at);
    }
    let purposes: Vec<_> = purposes.into_iter().collect();
    let tried = for_each(&purposes, |(purpose, syncs)| take_out(&recorded, purpose, syncs));
    let mut table = "| synced | there are | taken out | missed | how the first is missed, or why none is |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    for ((purpose, syncs), (count, missed, first)) in purposes.iter().zip(&tried) {
        if let Some((image, wrong)) = first {
            println!("{purpose}: {image}: {wrong}");
        }
        let reason = REDUNDANT.iter().find(|(redundant, _)| redundant == purpose).map(|(_, reason)| *reason);
        let how = first.as_ref().map(|(_, wrong)| wrong.as_str()).or(reason).unwrap_or_default();
        table += &format!("| {purpose} | {} | {count} | {missed} | {how} |\n", syncs.len());
    }
    print!("{table}");
    let never = purposes.iter().zip(&tried).filter(|(_, (_, missed, _))| *missed == 0);
    let is_explained = |purpose: &&str| REDUNDANT.iter().any(|(redundant, _)| redundant == purpose);
    let unexplained =
        never.map(|((purpose, _), _)| purpose.as_str()).filter(|purpose| !is_explained(purpose));
    assert_eq!(unexplained.collect::<Vec<_>>(), Vec::<&str>::new(), "are missed by no image");
    // A footer may be missing: it is written again. The record of a clean close is told to nobody.
    let barriers = purposes.iter().zip(&tried).find(|((purpose, _), _)| purpose == BARRIER);
    let unmissed = barriers.map_or(0, |(_, (count, missed, _))| count - missed);
    let footers = recorded.told.iter().filter(|told| matches!(told, Told::SetLen(..))).count();
    let most = footers + scenario.stages.len();
    assert!(unmissed <= most, "{unmissed} barriers are not missed, and {most} are footers or of a close");
    assert_counted("docs/durability.md", "syncs", &table);
}
