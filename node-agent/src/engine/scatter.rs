//! Further devices of this agent: scatter workers without a network.
//!
//! Builds that nobody has begun wait in a [`Yard`], from which every device takes its share when it is free, the oldest
//! first. A worker is an engine's core without sequences; what it finishes goes to the engine that combines, device to
//! device where these can ([`Device::adopt`]), and encoded for the tiers. A worker that fails, falls silent or ends costs
//! time and no request: its builds are done here.

mod yard;

use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hypic_domain::key::SegmentKey;
use hypic_kernels::op::Device;
use hypic_models::model::Model;

use super::edge::{BuildEvent, BuildEvents, Command, Doorbell};
use super::run::Core;
use super::{EngineError, Segment};

use yard::COMBINES;
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

impl<D: Device> Core<D> {
    /// Whether the engine that this one works for is gone.
    pub(super) fn is_dismissed(&self) -> bool {
        matches!(&self.crew, Crew::Working { yard, .. } if yard.is_closed())
    }

    /// Whether prompts are composed here: a worker's layers are used elsewhere.
    pub(super) fn combines(&self) -> bool {
        !matches!(self.crew, Crew::Working { .. })
    }

    /// Where a new build is done: whoever is free takes it, if there is anybody else.
    pub(super) fn offer(&self, job: Job) -> Site {
        match &self.crew {
            Crew::Combining { yard, .. } if !yard.is_closed() => {
                yard.offer(job);
                Site::Yard
            }
            _ => Site::Here,
        }
    }

    /// Takes this device's share of what waits, when it has nothing left to compute.
    pub(super) fn take_share(&mut self) {
        let is_idle = !self.builds.iter().any(|build| build.site == Site::Here && build.rows_left() > 0);
        let (yard, place) = match &self.crew {
            Crew::Combining { yard, .. } => (Arc::clone(yard), COMBINES),
            Crew::Working { yard, place, .. } => (Arc::clone(yard), *place),
            Crew::Alone => return,
        };
        if place == COMBINES {
            yard.wake();
        }
        if is_idle {
            yard.take(place, self.config.rows).into_iter().for_each(|job| self.begin_job(job));
        }
    }

    fn begin_job(&mut self, job: Job) {
        let key = job.segment.key;
        let Crew::Working { deliveries, doorbell, .. } = &self.crew else {
            if let Some(build) = self.builds.iter_mut().find(|build| build.key == key) {
                build.site = Site::Here;
            }
            return;
        };
        let (deliveries, doorbell) = (deliveries.clone(), doorbell.clone());
        let combiner = |wanted| Listener::Combiner {
            deliveries: deliveries.clone(),
            doorbell: doorbell.clone(),
            wanted,
            is_read: job.is_read,
        };
        // The engine that combines publishes it.
        let segment = Segment { publish: false, ..job.segment };
        if let Err(error) = self.want_build(job.age, &segment, Some(combiner(job.wanted))) {
            combiner(Weak::new()).tell(&BuildEvent::Failed { key, error });
        }
    }

    /// Takes over what workers have finished since, and takes back what they will not finish.
    pub(super) fn receive(&mut self) {
        let Crew::Combining { yard, workers } = &mut self.crew else { return };
        let now = Instant::now();
        yard.forget_unless(|key| self.builds.iter().any(|build| build.key == *key));
        for build in self.builds.iter_mut().filter(|build| build.site == Site::Yard) {
            if let Some(worker) = yard.holder(&build.key).filter(|holder| *holder != COMBINES) {
                build.site = Site::Away(worker);
                build.since = now;
                if let Some(link) = workers.get_mut(worker - 1) {
                    link.heard = now;
                }
            }
        }
        let (mut received, mut silent) = (Vec::new(), Vec::new());
        for (number, link) in workers.iter_mut().enumerate() {
            let worker = number + 1;
            let ended = loop {
                match link.deliveries.try_recv() {
                    Ok(delivery) => received.push((worker, delivery)),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if received.iter().any(|(from, _)| *from == worker) {
                link.heard = now;
            }
            if ended || now.duration_since(link.heard) >= link.patience {
                silent.push(worker);
            }
        }
        for (worker, delivery) in received {
            self.take_delivery(worker, delivery);
        }
        for worker in silent {
            let away: Vec<SegmentKey> =
                self.builds.iter().filter(|b| b.site == Site::Away(worker)).map(|b| b.key).collect();
            if away.is_empty() {
                continue;
            }
            tracing::warn!(
                worker,
                builds = away.len(),
                "a further device is silent: its builds are done here"
            );
            if let Crew::Combining { yard, .. } = &self.crew {
                yard.leave_out(worker);
            }
            away.iter().for_each(|key| self.take_back(key));
        }
    }

    fn take_delivery(&mut self, worker: usize, delivery: Delivery<D>) {
        let key = match &delivery {
            Delivery::Layer { key, .. }
            | Delivery::Event(BuildEvent::Layer { key, .. } | BuildEvent::Failed { key, .. }) => *key,
            Delivery::Event(BuildEvent::Built { tuple }) => *tuple.key(),
        };
        let Crew::Combining { yard, .. } = &self.crew else { return };
        let Some(build) = self.builds.iter_mut().find(|build| build.key == key) else { return };
        if build.site == Site::Yard && yard.holder(&key) == Some(worker) {
            (build.site, build.since) = (Site::Away(worker), Instant::now());
        }
        // What was taken back is done here.
        if build.site != Site::Away(worker) {
            return;
        }
        let taken = match delivery {
            Delivery::Layer { layer, built, .. } => {
                let body = Arc::clone(&build.body);
                self.take_built(&key, &body, (layer, &built)).map_err(EngineError::run_step)
            }
            Delivery::Event(BuildEvent::Layer { key, layer, parts }) => {
                self.layer_of_worker(key, layer, parts)
            }
            Delivery::Event(BuildEvent::Built { tuple }) => self.built_by_worker(&key, tuple),
            Delivery::Event(BuildEvent::Failed { error, .. }) => Err(error),
        };
        if let Err(error) = taken {
            tracing::warn!(%key, worker, %error, "a further device failed: its build is done here");
            self.take_back(&key);
        }
    }

    /// A build comes back from a worker.
    fn take_back(&mut self, key: &SegmentKey) {
        if let Some(build) = self.builds.iter_mut().find(|build| build.key == *key) {
            build.site = Site::Here;
            self.counters.builds_taken_back += 1;
        }
        self.forget_taken(key);
    }

    /// A build is done, or done elsewhere.
    pub(super) fn forget_taken(&self, key: &SegmentKey) {
        if let Crew::Combining { yard, .. } = &self.crew {
            yard.forget(key);
        }
    }

    /// When a worker that has builds will have been silent for too long.
    pub(super) fn next_silence(&self) -> Option<Instant> {
        let Crew::Combining { workers, .. } = &self.crew else { return None };
        let is_away = |worker| self.builds.iter().any(|build| build.site == Site::Away(worker));
        let links = workers.iter().enumerate().filter(|(number, _)| is_away(number + 1));
        links.map(|(_, link)| link.heard + link.patience).min()
    }
}
