//! A disk that fails for a while and recovers: the run goes on by itself, in the same process.

use std::io::ErrorKind;

use tests::documented::{assert_counted, shown};
use tests::life::{Machine, Worked};
use tests::power::{Act, Blow, Power};
use tests::scenario::Scenario;
use tests::world::World;

use crate::check::{Seen, compare};
use crate::enumerate::{for_each, uncut};
use crate::scenarios;

/// The ways in which an act of the disk fails: once, which the store makes good, or for longer, which the run meets.
fn faults_at(act: Act) -> Vec<Blow> {
    let fails = vec![
        Blow::Fault(ErrorKind::Other, 0),
        Blow::Fault(ErrorKind::StorageFull, 7),
        Blow::Fault(ErrorKind::ReadOnlyFilesystem, 4),
        Blow::Fault(ErrorKind::Other, 4),
    ];
    match act {
        Act::Write => [fails, vec![Blow::Short]].concat(),
        Act::Make | Act::SetLen | Act::Sync | Act::Rename | Act::Remove => fails,
        Act::Effect => Vec::new(),
    }
}

/// Runs a scenario with one fault; answers what is broken.
fn broken_by(scenario: &Scenario, uncut: &Seen, at: usize, blow: Blow) -> Vec<String> {
    let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
    let machine = Machine::new(Power::failing(at, blow));
    let broken = match machine.work(scenario, &world, dir.path(), &mut 0) {
        Worked::Finished => compare(uncut, &Seen::new(&world, dir.path()), 0, scenario.same),
        worked => vec![format!("{worked:?}")],
    };
    broken.into_iter().map(|words| format!("{} with {blow:?} at {at}: {words}", scenario.name)).collect()
}

#[test]
fn a_disk_that_fails_for_a_while_loses_nothing_and_doubles_nothing() {
    // What is asked before a run moves comes later if the disk refuses it at first.
    let scenarios: Vec<_> =
        scenarios::all().into_iter().map(|scenario| Scenario { early: Vec::new(), ..scenario }).collect();
    let uncuts = for_each(&scenarios, uncut);
    let mut tasks = Vec::new();
    for (scenario, (uncut, acts)) in scenarios.iter().zip(&uncuts) {
        for (at, act) in acts.iter().enumerate() {
            tasks.extend(faults_at(*act).into_iter().map(|blow| (scenario, uncut, at, blow)));
        }
    }
    let broken = for_each(&tasks, |(scenario, uncut, at, blow)| broken_by(scenario, uncut, *at, *blow));
    let broken: Vec<String> = broken.into_iter().flatten().collect();
    let found =
        format!("{} faults in {} scenarios, {} claims broken", tasks.len(), scenarios.len(), broken.len());
    println!("{found}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_counted("docs/durability.md", "faults under the engine", &shown(&found));
}
