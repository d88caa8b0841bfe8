//! The transition operator `T` of a span, in the cheapest form that its family allows.

use hypic_domain::family::TransitionForm;

use crate::matrix;

/// `T`, which acts on a state's key axis from the left.
#[derive(Clone, Debug, PartialEq)]
pub enum Transition {
    /// `I`.
    Identity,
    /// `a I`.
    Scalar(f64),
    /// `diag(d)`, `[key]`.
    Diagonal(Vec<f64>),
    /// A matrix, `[key, key]`.
    Dense(Vec<f64>),
}

impl Transition {
    /// The identity, kept in `form` for keys of width `key`.
    pub fn identity(form: TransitionForm, key: usize) -> Self {
        match form {
            TransitionForm::Identity => Self::Identity,
            TransitionForm::Scalar => Self::Scalar(1.0),
            TransitionForm::Diagonal => Self::Diagonal(vec![1.0; key]),
            TransitionForm::Dense => Self::Dense(unit_matrix(key)),
        }
    }

    /// The form it is kept in.
    pub fn form(&self) -> TransitionForm {
        match self {
            Self::Identity => TransitionForm::Identity,
            Self::Scalar(_) => TransitionForm::Scalar,
            Self::Diagonal(_) => TransitionForm::Diagonal,
            Self::Dense(_) => TransitionForm::Dense,
        }
    }

    /// `X <- T X` for `X` `[key, columns]`.
    pub fn apply(&self, matrix: &mut [f64], columns: usize) {
        match self {
            Self::Identity => {}
            Self::Scalar(factor) => matrix::scale(matrix, *factor),
            Self::Diagonal(diagonal) => {
                for (row, d) in matrix.chunks_exact_mut(columns).zip(diagonal) {
                    matrix::scale(row, *d);
                }
            }
            Self::Dense(t) => {
                let moved = matrix::product(t, matrix, matrix.len() / columns, columns);
                matrix.copy_from_slice(&moved);
            }
        }
    }

    /// `later · self`: this span first, then `later`. Two forms meet in the wider one.
    #[must_use]
    pub fn then(&self, later: &Self) -> Self {
        match (self, later) {
            (Self::Identity, other) | (other, Self::Identity) => other.clone(),
            (Self::Scalar(a), Self::Scalar(b)) => Self::Scalar(a * b),
            (Self::Scalar(a), Self::Diagonal(d)) | (Self::Diagonal(d), Self::Scalar(a)) => {
                Self::Diagonal(d.iter().map(|x| a * x).collect())
            }
            (Self::Diagonal(a), Self::Diagonal(b)) => {
                Self::Diagonal(a.iter().zip(b).map(|(a, b)| a * b).collect())
            }
            (Self::Scalar(a), Self::Dense(t)) => Self::Dense(t.iter().map(|x| a * x).collect()),
            (Self::Diagonal(d), Self::Dense(t)) => {
                let columns = d.iter().cycle();
                Self::Dense(t.iter().zip(columns).map(|(x, d)| x * d).collect())
            }
            (Self::Dense(t), _) => {
                let mut t = t.clone();
                let key = t.len().isqrt();
                later.apply(&mut t, key);
                Self::Dense(t)
            }
        }
    }

    /// The same operator as a matrix, `[key, key]`.
    pub fn to_dense(&self, key: usize) -> Vec<f64> {
        let mut dense = unit_matrix(key);
        self.apply(&mut dense, key);
        dense
    }
}

fn unit_matrix(key: usize) -> Vec<f64> {
    let mut unit = vec![0.0; key * key];
    unit.iter_mut().step_by(key + 1).for_each(|x| *x = 1.0);
    unit
}
