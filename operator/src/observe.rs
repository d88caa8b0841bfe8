//! What is there: a cluster's children, pods, model and Secrets, read from the API server.

use std::collections::BTreeMap;

use hypic_crds::{HypicCluster, HypicModel, HypicScatterPool};
use hypic_domain::topology::Topology;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, Resource, ResourceExt};

use crate::plan::config::TOPOLOGY_KEY;
use crate::plan::names::{CLUSTER, Names, POOL};

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
    /// Pods of routers and agents that are not on their way out.
    pub pods: Vec<Pod>,
    /// Objects that count scatter workers, by pool.
    pub scatter: BTreeMap<String, HypicScatterPool>,
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

    /// Workers asked for, of each Scatter pool that scales.
    pub fn scaled(&self) -> BTreeMap<String, i32> {
        self.scatter.iter().map(|(pool, object)| (pool.clone(), object.spec.replicas)).collect()
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
    let pods = pods.into_iter().filter(|pod| pod.meta().deletion_timestamp.is_none()).collect();
    let scatter = scatter(&children)?;
    Ok(Observed { model, claim, tenants: tenants(client, cluster).await?, children, pods, scatter })
}

/// The objects that count scatter workers, of the children.
fn scatter(children: &[DynamicObject]) -> Result<BTreeMap<String, HypicScatterPool>, kube::Error> {
    let counts =
        |child: &&DynamicObject| child.types.as_ref().is_some_and(|types| types.kind == "HypicScatterPool");
    let typed = |child: &DynamicObject| serde_json::from_value(serde_json::to_value(child)?);
    let mut pools = BTreeMap::new();
    for child in children.iter().filter(counts) {
        let Some(pool) = child.labels().get(POOL) else { continue };
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
