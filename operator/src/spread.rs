//! Which pods go by which topology: pods that are behind get it pushed, routers first, since an agent that is ahead
//! refuses whoever is behind.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use hypic_domain::topology::Topology;
use hypic_wire::address::HostPort;
use hypic_wire::channel::Channels;
use hypic_wire::steer::Adopted;
use hypic_wire::tls::ServerRole;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::plan::names::{CONTROL, POOL};
use crate::pulse::ClusterKey;

/// A topology's version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Versions {
    /// Of the combine agents.
    pub epoch: u64,
    /// Of all.
    pub revision: u64,
}

/// What each pod of every fleet said when it was last pushed to, by uid.
#[derive(Default)]
pub struct Spread {
    fleets: Mutex<BTreeMap<ClusterKey, BTreeMap<String, Versions>>>,
}

/// A pod to push to.
struct Target {
    pod: String,
    uid: String,
    address: String,
    role: ServerRole,
}

/// Pushes under way at once.
const AT_ONCE: usize = 16;

/// Routers whose process runs: uid and address for gRPC. One that waits to be started again can tell nothing.
pub fn routers(pods: &[Pod]) -> impl Iterator<Item = (String, String)> {
    let runs = |pod: &&Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let states = containers.map(|container| container.state.as_ref());
        states.into_iter().all(|state| state.is_some_and(|state| state.running.is_some()))
    };
    pods.iter().filter(|pod| is_router(pod)).filter(runs).filter_map(running)
}

fn is_router(pod: &Pod) -> bool {
    pod.labels().get(POOL).is_some_and(|pool| pool == "router")
}

/// Uid and address of a pod that has one.
fn running(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?;
    let address = status.pod_ip.as_ref().filter(|_| status.phase.as_deref() == Some("Running"))?;
    let address = HostPort { host: address.clone(), port: CONTROL };
    Some((pod.uid()?, address.to_string()))
}

impl Spread {
    /// Pushes to every running pod that is not known to go by it; gives what each said.
    pub async fn push(
        &self,
        key: &ClusterKey,
        pods: &[Pod],
        topology: &Topology,
        channels: &Channels,
    ) -> Vec<(String, Result<Versions, String>)> {
        let version = Versions { epoch: topology.epoch.0, revision: topology.revision };
        let known = self.fleets().get(key).cloned().unwrap_or_default();
        // Pods come and go, each with an address of its own.
        channels.retain(|address| pods.iter().filter_map(running).any(|(_, runs)| runs == address));
        let behind =
            |pod: &&Pod| pod.uid().is_some_and(|uid| known.get(&uid).is_none_or(|known| *known < version));
        let targets = pods.iter().filter(behind).filter_map(|pod| {
            let (uid, address) = running(pod)?;
            let role = if is_router(pod) { ServerRole::Router } else { ServerRole::Agent };
            Some(Target { pod: pod.name_any(), uid, address, role })
        });
        let (routers, agents): (Vec<Target>, Vec<Target>) =
            targets.partition(|target| target.role == ServerRole::Router);
        let mut answers = Vec::new();
        for targets in [routers, agents] {
            let pushes = futures::stream::iter(targets).map(async |target| {
                let adopted = channels.push_topology(&target.address, target.role, topology).await;
                let versions =
                    |adopted: Adopted| Versions { epoch: adopted.epoch.0, revision: adopted.revision };
                (target.uid, target.pod, adopted.map(versions).map_err(|error| error.to_string()))
            });
            answers.extend(pushes.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
        }
        let mut fleets = self.fleets();
        let known = fleets.entry(key.clone()).or_default();
        known.retain(|uid, _| pods.iter().any(|pod| pod.uid().as_ref() == Some(uid)));
        known.extend(
            answers.iter().filter_map(|(uid, _, answer)| Some((uid.clone(), *answer.as_ref().ok()?))),
        );
        answers.into_iter().map(|(_, pod, answer)| (pod, answer)).collect()
    }

    /// The newest version that a pod told of.
    pub fn newest(&self, key: &ClusterKey) -> (u64, u64) {
        let fleets = self.fleets();
        let newest = fleets.get(key).and_then(|known| known.values().max()).copied().unwrap_or_default();
        (newest.epoch, newest.revision)
    }

    /// Forgets a cluster.
    pub fn forget(&self, key: &ClusterKey) {
        self.fleets().remove(key);
    }

    fn fleets(&self) -> MutexGuard<'_, BTreeMap<ClusterKey, BTreeMap<String, Versions>>> {
        self.fleets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
