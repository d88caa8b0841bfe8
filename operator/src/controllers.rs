//! What triggers passes: clusters and models themselves, children that change, pods, and what routers tell.

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
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::model;
use crate::plan::names::{CLUSTER, MANAGER};
use crate::pulse::ClusterKey;
use crate::reconcile::{Context, ReconcileError, reconcile};

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
    let ours = watcher::Config::default().labels(&format!("app.kubernetes.io/managed-by={MANAGER}"));
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
        .graceful_shutdown_on(stop)
        .run(model::reconcile, back_off, context);
    tokio::join!(log("HypicCluster", clusters), log("HypicModel", models));
}

fn cluster_of(pod: &Pod) -> Option<ObjectRef<HypicCluster>> {
    Some(ObjectRef::new(pod.labels().get(CLUSTER)?).within(&pod.namespace()?))
}

/// Each object has a wait of its own, so that one that fails holds up no other.
fn back_off<K: ResourceExt>(object: Arc<K>, error: &ReconcileError, context: Arc<Context>) -> Action {
    let wait = context.patience.next(&object.uid().unwrap_or_default()).min(LONGEST);
    tracing::warn!(
        name = object.name_any(),
        namespace = object.namespace(),
        seconds = wait.as_secs_f64(),
        error = %chain(error),
        "a pass failed"
    );
    Action::requeue(wait)
}

/// An error with its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn log<K, E>(kind: &str, passes: impl Stream<Item = Result<(ObjectRef<K>, Action), E>>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Debug,
    E: Debug + std::error::Error,
{
    passes
        .for_each(|pass| {
            match pass {
                Ok((object, _)) => tracing::debug!(kind, name = object.name, "pass done"),
                Err(error) => tracing::debug!(kind, error = %chain(&error), "pass ended early"),
            }
            std::future::ready(())
        })
        .await;
}
