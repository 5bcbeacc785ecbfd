//! Snapshots: what is written reads back as what it was, by any version that can.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use model::guard::retry::ThinkingLevel;

#[test]
fn a_snapshot_of_another_version_is_read_or_refused() {
    let older = r#"{"defaults":{"max_turns":3},"models":{"m":{"api":"rehearsal","file":"/f"}}}"#;
    let expected = Config {
        models: Arc::new([("m", Model::at(Api::Rehearsal, "/f"))].map(named).into()),
        defaults: Arc::new(Defaults { max_turns: 3, ..Defaults::default() }),
        ..Config::default()
    };
    assert_eq!(Config::from_snapshot(older), Ok(expected));
    let newer = Config::from_snapshot(r#"{"policy":[]}"#).unwrap_err().to_string();
    assert_eq!(
        newer,
        "configuration snapshot not readable: unknown field `policy`, expected one of `models`, `defaults`, \
         `tools`, `durable_workspace`, `sync_spool` at line 1 column 9; \
         use the version of sprag that started the run"
    );
}

fn usd() -> impl Strategy<Value = Usd> {
    any::<u64>().prop_map(Usd::from_micros)
}

fn model() -> impl Strategy<Value = Model> {
    let api = prop::sample::select(vec![
        Api::AnthropicMessages,
        Api::OpenaiChat,
        Api::OpenaiResponses,
        Api::Rehearsal,
        Api::Replay,
    ]);
    let day = (0..40_000i32).prop_map(|days| NaiveDate::from_epoch_days(days).unwrap());
    let price = (usd(), usd(), option::of(usd()), option::of(usd()), option::of(day)).prop_map(
        |(input, output, cache_read, cache_write, as_of)| Price {
            input,
            output,
            cache_read,
            cache_write,
            as_of,
        },
    );
    let text = || option::of(".*");
    let number = || option::of(any::<u64>());
    (
        (api, text(), text(), text(), vec(".*", 0..3), text()),
        (number(), number(), number(), option::of(price), any::<[bool; 2]>()),
    )
        .prop_map(
            |(
                (api, base_url, model, file, profiles, api_key_env),
                (window, output, idle, price, [must, background]),
            )| {
                Model {
                    api,
                    base_url,
                    model,
                    file,
                    profiles,
                    api_key_env,
                    context_window: window,
                    max_output: output,
                    idle_timeout_s: idle,
                    price,
                    tool_choice: if must { ToolChoice::Required } else { ToolChoice::Auto },
                    background,
                }
            },
        )
}

fn defaults() -> impl Strategy<Value = Defaults> {
    let levels = [
        ThinkingLevel::Off,
        ThinkingLevel::Minimal,
        ThinkingLevel::Low,
        ThinkingLevel::Medium,
        ThinkingLevel::High,
        ThinkingLevel::XHigh,
    ];
    (
        (option::of(".*"), vec(".*", 0..3), vec(".*", 0..3), any::<[u64; 5]>()),
        (any::<bool>(), any::<bool>(), any::<NonZeroU32>(), prop::sample::select(levels.to_vec()), usd()),
    )
        .prop_map(
            |((model, fallback, tools, numbers), (ordered, loops, concurrency, thinking, max_usd))| {
                let [timeout_s, tool_timeout_s, max_turns, max_calls, max_tokens] = numbers;
                Defaults {
                    model,
                    fallback,
                    tools,
                    timeout_s,
                    tool_timeout_s,
                    tool_execution: if ordered { ToolExecution::Sequential } else { ToolExecution::Parallel },
                    concurrency,
                    max_turns,
                    max_calls,
                    thinking,
                    loop_detection: loops,
                    max_usd,
                    max_tokens,
                }
            },
        )
}

fn config() -> impl Strategy<Value = Config> {
    let profile = (any::<bool>(), ".*")
        .prop_map(|(env, text)| if env { Profile::ApiKeyEnv(text) } else { Profile::ApiKeyCmd(text) });
    let on_unknown = prop::sample::select(vec![OnUnknown::Ask, OnUnknown::Tell, OnUnknown::Fail]);
    let tool = (on_unknown, any::<u64>(), any::<u64>(), option::of(any::<u64>())).prop_map(
        |(on_unknown, output_bytes_max, output_spool_bytes_max, timeout_s)| Tool {
            on_unknown,
            output_bytes_max,
            output_spool_bytes_max,
            timeout_s,
        },
    );
    (
        btree_map(".*", model(), 0..4),
        btree_map(".*", profile, 0..4),
        defaults(),
        btree_map(".*", tool, 0..4),
        any::<[bool; 2]>(),
    )
        .prop_map(|(models, profiles, defaults, tools, [durable_workspace, sync_spool])| Config {
            models: models.into(),
            profiles: profiles.into(),
            defaults: defaults.into(),
            tools: tools.into(),
            durable_workspace,
            sync_spool,
        })
}

proptest! {
    #[test]
    fn a_snapshot_reads_back_as_what_it_was(config in config()) {
        let snapshot = config.snapshot();
        let read = Config::from_snapshot(&snapshot);
        prop_assert_eq!(read.as_ref().map(Config::snapshot), Ok(snapshot));
        prop_assert_eq!(read, Ok(Config { profiles: Arc::default(), ..config }));
    }

    #[test]
    fn any_text_is_read_or_refused_without_panic(
        text in "([a-z_.\\[\\]{}=\"'#0-9 \n]|models|defaults|max_usd|é){0,60}"
    ) {
        let world = with_file(&text);
        let _ = load(&world.environment, None, &Overrides::default());
    }
}
