//! The engine: one thread that owns a model, its state slots and KV pages, and runs steps.
//!
//! Orders come in through [`Engine::generate`] and leave as a [`TokenStream`]; their tuples come in through a
//! [`Feed`]. [`Engine::build`] computes tuples for others. A step packs rows of many sequences; compositions
//! fly in steps of their own, layer by layer as their tuples arrive, so that nothing but its own program decides
//! how a composition is computed: the same bits on a hit and on a miss.
//!
//! Start reading at `engine/run.rs`. Never: knows a network, a cluster or a file.

mod admit;
mod bodies;
mod builds;
mod compose;
mod compute;
mod core;
mod edge;
mod load;
mod memory;
mod pace;
mod pool;
mod room;
mod run;
mod scatter;
mod sequence;
mod snapshot;
mod step;
mod tokens;
mod tuple;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use hypic_compose::{Ablation, ComposeError, Program};
use hypic_decode::DecodeError;
use hypic_domain::flow::Order;
use hypic_domain::key::{Identity, Scope, SegmentKey};
use hypic_domain::model::{LayerSpec, ModelSpec};
use hypic_domain::tuple::TupleFormat;
use hypic_domain::unit::{Bytes, Millis, Tokens};
use hypic_kernels::op::{Device, DeviceMemory, OpError};
use hypic_models::model::Model;
use hypic_store::codec::TupleHead;
use hypic_store::{Observer, StoreError, StoredTuple};

pub use edge::{BuildEvent, BuildStream, Feed, TokenStream};
pub use load::{Calibration, Counters, Load, SEGMENT_TOKENS};
pub use scatter::Worker;

use edge::{Command, Doorbell};
use pace::Pace;
use scatter::{Closing, Crew, Link, Yard};

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Of the tuples it uses and makes.
    pub identity: Identity,
    /// Width of the seam, `w`.
    pub seam: u32,
    /// Number formats of tuples.
    pub format: TupleFormat,
    /// Most rows of prompts and builds in one step; every answer has one more.
    pub rows: usize,
    /// Sequences that run at a time.
    pub slots: usize,
    /// Builds that run at a time.
    pub builds: usize,
    /// Sequences that may wait.
    pub queue: usize,
    /// Tokens of a KV page.
    pub page_tokens: usize,
    /// Cap over weights, state slots, snapshots, KV pages and what builds record.
    pub memory: Bytes,
    /// What the weights take of it.
    pub weights: Bytes,
    /// What snapshots may take of it; 0 for none.
    pub snapshots: Bytes,
    /// What tuples that nobody uses may take of it to stay on the device, beside keys and values; 0 for none.
    pub bodies: Bytes,
    /// [`Ablation::None`], except in tests of what composition needs.
    pub ablation: Ablation,
}

/// Why the engine cannot do something.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The cap is too small.
    #[error("{} bytes are needed at least and the cap is {}", needed.0, cap.0)]
    FitMemory {
        /// Bytes for weights, slots, snapshots, bodies, recordings and two pages.
        needed: Bytes,
        /// The cap.
        cap: Bytes,
    },
    /// The device refused the pools.
    #[error("state slots and pages cannot be allocated")]
    AllocateMemory {
        /// Why.
        source: Arc<OpError>,
    },
    /// No thread could be started.
    #[error("the engine's thread cannot be started")]
    StartThread {
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// The order has no program.
    #[error("the order cannot be composed")]
    ComposeOrder {
        /// Why.
        source: ComposeError,
    },
    /// The order contradicts itself or the model.
    #[error("the order cannot be read: {reason}")]
    ReadOrder {
        /// What is wrong.
        reason: String,
    },
    /// The prompt leaves no room for an answer.
    #[error("a prompt of {} tokens does not fit a context of {}", tokens.0, context.0)]
    FitContext {
        /// Tokens of the prompt.
        tokens: Tokens,
        /// Longest prompt and answer together.
        context: Tokens,
    },
    /// All pages together hold less than the prompt.
    #[error("{} tokens do not fit pages for {}", tokens.0, limit.0)]
    FitPages {
        /// Tokens to be held at once.
        tokens: Tokens,
        /// What the pages hold.
        limit: Tokens,
    },
    /// Too many wait already.
    #[error("{waiting} sequences wait already")]
    QueueOrder {
        /// How many.
        waiting: usize,
    },
    /// A step failed on the device.
    #[error("a step failed")]
    RunStep {
        /// Why.
        source: Arc<OpError>,
    },
    /// No token could be drawn.
    #[error("no token could be drawn")]
    DrawToken {
        /// Why.
        source: DecodeError,
    },
    /// A tuple could not be written.
    #[error("a tuple could not be written")]
    WriteTuple {
        /// Why.
        source: Arc<StoreError>,
    },
    /// A tuple's parts do not fit its segment.
    #[error("a tuple could not be read")]
    ReadTuple {
        /// Why.
        source: Arc<StoreError>,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped")]
    ReachEngine,
}

/// A segment to be built.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its key.
    pub key: SegmentKey,
    /// Whose it is.
    pub scope: Scope,
    /// Token ids of the whole segment.
    pub ids: Vec<u32>,
    /// Whether the tuple is published; a measurement's is not.
    pub publish: bool,
}

/// A tuple that the engine built.
#[derive(Clone, Debug)]
pub struct BuiltTuple {
    /// The tuple.
    pub tuple: StoredTuple,
    /// Whose it is.
    pub scope: Scope,
    /// From its first row to its last; it shared the engine with others meanwhile.
    pub took: Millis,
}

/// What becomes of tuples that the engine built. It is called on the engine's thread.
pub type Publish = Box<dyn Fn(BuiltTuple) + Send>;

/// Who hears of what an engine makes and keeps, on its thread.
pub struct Outlets {
    /// Tuples that it built.
    pub publish: Publish,
    /// Every change of the snapshots that it keeps.
    pub snapshots: Observer,
    /// Every change of the tuples that stay on the device.
    pub bodies: Observer,
}

impl Default for Outlets {
    /// Nobody.
    fn default() -> Self {
        Self { publish: Box::new(|_| {}), snapshots: Box::new(|_| {}), bodies: Box::new(|_| {}) }
    }
}

/// Asks the device that computes requests, which it does not keep.
type ReadMemory = Arc<dyn Fn() -> Result<DeviceMemory, OpError> + Send + Sync>;

/// A handle of a running engine. The thread ends when all handles and streams are dropped.
#[derive(Clone)]
pub struct Engine {
    doorbell: Doorbell,
    next_age: Arc<AtomicU64>,
    load: Arc<Mutex<Load>>,
    pace: Arc<Mutex<Pace>>,
    spec: Arc<ModelSpec>,
    layers: Arc<[LayerSpec]>,
    config: Arc<EngineConfig>,
    memory: ReadMemory,
    /// Ends the workers.
    _closing: Option<Arc<Closing>>,
}

impl Engine {
    /// Allocates all memory and starts the thread, and one for each of `workers`, which have as much memory.
    ///
    /// # Errors
    /// A cap that is too small, or what the device says.
    pub fn start<D: Device>(
        device: Arc<D>,
        model: Arc<dyn Model<D>>,
        workers: Vec<Worker<D>>,
        config: EngineConfig,
        outlets: Outlets,
    ) -> Result<Self, EngineError> {
        let spec = Arc::new(model.spec().clone());
        let layers: Arc<[LayerSpec]> = spec.layers.clone().into();
        let (doorbell, inbox) = Doorbell::new();
        let load = Arc::new(Mutex::new(Load::default()));
        let config = Arc::new(config);
        let (crew, closing) = start_workers(workers, &config, &layers, &doorbell)?;
        let computes = Arc::downgrade(&device);
        let engine = Self {
            memory: Arc::new(move || {
                computes.upgrade().map_or(Ok(DeviceMemory::default()), |device| device.memory())
            }),
            layers: Arc::clone(&layers),
            doorbell,
            next_age: Arc::new(AtomicU64::new(0)),
            load: Arc::clone(&load),
            pace: Arc::default(),
            spec,
            config: Arc::clone(&config),
            _closing: closing.map(Arc::new),
        };
        let hungry = Arc::clone(&engine.doorbell.hungry);
        let pace = Arc::clone(&engine.pace);
        let parts = run::Parts { device, model, config, outlets, layers, load, pace, hungry, crew };
        parts.start("engine", inbox)?;
        Ok(engine)
    }

    /// Computes an order. Its tuples come through the feed; what the feed does not bring is built here.
    pub fn generate(&self, order: Order) -> (Feed, TokenStream) {
        let choices = order.choices.len();
        // One age for every choice: they are sequences of their own.
        let age = self.next_age.fetch_add(choices.max(1) as u64, Ordering::Relaxed);
        let mut heads = vec![None; order.pieces.len()];
        if let Ok(program) = Program::of_prompt(&order.pieces, order.mode, self.config.seam, Ablation::None) {
            for body in &program.bodies {
                let piece = &order.pieces[body.piece];
                heads[body.piece] = piece.key.map(|key| self.tuple_head(key, &piece.ids));
            }
        }
        // Room for whatever all choices say at once, and some tokens ahead of the reader.
        let (events, received) = tokio::sync::mpsc::channel(32 + 4 * choices);
        let refused = events.clone();
        if !self.doorbell.ring(Command::Generate { age, order: Box::new(order), events }) {
            // The channel is new and empty, and its reader is right here.
            let _ = refused.try_send(Err(EngineError::ReachEngine));
        }
        let stream = TokenStream::new(received, self.doorbell.clone());
        (Feed { age, doorbell: self.doorbell.clone(), heads }, stream)
    }

    /// Builds the tuples of whole segments, each from a zero state at position 0.
    pub fn build(&self, segments: impl IntoIterator<Item = Segment>) -> BuildStream {
        let (events, received) = tokio::sync::mpsc::unbounded_channel();
        for segment in segments {
            let key = segment.key;
            let age = self.next_age.fetch_add(1, Ordering::Relaxed);
            if !self.doorbell.ring(Command::Build { age, segment, events: events.clone() }) {
                // The reader is right here.
                let _ = events.send(BuildEvent::Failed { key, error: EngineError::ReachEngine });
            }
        }
        BuildStream::new(received, self.doorbell.clone())
    }

    /// What the tuple of a segment is, before it exists.
    pub fn tuple_head(&self, key: SegmentKey, ids: &[u32]) -> TupleHead {
        tuple::tuple_head(&self.config, &self.layers, key, ids)
    }

    /// Gauges and counters as of the last step.
    pub fn load(&self) -> Load {
        // A lock poisoned by a panic still holds plain numbers.
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of the device that computes requests, as of now; zeros where it is the host's.
    ///
    /// # Errors
    /// What the device says.
    pub fn memory(&self) -> Result<DeviceMemory, OpError> {
        (self.memory)()
    }

    /// The model's sizes and shapes.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// How it is set up.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }
}

/// Starts a thread for each worker.
fn start_workers<D: Device>(
    workers: Vec<Worker<D>>,
    config: &EngineConfig,
    layers: &Arc<[LayerSpec]>,
    combiner: &Doorbell,
) -> Result<(Crew<D>, Option<Closing>), EngineError> {
    if workers.is_empty() {
        return Ok((Crew::Alone, None));
    }
    let config = Arc::new(EngineConfig {
        slots: 0,
        queue: 0,
        snapshots: Bytes(0),
        bodies: Bytes(0),
        ..config.clone()
    });
    let inboxes: Vec<_> = workers.iter().map(|_| Doorbell::new()).collect();
    let doorbells = inboxes.iter().map(|(doorbell, _)| doorbell.clone());
    let yard = Arc::new(Yard::new(std::iter::once(combiner.clone()).chain(doorbells)));
    // Those that are started end if a later one cannot be.
    let closing = Closing(Arc::clone(&yard));
    let mut links = Vec::new();
    for (number, (worker, (doorbell, inbox))) in workers.into_iter().zip(inboxes).enumerate() {
        let (deliveries, received) = mpsc::channel();
        links.push(Link::new(received, worker.patience));
        let parts = run::Parts {
            device: worker.device,
            model: worker.model,
            config: Arc::clone(&config),
            outlets: Outlets::default(),
            layers: Arc::clone(layers),
            load: Arc::default(),
            pace: Arc::default(),
            hungry: doorbell.hungry,
            crew: Crew::Working {
                yard: Arc::clone(&yard),
                place: number + 1,
                deliveries,
                doorbell: combiner.clone(),
            },
        };
        parts.start("scatter-worker", inbox)?;
    }
    Ok((Crew::Combining { yard, workers: links }, Some(closing)))
}
