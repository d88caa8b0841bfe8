//! What pods read: topology and model as ConfigMaps, and the account that they run under.

use hypic_crds::HypicModel;
use hypic_crds::model::{CompositionPolicy, NumberFormat};
use hypic_domain::flow::Mode;
use hypic_domain::id::ModelId;
use hypic_domain::serving::ModelFile;
use hypic_domain::topology::Topology;
use hypic_domain::tuple::{Dtype, TupleFormat};
use hypic_domain::unit::Tokens;
use serde_json::{Value, json};

use crate::plan::names::Names;

/// Where a model's volume is mounted.
pub const MODEL_MOUNT: &str = "/var/lib/hypic/model";
/// Key of the topology in its ConfigMap.
pub const TOPOLOGY_KEY: &str = "topology.json";
/// Key of the model file in its ConfigMap.
pub const MODEL_KEY: &str = "model.json";

/// The topology as a ConfigMap.
pub fn topology(names: &Names, topology: &Topology) -> Value {
    config_map(names, "topology", TOPOLOGY_KEY, json!(topology).to_string())
}

/// The model file as a ConfigMap.
pub fn model(names: &Names, model: &HypicModel) -> Value {
    config_map(names, "model", MODEL_KEY, model_text(model))
}

/// The model file: what it says changes how pods serve, so its digest is part of their template.
pub fn model_text(model: &HypicModel) -> String {
    json!(model_file(model)).to_string()
}

fn config_map(names: &Names, part: &str, key: &str, text: String) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(&names.child(part), "config", None),
        "data": {key: text},
    })
}

/// An account without rights and without a token.
pub fn account(names: &Names) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(&names.cluster, "config", None),
        "automountServiceAccountToken": false,
    })
}

fn model_file(model: &HypicModel) -> ModelFile {
    let spec = &model.spec;
    let name = spec.served_name.clone().or_else(|| model.metadata.name.clone()).unwrap_or_default();
    let path = match (&spec.source.image, &spec.source.pvc) {
        (Some(image), _) => image.path.clone(),
        (None, Some(volume)) => format!("{MODEL_MOUNT}/{}", volume.path),
        // The schema asks for one of them.
        (None, None) => String::new(),
    };
    // The schema keeps every number positive.
    let tokens = |count: i32| Tokens(count.unsigned_abs());
    ModelFile {
        name: ModelId(name),
        path: path.trim_end_matches('/').into(),
        seam: tokens(spec.seam_tokens),
        segment_min: tokens(spec.segment_min_tokens),
        segment_max: tokens(spec.segment_max_tokens),
        format: TupleFormat {
            transition: dtype(spec.format.transition),
            state: dtype(spec.format.state),
            kv: dtype(spec.format.kv),
            ..TupleFormat::default()
        },
        policy: match spec.policy {
            CompositionPolicy::Pic => Mode::Pic,
            CompositionPolicy::Prefix => Mode::Prefix,
            CompositionPolicy::Recompute => Mode::Recompute,
        },
        separator: spec.separator.clone(),
        snapshot_min: tokens(spec.snapshot_min_tokens),
    }
}

fn dtype(format: NumberFormat) -> Dtype {
    match format {
        NumberFormat::Float32 => Dtype::F32,
        NumberFormat::Float16 => Dtype::F16,
        NumberFormat::Bfloat16 => Dtype::Bf16,
        NumberFormat::Int8 => Dtype::I8,
    }
}
