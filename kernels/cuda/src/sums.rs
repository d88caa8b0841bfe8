//! Sums over the ranks of tensor parallel.

use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::rows::blocks;
use crate::{Buffer, Device, Error, Result};

const THREADS: usize = 128;
/// As in device/sums.cu.
const MOST_RANKS: usize = 16;

/// `base[rank] + parts[0] + parts[1] + ..` on every rank, in that order in fp32 and rounded once. Rank `n` is the device
/// of `parts[n]`, and of `base[n]` where there is a base; ranks on a GPU have been made known by [`Device::link`].
///
/// Nothing waits on the host: a rank's stream waits for the parts of all, and before it goes on, for all to have read its
/// own, which may then be given back.
///
/// # Errors
/// [`Error::CheckShape`] for more than 16 ranks, parts of several sizes or of no whole units of 16 bytes,
/// [`Error::CallDriver`] when a launch fails.
pub fn sum_ranks<E: Float>(
    base: Option<&[&Buffer<E>]>,
    parts: &[&Buffer<E>],
    fresh: Fresh,
) -> Result<Vec<Buffer<E>>> {
    let (ranks, len) = (parts.len(), parts.first().map_or(0, |part| part.len()));
    Error::unless((1..=MOST_RANKS).contains(&ranks), "ranks", format!("1 to {MOST_RANKS}"), ranks)?;
    let all = || parts.iter().chain(base.into_iter().flatten());
    Error::unless(base.is_none_or(|base| base.len() == ranks), "bases", ranks, base.map_or(0, <[_]>::len))?;
    Error::unless(all().all(|part| part.len() == len), "parts of a sum", format!("{len} values"), "others")?;
    let units = len * size_of::<E>() / 16;
    Error::unless(units * 16 == len * size_of::<E>(), "parts of a sum", "whole units of 16 bytes", len)?;
    let devices: Vec<&Device> = parts.iter().map(|part| part.device()).collect();
    Device::meet(&devices)?;
    let sum = |(rank, device): (usize, &&Device)| {
        let mut sum = Buffer::fresh(device, len, fresh)?;
        let launch =
            Launch::new(device, format!("sum_ranks_{}", E::NAME), [blocks(device, units)?, 1, 1], THREADS);
        let launch = match base {
            Some(base) => launch.read(base[rank]),
            None => launch.unused(),
        };
        let launch = parts.iter().fold(launch, |launch, part| launch.read(part));
        let launch = (ranks..MOST_RANKS).fold(launch, |launch, _| launch.unused());
        launch.write(&mut sum).int(units).int(ranks).run()?;
        Ok(sum)
    };
    let sums = devices.iter().enumerate().map(sum).collect();
    // Also when a launch failed: the others read on.
    Device::meet(&devices)?;
    sums
}
