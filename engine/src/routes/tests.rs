//! What is left to ask after a failure, for runs with and without something to choose from.

use model::RunState;
use model::input::Submission;
use serde_json::json;

use super::*;
use crate::config::{Api, Defaults, Model};
use crate::engine::Engine;
use crate::job::Job;
use crate::profiles::{Verdict, What};
use crate::provider::Rehearsal;

const NOW: Millis = Millis(1_000_000);

fn model(profiles: &[&str]) -> Model {
    let profiles = profiles.iter().map(|name| (*name).to_owned()).collect();
    Model { profiles, context_window: Some(1_000), ..Model::new(Api::Rehearsal) }
}

/// Model `large` with three profiles, `small` with one of them, `local` without any.
fn config() -> Config {
    let models =
        [("large", model(&["work", "spare", "old"])), ("small", model(&["work"])), ("local", model(&[]))];
    let profiles = [
        ("work", Profile::ApiKeyEnv("KEY_A".to_owned())),
        ("spare", Profile::ApiKeyCmd("pass show spare".to_owned())),
        ("old", Profile::ApiKeyEnv("KEY_B".to_owned())),
    ];
    let named = |(name, value): (&str, Model)| (name.to_owned(), value);
    let fallback = vec!["small".to_owned(), "gone".to_owned(), "local".to_owned()];
    Config {
        models: Arc::new(models.map(named).into()),
        profiles: Arc::new(profiles.map(|(name, value)| (name.to_owned(), value)).into()),
        defaults: Arc::new(Defaults { model: Some("large".to_owned()), fallback, ..Defaults::default() }),
        ..Config::default()
    }
}

fn engine() -> Engine {
    let script = || Rehearsal::from_value(&json!({ "turns": [] })).unwrap();
    let builder = Engine::memory().config(config());
    ["large", "small", "local"]
        .into_iter()
        .fold(builder, |builder, name| builder.provider(name, script()))
        .open()
        .unwrap()
}

fn of(kind: FailureKind) -> Failure {
    Failure::new(kind, "")
}

/// A run that asks `model` with the profile at a position.
fn core(model: &str, profile: u8) -> Core {
    let submission = Submission {
        run: model::RunId([1; 16]),
        owner: Default::default(),
        session: "s".to_owned(),
        prompts: Vec::new(),
        base: Vec::new(),
        model: Label::from(model),
        thinking: Label::from("off"),
        wants: Default::default(),
        limits: Default::default(),
        job: model::JsonText::empty(),
    };
    let mut core = RunState::new(&submission, NOW).core;
    core.retries.profile = profile;
    core.spent.model_calls = 1;
    core
}

fn ways<'a>(
    shared: &'a Shared,
    candidates: &'a [Candidate],
    core: &'a Core,
    session_profile: u8,
) -> Ways<'a> {
    let config = (*shared.configs.in_force().config).clone();
    Ways { shared, config, candidates, core, session_profile, at: NOW }
}

/// What is left after a failure of `model`, paid for by the profile at a position.
fn left(engine: &Engine, model: &str, profile: u8, kind: FailureKind) -> Routes {
    let shared = engine.shared();
    let config = shared.configs.in_force().config;
    let candidates = candidates("large", &config.defaults.fallback, &config);
    let core = core(model, profile);
    let paying = position(&candidates, &core.model)
        .and_then(|at| candidates[at].profiles.get(usize::from(profile)).map(String::as_str));
    let ways = ways(shared, &candidates, &core, 0);
    ways.routes(Failed { profile: paying, failure: &of(kind), had_started: true })
}

async fn mark(engine: &Engine, profile: &str, model: &str, kind: FailureKind) {
    let what = What::Failed { failure: &of(kind), had_started: true };
    let verdict = Verdict { profile: profile.into(), model: Label::from(model), at: NOW, what };
    engine.shared().profiles.change(&verdict).await.unwrap().keep();
}

fn routes(profiles: u8, next_profile: Option<u8>, next_model: Option<&str>, can_refresh: bool) -> Routes {
    let next_model = next_model.map(Label::from);
    Routes { profiles, next_profile, next_model, can_refresh, context_window: 1_000, ..Routes::default() }
}

#[test]
fn a_job_may_be_answered_by_the_requested_model_and_the_fallbacks() {
    let config = config();
    let names = |requested: &str, fallback: &[&str]| -> Vec<(String, usize)> {
        let fallback: Vec<String> = fallback.iter().map(|name| (*name).to_owned()).collect();
        let candidates = candidates(requested, &fallback, &config);
        candidates.iter().map(|one| (one.model.clone(), one.profiles.len())).collect()
    };
    let pair = |name: &str, profiles| (name.to_owned(), profiles);
    assert_eq!(names("large", &[]), [pair("large", 3)]);
    assert_eq!(names("large", &["small", "large", "small"]), [pair("large", 3), pair("small", 1)]);
    assert_eq!(names("local", &["rehearsal:/a.json"]), [pair("local", 0), pair("rehearsal:/a.json", 0)]);
    assert_eq!(names("local", &["local"]), [], "there is nothing to choose");
    let many: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
    assert_eq!(candidates("local", &many, &config).len(), 1 + FALLBACKS_MAX);
}

#[tokio::test]
async fn the_next_profile_and_the_next_model_are_those_that_can_be_asked() {
    let engine = engine();
    let rate = FailureKind::RateLimit;
    assert_eq!(left(&engine, "large", 0, rate), routes(3, Some(1), Some("small"), false));
    assert_eq!(left(&engine, "large", 1, rate), routes(3, Some(2), Some("small"), true));
    assert_eq!(left(&engine, "large", 2, rate), routes(3, None, Some("small"), false));
    assert_eq!(left(&engine, "small", 0, rate), routes(1, None, Some("local"), false), "`gone` is not there");
    assert_eq!(left(&engine, "local", 0, rate), routes(0, None, None, false));

    mark(&engine, "spare", "large", rate).await;
    assert_eq!(left(&engine, "large", 0, rate), routes(3, Some(2), Some("small"), false));
    mark(&engine, "work", "small", rate).await;
    assert_eq!(left(&engine, "large", 0, rate), routes(3, Some(2), Some("local"), false));
}

#[tokio::test]
async fn a_failure_of_the_account_counts_already_for_the_other_models_that_it_pays_for() {
    let engine = engine();
    assert_eq!(left(&engine, "large", 0, FailureKind::Auth), routes(3, Some(1), Some("local"), false));
    assert_eq!(left(&engine, "large", 1, FailureKind::Auth), routes(3, Some(2), Some("small"), true));
}

#[tokio::test]
async fn what_goes_wrong_everywhere_leaves_nothing_to_ask() {
    let engine = engine();
    let local = ["format", "context_overflow", "role_ordering", "image_size", "script"];
    for kind in FailureKind::ALL {
        let left = left(&engine, "large", 0, kind);
        let is_left = (left.next_profile.is_some(), left.next_model.is_some());
        let expected = !local.contains(&kind.name());
        assert_eq!((is_left, left.profiles), ((expected, expected), 3), "{}", kind.name());
    }
}

#[tokio::test]
async fn the_sessions_profile_goes_first_and_is_not_asked_twice() {
    let engine = engine();
    let shared = engine.shared();
    let candidates = candidates("large", &[], &shared.configs.in_force().config);
    let next = |profile| {
        let core = core("large", profile);
        let ways = ways(shared, &candidates, &core, 1);
        let failed = Failed { profile: None, failure: &of(FailureKind::ServerError), had_started: true };
        ways.routes(failed).next_profile
    };
    assert_eq!([1, 0, 2].map(next), [Some(0), Some(2), None]);
    let core = Core { spent: Default::default(), ..core("large", 0) };
    let ways = ways(shared, &candidates, &core, 1);
    assert_eq!(ways.choose(), Choice::Use(1));
}

/// Names of the models that may be asked for a job.
fn asked_for(engine: &Engine, model: Option<&str>) -> Vec<String> {
    let job = Job { model: model.map(str::to_owned), ..Job::new("x") };
    let name = model.unwrap_or("large");
    let candidates = crate::accept::candidates(&engine.shared().configs.in_force().config, &job, name);
    candidates.iter().map(|candidate| candidate.model.clone()).collect()
}

#[tokio::test]
async fn whoever_asks_for_another_model_than_the_default_wants_just_that_one() {
    let engine = engine();
    let all = ["large", "small", "gone", "local"];
    assert_eq!(asked_for(&engine, None), all);
    assert_eq!(asked_for(&engine, Some("large")), all);
    assert_eq!(asked_for(&engine, Some("small")), ["small"]);
}

#[test]
fn a_list_reads_back_as_it_was_kept() {
    let kept = candidates("large", &["local".to_owned()], &config());
    let json = serde_json::to_value(&*kept).unwrap();
    let expected = json!([
        { "model": "large", "profiles": ["work", "spare", "old"] },
        { "model": "local" },
    ]);
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<Vec<Candidate>>(json).unwrap(), *kept);
}
