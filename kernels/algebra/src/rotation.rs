//! Moving a summary along the sequence where keys are rotated by position (Ring).
//!
//! With a scalar decay, rotating every key by `R(p)` rotates the state: `S_p = R(p) S_0`, and `T` commutes with
//! rotations, so it stays. Under a delta rule `T` would have to become `R T R^T`; no released model needs it.

/// Angles of the channel pairs at position `start`: `start · base^(-2 i / rotary)`, `[rotary / 2]`.
pub fn angles(start: u64, base: f64, rotary: usize) -> Vec<f64> {
    (0..rotary / 2).map(|i| start as f64 * base.powf(-2.0 * i as f64 / rotary as f64)).collect()
}

/// Rotates the key axis of `matrix` `[key, columns]` in place: row `i` and row `i + rotary / 2` form a pair,
/// where `rotary = 2 · angles.len()`; rows from `rotary` on stay. A key is the case of one column.
pub fn rotate_keys(matrix: &mut [f64], columns: usize, angles: &[f64]) {
    let (first, rest) = matrix.split_at_mut(angles.len() * columns);
    let pairs = first.chunks_exact_mut(columns).zip(rest.chunks_exact_mut(columns));
    for ((low, high), angle) in pairs.zip(angles) {
        let (sin, cos) = angle.sin_cos();
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
