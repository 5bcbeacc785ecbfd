//! The form of the files: names, heads, what is left out.

use model::RunId;

use super::*;
use crate::config::Api;

#[test]
fn names_of_models_are_names_of_directories_that_never_meet() {
    let names = ["sonnet", "gpt-4.1", "a/b", "a_b", "a%2Fb", "..", "ż"].map(file_name);
    assert_eq!(names, ["sonnet", "gpt-4.1", "a%2Fb", "a_b", "a%252Fb", "%2E.", "%C5%BC"]);
}

#[test]
fn a_head_is_read_as_it_was_written() {
    let headers = [
        ("content-type", "text/event-stream"),
        ("set-cookie", "session=secret"),
        ("x-ratelimit-reset", "7s"),
        ("x-empty", ""),
        ("retry-after", ""),
    ];
    let head = Recorded::head(429, &Headers::of(&headers));
    let expected = "sprag response 1\nstatus 429\ncontent-type: text/event-stream\n\
                    x-ratelimit-reset: 7s\nretry-after: \n\n";
    assert_eq!(head, expected);
    let body = b"data: 1\n\n\xff\0".to_vec();
    let kept = Headers::of(&[headers[0], headers[2], headers[4]]);
    let whole = [head.as_bytes(), &body].concat();
    assert_eq!(Recorded::of(whole), Some(Recorded { status: 429, headers: kept, body }));
    for len in 0..head.len() {
        assert_eq!(Recorded::of(head.as_bytes()[..len].to_vec()), None, "{len} bytes");
    }
}

#[test]
fn what_is_said_of_keys_is_left_out() {
    let model = Model {
        base_url: Some("https://user:pass@host:8/path?key=secret#part".to_owned()),
        model: Some("vendor-m".to_owned()),
        profiles: vec!["work".to_owned()],
        api_key_env: Some("KEY".to_owned()),
        max_output: Some(7),
        ..Model::new(Api::OpenaiChat)
    };
    let recording = Recording::new(PathBuf::new(), &Origin::default());
    let expected = Model {
        base_url: Some("https://host:8/path".to_owned()),
        profiles: Vec::new(),
        api_key_env: None,
        ..model.clone()
    };
    assert_eq!(recording.cast(&model).model, expected);
}

#[test]
fn a_model_is_written_once_for_its_run_and_again_if_a_crash_has_cut_it() {
    let dir = tempfile::tempdir().unwrap();
    let origin = |run| Origin { run: RunId([run; 16]), ..Origin::default() };
    let recording = |run| Recording::new(dir.path().to_owned(), &origin(run));
    let model = Model::new(Api::OpenaiChat);
    let place = recording(1).open("m", &model).unwrap();
    let cast = Cast::read(&place).unwrap();
    let other = Model { max_output: Some(1), ..model.clone() };
    recording(1).open("m", &other).unwrap();
    assert_eq!(Cast::read(&place).unwrap(), cast);
    std::fs::write(place.join(CAST), "{\"format\"").unwrap();
    recording(1).open("m", &model).unwrap();
    assert_eq!(Cast::read(&place).unwrap(), cast);
    let refused = recording(2).open("m", &model).unwrap_err();
    assert_eq!(refused.to_string(), "the directory holds the recording of another run");
}
