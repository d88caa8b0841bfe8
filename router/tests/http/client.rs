//! A small HTTP/1.1 client that sees every byte: statuses, headers, chunks, comments.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The key that rigs accept.
pub(crate) const KEY: &str = "sk-test";
/// Longer than anything takes; only against hanging tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Data of all events.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        text.split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// Events that are JSON: all but `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let events = self.events().into_iter().filter(|event| event != "[DONE]");
        events.map(|event| serde_json::from_str(&event).expect("JSON")).collect()
    }
}

/// Sends the head of a request and `body`.
pub(crate) async fn open(
    address: SocketAddr,
    head: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let mut text = format!("{head} HTTP/1.1\r\nhost: router\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let chunked = headers.iter().any(|(name, _)| *name == "transfer-encoding");
    if !chunked {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes()).await.expect("writes the head");
    // A server that refuses early may have closed by now; what it said is still there to read.
    drop(stream.write_all(body).await);
    stream
}

/// Sends a request and reads its answer to the end.
pub(crate) async fn send(address: SocketAddr, head: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut stream = open(address, head, headers, body).await;
    let mut bytes = Vec::new();
    // A reset after the answer changes nothing of it.
    drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("answers"));
    parse(&bytes)
}

/// Posts JSON with the key.
pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    let key = format!("Bearer {KEY}");
    send(address, &format!("POST {path}"), &[("authorization", &key)], body.to_string().as_bytes()).await
}

/// Gets with the key.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Reply {
    let key = format!("Bearer {KEY}");
    send(address, &format!("GET {path}"), &[("authorization", &key)], b"").await
}

/// Opens a stream of events and leaves it unread.
pub(crate) async fn post_and_hold(address: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let key = format!("Bearer {KEY}");
    open(address, &format!("POST {path}"), &[("authorization", &key)], body.to_string().as_bytes()).await
}

/// Reads until `wanted` is there.
pub(crate) async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("reads on");
        let read = read.expect("reads");
        text.extend_from_slice(&buffer[..read]);
        let so_far = String::from_utf8_lossy(&text).into_owned();
        assert!(read > 0 || so_far.contains(wanted), "'{wanted}' never came: {so_far}");
        if so_far.contains(wanted) {
            return so_far;
        }
    }
}

fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).expect("ASCII");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut body = bytes[end + 4..].to_vec();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunk(&body);
    }
    Reply { status, headers: head, body }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok()).expect("a size");
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
    body
}
