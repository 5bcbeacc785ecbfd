//! The suite itself: each thing that keeps the promises is taken away, and the checker must say so.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use store::Store;
use tests::life::{Machine, Worked, finish};
use tests::power::{Blow, Power};
use tests::scenario::{Scenario, call};
use tests::stores::Pace;
use tests::world::World;

use crate::check::{Seen, compare};
use crate::enumerate::uncut;
use crate::scenarios;

/// Cuts a scenario at every act on a machine that `spoil` has broken, with all that its disk had not synced gone.
/// Answers everything that the checker says.
fn told(scenario: &Scenario, spoil: impl Fn(Machine) -> Machine) -> Vec<String> {
    let (uncut, acts) = uncut(scenario);
    let mut told = Vec::new();
    for at in 0..acts.len() {
        let (dir, world, mut done) = (tempfile::tempdir().unwrap(), World::new(), 0);
        let machine = spoil(Machine::new(Power::failing(at, Blow::After)));
        if machine.work(scenario, &world, dir.path(), &mut done) != Worked::Died {
            continue;
        }
        machine.disk.lose_unsynced();
        let machine = Machine::new(Power::steady()).boot(2);
        match machine.work(scenario, &world, dir.path(), &mut done) {
            Worked::Finished => {
                told.extend(compare(&uncut, &Seen::new(&world, dir.path()), 1, scenario.same));
            }
            worked => told.push(format!("{worked:?}")),
        }
    }
    told
}

fn says(told: &[String], words: &str) -> bool {
    told.iter().any(|claim| claim.contains(words))
}

#[test]
fn an_honest_machine_is_not_blamed() {
    assert_eq!(told(&scenarios::one_tool(), |machine| machine), Vec::<String>::new());
}

#[test]
fn a_sync_that_does_nothing_is_noticed() {
    let told = told(&scenarios::one_tool(), Machine::lying);
    assert!(says(&told, "had its effect 2 times"), "{told:#?}");
    assert!(says(&told, "submit first was answered with") || says(&told, "model calls after"), "{told:#?}");
}

#[test]
fn a_lost_acknowledgement_is_noticed() {
    let told = told(&scenarios::follow_up(), Machine::lying);
    assert!(says(&told, "was acknowledged and stands 0 times"), "{told:#?}");
}

#[test]
fn an_effect_before_its_commit_is_noticed() {
    let told = told(&scenarios::one_tool(), |machine| machine.pace(Pace::Hasty));
    assert!(says(&told, "had its effect 2 times"), "{told:#?}");
}

/// A second engine takes the run over while the first one waits for its model. Answers how that ended, and
/// how often the tool ran.
fn two_owners(pace: Pace) -> (Worked, usize) {
    let args = json!({"n": 1, "ms": 200});
    let turns = json!([{"calls": [call("post", args)], "delay_ms": 100}, {"text": "done"}]);
    let scenario = Scenario::new("two owners", turns);
    let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
    let machine = Machine::new(Power::steady()).pace(pace);
    let worked = machine.live(&world, async || {
        let first = machine.open(&scenario, &world, dir.path())?;
        let run = first.engine.submit(scenario.jobs[0].clone()).await.map_err(|error| error.to_string())?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let store = Arc::clone(&first.store) as Arc<dyn Store>;
        let second = machine.engine(&scenario, &world, dir.path(), store)?;
        second.resume(None).map_err(|error| error.to_string())?;
        finish(&world, &second.handle(run.id)).await?;
        second.stop().await;
        first.close(&world).await
    });
    (worked, world.deeds().len())
}

#[test]
fn a_missing_fence_is_noticed() {
    assert_eq!(two_owners(Pace::Stepwise), (Worked::Finished, 1));
    // Each takes the run from the other, for ever.
    assert_eq!(two_owners(Pace::Unfenced).0, Worked::Failed("it never came to rest".to_owned()));
}
