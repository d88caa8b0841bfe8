//! The pod of a router or an agent: restricted, without rights, with bounds.

use hypic_crds::Amount;
use hypic_crds::pool::{Placement, Resources};
use serde_json::{Map, Value, json};

use crate::plan::Inputs;
use crate::plan::config::{MODEL_MOUNT, model_text};
use crate::plan::names::Names;

/// Folder of the mounted topology and model files.
const CONFIG: &str = "/etc/hypic/config";
/// Folder of the mounted certificate.
const TLS: &str = "/etc/hypic/tls";

/// What differs between a router's pod and an agent's.
#[derive(Debug)]
pub struct Container<'a> {
    /// The container's name.
    pub name: &'static str,
    /// The binary.
    pub command: &'static str,
    /// Flags beside those that all have.
    pub args: Vec<String>,
    /// Variables.
    pub env: Vec<Value>,
    /// Ports by name.
    pub ports: Vec<(&'static str, u16)>,
    /// The port of probes and metrics.
    pub http: u16,
    /// Secret with the certificate.
    pub tls_secret: String,
    /// Time to start before the kubelet gives up on the container.
    pub startup_seconds: i32,
    /// Requests and limits.
    pub room: Room<'a>,
    /// Further mounts.
    pub mounts: Vec<Value>,
    /// Further volumes.
    pub volumes: Vec<Value>,
    /// Where the pod may run.
    pub placement: Option<&'a Placement>,
    /// From SIGTERM to SIGKILL.
    pub grace_seconds: i32,
    /// The pod goes on serving for this long while others learn that it will go.
    pub pre_stop_seconds: Option<i32>,
}

/// Requests and limits: computed ones, and those asked for, which win.
#[derive(Debug)]
pub struct Room<'a> {
    /// Bytes of memory.
    pub memory: u64,
    /// CPU asked for.
    pub cpu: &'static str,
    /// Bytes of the node's own drive.
    pub storage: u64,
    /// From the spec.
    pub asked: Option<&'a Resources>,
    /// GPUs.
    pub gpus: i32,
}

/// A quantity of bytes in the form that the API server keeps.
pub fn bytes(bytes: u64) -> String {
    for (shift, suffix) in [(30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

impl Room<'_> {
    fn resources(&self) -> Value {
        let mut requests = Map::new();
        let mut limits = Map::new();
        requests.insert("cpu".to_owned(), json!(self.cpu));
        for map in [&mut requests, &mut limits] {
            map.insert("memory".to_owned(), json!(bytes(self.memory)));
            map.insert("ephemeral-storage".to_owned(), json!(bytes(self.storage)));
            if self.gpus > 0 {
                map.insert("nvidia.com/gpu".to_owned(), json!(self.gpus.to_string()));
            }
        }
        if let Some(asked) = self.asked {
            for (map, wanted) in [(&mut requests, &asked.requests), (&mut limits, &asked.limits)] {
                map.extend(wanted.iter().map(|(name, amount)| (name.clone(), json!(amount.0))));
            }
            // A request over its limit is refused by the API server: what was asked for counts.
            for (name, request) in &asked.requests {
                let limit = limits.get(name).and_then(|limit| Amount::from(limit.as_str()?).bytes());
                if !asked.limits.contains_key(name)
                    && limit.is_some_and(|limit| request.bytes() > Some(limit))
                {
                    limits.insert(name.clone(), json!(request.0));
                }
            }
            for (name, limit) in &asked.limits {
                if !asked.requests.contains_key(name) && requests.contains_key(name) && name != "cpu" {
                    requests.insert(name.clone(), json!(limit.0));
                }
            }
        }
        json!({"requests": requests, "limits": limits})
    }
}

/// Flags of logs and traces.
pub fn observability(inputs: &Inputs<'_>) -> Vec<String> {
    let wanted = &inputs.cluster.spec.observability;
    let otlp = wanted.otlp_endpoint.as_ref().map(|endpoint| format!("--otlp={endpoint}"));
    let log = wanted.log_filter.as_ref().map(|filter| format!("--log={filter}"));
    otlp.into_iter().chain(log).collect()
}

/// The pod template.
pub fn template(names: &Names, labels: Value, part: Container<'_>, inputs: &Inputs<'_>) -> Value {
    let mut annotations = Map::new();
    let model = blake3::hash(model_text(inputs.model).as_bytes()).to_hex();
    annotations.insert("hypic.dev/model-digest".to_owned(), json!(&model[..16]));
    if inputs.defaults.scrape_annotations {
        annotations.insert("prometheus.io/scrape".to_owned(), json!("true"));
        annotations.insert("prometheus.io/port".to_owned(), json!(part.http.to_string()));
        annotations.insert("prometheus.io/path".to_owned(), json!("/metrics"));
    }
    let mut volumes = vec![
        json!({"name": "config", "projected": {"sources": [
            {"configMap": {"name": names.child("topology")}},
            {"configMap": {"name": names.child("model")}},
        ]}}),
        json!({"name": "tls", "secret": {"secretName": part.tls_secret}}),
    ];
    let mut mounts = vec![
        json!({"name": "config", "mountPath": CONFIG, "readOnly": true}),
        json!({"name": "tls", "mountPath": TLS, "readOnly": true}),
    ];
    if let Some(volume) = &inputs.model.spec.source.pvc {
        volumes.push(json!({
            "name": "model",
            "persistentVolumeClaim": {"claimName": volume.claim_name, "readOnly": true},
        }));
        mounts.push(json!({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": true}));
    }
    volumes.extend(part.volumes);
    mounts.extend(part.mounts);

    let mut args = vec![
        format!("--topology={CONFIG}/topology.json"),
        format!("--model={CONFIG}/model.json"),
        format!("--tls-cert={TLS}/tls.crt"),
        format!("--tls-key={TLS}/tls.key"),
        format!("--tls-ca={TLS}/ca.crt"),
    ];
    args.extend(part.args);
    let probe = |path: &str| json!({"path": path, "port": "http"});
    let image = inputs.cluster.spec.image.clone().unwrap_or_default();
    let mut container = json!({
        "name": part.name,
        "image": image.name.unwrap_or_else(|| inputs.defaults.image.clone()),
        "command": [part.command],
        "args": args,
        "env": part.env,
        "ports": part.ports.iter().map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": "TCP"})).collect::<Vec<_>>(),
        "startupProbe": {"httpGet": probe("/healthz"), "periodSeconds": 2, "failureThreshold": part.startup_seconds / 2},
        "livenessProbe": {"httpGet": probe("/healthz"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {"httpGet": probe("/readyz"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3},
        "resources": part.room.resources(),
        // The last lines of the log say why a container ended, and the operator repeats them in a condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    let policy = image.pull_policy.map(|policy| policy.name().to_owned());
    if let Some(policy) = policy.or_else(|| inputs.defaults.pull_policy.clone()) {
        container["imagePullPolicy"] = json!(policy);
    }
    if let Some(seconds) = part.pre_stop_seconds {
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
    }
    let mut spec = json!({
        "serviceAccountName": names.cluster,
        "automountServiceAccountToken": false,
        // A namespace with many Services would fill the environment, and one named like our variables would set them.
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": part.grace_seconds,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
        // Losing a node should not lose the whole pool.
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": spread(&labels)},
        }],
    });
    let secrets =
        if image.pull_secrets.is_empty() { &inputs.defaults.pull_secrets } else { &image.pull_secrets };
    if !secrets.is_empty() {
        spec["imagePullSecrets"] = secrets.iter().map(|name| json!({"name": name})).collect();
    }
    place(&mut spec, part.placement, part.room.gpus);
    json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": spec})
}

/// The labels that tell a pool's pods from all others.
fn spread(labels: &Value) -> Value {
    let keep = ["hypic.dev/cluster", "hypic.dev/pool", "app.kubernetes.io/component"];
    let chosen = keep.iter().filter_map(|key| Some(((*key).to_owned(), labels.get(*key)?.clone())));
    Value::Object(chosen.collect())
}

fn place(spec: &mut Value, placement: Option<&Placement>, gpus: i32) {
    let mut tolerations = placement.map(|wanted| json!(wanted.tolerations)).unwrap_or_else(|| json!([]));
    if gpus > 0
        && let Some(list) = tolerations.as_array_mut()
    {
        list.push(json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}));
    }
    if tolerations.as_array().is_some_and(|list| !list.is_empty()) {
        spec["tolerations"] = tolerations;
    }
    let Some(placement) = placement else { return };
    if !placement.node_selector.is_empty() {
        spec["nodeSelector"] = json!(placement.node_selector);
    }
    if let Some(class) = &placement.priority_class_name {
        spec["priorityClassName"] = json!(class);
    }
    if let Some(class) = &placement.runtime_class_name {
        spec["runtimeClassName"] = json!(class);
    }
}
