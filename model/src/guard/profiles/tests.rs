//! The rules of profile health as vectors, with the times at which each of them changes.

use proptest::prelude::*;

use super::roster::{Choice, Place, Roster};
use super::*;
use crate::message::Usage;

const START: Millis = Millis(1_000_000);
const S: u64 = 1_000;
const MIN: u64 = 60 * S;
const H: u64 = 60 * MIN;

fn failure(kind: FailureKind) -> Failure {
    Failure {
        kind,
        message: Label::from(""),
        retry_after_ms: None,
        had_text: false,
        usage: Usage::default(),
        partial: None,
    }
}

fn model(name: &str) -> Label {
    Label::from(name)
}

/// The profile after failures of model `m`, each so long after the start.
fn after(failures: &[(FailureKind, u64)]) -> Health {
    let mut health = Health::default();
    for (kind, ms) in failures {
        assert!(health.mark(&failure(*kind), true, START.plus(*ms), &model("m")), "{}", kind.name());
    }
    health
}

/// How long after the start the profile can be used again, and why it cannot before.
fn until(health: &Health, after_ms: u64, name: &str) -> Option<(FailureKind, u64)> {
    let cooling = health.cooling(START.plus(after_ms), &model(name))?;
    Some((cooling.reason, cooling.until.since(START)))
}

#[test]
fn what_each_kind_of_failure_does_to_a_profile() {
    use FailureKind as Kind;
    for kind in Kind::ALL {
        let marked = |had_started| {
            let mut health = Health::default();
            health.mark(&failure(kind), had_started, START, &model("m"));
            let ms =
                |name| health.cooling(START, &model(name)).map_or(0, |cooling| cooling.until.since(START));
            [ms("m"), ms("other")]
        };
        let (started, not_started) = match kind {
            Kind::RateLimit => ([30 * S, 0], [30 * S, 0]),
            Kind::Timeout | Kind::Idle | Kind::Connection => ([30 * S, 0], [0, 0]),
            Kind::Auth | Kind::SessionExpired | Kind::ModelNotFound | Kind::Silent | Kind::Unknown => {
                ([30 * S; 2], [30 * S; 2])
            }
            Kind::Billing => ([5 * H; 2], [5 * H; 2]),
            Kind::AuthPermanent => ([10 * MIN; 2], [10 * MIN; 2]),
            Kind::Overloaded
            | Kind::ServerError
            | Kind::TlsCertificate
            | Kind::ContextOverflow
            | Kind::Format
            | Kind::Empty
            | Kind::ReasoningOnly
            | Kind::Missing
            | Kind::RoleOrdering
            | Kind::ImageSize
            | Kind::ThinkingUnsupported
            | Kind::Script => ([0, 0], [0, 0]),
        };
        assert_eq!((marked(true), marked(false)), (started, not_started), "{}", kind.name());
    }
}

#[test]
fn a_failure_that_says_nothing_changes_nothing() {
    let mut health = after(&[(FailureKind::Auth, 0)]);
    let before = health.clone();
    assert!(!health.mark(&failure(FailureKind::ServerError), true, START.plus(1), &model("m")));
    assert_eq!(health, before);
}

#[test]
fn a_cooldown_ends_at_its_time_and_not_before() {
    let health = after(&[(FailureKind::Auth, 0)]);
    assert!(!health.is_usable(START, &model("m")));
    assert!(!health.is_usable(START.plus(30 * S - 1), &model("m")));
    assert!(health.is_usable(START.plus(30 * S), &model("m")));
}

#[test]
fn cooldowns_grow_with_the_failures_and_double_up_to_their_longest() {
    assert_eq!([1, 2, 3, 4, 255].map(ordinary_ms), [30 * S, 60 * S, 5 * MIN, 5 * MIN, 5 * MIN]);
    let billing = [1, 2, 3, 4, 255].map(|count| doubled_ms(BILLING_MS, count));
    assert_eq!(billing, [5 * H, 10 * H, 20 * H, 24 * H, 24 * H]);
    let permanent = [1, 2, 3, 4, 255].map(|count| doubled_ms(AUTH_PERMANENT_MS, count));
    assert_eq!(permanent, [10 * MIN, 20 * MIN, 40 * MIN, 60 * MIN, 60 * MIN]);
}

#[test]
fn an_active_cooldown_is_never_extended() {
    use FailureKind::{Auth, AuthPermanent, Billing};
    let health = after(&[(Auth, 0), (Auth, 29 * S)]);
    assert_eq!((health.errors, until(&health, 29 * S, "m")), (2, Some((Auth, 30 * S))));
    let health = after(&[(Billing, 0), (Billing, 4 * H)]);
    assert_eq!((health.billing, until(&health, 4 * H, "m")), (2, Some((Billing, 5 * H))));
    let health = after(&[(AuthPermanent, 0), (AuthPermanent, 10 * MIN - 1)]);
    assert_eq!((health.auth_permanent, until(&health, 0, "m")), (2, Some((AuthPermanent, 10 * MIN))));
}

#[test]
fn the_counters_start_again_when_nothing_cools_down_any_more() {
    use FailureKind::{Auth, Billing};
    let health = after(&[(Auth, 0), (Auth, 30 * S - 1), (Auth, 30 * S)]);
    assert_eq!((health.errors, until(&health, 30 * S, "m")), (1, Some((Auth, 60 * S))));
    let health = after(&[(Billing, 0), (Billing, 5 * H)]);
    assert_eq!((health.billing, until(&health, 5 * H, "m")), (1, Some((Billing, 10 * H))));
}

#[test]
fn failures_that_overlap_are_counted_together() {
    use FailureKind::{Auth, Billing, RateLimit};
    let mut health = Health::default();
    for (name, ms) in [("a", 0), ("b", 10 * S), ("c", 20 * S)] {
        health.mark(&failure(RateLimit), true, START.plus(ms), &model(name));
    }
    let each = ["a", "b", "c", "d"].map(|name| until(&health, 20 * S, name));
    let limited = |ms| Some((RateLimit, ms));
    assert_eq!(each, [limited(30 * S), limited(70 * S), limited(20 * S + 5 * MIN), None]);

    // The ordinary cooldown bridges the end of the first disabling.
    let health = after(&[(Billing, 0), (Auth, 5 * H - 1), (Billing, 5 * H)]);
    assert_eq!((health.billing, until(&health, 5 * H, "m")), (2, Some((Auth, 15 * H))));
}

#[test]
fn a_failure_counts_for_a_day() {
    let blocked_for_days = |ms| {
        let mut health = Health::default();
        let limit = Failure { retry_after_ms: Some(72 * H), ..failure(FailureKind::RateLimit) };
        health.mark(&limit, true, START, &model("m"));
        health.mark(&failure(FailureKind::Auth), true, START.plus(ms), &model("m"));
        (health.errors, health.ordinary.map(|cooling| cooling.until.since(START) - ms))
    };
    assert_eq!(blocked_for_days(24 * H), (2, Some(60 * S)));
    assert_eq!(blocked_for_days(24 * H + 1), (1, Some(30 * S)));
}

#[test]
fn a_long_wait_that_the_provider_asks_for_blocks_the_profile_until_then() {
    let limited = |wait_ms| {
        let mut health = Health::default();
        let limit = Failure { retry_after_ms: Some(wait_ms), ..failure(FailureKind::RateLimit) };
        health.mark(&limit, true, START, &model("m"));
        ["m", "other"].map(|name| until(&health, 0, name).map(|(_, ms)| ms))
    };
    assert_eq!(limited(60 * S), [Some(30 * S), None]);
    assert_eq!(limited(60 * S + 1), [Some(60 * S + 1); 2]);
    assert_eq!(limited(u64::MAX), [Some(BLOCKED_MS_MAX); 2]);
}

#[test]
fn of_several_cooldowns_the_first_reason_and_the_last_time_are_told() {
    use FailureKind::{Auth, Billing, RateLimit};
    let health = after(&[(RateLimit, 0), (Billing, 1), (Auth, 2)]);
    assert_eq!(until(&health, 2, "m"), Some((Auth, 5 * H + 1)));
    assert_eq!(until(&health, 10 * MIN, "m"), Some((Billing, 5 * H + 1)));
}

#[test]
fn an_answer_clears_what_it_proves_and_is_noted_once() {
    use FailureKind::{Auth, Billing, RateLimit};
    let mut health = after(&[(Auth, 0), (Billing, 1), (RateLimit, 2)]);
    health.mark(&failure(RateLimit), true, START.plus(3), &model("other"));
    health.mark_probed(START.plus(4));
    assert!(health.mark_good(START.plus(5), &model("m")));
    assert!(health.is_usable(START.plus(5), &model("m")));
    assert_eq!(until(&health, 5, "other"), Some((RateLimit, 5 * MIN + 3)));
    assert!(!health.mark_good(START.plus(6), &model("m")), "there is nothing more to clear");
    assert!(health.mark_good(START.plus(7), &model("other")));
    assert_eq!(health, Health::default());
    assert!(!health.mark_good(START, &model("m")));
}

#[test]
fn health_is_bounded() {
    let mut health = Health::default();
    let long = "é".repeat(100);
    for n in 0..=MODELS_MAX {
        let ms = u64::try_from(n).unwrap_or_default();
        let label = model(&format!("{n}{long}"));
        assert!(health.mark(&failure(FailureKind::RateLimit), true, START.plus(ms), &label));
    }
    assert_eq!(health.models.len(), MODELS_MAX);
    assert!(health.is_usable(START, &model(&format!("0{long}"))), "the one that ended first made room");
    for kind in [FailureKind::Auth, FailureKind::Billing] {
        health.mark(&failure(kind), true, START, &model("m"));
    }
    let profile = Profile { name: model(&long), health };
    let bytes = profile.to_bytes();
    assert!(bytes.len() <= 1024, "{} bytes", bytes.len());
    assert_eq!(Profile::from_bytes(&bytes), Ok(profile));
}

const ALONE: Place = Place { is_requested: true, is_last: true };

fn roster(healths: Vec<Health>, first: u8, after_ms: u64) -> Roster {
    Roster { healths, first, model: model("m"), at: START.plus(after_ms) }
}

#[test]
fn the_order_is_the_sessions_profile_then_the_list_and_what_cools_down_last() {
    let well = Health::default;
    let short = || after(&[(FailureKind::Auth, 0)]);
    let long = || after(&[(FailureKind::Billing, 0)]);
    let order = |healths, first| roster(healths, first, 0).order();
    assert_eq!(order(vec![well(), well(), well()], 0), [0, 1, 2]);
    assert_eq!(order(vec![well(), well(), well()], 1), [1, 0, 2]);
    assert_eq!(order(vec![long(), short(), well()], 0), [2, 1, 0]);
    assert_eq!(order(vec![short(), well(), short()], 2), [1, 2, 0]);
    assert_eq!(order(vec![well(), well()], 9), [1, 0], "a profile that is not there is the last one");
    assert_eq!(order(vec![], 3), Vec::<u8>::new());
}

#[test]
fn a_run_goes_through_its_order_once() {
    let well = Health::default;
    let cooling = || after(&[(FailureKind::Auth, 0)]);
    let next = |healths, first, current| roster(healths, first, 0).next(current);
    assert_eq!(next(vec![well(), well(), well()], 0, 0), Some(1));
    assert_eq!(next(vec![well(), cooling(), well()], 0, 0), Some(2));
    assert_eq!(next(vec![well(), well(), well()], 0, 2), None);
    assert_eq!(next(vec![well(), well(), well()], 1, 1), Some(0));
    assert_eq!(next(vec![well(), well(), well()], 1, 0), Some(2));
    assert_eq!(next(vec![well(), cooling()], 0, 0), None);
    assert_eq!(next(vec![], 0, 0), None);
}

#[test]
fn the_preferred_profile_pays_while_it_can() {
    let well = Health::default;
    let cooling = || after(&[(FailureKind::Auth, 0)]);
    let choose = |healths, preferred| roster(healths, 0, 0).choose(preferred, ALONE);
    assert_eq!(choose(vec![well(), well()], 1), Choice::Use(1));
    assert_eq!(choose(vec![well(), cooling()], 1), Choice::Use(0));
    assert_eq!(choose(vec![cooling(), cooling(), well()], 1), Choice::Use(2));
    assert_eq!(choose(vec![well()], 7), Choice::Use(0));
    assert_eq!(choose(vec![], 0), Choice::Use(0));
}

#[test]
fn when_all_cool_down_the_first_reason_and_the_first_end_are_told() {
    let healths = vec![after(&[(FailureKind::Auth, 0)]), after(&[(FailureKind::AuthPermanent, 0)])];
    let cooling = Cooling { reason: FailureKind::AuthPermanent, until: START.plus(30 * S) };
    assert_eq!(roster(healths, 0, 0).choose(0, ALONE), Choice::Wait(cooling));
}

/// Whether the only profile of a model is asked although it cools down, so long after its failure.
fn is_probed(health: &Health, after_ms: u64, place: Place) -> bool {
    match roster(vec![health.clone()], 0, after_ms).choose(0, place) {
        Choice::Probe(0) => true,
        Choice::Wait(_) => false,
        choice @ (Choice::Use(_) | Choice::Probe(_)) => unreachable!("{choice:?}"),
    }
}

#[test]
fn a_profile_is_half_open_45_minutes_after_its_last_failure_or_probe() {
    for kind in [FailureKind::Billing, FailureKind::RateLimit] {
        let limit = Failure { retry_after_ms: Some(20 * H), ..failure(kind) };
        let mut health = Health::default();
        health.mark(&limit, true, START, &model("m"));
        let fallback = Place { is_requested: false, is_last: false };
        assert!(!is_probed(&health, 45 * MIN - 1, fallback), "{}", kind.name());
        assert!(is_probed(&health, 45 * MIN, fallback));
        health.mark_probed(START.plus(45 * MIN));
        assert!(!is_probed(&health, 90 * MIN - 1, fallback));
        assert!(is_probed(&health, 90 * MIN, fallback));
    }
}

#[test]
fn a_key_that_was_refused_is_not_probed() {
    let auth = after(&[(FailureKind::Auth, 0), (FailureKind::AuthPermanent, 1)]);
    assert!(!is_probed(&auth, 10 * MIN, ALONE));
}

#[test]
fn an_account_that_cannot_pay_is_probed_for_the_requested_model_only() {
    let mut health = after(&[(FailureKind::Billing, 0)]);
    assert!(!is_probed(&health, 30 * S - 1, ALONE));
    assert!(is_probed(&health, 30 * S, ALONE));
    assert!(!is_probed(&health, 30 * S, Place { is_requested: false, is_last: true }));
    health.mark_probed(START.plus(30 * S));
    assert!(!is_probed(&health, 60 * S - 1, ALONE));
    assert!(is_probed(&health, 60 * S, ALONE));
}

#[test]
fn a_limit_that_passes_is_probed_shortly_before_it_is_over() {
    let mut health = Health { errors: 2, ..Health::default() };
    health.mark(&failure(FailureKind::RateLimit), true, START, &model("a"));
    health.mark(&failure(FailureKind::RateLimit), true, START, &model("b"));
    health.mark(&failure(FailureKind::RateLimit), true, START, &model("m"));
    assert_eq!(until(&health, 0, "m"), Some((FailureKind::RateLimit, 5 * MIN)));
    assert!(!is_probed(&health, 3 * MIN - 1, ALONE));
    assert!(is_probed(&health, 3 * MIN, ALONE));
    health.mark_probed(START.plus(3 * MIN));
    assert!(!is_probed(&health, 3 * MIN + 30 * S - 1, ALONE));
    assert!(is_probed(&health, 3 * MIN + 30 * S, ALONE));
}

#[test]
fn trouble_without_a_name_stops_nobody_who_has_nothing_else_to_ask() {
    let unknown = after(&[(FailureKind::Unknown, 0)]);
    assert!(is_probed(&unknown, 0, ALONE));
    let followed = Place { is_requested: true, is_last: false };
    assert!(!is_probed(&unknown, 30 * S - 1, followed));
}

/// Every cooldown of a profile, by what it is for.
fn cooldowns(health: &Health) -> Vec<(String, Millis)> {
    let whole = [("ordinary", health.ordinary), ("disabled", health.disabled), ("blocked", health.blocked)];
    let whole = whole.into_iter().filter_map(|(name, cooling)| Some((name.to_owned(), cooling?.until)));
    whole.chain(health.models.iter().map(|entry| (entry.model.to_string(), entry.cooling.until))).collect()
}

proptest! {
    #[test]
    fn whatever_fails_no_active_cooldown_moves_and_the_health_stays_small(
        failures in prop::collection::vec(
            (prop::sample::select(&FailureKind::ALL[..]), 0..20 * H, any::<Option<u64>>(), any::<bool>(), 0..12u8),
            0..60,
        ),
    ) {
        let (mut health, mut at) = (Health::default(), START);
        for (kind, ms, retry_after_ms, had_started, name) in failures {
            at = at.plus(ms);
            let before = cooldowns(&health);
            let name = model(&format!("{name}{}", "x".repeat(80)));
            let is_full = health.models.len() == MODELS_MAX;
            let is_marked = health.mark(&Failure { retry_after_ms, ..failure(kind) }, had_started, at, &name);
            let after = cooldowns(&health);
            for (what, until) in before.into_iter().filter(|(_, until)| *until > at) {
                let kept = after.iter().find(|(other, _)| *other == what).map(|(_, until)| *until);
                prop_assert!(kept == Some(until) || (is_full && kept.is_none()), "{what}");
            }
            let says_something = weight(kind, had_started) != Weight::None;
            prop_assert_eq!(is_marked, says_something);
            prop_assert!(!is_marked || !health.is_usable(at, &name));
            let profile = Profile { name: model("work"), health: health.clone() };
            let bytes = profile.to_bytes();
            prop_assert!(bytes.len() <= 1024);
            prop_assert_eq!(Profile::from_bytes(&bytes), Ok(profile));
        }
        health.mark_good(at, &model("m"));
        let good = health.clone();
        prop_assert!(!health.mark_good(at, &model("m")));
        prop_assert_eq!(health, good);
    }
}
