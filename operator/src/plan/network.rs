//! Who may reach the fleet's pods.

use hypic_crds::cluster::Switch;
use serde_json::{Value, json};

use crate::plan::Inputs;
use crate::plan::names::{AGENT_HTTP, BULK, CLUSTER, CONTROL, MANAGER, Names, ROUTER_HTTP};

/// Two policies: agents are reached by the fleet and the operator, routers by everybody who asks. Probes come from
/// the node itself, which no policy stops.
pub fn policies(names: &Names, inputs: &Inputs<'_>) -> Vec<Value> {
    if inputs.cluster.spec.security.network_policies == Switch::Disabled {
        return Vec::new();
    }
    let fleet = json!({"podSelector": {"matchLabels": {CLUSTER: names.cluster}}});
    let operator = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": inputs.defaults.namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": MANAGER}},
    });
    let ports = |ports: &[u16]| -> Vec<Value> {
        ports.iter().map(|port| json!({"port": port, "protocol": "TCP"})).collect()
    };
    let policy = |part: &str, selector: Value, ingress: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": names.metadata(&names.child(part), part, None),
            "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress},
        })
    };
    vec![
        policy(
            "agents",
            json!({CLUSTER: names.cluster, "hypic.dev/part": "agent"}),
            json!([
                {"from": [fleet], "ports": ports(&[CONTROL, BULK])},
                {"from": [operator], "ports": ports(&[CONTROL])},
                // Metrics hold no text of any prompt.
                {"ports": ports(&[AGENT_HTTP])},
            ]),
        ),
        policy(
            "router",
            names.selector("router", Some("router")),
            json!([
                {"ports": ports(&[ROUTER_HTTP])},
                {"from": [operator], "ports": ports(&[CONTROL])},
            ]),
        ),
    ]
}
