//! Matrices of 8-bit floats with a factor for each block: `W = E4M3 * factor`.

use std::ops::Range;

use crate::error::OpError;

/// The largest value of a code.
const LARGEST: f32 = 448.0;

/// Rows and columns of a block that shares a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Blocks {
    /// Shape of the factors of a tensor of `shape`, whose last two axes are matrices.
    pub fn factors_of(self, shape: &[usize]) -> Vec<usize> {
        let mut factors = shape.to_vec();
        if let [.., rows, columns] = &mut factors[..] {
            (*rows, *columns) = (rows.div_ceil(self.rows), columns.div_ceil(self.columns));
        }
        factors
    }
}

/// A matrix `[out, in]` as E4M3 codes, row-major, and a factor for each block. Blocks at the lower and right edges may be
/// smaller.
#[derive(Clone, Debug, PartialEq)]
pub struct Coded {
    shape: [usize; 2],
    codes: Vec<u8>,
    blocks: Blocks,
    /// `[rows / blocks.rows, columns / blocks.columns]`, rounded up.
    factors: Vec<f32>,
}

impl Coded {
    /// `count` matrices of `rows` rows, one under the other; each begins with blocks of its own, as they are stored.
    ///
    /// # Errors
    /// [`OpError::Shape`] for codes or factors that are not as many, and blocks of nothing.
    pub fn new(
        codes: Vec<u8>,
        [count, rows, columns]: [usize; 3],
        blocks: Blocks,
        factors: Vec<f32>,
    ) -> Result<Self, OpError> {
        const OP: &str = "coded";
        if blocks.rows == 0 || blocks.columns == 0 {
            return Err(OpError::shape(OP, "blocks of at least one value", format!("{blocks:?}")));
        }
        let (down, across) = (rows.div_ceil(blocks.rows), columns.div_ceil(blocks.columns));
        if (codes.len(), factors.len()) != (count * rows * columns, count * down * across) {
            let expected = format!("{} codes and {} factors", count * rows * columns, count * down * across);
            return Err(OpError::shape(OP, expected, format!("{} and {}", codes.len(), factors.len())));
        }
        let shape = [count * rows, columns];
        if count <= 1 || rows.is_multiple_of(blocks.rows) {
            return Ok(Self { shape, codes, blocks, factors });
        }
        let sources = (0..count * rows).map(|row| row / rows * down + row % rows / blocks.rows);
        Ok(Self::of_rows(codes, columns, blocks.columns, (&factors, sources.collect())))
    }

    /// Codes whose row `i` has the row `sources[i]` of `table`: the largest blocks that say so.
    fn of_rows(codes: Vec<u8>, width: usize, columns: usize, (table, sources): (&[f32], Vec<usize>)) -> Self {
        let changes = (1..sources.len()).filter(|&row| sources[row] != sources[row - 1]);
        let rows = changes.reduce(gcd).unwrap_or(sources.len()).max(1);
        let across = width.div_ceil(columns);
        let row = |&source: &usize| &table[source * across..(source + 1) * across];
        let factors = sources.iter().step_by(rows).flat_map(row).copied().collect();
        Self { shape: [sources.len(), width], codes, blocks: Blocks { rows, columns }, factors }
    }

    /// `[out, in]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The codes, row-major.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// What shares a factor.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// The same factors for smaller blocks, row-major; none where a block is not made of whole ones of these.
    pub fn factors_for(&self, blocks: Blocks) -> Option<Vec<f32>> {
        let [rows, columns] = self.shape;
        let divides = |part: usize, whole: usize, len: usize| whole >= len || whole.is_multiple_of(part);
        if !divides(blocks.rows, self.blocks.rows, rows)
            || !divides(blocks.columns, self.blocks.columns, columns)
        {
            return None;
        }
        let across = columns.div_ceil(self.blocks.columns);
        let of_row = |row: usize| {
            let factors = &self.factors[row / self.blocks.rows * across..][..across];
            (0..columns).step_by(blocks.columns).map(|column| factors[column / self.blocks.columns])
        };
        Some((0..rows).step_by(blocks.rows).flat_map(of_row).collect())
    }

    fn row_of_factors(&self, row: usize) -> usize {
        row / self.blocks.rows
    }

    /// The rows at `rows`, in that order. Blocks become as small as they must.
    ///
    /// # Panics
    /// For a row that is not there.
    #[must_use]
    pub fn rows(&self, rows: impl Iterator<Item = usize>) -> Self {
        let width = self.shape[1];
        let (mut codes, mut sources) = (Vec::new(), Vec::new());
        for row in rows {
            codes.extend_from_slice(&self.codes[row * width..(row + 1) * width]);
            sources.push(self.row_of_factors(row));
        }
        Self::of_rows(codes, width, self.blocks.columns, (&self.factors, sources))
    }

    /// The columns of a range, which its length divides.
    ///
    /// # Panics
    /// For a range that goes too far.
    #[must_use]
    pub fn columns(&self, range: &Range<usize>) -> Self {
        let [rows, width] = self.shape;
        let columns = gcd(range.len(), self.blocks.columns).max(1);
        let mut codes = Vec::with_capacity(rows * range.len());
        self.codes.chunks_exact(width.max(1)).for_each(|row| codes.extend_from_slice(&row[range.clone()]));
        let of_row = |row: &[f32]| {
            let factor = |column: usize| row[column / self.blocks.columns];
            range.clone().step_by(columns).map(factor).collect::<Vec<_>>()
        };
        let factors = self.factors.chunks_exact(width.div_ceil(self.blocks.columns).max(1));
        let factors = factors.flat_map(of_row).collect();
        let blocks = Blocks { rows: self.blocks.rows, columns };
        Self { shape: [rows, range.len()], codes, blocks, factors }
    }

    /// The rows of matrices of one width, one after the other; none where widths or blocks' columns differ.
    pub fn stacked(parts: &[&Self]) -> Option<Self> {
        let first = *parts.first()?;
        let is_alike =
            |part: &&Self| part.shape[1] == first.shape[1] && part.blocks.columns == first.blocks.columns;
        if !parts.iter().all(is_alike) {
            return None;
        }
        // One allocation: the experts of a layer are half a gigabyte.
        let mut codes = Vec::with_capacity(parts.iter().map(|part| part.codes.len()).sum());
        let (mut table, mut sources) = (Vec::new(), Vec::new());
        let across = first.shape[1].div_ceil(first.blocks.columns).max(1);
        for part in parts {
            let above = table.len() / across;
            codes.extend_from_slice(&part.codes);
            table.extend_from_slice(&part.factors);
            sources.extend((0..part.shape[0]).map(|row| above + part.row_of_factors(row)));
        }
        Some(Self::of_rows(codes, first.shape[1], first.blocks.columns, (&table, sources)))
    }

    /// All values, row-major, rounded to fp32 once.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        let table: [f32; 256] = std::array::from_fn(|code| e4m3(code as u8));
        let width = self.shape[1].max(1);
        let across = width.div_ceil(self.blocks.columns);
        self.codes.chunks_exact(width).enumerate().flat_map(move |(row, codes)| {
            let factors = &self.factors[self.row_of_factors(row) * across..][..across];
            let blocks = codes.chunks(self.blocks.columns).zip(factors);
            blocks.flat_map(move |(codes, factor)| {
                codes.iter().map(move |&code| table[usize::from(code)] * factor)
            })
        })
    }

    /// Place of the first value that is NaN or infinite.
    pub fn not_finite(&self) -> Option<usize> {
        // Of nearly all matrices these say it, at a fraction of the time.
        let is_nan = |code: &u8| code & 0x7f == 0x7f;
        let is_small = |factor: &f32| (factor * LARGEST).is_finite();
        if self.factors.iter().all(is_small) && !self.codes.iter().any(is_nan) {
            return None;
        }
        self.values().position(|value| !value.is_finite())
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// An 8-bit float of 4 bits of exponent (bias 7) and 3 of mantissa; it has no infinities and one NaN of each sign.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2_f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The nearest 8-bit float, ties to even; beyond the largest that one.
pub fn to_e4m3(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let (sign, size) = ((value.to_bits() >> 24) as u8 & 0x80, value.abs().min(LARGEST));
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-6);
    // In steps of the last bit; one too many is the first of the next exponent.
    let steps = (size / 2_f32.powi(exponent - 3)).round_ties_even() as i32;
    sign | (8 * (exponent + 6) + steps) as u8
}

/// The nearest codes of values `[count, rows, columns]` whose blocks reach to the largest code, and their factors.
pub fn encode(values: &[f32], [count, rows, columns]: [usize; 3], blocks: Blocks) -> (Vec<u8>, Vec<f32>) {
    let (down, across) = (rows.div_ceil(blocks.rows), columns.div_ceil(blocks.columns));
    let of = |place: usize| {
        let (row, column) = (place / columns, place % columns);
        (row / rows * down + row % rows / blocks.rows) * across + column / blocks.columns
    };
    let mut factors = vec![0_f32; count * down * across];
    for (place, value) in values.iter().enumerate() {
        factors[of(place)] = factors[of(place)].max(value.abs() / LARGEST);
    }
    let code = |(place, value): (usize, &f32)| match factors[of(place)] {
        0.0 => 0,
        factor => to_e4m3(value / factor),
    };
    (values.iter().enumerate().map(code).collect(), factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks { rows: 2, columns: 4 };

    /// Codes that are all one, so that values are factors.
    fn ones(shape: [usize; 3], blocks: Blocks) -> Coded {
        let factors: usize = blocks.factors_of(&shape).iter().product();
        let factors = (1..=factors).map(|factor| factor as f32).collect();
        Coded::new(vec![0x38; shape.iter().product()], shape, blocks, factors).unwrap()
    }

    fn values(coded: &Coded) -> Vec<f32> {
        coded.values().collect()
    }

    #[test]
    fn codes_are_those_of_the_format() {
        // OCP 8-bit floating point specification, table 2: largest, smallest normal, largest and smallest subnormal.
        for (code, value) in
            [(0, 0.0), (0x7e, 448.0), (0x08, 0.015_625), (0x07, 0.875 * 0.015_625), (0x01, 0.001_953_125)]
        {
            assert_eq!(e4m3(code), value);
            assert_eq!(e4m3(code | 0x80), -value);
        }
        assert!(e4m3(0x80).is_sign_negative());
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn every_code_is_the_nearest_of_its_value_and_ties_are_even() {
        for code in (0..=255).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(to_e4m3(e4m3(code)), code);
            // Halfway to the next, and a little off.
            if code & 0x7f < 0x7e {
                let (this, next) = (e4m3(code), e4m3(code + 1));
                let middle = f32::midpoint(this, next);
                assert_eq!(to_e4m3(middle), code + (code & 1));
                assert_eq!(to_e4m3(middle * 0.9999), code);
                assert_eq!(to_e4m3(middle * 1.0001), code + 1);
            }
        }
        assert_eq!([1e9, -1e9, f32::NAN].map(to_e4m3), [0x7e, 0xfe, 0x7f]);
    }

    #[test]
    fn encoded_values_are_within_half_a_step() {
        let shape = [2, 3, 6];
        let values: Vec<f32> = (0..36).map(|i| (i * 29 % 36) as f32 / 7.0 - 2.5).collect();
        let (codes, factors) = encode(&values, shape, BLOCKS);
        let found = Coded::new(codes, shape, BLOCKS, factors).unwrap();
        assert!(
            found
                .values()
                .zip(&values)
                .all(|(found, value)| (found - value).abs() <= value.abs() / 16.0 + 1e-3)
        );
        let (codes, factors) = encode(&[0.0; 36], shape, BLOCKS);
        assert!(codes.iter().all(|&code| code == 0) && factors.iter().all(|&factor| factor == 0.0));
    }

    #[test]
    fn a_block_at_the_edge_is_smaller() {
        assert_eq!(BLOCKS.factors_of(&[5, 3, 6]), [5, 2, 2]);
        // Two matrices of 3 x 6: blocks of both begin anew.
        let both = ones([2, 3, 6], BLOCKS);
        let row = |left: f32, right: f32| [left, left, left, left, right, right];
        let expected =
            [row(1.0, 2.0), row(1.0, 2.0), row(3.0, 4.0), row(5.0, 6.0), row(5.0, 6.0), row(7.0, 8.0)];
        assert_eq!(values(&both), expected.concat());
        assert_eq!((both.shape(), both.blocks()), ([6, 6], Blocks { rows: 1, columns: 4 }));
    }

    #[test]
    fn rows_and_columns_take_their_factors_along() {
        let whole = ones([1, 12, 8], BLOCKS);
        let right = values(&whole);
        let order = [4, 5, 0, 1, 8, 9, 10, 11];
        let some = whole.rows(order.into_iter());
        let expected: Vec<f32> =
            order.iter().flat_map(|row| &right[row * 8..(row + 1) * 8]).copied().collect();
        assert_eq!((values(&some), some.blocks()), (expected, BLOCKS));
        let torn = whole.rows([1, 0, 11, 3].into_iter());
        assert_eq!((torn.blocks().rows, torn.factors.len()), (1, 8));
        assert_eq!(values(&torn)[16..24], right[88..96]);
        for (range, columns) in [(0..4, 4), (4..8, 4), (2..4, 2), (6..8, 2)] {
            let part = whole.columns(&range);
            let expected: Vec<f32> = right.chunks(8).flat_map(|row| &row[range.clone()]).copied().collect();
            assert_eq!((values(&part), part.blocks().columns), (expected, columns));
        }
    }

    #[test]
    fn stacks_have_the_rows_of_all() {
        let parts = [ones([1, 4, 8], BLOCKS), ones([1, 6, 8], BLOCKS)];
        let both = Coded::stacked(&parts.each_ref()).unwrap();
        assert_eq!(values(&both), parts.each_ref().map(values).concat());
        assert_eq!(both.blocks(), BLOCKS);
        assert!(Coded::stacked(&[&parts[0], &ones([1, 4, 4], BLOCKS)]).is_none());
    }

    #[test]
    fn factors_of_smaller_blocks_are_those_of_the_larger() {
        let whole = ones([1, 5, 12], Blocks { rows: 4, columns: 8 });
        let found = whole.factors_for(Blocks { rows: 2, columns: 4 }).unwrap();
        assert_eq!(found, [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
        assert!(whole.factors_for(Blocks { rows: 3, columns: 4 }).is_none());
        assert!(whole.factors_for(Blocks { rows: 2, columns: 16 }).is_none());
        // A block that is larger than the matrix is made of anything.
        let all = ones([1, 3, 4], Blocks { rows: 100, columns: 5 });
        assert_eq!(all.factors_for(Blocks { rows: 2, columns: 2 }).unwrap(), [1.0; 4]);
    }

    #[test]
    fn what_is_no_such_matrix_is_refused() {
        let new = |codes: usize, factors: usize, blocks| {
            Coded::new(vec![0; codes], [1, 3, 6], blocks, vec![1.0; factors])
        };
        assert!(new(18, 4, BLOCKS).is_ok());
        assert!(new(17, 4, BLOCKS).is_err() && new(18, 3, BLOCKS).is_err());
        assert!(new(18, 4, Blocks { rows: 0, columns: 4 }).is_err());
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_found() {
        let with = |code: u8, factor: f32| {
            let mut codes = vec![0x38; 18];
            codes[9] = code;
            Coded::new(codes, [1, 3, 6], BLOCKS, vec![1.0, 1.0, factor, 1.0]).unwrap().not_finite()
        };
        assert_eq!(with(0x7e, 1.0), None);
        assert_eq!(with(0x7f, 1.0), Some(9));
        assert_eq!(with(0xff, 1.0), Some(9));
        assert_eq!(with(0x38, f32::INFINITY), Some(12));
        assert_eq!(with(0x38, f32::MAX / 2.0), None);
    }
}
