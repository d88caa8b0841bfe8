use half::bf16;
use hypic_cuda::{Buffer, ConvWarm, Device, RawRow, Shape, Span, TAPS, bounds, conv_warm};
use rand::RngExt;

use crate::run::{LENGTHS, assert_close, on_devices};
use crate::truth::{fresh, normal};

const SHAPE: Shape = Shape { heads: 2, key_heads: 1, width: 64 };
const CHANNELS: usize = 4 * SHAPE.width;

/// Queries, keys and values of spans, each with the rows of `left` from the given one on before it, if any.
fn run(
    device: &Device,
    x: &[bf16],
    taps: &[f32],
    spans: &[(usize, Option<usize>)],
    left: &[bf16],
) -> [Vec<bf16>; 3] {
    let nan = |len: usize| Buffer::from_slice(device, &vec![bf16::NAN; len]).unwrap();
    let rows = x.len() / CHANNELS;
    let mut out = [1, 1, 2].map(|heads| nan(rows * heads * SHAPE.width));
    let left = Buffer::from_slice(device, left).unwrap();
    let before = |first: usize| std::array::from_fn(|row| RawRow::At(&left, (first + row) * CHANNELS));
    let spans: Vec<Span<'_, bf16>> = spans
        .iter()
        .map(|&(rows, first)| Span { rows, left: first.map_or([RawRow::Zeros; TAPS - 1], before) })
        .collect();
    let [q, k, v] = &mut out;
    let conv = ConvWarm {
        shape: SHAPE,
        x: &Buffer::from_slice(device, x).unwrap(),
        taps: &Buffer::from_slice(device, taps).unwrap(),
        spans: &spans,
        q,
        k,
        v,
    };
    conv_warm(device, conv).unwrap();
    out.map(|buffer| buffer.read().unwrap())
}

fn random() -> (Vec<bf16>, Vec<f32>) {
    let mut rng = fresh();
    let rows: usize = LENGTHS.iter().sum();
    let x = (0..rows * CHANNELS).map(|_| bf16::from_f32(normal(&mut rng))).collect();
    (x, (0..CHANNELS * TAPS).map(|_| rng.random_range(-0.5..0.5)).collect())
}

/// The convolution of one row, in f64; `at` gives raw inputs by row and channel.
fn row(taps: &[f32], t: isize, at: impl Fn(isize, usize) -> f64) -> Vec<f64> {
    let channel = |c: usize| {
        let tap = |tap: usize| f64::from(taps[c * TAPS + tap]) * at(t + tap as isize + 1 - TAPS as isize, c);
        let sum: f64 = (0..TAPS).map(tap).sum();
        sum / (1.0 + (-sum).exp())
    };
    (0..CHANNELS).map(channel).collect()
}

fn unit(x: &[f64], scale: f64) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x * scale / length).collect()
}

fn bits(parts: &[Vec<bf16>]) -> Vec<u16> {
    parts.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn outputs_equal_f64_at_every_length() {
    let (x, taps) = random();
    let wide = |row: usize, c: usize| f64::from(x[row * CHANNELS + c].to_f32());
    let mut expected = [const { Vec::new() }; 3];
    let mut first = 0;
    for length in LENGTHS {
        for t in 0..length as isize {
            let y = row(&taps, t, |t, c| if t < 0 { 0.0 } else { wide(first + t as usize, c) });
            expected[0].extend(unit(&y[..64], 0.125));
            expected[1].extend(unit(&y[64..128], 1.0));
            expected[2].extend(&y[128..]);
        }
        first += length;
    }
    on_devices(|device| {
        let found = run(device, &x, &taps, &LENGTHS.map(|rows| (rows, None)), &[]);
        for (found, expected) in found.iter().zip(&expected) {
            assert_close("conv", found.iter().map(|x| x.to_f32()), expected, bounds::BF16);
        }
        bits(&found)
    });
}

#[test]
fn a_cut_sequence_continues_from_the_rows_before_it_bit_for_bit() {
    let (x, taps) = random();
    let whole = 200;
    let x = &x[..whole * CHANNELS];
    on_devices(|device| {
        let expected = run(device, x, &taps, &[(whole, None)], &[]);
        for cut in [3, 64, 199, 200] {
            let spans = [(cut, None), (whole - cut, Some(cut - (TAPS - 1)))];
            assert!(run(device, x, &taps, &spans, x) == expected, "outputs differ when cut at {cut}");
        }
        bits(&expected)
    });
}
