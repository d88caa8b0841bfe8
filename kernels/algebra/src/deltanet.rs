//! The delta rule: `A = I - b k k^T`, `u = b k v^T`. Nothing decays, so no `T` is ever skipped.

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
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::DeltaNet;

    fn advance(&self, matrix: &mut [f64], columns: usize) {
        matrix::reflect(matrix, columns, self.key, self.beta);
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, self.beta);
    }

    fn log_bound(_: &[Self]) -> f64 {
        0.0
    }
}
