use half::bf16;

use crate::choice::{FEW_ROWS_OF_EXPERTS, Shares, chooses_in_place, is_wide, shares_of, sums_in_place};
use crate::codes::Matrix;
use crate::experts::MOST_EXPERTS;
use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::product_few::{CHUNK, TILE_OUTER, TILE_ROWS};
use crate::{Buffer, Choice, Device, Error, Experts, Result};

/// Outputs of a tile of gate and up: a size of device/experts_few.cu.
const TILE_INNER: usize = 8;

/// Matrices of experts, one behind the other.
#[derive(Clone, Copy)]
pub struct ExpertWeights<'a, E: Float> {
    /// Width of an expert.
    pub width: usize,
    /// `[experts, 2 width, hidden]`: gate, then up.
    pub gate_up: Matrix<'a, E>,
    /// `[experts, hidden, width]`.
    pub down: Matrix<'a, E>,
}

impl<E: Float> ExpertWeights<'_, E> {
    fn check(&self, experts: usize, hidden: usize) -> Result<()> {
        let fits = self.width > 0 && self.width.is_multiple_of(CHUNK);
        Error::unless(fits, "the width of an expert", "a multiple of 32", self.width)?;
        self.gate_up.check("gate and up", [experts * 2 * self.width, hidden])?;
        self.down.check("down", [experts * hidden, self.width])
    }
}

impl Choice {
    /// The experts of each row, or where they go.
    fn experts(&self) -> &Experts {
        match self {
            Self::Made(experts) | Self::ToMake { into: experts, .. } => experts,
        }
    }

    fn is_made(&self) -> usize {
        usize::from(matches!(self, Self::Made(_)))
    }
}

/// A mixture of experts over few rows.
pub struct ExpertsFew<'a, E: Float> {
    /// Rows, `[rows, hidden]`.
    pub x: &'a Buffer<E>,
    /// Width of a row.
    pub hidden: usize,
    /// Experts that there are.
    pub experts: usize,
    /// What the rows chose, at most [`FEW_ROWS_OF_EXPERTS`] of them.
    pub choice: &'a mut Choice,
    /// Those that are chosen from.
    pub routed: ExpertWeights<'a, E>,
    /// The one that all rows share, and its gates before the sigmoid, `[rows]`.
    pub shared: Option<(ExpertWeights<'a, E>, &'a Buffer<f32>)>,
    /// `[rows, hidden]`; what the experts say is added to it.
    pub out: &'a mut Buffer<E>,
}

/// `out += sum of share times down(silu(gate x) * up x)` over what each row chose, and the shared expert: three launches, two
/// of one row with few and narrow experts, in which every weight that somebody chose streams once for each eight of its
/// rows. A row's results do not depend on the other rows.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, for other formats than bf16, or too many rows;
/// [`Error::CallDriver`] when a launch fails.
pub fn experts_few<E: Float>(device: &Device, mut run: ExpertsFew<'_, E>) -> Result<()> {
    let Some(sizes) = run.sizes()? else {
        return Ok(());
    };
    let Sizes { numbers: [rows, top, _, hidden, width, apart], wide, .. } = sizes;
    let assignments = rows * top;
    let mut inner: Buffer<E> = Buffer::fresh(device, assignments * width, Fresh::Anything)?;
    let mut inner_apart: Buffer<E> = Buffer::fresh(device, rows * apart, Fresh::Anything)?;
    gate_up(device, &mut run, sizes, [&mut inner, &mut inner_apart])?;
    if sums_in_place(rows, top, wide) {
        return down_one(device, run, sizes, [&inner, &inner_apart]);
    }
    let mut said: Buffer<f32> = Buffer::fresh(device, assignments * hidden, Fresh::Anything)?;
    let mut said_apart: Buffer<f32> =
        Buffer::fresh(device, if apart > 0 { rows * hidden } else { 0 }, Fresh::Anything)?;
    down(device, &run, sizes, [&inner, &inner_apart], [&mut said, &mut said_apart])?;
    sum(device, run, sizes, [&said, &said_apart])
}

/// Sizes of a mixture, which were checked.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows, experts of each, experts, hidden, width of an expert, width of the shared one or 0.
    numbers: [usize; 6],
    /// Wider of the two.
    wide: usize,
    /// Experts, or assignments where these are fewer, and eights of rows of the shared expert.
    jobs: usize,
}

impl<E: Float> ExpertsFew<'_, E> {
    /// None where there are no rows.
    fn sizes(&self) -> Result<Option<Sizes>> {
        let Self { hidden, experts, .. } = *self;
        Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
        let fits = hidden > 0 && hidden.is_multiple_of(CHUNK) && self.x.len().is_multiple_of(hidden);
        Error::unless(fits, "the width of rows", "a multiple of 32, a divisor of the rows", hidden)?;
        let rows = self.x.len() / hidden;
        Error::unless(rows <= FEW_ROWS_OF_EXPERTS, "rows", format!("at most {FEW_ROWS_OF_EXPERTS}"), rows)?;
        Error::unless(self.out.len() == self.x.len(), "the sums", self.x.len(), self.out.len())?;
        self.routed.check(experts, hidden)?;
        if let Some((weights, gates)) = &self.shared {
            weights.check(1, hidden)?;
            Error::unless(gates.len() == rows, "gates of the shared expert", rows, gates.len())?;
        }
        if rows == 0 {
            return Ok(None);
        }
        let Experts { chosen, weights } = self.choice.experts();
        let top = chosen.len() / rows;
        let scored = match &*self.choice {
            Choice::Made(_) => true,
            Choice::ToMake { logits, .. } => {
                let fits = top <= experts && experts <= MOST_EXPERTS;
                chooses_in_place(rows, top) && logits.len() == rows * experts && fits
            }
        };
        let fits = top > 0 && top * rows == chosen.len() && weights.len() == chosen.len() && scored;
        Error::unless(fits, "assignments", format!("as many for each of {rows} rows"), chosen.len())?;
        let apart = self.shared.as_ref().map_or(0, |(weights, _)| weights.width);
        let jobs = (rows * top).min(experts) + if apart > 0 { rows.div_ceil(TILE_ROWS) } else { 0 };
        let numbers = [rows, top, experts, hidden, self.routed.width, apart];
        Ok(Some(Sizes { numbers, wide: self.routed.width.max(apart), jobs }))
    }
}

fn gate_up<E: Float>(
    device: &Device,
    run: &mut ExpertsFew<'_, E>,
    Sizes { numbers, wide, jobs }: Sizes,
    [inner, inner_apart]: [&mut Buffer<E>; 2],
) -> Result<()> {
    let Shares { split, tiles } = shares_of(run.hidden);
    let (grid, threads) = ([wide.div_ceil(TILE_INNER).div_ceil(tiles), jobs, 1], 32 * split * tiles);
    let both = [Some(run.routed.gate_up), run.shared.map(|(weights, _)| weights.gate_up)];
    let kernel = match run.choice {
        Choice::Made(_) if is_coded(both) => "experts_few_gate_up_codes",
        Choice::Made(_) => "experts_few_gate_up",
        Choice::ToMake { .. } if is_coded(both) => "experts_few_choose_gate_up_codes",
        Choice::ToMake { .. } if is_wide(grid[0] * jobs, threads, device.multiprocessors()) => {
            "experts_few_choose_gate_up_wide"
        }
        Choice::ToMake { .. } => "experts_few_choose_gate_up",
    };
    let launch = Launch::new(device, kernel, grid, threads).overlapping();
    let launch = with_weights(launch.read(run.x), both);
    let (launch, renormalise) = match &mut *run.choice {
        Choice::Made(Experts { chosen, .. }) => (launch.read(chosen), None),
        Choice::ToMake { logits, renormalise, into } => {
            let launch = launch.read(logits).write(&mut into.chosen).write(&mut into.weights);
            (launch, Some(*renormalise))
        }
    };
    let launch = numbers.into_iter().fold(launch.write(inner).write(inner_apart), Launch::int).int(split);
    match renormalise {
        None => launch.run(),
        Some(renormalise) => launch.int(usize::from(renormalise)).run(),
    }
}

fn down<E: Float>(
    device: &Device,
    run: &ExpertsFew<'_, E>,
    Sizes { numbers, wide, jobs }: Sizes,
    [inner, inner_apart]: [&Buffer<E>; 2],
    [said, said_apart]: [&mut Buffer<f32>; 2],
) -> Result<()> {
    let Shares { split, tiles } = shares_of(wide);
    let grid = [run.hidden.div_ceil(TILE_OUTER).div_ceil(tiles), jobs, 1];
    let both = [Some(run.routed.down), run.shared.map(|(weights, _)| weights.down)];
    let kernel = if is_coded(both) { "experts_few_down_codes" } else { "experts_few_down" };
    let launch = Launch::new(device, kernel, grid, 32 * split * tiles).overlapping();
    let launch = with_weights(launch.read(inner).read(inner_apart), both);
    let launch = launch.read(&run.choice.experts().chosen);
    let launch = numbers.into_iter().fold(launch.write(said).write(said_apart), Launch::int).int(split);
    launch.int(run.choice.is_made()).run()
}

fn sum<E: Float>(
    device: &Device,
    run: ExpertsFew<'_, E>,
    Sizes { numbers: [rows, top, ..], .. }: Sizes,
    [said, said_apart]: [&Buffer<f32>; 2],
) -> Result<()> {
    let (hidden, gates) = (run.hidden, run.shared.map(|(_, gates)| gates));
    let weights = &run.choice.experts().weights;
    let numbers = [hidden, top, usize::from(gates.is_some())];
    let launch = Launch::new(device, "experts_few_sum", [rows, hidden.div_ceil(128), 1], 128);
    let launch = launch.overlapping().read(said).read(said_apart).read(weights).read_if(gates);
    numbers.into_iter().fold(launch.write(run.out), Launch::int).run()
}

/// Downs and sums of one row at once.
fn down_one<E: Float>(
    device: &Device,
    run: ExpertsFew<'_, E>,
    Sizes { numbers: [_, top, _, hidden, width, apart], .. }: Sizes,
    [inner, inner_apart]: [&Buffer<E>; 2],
) -> Result<()> {
    let ExpertsFew { choice, routed, shared, out, .. } = run;
    let Experts { chosen, weights } = choice.experts();
    let (warps, gates) = (top + usize::from(apart > 0), shared.map(|(_, gates)| gates));
    let both = [Some(routed.down), shared.map(|(weights, _)| weights.down)];
    let kernel = if is_coded(both) { "experts_few_down_one_codes" } else { "experts_few_down_one" };
    let launch = Launch::new(device, kernel, [hidden / TILE_OUTER, 1, 1], 32 * warps).overlapping();
    let launch = with_weights(launch.read(inner).read(inner_apart), both);
    let launch = launch.read(chosen).read(weights).read_if(gates).write(out);
    [top, hidden, width, apart, choice.is_made()].into_iter().fold(launch, Launch::int).run()
}

/// Whether the kernel reads codes.
fn is_coded<E: Float>(weights: [Option<Matrix<'_, E>>; 2]) -> bool {
    weights.into_iter().flatten().any(Matrix::is_coded)
}

/// The matrices of the experts and of the shared one, and their factors where the kernel reads codes.
fn with_weights<'a, E: Float>(launch: Launch<'a>, weights: [Option<Matrix<'a, E>>; 2]) -> Launch<'a> {
    let each = |launch, one: fn(Launch<'a>, Matrix<'a, E>) -> Launch<'a>| {
        weights.into_iter().fold(launch, |launch: Launch<'a>, weight| match weight {
            Some(weight) => one(launch, weight),
            None => launch.unused(),
        })
    };
    let launch = each(launch, Launch::matrix);
    if is_coded(weights) { each(launch, Launch::factors) } else { launch }
}
