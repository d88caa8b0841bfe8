//! Connections that do what no client library lets one do: stop reading, go away, wait.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// A request sent over a socket of its own. Dropping it closes the socket.
pub(crate) struct Held {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Held {
    /// Posts `body` to the chat endpoint.
    pub(crate) fn chat(address: &str, key: &str, body: &Value) -> Self {
        let body = body.to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: hypic\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all((head + &body).as_bytes()).unwrap();
        Self { socket, read: Vec::new() }
    }

    /// Reads until `text` has come; all that came so far.
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut piece = [0; 1024];
        loop {
            let all = String::from_utf8_lossy(&self.read).into_owned();
            if all.contains(text) {
                return all;
            }
            let count = self.socket.read(&mut piece).unwrap();
            assert!(count > 0, "the stream ended before {text:?}: {all}");
            self.read.extend_from_slice(&piece[..count]);
        }
    }
}
