//! Weights in 8-bit floats with a factor for each block, as Qwen's FP8 checkpoints have them: `W = E4M3 * scale_inv`.

use hypic_kernels::coded::Blocks;
use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::keys::key;

/// What `quantization_config` says; none without one.
///
/// # Errors
/// Another method, or blocks that make no sense.
pub(crate) fn blocks_of(config: &Map<String, Value>) -> Result<Option<Blocks>, LoadError> {
    let name = "quantization_config";
    let Some(quantisation) = config.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let method = quantisation.get("quant_method").and_then(Value::as_str).unwrap_or("of no named method");
    let format = quantisation.get("fmt").and_then(Value::as_str).unwrap_or("e4m3");
    if (method, format) != ("fp8", "e4m3") {
        return Err(LoadError::ChooseModel {
            what: format!("{name} {method}, {format}"),
            reason: "weights must be f64, f32, f16, bf16, or fp8 e4m3 in blocks".to_owned(),
        });
    }
    let sizes = quantisation.get("weight_block_size").and_then(Value::as_array);
    let sizes: Vec<_> = sizes.into_iter().flatten().map(Value::as_u64).collect();
    match sizes[..] {
        [Some(rows @ 1..), Some(columns @ 1..)] => {
            Ok(Some(Blocks { rows: rows as usize, columns: columns as usize }))
        }
        _ => Err(key(format!("{name}.weight_block_size"), "not two sizes over zero")),
    }
}
