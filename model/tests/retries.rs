//! What holds of the retry guard whatever fails and whenever the engine dies.
//!
//! A driver answers each effect from a list of outcomes, one a model call that was not lost; a second one does the same and
//! dies now and then. All choices come from proptest.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use model::guard::retry::{Action, Branch, Counts, Decision, Retries};
use model::{Effect, Fact, Outcome, Phase};
use proptest::prelude::*;
use support::Script;

/// The most steps of one drive: charges, turns and summaries are bounded.
const STEPS_MAX: usize = 4_000;

/// What a model call may come to, mostly in failures. Routes come with it.
fn outcome() -> impl Strategy<Value = String> {
    let kinds: Vec<&'static str> = model::input::FailureKind::ALL.iter().map(|kind| kind.name()).collect();
    let routes = (
        prop::option::of(1u8..4),
        prop::option::weighted(0.2, prop::sample::select(vec!["b", "c"])),
        prop::sample::subsequence(vec!["text", "long", "refresh", "large", "over_allowance"], 0..3),
        prop::sample::select(vec!["", "after=1000", "after=70000", "window=100 input=70"]),
    );
    let failed = (prop::sample::select(kinds), routes).prop_map(|(kind, (profile, model, flags, extra))| {
        let profile = profile.map(|profile| format!(" of=4 profile={profile}")).unwrap_or_default();
        let model = model.map(|model| format!(" model={model} first=a")).unwrap_or_default();
        format!("failed {kind}{profile}{model} {} {extra}", flags.join(" "))
    });
    prop_oneof![
        6 => failed,
        1 => Just("failed connection".to_owned()),
        1 => Just("failed overloaded".to_owned()),
        1 => Just("answered calls 2".to_owned()),
    ]
}

/// What a run came to.
#[derive(Debug, PartialEq)]
struct Story {
    decisions: Vec<Decision>,
    ended: Option<(Outcome, Option<String>)>,
}

/// Drives a run to its end. Before a step the engine dies if `deaths` says so.
fn drive(header: &str, outcomes: &[String], class: &str, mut deaths: impl Iterator<Item = bool>) -> Story {
    let mut script = Script::new(header);
    let mut outcomes = outcomes.iter();
    let mut decisions = Vec::new();
    for _ in 0..STEPS_MAX {
        let effects = script.state.effects();
        let Some(effect) = effects.first() else { break };
        if deaths.next() == Some(true) {
            feed(&mut script, "resumed", &mut decisions);
            if let Effect::CallModel { .. } = effect {
                feed(&mut script, "lost", &mut decisions);
            }
            continue;
        }
        let text = match effect {
            Effect::AwaitLane => "admitted".to_owned(),
            Effect::Drain { .. } => "drained 0".to_owned(),
            Effect::PrepareRequest { .. } => "prepared 1".to_owned(),
            Effect::CallModel { .. } => {
                outcomes.next().cloned().unwrap_or_else(|| "answered text".to_owned())
            }
            Effect::Sleep { .. } => "timer".to_owned(),
            Effect::ResolveBatch { .. } => format!("batch {class} read:{}", script.state.core.spent.turns),
            Effect::RunTool { call, .. } => format!("returned {call}"),
            Effect::PlanCompaction => "planned".to_owned(),
            // A plan that was made before a death is made again, with the same end.
            Effect::Compact { .. } if script.state.core.spent.turns % 2 == 1 => {
                "compact_failed no".to_owned()
            }
            Effect::Compact { .. } => "compacted".to_owned(),
            Effect::Poll { .. } | Effect::RunHook(_) | Effect::AwaitApproval { .. } | Effect::AwaitPerson => {
                panic!("nobody asked for {effect:?}")
            }
        };
        feed(&mut script, &text, &mut decisions);
    }
    let ended = if let Phase::Done { outcome, reason } = script.state.core.phase {
        Some((outcome, reason.map(|reason| kind_of(reason.as_str()))))
    } else {
        None
    };
    Story { decisions, ended }
}

/// The reason without its seconds: they pass while nobody lives.
fn kind_of(reason: &str) -> String {
    reason.split(" over ").next().unwrap_or_default().to_owned()
}

fn feed(script: &mut Script, text: &str, decisions: &mut Vec<Decision>) {
    let before = script.state.core.clone();
    assert!(script.feed(text), "`{text}` in {}", before.phase);
    let moved = script.journal.last().expect("a record for every input");
    decisions.extend(moved.decision.clone());
    let after = &script.state.core;
    assert!(after.has_side_effects || !before.has_side_effects, "side effects are never forgotten");
    check(&before.retries, &after.retries, moved.decision.as_ref(), &moved.input.fact);
}

/// Counters never fall, but where the reference says so.
fn check(before: &Retries, after: &Retries, decision: Option<&Decision>, fact: &Fact) {
    assert!(after.charges >= before.charges && after.charges <= after.budget, "{after:?}");
    assert!(after.budget >= before.budget && after.chain.restarts >= before.chain.restarts);
    let is_retry = decision.is_some_and(|decision| decision.action.is_retry());
    assert!(after.charges - before.charges <= u8::from(is_retry), "only a retry is charged");
    let action = decision.map(|decision| &decision.action);
    if let Some(Action::Fallback { .. } | Action::RestartChain { .. }) = action {
        return;
    }
    let is_answer = matches!(fact, Fact::ModelAnswered { .. });
    let has_progress = is_answer || matches!(fact, Fact::ModelFailed { failure, .. } if failure.had_text);
    let is_waited_for = decision.is_some_and(|decision| decision.branch == Branch::SameModelRateLimit);
    let may_fall = Counts {
        passing: if is_answer { before.counts.passing } else { 0 },
        rate_limit: if is_waited_for { 0 } else { before.counts.rate_limit },
        idle_breaker: if has_progress { before.counts.idle_breaker } else { 0 },
        ..Counts::default()
    };
    let counts = |retries: &Retries| {
        let bytes = postcard::to_stdvec(&retries.counts).expect("counters encode");
        assert_eq!(bytes.len(), 16, "one byte a counter");
        bytes
    };
    let allowed = postcard::to_stdvec(&may_fall).expect("counters encode");
    let is_rate_limit_reset = decision.is_none() || is_waited_for;
    assert!(is_rate_limit_reset || after.counts.rate_limit == 0);
    for ((was, is), allowed) in counts(before).into_iter().zip(counts(after)).zip(allowed) {
        assert!(is + allowed >= was, "{before:?}, then {after:?}");
    }
}

/// What follows, call after call, when a run meets nothing but this failure: the branches with their waits in seconds, and
/// the end.
fn nothing_but(failure: &str) -> String {
    let mut script = Script::after("", "admitted; drained 0");
    let mut words = Vec::new();
    while !script.state.effects().is_empty() {
        script.feed_all(&format!("prepared; failed {failure}"));
        let decision = script.journal.last().and_then(|moved| moved.decision.clone()).expect("a decision");
        let wait_ms = decision.action.wait_ms();
        let wait = if wait_ms > 0 { format!(" {}", wait_ms as f64 / 1e3) } else { String::new() };
        words.push(format!("{}{wait}", decision.branch.name()));
        if script.state.core.model.as_str() == "b" {
            return format!("{}, model b", words.join(", "));
        }
        if let Phase::Stream { stage: model::phase::StreamStage::Backoff { .. }, .. } =
            script.state.core.phase
        {
            script.feed_all("timer");
        }
    }
    let Phase::Done { outcome, .. } = script.state.core.phase else { panic!("the run has ended") };
    format!("{}, {}", words.join(", "), outcome.name())
}

#[test]
fn every_kind_of_failure_alone_comes_to_its_end() {
    let mut table = String::new();
    for kind in model::input::FailureKind::ALL.map(model::input::FailureKind::name) {
        table += &format!("{kind}\n    alone: {}\n", nothing_but(kind));
        table += &format!("    with another model: {}\n", nothing_but(&format!("{kind} model=b")));
    }
    support::assert_reviewed("kinds.txt", &table);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_death_changes_no_decision(
        outcomes in prop::collection::vec(outcome(), 0..60),
        deaths in prop::collection::vec(prop::bool::weighted(0.3), 0..300),
        compacts in any::<bool>(),
        class in prop::sample::select(vec!["read:a", "valid:b"]),
    ) {
        let header = if compacts { "compacts" } else { "" };
        let undisturbed = drive(header, &outcomes, class, std::iter::empty());
        let disturbed = drive(header, &outcomes, class, deaths.into_iter());
        prop_assert!(undisturbed.ended.is_some());
        prop_assert_eq!(undisturbed, disturbed);
    }
}
