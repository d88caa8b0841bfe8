//! Functions of single values, written so that loops over them become vector code.

use pulp::{Arch, NullaryFnOnce};

/// `e^x`, within 2 units in the last place; under -87 it stays at the smallest normal number. NaN stays NaN.
///
/// `x = n ln 2 + r`, `e^x = 2^n e^r`, with the polynomial of Cephes' `expf` for `e^r`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to an integer, whose bits then lie at the bottom of the sum.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let e = p.mul_add(r * r, r) + 1.0;
    e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `out = f(out, other)`, element by element.
pub(crate) fn zip(arch: Arch, out: &mut [f32], other: &[f32], f: impl Fn(f32, f32) -> f32) {
    arch.dispatch(Zip { out, other, f });
}

struct Zip<'a, F> {
    out: &'a mut [f32],
    other: &'a [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> NullaryFnOnce for Zip<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (out, &other) in self.out.iter_mut().zip(self.other) {
            *out = (self.f)(*out, other);
        }
    }
}

/// Sum of squares, over 16 running sums.
#[inline(always)]
pub(crate) fn squares(x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<16>();
    let mut sums = [0.0_f32; 16];
    for group in groups {
        for (sum, &value) in sums.iter_mut().zip(group) {
            *sum = value.mul_add(value, *sum);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_over_its_whole_range_and_keeps_nan() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let right = f64::from(x).exp();
            assert!((f64::from(exp(x)) / right - 1.0).abs() < 3e-7, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e9) < 1e-37);
        assert!(sigmoid(f32::NAN).is_nan());
    }
}
