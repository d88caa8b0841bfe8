//! Number formats: rows of f32 to bytes and back.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use hypic_domain::tuple::Dtype;

/// Values converted at a time: a buffer that stays in the first cache.
const CHUNK: usize = 1024;

/// Appends `values` as rows of `width` in `dtype`. Values beyond the format's range become its largest finite
/// value. Returns `None`, with `out` half written, if a value is NaN or infinite.
pub(crate) fn encode(values: &[f32], width: usize, dtype: Dtype, out: &mut Vec<u8>) -> Option<()> {
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

/// Fills `out` with the values of `bytes`, rows of `width` in `dtype`; the caller has matched the two lengths.
pub(crate) fn decode(bytes: &[u8], width: usize, dtype: Dtype, out: &mut [f32]) {
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
