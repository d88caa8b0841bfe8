//! Rows of logits, as much of them as a sampler needs: what a device lands of them and a sampler draws from.

/// What is needed of a row. The larger need covers the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// So many of the largest, and the sum of all.
    Largest(usize),
    /// The whole row.
    All,
}

/// Most logits that [`Need::Largest`] is for: beyond them the whole row is as quick to land.
pub const MOST_LARGEST: usize = 64;

/// A row of logits, or the part of it that was needed.
#[derive(Clone, Debug, PartialEq)]
pub enum Logits {
    /// The largest.
    Largest {
        /// `(token, logit)`, largest first, equal ones by token; all of them where fewer are in the row.
        largest: Vec<(u32, f32)>,
        /// `ln Σ exp(logits)` over the whole row; no number if any of them is not finite.
        log_sum: f64,
    },
    /// The whole row, `[vocab]`.
    All(Vec<f32>),
}

impl Logits {
    /// What `need` asks of a row: plain, for devices whose rows lie on the host.
    pub fn of_row(row: &[f32], need: Need) -> Self {
        let Need::Largest(most) = need else { return Self::All(row.to_vec()) };
        let mut places: Vec<usize> = (0..row.len()).collect();
        // Adding zero makes the two zeros equal, as they are to a sampler.
        let order = |a: &usize, b: &usize| (row[*b] + 0.0).total_cmp(&(row[*a] + 0.0)).then(a.cmp(b));
        if 0 < most && most < places.len() {
            places.select_nth_unstable_by(most - 1, order);
        }
        places.truncate(most);
        places.sort_unstable_by(order);
        let is_finite = row.iter().all(|logit| logit.is_finite());
        Self::Largest {
            largest: places.into_iter().map(|at| (at as u32, row[at])).collect(),
            log_sum: if is_finite { log_sum(row.iter().map(|logit| f64::from(*logit))) } else { f64::NAN },
        }
    }

    /// The whole row, where it was needed.
    pub fn into_all(self) -> Option<Vec<f32>> {
        match self {
            Self::All(row) => Some(row),
            Self::Largest { .. } => None,
        }
    }
}

/// `ln Σ exp(logits)`; −∞ without any.
pub fn log_sum(logits: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    top + logits.map(|logit| (logit - top).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_in_order_and_equal_ones_go_by_token() {
        let row = [1.0, 3.0, 3.0, -2.0, 1.0];
        let zeros = Logits::of_row(&[-0.0, 0.0], Need::Largest(1));
        assert!(matches!(zeros, Logits::Largest { largest, .. } if largest[0].0 == 0));
        let Logits::Largest { largest, log_sum } = Logits::of_row(&row, Need::Largest(4)) else {
            unreachable!("a part was asked for")
        };
        assert_eq!(largest, [(1, 3.0), (2, 3.0), (0, 1.0), (4, 1.0)]);
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        assert!((log_sum - sum.ln()).abs() < 1e-12);
        let all = Logits::of_row(&row, Need::Largest(9));
        assert!(matches!(all, Logits::Largest { largest, .. } if largest.len() == 5));
        assert_eq!(Logits::of_row(&row, Need::All).into_all().unwrap(), row);
        assert!(Need::Largest(64) < Need::All);
    }

    #[test]
    fn a_row_with_a_logit_that_is_not_finite_has_no_sum() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let found = Logits::of_row(&[0.0, bad], Need::Largest(1));
            assert!(matches!(found, Logits::Largest { log_sum, .. } if log_sum.is_nan()), "{bad}");
        }
    }
}
