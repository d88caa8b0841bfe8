//! Names, labels and owners of a cluster's children.

use hypic_crds::HypicCluster;
use serde_json::{Map, Value, json};

/// Who made a child.
pub const MANAGER: &str = "hypic-operator";
/// Label: the HypicCluster.
pub const CLUSTER: &str = "hypic.dev/cluster";
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
            ("app.kubernetes.io/managed-by", MANAGER),
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
