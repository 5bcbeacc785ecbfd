//! A server that plays recordings.
//!
//! Owns the order of the responses and the requests it got. It answers as many requests as it has recordings,
//! each on a connection of its own, and refuses every further one.

use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A server on loopback.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: String,
    requests: JoinHandle<Vec<Value>>,
}

impl Server {
    /// Plays these recordings, one a request.
    pub(crate) async fn playing(recordings: &[&str]) -> Self {
        let responses: Vec<Vec<u8>> = recordings.iter().map(|name| recorded(name)).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = tokio::spawn(async move {
            let mut requests = Vec::new();
            for response in responses {
                let (mut connection, _) = listener.accept().await.unwrap();
                requests.push(read_request(&mut connection).await);
                connection.write_all(&response).await.unwrap();
            }
            requests
        });
        Self { address, requests }
    }

    /// The bodies of the requests, once every recording was played.
    pub(crate) async fn requests(self) -> Vec<Value> {
        self.requests.await.unwrap()
    }
}

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("recorded/{name}.http"))).unwrap()
}

async fn read_request(connection: &mut TcpStream) -> Value {
    let mut request = Vec::new();
    loop {
        assert!(connection.read_buf(&mut request).await.unwrap() > 0, "the request broke off");
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if request.len() >= end + 4 + length.parse::<usize>().unwrap() {
            return serde_json::from_slice(&request[end + 4..]).unwrap();
        }
    }
}
