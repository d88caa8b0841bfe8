//! Kimi delta attention: `A = (I - b k k^T) diag(exp g_t)`, `u = b k v^T`. The decay comes first.

use hypic_domain::family::Family;

use crate::matrix;

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// `k`, `[key]`, of length 1.
    pub key: &'a [f64],
    /// `v`, `[value]`.
    pub value: &'a [f64],
    /// `b`, in `[0, 2]`.
    pub beta: f64,
    /// `g_t`, log decay per key channel, `[key]`; not positive.
    pub gate: &'a [f64],
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Kda;

    fn advance(&self, matrix: &mut [f64], columns: usize) {
        matrix::decay_rows(matrix, columns, self.gate);
        matrix::reflect(matrix, columns, self.key, self.beta);
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, self.beta);
    }

    /// `Σ_t max_i g_ti`. Not GLA's `max_i Σ_t g_ti`: the delta rule moves mass between channels, so it can
    /// pass each token in the channel that decays least there.
    fn log_bound(tokens: &[Self]) -> f64 {
        tokens.iter().map(|token| token.gate.iter().copied().reduce(f64::max).unwrap_or(0.0)).sum()
    }
}
