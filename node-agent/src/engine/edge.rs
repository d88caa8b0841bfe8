//! The engine's edge: commands in, streams out. Everything here may be used from any thread or task.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use futures::Stream;
use hypic_domain::flow::{ColdReason, Order, SegmentOutcome, TokenEvent};
use hypic_domain::id::AgentId;
use hypic_domain::key::SegmentKey;
use hypic_kernels::op::HostLayer;
use hypic_store::StoredTuple;
use hypic_store::codec::{Part, TupleHead};
use tokio::sync::mpsc;

use super::tuple::host_layer;
use super::{EngineError, Segment};

/// Arrival order of requests, and the name of each inside the engine.
pub(super) type Age = u64;

pub(super) type Events = mpsc::Sender<Result<TokenEvent, EngineError>>;
pub(super) type BuildEvents = mpsc::UnboundedSender<BuildEvent>;

/// What the engine's thread is told.
pub(super) enum Command {
    Generate {
        age: Age,
        order: Box<Order>,
        events: Events,
    },
    Layer {
        age: Age,
        piece: usize,
        layer: usize,
        host: HostLayer,
    },
    Arrived {
        age: Age,
        piece: usize,
        outcome: SegmentOutcome,
        by: Option<AgentId>,
    },
    Lost {
        age: Age,
        piece: usize,
        reason: ColdReason,
    },
    FeedClosed {
        age: Age,
    },
    Build {
        age: Age,
        segment: Segment,
        events: BuildEvents,
    },
    /// Something changed outside: a stream was read or dropped.
    Wake,
}

/// The way to the engine's thread.
#[derive(Clone)]
pub(super) struct Doorbell {
    pub(super) commands: Sender<Command>,
    /// The engine waits for a reader to make room.
    pub(super) hungry: Arc<AtomicBool>,
}

impl Doorbell {
    /// And what hears it.
    pub(super) fn new() -> (Self, Receiver<Command>) {
        let (commands, inbox) = channel();
        (Self { commands, hungry: Arc::new(AtomicBool::new(false)) }, inbox)
    }

    /// Whether the engine is there to hear it.
    pub(super) fn ring(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }
}

/// The tokens of one request. Dropping it ends the request within one step; not reading it pauses the request
/// and nobody else.
pub struct TokenStream {
    events: mpsc::Receiver<Result<TokenEvent, EngineError>>,
    doorbell: Doorbell,
}

impl TokenStream {
    pub(super) fn new(events: mpsc::Receiver<Result<TokenEvent, EngineError>>, doorbell: Doorbell) -> Self {
        Self { events, doorbell }
    }

    /// The next event; `None` after the last choice is finished or after an error.
    pub async fn next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        let event = self.events.recv().await;
        self.made_room();
        event
    }

    /// The next event, for callers without an async runtime.
    pub fn blocking_next(&mut self) -> Option<Result<TokenEvent, EngineError>> {
        let event = self.events.blocking_recv();
        self.made_room();
        event
    }

    fn made_room(&self) {
        // Both sides look at the channel after they wrote the flag or read an event, so no room goes unseen.
        if self.doorbell.hungry.load(Ordering::SeqCst) {
            self.doorbell.ring(Command::Wake);
        }
    }
}

impl Stream for TokenStream {
    type Item = Result<TokenEvent, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = self.events.poll_recv(cx);
        if event.is_ready() {
            self.made_room();
        }
        event
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.events.close();
        self.doorbell.ring(Command::Wake);
    }
}

/// Brings a request's tuples to the engine, layer by layer, from whatever thread they arrive on. Segments of
/// which neither [`Feed::arrived`] nor [`Feed::lost`] was said are built when it is dropped.
pub struct Feed {
    pub(super) age: Age,
    pub(super) doorbell: Doorbell,
    /// Beside each piece; `None` for those that are not composed.
    pub(super) heads: Vec<Option<TupleHead>>,
}

impl Feed {
    /// Which of the order's pieces are composed and so must arrive or be lost.
    pub fn wanted(&self) -> impl Iterator<Item = (usize, &TupleHead)> {
        self.heads.iter().enumerate().filter_map(|(piece, head)| Some((piece, head.as_ref()?)))
    }

    /// All parts of one layer of a piece's tuple. They are checked here, not on the engine's thread.
    ///
    /// # Errors
    /// A part that does not fit the piece: the tuple is of no use, and to be reported lost.
    pub fn layer(&self, piece: usize, layer: usize, parts: &[Part]) -> Result<(), EngineError> {
        if let Some(head) = self.heads.get(piece).and_then(Option::as_ref) {
            let host = host_layer(head, layer, parts)
                .map_err(|source| EngineError::ReadTuple { source: Arc::new(source) })?;
            self.doorbell.ring(Command::Layer { age: self.age, piece, layer, host });
        }
        Ok(())
    }

    /// All layers of a piece's tuple have been given, and its manifest was right.
    pub fn arrived(&self, piece: usize, outcome: SegmentOutcome, by: Option<AgentId>) {
        self.doorbell.ring(Command::Arrived { age: self.age, piece, outcome, by });
    }

    /// A whole tuple at once.
    ///
    /// # Errors
    /// As [`Feed::layer`].
    pub fn tuple(
        &self,
        piece: usize,
        tuple: &StoredTuple,
        outcome: SegmentOutcome,
        by: Option<AgentId>,
    ) -> Result<(), EngineError> {
        for layer in 0..tuple.head().layers.len() {
            self.layer(piece, layer, tuple.layer(layer as u16))?;
        }
        self.arrived(piece, outcome, by);
        Ok(())
    }

    /// A piece's tuple cannot be had: the engine builds it.
    pub fn lost(&self, piece: usize, reason: ColdReason) {
        self.doorbell.ring(Command::Lost { age: self.age, piece, reason });
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.doorbell.ring(Command::FeedClosed { age: self.age });
    }
}

/// What a build tells.
#[derive(Clone, Debug)]
pub enum BuildEvent {
    /// One layer is encoded.
    Layer {
        /// Of which segment.
        key: SegmentKey,
        /// Which layer.
        layer: usize,
        /// All of its parts.
        parts: Vec<Part>,
    },
    /// The tuple is whole.
    Built {
        /// The tuple.
        tuple: StoredTuple,
    },
    /// It could not be built.
    Failed {
        /// Of which segment.
        key: SegmentKey,
        /// Why.
        error: EngineError,
    },
}

/// The progress of some builds. Dropping it ends those that nobody else wants within one step.
///
/// What is not read yet waits in memory; it is bounded by the tuples asked for.
pub struct BuildStream {
    events: mpsc::UnboundedReceiver<BuildEvent>,
    doorbell: Doorbell,
}

impl BuildStream {
    pub(super) fn new(events: mpsc::UnboundedReceiver<BuildEvent>, doorbell: Doorbell) -> Self {
        Self { events, doorbell }
    }

    /// The next event; `None` when every segment is built or failed.
    pub async fn next(&mut self) -> Option<BuildEvent> {
        self.events.recv().await
    }

    /// The next event, for callers without an async runtime.
    pub fn blocking_next(&mut self) -> Option<BuildEvent> {
        self.events.blocking_recv()
    }
}

impl Stream for BuildStream {
    type Item = BuildEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(cx)
    }
}

impl Drop for BuildStream {
    fn drop(&mut self) {
        self.events.close();
        self.doorbell.ring(Command::Wake);
    }
}
