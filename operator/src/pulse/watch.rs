//! One fleet: answers → signal → each pool → pulse.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::actuator::{Actuator, Target};
use super::ask::{Answer, merge};
use super::pool::{PoolWatch, Scene};
use super::registry::Registered;
use super::visible::{ColdShare, Visible};
use super::{ClusterKey, Pulse};
use crate::metrics::{Metrics, PoolGauges};
use crate::scaling::{Meter, Pull, Settings};

/// What is remembered of one fleet between rounds.
pub(super) struct Watch {
    /// Which life of the key; see [`Registered`].
    pub(super) life: u64,
    meter: Meter,
    pools: BTreeMap<String, PoolWatch>,
    /// Routers that did not answer last time.
    silent: BTreeSet<String>,
    share: ColdShare,
    /// What was last told to the reconciler.
    told: Option<Visible>,
}

impl Watch {
    /// Nothing is remembered.
    pub(super) fn new(life: u64) -> Self {
        Self {
            life,
            meter: Meter::new(Settings::default()),
            pools: BTreeMap::new(),
            silent: BTreeSet::new(),
            share: ColdShare::default(),
            told: None,
        }
    }

    /// Takes the answers of one round in, scales the pools, and says how the fleet is.
    pub(super) async fn beat(
        &mut self,
        key: &ClusterKey,
        registered: &Registered,
        answers: Vec<Answer>,
        actuator: &dyn Actuator,
        now: Duration,
    ) -> Pulse {
        self.note_silence(key, &answers);
        let told = || answers.iter().filter_map(|answer| answer.told.as_ref().ok());
        let agents = merge(told());
        let routers_answered = told().count();
        let version = |answer: &Answer| {
            let (epoch, revision) = answer.told.as_ref().ok()?.version;
            Some((answer.router.clone(), epoch, revision))
        };
        let mut versions: Vec<_> = answers.iter().filter_map(version).collect();
        versions.sort();
        let pull =
            |answer: Answer| Pull { router: answer.router, answer: answer.told.map(|told| told.counters) };
        let signal = self.meter.take(answers.into_iter().map(pull).collect(), now);
        let live = (signal.segment_tokens_per_second > 0.0).then_some(signal.cold_share_percent);
        let cold_share_percent = self.share.show(live, now);
        let mut pulse = Pulse {
            routers_asked: registered.fleet.routers.len(),
            routers_answered,
            versions,
            agents,
            cold_share_percent,
            hit_share_percent: cold_share_percent.map(|cold| 100 - cold),
            scaling: BTreeMap::new(),
        };
        for pool in &registered.fleet.pools {
            let watch = self.pools.entry(pool.pool.clone()).or_default();
            let target = Target { namespace: key.namespace.clone(), object: pool.object.clone() };
            let registration = registered.registration;
            let scene = Scene { pool, target, registration, signal: &signal, now };
            pulse.scaling.insert(pool.pool.clone(), watch.beat(&scene, actuator).await);
        }
        pulse
    }

    /// Shows the pools in metrics; those that are gone go.
    pub(super) fn measure(
        &mut self,
        key: &ClusterKey,
        registered: &Registered,
        pulse: &Pulse,
        metrics: &Metrics,
    ) {
        let ClusterKey { namespace, name } = key;
        for gone in self.pools.extract_if(.., |pool, _| !pulse.scaling.contains_key(pool)) {
            metrics.forget_pool(namespace, name, &gone.0);
        }
        for pool in &registered.fleet.pools {
            let (Some(watch), Some(scaling)) = (self.pools.get(&pool.pool), pulse.scaling.get(&pool.pool))
            else {
                continue;
            };
            let asked = watch.replicas(pool, registered.registration).replicas;
            let gauges = PoolGauges {
                desired: u32::try_from(asked).unwrap_or_default(),
                ready: u32::try_from(pool.ready).unwrap_or_default(),
                frozen: scaling.frozen,
                cold_share: scaling.cold_share,
                demand: scaling.demand,
            };
            metrics.pool(namespace, name, &pool.pool, gauges);
        }
    }

    /// Has `send` tell of the pulse if something is to be seen of it that was not told before. What `send` could
    /// not tell is told with the next pulse.
    pub(super) fn tell(&mut self, pulse: &Pulse, send: impl FnOnce() -> bool) {
        let visible = Visible::of(pulse);
        if self.told.as_ref() != Some(&visible) && send() {
            self.told = Some(visible);
        }
    }

    fn note_silence(&mut self, key: &ClusterKey, answers: &[Answer]) {
        let ClusterKey { namespace, name } = key;
        self.silent.retain(|router| answers.iter().any(|answer| answer.router == *router));
        for Answer { router, told } in answers {
            match told {
                Ok(_) if self.silent.remove(router) => {
                    tracing::info!(namespace, cluster = name, router, "a router tells its counters again");
                }
                Err(error) if self.silent.insert(router.clone()) => {
                    tracing::warn!(namespace, cluster = name, router, %error, "a router tells no counters");
                }
                _ => {}
            }
        }
    }
}
