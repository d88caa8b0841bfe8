//! Names, labels and owners of a cluster's children.

use hypic_crds::HypicCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

/// Who made a child.
pub const MANAGER: &str = "hypic-operator";
/// Label: the HypicCluster.
pub const CLUSTER: &str = "hypic.dev/cluster";
/// Label: the program that made an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label: the pool.
pub const POOL: &str = "hypic.dev/pool";
/// Port of gRPC.
pub const CONTROL: u16 = 7400;
/// Port of tensor bytes.
pub const BULK: u16 = 7401;
/// Port of an agent's probes and metrics.
pub const AGENT_HTTP: u16 = 7402;
/// Port of a router's endpoint, probes and metrics.
pub const ROUTER_HTTP: u16 = 8080;

/// To whom an object belongs that has the name of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This cluster controls it.
    Ours,
    /// A cluster of this name left it behind (`kubectl delete --cascade=orphan`), and nobody controls it.
    Orphan,
    /// Somebody else's, or of an earlier cluster of this name, with which it goes: never touched.
    Theirs,
}

/// Names of one cluster's children. All begin with the cluster's name, which the schema bounds to 32 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The cluster's name.
    pub cluster: String,
    /// Its namespace.
    pub namespace: String,
    uid: String,
}

impl Names {
    /// Names of a cluster that the API server has stored.
    pub fn of(cluster: &HypicCluster) -> Self {
        let metadata = &cluster.metadata;
        Self {
            cluster: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// To whom an object belongs.
    pub fn whose(&self, object: &ObjectMeta) -> Whose {
        let mut owners = object.owner_references.iter().flatten();
        match owners.find(|owner| owner.controller == Some(true)) {
            Some(owner) if owner.uid == self.uid => Whose::Ours,
            Some(_) => Whose::Theirs,
            None if self.bears_labels(object) => Whose::Orphan,
            None => Whose::Theirs,
        }
    }

    /// An orphan that the operator itself has made: copies bear its labels, but not its record.
    pub fn left_behind(&self, object: &ObjectMeta) -> bool {
        let mut records = object.managed_fields.iter().flatten();
        self.whose(object) == Whose::Orphan
            && records.any(|record| {
                record.manager.as_deref() == Some(MANAGER) && record.operation.as_deref() == Some("Apply")
            })
    }

    fn bears_labels(&self, object: &ObjectMeta) -> bool {
        let ours = [(CLUSTER, self.cluster.as_str()), (MANAGED_BY, MANAGER)];
        let label = |key| object.labels.as_ref()?.get(key).map(String::as_str);
        ours.into_iter().all(|(key, value)| label(key) == Some(value))
    }

    /// `CLUSTER-PART`.
    pub fn child(&self, part: &str) -> String {
        format!("{}-{part}", self.cluster)
    }

    /// The headless Service that gives agents their names.
    pub fn agents_service(&self) -> String {
        self.child("agents")
    }

    /// An agent's id: its pod's name.
    pub fn agent(&self, pool: &str, number: i32) -> String {
        format!("{}-{pool}-{number}", self.cluster)
    }

    /// `host:port` of an agent, whatever the address of its pod. Without the cluster's domain: the resolver's search
    /// list has it.
    pub fn agent_address(&self, agent: &str, port: u16) -> String {
        format!("{agent}.{}.{}.svc:{port}", self.agents_service(), self.namespace)
    }

    /// Labels by which pods are chosen; they never change.
    pub fn selector(&self, component: &str, pool: Option<&str>) -> Value {
        let mut labels = Map::new();
        labels.insert(CLUSTER.to_owned(), json!(self.cluster));
        labels.insert("app.kubernetes.io/component".to_owned(), json!(component));
        if let Some(pool) = pool {
            labels.insert(POOL.to_owned(), json!(pool));
        }
        Value::Object(labels)
    }

    /// All labels.
    pub fn labels(&self, component: &str, pool: Option<&str>) -> Value {
        let mut labels = self.selector(component, pool);
        for (key, value) in [
            ("app.kubernetes.io/name", "hypic"),
            ("app.kubernetes.io/instance", self.cluster.as_str()),
            (MANAGED_BY, MANAGER),
        ] {
            labels[key] = json!(value);
        }
        labels
    }

    /// Metadata of a child: the cluster's deletion deletes it.
    pub fn metadata(&self, name: &str, component: &str, pool: Option<&str>) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(component, pool),
            "ownerReferences": [{
                "apiVersion": "hypic.dev/v1alpha1",
                "kind": "HypicCluster",
                "name": self.cluster,
                "uid": self.uid,
                "controller": true,
                "blockOwnerDeletion": false,
            }],
        })
    }
}
