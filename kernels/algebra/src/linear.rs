//! Plain linear attention: `A = I`, `u = k v^T`. The control: states may be added, in any order.

use hypic_domain::family::Family;

use crate::matrix;

/// One token.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// `k`, `[key]`.
    pub key: &'a [f64],
    /// `v`, `[value]`.
    pub value: &'a [f64],
}

impl crate::Token for Token<'_> {
    const FAMILY: Family = Family::Linear;

    fn advance(&self, _: &mut [f64], _: usize) {}

    fn write(&self, state: &mut [f64]) {
        matrix::add_outer(state, self.key, self.value, 1.0);
    }

    fn log_bound(_: &[Self]) -> f64 {
        0.0
    }
}
