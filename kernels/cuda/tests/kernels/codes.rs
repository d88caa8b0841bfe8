//! Weights as codes with factors of blocks: the forms that read them, and that which widens them.

use half::bf16;
use hypic_cuda::{Buffer, CodedMatrix, Device, FewPart, Float, Fresh, Matrix, bounds, product_few};
use hypic_kernels::coded::{Blocks, Coded};
use rand::RngExt;

use crate::run::{assert_close, bits, on_devices};
use crate::truth::{fresh, normal, random};

pub(crate) const BLOCKS: Blocks = Blocks { rows: 128, columns: 128 };

/// A matrix `[rows, columns]`, wide or as codes.
#[derive(Clone)]
pub(crate) enum Weight {
    Wide(Vec<bf16>),
    Coded(Coded),
}

/// The same on a device.
pub(crate) enum Placed {
    Wide(Buffer<bf16>),
    Coded(CodedMatrix),
}

impl Weight {
    pub(crate) fn wide(len: usize, scale: f32) -> Self {
        Self::Wide(random(len, scale))
    }

    /// Codes of every finite value, subnormals and both zeros too, in `count` matrices of blocks of their own.
    pub(crate) fn coded(shape: [usize; 3], blocks: Blocks, scale: f32) -> Self {
        let mut rng = fresh();
        let codes = (0..shape.iter().product()).map(|_| finite(rng.random_range(0..254))).collect();
        let factors: usize = blocks.factors_of(&shape).iter().product();
        let factors = (0..factors).map(|_| scale / 150.0 * (0.3 * normal(&mut rng)).exp()).collect();
        Self::Coded(Coded::new(codes, shape, blocks, factors).unwrap())
    }

    pub(crate) fn values(&self) -> Vec<f64> {
        match self {
            Self::Wide(values) => values.iter().map(|x| f64::from(x.to_f32())).collect(),
            Self::Coded(matrix) => matrix.values().map(f64::from).collect(),
        }
    }

    pub(crate) fn place(&self, device: &Device) -> Placed {
        match self {
            Self::Wide(values) => Placed::Wide(Buffer::from_slice(device, values).unwrap()),
            Self::Coded(matrix) => {
                Placed::Coded(CodedMatrix::new(device, matrix).unwrap().expect("blocks of the kernels"))
            }
        }
    }
}

impl Placed {
    pub(crate) fn matrix(&self) -> Matrix<'_, bf16> {
        match self {
            Self::Wide(values) => values.into(),
            Self::Coded(matrix) => matrix.into(),
        }
    }
}

/// The number of a code that is no NaN.
fn finite(number: u8) -> u8 {
    if number < 0x7f { number } else { number + 1 }
}

fn nan<T: Float>(device: &Device, len: usize) -> Buffer<T> {
    Buffer::fresh(device, len, Fresh::Poison).unwrap()
}

/// Random rows, and their products with each of `weights` in f64. Where a weight has a single sum or few, and the terms of
/// these cancel out, no fp32 comes near the rest: such rows are drawn again.
fn uncancelled(rows: usize, inner: usize, weights: &[Weight]) -> (Vec<bf16>, Vec<Vec<f64>>) {
    let values: Vec<Vec<f64>> = weights.iter().map(Weight::values).collect();
    loop {
        let x = random(rows * inner, 1.0);
        let wide: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
        let (mut all, mut cancels) = (Vec::new(), false);
        for values in &values {
            let (mut sums, mut squares_of_terms) = (Vec::new(), 0.0);
            for (x, w) in
                wide.chunks_exact(inner).flat_map(|x| values.chunks_exact(inner).map(move |w| (x, w)))
            {
                let terms = || x.iter().zip(w).map(|(x, w)| x * w);
                sums.push(terms().sum::<f64>());
                squares_of_terms += terms().map(|term| term * term).sum::<f64>();
            }
            // Sums of independent terms are as large as these together, but by chance.
            cancels |= 4.0 * sums.iter().map(|y| y * y).sum::<f64>() < squares_of_terms;
            all.push(sums);
        }
        if !cancels {
            return (x, all);
        }
    }
}

/// Products of as many rows with all `weights` in one launch against f64; the bits of a row are those that it has alone.
pub(crate) fn products_equal_f64(rows: usize, inner: usize, weights: &[Weight]) {
    let (x, expected) = uncancelled(rows, inner, weights);
    let outers: Vec<usize> = weights.iter().map(|weight| weight.values().len() / inner).collect();
    let run = |device: &Device, x: &[bf16]| -> Vec<Vec<f32>> {
        let rows = x.len() / inner;
        let x = Buffer::from_slice(device, x).unwrap();
        let placed: Vec<Placed> = weights.iter().map(|weight| weight.place(device)).collect();
        let mut out: Vec<Buffer<f32>> = outers.iter().map(|outer| nan(device, rows * outer)).collect();
        let parts = placed.iter().zip(&outers).zip(&mut out);
        let parts =
            parts.map(|((weight, &outer), y)| FewPart { weight: weight.matrix(), outer, y }).collect();
        product_few(device, &x, [rows, inner], parts).unwrap();
        out.iter().map(|y| y.read().unwrap()).collect()
    };
    on_devices(|device| {
        let found = run(device, &x);
        for (found, expected) in found.iter().zip(&expected) {
            assert_close("products", found.iter().copied(), expected, bounds::ELEMENTWISE);
        }
        let last = run(device, &x[(rows - 1) * inner..]);
        for ((last, found), outer) in last.iter().zip(&found).zip(&outers) {
            assert_eq!(bits(last), bits(&found[(rows - 1) * outer..]));
        }
        found.iter().flat_map(|found| bits(found)).collect::<Vec<_>>()
    });
}

#[test]
fn products_of_codes_equal_f64_whatever_the_other_rows_are() {
    let small = Blocks { rows: 16, columns: 64 };
    for (rows, inner, weights) in [
        (1, 64, vec![Weight::coded([1, 1, 64], BLOCKS, 1.0)]),
        // Edges that are no whole blocks, beside a wide weight.
        (3, 576, vec![Weight::coded([1, 150, 576], BLOCKS, 1.0), Weight::wide(40 * 576, 0.05)]),
        (8, 1088, vec![Weight::wide(17 * 1088, 0.05), Weight::coded([1, 33, 1088], small, 1.0)]),
        (9, 2112, vec![Weight::coded([3, 48, 2112], BLOCKS, 1.0), Weight::coded([1, 8, 2112], BLOCKS, 1.0)]),
    ] {
        products_equal_f64(rows, inner, &weights);
    }
}

#[test]
fn every_code_is_multiplied_as_its_value() {
    // A row of each code, and rows of activations that take one column each.
    let codes: Vec<u8> = (0..254).flat_map(|number| [finite(number); 64]).collect();
    let matrix = Coded::new(codes, [1, 254, 64], Blocks { rows: 254, columns: 64 }, vec![1.5]).unwrap();
    let x: Vec<bf16> = (0..5 * 64).map(|i| bf16::from_f32(f32::from(u8::from(i / 64 == i % 64)))).collect();
    on_devices(|device| {
        let placed = CodedMatrix::new(device, &matrix).unwrap().unwrap();
        let x = Buffer::from_slice(device, &x).unwrap();
        let mut y: Buffer<f32> = nan(device, 5 * 254);
        let weight = Matrix::Coded(&placed);
        product_few(device, &x, [5, 64], vec![FewPart { weight, outer: 254, y: &mut y }]).unwrap();
        // The same codes as a matrix of other rows would have other factors.
        let mut other: Buffer<f32> = nan(device, 127);
        let part = FewPart { weight, outer: 127, y: &mut other };
        assert!(product_few(device, &nan(device, 128), [1, 128], vec![part]).is_err());
        let found = y.read().unwrap();
        for row in found.chunks_exact(254) {
            assert!(row.iter().zip(matrix.values().step_by(64)).all(|(&found, right)| found == right));
        }
        bits(&found)
    });
}

#[test]
fn widened_codes_have_the_bits_of_their_rounded_values() {
    for (shape, blocks) in [([1, 254, 64], BLOCKS), ([1, 37, 192], Blocks { rows: 16, columns: 64 })] {
        let Weight::Coded(matrix) = Weight::coded(shape, blocks, 1.0) else { continue };
        fn found<E: Float>(device: &Device, matrix: &Coded) -> Vec<u32> {
            let placed = CodedMatrix::new(device, matrix).unwrap().unwrap();
            let mut y: Buffer<E> = nan(device, placed.len());
            placed.widen(device, &mut y).unwrap();
            assert!(placed.widen(device, &mut nan::<E>(device, placed.len() - 1)).is_err());
            bits(&y.read().unwrap().into_iter().map(E::wide).collect::<Vec<_>>())
        }
        let right = |round: fn(f32) -> f32| bits(&matrix.values().map(round).collect::<Vec<_>>());
        on_devices(|device| {
            assert_eq!(found::<f32>(device, &matrix), right(|value| value));
            assert_eq!(found::<bf16>(device, &matrix), right(|value| bf16::from_f32(value).to_f32()));
        });
    }
}

#[test]
fn a_matrix_of_other_blocks_is_not_taken_as_codes() {
    on_devices(|device| {
        for (shape, blocks) in [
            ([1, 32, 96], BLOCKS),
            ([1, 32, 128], Blocks { rows: 8, columns: 64 }),
            ([1, 32, 128], Blocks { rows: 16, columns: 32 }),
            ([2, 24, 128], BLOCKS),
        ] {
            let Weight::Coded(matrix) = Weight::coded(shape, blocks, 1.0) else { continue };
            assert!(CodedMatrix::new(device, &matrix).unwrap().is_none(), "{shape:?} in {blocks:?}");
        }
        let Weight::Coded(matrix) = Weight::coded([2, 32, 128], BLOCKS, 1.0) else { return };
        let placed = CodedMatrix::new(device, &matrix).unwrap().unwrap();
        assert_eq!((placed.len(), placed.bytes()), (64 * 128, 64 * 128 + 4 * 4 * 2));
    });
}
