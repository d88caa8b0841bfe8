//! Norms of rows.

use pulp::{Arch, NullaryFnOnce};

use super::math::{silu, squares};
use crate::op::NormWeight;

/// An RMS norm over groups of `weight.len()` values, into `out`; with a gate, `norm(x) * silu(gate)`.
pub(crate) struct Norm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) gate: Option<&'a [f32]>,
    pub(crate) weight: &'a [f32],
    pub(crate) style: NormWeight,
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Norm<'_> {
    pub(crate) fn run(self, arch: Arch) {
        arch.dispatch(self);
    }
}

impl NullaryFnOnce for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let width = self.weight.len();
        let centre = match self.style {
            NormWeight::ZeroCentred => 1.0,
            NormWeight::Plain => 0.0,
        };
        for (group, (x, out)) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)).enumerate()
        {
            let scale = 1.0 / (squares(x) / width as f32 + self.eps).sqrt();
            for ((out, &x), &weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * scale * (centre + weight);
            }
            if let Some(gate) = self.gate {
                for (out, &gate) in out.iter_mut().zip(&gate[group * width..]) {
                    *out *= silu(gate);
                }
            }
        }
    }
}
