use half::bf16;
use hypic_cuda::{Buffer, Device, Experts, Fresh, Routes, Sent, bounds, route, swiglu};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::run::{assert_close, on_devices};
use crate::truth::{fresh, normal};

const TOP: usize = 2;
/// Rows of each expert: none, and around where tiles of both forms end.
const ROWS: [usize; 9] = [0, 1, 63, 64, 65, 0, 129, 128, 0];
/// Widths between and inner channels: not whole tiles of outputs, one slice of channels and more than a ring has. As fibers the large
/// ones would take minutes.
#[cfg(not(feature = "gpu-tests"))]
const SIZES: [[usize; 2]; 1] = [[64, 64]];
#[cfg(feature = "gpu-tests")]
const SIZES: [[usize; 2]; 4] = [[64, 64], [192, 320], [512, 2048], [768, 640]];

struct Mixture {
    chosen: Vec<u32>,
    weights: Vec<f32>,
    x: Vec<bf16>,
    gate_up: Vec<bf16>,
    /// `[experts, inner, width]`, and what stands between, `[assignments, width]` by the order of rows.
    down: Vec<bf16>,
    between: Vec<bf16>,
    width: usize,
    inner: usize,
}

/// `row` times `matrix` `[outer, row.len()]`, transposed.
fn times(row: &[bf16], matrix: &[bf16]) -> Vec<f64> {
    let wide: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
    let product = |line: &[bf16]| line.iter().zip(&wide).map(|(a, b)| f64::from(a.to_f32() * b)).sum();
    matrix.chunks(row.len()).map(product).collect()
}

impl Mixture {
    fn random(rng: &mut StdRng, [width, inner]: [usize; 2]) -> Self {
        let mut chosen: Vec<u32> =
            ROWS.iter().enumerate().flat_map(|(expert, &rows)| vec![expert as u32; rows]).collect();
        chosen.shuffle(rng);
        let mut draw = |len: usize, scale: f32| -> Vec<bf16> {
            (0..len).map(|_| bf16::from_f32(scale * normal(rng))).collect()
        };
        let (rows, experts) = (chosen.len() / TOP, ROWS.len());
        let scale = (inner as f32).powf(-0.5);
        let x = draw(rows * inner, 1.0);
        let (gate_up, down) =
            (draw(experts * 2 * width * inner, scale), draw(experts * inner * width, scale));
        let between = draw(rows * TOP * width, 1.0);
        let weights = draw(rows * TOP, 1.0).iter().map(|x| x.to_f32()).collect();
        Self { chosen, weights, x, gate_up, down, between, width, inner }
    }

    fn matrix<'a>(&self, all: &'a [bf16], assignment: usize) -> &'a [bf16] {
        let size = all.len() / ROWS.len();
        &all[self.chosen[assignment] as usize * size..][..size]
    }

    /// `silu(gate x) * up x` of each assignment.
    fn gated(&self, assignment: usize) -> Vec<f64> {
        let row = &self.x[assignment / TOP * self.inner..][..self.inner];
        let both = times(row, self.matrix(&self.gate_up, assignment));
        let (gate, up) = both.split_at(self.width);
        gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
    }

    fn said(&self, assignment: usize) -> Vec<f64> {
        times(&self.between[assignment * self.width..][..self.width], self.matrix(&self.down, assignment))
    }

    fn routes(&self, device: &Device) -> Routes {
        let chosen = Buffer::from_slice(device, &self.chosen).unwrap();
        let weights = Buffer::from_slice(device, &self.weights).unwrap();
        route(device, Experts { chosen, weights }, ROWS.len(), TOP).unwrap()
    }

    /// Assignments in the order of experts, as [`route`] makes it.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.chosen.len()).collect();
        order.sort_by_key(|&assignment| self.chosen[assignment]);
        order
    }

    /// What lies between, and the sums of what experts say of it; in the order of experts, and of rows.
    fn run(&self, device: &Device, is_hopper: bool) -> [Vec<bf16>; 2] {
        let routes = self.routes(device);
        let (width, inner, assignments) = (self.width, self.inner, routes.assignments());
        let [x, gate_up, down] =
            [&self.x, &self.gate_up, &self.down].map(|values| Buffer::from_slice(device, values).unwrap());
        let sorted: Vec<bf16> = self
            .order()
            .iter()
            .flat_map(|&assignment| self.between[assignment * width..][..width].to_vec())
            .collect();
        let between = Buffer::from_slice(device, &sorted).unwrap();
        let nan = |len: usize| Buffer::<bf16>::fresh(device, len, Fresh::Poison).unwrap();
        let (mut gated, mut said, mut out) =
            (nan(assignments * width), nan(assignments * inner), nan(assignments / TOP * inner));
        if is_hopper {
            routes.gate_hopper(device, &x, &gate_up, &mut gated, [width, inner]).unwrap();
            let sent = (&between, Sent::Assigned);
            routes.multiply_hopper(device, sent, &down, &mut said, [inner, width]).unwrap();
        } else {
            let mut both = nan(assignments * 2 * width);
            routes.multiply(device, (&x, Sent::Rows), &gate_up, &mut both, [2 * width, inner]).unwrap();
            swiglu(device, &both, width, &mut gated).unwrap();
            routes.multiply(device, (&between, Sent::Assigned), &down, &mut said, [inner, width]).unwrap();
        }
        routes.combine(device, &said, &mut out, inner).unwrap();
        [gated, out].map(|buffer| buffer.read().unwrap())
    }

    fn check(&self) {
        let gated: Vec<f64> =
            self.order().into_iter().flat_map(|assignment| self.gated(assignment)).collect();
        let mut sums = vec![0.0; self.x.len()];
        for assignment in 0..self.chosen.len() {
            let weight = f64::from(self.weights[assignment]);
            let row = sums[assignment / TOP * self.inner..].iter_mut();
            row.zip(self.said(assignment)).for_each(|(sum, said)| *sum += weight * said);
        }
        on_devices(|device| {
            let forms: &[bool] = if device.capability() == Some((9, 0)) { &[false, true] } else { &[false] };
            let found: Vec<_> = forms.iter().map(|&is_hopper| self.run(device, is_hopper)).collect();
            for ([between, out], is_hopper) in found.iter().zip(forms) {
                let wide = |values: &[bf16]| values.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
                let name = |what: &str| format!("{what}, by wgmma: {is_hopper}");
                assert_close(&name("gated"), wide(between), &gated, bounds::BF16);
                assert_close(&name("sums"), wide(out), &sums, bounds::BF16);
            }
            found
        });
    }
}

#[test]
fn every_expert_multiplies_its_own_rows_at_every_count() {
    let mut rng = fresh();
    for size in SIZES {
        Mixture::random(&mut rng, size).check();
    }
}
