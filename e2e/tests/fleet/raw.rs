//! Connections that do what no client library lets one do: stop reading, go away, wait.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hypic_wire::channel::Channels;
use hypic_wire::proto::build_event::Event;
use hypic_wire::proto::build_request::Message;
use hypic_wire::proto::{BuildRequest, BuildSegment, BuildStart, Credit, DescribeRequest};
use hypic_wire::tls::TlsFiles;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::support::Tested;

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

/// An asker of a build that has had everything and leaves its side of the call open.
pub(crate) struct StayingAsker {
    /// Its connection lives here.
    _runtime: Runtime,
    _side: UnboundedSender<BuildRequest>,
}

impl StayingAsker {
    /// Has a segment built by `agent` and reads to the end of the answer.
    pub(crate) fn build(tested: &Tested, agent: &str) -> Self {
        let runtime = runtime();
        let (side, messages) = unbounded_channel();
        let epoch = tested.fleet.topology().epoch.0;
        let (channels, address) = peer_of(tested, agent);
        runtime.block_on(async {
            let mut agent = channels.agent(&address).unwrap();
            let described = agent.describe(DescribeRequest { epoch }).await.unwrap().into_inner();
            let say = |message| side.send(BuildRequest { message: Some(message) }).unwrap();
            say(start(epoch, described.identity));
            let asked = agent.build(UnboundedReceiverStream::new(messages)).await.unwrap();
            let (mut events, mut built) = (asked.into_inner(), false);
            while let Some(event) = events.message().await.unwrap() {
                if matches!(event.event, Some(Event::Built(_))) {
                    built = true;
                    // All is pulled: the build need not wait any more.
                    say(Message::Credit(Credit { bytes: u64::MAX }));
                }
            }
            assert!(built, "the build failed");
        });
        Self { _runtime: runtime, _side: side }
    }
}

/// An asker that opened a build and has not said which.
pub(crate) struct SilentAsker {
    runtime: Runtime,
    side: UnboundedSender<BuildRequest>,
    start: Message,
    /// Why it was refused.
    refused: JoinHandle<String>,
}

impl SilentAsker {
    /// Opens a build on `agent`.
    pub(crate) fn open(tested: &Tested, agent: &str) -> Self {
        let runtime = runtime();
        let (side, messages) = unbounded_channel();
        let epoch = tested.fleet.topology().epoch.0;
        let (channels, address) = peer_of(tested, agent);
        let (start, refused) = runtime.block_on(async {
            let mut agent = channels.agent(&address).unwrap();
            let mut silent = agent.clone();
            let refused = tokio::spawn(async move {
                match silent.build(UnboundedReceiverStream::new(messages)).await {
                    Ok(_) => "not at all".to_owned(),
                    Err(status) => status.message().to_owned(),
                }
            });
            // On one connection, calls arrive in the order in which they are made.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let described = agent.describe(DescribeRequest { epoch }).await.unwrap().into_inner();
            (start(epoch, described.identity), refused)
        });
        Self { runtime, side, start, refused }
    }

    /// Says which build, late. Why it was refused.
    pub(crate) fn start(self) -> String {
        self.side.send(BuildRequest { message: Some(self.start) }).unwrap();
        self.runtime.block_on(self.refused).unwrap()
    }

    /// Waits. Why it was refused.
    pub(crate) fn wait(self) -> String {
        self.runtime.block_on(self.refused).unwrap()
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What a peer reaches `agent` with, and where.
fn peer_of(tested: &Tested, agent: &str) -> (Channels, String) {
    let files = tested.fleet.agent_certificates();
    let files = TlsFiles { cert: files.cert.clone(), key: files.key.clone(), ca: files.ca.clone() };
    let entry = tested.fleet.topology().agent(&agent.into()).unwrap();
    (Channels::new(files.load().unwrap()), entry.control.clone())
}

/// Begins a build of one segment.
fn start(epoch: u64, identity: Vec<u8>) -> Message {
    Message::Start(BuildStart {
        epoch,
        id: "stays".to_owned(),
        identity,
        segments: vec![BuildSegment { key: vec![7; 32], scope: vec![7; 32], ids: (1..65).collect() }],
        credit_bytes: u64::MAX,
        deadline_ms: 60e3,
    })
}
