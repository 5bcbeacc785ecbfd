//! Each row of the table of instants, by name.
//!
//! Owns one claim a test. Rows on response spools, supervised calls and result files are shown where those live.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::{AgentEvent, EventReader, Place, Rest};
use model::RunId;
use model::message::Message;
use serde_json::json;
use tests::harness::ALL_HOOKS;
use tests::life::{Machine, Worked, finish, until_heard, view};
use tests::power::{Act, Blow, Power};
use tests::scenario::{Scenario, call};
use tests::world::{Answer, Ask, World};

use crate::check::{Seen, compare};
use crate::enumerate::uncut;
use crate::scenarios;

/// A scenario in a directory of its own, life after life.
struct Story {
    scenario: Scenario,
    dir: tempfile::TempDir,
    world: Arc<World>,
    done: usize,
}

impl Story {
    fn new(scenario: Scenario) -> Self {
        Self { scenario, dir: tempfile::tempdir().unwrap(), world: World::new(), done: 0 }
    }

    /// A life that dies.
    fn dies(&mut self, at: usize, blow: Blow) -> Machine {
        let machine = Machine::new(Power::failing(at, blow));
        let worked = machine.work(&self.scenario, &self.world, self.dir.path(), &mut self.done);
        assert_eq!(worked, Worked::Died);
        machine
    }

    /// A life that ends well.
    fn ends(&mut self) -> Seen {
        let machine = Machine::new(Power::steady());
        let worked = machine.work(&self.scenario, &self.world, self.dir.path(), &mut self.done);
        assert_eq!(worked, Worked::Finished);
        let seen = Seen::new(&self.world, self.dir.path());
        assert_eq!(seen.broken, Vec::<String>::new());
        seen
    }

    /// The run that was accepted.
    fn run(&self) -> RunId {
        match self.world.requests()[0].answer {
            Answer::Accepted(run) => run,
            Answer::None | Answer::Ended => panic!("nothing was accepted"),
        }
    }

    /// The texts of the transcript, as the journal has them now.
    fn texts(&self) -> Vec<String> {
        let mut reader = EventReader::open(view(self.dir.path()).unwrap(), self.run(), None).unwrap();
        let mut texts = Vec::new();
        for stamped in reader.read().unwrap() {
            if let AgentEvent::MessageEnd { message } = stamped.event {
                texts.push(message.joined_text());
            }
        }
        texts
    }
}

/// Number of the nth act of a kind in the uncut run.
fn nth(scenario: &Scenario, act: Act, n: usize) -> usize {
    let (_, acts) = uncut(scenario);
    let mut found = (0..acts.len()).filter(|at| acts[*at] == act);
    found.nth(n).unwrap()
}

/// Number of the act that writes the submission: the second after an open, which comes after the settings that it names.
fn first_commit(scenario: &Scenario) -> usize {
    let (dir, world) = (tempfile::tempdir().unwrap(), World::new());
    let machine = Machine::new(Power::steady());
    let opened = machine.live(&world, async || machine.open(scenario, &world, dir.path()).map(drop));
    assert_eq!(opened, Worked::Finished);
    machine.power.acts().len() + 1
}

fn tool(name: &str) -> Scenario {
    Scenario::new("tool", json!([{"calls": [call(name, json!({"n": 1}))]}, {"text": "done"}]))
}

/// The runs that an engine finds when it opens.
fn runs_found(story: &Story) -> usize {
    let (machine, mut found) = (Machine::new(Power::steady()), 0);
    let worked = machine.live(&story.world, async || {
        let opened = machine.open(&story.scenario, &story.world, story.dir.path())?;
        found = opened.engine.live_runs().map_err(|error| error.to_string())?.len();
        opened.close(&story.world).await
    });
    assert_eq!(worked, Worked::Finished);
    found
}

#[test]
fn a_prompt_before_its_barrier_was_not_acknowledged() {
    let mut story = Story::new(scenarios::plain());
    let sync = first_commit(&story.scenario) + 1;
    story.dies(sync, Blow::Before).disk.lose_unsynced();
    assert_eq!(story.world.requests()[0].answer, Answer::None);
    assert_eq!(runs_found(&story), 0);
    assert_eq!(story.ends().ends.len(), 1);
}

#[test]
fn a_prompt_after_its_barrier_is_found_by_its_key() {
    let mut story = Story::new(scenarios::plain());
    let sync = first_commit(&story.scenario) + 1;
    story.dies(sync, Blow::After).disk.lose_unsynced();
    assert_eq!(story.world.requests()[0].answer, Answer::None);
    assert_eq!(runs_found(&story), 1);
    // The harness asks twice with the key, and insists on one run.
    assert_eq!(story.ends().ends.len(), 1);
}

#[test]
fn an_injected_message_is_in_the_inbox_or_in_the_transcript() {
    let (_, acts) = uncut(&scenarios::sequential_steered());
    for at in first_commit(&scenarios::sequential_steered()) + 4..acts.len() {
        let mut story = Story::new(scenarios::sequential_steered());
        story.dies(at, Blow::After);
        let replayed = engine::replay(&*view(story.dir.path()).unwrap(), story.run(), None).unwrap();
        let taken = replayed.state.unwrap().core.cursors.steering;
        let shown =
            story.texts().iter().filter(|text| ["quickly", "rather this"].contains(&text.as_str())).count();
        assert_eq!(taken as usize, shown, "at {at}");
    }
}

#[test]
fn a_model_call_in_flight_is_made_again_as_the_same_attempt() {
    let mut story = Story::new(scenarios::plain());
    let asked = nth(&story.scenario, Act::Effect, 0);
    story.dies(asked, Blow::After);
    let seen = story.ends();
    let calls = seen.world.asked();
    assert_eq!((calls.len(), &calls[0]), (2, &calls[1]));
    let core = &seen.ends[0].state.core;
    assert_eq!((core.spent.model_calls, core.spent.calls_lost, core.retries.charges), (2, 1, 1));
}

/// Every hook, one after the other.
fn hooks_in_line() -> Scenario {
    let calls = [call("charge", json!({"n": 1}))];
    let turns = json!([{"calls": calls}, {"text": "draft"}, {"text": "done"}]);
    Scenario { hooks: ALL_HOOKS.to_vec(), ..Scenario::new("hooks in line", turns) }
}

#[test]
fn a_hook_that_has_run_and_is_not_committed_runs_again_with_its_key() {
    let (before, acts) = uncut(&hooks_in_line());
    let mut repeated = BTreeSet::new();
    for at in (0..acts.len()).filter(|at| acts[*at] == Act::Effect) {
        let mut story = Story::new(hooks_in_line());
        story.dies(at, Blow::After);
        let asked = story.world.hooks();
        let mut expected = before.world.hooks();
        let was_hook = asked.len() > repeated.len();
        if was_hook {
            let newest = asked[asked.len() - 1];
            expected.insert(asked.len(), newest);
            repeated.insert(newest.1);
        }
        assert_eq!(story.ends().world.hooks(), expected, "at {at}");
    }
    let kinds: BTreeSet<_> = repeated.iter().map(|call| call.hook).collect();
    assert_eq!((kinds.len(), repeated.len()), (ALL_HOOKS.len(), before.world.hooks().len()));
}

#[test]
fn a_stage_that_is_committed_is_not_asked_again() {
    let (before, acts) = uncut(&hooks_in_line());
    for at in (1..acts.len()).filter(|at| acts[*at] == Act::Write && acts[*at - 1] == Act::Effect) {
        let mut story = Story::new(hooks_in_line());
        story.dies(at, Blow::After);
        assert_eq!(story.ends().world.hooks(), before.world.hooks(), "at {at}");
    }
}

#[test]
fn a_planned_call_did_not_run_and_runs_once() {
    let scenario = scenarios::sequential_steered();
    let mut story = Story::new(scenario.clone());
    // The model, then the first call: the other two are planned.
    story.dies(nth(&scenario, Act::Effect, 1), Blow::After);
    assert_eq!(story.world.deeds().len(), 1);
    let tools: Vec<String> = story.ends().world.deeds().into_iter().map(|deed| deed.tool).collect();
    assert_eq!(tools, ["look", "look", "charge"]);
}

#[test]
fn a_started_call_is_settled_by_its_class() {
    // Deeds after a death before the effect, and after one behind it; whether a person was asked.
    let table =
        [("look", [1, 2], false), ("charge", [1, 2], false), ("post", [1, 1], true), ("ship", [1, 1], false)];
    for (name, deeds, is_asked) in table {
        for (blow, deeds) in [Blow::Before, Blow::After].into_iter().zip(deeds) {
            let mut story = Story::new(tool(name));
            let at = nth(&story.scenario, Act::Effect, 1);
            story.dies(at, blow);
            let seen = story.ends();
            let asked = seen.world.requests().iter().any(|request| matches!(request.ask, Ask::Resolve(..)));
            assert_eq!((seen.world.deeds().len(), asked), (deeds, is_asked), "{name} {blow:?}");
            let keys: BTreeSet<_> = seen.world.deeds().into_iter().map(|deed| deed.key).collect();
            assert_eq!(keys.len(), 1, "{name} {blow:?}");
        }
    }
}

#[test]
fn results_of_siblings_stand() {
    let calls = [1, 2, 3].map(|n| call("look", json!({ "n": n })));
    let scenario = Scenario::new("siblings", json!([{"calls": calls}, {"text": "done"}]));
    let (_, acts) = uncut(&scenario);
    let mut mixed = 0;
    for at in nth(&scenario, Act::Effect, 1)..nth(&scenario, Act::Effect, 4) {
        let mut story = Story::new(scenario.clone());
        story.dies(at, Blow::After);
        let run = story.run();
        let state = engine::replay(&*view(story.dir.path()).unwrap(), run, None).unwrap().state.unwrap();
        let Some(batch) = state.batch else { continue };
        let has_result: Vec<bool> = batch.calls.iter().map(|call| call.status.is_ended()).collect();
        mixed += usize::from(has_result.contains(&true) && has_result.contains(&false));
        let deeds = |story: &Story| [0, 1, 2].map(|n| story.world.deeds_of(&format!("{run}/0.{n}")));
        let before = deeds(&story);
        story.ends();
        let more: Vec<usize> =
            deeds(&story).iter().zip(before).map(|(after, before)| after - before).collect();
        let expected: Vec<usize> = has_result.iter().map(|has_result| usize::from(!has_result)).collect();
        assert_eq!(more, expected, "at {at} of {}", acts.len());
    }
    assert!(mixed > 0);
}

#[test]
fn steering_at_any_moment_is_delivered_or_refused() {
    let (_, acts) = uncut(&scenarios::one_tool());
    let (mut delivered, mut refused) = (0, 0);
    for at in first_commit(&scenarios::one_tool()) + 2..acts.len() {
        let mut story = Story::new(scenarios::one_tool());
        story.dies(at, Blow::After);
        let run = story.run();
        let machine = Machine::new(Power::steady());
        let worked = machine.live(&story.world, async || {
            let opened = machine.open(&story.scenario, &story.world, story.dir.path())?;
            until_heard(&story.world, "steer", Ask::Steer(run, "rather this".to_owned())).await;
            opened.engine.resume(None).map_err(|error| error.to_string())?;
            finish(&story.world, &opened.engine.handle(run)).await?;
            opened.close(&story.world).await
        });
        assert_eq!(worked, Worked::Finished, "at {at}");
        let times = story.texts().iter().filter(|text| *text == "rather this").count();
        match story.world.requests().last().map(|request| request.answer.clone()) {
            Some(Answer::Accepted(_)) => {
                assert_eq!(times, 1, "at {at}");
                delivered += 1;
            }
            answer => {
                assert_eq!((answer, times), (Some(Answer::Ended), 0), "at {at}");
                refused += 1;
            }
        }
    }
    assert!(delivered > 0 && refused > 0, "{delivered} delivered, {refused} refused");
}

/// Time from submission to the end when the process dies half a second into a wait of two, and is away for so long.
fn time_with_absence_ms(absence_ms: i64) -> u64 {
    let turns = json!([{"text": "done", "fail": [{"kind": "overloaded"}]}]);
    let mut story = Story::new(Scenario::new("backoff", turns));
    let start = story.world.now();
    let machine = Machine::new(Power::steady());
    let died = machine.live(&story.world, async || {
        let opened = machine.open(&story.scenario, &story.world, story.dir.path())?;
        let ask = Ask::Submit(Box::new(story.scenario.jobs[0].clone()));
        until_heard(&story.world, "submit first", ask).await;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        machine.power.cut();
        drop(opened);
        std::future::pending().await
    });
    assert_eq!((died, story.world.now()), (Worked::Died, start.plus(500)));
    story.world.sleep_ms(absence_ms);
    assert_eq!(story.ends().world.asked().len(), 2);
    story.world.now().since(start)
}

#[test]
fn a_backoff_waits_for_what_is_left_of_it() {
    assert_eq!(time_with_absence_ms(700), 2_000);
    assert_eq!(time_with_absence_ms(5_000), 5_500);
}

#[test]
fn an_end_that_nobody_saw_is_served_from_the_journal() {
    let scenario = scenarios::plain();
    let (_, acts) = uncut(&scenario);
    let effect = nth(&scenario, Act::Effect, 0);
    let done = (effect..acts.len()).find(|at| acts[*at] == Act::Sync).unwrap();
    let mut story = Story::new(scenario);
    story.dies(done, Blow::After).disk.lose_unsynced();
    let mut reader = EventReader::open(view(story.dir.path()).unwrap(), story.run(), None).unwrap();
    let events = reader.read().unwrap();
    let before_last: Option<Place> = events.iter().rev().nth(1).and_then(|event| event.place);
    let mut rest = EventReader::open(view(story.dir.path()).unwrap(), story.run(), before_last).unwrap();
    let names: Vec<_> = rest.read().unwrap().iter().map(|event| event.event.name()).collect();
    assert_eq!((names, rest.has_ended()), (vec!["agent_end"], true));
    assert_eq!(story.ends().world.asked().len(), 1);
}

#[test]
fn every_step_of_a_recovery_is_a_commit() {
    let scenario = tool("post");
    let (before, _) = uncut(&scenario);
    let at = nth(&scenario, Act::Effect, 1);
    for second in 0.. {
        let mut story = Story::new(scenario.clone());
        story.dies(at, Blow::After);
        let machine = Machine::new(Power::failing(second, Blow::After));
        let worked = machine.work(&scenario, &story.world, story.dir.path(), &mut story.done);
        if worked == Worked::Finished {
            break;
        }
        let seen = story.ends();
        assert_eq!(compare(&before, &seen, 2, scenario.same), Vec::<String>::new(), "at {second}");
        assert_eq!(seen.world.deeds().len(), 1, "at {second}");
    }
}

#[test]
fn a_parked_run_rests_in_the_next_engine_too() {
    let mut story = Story::new(scenarios::approval());
    // The model, the hooks of both calls, the call that needs nobody; the rest is closing.
    let (_, acts) = uncut(&story.scenario);
    let last_effect = (0..acts.len()).filter(|at| acts[*at] == Act::Effect).nth(3).unwrap();
    let parked = (last_effect..acts.len()).find(|at| acts[*at] == Act::Sync).unwrap();
    story.dies(parked, Blow::After);
    let machine = Machine::new(Power::steady());
    let worked = machine.live(&story.world, async || {
        let opened = machine.open(&story.scenario, &story.world, story.dir.path())?;
        let run = opened.engine.handle(story.run());
        let rest = run.outcome().await.map_err(|error| error.to_string())?;
        assert_eq!(rest, Rest::Parked(model::ParkReason::Approval));
        opened.close(&story.world).await
    });
    assert_eq!(worked, Worked::Finished);
    let seen = story.ends();
    let said: Vec<_> = seen.ends[0].transcript.iter().map(Message::joined_text).collect();
    assert_eq!(said, ["do first", "", "post 1", "charge 2", "done"]);
}
