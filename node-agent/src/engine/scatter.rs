//! Further devices of this agent: scatter workers without a network.
//!
//! Builds that nobody has begun wait in a [`Yard`], from which every device takes its share when it is free, the oldest
//! first. A worker is an engine's core without sequences; what it finishes goes to the engine that combines, device to
//! device where these can ([`Device::adopt`]), and encoded for the tiers. A worker that fails, falls silent or ends costs
//! time and no request: its builds are done here.

mod exchange;
mod yard;

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hypic_domain::key::SegmentKey;
use hypic_kernels::op::Device;
use hypic_models::model::Model;

use super::edge::{BuildEvent, BuildEvents, Command, Doorbell};

pub(super) use yard::{Job, Yard};

/// A further device that builds.
pub struct Worker<D: Device> {
    /// The device, of the kind of the engine's own.
    pub device: Arc<D>,
    /// The same model on it.
    pub model: Arc<dyn Model<D>>,
    /// A worker that has builds and says nothing for so long loses them.
    pub patience: Duration,
}

/// Ends the workers with the last handle of their engine.
pub(super) struct Closing(pub(super) Arc<Yard>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Wakes the engine that combines when a worker's thread ends, whatever ends it.
pub(super) struct Farewell(pub(super) Doorbell);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.ring(Command::Wake);
    }
}

/// What a worker tells.
pub(super) enum Delivery<D: Device> {
    /// A layer is finished, and lies on the worker's device.
    Layer { key: SegmentKey, layer: usize, built: Arc<D::BuiltLayer> },
    /// As to everybody else.
    Event(BuildEvent),
}

/// Who hears of a build.
pub(super) enum Listener<D: Device> {
    /// Somebody elsewhere, by encoded layers.
    Reader(BuildEvents),
    /// The engine that combines, from its worker.
    Combiner { deliveries: Sender<Delivery<D>>, doorbell: Doorbell, wanted: Weak<()>, is_read: bool },
}

impl<D: Device> Listener<D> {
    /// Nobody hears it any more.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Reader(events) => events.is_closed(),
            Self::Combiner { wanted, .. } => wanted.strong_count() == 0,
        }
    }

    /// Whether layers are wanted on the host as they are done.
    pub(super) fn is_reading(&self) -> bool {
        match self {
            Self::Reader(_) => true,
            Self::Combiner { is_read, .. } => *is_read,
        }
    }

    /// One that is gone is noticed at the next turn.
    pub(super) fn tell(&self, event: &BuildEvent) {
        match self {
            Self::Reader(events) => drop(events.send(event.clone())),
            Self::Combiner { .. } => self.deliver(Delivery::Event(event.clone())),
        }
    }

    /// Tells the engine that combines; nobody else can use it.
    pub(super) fn deliver(&self, delivery: Delivery<D>) {
        if let Self::Combiner { deliveries, doorbell, .. } = self
            && deliveries.send(delivery).is_ok()
        {
            doorbell.ring(Command::Wake);
        }
    }
}

/// Where a build is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// Whoever is free takes it.
    Yard,
    /// On this device.
    Here,
    /// On this worker.
    Away(usize),
}

/// What an engine has to do with others of its agent.
pub(super) enum Crew<D: Device> {
    /// Nothing.
    Alone,
    /// It combines what these build.
    Combining { yard: Arc<Yard>, workers: Vec<Link<D>> },
    /// It builds for the one that combines.
    Working { yard: Arc<Yard>, place: usize, deliveries: Sender<Delivery<D>>, doorbell: Doorbell },
}

/// A worker, seen from the engine that combines.
pub(super) struct Link<D: Device> {
    deliveries: Receiver<Delivery<D>>,
    patience: Duration,
    heard: Instant,
}

impl<D: Device> Link<D> {
    pub(super) fn new(deliveries: Receiver<Delivery<D>>, patience: Duration) -> Self {
        Self { deliveries, patience, heard: Instant::now() }
    }
}
