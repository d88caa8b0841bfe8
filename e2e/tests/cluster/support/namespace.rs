//! A namespace that lives as long as its test.

use serde_json::{Value, json};

use super::kubectl::{Outcome, items, kubectl, kubectl_with, text};
use super::turn::Turn;
use super::{SYSTEM, fleet};

/// A namespace. Dropping it deletes it; of a test that failed, what is in it is shown first.
pub(crate) struct Namespace {
    /// Its name.
    pub(crate) name: String,
    _turn: Option<Turn>,
}

impl Namespace {
    /// A namespace of a test that runs beside others, as strict as one can ask for.
    pub(crate) fn new(name: &str) -> Self {
        Self::make(name, Some(Turn::shared()))
    }

    /// A namespace of a test that no other runs beside.
    pub(crate) fn alone(name: &str) -> Self {
        Self::make(name, Some(Turn::alone()))
    }

    /// One more namespace of the same test.
    pub(crate) fn another(&self, name: &str) -> Self {
        Self::make(name, None)
    }

    fn make(name: &str, turn: Option<Turn>) -> Self {
        eprintln!("namespace {name}");
        // Left over from a run that was killed.
        kubectl(&["delete", "namespace", name, "--ignore-not-found", "--timeout=120s"]).unwrap();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        });
        kubectl_with(&["create"], &object).unwrap();
        Self { name: name.to_owned(), _turn: turn }
    }

    /// Runs kubectl in this namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Outcome {
        kubectl(&[&["--namespace", &self.name], args].concat())
    }

    /// Gives an object to the API server as it is.
    pub(crate) fn apply(&self, object: &Value) -> Outcome {
        kubectl_with(&["--namespace", &self.name, "apply", "--server-side", "--force-conflicts"], object)
    }

    /// What the API server makes of a new object; nothing is kept.
    pub(crate) fn try_create(&self, object: &Value) -> Outcome {
        kubectl_with(&["--namespace", &self.name, "create", "--dry-run=server", "--output=json"], object)
    }

    /// An object.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Value, String> {
        parsed(&self.kubectl(&["get", kind, name, "--output=json"])?)
    }

    /// Objects of the kinds (`a,b`) with the labels.
    pub(crate) fn list(&self, kinds: &str, labels: &str) -> Result<Vec<Value>, String> {
        let list = parsed(&self.kubectl(&["get", kinds, "--selector", labels, "--output=json"])?)?;
        Ok(items(&list).to_vec())
    }

    /// Changes fields of an object.
    pub(crate) fn patch(&self, kind: &str, name: &str, change: &Value) -> Outcome {
        self.kubectl(&["patch", kind, name, "--type=merge", "--patch", &change.to_string()])
    }

    /// Deletes an object and waits until it is gone.
    pub(crate) fn delete(&self, kind: &str, name: &str) -> Outcome {
        self.kubectl(&["delete", kind, name, "--timeout=90s"])
    }

    /// Events of one kind of object, as `Type Reason: note`.
    pub(crate) fn events(&self, kind: &str) -> Result<Vec<String>, String> {
        let list = parsed(&self.kubectl(&["get", "events.events.k8s.io", "--output=json"])?)?;
        let of = items(&list).iter().filter(|event| event["regarding"]["kind"] == kind);
        let shown = |event: &Value| {
            let [kind, reason, note] = ["type", "reason", "note"].map(|key| text(&event[key]));
            format!("{kind} {reason}: {note}")
        };
        Ok(of.map(shown).collect())
    }

    fn show(&self) {
        let say = |what: &str, outcome: Outcome| {
            eprintln!("--- {what}\n{}", outcome.unwrap_or_else(|error| error));
        };
        eprintln!("=== what is in namespace {}", self.name);
        if let Ok(clusters) = self.list("hypicclusters", "") {
            for cluster in clusters {
                eprintln!("--- {}", text(&cluster["metadata"]["name"]));
                eprintln!("{}", fleet::conditions(&cluster).join("\n"));
            }
        }
        say("pods", self.kubectl(&["get", "pods,hypicscatterpools", "--output=wide"]));
        say("events", self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]));
        let log = kubectl(&["--namespace", SYSTEM, "logs", "deployment/hypic-operator", "--tail=1000"]);
        let ours = log.map(|log| {
            let lines: Vec<&str> = log.lines().filter(|line| line.contains(&self.name)).collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        });
        say("the operator's log", ours);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        if let Err(error) = kubectl(&["delete", "namespace", &self.name, "--wait=false"]) {
            eprintln!("namespace {} stays: {error}", self.name);
        }
    }
}

fn parsed(json: &str) -> Result<Value, String> {
    serde_json::from_str(json).map_err(|error| format!("kubectl's output is no JSON: {error}"))
}
