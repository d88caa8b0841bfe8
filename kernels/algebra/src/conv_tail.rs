//! The short causal convolution in front of a linear layer, and the tail by which it is continued.

/// The last `rows` raw inputs after `inputs` `[n, channels]` have followed `tail` `[rows, channels]`.
///
/// A sequence begins with a tail of zeros, which is what the convolution's left padding is.
pub fn advance(tail: &[f64], inputs: &[f64]) -> Vec<f64> {
    let history = [tail, inputs].concat();
    history[history.len() - tail.len()..].to_vec()
}

/// Depthwise causal convolution of `inputs` `[n, channels]` behind `tail` `[taps - 1, channels]`.
///
/// `weights` is `[channels, taps]`, newest tap last: `y_t = Σ_j w_j x_{t - (taps - 1) + j}`. Returns
/// `[n, channels]`, before any activation.
pub fn convolve(tail: &[f64], inputs: &[f64], weights: &[f64], channels: usize) -> Vec<f64> {
    let taps = weights.len() / channels;
    let history = [tail, inputs].concat();
    let mut out = vec![0.0; inputs.len()];
    for (t, row) in out.chunks_exact_mut(channels).enumerate() {
        for (channel, y) in row.iter_mut().enumerate() {
            let taps_of = &weights[channel * taps..][..taps];
            *y = taps_of.iter().enumerate().map(|(j, w)| w * history[(t + j) * channels + channel]).sum();
        }
    }
    out
}
