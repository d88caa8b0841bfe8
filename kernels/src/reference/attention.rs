use hypic_domain::model::FullShape;

/// A full-attention layer behind its projections and norms.
pub struct Attention<'a> {
    /// Its shape.
    pub shape: FullShape,
    /// Angle per position of each rotated pair, `[rotary / 2]`.
    pub frequencies: &'a [f64],
    /// Factor on scores.
    pub scale: f64,
}

/// One token that may be attended to.
pub struct Token<'a> {
    /// Its global position.
    pub position: u32,
    /// `[kv heads, key]`, not rotated.
    pub key: &'a [f32],
    /// `[kv heads, value]`.
    pub value: &'a [f32],
}

impl Attention<'_> {
    /// Output of one row, `[heads, value]`: softmax over all tokens that are not behind `position`.
    pub fn attend(&self, query: &[f32], position: u32, tokens: &[Token<'_>]) -> Vec<f64> {
        let FullShape { heads, kv_heads, key, value, .. } = self.shape;
        let seen: Vec<_> = tokens.iter().filter(|token| token.position <= position).collect();
        let mut out = Vec::with_capacity(heads * value);
        for head in 0..heads {
            let shared = head / (heads / kv_heads);
            let q = self.rotated(&query[head * key..][..key], position);
            let score = |token: &&Token<'_>| {
                let k = self.rotated(&token.key[shared * key..][..key], token.position);
                q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() * self.scale
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let best = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - best).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..value).map(|j| {
                let weighed = |(token, weight): (&&Token<'_>, &f64)| {
                    weight * f64::from(token.value[shared * value + j])
                };
                seen.iter().zip(&weights).map(weighed).sum::<f64>() / total
            }));
        }
        out
    }

    fn rotated(&self, x: &[f32], position: u32) -> Vec<f64> {
        let mut x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let half = self.frequencies.len();
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            (x[i], x[half + i]) = (x[i] * cos - x[half + i] * sin, x[half + i] * cos + x[i] * sin);
        }
        x
    }
}
