//! Answers in the background: cut anywhere, lost with their engine, found again, given up.
//!
//! The server is a few lines of its own that speak what the protocol documents of responses in the background: numbered
//! events, the rest of them behind a number, and a way to end them. It keeps a list of what it was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use model::input::FailureKind;
use model::message::AssistantMessage;
use model::{Millis, RunId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{body, configured, reader, recorded, request, text, user};
use crate::config::{Api, Model, Profile};
use crate::provider::tap::SpoolTap;
use crate::provider::{
    Client, ModelProvider, Recording, Remote, Request, Spool, StreamEvent, TakenUp, Unfinished, Update,
};
use crate::spool::CallName;

/// Cuts of each recording.
const CUTS: usize = 1_000;

const RECORDINGS: [&str; 4] =
    ["aimock-responses-tools", "aimock-responses-text", "llama-responses-tools", "llama-responses-text"];

/// The events of a recording, numbered as in the background.
fn numbered(name: &str) -> Vec<String> {
    let whole = String::from_utf8(body(&recorded(name))).unwrap();
    let events = whole.split_inclusive("\n\n").filter(|event| event.contains("data: {"));
    let number = |(n, event): (usize, &str)| {
        event.replacen("data: {", &format!("data: {{\"sequence_number\":{n},"), 1)
    };
    events.enumerate().map(number).collect()
}

/// What a server sends of a response behind the event of a number.
fn behind(events: &[String], after: Option<u64>) -> String {
    let first = after.map_or(0, |after| usize::try_from(after).unwrap() + 1);
    events[first.min(events.len())..].concat()
}

/// An answer and what was told of it, read from one connection after the other. Each but the last ends after so many bytes.
fn read(events: &[String], cuts: &[usize]) -> (AssistantMessage, Vec<Update>, Vec<u8>) {
    let (mut reader, mut updates, mut spool) = (reader(Api::OpenaiResponses), Vec::new(), Vec::new());
    let mut after = None;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let sent = behind(events, after);
        let sent = &sent.as_bytes()[..cut.min(sent.len())];
        reader.push(sent).unwrap();
        spool.extend_from_slice(sent);
        updates.extend(reader.updates());
        // A response that was not even named is asked for from its beginning.
        match reader.place() {
            Some(place) => {
                after = Some(place.after);
                spool.truncate(usize::try_from(place.whole).unwrap());
                reader.rejoin();
            }
            None if reader.is_over() => break,
            None => return read(events, &[]),
        }
    }
    (reader.conclude().unwrap(), updates, spool)
}

#[test]
fn a_response_that_is_cut_anywhere_and_found_again_is_the_whole_answer() {
    let mut random = StdRng::seed_from_u64(7);
    for name in RECORDINGS {
        let events = numbered(name);
        let bytes = events.concat();
        let (whole, updates, _) = read(&events, &[]);
        for _ in 0..CUTS {
            let cuts: Vec<usize> =
                (0..random.random_range(1..4)).map(|_| random.random_range(0..bytes.len())).collect();
            let (found, told, spool) = read(&events, &cuts);
            assert_eq!((&found, &told), (&whole, &updates), "{name}: {cuts:?}");
            // What the spool holds in the end is a response without a seam.
            assert_eq!(String::from_utf8(spool).unwrap(), bytes, "{name}: {cuts:?}");
        }
    }
}

#[test]
fn an_event_that_comes_again_counts_once() {
    let events = numbered("llama-responses-tools");
    let (whole, ..) = read(&events, &[]);
    let mut reader = reader(Api::OpenaiResponses);
    reader.push(events[..9].concat().as_bytes()).unwrap();
    reader.rejoin();
    reader.push(events.concat().as_bytes()).unwrap();
    assert_eq!(reader.conclude().unwrap(), whole);
}

#[test]
fn what_was_kept_with_a_doubled_event_is_read_as_one() {
    let events = numbered("llama-responses-tools");
    let (whole, ..) = read(&events, &[]);
    let doubled = [&events[..9], &events[4..]].concat().concat();
    let mut reader = reader(Api::OpenaiResponses);
    reader.push(doubled.as_bytes()).unwrap();
    assert_eq!(reader.conclude().unwrap(), whole);
}

#[test]
fn numbers_may_begin_anywhere() {
    let events = numbered("llama-responses-text");
    let (whole, ..) = read(&events, &[]);
    let from_seven = (0..events.len()).rev().fold(events.concat(), |text, n| {
        let number = |n: usize| format!("\"sequence_number\":{n},");
        text.replacen(&number(n), &number(n + 7), 1)
    });
    let mut reader = reader(Api::OpenaiResponses);
    reader.push(from_seven.as_bytes()).unwrap();
    assert_eq!(reader.conclude().unwrap(), whole);
}

#[test]
fn a_rest_that_leaves_events_out_or_is_another_s_is_no_answer() {
    let events = numbered("llama-responses-text");
    let other = events.concat().replace(&id(&events), "resp_other");
    for (rest, words) in [
        (events[5..].concat(), "event 5 of the answer came behind event 2"),
        (other, "the rest of another response came, of \"resp_other\""),
    ] {
        let mut reader = reader(Api::OpenaiResponses);
        reader.push(events[..3].concat().as_bytes()).unwrap();
        reader.rejoin();
        let fault = reader.push(rest.as_bytes()).unwrap_err();
        assert_eq!((fault.kind, fault.words.as_str()), (FailureKind::Connection, words));
    }
}

/// What the server does with one request for an answer, or for the rest of one.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Sends so many bytes and hangs up, as if the response ended there.
    End(usize),
    /// The same, against what its head announced.
    Break(usize),
    /// Sends so many bytes, and keeps the connection.
    Hold(usize),
    /// Sends all.
    Whole,
    /// Refuses.
    Refuse(u16),
}

#[derive(Clone)]
struct Vendor {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Vendor {
    async fn start(events: Vec<String>, acts: &[Act]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let vendor = Self { address, asked: Arc::default() };
        let (asked, acts) = (Arc::clone(&vendor.asked), acts.to_vec());
        let mut acts = acts.into_iter();
        tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let line = read_request(&mut connection).await;
                asked.lock().unwrap().push(line.clone());
                let act = if line.ends_with("/cancel") { Act::Refuse(200) } else { acts.next().unwrap() };
                let after = line.split_once("starting_after=").map(|(_, after)| after.parse().unwrap());
                tokio::spawn(serve(connection, behind(&events, after), act));
            }
        });
        vendor
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until the server was asked this.
    async fn is_asked(&self, line: &str) {
        while !self.asked().iter().any(|asked| asked == line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn model(&self, idle_timeout_s: u64) -> Model {
        Model {
            base_url: Some(self.address.clone()),
            background: true,
            idle_timeout_s: Some(idle_timeout_s),
            ..configured(Api::OpenaiResponses)
        }
    }

    fn remote(&self, idle_timeout_s: u64) -> Remote {
        Remote::new(self.model(idle_timeout_s), Arc::default(), Client::new().unwrap()).unwrap()
    }
}

async fn read_request(connection: &mut TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        connection.read_buf(&mut request).await.unwrap();
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).into_owned();
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length: ").map(|length| length.parse::<usize>().unwrap())
        });
        if request.len() >= end + 4 + length.unwrap_or(0) {
            return head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        }
    }
}

async fn serve(mut connection: TcpStream, rest: String, act: Act) {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    let (head, bytes) = match act {
        Act::End(bytes) | Act::Hold(bytes) => (format!("{stream}\r\n"), bytes),
        Act::Break(bytes) => (format!("{stream}content-length: 9999999\r\n\r\n"), bytes),
        Act::Whole => (format!("{stream}\r\n"), usize::MAX),
        Act::Refuse(status) => (format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n"), 0),
    };
    let rest = &rest.as_bytes()[..bytes.min(rest.len())];
    let _ = connection.write_all(&[head.as_bytes(), rest].concat()).await;
    if let Act::Hold(_) = act {
        // Returns when the call hangs up.
        let _ = connection.read(&mut [0]).await;
    }
}

fn asking() -> Request {
    request([user(vec![text("hi")])], &[])
}

async fn last(stream: BoxStream<'static, StreamEvent>) -> StreamEvent {
    let events: Vec<StreamEvent> = stream.collect().await;
    events.into_iter().last().unwrap()
}

/// The answer without what differs from call to call.
fn plain(message: &AssistantMessage) -> AssistantMessage {
    AssistantMessage { at: Millis(0), provider: "p".to_owned(), ..message.clone() }
}

fn answered(event: StreamEvent) -> AssistantMessage {
    let StreamEvent::Done(message) = event else { panic!("{event:?}") };
    plain(&message)
}

fn id(events: &[String]) -> String {
    let data = events[0].split_once("data: ").unwrap().1;
    serde_json::from_str::<Value>(data).unwrap()["response"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_connection_that_is_lost_is_made_anew_and_nothing_is_asked_twice() {
    let events = numbered("llama-responses-text");
    let (whole, ..) = read(&events, &[]);
    let three: usize = events[..3].iter().map(String::len).sum();
    let acts = [Act::Break(three + 10), Act::Refuse(503), Act::End(100), Act::Whole];
    let vendor = Vendor::start(events.clone(), &acts).await;
    let answer = last(vendor.remote(60).stream(asking(), CancellationToken::new())).await;
    assert_eq!(answered(answer), whole);
    let rest = |after: u64| format!("GET /v1/responses/{}?stream=true&starting_after={after}", id(&events));
    assert_eq!(vendor.asked(), ["POST /v1/responses".to_owned(), rest(2), rest(2), rest(2)]);
}

#[tokio::test]
async fn a_key_that_is_refused_or_not_there_gives_no_answer_up() {
    let events = numbered("llama-responses-text");
    let (whole, ..) = read(&events, &[]);
    for status in [401, 403] {
        let vendor = Vendor::start(events.clone(), &[Act::Break(600), Act::Refuse(status), Act::Whole]).await;
        let answer = last(vendor.remote(60).stream(asking(), CancellationToken::new())).await;
        assert_eq!(answered(answer), whole);
        assert_eq!(vendor.asked().len(), 3);
    }

    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), &events.concat().as_bytes()[..600]);
    let vendor = Vendor::start(events.clone(), &[Act::Whole]).await;
    // It prints a key from the second time on.
    let mark = dir.path().join("mark");
    let command = format!("[ -e {0} ] && echo k || {{ touch {0}; exit 1; }}", mark.display());
    let profiles = [("p".to_owned(), Profile::ApiKeyCmd(command))].into();
    let model = Model { profiles: vec!["p".to_owned()], ..vendor.model(60) };
    let remote = Remote::new(model, Arc::new(profiles), Client::new().unwrap()).unwrap();
    let call = Unfinished { kept: spool.read().unwrap(), spool, profile: None, recording: None };
    let Some(TakenUp::GoesOn(stream)) = remote.take_up(call, CancellationToken::new()) else { panic!() };
    assert_eq!(answered(last(stream).await), whole);
}

#[tokio::test]
async fn what_ends_with_its_connection_costs_no_recording() {
    let events = numbered("llama-responses-text");
    let vendor = Vendor::start(Vec::new(), &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), &events.concat().as_bytes()[..600]);
    let recording = Arc::new(Recording::new(dir.path().join("recording"), &asking().origin));
    let model = Model { background: false, ..vendor.model(60) };
    let remote = Remote::new(model, Arc::default(), Client::new().unwrap()).unwrap();
    let kept = spool.read().unwrap();
    let call = Unfinished { kept, spool, profile: None, recording: Some(Arc::clone(&recording)) };
    assert!(remote.take_up(call, CancellationToken::new()).is_none());
    assert_eq!(recording.lost(), None);
}

#[tokio::test]
async fn asking_for_the_rest_touches_nothing_until_it_is_found() {
    let events = numbered("llama-responses-text");
    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), &events.concat().as_bytes()[..600]);
    let recording = Arc::new(Recording::new(dir.path().join("recording"), &asking().origin));
    let call = || Unfinished {
        kept: spool.read().unwrap(),
        spool: spool.clone(),
        profile: None,
        recording: Some(Arc::clone(&recording)),
    };
    let vendor = Vendor::start(events.clone(), &[Act::Whole]).await;
    let before = std::fs::read(spool.path()).unwrap();
    let Some(TakenUp::GoesOn(stream)) = vendor.remote(60).take_up(call(), CancellationToken::new()) else {
        panic!()
    };
    drop(stream);
    assert_eq!((std::fs::read(spool.path()).unwrap() == before, recording.lost()), (true, None));
    assert!(vendor.asked().is_empty());
    let Some(TakenUp::GoesOn(stream)) = vendor.remote(60).take_up(call(), CancellationToken::new()) else {
        panic!()
    };
    last(stream).await;
    assert_eq!(recording.lost(), Some("an answer was begun under one engine and ended under another"));
}

#[tokio::test]
async fn a_recording_has_no_seam_where_a_connection_was_made_anew() {
    let events = numbered("llama-responses-text");
    let (whole, ..) = read(&events, &[]);
    let vendor = Vendor::start(events.clone(), &[Act::Break(611), Act::End(300), Act::Whole]).await;
    let dir = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::new(dir.path().to_owned(), &asking().origin));
    let request = Request { recording: Some(Arc::clone(&recording)), ..asking() };
    let answer = last(vendor.remote(60).stream(request, CancellationToken::new())).await;
    assert_eq!(answered(answer), whole);
    assert_eq!(recording.lost(), None);
    let kept = std::fs::read_to_string(dir.path().join("configured/0.0.response")).unwrap();
    assert_eq!(kept.split_once("\n\n").unwrap().1, events.concat());
}

#[tokio::test]
async fn a_response_that_is_not_given_any_more_is_the_failure_that_it_was() {
    let events = numbered("llama-responses-text");
    for (acts, asked) in [
        (vec![Act::Break(600), Act::Refuse(404)], 2),
        (vec![Act::End(600), Act::Refuse(400)], 2),
        // Nothing new three times in a row: the provider is told that nobody waits.
        (vec![Act::Break(600), Act::Refuse(500), Act::Refuse(500), Act::Refuse(500)], 5),
    ] {
        let vendor = Vendor::start(events.clone(), &acts).await;
        let remote = vendor.remote(60);
        let ended = last(remote.stream(asking(), CancellationToken::new())).await;
        let StreamEvent::Failed(failure) = ended else { panic!("{ended:?}") };
        assert_eq!(failure.kind, FailureKind::Connection, "{acts:?}");
        assert!(failure.usage.input > 0, "what is known of its use is counted");
        remote.client.quiet().await;
        assert_eq!(vendor.asked().len(), asked, "{:?}", vendor.asked());
    }
}

#[tokio::test]
async fn an_answer_that_nobody_wants_is_ended_at_its_provider() {
    let events = numbered("llama-responses-text");
    let cancel = format!("POST /v1/responses/{}/cancel", id(&events));
    let vendor = Vendor::start(events.clone(), &[Act::Hold(600), Act::Hold(600)]).await;
    let abort = CancellationToken::new();
    let mut stream = vendor.remote(60).stream(asking(), abort.clone());
    assert_eq!(stream.next().await, Some(StreamEvent::Opened));
    abort.cancel();
    assert_eq!(answered(last(stream).await).error_message.as_deref(), Some("aborted"));
    vendor.is_asked(&cancel).await;

    // The watchdog: the same.
    let vendor = Vendor::start(events, &[Act::Hold(600), Act::Whole]).await;
    let ended = last(vendor.remote(1).stream(asking(), CancellationToken::new())).await;
    let StreamEvent::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.kind, FailureKind::Idle);
    vendor.is_asked(&cancel).await;
}

#[tokio::test]
async fn an_answer_of_another_kind_of_model_ends_with_its_connection() {
    let events = numbered("llama-responses-text");
    let vendor = Vendor::start(events, &[Act::Break(600)]).await;
    let model = Model { base_url: Some(vendor.address.clone()), ..configured(Api::OpenaiResponses) };
    let remote = Remote::new(model, Arc::default(), Client::new().unwrap()).unwrap();
    let ended = last(remote.stream(asking(), CancellationToken::new())).await;
    assert!(matches!(ended, StreamEvent::Failed(_)), "{ended:?}");
    assert_eq!(vendor.asked(), ["POST /v1/responses"]);
}

/// A spool that holds the first bytes of a response.
fn spooled(dir: &std::path::Path, bytes: &[u8]) -> Spool {
    let name = CallName { run: RunId([7; 16]), turn: 0, attempt: 0, epoch: 1, request: [1; 32] };
    let spool = Spool::of(dir, name);
    spool.begin(100, 200).unwrap().append(bytes).unwrap();
    spool
}

async fn taken_up(vendor: &Vendor, spool: &Spool, abort: CancellationToken) -> StreamEvent {
    let call =
        Unfinished { kept: spool.read().unwrap(), spool: spool.clone(), profile: None, recording: None };
    match vendor.remote(60).take_up(call, abort) {
        Some(TakenUp::GoesOn(stream)) => last(stream).await,
        Some(TakenUp::Answered(_)) => panic!("answered"),
        None => panic!("nothing"),
    }
}

#[tokio::test]
async fn a_dead_engine_s_call_is_found_again_and_so_is_that_of_the_engine_after_it() {
    let events = numbered("llama-responses-tools");
    let (whole, ..) = read(&events, &[]);
    let bytes = events.concat();
    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), &bytes.as_bytes()[..900]);
    // The second engine dies when it has read some more.
    let vendor = Vendor::start(events.clone(), &[Act::Hold(1_500), Act::Whole]).await;
    let call =
        Unfinished { kept: spool.read().unwrap(), spool: spool.clone(), profile: None, recording: None };
    let Some(TakenUp::GoesOn(mut stream)) = vendor.remote(60).take_up(call, CancellationToken::new()) else {
        panic!()
    };
    while spool.read().unwrap().body.len() < 1_000 {
        stream.next().await.unwrap();
    }
    drop(stream);
    let kept = spool.read().unwrap().body;
    assert!(bytes.as_bytes().starts_with(&kept), "there is no seam");
    let answer = taken_up(&vendor, &spool, CancellationToken::new()).await;
    assert_eq!(answered(answer), whole);
    assert_eq!(String::from_utf8(spool.read().unwrap().body).unwrap(), bytes);
    let asked = vendor.asked();
    assert!(asked.iter().all(|line| line.starts_with("GET ")) && asked.len() == 2, "{asked:?}");
}

#[tokio::test]
async fn a_dead_engine_s_call_that_is_not_found_is_lost() {
    let events = numbered("llama-responses-tools");
    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), &events.concat().as_bytes()[..900]);
    for status in [400, 404, 410] {
        let vendor = Vendor::start(events.clone(), &[Act::Refuse(status)]).await;
        assert_eq!(taken_up(&vendor, &spool, CancellationToken::new()).await, StreamEvent::Lost);
    }
    // A run that was cancelled meanwhile looks for nothing, and says so.
    let vendor = Vendor::start(events.clone(), &[]).await;
    let abort = CancellationToken::new();
    abort.cancel();
    let message = answered(taken_up(&vendor, &spool, abort).await);
    assert_eq!(message.error_message.as_deref(), Some("aborted"));
    vendor.is_asked(&format!("POST /v1/responses/{}/cancel", id(&events))).await;
}

#[tokio::test]
async fn what_cannot_be_named_is_not_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let vendor = Vendor::start(Vec::new(), &[]).await;
    let created = |id: &str| format!("data: {}\n\n", json!({"type":"response.created","response":{"id":id}}));
    let numbered = |n: u64, value: Value| {
        let mut value = value;
        value["sequence_number"] = n.into();
        format!("data: {value}\n\n")
    };
    let failed = json!({"type":"response.failed","response":{"error":{"message":"no"}}});
    let begun = numbered(0, json!({"type":"response.created","response":{"id":"r"}}));
    for kept in
        [String::new(), begun[..begun.len() - 1].to_owned(), created("r"), begun + &numbered(1, failed)]
    {
        let spool = spooled(dir.path(), kept.as_bytes());
        let call = Unfinished { kept: spool.read().unwrap(), spool, profile: None, recording: None };
        assert!(vendor.remote(60).take_up(call, CancellationToken::new()).is_none(), "{kept}");
    }
    // An id that would name another address is never asked for.
    let odd = numbered(0, json!({"type":"response.created","response":{"id":"../files"}}));
    assert_eq!(
        taken_up(&vendor, &spooled(dir.path(), odd.as_bytes()), CancellationToken::new()).await,
        StreamEvent::Lost
    );
    assert_eq!(vendor.asked(), Vec::<String>::new());
}

#[test]
fn a_disk_that_fails_costs_the_spool_and_not_the_answer() {
    use crate::provider::http::Tap;

    let dir = tempfile::tempdir().unwrap();
    let spool = spooled(dir.path(), b"data: 1\n\ndata: {half");
    let mut tap = SpoolTap::kept(spool.clone(), 100, 200);
    tap.on_rejoin(9);
    tap.on_bytes(b"data: 2\n\n");
    assert_eq!(spool.read().unwrap().body, b"data: 1\n\ndata: 2\n\n");
    std::fs::remove_file(spool.path()).unwrap();
    let mut tap = SpoolTap::kept(spool, 100, 200);
    tap.on_rejoin(9);
    tap.on_bytes(b"data: 3\n\n");
}
