//! Matrices of products as codes: on every device they multiply as their values.

use hypic_kernels::coded::{Blocks, Coded};

use super::*;

const BLOCKS: Blocks = Blocks { rows: 128, columns: 128 };

impl Noise {
    /// Finite codes below 2 with factors of about `scale`, in `count` matrices `[rows, columns]`.
    fn coded(&mut self, shape: [usize; 3], scale: f64) -> Coded {
        let code =
            |noise: &mut Self| (noise.uniform() * 64.0).abs() as u8 | u8::from(noise.uniform() < 0.0) << 7;
        let codes = (0..shape.iter().product()).map(|_| code(self)).collect();
        let factors: usize = BLOCKS.factors_of(&shape).iter().product();
        let factors = (0..factors).map(|_| (scale * (1.5 + self.uniform())) as f32).collect();
        Coded::new(codes, shape, BLOCKS, factors).unwrap()
    }
}

fn values(matrix: &Coded) -> Vec<f32> {
    matrix.values().collect()
}

fn coded(device: &TestDevice, matrix: &Coded) -> Weight {
    device.coded("test", matrix, &Split::Whole).unwrap()
}

#[test]
fn matrices_of_codes_multiply_as_their_values() {
    let mut noise = Noise(41);
    // The last one has columns that no kernel takes as codes.
    for (width, outers) in [(192, [200, 16]), (192, [300, 1]), (64, [128, 40]), (96, [48, 20])] {
        let matrices = outers.map(|outer| noise.coded([1, outer, width], 0.5));
        let wide = noise.many(24 * width);
        for (rows, threads) in [(1, 1), (8, 1), (9, 2), (33, 1), (140, 2)] {
            let device = poisoned(threads);
            let x = noise.many(rows * width);
            let tensor = device.tensor(&x, width).unwrap();
            let [one, other] = matrices.each_ref().map(|matrix| coded(&device, matrix));
            let between = weight(&device, &wide, &[24, width]);
            let found = device.linears(&tensor, [&one, &between, &other]).unwrap();
            let [first, last] = matrices.each_ref().map(values);
            for (found, values) in found.iter().zip([&first, &wide, &last]) {
                within(
                    Compared::Linear,
                    &device.to_host(found).unwrap(),
                    &reference::linear(&x, values, width),
                );
            }
            let found = device.linear(&tensor, &one).unwrap();
            within(Compared::Linear, &device.to_host(&found).unwrap(), &reference::linear(&x, &first, width));
            let narrow = device.tensor(&x[..rows], 1).unwrap();
            assert!(matches!(device.linear(&narrow, &one), Err(OpError::Shape { .. })));
        }
    }
}

#[test]
fn codes_take_a_byte_each_where_they_are_kept() {
    let device = poisoned(1);
    let matrix = Noise(42).coded([1, 256, 192], 1.0);
    let found = device.bytes(&coded(&device, &matrix));
    let wide = device.bytes(&weight(&device, &values(&matrix), &[256, 192]));
    // Factors stand for 16 rows and 64 columns at least.
    let kept = 256 * 192 + 4 * 16 * 3;
    assert_eq!(found, if device.keeps_codes() { kept } else { wide });
}

#[test]
fn experts_of_codes_say_what_their_values_say() {
    let (hidden, intermediate, apart, count) = (64, 64, 128, 13);
    let mut noise = Noise(43);
    let router = noise.many(count * hidden);
    let gate = noise.many(hidden);
    let matrices = [
        noise.coded([count, 2 * intermediate, hidden], 0.5),
        noise.coded([count, hidden, intermediate], 0.5),
        noise.coded([1, 2 * apart, hidden], 0.5),
        noise.coded([1, hidden, apart], 0.5),
    ];
    let [gate_up, down, shared_gate_up, shared_down] = matrices.each_ref().map(values);
    // Few rows, and so many that all experts are widened.
    for (rows, top) in [(1, 4), (7, 1), (10, 5), (140, 3)] {
        let device = poisoned(1);
        let shape = ExpertShape { experts: count, top, intermediate, renormalise: true };
        let (x, into) = (noise.many(rows * hidden), noise.many(rows * hidden));
        let placed = matrices.each_ref().map(|matrix| coded(&device, matrix));
        let experts = Experts {
            shape,
            router: &weight(&device, &router, &[count, hidden]),
            gate_up: &placed[0],
            down: &placed[1],
        };
        let gate_of = weight(&device, &gate, &[1, hidden]);
        let one = SharedExpert { gate_up: &placed[2], down: &placed[3], gate: &gate_of };
        let tensor = device.tensor(&x, hidden).unwrap();
        let said = reference::experts(&x, hidden, shape, [&router, &gate_up, &down]);
        let found = device.experts(&tensor, &experts).unwrap();
        within(Compared::Linear, &device.to_host(&found).unwrap(), &said);
        // A mixture of one expert is that expert.
        let alone = ExpertShape { experts: 1, top: 1, intermediate: apart, renormalise: true };
        let said_apart = reference::experts(&x, hidden, alone, [&gate, &shared_gate_up, &shared_down]);
        let shares = reference::linear(&x, &gate, hidden);
        let share = |row: usize| 1.0 / (1.0 + (-shares[row]).exp());
        let right: Vec<f64> = (0..rows * hidden)
            .map(|i| f64::from(into[i]) + said[i] + share(i / hidden) * said_apart[i])
            .collect();
        let mut sum = device.tensor(&into, hidden).unwrap();
        device.add_experts(&mut sum, &tensor, &experts, Some(&one)).unwrap();
        within(Compared::Linear, &device.to_host(&sum).unwrap(), &right);
    }
}

#[test]
fn random_codes_are_the_same_on_every_device() {
    let device = poisoned(1);
    for width in [128, 96] {
        let matrix = RandomMatrix { seed: 5, shape: [48, width], scale: 0.1, stride: width };
        let blocks = [matrix.part(&(0..20), &(0..width)), matrix.part(&(20..48), &(0..width))];
        let placed = device.random_coded(&blocks, &Split::Whole).unwrap();
        let right: Vec<f32> = RandomMatrix::coded(&blocks).unwrap().values().collect();
        for rows in [2, 40] {
            let x = Noise(44).many(rows * width);
            let found = device.linear(&device.tensor(&x, width).unwrap(), &placed).unwrap();
            within(Compared::Linear, &device.to_host(&found).unwrap(), &reference::linear(&x, &right, width));
        }
        let other = RandomMatrix { scale: 0.2, ..matrix };
        assert!(device.random_coded(&[matrix, other], &Split::Whole).is_err());
    }
}
