//! Rows of logits, as much of them as a sampler needs: what a device lands of them and a sampler draws from.

/// What is needed of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// So many of the largest, and the sum of all.
    Largest(usize),
    /// A token drawn from the softmax of the whole row, beside what [`Need::Largest`] gives.
    Draw {
        /// What logits are divided by; above 0.
        temperature: f32,
        /// The random number, in [0, 1): how much of the distribution lies before the token drawn.
        uniform: f64,
        /// How many of the largest.
        largest: usize,
    },
    /// The whole row.
    All,
}

impl Need {
    /// What covers both needs of one row. Two different draws need the whole of it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Largest(most), Self::Largest(more)) => Self::Largest(most.max(more)),
            (Self::Draw { temperature, uniform, largest: most }, Self::Largest(more))
            | (Self::Largest(more), Self::Draw { temperature, uniform, largest: most }) => {
                Self::Draw { temperature, uniform, largest: most.max(more) }
            }
            (Self::Draw { temperature, uniform, largest: most }, Self::Draw { largest: more, .. })
                if other == (Self::Draw { temperature, uniform, largest: more }) =>
            {
                Self::Draw { temperature, uniform, largest: most.max(more) }
            }
            _ => Self::All,
        }
    }
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
    /// The token that was drawn, and the largest.
    Drawn {
        /// `(token, logit)`; none where the row is empty or a logit is not finite.
        drawn: Option<(u32, f32)>,
        /// As in [`Logits::Largest`].
        largest: Vec<(u32, f32)>,
        /// As in [`Logits::Largest`].
        log_sum: f64,
    },
    /// The whole row, `[vocab]`.
    All(Vec<f32>),
}

impl Logits {
    /// What `need` asks of a row: plain, for devices whose rows lie on the host.
    pub fn of_row(row: &[f32], need: Need) -> Self {
        let is_finite = row.iter().all(|logit| logit.is_finite());
        let wide = || row.iter().map(|logit| f64::from(*logit));
        let log_sum = || if is_finite { log_sum(wide()) } else { f64::NAN };
        match need {
            Need::All => Self::All(row.to_vec()),
            Need::Largest(most) => Self::Largest { largest: largest(row, most), log_sum: log_sum() },
            Need::Draw { temperature, uniform, largest: most } => {
                let place = || draw(&weights(wide(), temperature), uniform);
                let drawn = is_finite.then(place).flatten().map(|at| (at as u32, row[at]));
                Self::Drawn { drawn, largest: largest(row, most), log_sum: log_sum() }
            }
        }
    }

    /// The whole row, where it was needed.
    pub fn into_all(self) -> Option<Vec<f32>> {
        match self {
            Self::All(row) => Some(row),
            Self::Largest { .. } | Self::Drawn { .. } => None,
        }
    }
}

/// `(token, logit)` of the largest, largest first, equal ones by token; all of them where fewer are in the row.
fn largest(row: &[f32], most: usize) -> Vec<(u32, f32)> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    // Adding zero makes the two zeros equal, as they are to a sampler.
    let order = |a: &usize, b: &usize| (row[*b] + 0.0).total_cmp(&(row[*a] + 0.0)).then(a.cmp(b));
    if 0 < most && most < places.len() {
        places.select_nth_unstable_by(most - 1, order);
    }
    places.truncate(most);
    places.sort_unstable_by(order);
    places.into_iter().map(|at| (at as u32, row[at])).collect()
}

/// `exp((logits − largest) / temperature)`: each logit's share of the softmax, times what the largest has of 1.
pub fn weights(logits: impl Iterator<Item = f64> + Clone, temperature: f32) -> Vec<f64> {
    let (top, temperature) = (logits.clone().fold(f64::NEG_INFINITY, f64::max), f64::from(temperature));
    logits.map(|logit| ((logit - top) / temperature).exp()).collect()
}

/// The place in `weights` before which `uniform` of their sum lies; none if none is above 0.
/// The inverse of the distribution function, in order; places without weight are passed over.
pub fn draw(weights: &[f64], uniform: f64) -> Option<usize> {
    let mut left = uniform * weights.iter().sum::<f64>();
    let mut last = None;
    for (place, share) in weights.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        last = Some(place);
        left -= share;
        if left < 0.0 {
            break;
        }
    }
    // Rounding may leave a rest behind the last.
    last
}

/// `ln Σ exp(logits)`; −∞ without any.
pub fn log_sum(logits: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    top + logits.map(|logit| (logit - top).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests;
