use crate::op::{ExpertShape, NormWeight};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x W^T`: `[rows, out]` from `[rows, in]` and `[out, in]`.
pub fn linear(x: &[f32], weight: &[f32], inner: usize) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
    x.chunks_exact(inner).flat_map(|x| weight.chunks_exact(inner).map(move |w| dot(x, w))).collect()
}

/// RMS norm over groups as wide as the weight.
pub fn rms_norm(x: &[f32], weight: &[f32], style: NormWeight, eps: f32) -> Vec<f64> {
    let centre = if style == NormWeight::ZeroCentred { 1.0 } else { 0.0 };
    let group = |x: &[f32]| {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = (squares / x.len() as f64 + f64::from(eps)).sqrt().recip();
        x.iter()
            .zip(weight)
            .map(|(&x, &w)| f64::from(x) * scale * (centre + f64::from(w)))
            .collect::<Vec<_>>()
    };
    x.chunks_exact(weight.len()).flat_map(group).collect()
}

/// `rms_norm(x) * silu(gate)`, plain weight.
pub fn gated_norm(x: &[f32], gate: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let normed = rms_norm(x, weight, NormWeight::Plain, eps);
    let gates = gate.iter().map(|&gate| f64::from(gate) * sigmoid(f64::from(gate)));
    normed.into_iter().zip(gates).map(|(x, gate)| x * gate).collect()
}

/// `silu(x[.., :n]) * x[.., n:]`.
pub fn swiglu(x: &[f32], n: usize) -> Vec<f64> {
    let row = |x: &[f32]| {
        let (gate, up) = x.split_at(n);
        let silu = |x: f32| f64::from(x) * sigmoid(f64::from(x));
        gate.iter().zip(up).map(|(&gate, &up)| silu(gate) * f64::from(up)).collect::<Vec<_>>()
    };
    x.chunks_exact(2 * n).flat_map(row).collect()
}

/// The mixture of experts: `[rows, hidden]` from weights `[experts, hidden]`, `[experts, 2 intermediate, hidden]` and
/// `[experts, hidden, intermediate]`.
pub fn experts(x: &[f32], hidden: usize, shape: ExpertShape, weights: [&[f32]; 3]) -> Vec<f64> {
    let [router, gate_up, down] = weights;
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let times = |x: &[f64], weight: &[f32]| -> Vec<f64> {
        let dot = |w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum();
        weight.chunks_exact(x.len()).map(dot).collect()
    };
    let row = |x: &[f32]| {
        let x = wide(x);
        let shares: Vec<f64> = times(&x, router).into_iter().map(f64::exp).collect();
        let mut order: Vec<usize> = (0..shape.experts).collect();
        order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
        order.truncate(shape.top);
        let all: f64 = match shape.renormalise {
            true => order.iter().map(|&expert| shares[expert]).sum(),
            false => shares.iter().sum(),
        };
        let mut out = vec![0.0; hidden];
        for expert in order {
            let size = 2 * shape.intermediate * hidden;
            let both = times(&x, &gate_up[expert * size..][..size]);
            let (gate, up) = both.split_at(shape.intermediate);
            let inner: Vec<f64> = gate.iter().zip(up).map(|(&gate, up)| gate * sigmoid(gate) * up).collect();
            let said = times(&inner, &down[expert * size / 2..][..size / 2]);
            out.iter_mut().zip(said).for_each(|(out, said)| *out += shares[expert] / all * said);
        }
        out
    };
    x.chunks_exact(hidden).flat_map(row).collect()
}
