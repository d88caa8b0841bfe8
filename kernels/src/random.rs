//! Random matrices that every device makes alike, where they lie: sizes that neither a drive nor a host should see.

use std::ops::Range;

use crate::coded::{Blocks, Coded, to_e4m3};
use crate::error::OpError;

/// What SplitMix64 adds for each value.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Of whole numbers.
const LARGEST: i32 = 2 * 0xffff;

/// A matrix of random values of mean zero, a pure function of seed and place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomMatrix {
    /// Other seeds, other values.
    pub seed: u64,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// Standard deviation.
    pub scale: f32,
    /// Places from one row to the next: the width, or that of the matrix of which this is a part.
    pub stride: usize,
}

impl RandomMatrix {
    /// The largest whole number becomes the largest code.
    pub const OF_CODES: f32 = 448.0 / LARGEST as f32;

    /// What makes the values: the seed, and the factor on whole numbers of standard deviation `65536 / sqrt(3)`.
    pub fn parts(&self) -> (u64, f32) {
        (self.seed, (f64::from(self.scale) * 3_f64.sqrt() / 65_536.0) as f32)
    }

    /// The value at a row-major place: the sum of four uniform numbers of 16 bits (Irwin and Hall), which is
    /// nearly normal and at most 3.5 deviations from zero. Whole numbers and one product: the same bits everywhere.
    pub fn value(&self, place: u64) -> f32 {
        self.parts().1 * self.whole(place) as f32
    }

    /// A whole number from -131070 to 131070.
    fn whole(&self, place: u64) -> i32 {
        // SplitMix64.
        let seed = self.seed;
        let mut z = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let sum = (0..4).map(|part| (z >> (16 * part)) as i32 & 0xffff).sum::<i32>();
        sum - LARGEST
    }

    /// The value as a code whose factor is [`RandomMatrix::factor`].
    pub fn code(&self, place: u64) -> u8 {
        to_e4m3(self.whole(place) as f32 * Self::OF_CODES)
    }

    /// What all codes are multiplied with.
    pub fn factor(&self) -> f32 {
        self.parts().1 / Self::OF_CODES
    }

    /// The factor that blocks of rows share.
    ///
    /// # Errors
    /// [`OpError::Shape`] for blocks of other widths or deviations.
    pub fn factor_of(blocks: &[Self]) -> Result<f32, OpError> {
        let first = blocks.first().map_or((0, 1.0), |block| (block.shape[1], block.factor()));
        match blocks.iter().all(|block| (block.shape[1], block.factor()) == first) {
            true => Ok(first.1),
            false => Err(OpError::shape("random_coded", "blocks of one width and deviation", blocks.len())),
        }
    }

    /// All codes of blocks of rows, one under the other.
    ///
    /// # Errors
    /// As [`RandomMatrix::factor_of`].
    pub fn coded(blocks: &[Self]) -> Result<Coded, OpError> {
        let ([rows, columns], factor) = (Self::stacked(blocks), Self::factor_of(blocks)?);
        let codes = blocks.iter().flat_map(|block| block.places().map(|place| block.code(place))).collect();
        let whole = Blocks { rows: rows.max(1), columns: columns.max(1) };
        Coded::new(codes, [1, rows, columns], whole, vec![factor; usize::from(rows * columns > 0)])
    }

    /// All values, row-major.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        let matrix = *self;
        self.places().map(move |place| matrix.value(place))
    }

    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        let (stride, [rows, columns]) = (self.stride, self.shape);
        (0..rows).flat_map(move |row| (0..columns).map(move |column| (row * stride + column) as u64))
    }

    /// The matrix of some of its rows and columns.
    #[must_use]
    pub fn part(&self, rows: &Range<usize>, columns: &Range<usize>) -> Self {
        let first = (rows.start * self.stride + columns.start) as u64;
        let seed = self.seed.wrapping_add(first.wrapping_mul(STEP));
        Self { seed, shape: [rows.len(), columns.len()], ..*self }
    }

    /// The shape of blocks of rows, one under the other.
    pub fn stacked(blocks: &[Self]) -> [usize; 2] {
        [blocks.iter().map(|block| block.shape[0]).sum(), blocks.first().map_or(0, |block| block.shape[1])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_mean_and_deviation_that_were_asked_for() {
        let values: Vec<f32> =
            RandomMatrix { seed: 7, shape: [256, 1024], scale: 0.5, stride: 1024 }.values().collect();
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / values.len() as f64;
        // Five standard errors of each.
        assert!(mean.abs() < 5.0 * 0.5 / 512.0, "{mean}");
        assert!((square.sqrt() - 0.5).abs() < 5.0 * 0.5 / 512.0, "{}", square.sqrt());
    }

    #[test]
    fn codes_are_the_values_within_half_a_step() {
        let matrix = RandomMatrix { seed: 7, shape: [64, 128], scale: 0.5, stride: 128 };
        let coded =
            RandomMatrix::coded(&[matrix.part(&(0..16), &(0..128)), matrix.part(&(16..64), &(0..128))]);
        let coded = coded.unwrap();
        assert_eq!(coded.shape(), matrix.shape);
        let near = |(code, value): (f32, f32)| (code - value).abs() <= value.abs() / 16.0 + 1e-4;
        assert!(coded.values().zip(matrix.values()).all(near));
        assert!(RandomMatrix::coded(&[matrix, RandomMatrix { scale: 1.0, ..matrix }]).is_err());
    }

    #[test]
    fn other_seeds_give_other_values() {
        let of = |seed| RandomMatrix { seed, shape: [1, 64], scale: 1.0, stride: 64 };
        assert!(of(1).values().zip(of(2).values()).all(|(one, other)| one != other));
        assert!(of(1).values().eq(of(1).values()));
    }

    #[test]
    fn a_part_has_the_values_of_the_whole() {
        let whole = RandomMatrix { seed: u64::MAX - 5, shape: [5, 7], scale: 1.0, stride: 7 };
        let values: Vec<f32> = whole.values().collect();
        let part = whole.part(&(1..4), &(2..7)).part(&(1..3), &(0..4));
        let found: Vec<f32> = part.values().collect();
        assert_eq!(found, [&values[2 * 7 + 2..2 * 7 + 6], &values[3 * 7 + 2..3 * 7 + 6]].concat());
        assert_eq!(RandomMatrix::stacked(&[part, part]), [4, 4]);
    }
}
