//! Cutting the axes of weights.

use std::borrow::Cow;
use std::ops::Range;

use crate::coded::Coded;
use crate::op::{HostTensor, OpError, Split};
use crate::random::RandomMatrix;

/// Which rank of how many.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) ranks: usize,
}

/// What a rank has of an axis of `len`: its part of each block, where the axis is `blocks` again and again. None where
/// they are not, or cannot be divided.
pub(super) fn axis(len: usize, blocks: &[usize], Place { rank, ranks }: Place) -> Option<Vec<Range<usize>>> {
    let whole: usize = blocks.iter().sum();
    let divide = blocks.iter().all(|block| block.is_multiple_of(ranks));
    if whole == 0 || !len.is_multiple_of(whole) || !divide {
        return None;
    }
    let mut first = 0;
    let part = |block: &usize| {
        let each = block / ranks;
        let start = first + rank * each;
        first += block;
        start..start + each
    };
    Some(blocks.iter().cycle().take(blocks.len() * (len / whole)).map(part).collect())
}

/// Why something of that shape has no such part.
fn refused(what: String, split: &Split, place: Place) -> OpError {
    let what = format!("{what} cut as {split:?} over {} ranks", place.ranks);
    OpError::Unsupported { op: "tensor parallel", what }
}

/// A rank's part of a weight: its shape and values.
///
/// # Errors
/// [`OpError::Shape`] for bytes that are no such tensor, [`OpError::Unsupported`] for one that cannot be divided.
pub(super) fn weight<'a>(
    host: &HostTensor<'a>,
    place: Place,
) -> Result<(Vec<usize>, Cow<'a, [u8]>), OpError> {
    let HostTensor { name, ref shape, dtype, bytes, ref split } = *host;
    let size = shape.iter().product::<usize>() * dtype.size();
    if bytes.len() != size {
        return Err(OpError::shape("weight", format!("{size} bytes for \"{name}\""), bytes.len()));
    }
    let refused = || refused(format!("\"{name}\", {shape:?}"), split, place);
    match (split, &shape[..]) {
        (Split::Whole, _) => Ok((shape.clone(), Cow::Borrowed(bytes))),
        (Split::Rows(blocks), &[rows, ref inner @ ..]) => {
            let parts = axis(rows, blocks, place).ok_or_else(refused)?;
            let width = inner.iter().product::<usize>() * dtype.size();
            let rows = rows / place.ranks;
            let mut own = Vec::with_capacity(rows * width);
            parts.iter().for_each(|part| own.extend_from_slice(&bytes[part.start * width..part.end * width]));
            Ok(([&[rows], inner].concat(), Cow::Owned(own)))
        }
        (Split::Columns, &[rows, columns]) if columns.is_multiple_of(place.ranks) => {
            let (each, width) = (columns / place.ranks, columns * dtype.size());
            let part = place.rank * each * dtype.size()..(place.rank + 1) * each * dtype.size();
            let mut own = Vec::with_capacity(rows * each * dtype.size());
            bytes.chunks_exact(width.max(1)).for_each(|row| own.extend_from_slice(&row[part.clone()]));
            Ok((vec![rows, each], Cow::Owned(own)))
        }
        _ => Err(refused()),
    }
}

/// A rank's part of a matrix in codes.
///
/// # Errors
/// [`OpError::Unsupported`] for one that cannot be divided.
pub(super) fn coded<'a>(
    name: &str,
    matrix: &'a Coded,
    split: &Split,
    place: Place,
) -> Result<Cow<'a, Coded>, OpError> {
    let [rows, columns] = matrix.shape();
    let refused = || refused(format!("\"{name}\", {:?}", matrix.shape()), split, place);
    match split {
        Split::Whole => Ok(Cow::Borrowed(matrix)),
        Split::Rows(blocks) => {
            let parts = axis(rows, blocks, place).ok_or_else(refused)?;
            Ok(Cow::Owned(matrix.rows(parts.into_iter().flatten())))
        }
        Split::Columns => match &axis(columns, &[columns], place).ok_or_else(refused)?[..] {
            [part] => Ok(Cow::Owned(matrix.columns(part))),
            _ => Err(refused()),
        },
    }
}

/// A rank's part of blocks of random rows.
///
/// # Errors
/// [`OpError::Unsupported`] for what cannot be divided.
pub(super) fn random(
    blocks: &[RandomMatrix],
    split: &Split,
    place: Place,
) -> Result<Vec<RandomMatrix>, OpError> {
    let refused = |matrix: &RandomMatrix| refused(format!("{:?}", matrix.shape), split, place);
    let mut own = Vec::new();
    for matrix in blocks {
        let [rows, columns] = matrix.shape;
        match split {
            Split::Whole => own.push(*matrix),
            Split::Rows(blocks) => {
                let parts = axis(rows, blocks, place).ok_or_else(|| refused(matrix))?;
                own.extend(parts.iter().map(|rows| matrix.part(rows, &(0..columns))));
            }
            Split::Columns => {
                let parts = axis(columns, &[columns], place).ok_or_else(|| refused(matrix))?;
                own.extend(parts.iter().map(|columns| matrix.part(&(0..rows), columns)));
            }
        }
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use hypic_domain::tuple::Dtype;

    use super::*;
    use crate::coded::Blocks;

    fn parts(shape: &[usize], split: &Split, ranks: usize) -> Vec<(Vec<usize>, Vec<u8>)> {
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>() as u32).flat_map(u32::to_le_bytes).collect();
        let shape = shape.to_vec();
        let host = HostTensor { name: "w", shape, dtype: Dtype::F32, bytes: &bytes, split: split.clone() };
        let part = |rank| weight(&host, Place { rank, ranks }).unwrap();
        let value = |bytes: &[u8]| bytes.chunks_exact(4).map(|value| value[0]).collect();
        (0..ranks).map(part).map(|(shape, bytes)| (shape, value(&bytes))).collect()
    }

    #[test]
    fn every_block_of_rows_is_divided() {
        let found = parts(&[12], &Split::Rows(vec![2, 4]), 2);
        assert_eq!(found, [(vec![6], vec![0, 2, 3, 6, 8, 9]), (vec![6], vec![1, 4, 5, 7, 10, 11])]);
        let found = parts(&[4, 2], &Split::Rows(vec![2]), 2);
        assert_eq!(found, [(vec![2, 2], vec![0, 1, 4, 5]), (vec![2, 2], vec![2, 3, 6, 7])]);
    }

    #[test]
    fn columns_are_divided_in_every_row() {
        let found = parts(&[2, 4], &Split::Columns, 2);
        assert_eq!(found, [(vec![2, 2], vec![0, 1, 4, 5]), (vec![2, 2], vec![2, 3, 6, 7])]);
        assert_eq!(
            parts(&[2, 2], &Split::Whole, 2),
            [(vec![2, 2], vec![0, 1, 2, 3]), (vec![2, 2], vec![0, 1, 2, 3])]
        );
    }

    #[test]
    fn what_cannot_be_divided_is_named() {
        let place = Place { rank: 0, ranks: 2 };
        for (shape, split) in [
            (vec![3, 2], Split::Rows(vec![3])),
            (vec![6, 2], Split::Rows(vec![4])),
            (vec![6, 2], Split::Rows(Vec::new())),
            (vec![2, 3], Split::Columns),
            (vec![4], Split::Columns),
        ] {
            let bytes = vec![0; 4 * shape.iter().product::<usize>()];
            let host = HostTensor { name: "w", shape, dtype: Dtype::F32, bytes: &bytes, split };
            let error = weight(&host, place).unwrap_err().to_string();
            assert!(error.starts_with("tensor parallel is not available for \"w\""), "{error}");
        }
        let shape = vec![2, 2];
        let host = HostTensor { name: "w", shape, dtype: Dtype::F32, bytes: &[0; 8], split: Split::Columns };
        assert!(matches!(weight(&host, place), Err(OpError::Shape { .. })));
    }

    #[test]
    fn a_random_matrix_is_divided_like_a_stored_one() {
        let matrix = RandomMatrix { seed: 3, shape: [12, 8], scale: 1.0, stride: 8 };
        let bytes: Vec<u8> = matrix.values().flat_map(f32::to_le_bytes).collect();
        for split in [Split::Whole, Split::Rows(vec![2, 4]), Split::Rows(vec![4]), Split::Columns] {
            for rank in 0..2 {
                let place = Place { rank, ranks: 2 };
                let (shape, dtype) = (vec![12, 8], Dtype::F32);
                let host = HostTensor { name: "w", shape, dtype, bytes: &bytes, split: split.clone() };
                let (shape, stored) = weight(&host, place).unwrap();
                let blocks = random(&[matrix], &split, place).unwrap();
                assert_eq!(RandomMatrix::stacked(&blocks)[..], shape);
                let drawn = blocks.iter().flat_map(RandomMatrix::values).flat_map(f32::to_le_bytes);
                assert!(drawn.eq(stored.iter().copied()));
            }
        }
        assert!(random(&[matrix], &Split::Rows(vec![3]), Place { rank: 0, ranks: 2 }).is_err());
    }

    #[test]
    fn a_matrix_in_codes_is_divided_like_its_values() {
        let blocks = Blocks { rows: 4, columns: 8 };
        let factors = (1..=6).map(|factor| factor as f32).collect();
        let matrix = Coded::new((0..12 * 16).collect(), [1, 12, 16], blocks, factors).unwrap();
        let bytes = |matrix: &Coded| matrix.values().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let whole = bytes(&matrix);
        for split in [Split::Whole, Split::Rows(vec![4, 8]), Split::Rows(vec![4]), Split::Columns] {
            for place in [0, 1].map(|rank| Place { rank, ranks: 2 }) {
                let (shape, dtype) = (vec![12, 16], Dtype::F32);
                let host = HostTensor { name: "w", shape, dtype, bytes: &whole, split: split.clone() };
                let (shape, stored) = weight(&host, place).unwrap();
                let part = coded("w", &matrix, &split, place).unwrap();
                assert_eq!((&part.shape()[..], bytes(&part)), (&shape[..], stored.into_owned()));
            }
        }
        let place = Place { rank: 0, ranks: 3 };
        let error = coded("w", &matrix, &Split::Columns, place).unwrap_err().to_string();
        assert!(error.starts_with("tensor parallel is not available for \"w\""), "{error}");
    }
}
