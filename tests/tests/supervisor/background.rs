//! An answer that goes on at its provider when the engine is killed: the next engine finds it, and nothing is paid twice.
//! The server is a few lines of its own: it speaks what the protocol documents of responses in the background.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::{AgentEvent, EventReader, JournalView, Stamped, query};
use model::Message;

use crate::world::{World, wait_for};

/// The events of a whole answer; each is numbered by its place.
const EVENTS: [&str; 8] = [
    r#""type":"response.created","response":{"id":"resp_1","status":"in_progress"}"#,
    r#""type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1"}"#,
    r#""type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"paid ""#,
    r#""type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"for ""#,
    r#""type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"once ""#,
    r#""type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"only""#,
    r#""type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"msg_1"}"#,
    r#""type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":12,"output_tokens":3}}"#,
];

/// What the server does with the next request that wants events.
#[derive(Clone, Copy)]
enum Act {
    /// Sends this much of the answer, and holds the connection.
    Hold(usize),
    /// Sends all that is left.
    Whole,
    /// Knows nothing of it.
    Refuse,
}

struct Server {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(acts: &[Act]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { address, asked: Arc::default() };
        let (asked, acts) = (Arc::clone(&server.asked), acts.to_vec());
        let mut acts = acts.into_iter();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(line) = read_request(&mut stream) else { continue };
                asked.lock().unwrap().push(line.clone());
                let act = if line.ends_with("/cancel") { Act::Refuse } else { acts.next().unwrap() };
                let after =
                    line.split_once("starting_after=").map(|(_, after)| after.parse::<usize>().unwrap());
                std::thread::spawn(move || answer(stream, after.map_or(0, |after| after + 1), act));
            }
        });
        server
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn world(&self) -> World {
        World::new("true").set("base_url", self.address.as_str()).set("background", true)
    }
}

/// The events from a number on.
fn events(first: usize) -> String {
    let event = |(n, data): (usize, &&str)| format!("data: {{\"sequence_number\":{n},{data}}}\n\n");
    EVENTS.iter().enumerate().skip(first).map(event).collect()
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines().map(str::to_ascii_lowercase);
            let length = lines.find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(head.lines().next()?.trim_end_matches(" HTTP/1.1").to_owned());
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
    }
}

fn answer(mut stream: TcpStream, first: usize, act: Act) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let rest = events(first);
    let _ = match act {
        Act::Hold(bytes) => stream.write_all(format!("{head}{}", &rest[..bytes]).as_bytes()),
        Act::Whole => stream.write_all(format!("{head}{rest}").as_bytes()),
        Act::Refuse => stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
    };
    if let Act::Hold(_) = act {
        // Whoever waits for the rest hangs up or dies.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = stream.read(&mut [0]);
    }
}

/// Waits until so many bytes of the only answer are kept.
fn wait_for_bytes(world: &World, bytes: usize) {
    wait_for("the part", || {
        let run = std::fs::read_dir(world.path("data/spool")).ok()?.flatten().next()?;
        let kept = std::fs::read_to_string(run.path().join("0.0")).ok()?;
        kept.split_once("\n\n").filter(|(_, body)| body.len() == bytes).map(|_| ())
    });
}

/// A run whose engine was killed when so many bytes of its answer had arrived.
fn killed_after(server: &Server, bytes: usize) -> World {
    killed(server.world(), bytes)
}

fn killed(world: World, bytes: usize) -> World {
    let mut engine = world.start();
    wait_for_bytes(&world, bytes);
    engine.kill();
    world
}

/// Model calls made and lost, and the text of the answer.
fn counted(world: &World) -> (u64, u64, String) {
    let view = JournalView::open(&world.path("data")).unwrap();
    let run = query::list(&view, &query::Filter::default()).unwrap()[0].run;
    let shown = query::show(&view, run).unwrap();
    let rows = (shown.turn_table[0].model_calls, shown.turn_table[0].calls_lost);
    assert_eq!(rows, (shown.counters.model_calls, shown.counters.calls_lost));
    let view: Arc<dyn store::Store> = Arc::new(view);
    let mut reader = EventReader::open(Arc::clone(&view), run, None).unwrap();
    let mut names = Vec::new();
    while !reader.has_ended() {
        names.extend(reader.read().unwrap().into_iter().filter_map(name));
    }
    let named = ["openai-responses", "127.0.0.1", "m"].map(str::to_owned);
    assert_eq!(names, [named.clone(), named], "the beginning of an answer is named as its end");
    let view = &*view;
    let text = query::transcript(view, run).unwrap().last().unwrap().message.joined_text();
    (rows.0, rows.1, text)
}

/// Protocol, provider and model of an answer that begins or ends.
fn name(event: Stamped) -> Option<[String; 3]> {
    let (AgentEvent::MessageStart { message } | AgentEvent::MessageEnd { message }) = event.event else {
        return None;
    };
    let Message::Assistant(answer) = &*message else { return None };
    Some([answer.api.clone(), answer.provider.clone(), answer.model.clone()])
}

const REST: &str = "GET /v1/responses/resp_1?stream=true&starting_after=";
const TEXT: &str = "paid for once only";

#[test]
fn an_answer_is_found_again_wherever_the_engine_was_killed() {
    let whole = events(0).len();
    let ends: Vec<usize> = (1..EVENTS.len()).map(|n| whole - events(n).len()).collect();
    for (bytes, after) in [(ends[0], 0), (ends[0] + 3, 0), (ends[2] + 50, 2), (ends[6], 6), (whole - 1, 6)] {
        let server = Server::start(&[Act::Hold(bytes), Act::Whole]);
        let world = killed_after(&server, bytes);
        let mut engine = world.start();
        assert_eq!(engine.wait_for("model_found"), "adopted", "{bytes}");
        assert_eq!(engine.told().outcome, "completed");
        engine.close();
        assert_eq!(counted(&world), (1, 0, TEXT.to_owned()), "{bytes}");
        assert_eq!(server.asked(), ["POST /v1/responses".to_owned(), format!("{REST}{after}")]);
        assert!(
            std::fs::read_dir(world.path("data/spool"))
                .unwrap()
                .flatten()
                .all(|run| { std::fs::read_dir(run.path()).unwrap().next().is_none() })
        );
    }
}

#[test]
fn an_engine_that_is_killed_while_it_reads_the_rest_leaves_a_longer_beginning() {
    let ends: Vec<usize> = (1..EVENTS.len()).map(|n| events(0).len() - events(n).len()).collect();
    let more = ends[4] - ends[1] + 7;
    let server = Server::start(&[Act::Hold(ends[1] + 9), Act::Hold(more), Act::Whole]);
    let world = killed_after(&server, ends[1] + 9);
    let mut engine = world.start();
    wait_for_bytes(&world, ends[1] + more);
    engine.kill();
    let told = world.result();
    assert_eq!(told.outcome, "completed");
    assert_eq!(counted(&world), (1, 0, TEXT.to_owned()));
    assert_eq!(server.asked(), ["POST /v1/responses".to_owned(), format!("{REST}1"), format!("{REST}4")]);
}

#[test]
fn an_answer_that_is_gone_counts_as_lost_and_is_asked_for_again() {
    let first = events(0).len() - events(1).len();
    for acts in [vec![Act::Hold(first), Act::Refuse, Act::Whole], vec![Act::Hold(first - 1), Act::Whole]] {
        let bytes = if acts.len() == 3 { first } else { first - 1 };
        let server = Server::start(&acts);
        let world = killed_after(&server, bytes);
        let mut engine = world.start();
        assert_eq!(engine.wait_for("model_found"), "repeated");
        assert_eq!(engine.told().outcome, "completed");
        engine.close();
        assert_eq!(counted(&world), (2, 1, TEXT.to_owned()));
        let posts = server.asked().iter().filter(|line| *line == "POST /v1/responses").count();
        assert_eq!((posts, server.asked().len()), (2, acts.len()));
    }
}

#[test]
fn an_answer_waits_for_the_key_that_it_is_found_with() {
    let bytes = events(0).len() - events(3).len();
    let server = Server::start(&[Act::Hold(bytes), Act::Whole]);
    let keyed = server.world().set("key_env", "MODEL_KEY").variable("MODEL_KEY", "k");
    let mut world = killed(keyed, bytes);
    let variables = std::mem::take(&mut world.variables);
    for _ in 0..2 {
        let mut engine = world.start();
        assert_eq!(engine.wait_for("parked"), "missing");
        engine.kill();
    }
    assert_eq!(server.asked(), ["POST /v1/responses"]);

    world.variables = variables;
    let mut engine = world.start();
    assert_eq!(engine.wait_for("model_found"), "adopted");
    assert_eq!(engine.told().outcome, "completed");
    engine.close();
    assert_eq!(counted(&world), (1, 0, TEXT.to_owned()));
    assert_eq!(server.asked(), ["POST /v1/responses".to_owned(), format!("{REST}2")]);
}

#[test]
fn an_engine_that_stops_leaves_the_answer_to_the_next_one() {
    let bytes = events(0).len() - events(3).len();
    let server = Server::start(&[Act::Hold(bytes), Act::Whole]);
    let world = server.world();
    let mut engine = world.start();
    wait_for_bytes(&world, bytes);
    engine.say("stop");
    engine.wait_for("closed");
    engine.close();
    assert_eq!(world.result().outcome, "completed");
    assert_eq!(counted(&world), (1, 0, TEXT.to_owned()));
    assert_eq!(server.asked(), ["POST /v1/responses".to_owned(), format!("{REST}2")]);
}

#[test]
fn a_cancelled_run_ends_its_answer_at_the_provider_also_after_a_kill() {
    let bytes = events(0).len() - events(3).len();
    let server = Server::start(&[Act::Hold(bytes)]);
    let world = server.world();
    let mut engine = world.start();
    wait_for_bytes(&world, bytes);
    engine.say("cancel");
    assert_eq!(engine.told().outcome, "cancelled");
    engine.close();
    assert_eq!(server.asked(), ["POST /v1/responses", "POST /v1/responses/resp_1/cancel"]);

    let server = Server::start(&[Act::Hold(bytes), Act::Hold(0)]);
    let world = killed_after(&server, bytes);
    let mut engine = world.start();
    wait_for("the rest is asked for", || (server.asked().len() == 2).then_some(()));
    engine.say("cancel");
    assert_eq!(engine.told().outcome, "cancelled");
    engine.close();
    let asked = server.asked();
    assert_eq!(asked.last().unwrap(), "POST /v1/responses/resp_1/cancel", "{asked:?}");
}
