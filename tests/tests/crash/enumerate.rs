//! Cuts every scenario before, in and after each of its acts, and again while it recovers.
//!
//! Owns the count. A cut is a death of the process (what was written stays) or of its machine (what was not synced goes).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tests::documented::assert_counted;
use tests::life::{Machine, Worked};
use tests::power::{Act, Blow, Power};
use tests::scenario::Scenario;
use tests::stores::Pace;
use tests::world::World;

use crate::check::{Seen, compare};
use crate::scenarios;

/// Fewer cuts than this mean that scenarios have become empty.
const CUTS_MIN: usize = 2_000;
/// Cuts under way at once.
const THREADS: usize = 8;

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    Process,
    Machine,
}

/// One cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) at: usize,
    pub(crate) blow: Blow,
    pub(crate) death: Death,
}

/// The uncut run of a scenario, and its acts.
pub(crate) fn uncut(scenario: &Scenario) -> (Seen, Vec<Act>) {
    let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
    let machine = Machine::new(Power::steady());
    let worked = machine.work(scenario, &world, dir.path(), &mut 0);
    assert_eq!(worked, Worked::Finished, "{}", scenario.name);
    let seen = Seen::new(&world, dir.path());
    assert_eq!(seen.broken, Vec::<String>::new(), "{}", scenario.name);
    (seen, machine.power.acts())
}

/// The cuts at one act.
fn cuts_at(at: usize, act: Act) -> Vec<Cut> {
    let process = |blow| Cut { at, blow, death: Death::Process };
    let machine = |blow| Cut { at, blow, death: Death::Machine };
    match act {
        Act::Write => {
            vec![process(Blow::Before), process(Blow::Torn), process(Blow::After), machine(Blow::After)]
        }
        Act::Sync => {
            vec![process(Blow::Before), machine(Blow::Before), process(Blow::After), machine(Blow::After)]
        }
        Act::Make | Act::SetLen | Act::Rename | Act::Remove | Act::Effect => {
            vec![process(Blow::Before), process(Blow::After)]
        }
    }
}

/// Runs a scenario with one death after the other, then to its end. Answers what is left, and the deaths there were.
pub(crate) fn run_with(
    scenario: &Scenario,
    cuts: &[Cut],
    pace: Pace,
) -> Result<(Seen, usize, Vec<Act>), String> {
    let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
    let (mut done, mut deaths, mut boot) = (0, 0, 1);
    for (n, cut) in cuts.iter().enumerate() {
        let machine = Machine::new(Power::failing(cut.at, cut.blow)).boot(boot).pace(pace);
        match machine.work(scenario, &world, dir.path(), &mut done) {
            Worked::Died => deaths += 1,
            Worked::Finished => break,
            Worked::Failed(words) => return Err(words),
        }
        if cut.death == Death::Machine {
            machine.disk.lose_unsynced();
            boot += 1;
        }
        if (cut.at + n) % 2 == 0 {
            wipe_state(dir.path());
        }
    }
    let machine = Machine::new(Power::steady()).boot(boot).pace(pace);
    match machine.work(scenario, &world, dir.path(), &mut done) {
        Worked::Finished => Ok((Seen::new(&world, dir.path()), deaths, machine.power.acts())),
        worked => Err(format!("the last life: {worked:?}")),
    }
}

/// sled can always be deleted.
fn wipe_state(dir: &Path) {
    // It may not be there yet.
    let _ = std::fs::remove_dir_all(dir.join("state"));
    let _ = std::fs::remove_file(dir.join("state.mark"));
}

/// Cuts a scenario; answers the acts of its recovery, or what is broken.
fn cut(scenario: &Scenario, uncut: &Seen, cuts: &[Cut]) -> Result<Vec<Act>, String> {
    let (seen, deaths, acts) = run_with(scenario, cuts, Pace::Stepwise)
        .map_err(|words| format!("{} cut at {cuts:?}: {words}", scenario.name))?;
    let broken = compare(uncut, &seen, deaths, scenario.same);
    if broken.is_empty() {
        return Ok(acts);
    }
    Err(format!("{} cut at {cuts:?}:\n  {}", scenario.name, broken.join("\n  ")))
}

/// A first cut of a scenario; `nth` of all.
struct Task<'a> {
    scenario: &'a Scenario,
    uncut: &'a Seen,
    nth: usize,
    first: Cut,
}

impl Task<'_> {
    /// Cuts once; for every 29th cut also its recovery, at every fifth act. Answers both counts.
    fn run(&self) -> Result<(usize, usize), String> {
        let recovery = cut(self.scenario, self.uncut, &[self.first])?;
        if !self.nth.is_multiple_of(29) {
            return Ok((1, 0));
        }
        let mut twice = 0;
        for (at, act) in recovery.iter().enumerate().skip(self.nth / 29 % 5).step_by(5) {
            let seconds = cuts_at(at, *act);
            cut(self.scenario, self.uncut, &[self.first, seconds[(self.nth + at) % seconds.len()]])?;
            twice += 1;
        }
        Ok((1, twice))
    }
}

/// Does `work` for every item, on several threads: most of the time goes by waiting for the disk. Keeps the order.
pub(crate) fn for_each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let result = work(item);
                    results.lock().unwrap().insert(at, result);
                }
            });
        }
    });
    results.into_inner().unwrap().into_values().collect()
}

#[test]
fn every_act_of_every_scenario_may_be_the_last() {
    let scenarios = scenarios::all();
    let uncuts = for_each(&scenarios, uncut);
    let mut tasks = Vec::new();
    for (scenario, (uncut, acts)) in scenarios.iter().zip(&uncuts) {
        let firsts = acts.iter().enumerate().flat_map(|(at, act)| cuts_at(at, *act));
        tasks.extend(firsts.enumerate().map(|(nth, first)| Task { scenario, uncut, nth, first }));
    }
    let (mut counts, mut broken) = (BTreeMap::<&str, [usize; 3]>::new(), Vec::new());
    for (task, result) in tasks.iter().zip(for_each(&tasks, Task::run)) {
        let (once, twice) = result.as_ref().copied().unwrap_or_default();
        let [cuts, of_recoveries, wrong] = counts.entry(task.scenario.name).or_default();
        (*cuts, *of_recoveries) = (*cuts + once, *of_recoveries + twice);
        *wrong += usize::from(result.is_err());
        broken.extend(result.err());
    }
    let sum = |nth: usize| counts.values().map(|counts| counts[nth]).sum();
    let all = ("all", [sum(0), sum(1), sum(2)]);
    let mut table = "| scenario | cuts | cuts of recoveries | went wrong |\n|---|---|---|---|\n".to_owned();
    for (name, [cuts, of_recoveries, wrong]) in
        counts.iter().map(|(name, counts)| (*name, *counts)).chain([all])
    {
        table += &format!("| {name} | {cuts} | {of_recoveries} | {wrong} |\n");
    }
    print!("{table}");
    broken.truncate(10);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let total = all.1[0] + all.1[1];
    assert!(total >= CUTS_MIN, "only {total} cuts");
    assert_counted("docs/durability.md", "cuts", &table);
}

#[test]
fn commits_that_share_a_group_may_be_cut_too() {
    let scenarios = [scenarios::one_tool(), scenarios::three_parallel()];
    let mut tasks = Vec::new();
    for (scenario, (uncut, acts)) in scenarios.iter().zip(for_each(&scenarios, uncut)) {
        let uncut = Arc::new(uncut);
        for (at, blow) in (0..acts.len()).zip([Blow::Torn, Blow::After, Blow::Before].into_iter().cycle()) {
            let cut = Cut { at, blow, death: if at % 2 == 0 { Death::Process } else { Death::Machine } };
            tasks.push((scenario, Arc::clone(&uncut), cut));
        }
    }
    // How commits fall into groups is up to the threads: a cut may come a little earlier or later, or not at all.
    let broken = for_each(&tasks, |(scenario, uncut, cut)| match run_with(scenario, &[*cut], Pace::Free) {
        Ok((seen, deaths, _)) => compare(uncut, &seen, deaths, scenario.same),
        Err(words) => vec![words],
    });
    let broken: Vec<String> = broken.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
