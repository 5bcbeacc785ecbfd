//! Scripts on disk, and the log of calls.

use std::fs;

use tempfile::TempDir;

use super::*;

struct World {
    root: TempDir,
}

impl World {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = self.path("script.json");
        fs::write(&path, text).unwrap();
        path
    }

    /// The words about a script that cannot be used, with `DIR` for the directory.
    fn mistake(&self, path: &Path) -> String {
        let error = Rehearsal::open(path, None).unwrap_err().to_string();
        error.replace(self.root.path().to_str().unwrap(), "DIR")
    }
}

#[test]
fn mistakes_are_told_with_their_place_and_what_was_probably_meant() {
    let world = World::new();
    let cases = include_str!("mistakes.txt");
    let mut told = String::new();
    for script in cases.lines().filter(|line| line.starts_with('{')) {
        let mistake = world.mistake(&world.script(&script.replace('⏎', "\n")));
        let mistake = mistake.strip_suffix("; correct the rehearsal and try again").unwrap();
        told += &format!("{script}\n  {}\n", mistake.strip_prefix("DIR/script.json").unwrap());
    }
    assert_eq!(told, cases);
}

#[test]
fn files_that_cannot_be_read_are_told_with_the_next_step() {
    let world = World::new();
    assert_eq!(
        world.mistake(&world.path("none.json")),
        "no rehearsal at DIR/none.json; give the path of a script in --model rehearsal:FILE"
    );
    assert_eq!(
        world.mistake(world.root.path()),
        "rehearsal DIR cannot be read: Is a directory (os error 21); give the path of a readable file"
    );
    let large = fs::File::create(world.path("large.json")).unwrap();
    large.set_len(SCRIPT_BYTES_MAX + 1).unwrap();
    assert_eq!(
        world.mistake(&world.path("large.json")),
        "rehearsal DIR/large.json is larger than 16777216 bytes; shorten its texts"
    );
    let error = Rehearsal::from_value(&json!({ "turns": [{ "txt": "" }] })).unwrap_err();
    assert!(error.to_string().starts_with("rehearsal: unknown key `txt`"), "{error}");
}

#[test]
fn a_script_that_is_gone_or_changed_is_missing() {
    let world = World::new();
    let text = r#"{"turns":[]}"#;
    let path = world.script(text);
    let model = Rehearsal::open(&path, None).unwrap();
    let (place, hash) = (path.display(), blake3::hash(text.as_bytes()));
    let identity = format!("{place}#{hash}");
    assert_eq!((model.identity(), model.missing(&identity)), (identity.clone(), None));

    let changed = Some(format!("rehearsal {place} was changed; put back the one that the run started with"));
    world.script(r#"{"turns":[{}]}"#);
    assert_eq!(model.missing(&identity), changed);
    let other = Rehearsal::open(&path, None).unwrap();
    assert_eq!(other.missing(&identity), changed);
    world.script(text);
    assert_eq!((model.missing(&identity), other.missing(&identity)), (None, changed));
    fs::remove_file(&path).unwrap();
    assert_eq!(model.missing(&identity), Some(format!("rehearsal {place} is gone; put it back")));
    let elsewhere = Some("the run started with another rehearsal, /else".to_owned());
    assert_eq!(model.missing("/else#00"), elsewhere);

    let value = rehearsal(json!({ "turns": [] }));
    assert_eq!((value.identity(), value.missing(&format!("#{hash}"))), (format!("#{hash}"), None));
}

#[test]
fn the_path_of_a_script_becomes_absolute() {
    let path = Path::new("../engine/Cargo.toml");
    let error = Rehearsal::open(path, None).unwrap_err().to_string();
    assert!(error.starts_with('/'), "{error}");
}

#[tokio::test(start_paused = true)]
async fn each_call_is_logged_before_its_first_chunk() {
    let world = World::new();
    let log = world.path("calls.jsonl");
    let path = world.script(
        r#"{"turns":[{"text":"hi","delay_ms":1000,"calls":[{"tool":"ls"}],"fail":[{"kind":"overloaded"}]}]}"#,
    );
    let open = || Rehearsal::open(&path, Some(log.clone())).unwrap();
    let (one, two) = (open(), open());
    let unpolled = one.stream(request(0, 0), CancellationToken::new());
    assert!(!log.exists());
    drop(unpolled);

    failed(&one, request(0, 0)).await;
    let mut stream = two.stream(request(0, 1), CancellationToken::new());
    assert_eq!(stream.next().await, Some(StreamEvent::Opened));
    failed(&one, request(7, 0)).await;
    let line = |turn: u32, attempt: u32, outcome: &str| {
        let hash = blake3::Hash::from_bytes(one.prepare(&request(turn, attempt)).unwrap().hash);
        let run = "11".repeat(16);
        format!(
            r#"{{"run":"{run}","turn":{turn},"attempt":{attempt},"request":"{hash}","outcome":"{outcome}"}}"#
        )
    };
    let lines = [line(0, 0, "overloaded"), line(0, 1, "toolUse"), line(7, 0, "script")];
    assert_eq!(fs::read_to_string(&log).unwrap().lines().collect::<Vec<_>>(), lines);
}

#[tokio::test]
async fn a_call_that_cannot_be_logged_fails() {
    let world = World::new();
    let path = world.script(r#"{"turns":[{"text":"hi"}]}"#);
    let model = Rehearsal::open(&path, Some(world.path("none/calls.jsonl"))).unwrap();
    let failure = failed(&model, request(0, 0)).await;
    let words = format!("{}: {}", failure.kind.name(), failure.message);
    assert_eq!(words, "script: rehearsal log: No such file or directory (os error 2)");
}
