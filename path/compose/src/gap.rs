//! How far an answer is from the one of a full prefill.

/// KL(reference ‖ other) in nats of the distributions that two rows of logits `[vocab]` stand for.
pub fn kl(reference: &[f32], other: &[f32]) -> f64 {
    let (p, q) = (log_normaliser(reference), log_normaliser(other));
    let sum: f64 = reference
        .iter()
        .zip(other)
        .map(|(a, b)| (f64::from(*a) - p, f64::from(*b) - q))
        .filter(|(log_p, _)| *log_p > f64::NEG_INFINITY)
        .map(|(log_p, log_q)| log_p.exp() * (log_p - log_q))
        .sum();
    // Rounding may leave a tiny negative number, which no divergence is.
    sum.max(0.0)
}

/// `ln Σ exp(logits)`.
fn log_normaliser(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    top + logits.iter().map(|logit| (f64::from(*logit) - top).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_no_distance_from_itself_moved_by_a_constant() {
        assert!(kl(&[1.0, 2.0, -3.0], &[11.0, 12.0, 7.0]) < 1e-12);
    }

    #[test]
    fn two_coins_have_the_textbook_distance() {
        let (p, q) = (0.25f64, 0.5f64);
        let row = |share: f64| [share.ln() as f32, (1.0 - share).ln() as f32];
        let expected = p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln();
        assert!((kl(&row(p), &row(q)) - expected).abs() < 1e-7);
    }

    #[test]
    fn an_impossible_token_adds_nothing() {
        assert!(kl(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]) < 1e-12);
    }
}
