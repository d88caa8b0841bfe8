//! Gated delta net (Qwen3-Next, Qwen3.5): `A = exp(g_t) (I - b k k^T)`, `u = b k v^T`.

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
    /// `g_t`, log decay of the head; not positive.
    pub gate: f64,
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Gdn;

    fn advance(&self, matrix: &mut [f64], columns: usize) {
        matrix::scale(matrix, self.gate.exp());
        matrix::reflect(matrix, columns, self.key, self.beta);
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, self.beta);
    }

    fn log_bound(tokens: &[Self]) -> f64 {
        tokens.iter().map(|token| token.gate).sum()
    }
}
