//! HypicClusters of a size that this machine can run several of, and what can be seen of one.

use hypic_e2e::client::{Answer, Client};
use hypic_e2e::pass::MAX_TOKENS;
use hypic_e2e::questions::Question;
use serde_json::{Value, json};

use super::kubectl::{Outcome, text};
use super::namespace::Namespace;
use super::wait::wait_for;

/// hypic-tiny, which is in the image.
pub(crate) fn model() -> Value {
    json!({
        "apiVersion": "hypic.dev/v1alpha1",
        "kind": "HypicModel",
        "metadata": {"name": "hypic-tiny"},
        "spec": {"source": {"image": {"path": "/models/hypic-tiny"}}, "segmentMinTokens": 16, "segmentMaxTokens": 1024},
    })
}

/// A HypicCluster of hypic-tiny that everybody may ask.
pub(crate) fn cluster(name: &str, routers: u32, combine: u32) -> Value {
    json!({
        "apiVersion": "hypic.dev/v1alpha1",
        "kind": "HypicCluster",
        "metadata": {"name": name},
        "spec": {
            "nodePools": [pool("combine", "Combine", json!({"replicas": combine}))],
            "cacheTiers": [{"tier": "Device", "capacity": "64Mi"}, {"tier": "Host", "capacity": "64Mi"}],
            "router": {"replicas": routers, "resources": resources("1Gi")},
            "security": {"access": "Open"},
        },
    })
}

/// A Scatter pool from none to two workers, with windows short enough to watch.
pub(crate) fn scatter() -> Value {
    let down = json!({"stabilizationWindowSeconds": 10, "workers": 2, "percent": 100, "periodSeconds": 5});
    let scaling = json!({
        "minReplicas": 0, "maxReplicas": 2, "activationColdSharePercent": 10, "idleSeconds": 10, "scaleDown": down,
    });
    pool("scatter", "Scatter", json!({"scaling": scaling}))
}

fn pool(name: &str, role: &str, more: Value) -> Value {
    let mut pool = json!({
        "name": name,
        "modelRef": "hypic-tiny",
        "role": role,
        "slots": 8,
        "threads": 1,
        "engineMemory": "256Mi",
        "drainSeconds": 5,
        "resources": resources("2Gi"),
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        pool[key] = value.clone();
    }
    pool
}

/// The nodes of the lab share two cores: pods ask for little.
fn resources(limit: &str) -> Value {
    json!({"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": limit}})
}

/// A HypicCluster in a namespace.
#[derive(Clone)]
pub(crate) struct Fleet<'a> {
    /// Where it is.
    pub(crate) namespace: &'a Namespace,
    /// Its name.
    pub(crate) name: String,
}

impl<'a> Fleet<'a> {
    /// Gives the model and a HypicCluster to the API server.
    pub(crate) fn apply(namespace: &'a Namespace, cluster: &Value) -> Self {
        namespace.apply(&model()).unwrap();
        namespace.apply(cluster).unwrap();
        Self { namespace, name: text(&cluster["metadata"]["name"]).to_owned() }
    }

    /// The same, and waits until it is Ready.
    pub(crate) fn start(namespace: &'a Namespace, cluster: &Value) -> Self {
        let fleet = Self::apply(namespace, cluster);
        fleet.wait_ready();
        fleet
    }

    /// Waits until `Ready` tells of the newest spec.
    pub(crate) fn wait_ready(&self) {
        wait_for(&format!("HypicCluster {} is Ready", self.name), 120, || {
            self.newest()?;
            self.is("Ready", "True", "Serving")
        });
        wait_for("nothing is under way", 60, || self.is("Progressing", "False", "Complete"));
        // Every node's proxy learns of a ready pod a moment after the pod is.
        wait_for("its Service leads to a router", 20, || {
            self.client().get("/healthz").map_err(|error| format!("{error:#}"))
        });
    }

    /// The HypicCluster.
    pub(crate) fn get(&self) -> Result<Value, String> {
        self.namespace.get("hypicclusters", &self.name)
    }

    /// The HypicCluster, if its status is of its newest spec.
    pub(crate) fn newest(&self) -> Result<Value, String> {
        let cluster = self.get()?;
        if cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"] {
            return Ok(cluster);
        }
        Err("the status is of an older spec".to_owned())
    }

    /// Changes fields of the spec.
    pub(crate) fn patch(&self, spec: Value) -> Outcome {
        self.namespace.patch("hypicclusters", &self.name, &json!({"spec": spec}))
    }

    /// A condition.
    pub(crate) fn condition(&self, kind: &str) -> Result<Value, String> {
        let cluster = self.get()?;
        let mut found = cluster["status"]["conditions"].as_array().into_iter().flatten();
        let found = found.find(|condition| condition["type"] == kind).cloned();
        found.ok_or_else(|| format!("there is no condition {kind}"))
    }

    /// Ok with its message when a condition has this status and reason.
    pub(crate) fn is(&self, kind: &str, status: &str, reason: &str) -> Result<String, String> {
        let condition = self.condition(kind)?;
        if condition["status"] == status && condition["reason"] == reason {
            return Ok(text(&condition["message"]).to_owned());
        }
        Err(shown(&condition))
    }

    /// Ok when a condition is True.
    pub(crate) fn holds(&self, kind: &str) -> Result<(), String> {
        let condition = self.condition(kind)?;
        if condition["status"] == "True" { Ok(()) } else { Err(shown(&condition)) }
    }

    /// Pods of one of its pools, or of its `router`.
    pub(crate) fn pods(&self, pool: &str) -> Result<Vec<Value>, String> {
        self.namespace.list("pods", &format!("hypic.dev/cluster={},hypic.dev/pool={pool}", self.name))
    }

    /// Uid and restarts of every pod: changes when anything was torn down.
    pub(crate) fn lives(&self) -> Result<Vec<String>, String> {
        let pods = self.namespace.list("pods", &format!("hypic.dev/cluster={}", self.name))?;
        let life = |pod: &Value| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!("{} {} {restarts}", text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]))
        };
        Ok(pods.iter().map(life).collect())
    }

    /// The number that the HypicScatterPool asks for.
    pub(crate) fn workers(&self) -> Result<u64, String> {
        let pool = self.namespace.get("hypicscatterpools", &format!("{}-scatter", self.name))?;
        Ok(pool["spec"]["replicas"].as_u64().unwrap_or(0))
    }

    /// The sum of a metric over the agents of a pool.
    pub(crate) fn metric(&self, pool: &str, name: &str) -> Result<f64, String> {
        let of = |pod: &Value| {
            let address = format!("{}:7402", text(&pod["status"]["podIP"]));
            Client::new(&address, "", "").metric(name)
        };
        Ok(self.pods(pool)?.iter().map(of).sum())
    }

    /// Its Service's name.
    pub(crate) fn address(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace.name)
    }

    /// A client of its Service, as other pods reach it.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.address(), "none", "hypic-tiny")
    }

    /// Asks its Service.
    pub(crate) fn ask(&self, question: &Question) -> Result<Answer, String> {
        self.client().ask(question, MAX_TOKENS, false).map_err(|error| format!("{error:#}"))
    }

    /// Asks its Service and compares the answer.
    pub(crate) fn answers(&self, question: &Question) -> Result<(), String> {
        let answer = self.ask(question)?.text;
        if answer.trim() == question.answer {
            return Ok(());
        }
        Err(format!("'{answer}' is no right answer to {}", question.id))
    }
}

/// The conditions of an object, a line each.
pub(crate) fn conditions(object: &Value) -> Vec<String> {
    object["status"]["conditions"].as_array().into_iter().flatten().map(shown).collect()
}

fn shown(condition: &Value) -> String {
    let [kind, status, reason, message] =
        ["type", "status", "reason", "message"].map(|key| text(&condition[key]));
    format!("{kind} {status} {reason}: {message}")
}
