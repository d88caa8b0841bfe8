//! Mamba-2: `A = exp(-a_h dt_t) I`, `u = dt_t B x^T`. `B` is the key, `x` the value.

use hypic_domain::family::Family;

use crate::matrix;

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// `B`, `[key]`.
    pub key: &'a [f64],
    /// `x`, `[value]`.
    pub value: &'a [f64],
    /// `a_h`, the decay rate of the head; not negative.
    pub rate: f64,
    /// `dt_t`, the step; not negative.
    pub step: f64,
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Mamba2;

    fn advance(&self, matrix: &mut [f64], _: usize) {
        matrix::scale(matrix, (-self.rate * self.step).exp());
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, self.step);
    }

    fn log_bound(tokens: &[Self]) -> f64 {
        tokens.iter().map(|token| -token.rate * token.step).sum()
    }
}
