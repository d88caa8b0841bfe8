//! Agents: a StatefulSet per pool, one headless Service that names them, and the object that counts scatter workers.

use hypic_crds::pool::{CacheTier, NodePool, PoolRole, TierName};
use serde_json::{Map, Value, json};

use crate::plan::Inputs;
use crate::plan::names::{AGENT_HTTP, BULK, CONTROL, Names};
use crate::plan::pod::{self, Container, Room};

/// Memory beside the engine and the tiers: code, buffers of transfers, allocator slack.
const ROOM: u64 = 512 << 20;
/// Memory of an agent on GPUs beside the tiers: the driver, landings, and while it loads a tensor of the checkpoint at a
/// time (the experts of a layer of Qwen3.5-35B-A3B are 1 GiB).
const GPU_ROOM: u64 = 4 << 30;
/// Between the end of the drain and the kubelet's SIGKILL.
const LAST_WORDS: i32 = 10;

/// The label value of a role.
pub fn component(role: PoolRole) -> &'static str {
    match role {
        PoolRole::Combine => "combine",
        PoolRole::Scatter => "scatter",
    }
}

/// Gives each agent a name that outlives its pod; an agent is found before it is ready, since others must reach it
/// to make it so.
pub fn service(names: &Names) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(&names.agents_service(), "agents", None),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {crate::plan::names::CLUSTER: names.cluster, "hypic.dev/part": "agent"},
            "ports": [
                {"name": "control", "port": CONTROL, "targetPort": "control", "protocol": "TCP"},
                {"name": "bulk", "port": BULK, "targetPort": "bulk", "protocol": "TCP"},
            ],
        },
    })
}

/// The object whose `/scale` counts a pool's workers. Its number is not applied: the autoscaler writes it, or
/// whoever else scales it.
pub fn scatter_pool(names: &Names, pool: &NodePool) -> Value {
    json!({
        "apiVersion": "hypic.dev/v1alpha1",
        "kind": "HypicScatterPool",
        "metadata": names.metadata(&names.child(&pool.name), "scatter", Some(&pool.name)),
        "spec": {"clusterName": names.cluster, "poolName": pool.name},
    })
}

/// The pods of a pool.
pub fn stateful_set(names: &Names, pool: &NodePool, inputs: &Inputs<'_>) -> Value {
    let component = component(pool.role);
    let tiers = &inputs.cluster.spec.cache_tiers;
    let disk = tiers.iter().find(|tier| tier.tier == TierName::Disk);
    let mut labels = names.labels(component, Some(&pool.name));
    labels["hypic.dev/part"] = json!("agent");
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    let mut claims = Vec::new();
    if let Some(disk) = disk {
        mounts.push(json!({"name": "data", "mountPath": "/var/lib/hypic/data"}));
        match &disk.storage_class_name {
            Some(class) => claims.push(claim(names, pool, class, disk)),
            None => volumes.push(json!({"name": "data", "emptyDir": {"sizeLimit": with_room(disk)}})),
        }
    }
    let container = Container {
        name: "agent",
        command: "hypic-node-agent",
        args: args(pool, tiers, inputs),
        env: vec![
            json!({"name": "HYPIC_AGENT_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        ],
        ports: vec![("control", CONTROL), ("bulk", BULK), ("http", AGENT_HTTP)],
        http: AGENT_HTTP,
        tls_secret: names.child("agent-tls"),
        // Several layers of a large checkpoint take minutes; a probe that is too hasty would end the load.
        startup_seconds: 3600,
        room: Room {
            memory: memory(pool, tiers),
            cpu: "1",
            storage: disk.and_then(|disk| disk.capacity.bytes()).unwrap_or_default() + (1 << 30),
            asked: pool.resources.as_ref(),
            gpus: pool.gpus_per_agent + pool.scatter_gpus_per_agent,
        },
        mounts,
        volumes,
        placement: pool.placement.as_ref(),
        grace_seconds: pool.drain_seconds + LAST_WORDS,
        pre_stop_seconds: None,
    };
    let mut spec = json!({
        "serviceName": names.agents_service(),
        "replicas": inputs.replicas(pool),
        // All at once: agents need no order, and a fleet that starts one by one waits for itself.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": names.selector(component, Some(&pool.name))},
        "template": pod::template(names, labels, container, inputs),
    });
    if !claims.is_empty() {
        spec["volumeClaimTemplates"] = json!(claims);
        spec["persistentVolumeClaimRetentionPolicy"] =
            json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.metadata(&names.child(&pool.name), component, Some(&pool.name)),
        "spec": spec,
    })
}

fn args(pool: &NodePool, tiers: &[CacheTier], inputs: &Inputs<'_>) -> Vec<String> {
    let bytes = |tier: TierName| {
        tiers
            .iter()
            .find(|entry| entry.tier == tier)
            .and_then(|entry| entry.capacity.bytes())
            .unwrap_or_default()
    };
    let mut args = vec![
        format!("--engine-bytes={}", pool.engine_memory.bytes().unwrap_or_default()),
        format!("--slots={}", pool.slots),
        format!("--queue={}", pool.queue),
        format!("--device-bytes={}", bytes(TierName::Device)),
        format!("--host-bytes={}", bytes(TierName::Host)),
        format!("--disk-bytes={}", bytes(TierName::Disk)),
        format!("--drain-seconds={}", pool.drain_seconds),
    ];
    if bytes(TierName::Disk) > 0 {
        args.push("--data-dir=/var/lib/hypic/data".to_owned());
    }
    match pool.gpus_per_agent {
        ..=0 => {}
        1 => args.push("--device=cuda".to_owned()),
        count => {
            // A pod sees its own GPUs alone, numbered from 0.
            let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
            args.push(format!("--device=cuda:{}", numbers.join(",")));
        }
    }
    if pool.scatter_gpus_per_agent > 0 {
        // Behind the one that computes: the schema lets no others have any.
        let names: Vec<String> =
            (1..=pool.scatter_gpus_per_agent).map(|number| format!("cuda:{number}")).collect();
        args.push(format!("--scatter-device={}", names.join(",")));
    }
    args.extend(pool.step_rows.map(|rows| format!("--step-rows={rows}")));
    args.extend(pool.threads.map(|threads| format!("--threads={threads}")));
    args.extend(pod::observability(inputs));
    args
}

/// Memory of an agent of the pool beside the tiers and the engine. GPUs that build load the model too, at the same time.
pub fn room(pool: &NodePool) -> u64 {
    match pool.gpus_per_agent {
        ..=0 => ROOM,
        _ => GPU_ROOM * (1 + u64::from(pool.scatter_gpus_per_agent.unsigned_abs())),
    }
}

/// What an agent of the pool takes of the node's memory at most: the tiers in it, and the engine with room; on GPUs the
/// engine's memory and the Device tier are theirs.
pub fn memory(pool: &NodePool, tiers: &[CacheTier]) -> u64 {
    let is_on_gpus = pool.gpus_per_agent > 0;
    let tiers = tiers.iter().filter(|tier| match tier.tier {
        TierName::Device => !is_on_gpus,
        TierName::Host => true,
        _ => false,
    });
    let tiers: u64 = tiers.filter_map(|tier| tier.capacity.bytes()).sum();
    let engine = match is_on_gpus {
        true => 0,
        false => pool.engine_memory.bytes().unwrap_or_default(),
    };
    engine.saturating_add(tiers).saturating_add(room(pool))
}

/// The tier's cap, and room for what is being written.
fn with_room(disk: &CacheTier) -> String {
    let bytes = disk.capacity.bytes().unwrap_or_default();
    pod::bytes(bytes.saturating_add(bytes / 10))
}

fn claim(names: &Names, pool: &NodePool, class: &str, disk: &CacheTier) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!("data"));
    metadata.insert("labels".to_owned(), names.selector(component(pool.role), Some(&pool.name)));
    json!({
        "metadata": metadata,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": with_room(disk)}},
        },
    })
}
