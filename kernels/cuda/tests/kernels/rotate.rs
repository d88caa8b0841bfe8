use hypic_cuda::{Buffer, bounds, state_rotate};

use crate::run::{assert_close, bits, on_devices};
use crate::truth::{fresh, normal};

#[test]
fn a_state_moves_to_far_positions_without_drift() {
    let mut rng = fresh();
    let (width, half) = (64, 16);
    let positions = [0u64, 1, 32_768, 250_000];
    let frequencies: Vec<f64> = (0..half).map(|i| 1e4f64.powf(-(i as f64) / half as f64)).collect();
    let start: Vec<f32> = (0..positions.len() * width * width).map(|_| normal(&mut rng)).collect();
    let mut expected: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
    for (state, &position) in expected.chunks_mut(width * width).zip(&positions) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            for c in 0..width {
                let (x, y) = (state[i * width + c], state[(i + half) * width + c]);
                state[i * width + c] = x * cosine - y * sine;
                state[(i + half) * width + c] = y * cosine + x * sine;
            }
        }
    }
    on_devices(|device| {
        let mut state = Buffer::from_slice(device, &start).unwrap();
        state_rotate(device, &mut state, width, &positions, &frequencies).unwrap();
        let state = state.read().unwrap();
        assert_close("rotated", state.iter().copied(), &expected, bounds::ELEMENTWISE);
        bits(&state)
    });
}
