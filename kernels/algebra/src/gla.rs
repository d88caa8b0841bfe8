//! Gated linear attention: `A = diag(exp g_t)`, `u = k v^T`.

use hypic_domain::family::Family;

use crate::matrix;

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// `k`, `[key]`.
    pub key: &'a [f64],
    /// `v`, `[value]`.
    pub value: &'a [f64],
    /// `g_t`, log decay per key channel, `[key]`; not positive.
    pub gate: &'a [f64],
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Gla;

    fn advance(&self, matrix: &mut [f64], columns: usize) {
        matrix::decay_rows(matrix, columns, self.gate);
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, 1.0);
    }

    /// `max_i Σ_t g_ti`: `T` is diagonal, so its norm is its largest entry and the bound is exact.
    fn log_bound(tokens: &[Self]) -> f64 {
        let channels = tokens.first().map_or(0, |token| token.gate.len());
        let total = |channel: usize| tokens.iter().map(|token| token.gate[channel]).sum::<f64>();
        (0..channels).map(total).reduce(f64::max).unwrap_or(0.0)
    }
}
