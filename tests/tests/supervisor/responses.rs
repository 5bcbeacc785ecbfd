//! What a new owner makes of a model call that a dead engine had paid for. The server is a few lines of its own: what it
//! sends is byte for byte what a provider would have sent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::{World, stopped, wait_for};

/// A whole answer.
const ANSWER: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","role":"assistant","content":[],"model":"m","usage":{"input_tokens":12,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"paid for"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}

event: message_stop
data: {"type":"message_stop"}

"#;

/// Calls that a server answers at most.
const CALLS_MAX: usize = 4;

/// A model server on loopback that counts its calls. The first answer ends after so many bytes and is then held back.
struct Server {
    address: String,
    calls: Arc<AtomicUsize>,
}

impl Server {
    fn start(first_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        std::thread::spawn(move || {
            for stream in listener.incoming().take(CALLS_MAX).flatten() {
                let call = counted.fetch_add(1, Ordering::SeqCst);
                let bytes = if call == 0 { first_bytes } else { ANSWER.len() };
                std::thread::spawn(move || answer(stream, bytes));
            }
        });
        Self { address, calls }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: TcpStream, bytes: usize) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !is_whole(&request) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        ANSWER.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&ANSWER.as_bytes()[..bytes]));
    if bytes < ANSWER.len() {
        // Whoever waits for the rest is dead before it would come.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = stream.read(&mut piece);
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    body.len() >= length.parse().unwrap()
}

fn world(server: &Server) -> World {
    World::new("true").set("base_url", server.address.as_str())
}

/// A run whose engine was killed when the whole answer had arrived, before it was committed.
fn killed_with_the_answer(world: World) -> World {
    let file = world.path("stopped");
    let variables =
        [("SPRAG_CRASH_POINT", "before the answer's commit"), ("SPRAG_CRASH_FILE", file.to_str().unwrap())];
    let mut engine = world.start_with(&variables);
    stopped(&file);
    engine.kill();
    world
}

/// What was kept of responses.
fn spooled(world: &World) -> Vec<String> {
    let runs = fs::read_dir(world.path("data/spool")).into_iter().flatten().flatten();
    let files = runs.flat_map(|run| fs::read_dir(run.path()).into_iter().flatten().flatten());
    files.map(|file| fs::read_to_string(file.path()).unwrap()).collect()
}

#[test]
fn a_complete_answer_is_not_paid_for_twice() {
    let server = Server::start(ANSWER.len());
    let world = killed_with_the_answer(world(&server));
    assert_eq!(spooled(&world).len(), 1);

    let told = world.result();
    assert_eq!((told.outcome.as_str(), server.calls()), ("completed", 1));
    assert_eq!(spooled(&world), Vec::<String>::new(), "nothing is kept of an answer that is committed");
}

#[test]
fn a_complete_answer_is_committed_whatever_is_missing() {
    let server = Server::start(ANSWER.len());
    let keyed = world(&server).set("key_env", "MODEL_KEY").variable("MODEL_KEY", "k");
    let mut world = killed_with_the_answer(keyed);
    world.variables.clear();
    fs::remove_dir(world.path("ws")).unwrap();

    let mut engine = world.start();
    assert_eq!(engine.wait_for("model_found"), "collected");
    assert_eq!((engine.told().outcome.as_str(), server.calls()), ("completed", 1));
    engine.close();
    assert_eq!(spooled(&world), Vec::<String>::new());
}

#[test]
fn an_answer_that_is_taken_up_is_whole_in_its_recording_too() {
    let server = Server::start(ANSWER.len());
    let recording = tempfile::tempdir().unwrap();
    let recording = recording.path().to_str().unwrap();
    let world = killed_with_the_answer(world(&server).set("record", recording));
    assert_eq!(world.result().outcome, "completed");
    // The run that is replayed would ask again if its answer were not whole.
    let replayed = World::new("true").set("replay", recording).result();
    assert_eq!((replayed.outcome.as_str(), server.calls()), ("completed", 1));
}

#[test]
fn a_response_of_another_call_is_not_taken_for_this_one() {
    let server = Server::start(ANSWER.len());
    let world = killed_with_the_answer(world(&server));
    let run = fs::read_dir(world.path("data/spool")).unwrap().next().unwrap().unwrap().path();
    let kept = run.join("0.0");
    let text = fs::read_to_string(&kept).unwrap();
    let request = text.lines().find(|line| line.starts_with("request ")).unwrap();
    fs::write(&kept, text.replace(request, &format!("request {}", "0".repeat(64)))).unwrap();

    let told = world.result();
    assert_eq!((told.outcome.as_str(), server.calls()), ("completed", 2));
}

#[test]
fn a_part_of_an_answer_is_never_taken_for_the_whole() {
    let end_mark = ANSWER.find("event: message_stop").unwrap();
    for bytes in [0, 40, 300, end_mark, ANSWER.len() - 2] {
        let server = Server::start(bytes);
        let world = world(&server);
        let mut engine = world.start();
        let has_arrived =
            |kept: &String| kept.split_once("\n\n").is_some_and(|(_, body)| body.len() == bytes);
        wait_for("the part", || spooled(&world).iter().any(has_arrived).then_some(()));
        engine.kill();

        let told = world.result();
        assert_eq!((told.outcome.as_str(), server.calls()), ("completed", 2), "{bytes} bytes");
        assert_eq!(spooled(&world), Vec::<String>::new());
    }
}

/// The answer's file and every directory above it, up to DIR, in one life.
#[test]
fn a_response_is_synced_before_its_commit_if_it_is_to_survive_a_power_cut() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed, and nothing else shows the sync");
        return;
    }
    for is_synced in [false, true] {
        let server = Server::start(ANSWER.len());
        let world = world(&server).set("sync_spool", is_synced);
        let trace = world.path("trace");
        let mut engine = world.start_under("strace", &["-f", "-y", "-e", "trace=fsync", "-o"], &trace);
        assert_eq!(engine.told().outcome, "completed");
        engine.close();
        let trace = fs::read_to_string(trace).unwrap();
        let synced = |path: &str| trace.lines().any(|line| line.contains(path) && line.contains("fsync("));
        let found = ["/0.0>", "/data/spool>", "/data/spool/"].map(synced);
        assert_eq!(found, [is_synced; 3], "{trace}");
    }
}
