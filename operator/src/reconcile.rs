//! One pass over one HypicCluster, top to bottom: observe → validate → plan → apply → report.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use hypic_crds::HypicCluster;
use hypic_crds::condition::{Is, kind};
use hypic_crds::pool::NodePool;
use hypic_domain::topology::Topology;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::events::{EventType, Recorder};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::Value;

use crate::actuate::claim;
use crate::apply::{self, Step, carry_out, leftovers, steps};
use crate::event::event;
use crate::fault::{Fault, of_refusal};
use crate::metrics::{ClusterGauges, Kind, Metrics};
use crate::observe::{Observed, observe};
use crate::plan::names::Names;
use crate::plan::topology::Known;
use crate::plan::{Defaults, Inputs, Plan, plan, replicas};
use crate::pulse::{ClusterKey, Fleet, Pulses, RouterPod, ScalingPool, is_claimed};
use crate::report::{self, Facts};
use crate::secrets::{self, Identity, SecretsError};
use crate::spread::{Spread, Versions};
use crate::status;
use crate::validate::validate;

/// A cluster at rest is looked at this often: nobody tells of a deleted Secret, and certificates grow old.
const AT_REST: Duration = Duration::from_secs(60);
/// While something is missing.
const WAITING: Duration = Duration::from_secs(5);

/// What every pass uses.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What the operator gives every fleet.
    pub defaults: Defaults,
    /// What routers tell.
    pub pulses: Pulses,
    /// Events.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The operator's identities towards fleets.
    pub identities: Mutex<BTreeMap<ClusterKey, Arc<Identity>>>,
    /// Which pods go by which topology.
    pub spread: Spread,
    /// How long objects that failed wait.
    pub patience: crate::patience::Patience,
}

/// Why a pass ended early. The next one is made after a while that grows.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server.
    #[error("the API server: {0}")]
    Api(#[from] Box<kube::Error>),
    /// Certificates.
    #[error("secrets: {0}")]
    Secrets(#[from] SecretsError),
    /// A fault of ours: the others are looked after all the same.
    #[error("the pass panicked: the log says where")]
    Panicked,
}

impl From<kube::Error> for ReconcileError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// One pass.
///
/// # Errors
/// The API server or the certificates; refusals of single writes are told in the status instead.
pub async fn reconcile(cluster: Arc<HypicCluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let begun = Instant::now();
    let done = unwinding(pass(&cluster, &context)).await;
    context.metrics.reconciled(Kind::HypicCluster, begun.elapsed().as_secs_f64(), done.is_ok());
    if done.is_ok() {
        context.patience.reset(&ObjectRef::from_obj(&*cluster).to_string());
    }
    done
}

/// A pass that panics fails like any other: one object must not end the operator for all.
pub async fn unwinding(
    pass: impl Future<Output = Result<Action, ReconcileError>>,
) -> Result<Action, ReconcileError> {
    AssertUnwindSafe(pass).catch_unwind().await.unwrap_or(Err(ReconcileError::Panicked))
}

async fn pass(cluster: &HypicCluster, context: &Context) -> Result<Action, ReconcileError> {
    let key = key(cluster);
    if cluster.meta().deletion_timestamp.is_some() {
        forget(context, &key);
        return Ok(Action::await_change());
    }
    let names = Names::of(cluster);
    let observed = observe(&context.client, cluster).await?;
    if !is_wanted(context, cluster, &key).await? {
        forget(context, &key);
        return Ok(Action::await_change());
    }
    let scaled = observed.scaled(cluster);
    let mut faults = validate(cluster, &observed);
    let paused = cluster.spec.reconciliation_paused == Some(true);
    let mut done = None;
    if !paused
        && !faults.iter().any(|fault| fault.blocks)
        && let Some(model) = &observed.model
    {
        match identity(context, &names, &key).await {
            Ok(identity) => {
                let newest = newest(cluster, context, &key);
                let known = Known { current: observed.topology(&names), newest };
                let defaults = &context.defaults;
                let planned = plan(&Inputs { cluster, model, defaults, scaled: &scaled, known });
                let mut written = write(cluster, context, &observed, &planned, &identity, &key).await?;
                faults.append(&mut written.faults);
                faults.extend(claim_all(context, &names, &observed, &scaled).await?);
                context.pulses.register(key.clone(), fleet(cluster, &observed, &identity));
                done = Some((planned.topology, written));
            }
            Err(error) => faults.push(error.fault(&names)?),
        }
    }
    if done.is_none() {
        // Nobody scales it meanwhile.
        context.pulses.forget(&key);
        context.metrics.forget_cluster(&key.namespace, &key.name);
    }
    let (topology, written) = done.unzip();
    let written = written.unwrap_or_default();
    let wanted: Vec<(&NodePool, i32)> =
        cluster.spec.node_pools.iter().map(|pool| (pool, replicas(pool, &scaled))).collect();
    let pulse = context.pulses.get(&key);
    let facts = Facts {
        cluster,
        observed: &observed,
        wanted: &wanted,
        faults: &faults,
        topology: topology.as_ref(),
        written: &written.workloads,
        pulse: pulse.as_ref(),
        paused,
    };
    let settled = tell(context, &facts, &key).await?;
    Ok(Action::requeue(if settled { AT_REST } else { WAITING }))
}

/// Whether the API server still wants it. The watch tells of a deletion later than children lose their owner with
/// `--cascade=orphan`: who took them for left behind by a cluster before would give them an owner that is about to go, and
/// they with it.
async fn is_wanted(context: &Context, cluster: &HypicCluster, key: &ClusterKey) -> Result<bool, kube::Error> {
    let clusters = Api::<HypicCluster>::namespaced(context.client.clone(), &key.namespace);
    let now = clusters.get_metadata_opt(&key.name).await?;
    Ok(now.is_some_and(|now| now.uid() == cluster.uid() && now.metadata.deletion_timestamp.is_none()))
}

/// A version as statuses hold it.
fn told(number: Option<i64>) -> u64 {
    number.and_then(|number| u64::try_from(number).ok()).unwrap_or_default()
}

/// What a cluster is called in maps.
pub fn key(cluster: &HypicCluster) -> ClusterKey {
    ClusterKey { namespace: cluster.namespace().unwrap_or_default(), name: cluster.name_any() }
}

/// Forgets a cluster that is gone.
pub fn forget(context: &Context, key: &ClusterKey) {
    context.pulses.forget(key);
    context.spread.forget(key);
    context.identities.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    context.metrics.forget_cluster(&key.namespace, &key.name);
}

async fn identity(context: &Context, names: &Names, key: &ClusterKey) -> Result<Arc<Identity>, SecretsError> {
    let before = context.identities.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
    let identity = secrets::ensure(&context.client, names, before, SystemTime::now()).await?;
    context
        .identities
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(key.clone(), Arc::clone(&identity));
    Ok(identity)
}

/// The newest topology that the status or a pod tells of.
fn newest(cluster: &HypicCluster, context: &Context, key: &ClusterKey) -> (u64, u64) {
    let status = cluster.status.as_ref();
    let status = status.map(|status| (told(status.topology_epoch), told(status.topology_revision)));
    context.spread.newest(key).max(status.unwrap_or_default())
}

/// What came of a pass's writes.
#[derive(Default)]
struct Written {
    faults: Vec<Fault>,
    /// Names of Deployments and StatefulSets that were written.
    workloads: BTreeSet<String>,
}

/// First what pods read, then the topology to those who run, then the pods.
async fn write(
    cluster: &HypicCluster,
    context: &Context,
    observed: &Observed,
    planned: &Plan,
    identity: &Identity,
    key: &ClusterKey,
) -> Result<Written, ReconcileError> {
    let (names, mut written) = (Names::of(cluster), Written::default());
    carry_out_all(context, cluster, steps(&planned.config, observed, &names), &mut written).await?;
    push(context, observed, &planned.topology, identity, key).await;
    carry_out_all(context, cluster, steps(&planned.fleet, observed, &names), &mut written).await?;
    let all: Vec<Value> = planned.config.iter().chain(&planned.fleet).cloned().collect();
    carry_out_all(context, cluster, leftovers(&all, observed, &names), &mut written).await?;
    Ok(written)
}

async fn carry_out_all(
    context: &Context,
    cluster: &HypicCluster,
    steps: Vec<Step>,
    written: &mut Written,
) -> Result<(), ReconcileError> {
    let names = Names::of(cluster);
    for step in steps {
        match carry_out(&context.client, &names, &step).await? {
            Some(fault) => written.faults.push(fault),
            None if step.action != apply::Action::Leave => {
                tracing::info!(cluster = cluster.name_any(), reason = step.reason(), why = step.why, "wrote");
                let (kind, name) = &step.child;
                if matches!(kind.as_str(), "Deployment" | "StatefulSet") {
                    written.workloads.insert(name.clone());
                }
                let action = format!("{}{kind}{name}", step.reason());
                publish(context, cluster, EventType::Normal, step.reason(), &action, &step.why).await;
            }
            None => {}
        }
    }
    Ok(())
}

/// Sets the numbers of pools that nobody owns.
async fn claim_all(
    context: &Context,
    names: &Names,
    observed: &Observed,
    scaled: &BTreeMap<String, i32>,
) -> Result<Vec<Fault>, ReconcileError> {
    let mut faults = Vec::new();
    for (pool, replicas) in scaled {
        if observed.scatter.get(pool).is_some_and(|object| is_claimed(&object.metadata)) {
            continue;
        }
        let object = names.child(pool);
        if let Err(error) = claim(&context.client, names, &object, *replicas).await {
            faults.push(of_refusal("HypicScatterPool", &object, error)?);
        }
    }
    Ok(faults)
}

async fn push(
    context: &Context,
    observed: &Observed,
    topology: &Topology,
    identity: &Identity,
    key: &ClusterKey,
) {
    for (pod, adopted) in context.spread.push(key, &observed.pods, topology, &identity.channels).await {
        context.metrics.pushed(adopted.is_ok());
        match adopted {
            Ok(Versions { epoch, revision }) => tracing::info!(pod, epoch, revision, "topology pushed"),
            // It boots from its mounted file, or is asked again in the next pass.
            Err(error) => tracing::debug!(pod, error, "topology not pushed"),
        }
    }
}

/// What the pulse needs to know of a fleet.
fn fleet(cluster: &HypicCluster, observed: &Observed, identity: &Identity) -> Fleet {
    let routers =
        crate::spread::routers(&observed.pods).map(|(uid, address)| RouterPod { uid, address }).collect();
    let pools = cluster.spec.node_pools.iter().filter_map(|pool| {
        let object = observed.scatter.get(&pool.name)?;
        Some(ScalingPool {
            pool: pool.name.clone(),
            object: object.name_any(),
            policy: pool.scaling.clone()?,
            replicas: object.spec.replicas,
            ready: observed.ready(crate::plan::names::POOL, &pool.name),
            scaled_by: crate::pulse::scaled_by(&object.metadata),
        })
    });
    Fleet {
        uid: cluster.uid().unwrap_or_default(),
        routers,
        channels: Arc::clone(&identity.channels),
        pools: pools.collect(),
    }
}

/// Writes the statuses that differ, tells of a changed `Ready`, and sets the gauges. True when all is as asked.
async fn tell(context: &Context, facts: &Facts<'_>, key: &ClusterKey) -> Result<bool, ReconcileError> {
    let now = Time(Timestamp::now());
    let status = report::cluster(facts, &now);
    let before = facts.cluster.status.clone().unwrap_or_default();
    let ready = |conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition], kind: &str| {
        conditions.iter().find(|condition| condition.type_ == kind).map(|condition| {
            (condition.status == "True", condition.reason.clone(), condition.message.clone())
        })
    };
    let (was, is) = (ready(&before.conditions, kind::READY), ready(&status.conditions, kind::READY));
    status::write(&context.client, facts.cluster, &status).await?;
    if let Some((holds, reason, message)) = &is
        && was.as_ref().map(|(holds, reason, _)| (holds, reason)) != Some((holds, reason))
    {
        // Pods that are on their way are no news.
        let calm =
            *holds || matches!(reason.as_str(), "WaitingForPods" | "RollingOut" | "Paused" | "Complete");
        let weight = if calm { EventType::Normal } else { EventType::Warning };
        publish(context, facts.cluster, weight, reason, &format!("Report{reason}"), message).await;
    }
    for (pool, _) in facts.wanted.iter().filter(|(pool, _)| pool.scaling.is_some()) {
        if let (Some(object), Some(status)) =
            (facts.observed.scatter.get(&pool.name), report::scatter_pool(facts, pool, &now))
        {
            status::write(&context.client, object, &status).await?;
        }
    }
    let holds = |kind: &str| ready(&status.conditions, kind).is_some_and(|(holds, ..)| holds);
    let index = status.conditions.iter().find(|condition| condition.type_ == kind::INDEX_CONSISTENT);
    context.metrics.cluster(
        &key.namespace,
        &key.name,
        ClusterGauges {
            ready: holds(kind::READY),
            degraded: holds(kind::DEGRADED),
            // What nobody can tell is no alarm.
            index_consistent: index.is_none_or(|index| index.status != Is::False.name()),
            topology_epoch: told(status.topology_epoch),
        },
    );
    Ok(holds(kind::READY) && !holds(kind::PROGRESSING) && facts.faults.is_empty())
}

async fn publish(
    context: &Context,
    cluster: &HypicCluster,
    weight: EventType,
    reason: &str,
    action: &str,
    note: &str,
) {
    let event = event(weight, reason, action, note);
    if let Err(error) = context.recorder.publish(&event, &cluster.object_ref(&())).await {
        // An event is for people; the status says the same.
        tracing::warn!(%error, reason, "an event could not be written");
    }
}
