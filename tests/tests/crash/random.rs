//! Random jobs with deaths at random acts: they end as without any.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tests::life::{Machine, Worked};
use tests::power::{Act, Blow, Power};
use tests::scenario::{Early, Same, Scenario, call, job};
use tests::tools::TOOLS;
use tests::world::World;

use crate::check::{Seen, compare};
use crate::enumerate::{Cut, Death, run_with, uncut};
use tests::stores::Pace;

/// Turns after those that call tools.
const TURNS_MORE: usize = 12;

/// A call of any tool. Only what may run again talks to the client: its words do not depend on who asks.
fn any_call() -> impl Strategy<Value = Value> {
    let plain = (select(TOOLS.to_vec()), 0..4u8, any::<bool>()).prop_map(|((name, _), n, fails)| {
        call(name, json!({"n": n, "fail": fails && name != "ship" && name != "post"}))
    });
    let talking = (select(vec!["steer", "follow_up"]), 0..1000u32)
        .prop_map(|(then, n)| call("look", json!({"n": n, "then": then, "say": format!("{then} {n}")})));
    prop_oneof![4 => plain, 1 => talking]
}

fn any_turn() -> impl Strategy<Value = Value> {
    let fails = select(vec![
        json!([]),
        json!([]),
        json!([{"kind": "silent"}]),
        json!([{"kind": "server_error"}]),
        json!([{"kind": "empty"}]),
    ]);
    (prop::collection::vec(any_call(), 0..4), fails)
        .prop_map(|(calls, fails)| json!({"text": "so", "calls": calls, "fail": fails}))
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let early = select(vec![vec![], vec![Early::Steer("quickly")], vec![Early::FollowUp("also this")]]);
    (prop::collection::vec(any_turn(), 1..4), early, any::<bool>(), any::<bool>()).prop_map(
        |(mut turns, early, is_sequential, is_cancelled)| {
            if is_cancelled {
                turns.push(json!({"calls": [call("look", json!({"n": 9, "then": "cancel"}))]}));
            }
            // Each message of the client may take a turn of its own.
            turns.extend(vec![json!({"text": "done"}); TURNS_MORE]);
            let execution = is_sequential.then_some(engine::config::ToolExecution::Sequential);
            let jobs = vec![engine::Job { tool_execution: execution, ..job("first") }];
            let same = if is_cancelled { Same::Outcome } else { Same::Transcript };
            Scenario { jobs, early, same, ..Scenario::new("random", json!(turns)) }
        },
    )
}

fn any_cut() -> impl Strategy<Value = (prop::sample::Index, Blow, Death)> {
    let death = select(vec![
        (Blow::Before, Death::Process),
        (Blow::After, Death::Process),
        (Blow::Torn, Death::Process),
        (Blow::Before, Death::Machine),
        (Blow::After, Death::Machine),
    ]);
    (any::<prop::sample::Index>(), death).prop_map(|(at, (blow, death))| (at, blow, death))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_job_ends_as_if_nothing_had_died(
        scenario in any_scenario(),
        cuts in prop::collection::vec(any_cut(), 1..4),
    ) {
        let (uncut, acts) = uncut(&scenario);
        let cuts: Vec<Cut> =
            cuts.iter().map(|(at, blow, death)| Cut { at: at.index(acts.len()), blow: *blow, death: *death }).collect();
        let (seen, deaths, _) = run_with(&scenario, &cuts, Pace::Stepwise).map_err(TestCaseError::fail)?;
        prop_assert_eq!(compare(&uncut, &seen, deaths, scenario.same), Vec::<String>::new());
    }

    #[test]
    fn a_random_job_goes_on_after_any_fault(
        scenario in any_scenario(),
        at in any::<prop::sample::Index>(),
        kind in select(vec![std::io::ErrorKind::StorageFull, std::io::ErrorKind::Other]),
        more in 0..9usize,
    ) {
        let scenario = Scenario { early: Vec::new(), ..scenario };
        let (uncut, acts) = uncut(&scenario);
        let disk: Vec<usize> = (0..acts.len()).filter(|at| acts[*at] != Act::Effect).collect();
        let machine = Machine::new(Power::failing(disk[at.index(disk.len())], Blow::Fault(kind, more)));
        let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
        prop_assert_eq!(machine.work(&scenario, &world, dir.path(), &mut 0), Worked::Finished);
        let seen = Seen::new(&world, dir.path());
        prop_assert_eq!(compare(&uncut, &seen, 0, scenario.same), Vec::<String>::new());
    }
}
