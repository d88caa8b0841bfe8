use hypic_cuda::{Buffer, Change, Device, Draw, bounds, change_logits, draw_logits, top_logits};
use hypic_domain::logits::{MASKED, changed, draw, weights};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::run::on_devices;
use crate::truth::{fresh, normal};

/// Token, logit and the weight of the row.
fn drawn(device: &Device, logits: &[f32], width: usize, draws: &[Draw]) -> Vec<(u32, f32, f64)> {
    let logits = Buffer::from_slice(device, logits).unwrap();
    let top = top_logits(device, &logits, width, 1).unwrap();
    let found = draw_logits(device, &logits, width, &top, draws).unwrap();
    let (tokens, values) = (found.tokens.read().unwrap(), found.values.read().unwrap());
    let found = tokens.into_iter().zip(values).zip(found.weights.read().unwrap());
    found.map(|((token, value), weight)| (token, value, weight)).collect()
}

/// Peaked and flat rows, with ties and tokens of no share at all; `[rows, width]`.
fn random(rng: &mut StdRng, rows: usize, width: usize) -> Vec<f32> {
    let row = |number: usize| match number % 4 {
        0 => (0..width).map(|_| normal(rng)).collect::<Vec<f32>>(),
        1 => (0..width).map(|_| rng.random_range(-8..8) as f32 / 4.0).collect(),
        2 => vec![-0.0; width],
        _ => (0..width).map(|_| if rng.random_range(0..7) == 0 { 3.0 } else { -1e4 }).collect(),
    };
    (0..rows).flat_map(row).collect()
}

/// The draw's token must be the host's, or its neighbour over a boundary that is as near as rounding.
fn assert_drawn(row: &[f32], by: Draw, (token, logit, whole): (u32, f32, f64)) {
    assert_eq!(logit.to_bits(), row[token as usize].to_bits(), "{by:?}");
    let weights = weights(row.iter().map(|logit| f64::from(*logit)), by.temperature);
    let sum: f64 = weights.iter().sum();
    assert!((whole - sum).abs() <= bounds::DRAW_BOUNDARY * sum, "{by:?}: {whole} for {sum}");
    let right = draw(&weights, by.uniform).unwrap();
    if right == token as usize {
        return;
    }
    let (first, last) = (right.min(token as usize), right.max(token as usize));
    let before: f64 = weights[..=first].iter().sum();
    let between: f64 = weights[first + 1..last].iter().sum();
    let near = |boundary: f64| (boundary - by.uniform * sum).abs() <= bounds::DRAW_BOUNDARY * sum;
    assert!(
        weights[token as usize] > 0.0 && near(before) && near(before + between),
        "{by:?}: {token} for {right}"
    );
}

#[test]
fn draws_equal_those_of_the_host() {
    let mut rng = fresh();
    for (rows, width) in [(4, 1), (8, 37), (5, 2048), (5, 2049), (4, 5000), (2, 100_003)] {
        let logits = random(&mut rng, rows, width);
        let mut draws = Vec::new();
        for row in 0..rows {
            for uniform in [0.0, 1.0f64.next_down(), 0.5, rng.random(), rng.random()] {
                let temperature = rng.random_range(0.05f32.ln()..2f32.ln()).exp();
                draws.push(Draw { row, temperature, uniform });
            }
        }
        on_devices(|device| {
            let found = drawn(device, &logits, width, &draws);
            assert_eq!(found.len(), draws.len());
            for (by, found) in draws.iter().zip(&found) {
                assert_drawn(&logits[by.row * width..][..width], *by, *found);
            }
            found
                .into_iter()
                .map(|(token, logit, weight)| (token, logit.to_bits(), weight.to_bits()))
                .collect::<Vec<_>>()
        });
    }
}

#[test]
fn a_row_gives_the_same_token_whatever_else_is_drawn() {
    let mut rng = fresh();
    let (rows, width) = (3, 4097);
    let logits = random(&mut rng, rows, width);
    let draws: Vec<Draw> =
        (0..rows).rev().map(|row| Draw { row, temperature: 0.9, uniform: rng.random() }).collect();
    on_devices(|device| {
        let together = drawn(device, &logits, width, &draws);
        for (draw, found) in draws.iter().zip(&together) {
            let alone =
                drawn(device, &logits[draw.row * width..][..width], width, &[Draw { row: 0, ..*draw }]);
            assert_eq!(alone, [*found]);
        }
    });
}

#[test]
fn a_row_without_a_sum_gives_some_token_and_a_wrong_draw_an_error() {
    let mut rng = fresh();
    let width = 3000;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits: Vec<f32> = (0..width).map(|_| normal(&mut rng)).collect();
        logits[rng.random_range(0..width)] = bad;
        let right = Draw { row: 0, temperature: 1.0, uniform: rng.random() };
        on_devices(|device| {
            let (token, ..) = drawn(device, &logits, width, &[right])[0];
            assert!((token as usize) < width);
            let logits = Buffer::from_slice(device, &logits).unwrap();
            let top = top_logits(device, &logits, width, 1).unwrap();
            for wrong in [
                Draw { row: 1, ..right },
                Draw { temperature: 0.0, ..right },
                Draw { temperature: f32::NAN, ..right },
                Draw { uniform: 1.0, ..right },
                Draw { uniform: f64::NAN, ..right },
            ] {
                let error = draw_logits(device, &logits, width, &top, &[wrong]).err().unwrap();
                assert!(error.to_string().starts_with("a draw must be from one of 1 rows"), "{error}");
            }
            assert!(draw_logits(device, &logits, width - 1, &top, &[right]).is_err());
        });
    }
}

#[test]
fn changes_add_to_their_logits_and_to_no_other() {
    let mut rng = fresh();
    for (rows, width) in [(1, 1), (3, 37), (2, 5000)] {
        let logits = random(&mut rng, rows, width);
        // Every third token of every other row, and tokens that no row has.
        let tokens = (0..width as u32 + 9).step_by(3).chain([u32::MAX]);
        let addends = tokens.map(|token| (token, if token % 2 == 0 { normal(&mut rng) } else { MASKED }));
        let addends: Vec<(u32, f32)> = addends.collect();
        let of_row = |row: u32| addends.iter().map(move |&(token, addend)| Change { row, token, addend });
        let changes: Vec<Change> = (0..rows as u32).step_by(2).flat_map(of_row).collect();
        let right: Vec<f32> = (logits.chunks_exact(width).enumerate())
            .flat_map(|(row, logits)| changed(logits, if row % 2 == 0 { &addends } else { &[] }).to_vec())
            .collect();
        on_devices(|device| {
            let mut found = Buffer::from_slice(device, &logits).unwrap();
            change_logits(device, &mut found, width, &changes).unwrap();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let found_bits = bits(&found.read().unwrap());
            assert_eq!(found_bits, bits(&right));
            change_logits(device, &mut found, width, &[]).unwrap();
            let beyond = Change { row: rows as u32, token: 0, addend: 1.0 };
            assert!(change_logits(device, &mut found, width, &[beyond]).is_err());
            found_bits
        });
    }
}
