//! How far a device may be from the reference: one table for every device and test.

use hypic_domain::tuple::Dtype;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Norms, gates, elementwise ops.
    Rows,
    /// A matrix product.
    Linear,
    /// Outputs of a linear mixer.
    Mixer,
    /// A running state, `T` or `S` after up to some thousand tokens.
    State,
    /// A state composed of tuples, against the state of the same tokens in one go, with inputs that are equal.
    Composed,
    /// Outputs of a full mixer.
    Attention,
    /// Logits of a whole small model, one device against another.
    Logits,
}

/// Bound on [`error`] for a device that computes in `dtype` (and sums in fp32).
///
/// Rounding of one fp32 operation is 6e-8. Sums of `n` random terms grow like `sqrt(n)`, and the measured errors on
/// the CPU are given beside each bound. For 16-bit formats inputs are rounded once: 5e-4 for f16, 4e-3 for bf16.
pub fn bound(compared: Compared, dtype: Dtype) -> f64 {
    let fp32 = match compared {
        // A few operations and `exp` within 2 units: 8e-8.
        Compared::Rows => 5e-7,
        // 2e-7 at 96 terms; room for some thousand.
        Compared::Linear => 2e-6,
        // Chunk products of inputs with rounding of their own: 4e-7.
        Compared::Mixer => 2e-6,
        // Log decays are summed in f64: 7e-7 at most, no worse at 1000 tokens than at 64.
        Compared::State => 2e-6,
        // The bar of the design (`layer0`): 4e-7 over four segments.
        Compared::Composed => 1e-6,
        // Angles from an f64 table, weights summed tile by tile: 3e-7.
        Compared::Attention => 2e-6,
        // What layers of a trained model make of it: 1.4e-5 over 8 layers, and 5e-2 where rows are bf16.
        Compared::Logits => {
            return match dtype {
                Dtype::F32 => 5e-5,
                Dtype::F16 => 2e-2,
                Dtype::Bf16 | Dtype::I8 => 1e-1,
            };
        }
    };
    match dtype {
        Dtype::F32 => fp32,
        Dtype::F16 => fp32 + 1.5e-3,
        Dtype::Bf16 => fp32 + 1.2e-2,
        // One scale a row: half a step of 1/127 of the row's largest value.
        Dtype::I8 => fp32 + 1.5e-2,
    }
}

/// `‖found - right‖ / ‖right‖`, infinite where a value is NaN or the lengths differ.
pub fn error(found: &[f32], right: &[f64]) -> f64 {
    let squares = |x: f64| x * x;
    let apart: f64 = found.iter().zip(right).map(|(&found, right)| squares(f64::from(found) - right)).sum();
    let whole: f64 = right.iter().copied().map(squares).sum();
    if apart.is_nan() || found.len() != right.len() {
        f64::INFINITY
    } else if apart == 0.0 {
        0.0
    } else {
        (apart / whole).sqrt()
    }
}
