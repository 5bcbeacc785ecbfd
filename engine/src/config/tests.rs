//! Whole configurations in, whole outputs out. Each test has directories and variables of its own.

use std::fs;
use std::os::unix::ffi::OsStringExt;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

use super::*;

/// A machine with nothing configured.
struct World {
    root: TempDir,
    environment: Environment,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let [etc, home, cwd] = ["etc", "home", "cwd"].map(|name| root.path().join(name));
        for path in [etc.join("sprag"), home.join(".config/sprag"), cwd.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        Self { root, environment: Environment { home: Some(home), cwd, etc, ..Environment::default() } }
    }

    fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        fs::write(self.root.path().join(path), text).unwrap();
        self
    }

    fn var(mut self, name: &str, value: &str) -> Self {
        self.environment.vars.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Loaded {
        load(&self.environment, None, &Overrides::default()).unwrap()
    }

    fn refused(&self) -> String {
        self.refused_with(None)
    }

    /// What a person sees, with the directory of the test taken out.
    fn refused_with(&self, file: Option<&str>) -> String {
        let error = load(&self.environment, file.map(Path::new), &Overrides::default()).unwrap_err();
        error.to_string().replace(&self.root.path().display().to_string(), "")
    }
}

fn with_file(text: &str) -> World {
    World::new().file("cwd/sprag.toml", text)
}

#[test]
fn nothing_configured_is_the_defaults() {
    let loaded = World::new().load();
    assert_eq!(loaded, Loaded::default());
    assert_eq!(
        loaded.config.snapshot(),
        concat!(
            r#"{"defaults":{"concurrency":8,"fallback":[],"loop_detection":true,"max_calls":0,"max_tokens":0,"#,
            r#""max_turns":0,"max_usd":"0","model":null,"thinking":"off","timeout_s":172800,"#,
            r#""tool_execution":"parallel","tool_timeout_s":120,"#,
            r#""tools":["bash","read","write","edit","ls","grep","find"]},"durable_workspace":false,"#,
            r#""models":{},"profiles":{},"sync_spool":false,"tools":{}}"#
        )
    );
}

#[test]
fn every_key_is_read() {
    let world = with_file(
        r#"
        durable_workspace = true
        [models.sonnet]
        api = "anthropic-messages"
        base_url = "https://models.example:8443/v1"
        model = "claude-sonnet-4-5"
        profiles = ["work", "spare"]
        api_key_env = "ANTHROPIC_API_KEY"
        context_window = 200_000
        max_output = 0x7d00
        idle_timeout_s = 60
        price = { input = 3.0, output = 15, cache_read = 0.3, cache_write = 3.75, as_of = "2026-11-01" }
        tool_choice = "required"
        [models."gpt-4.1"]
        api = "openai-responses"
        model = "gpt-4.1"
        price.input = 2.0
        price.output = 8.0
        price.as_of = 2026-11-02
        [models.script]
        api = "rehearsal"
        file = "scripts/one.json"
        [profiles.work]
        api_key_env = "KEY_A"
        [profiles.spare]
        api_key_cmd = "pass show spare"
        [defaults]
        model = "sonnet"
        fallback = ["gpt-4.1"]
        tools = ["read"]
        timeout_s = 60
        tool_timeout_s = 5
        tool_execution = "sequential"
        concurrency = 2
        max_turns = 3
        max_calls = 4
        thinking = "high"
        loop_detection = false
        max_usd = 0.1
        max_tokens = 5
        sync_spool = true
        [tools.bash]
        on_unknown = "fail"
        output_bytes_max = 2048
        timeout_s = 7
        "#,
    );
    let day = |day| NaiveDate::from_ymd_opt(2026, 11, day);
    let sonnet = Model {
        api: Api::AnthropicMessages,
        base_url: Some("https://models.example:8443/v1".into()),
        model: Some("claude-sonnet-4-5".into()),
        file: None,
        profiles: vec!["work".into(), "spare".into()],
        api_key_env: Some("ANTHROPIC_API_KEY".into()),
        context_window: Some(200_000),
        max_output: Some(32_000),
        idle_timeout_s: Some(60),
        price: Some(Price {
            input: Usd::from_micros(3_000_000),
            output: Usd::from_micros(15_000_000),
            cache_read: Some(Usd::from_micros(300_000)),
            cache_write: Some(Usd::from_micros(3_750_000)),
            as_of: day(1),
        }),
        tool_choice: ToolChoice::Required,
    };
    let gpt = Model {
        model: Some("gpt-4.1".into()),
        price: Some(Price {
            input: Usd::from_micros(2_000_000),
            output: Usd::from_micros(8_000_000),
            as_of: day(2),
            ..Price::default()
        }),
        ..Model::new(Api::OpenaiResponses)
    };
    let script = world.environment.cwd.join("scripts/one.json").display().to_string();
    let script = Model::at(Api::Rehearsal, &script);
    let expected = Config {
        models: Arc::new([("sonnet", sonnet), ("gpt-4.1", gpt), ("script", script)].map(named).into()),
        profiles: Arc::new(
            [
                ("work", Profile::ApiKeyEnv("KEY_A".into())),
                ("spare", Profile::ApiKeyCmd("pass show spare".into())),
            ]
            .map(named)
            .into(),
        ),
        defaults: Arc::new(Defaults {
            model: Some("sonnet".into()),
            fallback: vec!["gpt-4.1".into()],
            tools: vec!["read".into()],
            timeout_s: 60,
            tool_timeout_s: 5,
            tool_execution: ToolExecution::Sequential,
            concurrency: NonZeroU32::new(2).unwrap(),
            max_turns: 3,
            max_calls: 4,
            thinking: Thinking::High,
            loop_detection: false,
            max_usd: Usd::from_micros(100_000),
            max_tokens: 5,
        }),
        tools: Arc::new(
            [("bash", Tool { on_unknown: OnUnknown::Fail, output_bytes_max: 2048, timeout_s: Some(7) })]
                .map(named)
                .into(),
        ),
        durable_workspace: true,
        sync_spool: true,
    };
    assert_eq!(world.load().config, expected);
    assert_eq!(Config::from_snapshot(&expected.snapshot()), Ok(expected));
}

fn named<T>((name, value): (&str, T)) -> (String, T) {
    (name.into(), value)
}

#[test]
fn every_mistake_names_its_place() {
    let cases = [
        (
            "[defaults]\n\nconcurency = 3",
            "3:1: unknown key `defaults.concurency`, did you mean `concurrency`?",
        ),
        ("defaults.concurency = 3", "1:10: unknown key `defaults.concurency`, did you mean `concurrency`?"),
        ("[defautls]\nmax_turns = 1", "1:2: unknown key `defautls`, did you mean `defaults`?"),
        ("max_turns = 1", "1:1: unknown key `max_turns`, did you mean `defaults.max_turns`?"),
        ("xyzzy = 1", "1:1: unknown key `xyzzy`"),
        ("\"a b\" = 1", "1:1: unknown key `\"a b\"`"),
        (
            "[profiles.p]\napi_key_env = \"A\"\napi_key = \"sk-secret\"",
            "3:1: unknown key `profiles.p.api_key`, did you mean `api_key_env`?",
        ),
        ("defaults = 5", "1:12: `defaults`: expected a table, got 5"),
        ("[[defaults]]", "1:1: `defaults`: expected a table, got a list"),
        ("models = []", "1:10: `models`: expected a table, got a list"),
        ("tools.bash = \"x\"", "1:14: `tools.bash`: expected a table, got a string"),
        (
            "defaults.max_turns = -1",
            "1:22: `defaults.max_turns`: expected a whole number of at least 0, got -1",
        ),
        (
            "defaults.max_turns = 1.0",
            "1:22: `defaults.max_turns`: expected a whole number of at least 0, got 1.0",
        ),
        (
            "defaults.max_turns = {}",
            "1:22: `defaults.max_turns`: expected a whole number of at least 0, got a table",
        ),
        (
            "defaults.max_tokens = 99999999999999999999",
            "1:23: `defaults.max_tokens`: expected a whole number of at least 0, got 99999999999999999999",
        ),
        (
            "defaults.concurrency = 0",
            "1:24: `defaults.concurrency`: expected a whole number from 1 to 4294967295, got 0",
        ),
        (
            "defaults.timeout_s = 315360001",
            "1:22: `defaults.timeout_s`: expected a whole number from 0 to 315360000, got 315360001",
        ),
        (
            "tools.ls.output_bytes_max = 1",
            "1:29: `tools.ls.output_bytes_max`: expected a whole number from 1024 to 16777216, got 1",
        ),
        (
            "defaults.loop_detection = \"on\"",
            "1:27: `defaults.loop_detection`: expected true or false, got a string",
        ),
        (
            "defaults.loop_detection.enabled = false",
            "1:10: `defaults.loop_detection`: expected true or false, got a table",
        ),
        (
            "defaults.tools = \"bash\"",
            "1:18: `defaults.tools`: expected a list of strings, like [\"a\", \"b\"], got a string",
        ),
        (
            "defaults.tools = [\"bash\", 1]",
            "1:18: `defaults.tools`: in the list: expected a string that is not empty, got 1",
        ),
        (
            "defaults.model = \"\"",
            "1:18: `defaults.model`: expected a string that is not empty, got an empty string",
        ),
        (
            "defaults.thinking = \"max\"",
            "1:21: `defaults.thinking`: expected one of `off`, `minimal`, `low`, `medium`, `high`, `xhigh`",
        ),
        (
            "defaults.tool_execution = \"both\"",
            "1:27: `defaults.tool_execution`: expected `parallel` or `sequential`",
        ),
        (
            "defaults.max_usd = -0.5",
            "1:20: `defaults.max_usd`: expected dollars with at most 6 decimals, like 2.50, got -0.5",
        ),
        (
            "defaults.max_usd = 0.0000001",
            "1:20: `defaults.max_usd`: expected dollars with at most 6 decimals, like 2.50, got 0.0000001",
        ),
        (
            "defaults.max_usd = \"2\"",
            "1:20: `defaults.max_usd`: expected an amount of dollars, like 2.50, got a string",
        ),
        (
            "[tools.bash]\nsandbox = \"none\"",
            "2:1: `tools.bash.sandbox` is not supported yet by this version: remove it",
        ),
        ("[[policy]]\ntool = \"bash\"", "1:3: `policy` is not supported yet by this version: remove it"),
        ("[mcp.all]\ncommand = []", "1:2: `mcp` is not supported yet by this version: remove it"),
        ("[models.m]", "1:9: `models.m` has no `api`: add one, like api = \"rehearsal\""),
        (
            "[models.m]\napi = \"grpc\"",
            "2:7: `models.m.api`: expected one of `anthropic-messages`, `openai-chat`, `openai-responses`, \
             `rehearsal`, `replay`",
        ),
        (
            "[models.m]\napi = \"rehearsal\"",
            "1:9: `models.m` has no `file`: add the path of the rehearsal's script",
        ),
        ("[models.m]\napi = \"openai-chat\"", "1:9: `models.m` has no `model`: add the vendor's name of it"),
        (
            "[models.m]\napi = \"replay\"\nprice.input = 1",
            "1:9: `models.m.price` has no `output`: add dollars per million tokens",
        ),
        (
            "[models.m]\napi = \"replay\"\nprice = { input = 1, output = 1, as_of = \"today\" }",
            "3:42: `models.m.price.as_of`: expected a day, like \"2026-11-01\", got a string",
        ),
        (
            "[models.m]\napi = \"replay\"\nbase_url = \"ftp://host\"",
            "3:12: `models.m.base_url`: expected an address that starts with https:// or http://",
        ),
        (
            "[models.m]\napi = \"replay\"\nbase_url = \"https://me:sk-secret@host/v1\"",
            "3:12: `models.m.base_url`: expected an address without user and password: \
             name the key with `api_key_env`",
        ),
        (
            "[models.m]\napi = \"replay\"\napi_key_env = \"sk-secret\"",
            "3:15: `models.m.api_key_env`: expected the name of a variable that holds the key, like MY_API_KEY",
        ),
        (
            "[models.m]\napi = \"replay\"\nprofiles = [\"wrok\"]\n[profiles.work]\napi_key_env = \"A\"",
            "3:1: `models.m.profiles`: unknown profile `wrok`, did you mean `work`?",
        ),
        (
            "[models.m]\napi = \"replay\"\nprofiles = [\"x.y\"]",
            "3:1: `models.m.profiles`: unknown profile `x.y`: add a table [profiles.\"x.y\"]",
        ),
        ("[profiles.p]", "1:11: `profiles.p` has no key: add `api_key_env` or `api_key_cmd`"),
        (
            "[profiles.p]\napi_key_env = \"A\"\napi_key_cmd = \"b\"",
            "3:1: `profiles.p` has both `api_key_env` and `api_key_cmd`: keep one",
        ),
    ];
    for (text, mistake) in cases {
        let expected = format!(
            "sprag.toml:{mistake}\nnothing was started: correct this mistake and run the command again"
        );
        assert_eq!(with_file(text).refused(), expected, "{text}");
    }
}

#[test]
fn all_mistakes_of_all_layers_are_told_at_once() {
    let world = World::new()
        .file("etc/sprag/config.toml", "[defaults]\nmax_turns = \"many\"\nthinkin = \"off\"\n")
        .file(
            "home/.config/sprag/config.toml",
            "[models.b]\n[defaults]\nmax_usd = -1\n[models.a]\napi = \"x\"\n",
        )
        .file("cwd/sprag.toml", "[tools.bash]\nsandbox = \"strict\"\non_unknown = 1\n")
        .var("SPRAG__DEFAULTS__CONCURENCY", "3")
        .var("SPRAG__DEFAULTS__MAX_CALLS", "lots");
    assert_eq!(
        world.refused_with(Some("missing.toml")),
        "\
/etc/sprag/config.toml:2:13: `defaults.max_turns`: expected a whole number of at least 0, got a string
/etc/sprag/config.toml:3:1: unknown key `defaults.thinkin`, did you mean `thinking`?
/home/.config/sprag/config.toml:3:11: `defaults.max_usd`: expected dollars with at most 6 decimals, like 2.50, got -1
/home/.config/sprag/config.toml:5:7: `models.a.api`: expected one of `anthropic-messages`, `openai-chat`, \
`openai-responses`, `rehearsal`, `replay`
missing.toml:1:1: cannot be read: No such file or directory (os error 2)
sprag.toml:2:1: `tools.bash.sandbox` is not supported yet by this version: remove it
sprag.toml:3:14: `tools.bash.on_unknown`: expected a string that is not empty, got 1
$SPRAG__DEFAULTS__CONCURENCY: unknown key `defaults.concurency`, did you mean `concurrency`?
$SPRAG__DEFAULTS__MAX_CALLS: `defaults.max_calls`: expected a whole number of at least 0, got a string
nothing was started: correct these mistakes and run the command again"
    );
}

#[test]
fn a_file_that_is_no_toml_is_told_with_all_its_errors() {
    assert_eq!(
        with_file("[defaults\nmax_turns = \nmax_turns = 1\nmax_turns = 2\n").refused(),
        "\
sprag.toml:1:10: unclosed table, expected `]`
sprag.toml:2:13: string values must be quoted, expected literal string
sprag.toml:3:1: duplicate key
sprag.toml:4:1: duplicate key
nothing was started: correct these mistakes and run the command again"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake() {
    let large = vec![b'#'; usize::try_from(FILE_BYTES_MAX).unwrap() + 1];
    let cases: [(&[u8], &str); 2] =
        [(&large, "larger than 1048576 bytes"), (b"a = \xff", "stream did not contain valid UTF-8")];
    for (bytes, reason) in cases {
        assert_eq!(
            World::new().file("cwd/sprag.toml", bytes).refused(),
            format!(
                "sprag.toml:1:1: cannot be read: {reason}\n\
                 nothing was started: correct this mistake and run the command again"
            )
        );
    }
}

#[test]
fn later_layers_win_key_by_key() {
    let world = World::new()
        .file(
            "etc/sprag/config.toml",
            "[defaults]\nmax_turns = 1\nmax_calls = 1\nmax_tokens = 1\nconcurrency = 1",
        )
        .file("home/.config/sprag/config.toml", "[defaults]\nmax_calls = 2\nmax_tokens = 2\nconcurrency = 2")
        .file("cwd/sprag.toml", "[defaults]\nmax_tokens = 3\nconcurrency = 3\ntimeout_s = 3")
        .file(
            "cwd/more.toml",
            "\n defaults.concurrency = 4\n defaults.timeout_s = 4\n defaults.tool_timeout_s = 4",
        )
        .var("SPRAG__DEFAULTS__TIMEOUT_S", "5")
        .var("SPRAG__DEFAULTS__TOOL_TIMEOUT_S", "5")
        .var("SPRAG__DEFAULTS__MODEL", "five");
    let flags = Overrides { model: Some("six".into()), ..Overrides::default() };
    let loaded = load(&world.environment, Some(Path::new("more.toml")), &flags).unwrap();
    let expected = Defaults {
        max_turns: 1,
        max_calls: 2,
        max_tokens: 3,
        concurrency: NonZeroU32::new(4).unwrap(),
        timeout_s: 5,
        tool_timeout_s: 5,
        model: Some("six".into()),
        ..Defaults::default()
    };
    assert_eq!(loaded.config, Config { defaults: expected.into(), ..Config::default() });

    let file = |path: PathBuf, line, column| Origin::File { path, line, column };
    let root = world.root.path();
    let origins = [
        ("defaults.max_turns", file(root.join("etc/sprag/config.toml"), 2, 1)),
        ("defaults.max_calls", file(root.join("home/.config/sprag/config.toml"), 2, 1)),
        ("defaults.max_tokens", file("sprag.toml".into(), 2, 1)),
        ("defaults.concurrency", file("more.toml".into(), 2, 11)),
        ("defaults.timeout_s", Origin::Env { name: "SPRAG__DEFAULTS__TIMEOUT_S".into() }),
        ("defaults.model", Origin::Flag),
        ("defaults.thinking", Origin::Default),
    ];
    for (key, origin) in origins {
        assert_eq!(loaded.origin(key), &origin, "{key}");
    }
}

#[test]
fn every_flag_replaces_its_default() {
    let flags = Overrides {
        model: Some("m".into()),
        tools: Some(vec!["ls".into()]),
        timeout_s: Some(1),
        concurrency: NonZeroU32::new(2),
        max_turns: Some(3),
        max_calls: Some(4),
        thinking: Some(Thinking::Low),
        max_usd: Some(Usd::from_micros(5)),
        max_tokens: Some(6),
    };
    let expected = Defaults {
        model: Some("m".into()),
        tools: vec!["ls".into()],
        timeout_s: 1,
        concurrency: NonZeroU32::new(2).unwrap(),
        max_turns: 3,
        max_calls: 4,
        thinking: Thinking::Low,
        max_usd: Usd::from_micros(5),
        max_tokens: 6,
        ..Defaults::default()
    };
    let loaded = load(&World::new().environment, None, &flags).unwrap();
    assert_eq!(*loaded.config.defaults, expected);

    let flags = Overrides { timeout_s: Some(SECONDS_MAX + 1), ..Overrides::default() };
    assert_eq!(
        load(&World::new().environment, None, &flags).unwrap_err().to_string(),
        "command line: `defaults.timeout_s`: expected at most 315360000 seconds\n\
         nothing was started: correct this mistake and run the command again"
    );
}

#[test]
fn a_file_given_twice_is_read_once() {
    let world = with_file("oops = 1");
    assert_eq!(
        world.refused_with(Some("./sprag.toml")),
        "./sprag.toml:1:1: unknown key `oops`\nnothing was started: correct this mistake and run the command again"
    );
}

#[test]
fn xdg_config_home_replaces_the_directory_below_home() {
    let world = World::new()
        .file("home/.config/sprag/config.toml", "sync_spool = true")
        .file("etc/sprag/config.toml", "durable_workspace = true");
    let xdg = world.root.path().join("etc").display().to_string();
    assert!(world.load().config.sync_spool);
    assert!(!world.var("XDG_CONFIG_HOME", &xdg).load().config.sync_spool);
}

#[test]
fn variables_are_read_as_toml_else_as_text() {
    let files = "[models.Fast]\napi = \"replay\"\n[models.\"gpt-4.1\"]\napi = \"replay\"\n";
    let world = with_file(files)
        .var("SPRAG__DURABLE_WORKSPACE", "true")
        .var("SPRAG__DEFAULTS__MODEL", "rehearsal:a b.json")
        .var("SPRAG__DEFAULTS__TOOLS", "[\"ls\", 'read']")
        .var("SPRAG__DEFAULTS__MAX_USD", "2.50")
        .var("SPRAG__MODELS__FAST__MAX_OUTPUT", "10")
        .var("SPRAG__MODELS__GPT-4.1__PRICE__INPUT", "1")
        .var("SPRAG__MODELS__GPT-4.1__PRICE__OUTPUT", "1")
        .var("SPRAG__MODELS__NEW_ONE__API", "\"rehearsal\"")
        .var("SPRAG__MODELS__NEW_ONE__FILE", "x.json")
        .var("SPRAG__TOOLS__BASH__ON_UNKNOWN", "tell")
        .var("sprag__lower", "ignored")
        .var("SPRAG_DATA", "ignored");
    let one = Usd::from_micros(1_000_000);
    let gpt = Model {
        price: Some(Price { input: one, output: one, ..Price::default() }),
        ..Model::new(Api::Replay)
    };
    let fast = Model { max_output: Some(10), ..Model::new(Api::Replay) };
    let new_one = Model::at(Api::Rehearsal, &world.environment.cwd.join("x.json").display().to_string());
    let expected = Config {
        models: Arc::new([("Fast", fast), ("gpt-4.1", gpt), ("new_one", new_one)].map(named).into()),
        defaults: Arc::new(Defaults {
            model: Some("rehearsal:a b.json".into()),
            tools: vec!["ls".into(), "read".into()],
            max_usd: Usd::from_micros(2_500_000),
            ..Defaults::default()
        }),
        tools: Arc::new(
            [("bash", Tool { on_unknown: OnUnknown::Tell, ..Tool::default() })].map(named).into(),
        ),
        durable_workspace: true,
        ..Config::default()
    };
    let loaded = world.load();
    assert_eq!(loaded.config, expected);
    assert_eq!(
        loaded.origin("models.\"gpt-4.1\".price.input"),
        &Origin::Env { name: "SPRAG__MODELS__GPT-4.1__PRICE__INPUT".into() }
    );
}

#[test]
fn mistakes_in_variables_name_the_variable() {
    let mut world = with_file("[models.Ab]\napi = \"replay\"\n[models.AB]\napi = \"replay\"\n")
        .var("SPRAG__", "1")
        .var("SPRAG__DEFAULTS", "1")
        .var("SPRAG__DEFAULTS__TOOLS", "ls,read")
        .var("SPRAG__DEFAULTS__MODEL", "")
        .var("SPRAG__MODELS__AB__MAX_OUTPUT", "1")
        .var("SPRAG__MODELS__X__PRICE__INPUT__Y__Z", "1")
        .var("SPRAG__PROFILES__P", "{ api_key_env = \"A\" }");
    world.environment.vars.insert("SPRAG__SYNC_SPOOL".into(), OsString::from_vec(vec![0xff]));
    assert_eq!(
        world.refused(),
        "\
sprag.toml:1:9: nothing
nothing was started: correct these mistakes and run the command again"
    );
}

#[test]
fn a_later_layer_may_name_the_key_in_another_way() {
    let world = World::new()
        .file("etc/sprag/config.toml", "[profiles.p]\napi_key_env = \"A\"")
        .file("cwd/sprag.toml", "[profiles.p]\napi_key_cmd = \"b\"");
    let profiles = [("p", Profile::ApiKeyCmd("b".into()))].map(named);
    assert_eq!(world.load().config, Config { profiles: Arc::new(profiles.into()), ..Config::default() });
}

#[test]
fn a_run_asks_for_a_model_by_name() {
    let config = with_file(
        "[models.script]\napi = \"rehearsal\"\nfile = \"/s.json\"\n\
         [models.sonnet]\napi = \"anthropic-messages\"\nmodel = \"x\"\n",
    )
    .load()
    .config;
    let asked = |name: &str| config.model(name).map_err(|error| error.to_string());
    let no = |text: &str| Err(text.to_owned());
    assert_eq!(asked("script"), Ok(Model::at(Api::Rehearsal, "/s.json")));
    assert_eq!(asked("rehearsal:a:b.json"), Ok(Model::at(Api::Rehearsal, "a:b.json")));
    let tail = "not supported yet by this version; use one with api `rehearsal`";
    assert_eq!(asked("sonnet"), no(&format!("model `sonnet` needs api `anthropic-messages`, {tail}")));
    assert_eq!(asked("replay:dir"), no(&format!("model `replay:dir` needs api `replay`, {tail}")));
    assert_eq!(
        asked("sonet"),
        no("model `sonet` is not configured, did you mean `sonnet`?; \
            add a table [models.sonet] or use --model rehearsal:FILE")
    );
    assert_eq!(
        asked("rehearsal:"),
        no("model `rehearsal:` is not configured; \
            add a table [models.\"rehearsal:\"] or use --model rehearsal:FILE")
    );
}

#[test]
fn a_tool_falls_back_to_the_defaults() {
    let config =
        with_file("[defaults]\ntool_timeout_s = 9\n[tools.a]\ntimeout_s = 0\n[tools.b]\n").load().config;
    assert_eq!(["a", "b", "c"].map(|name| config.tool_timeout_s(name)), [0, 9, 9]);
    assert_eq!(config.tool("c"), Tool::default());
}

#[test]
fn a_model_served_elsewhere_may_be_silent_for_longer() {
    let vendor = Model::new(Api::OpenaiChat);
    let own = Model { base_url: Some("http://localhost".into()), ..vendor.clone() };
    let set = Model { idle_timeout_s: Some(1), ..own.clone() };
    assert_eq!([vendor, own, set].map(|model| model.idle_timeout_s()), [120, 300, 1]);
}

#[test]
fn the_data_directory_is_the_first_that_is_named() {
    let environment = |vars: &[(&str, &str)]| Environment {
        vars: vars.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect(),
        home: Some("/home/me".into()),
        cwd: "/cwd".into(),
        etc: "/etc".into(),
    };
    let xdg = ("XDG_STATE_HOME", "/state");
    let cases = [
        (Some("flag"), environment(&[("SPRAG_DATA", "/data"), xdg]), "/cwd/flag"),
        (None, environment(&[("SPRAG_DATA", "data"), xdg]), "/cwd/data"),
        (None, environment(&[("SPRAG_DATA", ""), xdg]), "/state/sprag"),
        (None, environment(&[("XDG_STATE_HOME", "relative")]), "/home/me/.local/state/sprag"),
        (None, environment(&[]), "/home/me/.local/state/sprag"),
    ];
    for (flag, environment, expected) in cases {
        assert_eq!(data_dir(flag.map(PathBuf::from), &environment), Ok(expected.into()), "{environment:?}");
    }
    assert_eq!(
        data_dir(None, &Environment::default()).unwrap_err().to_string(),
        "no directory for the store: there is no home directory; give --data DIR or set SPRAG_DATA"
    );
}

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
        "configuration snapshot not readable: unknown field `policy`, expected one of `models`, `profiles`, \
         `defaults`, `tools`, `durable_workspace`, `sync_spool` at line 1 column 9; \
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
        (number(), number(), number(), option::of(price), any::<bool>()),
    )
        .prop_map(
            |((api, base_url, model, file, profiles, api_key_env), (window, output, idle, price, must))| {
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
                }
            },
        )
}

fn defaults() -> impl Strategy<Value = Defaults> {
    let levels =
        [Thinking::Off, Thinking::Minimal, Thinking::Low, Thinking::Medium, Thinking::High, Thinking::Xhigh];
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
    let tool = (on_unknown, any::<u64>(), option::of(any::<u64>())).prop_map(
        |(on_unknown, output_bytes_max, timeout_s)| Tool { on_unknown, output_bytes_max, timeout_s },
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
        prop_assert_eq!(read, Ok(config));
    }

    #[test]
    fn any_text_is_read_or_refused_without_panic(text in "([a-z_.\\[\\]{}=\"'#0-9 \n]|models|defaults|max_usd|é){0,60}") {
        let world = with_file(&text);
        let _ = load(&world.environment, None, &Overrides::default());
    }
}
