//! What triggers passes: clusters and models themselves, children that change, pods, and what routers tell.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use hypic_crds::{HypicCluster, HypicModel, HypicScatterPool};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::controller::{Action, Config, Controller, Error};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::fault::chain;
use crate::model;
use crate::plan::names::{CLUSTER, MANAGED_BY, MANAGER};
use crate::pulse::ClusterKey;
use crate::reconcile::{Context, ReconcileError, forget, reconcile};

/// The longest wait after passes that failed.
const LONGEST: Duration = Duration::from_secs(60);

/// Changes that come together are one pass.
const DEBOUNCE: Duration = Duration::from_millis(200);

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Runs both kinds in one namespace, or in all, until `stop`.
pub async fn run(
    context: Arc<Context>,
    namespace: Option<String>,
    concurrency: u16,
    changed: impl Stream<Item = ClusterKey> + Send + 'static,
    stop: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    let client = context.client.clone();
    let within = namespace.as_deref();
    let config = || Config::default().concurrency(concurrency).debounce(DEBOUNCE);
    let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let clusters = Controller::new(api::<HypicCluster>(&client, within), watcher::Config::default());
    let store = clusters.store();
    let clusters = clusters
        .with_config(config())
        .owns(api::<StatefulSet>(&client, within), ours.clone())
        .owns(api::<Deployment>(&client, within), ours.clone())
        .owns(api::<Service>(&client, within), ours.clone())
        .owns(api::<ConfigMap>(&client, within), ours.clone())
        .owns(api::<ServiceAccount>(&client, within), ours.clone())
        .owns(api::<PodDisruptionBudget>(&client, within), ours.clone())
        .owns(api::<NetworkPolicy>(&client, within), ours.clone())
        .owns(api::<HypicScatterPool>(&client, within), watcher::Config::default())
        .watches(api::<Pod>(&client, within), ours, |pod| cluster_of(&pod))
        .watches(api::<HypicModel>(&client, within), watcher::Config::default(), move |model| {
            // Few clusters: asking each for its model costs less than an index.
            let (name, namespace) = (model.name_any(), model.namespace());
            let serves = |cluster: &Arc<HypicCluster>| {
                cluster.namespace() == namespace
                    && cluster.spec.node_pools.iter().any(|pool| pool.model_ref == name)
            };
            store
                .state()
                .into_iter()
                .filter(serves)
                .map(|cluster| ObjectRef::from_obj(&*cluster))
                .collect::<Vec<_>>()
        })
        .reconcile_on(changed.map(|key| ObjectRef::new(&key.name).within(&key.namespace)))
        .graceful_shutdown_on(stop.clone())
        .run(reconcile, back_off, Arc::clone(&context));
    let models = Controller::new(api::<HypicModel>(&client, within), watcher::Config::default())
        .with_config(config())
        // A cluster's status changes when its agents have loaded the model.
        .watches(api::<HypicCluster>(&client, within), watcher::Config::default(), |cluster| {
            models_of(&cluster)
        })
        .graceful_shutdown_on(stop)
        .run(model::reconcile, back_off, Arc::clone(&context));
    let gone = |key: &ClusterKey| forget(&context, key);
    tokio::join!(watch(clusters, &context, gone), watch(models, &context, |_| ()));
}

fn models_of(cluster: &HypicCluster) -> Vec<ObjectRef<HypicModel>> {
    let namespace = cluster.namespace().unwrap_or_default();
    let names: BTreeSet<&str> = cluster.spec.node_pools.iter().map(|pool| pool.model_ref.as_str()).collect();
    names.into_iter().map(|name| ObjectRef::new(name).within(&namespace)).collect()
}

fn cluster_of(pod: &Pod) -> Option<ObjectRef<HypicCluster>> {
    Some(ObjectRef::new(pod.labels().get(CLUSTER)?).within(&pod.namespace()?))
}

/// Each object has a wait of its own, so that one that fails holds up no other.
fn back_off<K: Resource<DynamicType = ()>>(
    object: Arc<K>,
    error: &ReconcileError,
    context: Arc<Context>,
) -> Action {
    let wait = context.patience.next(&ObjectRef::from_obj(&*object).to_string()).min(LONGEST);
    tracing::warn!(
        name = object.name_any(),
        namespace = object.namespace(),
        seconds = wait.as_secs_f64(),
        error = %chain(error),
        "a pass failed"
    );
    Action::requeue(wait)
}

/// Drives the passes of one kind. An object that is not there any more is forgotten; `gone` is told of it.
async fn watch<K>(
    passes: impl Stream<Item = Result<(ObjectRef<K>, Action), Error<ReconcileError, watcher::Error>>>,
    context: &Context,
    gone: impl Fn(&ClusterKey),
) where
    K: Resource<DynamicType = ()> + DeserializeOwned + Debug,
{
    let kind = K::kind(&());
    passes
        .for_each(|pass| {
            match pass {
                Ok((object, _)) => tracing::debug!(%kind, name = object.name, "pass done"),
                Err(Error::ObjectNotFound(object)) => {
                    let namespace = object.namespace.unwrap_or_default();
                    tracing::info!(%kind, name = object.name, namespace, "gone");
                    context.patience.reset(&ObjectRef::<K>::new(&object.name).within(&namespace).to_string());
                    gone(&ClusterKey { namespace, name: object.name });
                }
                // Nothing is seen of a kind whose watch fails: it is tried again, and somebody must know.
                Err(Error::QueueError(error)) => {
                    tracing::warn!(%kind, error = %chain(&error), "a watch failed")
                }
                Err(error) => tracing::debug!(%kind, error = %chain(&error), "pass ended early"),
            }
            std::future::ready(())
        })
        .await;
}
