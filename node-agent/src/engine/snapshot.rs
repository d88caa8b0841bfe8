//! A sequence at some point, to go on from there.

use hypic_kernels::op::Device;

use super::pool::Lease;

/// Enough of a sequence to go on from it as often as one likes: a fork, or an exact prefix in the cache of
/// snapshots. That cache counts states; the pages are in the pool already, and when they run out the cache gives
/// way.
pub(super) struct Saved<D: Device> {
    /// Running states and tails.
    pub(super) state: D::SlotState,
    /// Pages up to there. The last may be partly full and is copied before anybody writes on.
    pub(super) pages: Vec<Lease>,
    /// Positions of the live tokens in them.
    pub(super) live: Vec<u32>,
}
