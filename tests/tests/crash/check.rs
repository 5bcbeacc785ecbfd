//! What must hold at the end, however often the process died on the way.
//!
//! Owns the claims. Each broken one is a sentence; the suite of the checker itself counts on that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use engine::{AgentEvent, EventReader, query, replay};
use model::guard::retry::{Retries, Streak};
use model::input::RecoveryClass;
use model::{Message, Millis, Outcome, Phase, RunId, RunState};
use store::{Store, verify};
use tests::life::view;
use tests::scenario::Same;
use tests::world::{Answer, Ask, Deed, World};

/// Start of a result that says that nobody saw the call end.
const UNSEEN: &str = "The engine stopped while this call ran";

/// The end of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunEnd {
    pub(crate) run: RunId,
    pub(crate) state: RunState,
    pub(crate) transcript: Vec<Message>,
    /// Names of its events, in order.
    pub(crate) events: Vec<&'static str>,
}

/// Reads the end of every run from the journal alone. Broken claims about the journal itself go to `broken`.
pub(crate) fn ends(dir: &Path, world: &World, broken: &mut Vec<String>) -> Vec<RunEnd> {
    match verify(dir) {
        Ok(report) if report.findings.is_empty() && report.tail.is_none() => {}
        Ok(report) => broken.push(format!("verify found {:?}, tail {:?}", report.findings, report.tail)),
        Err(error) => broken.push(format!("verify failed: {error}")),
    }
    let store = match view(dir) {
        Ok(store) => store,
        Err(error) => {
            broken.push(format!("the journal cannot be read: {error}"));
            return Vec::new();
        }
    };
    let mut runs = Vec::new();
    for request in world.requests() {
        if let (Ask::Submit(_), Answer::Accepted(run)) = (&request.ask, &request.answer) {
            match end(&store, *run, broken) {
                Ok(end) => runs.push(end),
                Err(error) => broken.push(format!("lost: run {run}: {error}")),
            }
        }
    }
    runs
}

fn end(store: &Arc<dyn Store>, run: RunId, broken: &mut Vec<String>) -> Result<RunEnd, String> {
    let replayed = replay(&**store, run, None).map_err(|error| error.to_string())?;
    if let Some(difference) = &replayed.difference {
        broken.push(format!("replay differs: {difference:?}"));
    }
    let mut reader = EventReader::open(Arc::clone(store), run, None).map_err(|error| error.to_string())?;
    let (mut transcript, mut events) = (Vec::new(), Vec::new());
    loop {
        let read = reader.read().map_err(|error| error.to_string())?;
        if read.is_empty() {
            break;
        }
        for stamped in read {
            events.push(stamped.event.name());
            if let AgentEvent::MessageEnd { message } = stamped.event {
                transcript.push(timeless(&message));
            }
        }
    }
    let state = replayed.state.ok_or("no state")?;
    if events.iter().filter(|name| **name == "agent_end").count() != 1 || events.last() != Some(&"agent_end")
    {
        broken.push(format!("the events do not end in one agent_end: {events:?}"));
    }
    one_result_per_call(&transcript, broken);
    if !matches!(query::settings(&**store, run), Ok(Some(_))) {
        broken.push(format!("run {run} was accepted without its settings"));
    }
    Ok(RunEnd { run, state, transcript, events })
}

fn timeless(message: &Message) -> Message {
    let mut message = message.clone();
    match &mut message {
        Message::User(user) => user.at = Millis::default(),
        Message::Assistant(answer) => answer.at = Millis::default(),
        Message::ToolResult(result) => result.at = Millis::default(),
        Message::Custom(custom) => custom.at = Millis::default(),
    }
    message
}

/// Each call of an answer has one result, after the answer and before the next one.
fn one_result_per_call(transcript: &[Message], broken: &mut Vec<String>) {
    let mut open: BTreeSet<String> = BTreeSet::new();
    for message in transcript {
        match message {
            Message::Assistant(answer) => {
                if !open.is_empty() {
                    broken.push(format!("calls without results: {open:?}"));
                }
                open = answer.calls().map(|call| call.id.clone()).collect();
            }
            Message::ToolResult(result) => {
                if !open.remove(&result.call_id) {
                    broken.push(format!("a second result, or one without a call: {}", result.call_id));
                }
            }
            Message::User(_) | Message::Custom(_) => {}
        }
    }
    if !open.is_empty() {
        broken.push(format!("calls without results at the end: {open:?}"));
    }
}

/// Compares a cut run of a scenario with the uncut one, and what the world saw with what it may see.
pub(crate) fn compare(uncut: &Seen, cut: &Seen, deaths: usize, same: Same) -> Vec<String> {
    let mut broken = cut.broken.clone();
    if cut.ends.len() != uncut.ends.len() {
        broken.push(format!("{} runs instead of {}", cut.ends.len(), uncut.ends.len()));
    }
    for (expected, found) in uncut.ends.iter().zip(&cut.ends) {
        compare_end(expected, found, deaths, same, &mut broken);
    }
    effects_by_class(&cut.world.deeds(), deaths, &mut broken);
    if same == Same::Transcript {
        every_effect(&uncut.world.deeds(), &cut.world.deeds(), &mut broken);
    }
    model_calls(uncut, cut, deaths, same, &mut broken);
    hooks(uncut, cut, deaths, same, &mut broken);
    acknowledged(cut, &mut broken);
    broken
}

/// What is left of a scenario: the ends of its runs, and the world.
pub(crate) struct Seen {
    pub(crate) world: Arc<World>,
    pub(crate) ends: Vec<RunEnd>,
    pub(crate) broken: Vec<String>,
}

impl Seen {
    pub(crate) fn new(world: &Arc<World>, dir: &Path) -> Self {
        let mut broken = Vec::new();
        let ends = ends(dir, world, &mut broken);
        Self { world: Arc::clone(world), ends, broken }
    }
}

fn compare_end(expected: &RunEnd, found: &RunEnd, deaths: usize, same: Same, broken: &mut Vec<String>) {
    let outcome = |end: &RunEnd| match &end.state.core.phase {
        Phase::Done { outcome, .. } => Some(*outcome),
        _ => None,
    };
    if outcome(found) != outcome(expected) {
        broken.push(format!("it ended as {}, not as {}", found.state.core.phase, expected.state.core.phase));
    }
    if same == Same::Outcome {
        return;
    }
    let most = expected.transcript.len().max(found.transcript.len());
    let differs = (0..most).find(|&n| match (expected.transcript.get(n), found.transcript.get(n)) {
        (Some(expected), Some(found)) => !alike(expected, found),
        _ => true,
    });
    if let Some(n) = differs {
        let (expected, found) = (expected.transcript.get(n), found.transcript.get(n));
        broken.push(format!("message {n} of the transcript is\n    {found:?}\n  not\n    {expected:?}"));
    }
    let (expected, found) = (&expected.state.core, &found.state.core);
    let lost = found.spent.calls_lost;
    if found.spent.model_calls != expected.spent.model_calls + lost || lost > deaths as u64 {
        broken.push(format!("{:?} spent after {deaths} deaths, not {:?}", found.spent, expected.spent));
    }
    let (found, expected) = (timeless_retries(found.retries), timeless_retries(expected.retries));
    if found != expected {
        broken.push(format!("{found:?}, not {expected:?}"));
    }
}

/// When the first failure came depends on how long a life took.
fn timeless_retries(retries: Retries) -> Retries {
    let streak = retries.streak.map(|streak| Streak { since: Millis::default(), ..streak });
    Retries { streak, ..retries }
}

/// Equal, or the result of a call that nobody saw end.
fn alike(expected: &Message, found: &Message) -> bool {
    match (expected, found) {
        (Message::ToolResult(expected), Message::ToolResult(found)) => {
            let is_unseen = found.result.joined_text().starts_with(UNSEEN) && found.tool == "post";
            expected == found || (is_unseen && expected.call_id == found.call_id)
        }
        _ => expected == found,
    }
}

fn count<T: Ord>(items: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

/// A call whose class forbids it was never run twice; one that may repeat did so only for a death.
fn effects_by_class(deeds: &[Deed], deaths: usize, broken: &mut Vec<String>) {
    for (key, times) in count(deeds.iter().map(|deed| deed.key.as_str())) {
        let class = deeds.iter().find(|deed| deed.key == key).map(|deed| deed.class);
        let most = match class {
            Some(RecoveryClass::ReadOnly | RecoveryClass::Keyed) => 1 + deaths,
            Some(RecoveryClass::Adoptable | RecoveryClass::Probe | RecoveryClass::AtMostOnce) | None => 1,
        };
        if times > most {
            broken.push(format!("{key} ({class:?}) had its effect {times} times"));
        }
    }
}

/// Every call that had its effect in the uncut run had it, and no other.
fn every_effect(uncut: &[Deed], cut: &[Deed], broken: &mut Vec<String>) {
    let keys = |deeds: &[Deed]| deeds.iter().map(|deed| deed.key.clone()).collect::<BTreeSet<_>>();
    if keys(uncut) != keys(cut) {
        broken.push(format!("effects of {:?}, not of {:?}", keys(cut), keys(uncut)));
    }
}

/// Calls are doubled only if they were in flight, and then ask the same.
fn model_calls(uncut: &Seen, cut: &Seen, deaths: usize, same: Same, broken: &mut Vec<String>) {
    let (before, after) = (uncut.world.asked(), cut.world.asked());
    if after.len() > before.len() + deaths {
        broken.push(format!("{} model calls after {deaths} deaths, not {}", after.len(), before.len()));
    }
    let mut hashes = BTreeMap::new();
    for asked in &after {
        let hash = hashes.entry((asked.run, asked.turn, asked.attempt)).or_insert(asked.hash);
        if *hash != asked.hash {
            let words =
                format!("turn {} attempt {} was asked again with another request", asked.turn, asked.attempt);
            broken.push(words);
        }
    }
    let places = |seen: &[tests::world::Asked]| {
        seen.iter().map(|asked| (asked.run, asked.turn, asked.attempt)).collect::<BTreeSet<_>>()
    };
    if same == Same::Transcript && places(&before) != places(&after) {
        broken.push("other model calls were made".to_owned());
    }
}

/// A hook is asked again only for a death, and then with the same key.
fn hooks(uncut: &Seen, cut: &Seen, deaths: usize, same: Same, broken: &mut Vec<String>) {
    let (before, after) = (count(uncut.world.hooks().into_iter()), count(cut.world.hooks().into_iter()));
    if same == Same::Transcript && before.keys().ne(after.keys()) {
        broken.push(format!("hooks {after:?}, not {before:?}"));
    }
    for (key, times) in &after {
        let expected = before.get(key).copied().unwrap_or(1);
        if *times > expected + deaths {
            broken.push(format!("hook {key:?} was asked {times} times after {deaths} deaths"));
        }
    }
}

/// Whatever was acknowledged is there, once.
fn acknowledged(cut: &Seen, broken: &mut Vec<String>) {
    for request in cut.world.requests() {
        let Answer::Accepted(run) = request.answer else { continue };
        let Some(end) = cut.ends.iter().find(|end| end.run == run) else {
            broken.push(format!("lost: {} was acknowledged", request.key));
            continue;
        };
        let (Ask::Steer(_, text) | Ask::FollowUp(_, text)) = &request.ask else { continue };
        let times = end.transcript.iter().filter(|message| message.joined_text() == *text).count();
        // A run that did not complete leaves what it was given after its failure in the journal, unanswered.
        let is_complete = matches!(end.state.core.phase, Phase::Done { outcome: Outcome::Completed, .. });
        if times > 1 || (times == 0 && is_complete) {
            broken
                .push(format!("{} was acknowledged and stands {times} times in the transcript", request.key));
        }
    }
}
