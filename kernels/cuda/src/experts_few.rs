use half::bf16;

use crate::choice::{FEW_ROWS_OF_EXPERTS, Shares, fits_at_once, shares_of};
use crate::codes::Matrix;
use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::product_few::{CHUNK, TILE_OUTER, TILE_ROWS};
use crate::{Buffer, Device, Error, Experts, Result};

/// Outputs of a tile of gate and up.
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

/// A mixture of experts over few rows.
pub struct ExpertsFew<'a, E: Float> {
    /// Rows, `[rows, hidden]`.
    pub x: &'a Buffer<E>,
    /// Width of a row.
    pub hidden: usize,
    /// Experts that there are.
    pub experts: usize,
    /// What the rows chose, at most [`FEW_ROWS_OF_EXPERTS`] of them.
    pub chosen: &'a Experts,
    /// Those that are chosen from.
    pub routed: ExpertWeights<'a, E>,
    /// The one that all rows share, and its gates before the sigmoid, `[rows]`.
    pub shared: Option<(ExpertWeights<'a, E>, &'a Buffer<f32>)>,
    /// `[rows, hidden]`; what the experts say is added to it.
    pub out: &'a mut Buffer<E>,
}

/// `out += sum of share times down(silu(gate x) * up x)` over what each row chose, and the shared expert: three launches,
/// in which every weight that somebody chose streams once for each eight of its rows. A row's results do not depend on the
/// other rows.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, for other formats than bf16, or too many rows;
/// [`Error::CallDriver`] when a launch fails.
pub fn experts_few<E: Float>(device: &Device, run: ExpertsFew<'_, E>) -> Result<()> {
    let ExpertsFew { x, hidden, experts, chosen: Experts { chosen, weights }, routed, shared, out } = run;
    Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
    let fits = hidden > 0 && hidden.is_multiple_of(CHUNK) && x.len().is_multiple_of(hidden);
    Error::unless(fits, "the width of rows", "a multiple of 32, a divisor of the rows", hidden)?;
    let (rows, assignments) = (x.len() / hidden, chosen.len());
    Error::unless(rows <= FEW_ROWS_OF_EXPERTS, "rows", format!("at most {FEW_ROWS_OF_EXPERTS}"), rows)?;
    Error::unless(out.len() == x.len(), "the sums", x.len(), out.len())?;
    if rows == 0 {
        return Ok(());
    }
    let top = assignments / rows;
    let whole = top > 0 && top * rows == assignments && weights.len() == assignments;
    Error::unless(whole, "assignments", format!("as many for each of {rows} rows"), assignments)?;
    routed.check(experts, hidden)?;
    if let Some((weights, gates)) = &shared {
        weights.check(1, hidden)?;
        Error::unless(gates.len() == rows, "gates of the shared expert", rows, gates.len())?;
    }
    let (apart_weights, gates) = shared.unzip();
    let apart = apart_weights.map_or(0, |weights| weights.width);
    let jobs = assignments.min(experts) + if apart > 0 { rows.div_ceil(TILE_ROWS) } else { 0 };
    let mut inner: Buffer<E> = Buffer::fresh(device, assignments * routed.width, Fresh::Anything)?;
    let mut inner_apart: Buffer<E> = Buffer::fresh(device, rows * apart, Fresh::Anything)?;
    let mut said: Buffer<f32> = Buffer::fresh(device, assignments * hidden, Fresh::Anything)?;
    let mut said_apart: Buffer<f32> =
        Buffer::fresh(device, if apart > 0 { rows * hidden } else { 0 }, Fresh::Anything)?;
    let wide = routed.width.max(apart);
    let numbers = [rows, top, experts, hidden, routed.width, apart];
    let Shares { split, tiles } = shares_of(hidden);
    let grid = [wide.div_ceil(TILE_INNER).div_ceil(tiles), jobs, 1];
    let both = [Some(routed.gate_up), apart_weights.map(|weights| weights.gate_up)];
    let kernel = match fits_at_once(grid[0] * jobs, device.multiprocessors()) {
        _ if is_coded(both) => "experts_few_gate_up_codes",
        true => "experts_few_gate_up_wide",
        false => "experts_few_gate_up",
    };
    let launch = Launch::new(device, kernel, grid, 32 * split * tiles).overlapping();
    let launch = with_weights(launch.read(x), both).read(chosen).write(&mut inner).write(&mut inner_apart);
    numbers.into_iter().fold(launch, Launch::int).int(split).run()?;
    let Shares { split, tiles } = shares_of(wide);
    let grid = [hidden.div_ceil(TILE_OUTER).div_ceil(tiles), jobs, 1];
    let both = [Some(routed.down), apart_weights.map(|weights| weights.down)];
    let kernel = if is_coded(both) { "experts_few_down_codes" } else { "experts_few_down" };
    let launch = Launch::new(device, kernel, grid, 32 * split * tiles).overlapping();
    let launch = with_weights(launch.read(&inner).read(&inner_apart), both)
        .read(chosen)
        .write(&mut said)
        .write(&mut said_apart);
    numbers.into_iter().fold(launch, Launch::int).int(split).run()?;
    let launch = Launch::new(device, "experts_few_sum", [rows, hidden.div_ceil(128), 1], 128).overlapping();
    let launch = launch.read(&said).read(&said_apart).read(weights).read_if(gates);
    launch.write(out).int(hidden).int(top).int(usize::from(gates.is_some())).run()
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
