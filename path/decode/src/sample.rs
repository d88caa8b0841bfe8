//! Drawing a token from a row of logits.
//!
//! Order of rules: bias, penalties and masks give the distribution whose log probabilities are reported;
//! temperature, top-k and top-p then narrow what is drawn from.

use std::sync::Arc;

use hypic_domain::logits::{
    Logits, MASKED, MOST_LARGEST, Need, Portion, changed, draw, log_sum, nucleus, weights,
};
use hypic_domain::sampling::Sampling;

use changes::Changes;

use crate::DecodeError;

/// The log probability reported for an impossible token: JSON has no −∞.
pub const IMPOSSIBLE: f32 = -9999.0;

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The id.
    pub id: u32,
    /// Its log probability, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens, likeliest first; as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// Draws the tokens of one choice. Its state is a function of the answer so far.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    choice: u32,
    drawn: u32,
    /// Bias and penalties.
    changes: Changes,
}

impl Sampler {
    /// A sampler that goes on behind `answered`.
    pub fn new(sampling: &Sampling, choice: u32, answered: &[u32]) -> Self {
        let changes = Changes::new(sampling);
        let mut sampler = Self { sampling: sampling.clone(), choice, drawn: 0, changes };
        for id in answered {
            sampler.accept(*id);
        }
        sampler
    }

    /// Counts `id` as the answer's next token.
    fn accept(&mut self, id: u32) {
        self.drawn += 1;
        self.changes.count(id, &self.sampling);
    }

    /// What logits are changed by: bias, penalties, and the mask of stop ids while the answer may not end yet.
    fn addends(&self) -> Arc<Vec<(u32, f32)>> {
        let is_unfinished = self.drawn < self.sampling.min_tokens.0;
        self.changes.addends(if is_unfinished { &self.sampling.stop_ids } else { &[] })
    }

    /// What [`Sampler::draw`] needs of the next row of logits.
    pub fn need(&self) -> Need {
        match self.portion() {
            Portion::All => Need::all(),
            portion => Need { portion, addends: self.addends() },
        }
    }

    fn portion(&self) -> Portion {
        let &Sampling { temperature, top_p, top_k, logprobs, .. } = &self.sampling;
        let largest = logprobs.map_or(0, |count| count as usize);
        let is_greedy = temperature <= 0.0;
        let portion = match top_k as usize {
            _ if is_greedy => Portion::Largest(largest.max(1)),
            0 if top_p < 1.0 => Portion::Nucleus { temperature, top_p, largest },
            0 => Portion::Draw { temperature, uniform: self.uniform(), largest },
            most => Portion::Largest(largest.max(most)),
        };
        let is_long = largest > MOST_LARGEST || (!is_greedy && top_k as usize > MOST_LARGEST);
        if is_long { Portion::All } else { portion }
    }

    /// Draws the answer's next token from a row of logits, of which at least [`Sampler::need`] is there. What is drawn
    /// does not depend on how much there is.
    ///
    /// # Errors
    /// A logit that is no number, a row with less than is needed, or nothing left to draw from.
    pub fn draw(&mut self, logits: &Logits) -> Result<Draw, DecodeError> {
        let draw = match (logits, self.portion()) {
            (Logits::Drawn { drawn, largest, log_sum }, Portion::Draw { .. }) => {
                self.drawn(*drawn, largest, *log_sum)?
            }
            _ => self.draw_here(logits)?,
        };
        self.accept(draw.id);
        Ok(draw)
    }

    /// What was drawn where the row is.
    fn drawn(
        &self,
        drawn: Option<(u32, f32)>,
        largest: &[(u32, f32)],
        log_sum: f64,
    ) -> Result<Draw, DecodeError> {
        let Some((id, logit)) = drawn else {
            // An empty row has a sum, of nothing.
            return Err(if log_sum.is_nan() { DecodeError::ReadLogits } else { DecodeError::DrawToken });
        };
        if logit <= MASKED {
            return Err(DecodeError::DrawToken);
        }
        let reported = self.sampling.logprobs.map(|count| count as usize);
        let logprob = |logit: f32| finite(f64::from(logit) - log_sum);
        let top = largest.iter().take(reported.unwrap_or(0));
        Ok(Draw {
            id,
            logprob: reported.map(|_| logprob(logit)),
            top: top.map(|(id, logit)| (*id, logprob(*logit))).collect(),
        })
    }

    /// Draws from the row or its largest.
    fn draw_here(&self, logits: &Logits) -> Result<Draw, DecodeError> {
        let places = self.places(logits)?;
        let values = &places.values;
        let best = argmax(values).ok_or(DecodeError::DrawToken)?;
        let chosen = if self.sampling.temperature <= 0.0 { best } else { self.draw_from(&places) };
        let id = places.token(chosen);
        let (logprob, top) = match self.sampling.logprobs {
            None => (None, Vec::new()),
            Some(count) => {
                let normaliser = places.log_sum.unwrap_or_else(|| log_sum(values.iter().copied()));
                let logprob = |place: usize| finite(values[place] - normaliser);
                let top = ranked(values, count as usize);
                (Some(logprob(chosen)), top.into_iter().map(|at| (places.token(at), logprob(at))).collect())
            }
        };
        Ok(Draw { id, logprob, top })
    }

    /// What is drawn from: logits as they were changed.
    fn places<'a>(&self, logits: &'a Logits) -> Result<Places<'a>, DecodeError> {
        let (largest, log_sum, weight) = match (logits, self.portion()) {
            (Logits::All(row), _) => return self.places_of_row(row),
            (
                Logits::Largest { largest, log_sum }
                | Logits::Drawn { largest, log_sum, .. }
                | Logits::Nucleus { largest, log_sum, .. },
                Portion::Largest(_),
            ) => (largest, *log_sum, None),
            (Logits::Nucleus { largest, log_sum, weight }, Portion::Nucleus { .. }) => {
                (largest, *log_sum, Some(*weight))
            }
            _ => return Err(DecodeError::FindLogits { needed: self.need() }),
        };
        if !log_sum.is_finite() {
            // An empty row has no sum either, and is no fault of a logit.
            return Err(if largest.is_empty() { DecodeError::DrawToken } else { DecodeError::ReadLogits });
        }
        let values = largest.iter().map(|(_, logit)| wide(*logit)).collect();
        Ok(Places { values, tokens: Some(largest), log_sum: Some(log_sum), weight })
    }

    /// The same of a whole row, which comes unchanged.
    fn places_of_row(&self, row: &[f32]) -> Result<Places<'static>, DecodeError> {
        let row = changed(row, &self.addends());
        if row.iter().any(|logit| !logit.is_finite()) {
            return Err(DecodeError::ReadLogits);
        }
        let values = row.iter().map(|logit| wide(*logit)).collect();
        Ok(Places { values, tokens: None, log_sum: None, weight: None })
    }

    /// Draws by temperature, top-k and top-p. At least one logit is finite.
    fn draw_from(&self, of: &Places<'_>) -> usize {
        let sampling = &self.sampling;
        let logits = &of.values;
        let narrowed = sampling.top_k > 0 || sampling.top_p < 1.0;
        let places: Vec<usize> = if narrowed {
            let kept = if sampling.top_k > 0 { sampling.top_k as usize } else { logits.len() };
            ranked(logits, kept)
        } else {
            (0..logits.len()).collect()
        };
        let mut weights = self.weights(places.iter().map(|at| logits[*at]));
        if sampling.top_p < 1.0 {
            let whole = match of.weight {
                Some(weight) => weight,
                // Added up in the order of tokens, as where only the nucleus lands.
                None if sampling.top_k == 0 => self.weights(logits.iter().copied()).iter().sum(),
                None => weights.iter().sum(),
            };
            weights.truncate(nucleus(&weights, whole, sampling.top_p).unwrap_or(weights.len()));
        }
        places[draw(&weights, self.uniform()).unwrap_or(0)]
    }

    fn weights(&self, logits: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
        weights(logits, self.sampling.temperature)
    }

    /// The random number of the next token.
    fn uniform(&self) -> f64 {
        uniform(self.sampling.seed, self.choice, self.drawn)
    }
}

/// What is drawn from: the row, or its largest.
struct Places<'a> {
    /// Logits.
    values: Vec<f64>,
    /// Whose they are, if they are not the row.
    tokens: Option<&'a [(u32, f32)]>,
    /// `ln Σ exp` of the row, if they are not the row.
    log_sum: Option<f64>,
    /// `Σ exp((logits − largest) / temperature)` of the row, if they are its nucleus.
    weight: Option<f64>,
}

impl Places<'_> {
    fn token(&self, place: usize) -> u32 {
        self.tokens.and_then(|tokens| tokens.get(place)).map_or(place as u32, |(id, _)| *id)
    }
}

/// In f64; masked tokens are impossible. Adding zero makes the two zeros equal.
fn wide(logit: f32) -> f64 {
    if logit <= MASKED { f64::NEG_INFINITY } else { f64::from(logit) + 0.0 }
}

fn finite(logprob: f64) -> f32 {
    (logprob as f32).max(IMPOSSIBLE)
}

/// The first place of the largest logit that is not −∞.
fn argmax(logits: &[f64]) -> Option<usize> {
    let mut best = None;
    for (place, logit) in logits.iter().enumerate() {
        if *logit > best.map_or(f64::NEG_INFINITY, |at: usize| logits[at]) {
            best = Some(place);
        }
    }
    best
}

/// The places of the `count` largest logits, largest first, equal ones by place.
fn ranked(logits: &[f64], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..logits.len()).collect();
    let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let count = count.min(places.len());
    if 0 < count && count < places.len() {
        places.select_nth_unstable_by(count - 1, order);
    }
    places.truncate(count);
    places.sort_unstable_by(order);
    places
}

/// A number in [0, 1) that depends on nothing but its place: the finaliser of splitmix64 (Steele, Lea and
/// Flood, OOPSLA 2014), once over each part of the place.
fn uniform(seed: u64, choice: u32, index: u32) -> f64 {
    let mix = |state: u64| {
        let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = mix(mix(mix(seed) ^ u64::from(choice)) ^ u64::from(index));
    // The upper 53 bits are a double's mantissa.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

mod changes;
#[cfg(test)]
mod tests;
