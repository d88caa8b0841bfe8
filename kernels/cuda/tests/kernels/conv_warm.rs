use half::bf16;
use hypic_cuda::{Buffer, ConvWarm, Device, Sequence, Sequences, TAPS, bounds, conv_warm};
use rand::RngExt;

use crate::run::{LENGTHS, assert_close, on_devices};
use crate::truth::{fresh, normal};

const CHANNELS: usize = 130;

fn run(
    device: &Device,
    x: &[bf16],
    weight: &[f32],
    lengths: &[usize],
    tail_of: &[i32],
    tails: &[bf16],
) -> [Vec<bf16>; 2] {
    let list: Vec<Sequence> =
        lengths.iter().map(|&rows| Sequence { rows, before_body: 0, fresh: true }).collect();
    let nan = |len: usize| Buffer::from_slice(device, &vec![bf16::NAN; len]).unwrap();
    let (mut y, mut next_tail) = (nan(x.len()), nan(lengths.len() * (TAPS - 1) * CHANNELS));
    let conv = ConvWarm {
        x: &Buffer::from_slice(device, x).unwrap(),
        weight: &Buffer::from_slice(device, weight).unwrap(),
        sequences: &Sequences::new(device, &list).unwrap(),
        tail_of,
        tails: &Buffer::from_slice(device, tails).unwrap(),
        y: &mut y,
        next_tail: &mut next_tail,
    };
    conv_warm(device, conv).unwrap();
    [y.read().unwrap(), next_tail.read().unwrap()]
}

fn random() -> (Vec<bf16>, Vec<f32>) {
    let mut rng = fresh();
    let rows: usize = LENGTHS.iter().sum();
    let x = (0..rows * CHANNELS).map(|_| bf16::from_f32(normal(&mut rng))).collect();
    (x, (0..CHANNELS * TAPS).map(|_| rng.random_range(-0.5..0.5)).collect())
}

#[test]
fn outputs_equal_f64_at_every_length() {
    let (x, weight) = random();
    let mut expected = Vec::new();
    let mut first = 0;
    for length in LENGTHS {
        for t in 0..length {
            for c in 0..CHANNELS {
                let sum: f64 = (0..TAPS)
                    .filter(|tap| t + tap + 1 >= TAPS)
                    .map(|tap| {
                        let row = first + t + tap + 1 - TAPS;
                        f64::from(weight[c * TAPS + tap]) * f64::from(x[row * CHANNELS + c].to_f32())
                    })
                    .sum();
                expected.push(sum / (1.0 + (-sum).exp()));
            }
        }
        first += length;
    }
    on_devices(|device| {
        let [y, tail] = run(device, &x, &weight, &LENGTHS, &[-1; 6], &[]);
        assert_close("conv", y.iter().map(|x| x.to_f32()), &expected, bounds::BF16);
        (
            y.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            tail.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        )
    });
}

#[test]
fn a_cut_sequence_continues_from_its_tail_bit_for_bit() {
    let (x, weight) = random();
    let whole = 200;
    let x = &x[..whole * CHANNELS];
    on_devices(|device| {
        let [expected, last] = run(device, x, &weight, &[whole], &[-1], &[]);
        for cut in [0, 1, 2, 3, 64, 199, 200] {
            let [mut y, tail] = run(device, &x[..cut * CHANNELS], &weight, &[cut], &[-1], &[]);
            let [rest, end] = run(device, &x[cut * CHANNELS..], &weight, &[whole - cut], &[0], &tail);
            y.extend(rest);
            assert!(y == expected, "outputs differ when cut at {cut}");
            assert!(end == last, "the tail differs when cut at {cut}");
        }
    });
}
