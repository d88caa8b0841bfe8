//! Routers: a Deployment and the Service that clients ask.

use hypic_crds::Amount;
use hypic_crds::pool::Router;
use serde_json::{Value, json};

use crate::plan::Inputs;
use crate::plan::names::{CONTROL, Names, ROUTER_HTTP};
use crate::plan::pod::{self, Container, Room};

/// Memory of a router: prompts of some hundred requests, tokenised.
const MEMORY: u64 = 1 << 30;
/// Memory that the longest body takes at most, a multiple of its bytes: one word of that length, as it is tokenised.
const MEMORY_PER_BODY_BYTE: u64 = 128;
/// A router goes on serving for this long after its end was decided: endpoints are told meanwhile.
const PRE_STOP: i32 = 3;
/// Between the end of the drain and the kubelet's SIGKILL: error events must still reach their clients.
const LAST_WORDS: i32 = 15;

/// The Service that clients ask; it has the cluster's name.
pub fn service(names: &Names, inputs: &Inputs<'_>) -> Value {
    let wanted = &inputs.cluster.spec.router.service;
    let mut metadata = names.metadata(&names.cluster, "router", None);
    if !wanted.annotations.is_empty() {
        metadata["annotations"] = json!(wanted.annotations);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": wanted.kind,
            "selector": names.selector("router", Some("router")),
            "ports": [{"name": "http", "port": wanted.port, "targetPort": "http", "protocol": "TCP"}],
        },
    })
}

/// A router's memory limit.
fn limit(router: &Router) -> u64 {
    let asked = router.resources.as_ref().and_then(|wanted| wanted.limits.get("memory"));
    asked.and_then(Amount::bytes).unwrap_or(MEMORY)
}

/// The routers.
pub fn deployment(names: &Names, inputs: &Inputs<'_>) -> Value {
    let spec = &inputs.cluster.spec;
    let router = &spec.router;
    let mut args = vec![
        "--secret=/etc/hypic/fleet/secret".to_owned(),
        format!("--body-bytes={}", limit(router) / MEMORY_PER_BODY_BYTE),
        format!("--running={}", router.running),
        format!("--queued={}", router.queued),
        format!("--deadline-seconds={}", router.deadline_seconds),
        format!("--drain-seconds={}", router.drain_seconds),
    ];
    if !router.cors_origins.is_empty() {
        args.push(format!("--cors-origin={}", router.cors_origins.join(",")));
    }
    let mut volumes = vec![json!({"name": "fleet", "secret": {"secretName": names.child("fleet")}})];
    let mut mounts = vec![json!({"name": "fleet", "mountPath": "/etc/hypic/fleet", "readOnly": true})];
    match &spec.security.tenants_secret_ref {
        Some(tenants) => {
            volumes.push(json!({"name": "tenants", "secret": {
                "secretName": tenants.name,
                "items": [{"key": tenants.key, "path": "tenants.json"}],
            }}));
            mounts.push(json!({"name": "tenants", "mountPath": "/etc/hypic/tenants", "readOnly": true}));
            args.push("--tenants=/etc/hypic/tenants/tenants.json".to_owned());
        }
        None => args.push("--no-keys".to_owned()),
    }
    args.extend(pod::observability(inputs));
    let container = Container {
        name: "router",
        command: "hypic-router",
        args,
        env: Vec::new(),
        ports: vec![("http", ROUTER_HTTP), ("control", CONTROL)],
        http: ROUTER_HTTP,
        tls_secret: names.child("router-tls"),
        startup_seconds: 600,
        room: Room {
            memory: MEMORY,
            cpu: "500m",
            storage: 1 << 30,
            asked: router.resources.as_ref(),
            gpus: 0,
        },
        mounts,
        volumes,
        placement: router.placement.as_ref(),
        grace_seconds: PRE_STOP + router.drain_seconds + LAST_WORDS,
        pre_stop_seconds: Some(PRE_STOP),
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(&names.child("router"), "router", Some("router")),
        "spec": {
            "replicas": router.replicas,
            "selector": {"matchLabels": names.selector("router", Some("router"))},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": pod::template(names, names.labels("router", Some("router")), container, inputs),
        },
    })
}
