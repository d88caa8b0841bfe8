//! The sample's cluster as the API server would store it.

use std::collections::BTreeMap;
use std::path::Path;

use hypic_crds::{HypicCluster, HypicModel};
use hypic_operator::observe::{Observed, Tenants};
use hypic_operator::plan::names::Names;
use hypic_operator::plan::topology::Known;
use hypic_operator::plan::{Defaults, Inputs};
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

/// What a plan is made from.
pub(crate) struct Scene {
    pub(crate) cluster: HypicCluster,
    model: HypicModel,
    defaults: Defaults,
    pub(crate) scaled: BTreeMap<String, i32>,
    pub(crate) known: Known,
}

impl Scene {
    /// e2e/samples/hypic-tiny.yaml.
    pub(crate) fn sample() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/samples/hypic-tiny.yaml");
        let text = std::fs::read_to_string(path).expect("the sample");
        let objects: Vec<Value> = serde_yaml_ng::Deserializer::from_str(&text)
            .map(|document| Value::deserialize(document).expect("a document"))
            .collect();
        let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("a kind").clone();
        let mut cluster: HypicCluster = serde_json::from_value(of("HypicCluster")).expect("a cluster");
        cluster.metadata.uid = Some("11111111-2222-3333-4444-555555555555".to_owned());
        cluster.metadata.generation = Some(1);
        Self {
            cluster,
            model: serde_json::from_value(of("HypicModel")).expect("a model"),
            defaults: Defaults {
                image: "hypic.dev/hypic:0.1.0".to_owned(),
                pull_policy: Some("IfNotPresent".to_owned()),
                pull_secrets: Vec::new(),
                scrape_annotations: true,
                namespace: "hypic-system".to_owned(),
            },
            scaled: BTreeMap::new(),
            known: Known::default(),
        }
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            cluster: &self.cluster,
            model: &self.model,
            defaults: &self.defaults,
            scaled: &self.scaled,
            known: self.known.clone(),
        }
    }

    pub(crate) fn names(&self) -> Names {
        Names::of(&self.cluster)
    }
}

/// Objects as if the API server had them.
pub(crate) fn live(objects: &[Value]) -> Observed {
    let children = objects.iter().enumerate().map(|(number, object)| {
        let mut object = object.clone();
        object["metadata"]["uid"] = format!("uid-{number}").into();
        for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
            for key in ["apiVersion", "kind", "name"] {
                if owner.get(key).is_none() {
                    owner[key] = "x".into();
                }
            }
        }
        serde_json::from_value::<DynamicObject>(object).expect("an object")
    });
    Observed {
        model: None,
        claim: None,
        tenants: Tenants::Open,
        children: children.collect(),
        pods: Vec::new(),
        scatter: BTreeMap::new(),
        refused: BTreeMap::new(),
    }
}
