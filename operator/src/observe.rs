//! What is there: a cluster's children, pods, model and Secrets, read from the API server.

use std::collections::BTreeMap;

use hypic_crds::{HypicCluster, HypicModel, HypicScatterPool};
use hypic_domain::topology::Topology;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, Secret};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, Resource, ResourceExt};

use crate::fault::is_refusal;
use crate::plan::config::TOPOLOGY_KEY;
use crate::plan::names::{CLUSTER, Names, POOL, Whose};

/// Kinds of children that are compared, applied and, when the plan has them no more, deleted.
pub const KINDS: [(&str, &str, &str, &str); 8] = [
    ("", "v1", "ConfigMap", "configmaps"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("", "v1", "Service", "services"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("apps", "v1", "Deployment", "deployments"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    ("hypic.dev", "v1alpha1", "HypicScatterPool", "hypicscatterpools"),
];

/// How the API server calls a kind; nothing for a kind outside [`KINDS`].
pub fn resource(kind: &str) -> Option<ApiResource> {
    let (group, version, kind, plural) = KINDS.iter().find(|(_, _, known, _)| *known == kind)?;
    Some(ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural))
}

/// The Secret with API keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenants {
    /// The spec asks for none.
    Open,
    /// It is there and has the key.
    Found,
    /// What is missing.
    Missing(String),
}

/// What was seen of one cluster.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The model that its pools name.
    pub model: Option<HypicModel>,
    /// The claim that the model names is there; nothing where it names none.
    pub claim: Option<bool>,
    /// The Secret with API keys.
    pub tenants: Tenants,
    /// Children of [`KINDS`], as they are, whoever owns them.
    pub children: Vec<DynamicObject>,
    /// Pods of routers and agents that are neither on their way out nor at their end.
    pub pods: Vec<Pod>,
    /// Objects that count scatter workers, by pool.
    pub scatter: BTreeMap<String, HypicScatterPool>,
    /// What is said of pods that cannot be made, by StatefulSet.
    pub refused: BTreeMap<String, String>,
}

impl Observed {
    /// A child by kind and name.
    pub fn child(&self, kind: &str, name: &str) -> Option<&DynamicObject> {
        self.children.iter().find(|child| {
            child.types.as_ref().is_some_and(|types| types.kind == kind) && child.name_any() == name
        })
    }

    /// The topology that pods boot from.
    pub fn topology(&self, names: &Names) -> Option<Topology> {
        let text = self.child("ConfigMap", &names.child("topology"))?.data["data"][TOPOLOGY_KEY].as_str()?;
        serde_json::from_str(text).ok()
    }

    /// Workers asked for, of each pool that scales. Where the object that counts them is missing, as many as there
    /// are, within the pool's bounds.
    pub fn scaled(&self, cluster: &HypicCluster) -> BTreeMap<String, i32> {
        let names = Names::of(cluster);
        let there = |pool: &str| {
            let set = self.child("StatefulSet", &names.child(pool))?;
            i32::try_from(set.data["spec"]["replicas"].as_i64()?).ok()
        };
        let pools =
            cluster.spec.node_pools.iter().filter_map(|pool| Some((&pool.name, pool.scaling.as_ref()?)));
        pools
            .map(|(pool, policy)| {
                let asked = self.scatter.get(pool).map(|object| object.spec.replicas);
                let bounded = |count: i32| count.min(policy.max_replicas).max(policy.min_replicas);
                let count = asked.unwrap_or_else(|| there(pool).map_or(policy.min_replicas, bounded));
                (pool.clone(), count)
            })
            .collect()
    }

    /// Pods with that value of a label.
    pub fn pods_with<'a>(&'a self, label: &'a str, value: &'a str) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |pod| pod.labels().get(label).is_some_and(|found| found == value))
    }

    /// Ready pods with that value of a label.
    pub fn ready(&self, label: &str, value: &str) -> i32 {
        let count = self.pods_with(label, value).filter(|pod| is_ready(pod)).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    }
}

/// Neither on its way out nor at its end. A pod that was evicted stays as Failed, long after it was replaced.
fn counts(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.meta().deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

/// The kubelet says that its probes pass.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// Reads everything that the plan and the report of a cluster need.
///
/// # Errors
/// The API server.
pub async fn observe(client: &Client, cluster: &HypicCluster) -> Result<Observed, kube::Error> {
    let names = Names::of(cluster);
    let namespace = names.namespace.as_str();
    let mine = ListParams::default().labels(&format!("{CLUSTER}={}", names.cluster));

    let model = match cluster.spec.node_pools.first() {
        Some(pool) => {
            Api::<HypicModel>::namespaced(client.clone(), namespace).get_opt(&pool.model_ref).await?
        }
        None => None,
    };
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let claim = match model.as_ref().and_then(|model| model.spec.source.pvc.as_ref()) {
        Some(volume) => Some(claims.get_opt(&volume.claim_name).await?.is_some()),
        None => None,
    };
    let mut children = Vec::new();
    for (_, _, kind, _) in KINDS {
        let Some(resource) = resource(kind) else { continue };
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
        let types =
            kube::api::TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        // Items of a list do not say their kind.
        children.extend(api.list(&mine).await?.items.into_iter().map(|mut child| {
            child.types = Some(types.clone());
            child
        }));
    }
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&mine).await?.items;
    let pods: Vec<Pod> =
        pods.into_iter().filter(|pod| counts(pod) && is_ours(pod, &names, &children)).collect();
    let scatter = scatter(&names, &children)?;
    let refused = refused(client, namespace, &children, &pods).await?;
    let tenants = tenants(client, cluster).await?;
    Ok(Observed { model, claim, tenants, children, pods, scatter, refused })
}

/// What keeps StatefulSets from making pods. Deployments tell it in a condition; StatefulSets in events alone, which
/// are read only where pods are missing.
async fn refused(
    client: &Client,
    namespace: &str,
    children: &[DynamicObject],
    pods: &[Pod],
) -> Result<BTreeMap<String, String>, kube::Error> {
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let mut refused = BTreeMap::new();
    for set in children.iter().filter(|child| lacks_pods(child)) {
        let uid = set.uid().unwrap_or_default();
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid},reason=FailedCreate"));
        let told = match events.list(&about).await {
            Ok(told) => told.items,
            // They only say why: a Role of an earlier version must not keep the cluster from being looked after.
            Err(kube::Error::Api(refusal)) if is_refusal(refusal.code) => {
                tracing::warn!(namespace, %refusal, "events cannot be read");
                return Ok(refused);
            }
            Err(error) => return Err(error),
        };
        let of_set = |pod: &&Pod| pod.owner_references().iter().any(|owner| owner.uid == uid);
        if let Some(told) = last_refusal(told, pods.iter().filter(of_set)) {
            refused.insert(set.name_any(), told);
        }
    }
    Ok(refused)
}

fn lacks_pods(child: &DynamicObject) -> bool {
    let number = |value: &serde_json::Value, default| value.as_i64().unwrap_or(default);
    child.types.as_ref().is_some_and(|types| types.kind == "StatefulSet")
        && number(&child.data["status"]["replicas"], 0) < number(&child.data["spec"]["replicas"], 1)
}

/// The last event's words, unless a pod was made since: events stay for an hour, the trouble may not.
fn last_refusal<'a>(events: Vec<Event>, pods: impl Iterator<Item = &'a Pod>) -> Option<String> {
    let made = pods.filter_map(|pod| pod.creation_timestamp()).map(|time| time.0).max();
    let at = |event: &Event| {
        event.last_timestamp.clone().or_else(|| event.creation_timestamp()).map(|time| time.0)
    };
    let last = events.into_iter().max_by_key(at)?;
    (at(&last) > made).then_some(last.message).flatten()
}

/// Made by a StatefulSet of the cluster, or by its routers' Deployment: labels alone make no pod a part of it.
fn is_ours(pod: &Pod, names: &Names, children: &[DynamicObject]) -> bool {
    let routers = format!("{}-", names.child("router"));
    pod.owner_references().iter().any(|owner| match owner.kind.as_str() {
        "ReplicaSet" => owner.name.starts_with(&routers),
        _ => children.iter().any(|child| child.uid().as_deref() == Some(&owner.uid)),
    })
}

/// The objects that count scatter workers, of the children.
fn scatter(
    names: &Names,
    children: &[DynamicObject],
) -> Result<BTreeMap<String, HypicScatterPool>, kube::Error> {
    let counts =
        |child: &&DynamicObject| child.types.as_ref().is_some_and(|types| types.kind == "HypicScatterPool");
    let typed = |child: &DynamicObject| serde_json::from_value(serde_json::to_value(child)?);
    let mut pools = BTreeMap::new();
    for child in children.iter().filter(counts) {
        let Some(pool) = child.labels().get(POOL) else { continue };
        if child.name_any() != names.child(pool) || names.whose(child.meta()) == Whose::Theirs {
            continue;
        }
        pools.insert(pool.clone(), typed(child).map_err(kube::Error::SerdeError)?);
    }
    Ok(pools)
}

async fn tenants(client: &Client, cluster: &HypicCluster) -> Result<Tenants, kube::Error> {
    let Some(wanted) = &cluster.spec.security.tenants_secret_ref else { return Ok(Tenants::Open) };
    let namespace = cluster.namespace().unwrap_or_default();
    let Some(secret) = Api::<Secret>::namespaced(client.clone(), &namespace).get_opt(&wanted.name).await?
    else {
        return Ok(Tenants::Missing(format!("Secret '{}' is not in namespace '{namespace}'", wanted.name)));
    };
    if secret.data.is_some_and(|data| data.contains_key(&wanted.key)) {
        return Ok(Tenants::Found);
    }
    Ok(Tenants::Missing(format!("Secret '{}' has no key '{}'", wanted.name, wanted.key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(minute: u32, message: &str) -> Event {
        let time = format!("2026-11-30T12:{minute:02}:00Z");
        serde_json::from_value(json!({
            "metadata": {"name": message}, "involvedObject": {}, "lastTimestamp": time, "message": message,
        }))
        .expect("an event")
    }

    fn pod(minute: u32) -> Pod {
        let time = format!("2026-11-30T12:{minute:02}:00Z");
        serde_json::from_value(json!({"metadata": {"name": "demo-combine-0", "creationTimestamp": time}}))
            .expect("a pod")
    }

    #[test]
    fn the_last_refusal_counts_until_a_pod_is_made_again() {
        let events = || vec![event(7, "second"), event(3, "first")];
        let last = |pods: &[Pod]| last_refusal(events(), pods.iter());
        assert_eq!(last(&[]).as_deref(), Some("second"));
        assert_eq!(last(&[pod(1), pod(5)]).as_deref(), Some("second"));
        assert_eq!(last(&[pod(1), pod(8)]), None);
        assert_eq!(last_refusal(Vec::new(), [pod(1)].iter()), None);
    }

    #[test]
    fn a_stateful_set_lacks_pods_until_its_status_counts_them_all() {
        let child = |kind: &str, wanted: i64, status: serde_json::Value| {
            serde_json::from_value::<DynamicObject>(json!({
                "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "demo-combine"},
                "spec": {"replicas": wanted}, "status": status,
            }))
            .expect("a child")
        };
        assert!(lacks_pods(&child("StatefulSet", 2, json!({"replicas": 1}))));
        assert!(lacks_pods(&child("StatefulSet", 1, json!({}))));
        assert!(!lacks_pods(&child("StatefulSet", 2, json!({"replicas": 2}))));
        assert!(!lacks_pods(&child("StatefulSet", 0, json!({}))));
        assert!(!lacks_pods(&child("Deployment", 2, json!({"replicas": 1}))));
    }
}
