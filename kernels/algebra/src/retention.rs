//! Retention (RetNet) and lightning attention (Ring, MiniMax): `A = exp(-s_h) I`, `u = k v^T`.
//!
//! The decay belongs to the head, not to the token, so `T = exp(-s_h n) I` needs no token at all. Ring's keys
//! are rotated by position: see [`crate::rotation`].

use hypic_domain::family::Family;

use crate::matrix;

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// `k`, `[key]`.
    pub key: &'a [f64],
    /// `v`, `[value]`.
    pub value: &'a [f64],
    /// `s_h`, the same for every token of the head; not negative.
    pub slope: f64,
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Retention;

    fn advance(&self, matrix: &mut [f64], _: usize) {
        matrix::scale(matrix, (-self.slope).exp());
    }

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, 1.0);
    }

    fn log_bound(tokens: &[Self]) -> f64 {
        tokens.iter().map(|token| -token.slope).sum()
    }
}
