//! The summary of a span of tokens and its composition.

use hypic_domain::family::TransitionForm;

use crate::transition::Transition;

/// The affine map `S -> T S + S_span` that a span of tokens is, for one value head.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// `T`.
    pub transition: Transition,
    /// `S_span`, the end state from zero, `[key, value]`.
    pub state: Vec<f64>,
}

impl Summary {
    /// The summary of no tokens at all.
    pub fn identity(form: TransitionForm, key: usize, value: usize) -> Self {
        Self { transition: Transition::identity(form, key), state: vec![0.0; key * value] }
    }

    /// `S <- T S + S_span` for a running state `[key, value]`.
    pub fn apply(&self, running: &mut [f64], value: usize) {
        self.transition.apply(running, value);
        for (s, own) in running.iter_mut().zip(&self.state) {
            *s += own;
        }
    }

    /// `later ∘ self`: this span first, then `later`.
    ///
    /// `(T2, S2) ∘ (T1, S1) = (T2 T1, T2 S1 + S2)`.
    #[must_use]
    pub fn then(&self, later: &Self, value: usize) -> Self {
        let mut state = self.state.clone();
        later.apply(&mut state, value);
        Self { transition: self.transition.then(&later.transition), state }
    }
}
