//! One file says how a model is served: router and agents read the same one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::flow::Mode;
use crate::id::ModelId;
use crate::tuple::TupleFormat;
use crate::unit::Tokens;

/// How one model is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// The served name.
    pub name: ModelId,
    /// Folder of the checkpoint: config, safetensors, tokenizer, template.
    pub path: PathBuf,
    /// Width of the seam, `w`.
    #[serde(default = "default_seam")]
    pub seam: Tokens,
    /// Pieces shorter than this stay live.
    #[serde(default = "default_segment_min")]
    pub segment_min: Tokens,
    /// Pieces longer than this are split.
    #[serde(default = "default_segment_max")]
    pub segment_max: Tokens,
    /// Number formats of tuples.
    #[serde(default)]
    pub format: TupleFormat,
    /// The mode of requests that name none.
    #[serde(default)]
    pub policy: Mode,
    /// Marks segments in plain completions.
    #[serde(default = "default_separator")]
    pub separator: String,
    /// Prefixes shorter than this get no snapshot.
    #[serde(default = "default_snapshot_min")]
    pub snapshot_min: Tokens,
}

fn default_seam() -> Tokens {
    Tokens(8)
}
fn default_segment_min() -> Tokens {
    Tokens(128)
}
fn default_segment_max() -> Tokens {
    Tokens(4096)
}
fn default_separator() -> String {
    "<<hypic>>".to_owned()
}
fn default_snapshot_min() -> Tokens {
    Tokens(64)
}
