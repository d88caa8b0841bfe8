//! The forms for few rows against f64, and against themselves: a row's bits do not depend on the others.

use half::bf16;
use hypic_cuda::{
    Buffer, Choice, Device, ExpertWeights, Experts, ExpertsFew, RmsNorm, add_norm, add_rows, bounds,
    experts_few, rms_norm,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::codes::{BLOCKS, Placed, Weight, products_equal_f64};
use crate::run::{assert_close, bits, on_devices};
use crate::truth::{fresh, normal, random};

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|x| f64::from(x.to_f32())).collect()
}

fn narrow(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

fn times(x: &[f64], weight: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum()).collect()
}

#[test]
fn products_of_few_rows_equal_f64_whatever_the_other_rows_are() {
    for (rows, inner, outers) in
        [(1, 32, vec![1]), (3, 544, vec![40, 1, 16]), (8, 1056, vec![17, 33]), (11, 2112, vec![16, 8, 1, 50])]
    {
        let weights: Vec<_> = outers.iter().map(|outer| Weight::wide(outer * inner, 0.05)).collect();
        products_equal_f64(rows, inner, &weights);
    }
}

#[test]
fn sums_and_their_norms_have_the_bits_of_the_two_steps() {
    let (rows, width) = (3, 1000);
    let (x, r) = (random(rows * width, 1.0), random(rows * width, 1.0));
    let weight: Vec<f32> = random(width, 1.0).into_iter().map(bf16::to_f32).collect();
    on_devices(|device| {
        let [mut x, r] = [&x, &r].map(|values| Buffer::from_slice(device, values).unwrap());
        let mut apart = Buffer::from_slice(device, &x.read().unwrap()).unwrap();
        let weight = Buffer::from_slice(device, &weight).unwrap();
        let [mut y, mut z] =
            [(); 2].map(|()| Buffer::from_slice(device, &vec![bf16::NAN; rows * width]).unwrap());
        let norm = RmsNorm { weight: &weight, offset: 1.0, eps: 1e-6 };
        add_norm(device, [&mut x, &mut y], &r, norm).unwrap();
        add_rows(device, &mut apart, &r).unwrap();
        rms_norm(device, &apart, norm, &mut z).unwrap();
        assert_eq!(bits(&narrow(&x.read().unwrap())), bits(&narrow(&apart.read().unwrap())));
        let found = bits(&narrow(&y.read().unwrap()));
        assert_eq!(found, bits(&narrow(&z.read().unwrap())));
        found
    });
}

struct Mixture {
    hidden: usize,
    experts: usize,
    width: usize,
    /// Width of the shared expert; 0 is none.
    apart: usize,
    matrices: [Weight; 4],
}

/// Which experts are codes: those that are chosen from, and the shared one.
type IsCoded = [bool; 2];

impl Mixture {
    fn random([hidden, width, apart]: [usize; 3], experts: usize, [routed, shared]: IsCoded) -> Self {
        let weight = |shape: [usize; 3], is_coded: bool| match is_coded {
            true => Weight::coded(shape, BLOCKS, 0.1),
            false => Weight::wide(shape.iter().product(), 0.1),
        };
        let matrices = [
            weight([experts, 2 * width, hidden], routed),
            weight([experts, hidden, width], routed),
            weight([1, 2 * apart, hidden], shared),
            weight([1, hidden, apart], shared),
        ];
        Self { hidden, experts, width, apart, matrices }
    }

    /// What is added to `x` `[rows, hidden]` itself.
    fn run(&self, device: &Device, x: &[bf16], chosen: &[u32], weights: &[f32], gates: &[f32]) -> Vec<f32> {
        let place = |values: &[bf16]| Buffer::from_slice(device, values).unwrap();
        let matrices = self.matrices.each_ref().map(|weight| weight.place(device));
        let [gate_up, down, shared_gate_up, shared_down] = matrices.each_ref().map(Placed::matrix);
        let mut choice = Choice::Made(Experts {
            chosen: Buffer::from_slice(device, chosen).unwrap(),
            weights: Buffer::from_slice(device, weights).unwrap(),
        });
        let gates = Buffer::from_slice(device, gates).unwrap();
        let shared = ExpertWeights { width: self.apart, gate_up: shared_gate_up, down: shared_down };
        let mut out = place(x);
        let run = ExpertsFew {
            x: &place(x),
            hidden: self.hidden,
            experts: self.experts,
            choice: &mut choice,
            routed: ExpertWeights { width: self.width, gate_up, down },
            shared: (self.apart > 0).then_some((shared, &gates)),
            out: &mut out,
        };
        experts_few(device, run).unwrap();
        narrow(&out.read().unwrap())
    }

    fn one(&self, x: &[f64], [gate_up, down]: [&[f64]; 2]) -> Vec<f64> {
        let both = times(x, gate_up);
        let (gate, up) = both.split_at(both.len() / 2);
        // What lies between the products is bf16.
        let inner: Vec<f64> = gate
            .iter()
            .zip(up)
            .map(|(gate, up)| f64::from(bf16::from_f64(gate / (1.0 + (-gate).exp()) * up).to_f32()))
            .collect();
        times(&inner, down)
    }

    fn expected(&self, x: &[bf16], chosen: &[u32], weights: &[f32], gates: &[f32]) -> Vec<f64> {
        let (hidden, top) = (self.hidden, chosen.len() / gates.len());
        let matrices = self.matrices.each_ref().map(Weight::values);
        let row = |row: usize| {
            let mut sum = wide(&x[row * hidden..(row + 1) * hidden]);
            let x = sum.clone();
            let mut add = |share: f64, said: Vec<f64>| {
                sum.iter_mut().zip(said).for_each(|(sum, said)| *sum += share * said);
            };
            for place in row * top..(row + 1) * top {
                let (expert, size) = (chosen[place] as usize, self.width * hidden);
                let gate_up = &matrices[0][expert * 2 * size..][..2 * size];
                add(
                    f64::from(weights[place]),
                    self.one(&x, [gate_up, &matrices[1][expert * size..][..size]]),
                );
            }
            if self.apart > 0 {
                let share = 1.0 / (1.0 + f64::from(-gates[row]).exp());
                add(share, self.one(&x, [&matrices[2], &matrices[3]]));
            }
            sum
        };
        (0..gates.len()).flat_map(row).collect()
    }
}

#[test]
fn experts_of_few_rows_equal_f64_whatever_the_other_rows_are() {
    let mut rng = fresh();
    // Fewer assignments than experts, and more; one expert that everybody chose; an expert alone.
    for (rows, top, experts, sizes, is_coded) in [
        (1, 4, 9, [96, 32, 64], [false; 2]),
        (3, 2, 7, [64, 544, 0], [false; 2]),
        (20, 3, 5, [544, 64, 32], [false; 2]),
        (40, 1, 1, [32, 32, 0], [false; 2]),
        (1, 4, 9, [128, 64, 192], [true, true]),
        (3, 2, 7, [64, 576, 32], [true, false]),
        (20, 3, 5, [576, 64, 64], [true, true]),
        (9, 1, 1, [64, 32, 64], [false, true]),
    ] {
        let hidden = sizes[0];
        let mixture = Mixture::random(sizes, experts, is_coded);
        let x = random(rows * hidden, 1.0);
        let all: Vec<u32> = (0..experts as u32).collect();
        let mut chosen: Vec<u32> =
            (0..rows).flat_map(|_| all.sample(&mut rng, top).copied().collect::<Vec<_>>()).collect();
        for choice in chosen.chunks_exact_mut(top) {
            if !choice.contains(&0) {
                choice[0] = 0;
            }
        }
        let weights: Vec<f32> = (0..rows * top).map(|_| rng.random_range(0.0..1.0)).collect();
        let gates: Vec<f32> = (0..rows).map(|_| normal(&mut rng)).collect();
        let expected = mixture.expected(&x, &chosen, &weights, &gates);
        on_devices(|device| {
            let found = mixture.run(device, &x, &chosen, &weights, &gates);
            assert_close("experts", found.iter().copied(), &expected, bounds::BF16);
            let last = rows - 1;
            let (x, chosen, weights) = (&x[last * hidden..], &chosen[last * top..], &weights[last * top..]);
            let alone = mixture.run(device, x, chosen, weights, &gates[last..]);
            assert_eq!(bits(&alone), bits(&found[last * hidden..]));
            bits(&found)
        });
    }
}
