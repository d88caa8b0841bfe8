//! Number formats of stored values: rows of f32 to bytes and back. Inlined, so that they are as fast as their users are
//! built to be.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::tuple::Dtype;

/// Values converted at a time: a buffer that stays in the first cache.
const CHUNK: usize = 1024;

/// Appends `values` as rows of `width` in `dtype`. Values beyond the format's range become its largest finite
/// value. Returns `None`, with `out` half written, if a value is NaN or infinite.
#[inline]
pub fn encode(values: &[f32], width: usize, dtype: Dtype, out: &mut Vec<u8>) -> Option<()> {
    if values.iter().fold(false, |bad, x| bad | !x.is_finite()) {
        return None;
    }
    match dtype {
        Dtype::F32 => {
            for chunk in values.chunks(CHUNK) {
                let mut bytes = [0; 4 * CHUNK];
                let bytes = &mut bytes[..4 * chunk.len()];
                for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(chunk) {
                    *to = x.to_le_bytes();
                }
                out.extend_from_slice(bytes);
            }
        }
        Dtype::F16 => encode_halves(values, f16::MAX.to_f32(), f16::to_le_bytes, out),
        Dtype::Bf16 => encode_halves(values, bf16::MAX.to_f32(), bf16::to_le_bytes, out),
        Dtype::I8 => {
            for row in values.chunks_exact(width) {
                let scale = row.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
                out.extend_from_slice(&scale.to_le_bytes());
                // A row of zeros, or one so small that its scale underflows, is stored as zeros.
                let factor = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
                let bytes =
                    row.iter().map(|x| (f64::from(*x) * factor).round().clamp(-127.0, 127.0) as i8 as u8);
                out.extend(bytes);
            }
        }
    }
    Some(())
}

fn encode_halves<H: Copy + Default>(
    values: &[f32],
    max: f32,
    to_bytes: impl Fn(H) -> [u8; 2],
    out: &mut Vec<u8>,
) where
    [H]: HalfFloatSliceExt,
{
    let (mut clamped, mut halves, mut bytes) = ([0f32; CHUNK], [H::default(); CHUNK], [0; 2 * CHUNK]);
    for chunk in values.chunks(CHUNK) {
        let n = chunk.len();
        for (to, x) in clamped.iter_mut().zip(chunk) {
            *to = x.clamp(-max, max);
        }
        halves[..n].convert_from_f32_slice(&clamped[..n]);
        for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(&halves[..n]) {
            *to = to_bytes(*x);
        }
        out.extend_from_slice(&bytes[..2 * n]);
    }
}

/// Whether every value of `bytes`, rows of `width` in `dtype`, is finite.
#[inline]
pub fn is_finite(bytes: &[u8], width: usize, dtype: Dtype) -> bool {
    // Without a branch, so that it is as fast as memory.
    let halves = |exponent: u16| {
        let halves = bytes.as_chunks().0.iter().map(|&half| u16::from_le_bytes(half));
        !halves.fold(false, |bad, half| bad | (half & exponent == exponent))
    };
    match dtype {
        Dtype::F32 => {
            let words = bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word));
            !words.fold(false, |bad, x| bad | !x.is_finite())
        }
        Dtype::F16 => halves(0x7c00),
        Dtype::Bf16 => halves(0x7f80),
        Dtype::I8 => bytes
            .chunks_exact(4 + width)
            .all(|row| f32::from_le_bytes([row[0], row[1], row[2], row[3]]).is_finite()),
    }
}

/// Fills `out` with the values of `bytes`, rows of `width` in `dtype`; the caller has matched the two lengths.
#[inline]
pub fn decode(bytes: &[u8], width: usize, dtype: Dtype, out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (x, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *x = f32::from_le_bytes(*b);
            }
        }
        Dtype::F16 => decode_halves(bytes, f16::from_le_bytes, out),
        Dtype::Bf16 => decode_halves(bytes, bf16::from_le_bytes, out),
        Dtype::I8 => {
            for (to, row) in out.chunks_exact_mut(width).zip(bytes.chunks_exact(4 + width)) {
                let (scale, row) = row.split_at(4);
                let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                for (x, q) in to.iter_mut().zip(row) {
                    *x = scale * f32::from(*q as i8);
                }
            }
        }
    }
}

fn decode_halves<H: Copy + Default>(bytes: &[u8], from_bytes: impl Fn([u8; 2]) -> H, out: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    let mut halves = [H::default(); CHUNK];
    for (to, chunk) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
        for (half, b) in halves.iter_mut().zip(chunk.as_chunks().0) {
            *half = from_bytes(*b);
        }
        halves[..to.len()].convert_to_f32_slice(to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8];

    fn there_and_back(values: &[f32], width: usize, dtype: Dtype) -> Vec<f32> {
        let (mut bytes, mut out) = (Vec::new(), vec![f32::NAN; values.len()]);
        encode(values, width, dtype, &mut bytes).unwrap();
        assert!(is_finite(&bytes, width, dtype));
        decode(&bytes, width, dtype, &mut out);
        out
    }

    proptest! {
        #[test]
        fn formats_keep_their_precision(values in prop::collection::vec(-1e3f32..1e3, 8..9)) {
            let largest = values.iter().fold(0f32, |max, x| max.max(x.abs()));
            // Half a unit in the last place of the value, or for 8 bits half a step of the row.
            let bounds = [(Dtype::F32, 0.0, 0.0), (Dtype::F16, 2f32.powi(-11), 0.0),
                (Dtype::Bf16, 2f32.powi(-8), 0.0), (Dtype::I8, 0.0, largest / 253.0)];
            for (dtype, relative, absolute) in bounds {
                for (x, y) in there_and_back(&values, 4, dtype).iter().zip(&values) {
                    let bound = relative * y.abs() + absolute + 1e-7;
                    prop_assert!((x - y).abs() <= bound, "{:?}: {} {}", dtype, x, y);
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_refused_and_found() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for dtype in ALL {
                assert!(encode(&[0.0, bad, 1.0], 3, dtype, &mut Vec::new()).is_none());
            }
            let halves = [f16::from_f32(1.0).to_le_bytes(), f16::from_f32(bad).to_le_bytes()];
            assert!(!is_finite(halves.as_flattened(), 2, Dtype::F16));
            let halves = [bf16::from_f32(1.0).to_le_bytes(), bf16::from_f32(bad).to_le_bytes()];
            assert!(!is_finite(halves.as_flattened(), 2, Dtype::Bf16));
            assert!(!is_finite(&bad.to_le_bytes(), 1, Dtype::F32));
            assert!(!is_finite(&[&bad.to_le_bytes()[..], &[1, 2]].concat(), 2, Dtype::I8));
        }
    }

    #[test]
    fn values_beyond_the_range_become_the_largest_finite_value() {
        let values = [1e30, -1e30, f32::MAX, f32::MIN, 1e-30, 0.0];
        for (dtype, largest) in [(Dtype::F16, 65504.0), (Dtype::Bf16, bf16::MAX.to_f32())] {
            let out = there_and_back(&values, 6, dtype);
            assert!(out.iter().all(|x| x.is_finite() && x.abs() <= largest), "{out:?}");
            assert_eq!((out[2], out[3]), (largest, -largest));
        }
    }

    #[test]
    fn rows_of_zeros_and_of_the_smallest_numbers_survive_eight_bits() {
        let values = [0.0, -0.0, 0.0, 1e-45, -1e-45, 1e-44, 1e-30, 2e-30, -1e-30];
        let out = there_and_back(&values, 3, Dtype::I8);
        assert!(out.iter().all(|x| x.is_finite()));
        assert!((out[7] - 2e-30).abs() < 1e-32);
        assert_eq!(out[..3], [0.0; 3]);
    }

    /// Long rows cross the conversion's own blocks.
    #[test]
    fn parts_longer_than_a_block_are_whole() {
        let values: Vec<f32> = (0..2500).map(|i| i as f32).collect();
        for dtype in [Dtype::F32, Dtype::F16] {
            let out = there_and_back(&values, 2500, dtype);
            assert!(out.iter().zip(&values).all(|(x, y)| (x - y).abs() <= 1.0));
            assert_eq!((out.len(), out[1024]), (2500, 1024.0));
        }
    }
}
