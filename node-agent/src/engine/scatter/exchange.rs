//! Builds go out to further devices, and what these finish comes back.

use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Weak};
use std::time::Instant;

use hypic_domain::key::SegmentKey;
use hypic_kernels::op::Device;

use super::yard::{COMBINES, Job};
use super::{Crew, Delivery, Listener, Site};
use crate::engine::core::Core;
use crate::engine::edge::BuildEvent;
use crate::engine::{EngineError, Segment};

impl<D: Device> Core<D> {
    /// Whether the engine that this one works for is gone.
    pub(in crate::engine) fn is_dismissed(&self) -> bool {
        matches!(&self.crew, Crew::Working { yard, .. } if yard.is_closed())
    }

    /// Whether prompts are composed here: a worker's layers are used elsewhere.
    pub(in crate::engine) fn combines(&self) -> bool {
        !matches!(self.crew, Crew::Working { .. })
    }

    /// Where a new build is done: whoever is free takes it, if there is anybody else.
    pub(in crate::engine) fn offer(&self, job: Job) -> Site {
        match &self.crew {
            Crew::Combining { yard, .. } if !yard.is_closed() => {
                yard.offer(job);
                Site::Yard
            }
            _ => Site::Here,
        }
    }

    /// Takes this device's share of what waits, when it has nothing left to compute.
    pub(in crate::engine) fn take_share(&mut self) {
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
    pub(in crate::engine) fn receive(&mut self) {
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
    pub(in crate::engine) fn forget_taken(&self, key: &SegmentKey) {
        if let Crew::Combining { yard, .. } = &self.crew {
            yard.forget(key);
        }
    }

    /// When a worker that has builds will have been silent for too long.
    pub(in crate::engine) fn next_silence(&self) -> Option<Instant> {
        let Crew::Combining { workers, .. } = &self.crew else { return None };
        let is_away = |worker| self.builds.iter().any(|build| build.site == Site::Away(worker));
        let links = workers.iter().enumerate().filter(|(number, _)| is_away(number + 1));
        links.map(|(_, link)| link.heard + link.patience).min()
    }
}
