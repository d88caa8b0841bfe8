//! The four loops that all families are made of. Matrices are row-major slices, rows are key channels.

/// `X <- a X`.
pub(crate) fn scale(matrix: &mut [f64], factor: f64) {
    for x in matrix {
        *x *= factor;
    }
}

/// `X <- diag(exp g) X` for `X` `[key, columns]`.
pub(crate) fn decay_rows(matrix: &mut [f64], columns: usize, gate: &[f64]) {
    for (row, g) in matrix.chunks_exact_mut(columns).zip(gate) {
        scale(row, g.exp());
    }
}

/// `X <- (I - b k k^T) X` for `X` `[key, columns]`.
pub(crate) fn reflect(matrix: &mut [f64], columns: usize, key: &[f64], beta: f64) {
    let mut read = vec![0.0; columns];
    for (row, k) in matrix.chunks_exact(columns).zip(key) {
        for (sum, x) in read.iter_mut().zip(row) {
            *sum += k * x;
        }
    }
    for (row, k) in matrix.chunks_exact_mut(columns).zip(key) {
        for (x, sum) in row.iter_mut().zip(&read) {
            *x -= beta * k * sum;
        }
    }
}

/// `S <- S + b k v^T` for `S` `[key, value]`.
pub(crate) fn add_outer(state: &mut [f64], key: &[f64], value: &[f64], beta: f64) {
    for (row, k) in state.chunks_exact_mut(value.len()).zip(key) {
        for (s, v) in row.iter_mut().zip(value) {
            *s += beta * k * v;
        }
    }
}

/// `A B` for `A` `[rows, inner]` and `B` `[inner, columns]`.
pub(crate) fn product(a: &[f64], b: &[f64], inner: usize, columns: usize) -> Vec<f64> {
    let mut out = vec![0.0; a.len() / inner * columns];
    for (row, a_row) in out.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        for (b_row, a) in b.chunks_exact(columns).zip(a_row) {
            for (x, b) in row.iter_mut().zip(b_row) {
                *x += a * b;
            }
        }
    }
    out
}
