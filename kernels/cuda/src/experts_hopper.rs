//! Products of experts with wgmma: the form for many rows on sm_90a.

use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result, Routes, Sent};

// Sizes of device/experts_hopper.cu.
const THREADS: usize = 384;
const TILE_ROWS: usize = 128;
const TILE_OUTER: usize = 256;
const SLICE: usize = 64;
const STAGES: usize = 4;
const SHARED: usize = STAGES * (TILE_ROWS + TILE_OUTER) * SLICE * 2 + 8 * 2048 + STAGES * 16;

impl Routes {
    /// `y [assignments, width]`: `silu(gate x) * up x` of every assignment, where `weight` `[experts, 2 width, inner]` has
    /// an expert's gates and below them its ups. A row of `x` `[rows, inner]` goes to all experts that it chose.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when the sizes do not fit, `inner` is no multiple of 64 or `width` of 8,
    /// [`Error::FindKernel`] for fp32, and on anything but sm_90a.
    pub fn gate_hopper<E: Float>(
        &self,
        device: &Device,
        x: &Buffer<E>,
        weight: &Buffer<E>,
        y: &mut Buffer<E>,
        [width, inner]: [usize; 2],
    ) -> Result<()> {
        self.launch(device, ("experts_gated_hopper", width, Sent::Rows), [x, weight], y, [2 * width, inner])
    }

    /// What [`Routes::multiply`] does.
    ///
    /// # Errors
    /// As [`Routes::gate_hopper`].
    pub fn multiply_hopper<E: Float>(
        &self,
        device: &Device,
        (x, sent): (&Buffer<E>, Sent),
        weight: &Buffer<E>,
        y: &mut Buffer<E>,
        [outer, inner]: [usize; 2],
    ) -> Result<()> {
        self.launch(device, ("experts_hopper", outer, sent), [x, weight], y, [outer, inner])
    }

    fn launch<E: Float>(
        &self,
        device: &Device,
        (kernel, width, sent): (&str, usize, Sent),
        [x, weight]: [&Buffer<E>; 2],
        y: &mut Buffer<E>,
        [outer, inner]: [usize; 2],
    ) -> Result<()> {
        let (assignments, experts) = (self.assignments(), self.experts());
        let top = self.check((x, sent), weight, [outer, inner])?;
        Error::unless(y.len() == assignments * width, "the products", assignments * width, y.len())?;
        let fits = inner.is_multiple_of(SLICE) && width.is_multiple_of(8);
        Error::unless(fits, "the matrix of an expert", "in eights by 64s", format!("{width} by {inner}"))?;
        // The kernel counts rows of weights and units of 16 bytes of x in 31 bits.
        let most = (experts * outer).max(x.len() / 8);
        Error::unless(i32::try_from(most).is_ok(), "rows of weights and activations", "under 2^31", most)?;
        let columns = width.div_ceil(TILE_OUTER * width / outer);
        let tiles = (assignments.div_ceil(TILE_ROWS) + experts.min(assignments)) * columns;
        let blocks = device.multiprocessors().min(tiles);
        let launch = Launch::new(device, kernel, [blocks, 1, 1], THREADS).shared(SHARED + experts * 4);
        launch
            .boxes(weight, [experts * outer, inner], [TILE_OUTER / 2, SLICE])?
            .read(x)
            .write(y)
            .read(self.first_places())
            .read(self.order())
            .int(experts)
            .int(assignments)
            .int(outer)
            .int(inner)
            .int(top)
            .run()
    }
}
