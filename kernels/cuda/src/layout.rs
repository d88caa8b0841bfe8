//! Layout 1 of tuples, the device tiles. The same numbers stand in `device/layout.cuh`; they are part of the
//! kernel ABI.

use crate::StoredAs;

/// "Nothing stored": what the tables of offsets hold for a dead head's `T`.
pub const NONE: u64 = u64::MAX;

/// Alignment of every stored `T` and `S` in bytes: bulk copies need 16, tiles are read in lines of 128.
pub const ALIGNMENT: u64 = 128;

/// Where element (`row`, `column`) of `T` lies in its tile of 16-bit values: `[width / 64][row][64]`, the
/// 16-byte chunks of a row xored by its number.
pub fn tile_at(width: usize, row: usize, column: usize) -> usize {
    (column / 64) * width * 64 + row * 64 + (((column / 8) % 8) ^ (row % 8)) * 8 + column % 8
}

/// Where element (`row`, `column`) of `S` lies: `[width / 32][width / 16][4][lane 32][4]`, the order of the
/// tensor cores' accumulators.
pub fn state_at(width: usize, row: usize, column: usize) -> usize {
    let fragment = ((column / 32) * (width / 16) + row / 16) * 4 + (column / 8) % 4;
    let lane = (row % 8) * 4 + (column / 2) % 4;
    (fragment * 32 + lane) * 4 + column % 2 + 2 * ((row / 8) % 2)
}

/// Dynamic shared memory of `compose_chain_*` (device/compose_seam_hopper.cu): ring stages, two state tiles,
/// u, barriers.
pub(crate) fn compose_chain_shared(stored: StoredAs) -> usize {
    let (tiles, stages) = match stored {
        StoredAs::F16 => (1, 3),
        StoredAs::F32 => (2, 2),
    };
    let stage = (tiles * 32768 + 10368 + 2048 + 4096 * stored.size()).next_multiple_of(1024);
    stages * stage + 2 * 18432 + 1024 + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_are_permutations() {
        for width in [64, 128] {
            for at in [tile_at, state_at] {
                let mut seen = vec![false; width * width];
                for row in 0..width {
                    for column in 0..width {
                        assert!(!std::mem::replace(&mut seen[at(width, row, column)], true));
                    }
                }
            }
        }
    }
}
