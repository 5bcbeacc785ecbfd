//! Calls over real connections to peers that keep, bend and break the rules.
//!
//! A peer is a script that writes bytes; how many it got rid of before the connection was closed shows what a
//! call would have kept. Times are those of the connection, so they are real; each wait ends by an event.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use model::input::{Failure, FailureKind};
use model::message::{AssistantMessage, StopReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{recorded, request, speaker, text, user};
use crate::config::{Api, Model, Profile};
use crate::provider::call::{Call, Plan, Respondent};
use crate::provider::http::{Client, Headers, Tap};
use crate::provider::watchdog::Watchdog;
use crate::provider::{ModelProvider, Remote, StreamEvent};

/// An idle time that no honest peer here comes near.
const PATIENT: Duration = Duration::from_secs(60);

/// An idle time for peers that fall silent.
const BRIEF: Duration = Duration::from_millis(100);

/// More than a connection holds in its buffers on both sides, and far less than an endless peer writes.
const HELD_BYTES_MAX: usize = 32 << 20;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// The beginning of an answer that says `hi`.
const BEGUN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";

/// A peer that does as `script` does with its first connection, once the request is there.
pub(super) struct Peer {
    pub(super) address: String,
    script: JoinHandle<Vec<u8>>,
}

/// Listens; `script` gets the connection, and the request is the peer's result.
async fn peer<F>(script: impl FnOnce(TcpStream) -> F + Send + 'static) -> Peer
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let script = tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let request = read_request(&mut connection).await;
        script(connection).await;
        request
    });
    Peer { address, script }
}

async fn read_request(connection: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    loop {
        connection.read_buf(&mut request).await.unwrap();
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if request.len() >= end + 4 + length.parse::<usize>().unwrap() {
            return request;
        }
    }
}

/// A peer that writes `response` and closes.
pub(super) async fn saying(response: impl Into<Vec<u8>>) -> Peer {
    let response = response.into();
    peer(|mut connection| async move {
        // A call that has heard enough closes first.
        let _ = connection.write_all(&response).await;
    })
    .await
}

/// A peer that writes `head`, then `again` until the call hangs up; answers how many bytes it got rid of.
async fn endless(head: &'static str, again: Vec<u8>) -> (Peer, tokio::sync::oneshot::Receiver<usize>) {
    let (report, written) = tokio::sync::oneshot::channel();
    let peer = peer(move |mut connection| async move {
        let mut bytes = 0;
        let _ = connection.write_all(head.as_bytes()).await;
        while let Ok(more) = connection.write(&again).await {
            bytes += more;
        }
        let _ = report.send(bytes);
    })
    .await;
    (peer, written)
}

fn call(api: Api, address: &str, idle: Duration, account: Option<Profile>) -> Call {
    let client = Client::new().unwrap();
    call_with(client, api, address, idle, account, None, CancellationToken::new())
}

fn call_with(
    client: Client,
    api: Api,
    address: &str,
    idle: Duration,
    account: Option<Profile>,
    tap: Option<Box<dyn Tap>>,
    abort: CancellationToken,
) -> Call {
    let model = Model { base_url: Some(address.to_owned()), model: Some("m".to_owned()), ..Model::new(api) };
    let remote = Remote::new(model, std::sync::Arc::default(), client.clone()).unwrap();
    let plan = Plan {
        speaker: speaker(api),
        sent: 100,
        outgoing: remote.endpoint.outgoing(&request([user(vec![text("hi")])], &[])).unwrap(),
        price: None,
        respondent: Respondent::Server { client, account, key_header: remote.key_header() },
        background: None,
        watchdog: Watchdog::new(idle),
        tap,
    };
    Call::new(plan, abort)
}

fn events(call: Call) -> BoxStream<'static, StreamEvent> {
    stream::unfold(call, |mut call| async move { Some((call.next().await?, call)) }).boxed()
}

/// How a call ends.
pub(super) async fn end(call: Call) -> Result<AssistantMessage, Failure> {
    let events: Vec<StreamEvent> = events(call).collect().await;
    match events.into_iter().last() {
        Some(StreamEvent::Done(message)) => Ok(*message),
        Some(StreamEvent::Failed(failure)) => Err(failure),
        other => panic!("{other:?}"),
    }
}

/// The kind and the whole words of the failure that a peer brings about.
async fn failure(peer: &Peer, idle: Duration) -> (FailureKind, String) {
    let failure = end(call(Api::OpenaiChat, &peer.address, idle, None)).await.unwrap_err();
    (failure.kind, failure.partial.unwrap().error_message.unwrap())
}

#[tokio::test]
async fn a_recorded_response_is_an_answer_however_it_is_packed() {
    let recordings = [
        (Api::AnthropicMessages, "aimock-anthropic-text"),
        (Api::OpenaiChat, "aimock-chat-text"),
        (Api::OpenaiResponses, "llama-responses-text"),
    ];
    for (api, name) in recordings {
        let response = recorded(name);
        let peer = peer(|mut connection| async move {
            connection.set_nodelay(true).unwrap();
            for byte in response.chunks(5) {
                connection.write_all(byte).await.unwrap();
                tokio::task::yield_now().await;
            }
        })
        .await;
        let answer = end(call(api, &peer.address, PATIENT, None)).await.unwrap();
        let plain = super::body(&recorded(name));
        let mut reader = super::reader(api);
        reader.push(&plain).unwrap();
        assert_eq!(AssistantMessage { at: model::Millis(0), ..answer }, reader.conclude().unwrap(), "{name}");
    }
}

#[tokio::test]
async fn a_request_carries_its_key_and_nothing_else_of_ours() {
    let key = || Some(Profile::ApiKeyCmd("echo sk-test-123456".to_owned()));
    let mut heads = Vec::new();
    for api in super::APIS {
        let peer = saying("HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n").await;
        end(call(api, &peer.address, PATIENT, key())).await.unwrap_err();
        let request = String::from_utf8(peer.script.await.unwrap()).unwrap();
        let (head, _) = request.split_once("\r\n\r\n").unwrap();
        let is_own = |line: &&str| !line.starts_with("host:") && !line.starts_with("content-length:");
        heads.push(head.lines().filter(is_own).collect::<Vec<_>>().join("\n"));
    }
    let version = env!("CARGO_PKG_VERSION");
    let common = "connection: close\ncontent-type: application/json\naccept: text/event-stream";
    let bearer = "authorization: Bearer sk-test-123456";
    let expected = [
        format!(
            "POST /v1/messages HTTP/1.1\n{common}\nanthropic-version: 2023-06-01\nx-api-key: sk-test-123456\nuser-agent: sprag/{version}"
        ),
        format!("POST /v1/chat/completions HTTP/1.1\n{common}\n{bearer}\nuser-agent: sprag/{version}"),
        format!("POST /v1/responses HTTP/1.1\n{common}\n{bearer}\nuser-agent: sprag/{version}"),
    ];
    assert_eq!(heads, expected);
}

#[tokio::test]
async fn a_key_that_a_server_quotes_is_not_told() {
    let body = r#"{"error":{"message":"Incorrect API key provided: sk-test-123456"}}"#;
    let peer = saying(format!("HTTP/1.1 401 No\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    let key = Some(Profile::ApiKeyCmd("echo sk-test-123456".to_owned()));
    let failure = end(call(Api::OpenaiChat, &peer.address, PATIENT, key)).await.unwrap_err();
    assert_eq!(failure.message.as_str(), "Incorrect API key provided: [key] (HTTP status 401)");
    assert!(!format!("{failure:?}").contains("123456"));
}

#[tokio::test]
async fn a_key_that_lies_across_a_cut_leaves_nothing_behind() {
    let key = "sk-test-abcdefghijklmnopqrstuvwxyz";
    for cut in [64, 2_048] {
        for before in [cut - key.len() + 1, cut - 9, cut - 5] {
            let said = format!("{}{key} and {}", "-".repeat(before), "more ".repeat(500));
            let refused = format!("{{\"error\":{{\"message\":\"{said}\"}}}}");
            let heads = [
                format!("HTTP/1.1 500 No\r\ncontent-length: {}\r\n\r\n{refused}", refused.len()),
                format!("HTTP/1.1 500 No\r\ncontent-length: {}\r\n\r\n{said}", said.len()),
                format!("{HEAD}data: {refused}\n\n"),
            ];
            for response in heads {
                let peer = saying(response).await;
                let account = Some(Profile::ApiKeyCmd(format!("echo {key}")));
                let failure = end(call(Api::OpenaiChat, &peer.address, PATIENT, account)).await.unwrap_err();
                assert!(!format!("{failure:?}").contains("sk-t"), "{before}: {failure:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_response_that_is_no_answer_is_a_failure_of_its_kind() {
    let framed =
        |head: &str, body: &str| format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let stream = "200 OK\r\ncontent-type: text/event-stream";
    let rows = [
        (
            framed("429 No\r\nretry-after: 7", r#"{"error":{"message":"Slow down"}}"#),
            (FailureKind::RateLimit, "Slow down (HTTP status 429)"),
        ),
        (framed("302 Found\r\nlocation: http://127.0.0.1:1/", ""), (FailureKind::Format, "HTTP status 302")),
        (
            framed("200 OK\r\ncontent-type: application/json", r#"{"error":{"message":"overloaded"}}"#),
            (FailureKind::Overloaded, "overloaded"),
        ),
        (
            framed("200 OK\r\ncontent-type: text/html", "<html>"),
            (FailureKind::ServerError, "the server sent \"text/html\" in place of an event stream"),
        ),
        (
            framed(&format!("{stream}\r\ncontent-encoding: gzip"), "\x1f\u{b}"),
            (
                FailureKind::ServerError,
                "the server sent a response packed as \"gzip\", which was not asked for",
            ),
        ),
        (
            format!(
                "{HEAD}data: {{\"choices\":[{{\"delta\":{{\"content\":\"hi\"}}}}]}}\n\ndata: {{\"error\":{{\"message\":\"overloaded\"}}}}\n\n"
            ),
            (FailureKind::Overloaded, "overloaded"),
        ),
        (framed(stream, BEGUN), (FailureKind::Connection, "the answer broke off")),
        (framed(stream, ""), (FailureKind::Missing, "the stream ended without an answer")),
    ];
    for (response, (kind, words)) in rows {
        let peer = saying(response.clone()).await;
        assert_eq!(failure(&peer, PATIENT).await, (kind, words.to_owned()), "{response}");
    }
}

#[tokio::test]
async fn bytes_that_break_the_framing_or_the_text_are_a_failure() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let rows: [(&str, Vec<u8>, FailureKind); 6] = [
        ("closed without a word", b"".to_vec(), FailureKind::Connection),
        ("no HTTP", b"SSH-2.0-OpenSSH_9\r\n".to_vec(), FailureKind::Connection),
        (
            "more announced than sent",
            format!("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{BEGUN}").into(),
            FailureKind::Connection,
        ),
        ("a chunk cut off", format!("{chunked}ff\r\n{BEGUN}").into(), FailureKind::Connection),
        ("a chunk of no size", format!("{chunked}zz\r\n{BEGUN}").into(), FailureKind::Connection),
        ("no UTF-8", [HEAD.as_bytes(), b"data: \"\xff\"\n\n"].concat(), FailureKind::ServerError),
    ];
    for (what, response, kind) in rows {
        let peer = saying(response).await;
        assert_eq!(failure(&peer, PATIENT).await.0, kind, "{what}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = end(call(Api::OpenaiChat, &format!("http://{nobody}"), PATIENT, None)).await.unwrap_err();
    assert_eq!((refused.kind, refused.usage), (FailureKind::Connection, Default::default()));
}

#[tokio::test]
async fn what_had_arrived_of_a_broken_answer_is_kept_and_paid() {
    let whole = recorded("llama-anthropic-text");
    let peer = saying(&whole[..whole.len() / 2]).await;
    let failure = end(call(Api::AnthropicMessages, &peer.address, PATIENT, None)).await.unwrap_err();
    assert_eq!((failure.kind, failure.had_text), (FailureKind::Connection, true));
    let partial = failure.partial.unwrap();
    assert!(
        partial
            .content
            .iter()
            .any(|block| matches!(block, model::Block::Text(text) if text.starts_with("All:")))
    );
    assert_eq!(
        (failure.usage.input, failure.usage.cache_read),
        (35, 3),
        "as the beginning of the stream said"
    );
    assert!(failure.usage.output > 0);
}

#[tokio::test]
async fn a_peer_without_end_costs_bounded_memory() {
    let mut line = vec![b'x'; 64 << 10];
    line.splice(..6, *b"data: ");
    let header = [b"x-more: ".as_slice(), &vec![b'y'; 1_000], b"\r\n"].concat();
    let rows: [(&str, &'static str, Vec<u8>, FailureKind); 4] = [
        ("one line", HEAD, vec![b'x'; 64 << 10], FailureKind::ServerError),
        ("lines of one event", HEAD, [line, b"\n".to_vec()].concat(), FailureKind::ServerError),
        ("headers", "HTTP/1.1 200 OK\r\n", header, FailureKind::Connection),
        ("a refusal", "HTTP/1.1 500 No\r\n\r\n", vec![b'z'; 64 << 10], FailureKind::Timeout),
    ];
    for (what, head, again, kind) in rows {
        let (peer, written) = endless(head, again).await;
        assert_eq!(failure(&peer, PATIENT).await.0, kind, "{what}");
        let written = written.await.unwrap();
        assert!(written < HELD_BYTES_MAX, "{what}: {written} bytes");
    }
    let comment = [b":".as_slice(), &vec![b'x'; 64 << 10], b"\n"].concat();
    let (peer, _written) = endless(HEAD, comment).await;
    assert_eq!(
        failure(&peer, PATIENT).await,
        (FailureKind::ServerError, "the server sent more than 67108864 bytes".to_owned())
    );
}

#[tokio::test]
async fn silence_and_keep_alives_without_end_are_given_up() {
    let silent = |head: &'static str| {
        peer(move |mut connection| async move {
            connection.write_all(head.as_bytes()).await.unwrap();
            // Until the call hangs up.
            let _ = connection.read(&mut [0]).await;
        })
    };
    let begun: &'static str = Box::leak(format!("{HEAD}{BEGUN}").into_boxed_str());
    for head in ["", "HTTP/1.1 200 OK\r\n", HEAD, begun] {
        let begin = Instant::now();
        let peer = silent(head).await;
        assert_eq!(failure(&peer, BRIEF).await.0, FailureKind::Idle, "{head:?}");
        assert!(begin.elapsed() >= BRIEF);
        peer.script.await.unwrap();
    }
    let dripping = |head: &'static str, drop: &'static str| {
        peer(move |mut connection| async move {
            connection.write_all(head.as_bytes()).await.unwrap();
            while connection.write_all(drop.as_bytes()).await.is_ok() {
                tokio::time::sleep(BRIEF / 5).await;
            }
        })
    };
    for (head, drop) in [(HEAD, ": keep-alive\n\n"), (HEAD, "x"), ("", "HTTP/1.1 100 Continue\r\n\r\n")] {
        let peer = dripping(head, drop).await;
        assert_eq!(failure(&peer, BRIEF).await.0, FailureKind::Idle, "{drop:?}");
        peer.script.await.unwrap();
    }
}

/// A peer that has begun an answer, and tells when its connection was closed.
async fn begun() -> (Peer, tokio::sync::oneshot::Receiver<Instant>) {
    let (report, closed) = tokio::sync::oneshot::channel();
    let peer = peer(|mut connection| async move {
        connection.write_all(format!("{HEAD}{BEGUN}").as_bytes()).await.unwrap();
        while connection.read(&mut [0]).await.is_ok_and(|read| read > 0) {}
        let _ = report.send(Instant::now());
    })
    .await;
    (peer, closed)
}

#[tokio::test]
async fn whatever_ends_a_call_closes_its_connection_within_a_tenth_of_a_second() {
    let at_most = Duration::from_millis(100);
    // An abort: what had arrived is the answer.
    let (peer, closed) = begun().await;
    let abort = CancellationToken::new();
    let mut events = events(call_with(
        Client::new().unwrap(),
        Api::OpenaiChat,
        &peer.address,
        PATIENT,
        None,
        None,
        abort.clone(),
    ));
    while !matches!(events.next().await, Some(StreamEvent::Update(update)) if update.delta == "hi") {}
    let aborted_at = Instant::now();
    abort.cancel();
    let Some(StreamEvent::Done(message)) = events.next().await else { panic!() };
    assert!(closed.await.unwrap() - aborted_at < at_most);
    assert_eq!((message.stop_reason, message.content), (StopReason::Aborted, vec![text("hi")]));
    assert_eq!(events.next().await, None);
    // Nobody waits for the answer any more.
    let (peer, closed) = begun().await;
    let mut events = self::events(call(Api::OpenaiChat, &peer.address, PATIENT, None));
    events.next().await.unwrap();
    let dropped_at = Instant::now();
    drop(events);
    assert!(closed.await.unwrap() - dropped_at < at_most);
    // The watchdog.
    let (peer, closed) = begun().await;
    assert_eq!(failure(&peer, BRIEF).await.0, FailureKind::Idle);
    let idle_at = Instant::now();
    assert!(closed.await.unwrap().saturating_duration_since(idle_at) < at_most);
    // An abort before anything was answered.
    let silent = self::peer(|mut connection| async move {
        let _ = connection.read(&mut [0]).await;
    })
    .await;
    let abort = CancellationToken::new();
    let ending = tokio::spawn(end(call_with(
        Client::new().unwrap(),
        Api::OpenaiChat,
        &silent.address,
        PATIENT,
        None,
        None,
        abort.clone(),
    )));
    abort.cancel();
    let message = ending.await.unwrap().unwrap();
    assert_eq!((message.stop_reason, message.content), (StopReason::Aborted, vec![]));
}

#[tokio::test]
async fn a_complete_answer_does_not_wait_for_the_connection_to_end() {
    let peer = peer(|mut connection| async move {
        let rest = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\ndata: {garbage\n\n";
        connection.write_all(format!("{HEAD}{BEGUN}{rest}").as_bytes()).await.unwrap();
        let _ = connection.read(&mut [0]).await;
    })
    .await;
    let answer = end(call(Api::OpenaiChat, &peer.address, PATIENT, None)).await.unwrap();
    assert_eq!((answer.stop_reason, answer.content), (StopReason::Stop, vec![text("hi")]));
    peer.script.await.unwrap();
}

#[tokio::test]
async fn a_tap_sees_the_head_and_every_byte_of_the_body() {
    struct Copying(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl Tap for Copying {
        fn on_head(&mut self, status: u16, headers: &Headers) {
            let kind = headers.get("content-type").unwrap();
            self.0.lock().unwrap().extend_from_slice(format!("{status} {kind}\n").as_bytes());
        }

        fn on_bytes(&mut self, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }

        fn on_rejoin(&mut self, _whole: u64) {}
    }
    let response = recorded("aimock-chat-text");
    let peer = saying(response.clone()).await;
    let copy = std::sync::Arc::default();
    let tap: Box<dyn Tap> = Box::new(Copying(std::sync::Arc::clone(&copy)));
    let abort = CancellationToken::new();
    end(call_with(Client::new().unwrap(), Api::OpenaiChat, &peer.address, PATIENT, None, Some(tap), abort))
        .await
        .unwrap();
    let expected = [b"200 text/event-stream\n".as_slice(), &super::body(&response)].concat();
    assert_eq!(*copy.lock().unwrap(), expected);
}

#[tokio::test]
async fn nothing_is_sent_before_the_stream_is_polled_and_a_missing_key_is_found_before_that() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let model = Model {
        base_url: Some(address),
        model: Some("m".to_owned()),
        api_key_env: Some("SPRAG_TEST_NO_SUCH_KEY".to_owned()),
        ..Model::new(Api::OpenaiChat)
    };
    let remote = Remote::new(model, std::sync::Arc::default(), Client::new().unwrap()).unwrap();
    assert_eq!(remote.missing(""), Some("key SPRAG_TEST_NO_SUCH_KEY".to_owned()));
    let mut stream = remote.stream(request([user(vec![text("hi")])], &[]), CancellationToken::new());
    let Some(StreamEvent::Failed(failure)) = stream.next().await else { panic!() };
    assert_eq!(failure.kind, FailureKind::Auth);
    let accepted = tokio::time::timeout(BRIEF, listener.accept()).await;
    assert!(accepted.is_err(), "without a key nobody is asked");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_as_such() {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
    use std::io::Read;

    let certificate = CertificateDer::from(include_bytes!("untrusted.cert.der").as_slice());
    let key = PrivatePkcs8KeyDer::from(include_bytes!("untrusted.key.der").as_slice());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key))
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut tls = rustls::ServerConnection::new(std::sync::Arc::new(config)).unwrap();
        // The client hangs up in the middle of the handshake.
        let _ = rustls::Stream::new(&mut tls, &mut connection).read(&mut [0]);
    });
    let failure = end(call(Api::OpenaiChat, &address, PATIENT, None)).await.unwrap_err();
    server.join().unwrap();
    assert_eq!(failure.kind, FailureKind::TlsCertificate, "{failure:?}");
}

#[tokio::test]
async fn a_call_without_tls_has_a_connection_of_its_own_and_is_not_made_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut requests = 0;
        while requests < 3 {
            let (mut connection, _) = listener.accept().await.unwrap();
            let request = String::from_utf8(read_request(&mut connection).await).unwrap();
            assert!(request.contains("\r\nconnection: close\r\n"), "{request}");
            requests += 1;
            if requests < 3 {
                connection.write_all(&recorded("aimock-chat-text")).await.unwrap();
            }
        }
        listener
    });
    let client = Client::new().unwrap();
    let ended = || {
        let abort = CancellationToken::new();
        end(call_with(client.clone(), Api::OpenaiChat, &address, PATIENT, None, None, abort))
    };
    assert_eq!(ended().await.unwrap().stop_reason, StopReason::Stop);
    assert_eq!(ended().await.unwrap().stop_reason, StopReason::Stop);
    assert_eq!(ended().await.unwrap_err().kind, FailureKind::Connection);
    // Nobody asks a fourth time.
    let listener = server.await.unwrap();
    let again = tokio::time::timeout(BRIEF, listener.accept()).await;
    assert!(again.is_err(), "the request was sent again");
}
