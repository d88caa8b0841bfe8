//! What a family is: how one token moves a state.

use hypic_domain::family::Family;

use crate::summary::Summary;
use crate::transition::Transition;

/// One token of one value head: `S <- A_t S + u_t`.
pub trait Token: Sized {
    /// The family whose token it is.
    const FAMILY: Family;

    /// `X <- A_t X` for `X` `[key, columns]`.
    ///
    /// Families whose `A_t` is a scalar take any number of rows, so that one number stands for `a I`.
    fn advance(&self, matrix: &mut [f64], columns: usize);

    /// `S <- S + u_t` for `S` `[key, value]`.
    fn write(&self, state: &mut [f64]);

    /// Logarithm of an upper bound of the spectral norm of the span's `T`, from the gates alone.
    ///
    /// The bounds of the delta-rule families hold for keys of length 1 and `beta` in `[0, 2]`.
    fn log_bound(tokens: &[Self]) -> f64;
}

/// Runs `tokens` over `state`, `[key, value]`, in place.
pub fn scan<T: Token>(tokens: &[T], state: &mut [f64], value: usize) {
    for token in tokens {
        token.advance(state, value);
        token.write(state);
    }
}

/// The summary of a span: `S` is the end state from zero, `T` the end state from the identity with every
/// write left out. Both come from one pass.
pub fn summarise<T: Token>(tokens: &[T], key: usize, value: usize) -> Summary {
    let mut summary = Summary::identity(T::FAMILY.transition(), key, value);
    for token in tokens {
        match &mut summary.transition {
            Transition::Identity => {}
            Transition::Scalar(factor) => token.advance(std::slice::from_mut(factor), 1),
            Transition::Diagonal(diagonal) => token.advance(diagonal, 1),
            Transition::Dense(matrix) => token.advance(matrix, key),
        }
        token.advance(&mut summary.state, value);
        token.write(&mut summary.state);
    }
    summary
}
