//! Rows of logits, as much of them as a sampler needs: what a device lands of them and a sampler draws from.

use std::borrow::Cow;
use std::sync::Arc;

/// What is needed of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// How much of it.
    pub portion: Portion,
    /// `(token, addend)`, each token once: what its logit is changed by before a portion is taken. Tokens that the row does not
    /// have are passed over; [`MASKED`] leaves a token no share. [`Portion::All`] comes unchanged.
    pub addends: Arc<Vec<(u32, f32)>>,
}

/// How much of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Portion {
    /// So many of the largest, and the sum of all.
    Largest(usize),
    /// A token drawn from the softmax of the whole row, beside what [`Portion::Largest`] gives.
    Draw {
        /// What logits are divided by; above 0.
        temperature: f32,
        /// The random number, in [0, 1): how much of the distribution lies before the token drawn.
        uniform: f64,
        /// How many of the largest.
        largest: usize,
    },
    /// The fewest of the largest whose share of the softmax reaches `top_p`, and the weight of the whole row.
    Nucleus {
        /// What logits are divided by; above 0.
        temperature: f32,
        /// The share, of 1.
        top_p: f32,
        /// How many of the largest at least.
        largest: usize,
    },
    /// The whole row.
    All,
}

/// The addend of a token that must not be drawn. Finite, so that a row that has none of the model's infinities keeps none:
/// beside any other logit nothing is left of its weight.
pub const MASKED: f32 = f32::MIN;

impl From<Portion> for Need {
    fn from(portion: Portion) -> Self {
        Self { portion, addends: Arc::default() }
    }
}

impl Need {
    /// The whole row.
    pub fn all() -> Self {
        Portion::All.into()
    }

    /// So many of the largest, and the sum of all.
    pub fn largest(most: usize) -> Self {
        Portion::Largest(most).into()
    }

    /// What the row is changed by before it lands: a whole one comes as it is.
    pub fn changes(&self) -> &[(u32, f32)] {
        if self.portion == Portion::All { &[] } else { &self.addends }
    }

    /// What covers both needs of one row. Two different draws need the whole of it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match self.portion.and(other.portion) {
            portion if portion != Portion::All && self.addends == other.addends => Self { portion, ..self },
            _ => Self::all(),
        }
    }
}

impl Portion {
    /// The same of rows that are changed alike.
    fn and(self, other: Self) -> Self {
        let (most, more) = (self.largest(), other.largest());
        let wider = |portion: Self| portion.with_largest(most.max(more));
        match (self, other) {
            (portion, Self::Largest(_)) | (Self::Largest(_), portion) => wider(portion),
            _ if wider(self) == wider(other) => wider(self),
            _ => Self::All,
        }
    }

    /// How many of the largest are asked for.
    fn largest(self) -> usize {
        match self {
            Self::Largest(largest) | Self::Draw { largest, .. } | Self::Nucleus { largest, .. } => largest,
            Self::All => 0,
        }
    }

    fn with_largest(self, largest: usize) -> Self {
        match self {
            Self::Largest(_) => Self::Largest(largest),
            Self::Draw { temperature, uniform, .. } => Self::Draw { temperature, uniform, largest },
            Self::Nucleus { temperature, top_p, .. } => Self::Nucleus { temperature, top_p, largest },
            Self::All => Self::All,
        }
    }
}

/// Most logits that [`Portion::Largest`] is for, and among which a device looks for a nucleus first: beyond them the whole row
/// is as quick to land.
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
    /// A nucleus.
    Nucleus {
        /// As in [`Logits::Largest`]; as many as the nucleus has, or more.
        largest: Vec<(u32, f32)>,
        /// As in [`Logits::Largest`].
        log_sum: f64,
        /// `Σ exp((logits − largest) / temperature)` over the whole row.
        weight: f64,
    },
    /// The whole row as the model gave it, `[vocab]`.
    All(Vec<f32>),
}

impl Logits {
    /// What `need` asks of a row: plain, for devices whose rows lie on the host.
    pub fn of_row(row: &[f32], need: &Need) -> Self {
        let row = &changed(row, need.changes())[..];
        let is_finite = row.iter().all(|logit| logit.is_finite());
        let wide = || row.iter().map(|logit| f64::from(*logit));
        let log_sum = || if is_finite { log_sum(wide()) } else { f64::NAN };
        match need.portion {
            Portion::All => Self::All(row.to_vec()),
            Portion::Largest(most) => Self::Largest { largest: largest(row, most), log_sum: log_sum() },
            Portion::Draw { temperature, uniform, largest: most } => {
                let place = || draw(&weights(wide(), temperature), uniform);
                let drawn = is_finite.then(place).flatten().map(|at| (at as u32, row[at]));
                Self::Drawn { drawn, largest: largest(row, most), log_sum: log_sum() }
            }
            Portion::Nucleus { temperature, top_p, largest: least } => {
                let weight = weights(wide(), temperature).iter().sum();
                let few = largest(row, MOST_LARGEST.max(least));
                let largest = match nucleus_of(&few, temperature, weight, top_p) {
                    Some(count) => few[..count.max(least).min(few.len())].to_vec(),
                    None => largest(row, row.len()),
                };
                Self::Nucleus { largest, log_sum: log_sum(), weight }
            }
        }
    }

    /// The whole row, where it was needed.
    pub fn into_all(self) -> Option<Vec<f32>> {
        match self {
            Self::All(row) => Some(row),
            Self::Largest { .. } | Self::Drawn { .. } | Self::Nucleus { .. } => None,
        }
    }
}

/// A row whose logits were changed as [`Need::addends`] says, in fp32.
pub fn changed<'a>(row: &'a [f32], addends: &[(u32, f32)]) -> Cow<'a, [f32]> {
    let mut row = Cow::Borrowed(row);
    for (token, addend) in addends {
        if (*token as usize) < row.len() {
            row.to_mut()[*token as usize] += addend;
        }
    }
    row
}

/// `(token, logit)` of the largest, largest first, equal ones by token; all of them where fewer are in the row.
pub fn largest(row: &[f32], most: usize) -> Vec<(u32, f32)> {
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

/// How many of `weights`, largest first, reach a share of `top_p` of the `whole`; at least one. None where all of them do not.
pub fn nucleus(weights: &[f64], whole: f64, top_p: f32) -> Option<usize> {
    let (share, mut reached) = (whole * f64::from(top_p.max(0.0)), 0.0);
    let last = weights.iter().position(|weight| {
        reached += weight;
        reached >= share
    });
    last.map(|place| place + 1)
}

/// The same of the `largest` logits of a row whose weight is `whole`.
pub fn nucleus_of(largest: &[(u32, f32)], temperature: f32, whole: f64, top_p: f32) -> Option<usize> {
    nucleus(&weights(largest.iter().map(|(_, logit)| f64::from(*logit)), temperature), whole, top_p)
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
