//! `HypicModel`: a checkpoint, how it is cut into segments, and how tuples of it are stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A checkpoint, how prompts for it are cut into segments, and how tuples of it are stored.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "hypic.dev",
    version = "v1alpha1",
    kind = "HypicModel",
    plural = "hypicmodels",
    namespaced,
    shortname = "hym",
    category = "hypic",
    status = "HypicModelStatus",
    derive = "PartialEq",
    doc = "HypicModel is a checkpoint, how prompts for it are cut into segments, and how tuples of it are stored.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Family", type_ = "string", json_path = ".status.family"),
    printcolumn(name = "Layers", type_ = "integer", json_path = ".status.layers"),
    printcolumn(name = "Bytes/512", type_ = "integer", json_path = ".status.bytesPerSegment", description = "Bytes of a tuple of 512 tokens"),
    printcolumn(name = "Live heads", type_ = "integer", json_path = ".status.liveHeadPercent", description = "Per cent of heads whose T is stored", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63").message("the name of a HypicModel may have 63 characters"),
)]
#[cfg_attr(test, kube(cel))]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.segmentMinTokens <= self.segmentMaxTokens").message("segmentMinTokens must be at most segmentMaxTokens").field_path(".segmentMinTokens"),
    validation = Rule::new("self.seamTokens < self.segmentMinTokens").message("seamTokens must be under segmentMinTokens: a segment without a body cannot be cached").field_path(".seamTokens"),
)]
pub struct HypicModelSpec {
    /// Name by which clients ask for the model; the object's name without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub served_name: Option<String>,
    /// Where the checkpoint lies. Cannot be changed: tuples of other weights would not fit.
    #[x_kube(validation = Rule::new("self == oldSelf").message("source cannot be changed: make a new HypicModel, since tuples of the old weights do not fit"))]
    pub source: ModelSource,
    /// Width of the seam in tokens: the head of each segment that is always recomputed in context.
    #[serde(default = "seam")]
    #[schemars(range(min = 0, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("seamTokens cannot be changed: make a new HypicModel, since tuples were recorded behind the old seam"))]
    pub seam_tokens: i32,
    /// Pieces of a prompt shorter than this stay live: they are recomputed in each request.
    #[serde(default = "segment_min")]
    #[schemars(range(min = 1, max = 65536))]
    pub segment_min_tokens: i32,
    /// Pieces longer than this are split.
    #[serde(default = "segment_max")]
    #[schemars(range(min = 1, max = 65536))]
    pub segment_max_tokens: i32,
    /// Prefixes shorter than this get no snapshot.
    #[serde(default = "snapshot_min")]
    #[schemars(range(min = 1, max = 1048576))]
    pub snapshot_min_tokens: i32,
    /// Number formats of stored tuples.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("format cannot be changed: make a new HypicModel, since stored tuples have the old format"))]
    pub format: TupleFormat,
    /// Mode of requests that name none.
    #[serde(default)]
    pub policy: CompositionPolicy,
    /// Text that marks a segment's edge in plain completions.
    #[serde(default = "separator")]
    #[schemars(length(min = 1, max = 64))]
    pub separator: String,
}

/// Where the checkpoint lies: exactly one of the fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.image) ? 1 : 0) + (has(self.pvc) ? 1 : 0) == 1").message("source needs exactly one of image and pvc"))]
pub struct ModelSource {
    /// A folder in the image of routers and agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A folder on a volume that every router and agent can mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
}

/// A folder in the image.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Absolute path of the checkpoint's folder in the image.
    #[schemars(length(min = 2, max = 512), regex(pattern = r"^/[^\x00]+$"))]
    pub path: String,
}

/// A folder on a volume.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// Name of a PersistentVolumeClaim in the same namespace; mounted read-only.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Path of the checkpoint's folder on the volume, without a slash at its start.
    #[serde(default)]
    #[schemars(length(max = 512), regex(pattern = r"^([^/.][^/]*(/[^/.][^/]*)*)?$"))]
    pub path: String,
}

/// Number formats of a stored tuple's parts.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TupleFormat {
    /// `T` of live heads.
    #[serde(default = "half")]
    pub transition: NumberFormat,
    /// `S`.
    #[serde(default = "half")]
    pub state: NumberFormat,
    /// Keys before rotation, and values, of full-attention layers.
    #[serde(default = "full")]
    pub kv: NumberFormat,
}

impl Default for TupleFormat {
    fn default() -> Self {
        Self { transition: half(), state: half(), kv: full() }
    }
}

/// A number format.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// 32-bit float.
    Float32,
    /// 16-bit float with 10 bits of mantissa.
    Float16,
    /// 16-bit float with 7 bits of mantissa.
    Bfloat16,
    /// 8-bit integer with one scale per row.
    Int8,
}

/// How a request's cached segments are used.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompositionPolicy {
    /// Cached segments are composed behind any prefix.
    #[default]
    Pic,
    /// Exact prefixes only.
    Prefix,
    /// Nothing cached is used.
    Recompute,
}

fn seam() -> i32 {
    8
}
fn segment_min() -> i32 {
    128
}
fn segment_max() -> i32 {
    4096
}
fn snapshot_min() -> i32 {
    64
}
fn half() -> NumberFormat {
    NumberFormat::Float16
}
fn full() -> NumberFormat {
    NumberFormat::Float32
}
fn separator() -> String {
    "<<hypic>>".to_owned()
}

/// What the agents found in the checkpoint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HypicModelStatus {
    /// Generation of the spec that this status tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Family of the linear layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<i32>,
    /// Linear-attention layers among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear_layers: Option<i32>,
    /// Digest of all that makes tuples compatible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Digest of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_digest: Option<String>,
    /// Bytes of a tuple of 512 tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_segment: Option<i64>,
    /// Per cent of value heads whose `T` is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_head_percent: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(change: serde_json::Value) -> HypicModel {
        let mut spec = serde_json::json!({"source": {"image": {"path": "/models/tiny"}}});
        for (key, value) in change.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        HypicModel::new("tiny", serde_json::from_value(spec).expect("a spec"))
    }

    #[test]
    fn rules_name_what_is_wrong() {
        assert!(model(serde_json::json!({})).validate_cel().is_ok());
        for (change, word) in [
            (serde_json::json!({"segmentMinTokens": 100, "segmentMaxTokens": 99}), "segmentMaxTokens"),
            (serde_json::json!({"segmentMinTokens": 8, "seamTokens": 8}), "seamTokens"),
            (serde_json::json!({"source": {}}), "exactly one"),
            (
                serde_json::json!({"source": {"image": {"path": "/m"}, "pvc": {"claimName": "c"}}}),
                "exactly one",
            ),
        ] {
            let error = model(change.clone()).validate_cel().expect_err("a broken rule");
            assert!(format!("{error:?}").contains(word), "{change}: {error:?}");
        }
    }

    #[test]
    fn what_tuples_depend_on_cannot_be_changed() {
        let old = model(serde_json::json!({}));
        for change in [
            serde_json::json!({"source": {"image": {"path": "/models/other"}}}),
            serde_json::json!({"seamTokens": 4}),
            serde_json::json!({"format": {"transition": "Float32"}}),
        ] {
            let error = model(change.clone()).validate_cel_update(&old).expect_err("immutable");
            assert!(format!("{error:?}").contains("cannot be changed"), "{change}: {error:?}");
        }
        assert!(model(serde_json::json!({"segmentMinTokens": 16})).validate_cel_update(&old).is_ok());
    }
}
