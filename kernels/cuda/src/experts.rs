use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::{Buffer, Device, Error, Experts, Result};

// Sizes of device/experts.cu.
const PORTION: usize = 1024;
const TILE_ROWS: usize = 64;
const TILE_COLUMNS: usize = 128;
const TILE_INNER: usize = 64;
const SHARED: usize = 3 * (TILE_ROWS + TILE_COLUMNS) * TILE_INNER * 2;
pub(crate) const MOST_EXPERTS: usize = 1024;

/// Assignments of rows to experts, in the order of experts.
pub struct Routes {
    chosen: Buffer<u32>,
    weights: Buffer<f32>,
    /// The assignment at each place, and the place of each assignment.
    order: Buffer<u32>,
    place_of: Buffer<u32>,
    /// Of every portion, and of each expert within it: the first place. Those of the first portion are the experts'.
    first: Buffer<u32>,
    jobs: Buffer<u32>,
    job_count: Buffer<u32>,
    most_jobs: usize,
    experts: usize,
    top: usize,
}

/// What the rows of a product with experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Rows of activations; each goes to all experts that it chose.
    Rows,
    /// One row for every assignment, in the order of experts.
    Assigned,
}

/// Orders the assignments of [`choose_experts`](crate::choose_experts), `top` for each row, by expert.
///
/// # Errors
/// [`Error::CheckShape`] for more than 1024 experts, [`Error::CallDriver`] when a launch fails.
pub fn route(device: &Device, chosen: Experts, experts: usize, top: usize) -> Result<Routes> {
    let Experts { chosen, weights } = chosen;
    let assignments = chosen.len();
    Error::unless((1..=MOST_EXPERTS).contains(&experts), "experts", "1 to 1024", experts)?;
    Error::unless(
        top > 0 && assignments.is_multiple_of(top),
        "assignments",
        format!("{top} a row"),
        assignments,
    )?;
    let portions = assignments.div_ceil(PORTION);
    let most_jobs = assignments.div_ceil(TILE_ROWS) + experts.min(assignments);
    let table = |len| Buffer::fresh(device, len, Fresh::Anything);
    let mut counts = table(portions * experts)?;
    let (mut jobs, mut job_count) = (table(3 * most_jobs)?, table(1)?);
    let (mut order, mut place_of) = (table(assignments)?, table(assignments)?);
    Launch::new(device, "count_experts", [portions, 1, 1], 256)
        .read(&chosen)
        .write(&mut counts)
        .int(assignments)
        .int(experts)
        .run()?;
    Launch::new(device, "place_experts", [portions.min(1), 1, 1], 256)
        .write(&mut counts)
        .write(&mut jobs)
        .write(&mut job_count)
        .int(portions)
        .int(experts)
        .run()?;
    Launch::new(device, "order_experts", [portions, 1, 1], 256)
        .read(&chosen)
        .read(&counts)
        .write(&mut order)
        .write(&mut place_of)
        .int(assignments)
        .int(experts)
        .run()?;
    Ok(Routes { chosen, weights, order, place_of, first: counts, jobs, job_count, most_jobs, experts, top })
}

impl Routes {
    /// Rows of activations times what each chose.
    pub fn assignments(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn experts(&self) -> usize {
        self.experts
    }

    pub(crate) fn order(&self) -> &Buffer<u32> {
        &self.order
    }

    /// The first place of each expert, `[experts]` and more.
    pub(crate) fn first_places(&self) -> &Buffer<u32> {
        &self.first
    }

    /// Checks the operands of a product, and returns how many places share a row of `x`, 0 where each has its own.
    pub(crate) fn check<E: Float>(
        &self,
        (x, sent): (&Buffer<E>, Sent),
        weight: &Buffer<E>,
        [outer, inner]: [usize; 2],
    ) -> Result<usize> {
        let (rows, top) = match sent {
            Sent::Rows => (self.assignments() / self.top, self.top),
            Sent::Assigned => (self.assignments(), 0),
        };
        Error::unless(x.len() == rows * inner, "the rows", rows * inner, x.len())?;
        let size = self.experts * outer * inner;
        Error::unless(weight.len() == size, "the weights of the experts", size, weight.len())?;
        Ok(top)
    }

    /// `y [assignments, outer]`: every assignment's row of `x` `[.., inner]` times its expert's matrix of `weight`
    /// `[experts, outer, inner]`, transposed.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when the sizes do not fit, or `inner` is no multiple of 64 for bf16.
    pub fn multiply<E: Float>(
        &self,
        device: &Device,
        (x, sent): (&Buffer<E>, Sent),
        weight: &Buffer<E>,
        y: &mut Buffer<E>,
        [outer, inner]: [usize; 2],
    ) -> Result<()> {
        let assignments = self.assignments();
        let top = self.check((x, sent), weight, [outer, inner])?;
        Error::unless(y.len() == assignments * outer, "the products", assignments * outer, y.len())?;
        if E::NAME == f32::NAME {
            let grid = [assignments, outer.div_ceil(64), 1];
            return Launch::new(device, "experts_f32", grid, 32)
                .read(x)
                .read(weight)
                .write(y)
                .read(&self.chosen)
                .read(&self.order)
                .int(outer)
                .int(inner)
                .int(top)
                .run();
        }
        let fits = inner.is_multiple_of(TILE_INNER) && outer.is_multiple_of(8);
        Error::unless(fits, "the matrix of an expert", "in eights by 64s", format!("{outer} by {inner}"))?;
        Launch::new(device, "experts_bf16", [outer.div_ceil(TILE_COLUMNS), self.most_jobs, 1], 128)
            .shared(SHARED)
            .read(x)
            .read(weight)
            .write(y)
            .read(&self.jobs)
            .read(&self.job_count)
            .read(&self.order)
            .int(outer)
            .int(inner)
            .int(top)
            .run()
    }

    /// `out [rows, width]`: the sum over a row's assignments of weight times `y [assignments, width]`.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
    pub fn combine<E: Float>(
        &self,
        device: &Device,
        y: &Buffer<E>,
        out: &mut Buffer<E>,
        width: usize,
    ) -> Result<()> {
        let (assignments, rows) = (self.assignments(), self.assignments() / self.top);
        Error::unless(y.len() == assignments * width, "what experts say", assignments * width, y.len())?;
        Error::unless(out.len() == rows * width, "the sums", rows * width, out.len())?;
        Error::unless(width.is_multiple_of(4), "the width of rows", "a multiple of 4", width)?;
        Launch::new(device, format!("combine_experts_{}", E::NAME), [rows, 1, 1], 128)
            .read(y)
            .read(&self.weights)
            .read(&self.place_of)
            .write(out)
            .int(width)
            .int(self.top)
            .run()
    }
}
