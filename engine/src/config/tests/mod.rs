//! Whole configurations in, whole outputs out. Each test has directories and variables of its own.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use model::guard::retry::ThinkingLevel;

mod snapshot;

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

    /// The snapshot, indented, with the directory of the test taken out.
    fn snapshot(&self) -> String {
        let value: serde_json::Value = serde_json::from_str(&self.load().config.snapshot()).unwrap();
        let readable = serde_json::to_string_pretty(&value).unwrap() + "\n";
        readable.replace(&self.root.path().display().to_string(), "")
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
    assert_eq!(World::new().snapshot(), include_str!("no_key.json"));
}

#[test]
fn every_key_is_read() {
    let world = with_file(include_str!("every_key.toml"));
    assert_eq!(world.snapshot(), include_str!("every_key.json"));
    let work = ("work", Profile::ApiKeyEnv("KEY_A".into()));
    let spare = ("spare", Profile::ApiKeyCmd("pass show spare".into()));
    assert_eq!(*world.load().config.profiles, [work, spare].map(named).into());
}

#[test]
fn every_key_can_be_a_variable() {
    let file: toml::Table = include_str!("every_key.toml").parse().unwrap();
    let variables = variables("SPRAG", &toml::Value::Table(file));
    let by_variable = variables.iter().fold(World::new(), |world, (name, value)| world.var(name, value));
    let by_file = with_file(include_str!("every_key.toml"));
    assert_eq!(by_variable.snapshot(), by_file.snapshot());
    assert_eq!(by_variable.load().config.profiles, by_file.load().config.profiles);
}

/// Each value below a key as a variable.
fn variables(path: &str, value: &toml::Value) -> Vec<(String, String)> {
    let below =
        |(key, value): (&String, &toml::Value)| variables(&format!("{path}__{}", key.to_uppercase()), value);
    match value.as_table() {
        Some(table) => table.iter().flat_map(below).collect(),
        None => vec![(path.to_owned(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))],
    }
}

#[test]
fn what_a_later_version_has_is_refused_wherever_it_stands() {
    let world = with_file(
        "tools = { bash = { sandbox = \"workspace\" } }\n\
         [mcp.everything]\n\
         command = [\"npx\"]\n\
         [mcp.web]\n\
         url = \"http://localhost\"\n\
         [[policy]]\n\
         tool = \"bash\"\n\
         [[policy]]\n\
         tool = \"write\"\n",
    )
    .file("etc/sprag/config.toml", "policy = []\nmcp = {}\n[tools.write]\nsandbox = \"none\"\n")
    .var("SPRAG__POLICY", "[]")
    .var("SPRAG__MCP__WEB__URL", "http://localhost")
    .var("SPRAG__TOOLS__BASH__SANDBOX", "strict");
    assert_eq!(
        world.refused(),
        "\
/etc/sprag/config.toml:1:1: `policy` is not supported yet by this version: remove it
/etc/sprag/config.toml:2:1: `mcp` is not supported yet by this version: remove it
/etc/sprag/config.toml:4:1: `tools.write.sandbox` is not supported yet by this version: remove it
sprag.toml:1:20: `tools.bash.sandbox` is not supported yet by this version: remove it
sprag.toml:2:2: `mcp` is not supported yet by this version: remove it
sprag.toml:6:3: `policy` is not supported yet by this version: remove it
$SPRAG__MCP__WEB__URL: `mcp` is not supported yet by this version: remove it
$SPRAG__POLICY: `policy` is not supported yet by this version: remove it
$SPRAG__TOOLS__BASH__SANDBOX: `tools.bash.sandbox` is not supported yet by this version: remove it
nothing was started: correct these mistakes and run the command again"
    );
}

#[test]
fn the_files_that_are_read_can_be_named() {
    let environment = Environment {
        home: Some("/home/me".into()),
        cwd: "/work".into(),
        etc: "/etc".into(),
        ..Environment::default()
    };
    let usual = ["/etc/sprag/config.toml", "/home/me/.config/sprag/config.toml", "/work/sprag.toml"];
    assert_eq!(files(&environment, None), usual.map(PathBuf::from));
    assert_eq!(files(&environment, Some(Path::new("a.toml")))[3], PathBuf::from("/work/a.toml"));
}

fn named<T>((name, value): (&str, T)) -> (String, T) {
    (name.into(), value)
}

/// `mistakes.txt` holds files, each with the mistake in it after `=>`.
#[test]
fn every_mistake_names_its_place() {
    let cases = include_str!("mistakes.txt");
    let mut text = String::new();
    for line in cases.lines() {
        match line.strip_prefix("=> ") {
            Some(mistake) => {
                let expected =
                    format!("{mistake}\nnothing was started: correct this mistake and run the command again");
                assert_eq!(with_file(text.trim_start()).refused(), expected, "{text}");
                text.clear();
            }
            None => text = text + line + "\n",
        }
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
/home/.config/sprag/config.toml:3:11: `defaults.max_usd`: expected dollars with at most 6 decimals, \
like 2.50, got -1
/home/.config/sprag/config.toml:5:7: `models.a.api`: expected one of `anthropic-messages`, `openai-chat`, \
`openai-responses`, `rehearsal`, `replay`
missing.toml:1:1: cannot be read: No such file or directory (os error 2)
sprag.toml:2:1: `tools.bash.sandbox` is not supported yet by this version: remove it
sprag.toml:3:14: `tools.bash.on_unknown`: expected one of `ask`, `tell`, `fail`
$SPRAG__DEFAULTS__CONCURENCY: unknown key `defaults.concurency`, did you mean `concurrency`?
$SPRAG__DEFAULTS__MAX_CALLS: `defaults.max_calls`: expected a whole number of at least 0, got a string
nothing was started: correct these mistakes and run the command again"
    );
}

#[test]
fn a_file_that_is_no_toml_is_told_with_all_its_errors() {
    assert_eq!(
        with_file("[defaults]\nmax_turns = \nmax_calls = 1\nmax_calls = 2\nthinking = off\noops = 1\n")
            .refused(),
        "\
sprag.toml:2:13: string values must be quoted, expected literal string
sprag.toml:4:1: duplicate key
sprag.toml:5:12: string values must be quoted, expected literal string
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
        thinking: Some(ThinkingLevel::Low),
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
        thinking: ThinkingLevel::Low,
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
fn whoever_names_another_model_than_the_default_gets_no_fallback() {
    let world = with_file(
        "[models.a]\napi = \"replay\"\n[models.b]\napi = \"replay\"\n\
         [defaults]\nmodel = \"a\"\nfallback = [\"b\"]\n",
    );
    let fallback = |model: Option<&str>| {
        let flags = Overrides { model: model.map(str::to_owned), ..Overrides::default() };
        load(&world.environment, None, &flags).unwrap().config.defaults.fallback.clone()
    };
    assert_eq!(fallback(None), ["b"]);
    assert_eq!(fallback(Some("a")), ["b"]);
    assert_eq!(fallback(Some("b")), Vec::<String>::new());
}

#[test]
fn a_file_given_twice_is_read_once() {
    let world = with_file("oops = 1");
    assert_eq!(
        world.refused_with(Some("./sprag.toml")),
        "./sprag.toml:1:1: unknown key `oops`\n\
         nothing was started: correct this mistake and run the command again"
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
$SPRAG__: unknown key `\"\"`
$SPRAG__DEFAULTS: `defaults`: expected a table, got 1
$SPRAG__DEFAULTS__MODEL: `defaults.model`: expected a non-empty string, got an empty string
$SPRAG__DEFAULTS__TOOLS: `defaults.tools`: expected a list of strings, like [\"a\", \"b\"], got a string
$SPRAG__MODELS__AB__MAX_OUTPUT: `models` has AB and Ab: a variable cannot say which is meant
$SPRAG__MODELS__X__PRICE__INPUT__Y__Z: `models.x.price.input`: expected an amount of dollars, like 2.50, \
got a table
$SPRAG__MODELS__X__PRICE__INPUT__Y__Z: `models.x` has no `api`: add one, like api = \"rehearsal\"
$SPRAG__PROFILES__P: `profiles.p`: expected a table, got a string
$SPRAG__SYNC_SPOOL: expected UTF-8
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
    let sonnet = Model { model: Some("x".into()), ..Model::new(Api::AnthropicMessages) };
    assert_eq!(asked("sonnet"), Ok(sonnet));
    assert_eq!(asked("replay:dir"), Ok(Model::at(Api::Replay, "dir")));
    assert_eq!(asked("sonet"), no("model `sonet` is not configured, did you mean `sonnet`?"));
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
