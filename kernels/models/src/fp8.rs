//! Weights in 8-bit floats with a factor for each block, as Qwen's FP8 checkpoints have them: `W = E4M3 * scale_inv`.
//!
//! They are widened when they are loaded; products and memory are those of the device's own format.

use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::keys::key;

/// Rows and columns of a block that shares a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Blocks {
    /// What `quantization_config` says; none without one.
    ///
    /// # Errors
    /// Another method, or blocks that make no sense.
    pub(crate) fn parse(config: &Map<String, Value>) -> Result<Option<Self>, LoadError> {
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
                Ok(Some(Self { rows: rows as usize, columns: columns as usize }))
            }
            _ => Err(key(format!("{name}.weight_block_size"), "not two sizes over zero")),
        }
    }

    /// Shape of the factors of a tensor of `shape`, whose last two axes are matrices.
    pub(crate) fn factors_of(self, shape: &[usize]) -> Vec<usize> {
        let mut factors = shape.to_vec();
        if let [.., rows, columns] = &mut factors[..] {
            (*rows, *columns) = (rows.div_ceil(self.rows), columns.div_ceil(self.columns));
        }
        factors
    }

    /// The values of matrices of `columns` columns and `rows` rows each, one after the other.
    pub(crate) fn widen(
        self,
        codes: &[u8],
        [rows, columns]: [usize; 2],
        factors: &[f32],
    ) -> impl Iterator<Item = f32> {
        let across = columns.div_ceil(self.columns);
        let down = rows.div_ceil(self.rows);
        let table: [f32; 256] = std::array::from_fn(|code| e4m3(code as u8));
        codes.iter().enumerate().map(move |(place, &code)| {
            let (row, column) = (place / columns, place % columns);
            let block = row / rows * down + row % rows / self.rows;
            table[usize::from(code)] * factors[block * across + column / self.columns]
        })
    }
}

/// An 8-bit float of 4 bits of exponent (bias 7) and 3 of mantissa; it has no infinities and one NaN of each sign.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_format() {
        // OCP 8-bit floating point specification, table 2: largest, smallest normal, largest and smallest subnormal.
        for (code, value) in
            [(0, 0.0), (0x7e, 448.0), (0x08, 0.015_625), (0x07, 0.875 * 0.015_625), (0x01, 0.001_953_125)]
        {
            assert_eq!(e4m3(code), value);
            assert_eq!(e4m3(code | 0x80), -value);
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn a_block_at_the_edge_is_smaller() {
        let blocks = Blocks { rows: 2, columns: 4 };
        assert_eq!(blocks.factors_of(&[5, 3, 6]), [5, 2, 2]);
        // Two matrices of 3 x 6, all codes one.
        let factors: Vec<f32> = (1..=8).map(|factor| factor as f32).collect();
        let values: Vec<f32> = blocks.widen(&[0x38; 36], [3, 6], &factors).collect();
        let row = |left: f32, right: f32| [left, left, left, left, right, right];
        let expected =
            [row(1.0, 2.0), row(1.0, 2.0), row(3.0, 4.0), row(5.0, 6.0), row(5.0, 6.0), row(7.0, 8.0)];
        assert_eq!(values, expected.concat());
    }
}
