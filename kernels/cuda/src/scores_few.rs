use half::bf16;

use crate::choice::{adds_in_place, chooses_in_place};
use crate::experts::MOST_EXPERTS;
use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::product_few::{CHUNK, Grid, room_of};
use crate::{Buffer, Device, Error, Experts, Result};

/// How the experts of rows are found.
#[derive(Clone, Copy)]
pub struct Router<'a, E: Float> {
    /// Scores of experts, `[experts, inner]`.
    pub weight: &'a Buffer<E>,
    /// Experts that there are.
    pub experts: usize,
    /// The gate of the expert that all rows share, `[inner]`.
    pub gate: Option<&'a Buffer<E>>,
    /// Experts of each row.
    pub top: usize,
    /// Whether the weights of a row are made to sum to 1.
    pub renormalise: bool,
}

/// The experts of each row.
pub enum Choice {
    /// That were chosen.
    Made(Experts),
    /// That [`experts_few`](crate::experts_few) chooses, as [`choose_experts`](crate::choose_experts) does.
    ToMake {
        /// What they are chosen by, `[rows, experts]`.
        logits: Buffer<f32>,
        /// Whether the weights of a row are made to sum to 1.
        renormalise: bool,
        /// Where they go: nobody yet.
        into: Experts,
    },
}

/// What a router says of rows.
pub struct Routed {
    /// The experts of each row.
    pub choice: Choice,
    /// Gates of the shared expert before the sigmoid, `[rows]`; nothing without one.
    pub gates: Buffer<f32>,
}

/// Sums of rows and their norms, for [`add_norm_scores_few`].
pub struct SumAndNorm<'a, E: Float> {
    /// What is added up, `[rows, inner]` each.
    pub terms: [&'a Buffer<E>; 2],
    /// Weight of the norm, `[inner]`.
    pub weight: &'a Buffer<f32>,
    /// 1 for zero-centred weights, else 0.
    pub offset: f32,
    /// What is added to the mean of squares.
    pub eps: f32,
    /// The sums and their norms, `[rows, inner]` each.
    pub out: [&'a mut Buffer<E>; 2],
}

/// Scores of rows of bf16, `x [rows, inner]`, with the bits of [`product_few`](crate::product_few), for a choice that the next
/// launch makes: of at most eight rows, and 256 experts in all.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, for other formats or more rows; [`Error::CallDriver`] when the launch
/// fails.
pub fn scores_few<E: Float>(
    device: &Device,
    x: &Buffer<E>,
    rows: [usize; 2],
    router: Router<'_, E>,
) -> Result<Routed> {
    Error::unless(x.len() == rows[0] * rows[1], "the rows", rows[0] * rows[1], x.len())?;
    let scores = Scoring::new(device, rows, router)?;
    let launch = scores.launch(device, "scores_few").read(x);
    scores.run(launch, router, |launch| launch)
}

/// [`add_norm`](crate::add_norm) into rows of their own, and [`scores_few`] of the norms, in one launch and with the same
/// bits: of at most two rows, 8192 wide.
///
/// # Errors
/// As [`scores_few`], and for more rows.
pub fn add_norm_scores_few<E: Float>(
    device: &Device,
    run: SumAndNorm<'_, E>,
    [rows, inner]: [usize; 2],
    router: Router<'_, E>,
) -> Result<Routed> {
    let SumAndNorm { terms: [x, r], weight, offset, eps, out: [sums, normed] } = run;
    Error::unless(adds_in_place(rows, inner), "rows", "so few that each block adds them up", rows)?;
    for len in [x.len(), r.len(), sums.len(), normed.len()] {
        Error::unless(len == rows * inner, "the rows", rows * inner, len)?;
    }
    Error::unless(weight.len() == inner, "the norm's weight", inner, weight.len())?;
    let scores = Scoring::new(device, [rows, inner], router)?;
    let launch = scores.launch(device, "add_norm_scores_few").shared(room_of::<E>([rows, inner]));
    let launch = launch.read(x).read(r).read(weight).write(sums).write(normed);
    scores.run(launch, router, |launch| launch.float(offset).float(eps))
}

/// A launch of scores, after a check of its sizes, and what it writes.
struct Scoring {
    rows: [usize; 2],
    grid: Grid,
    logits: Buffer<f32>,
    into: Experts,
    gates: Buffer<f32>,
}

impl Scoring {
    fn new<E: Float>(device: &Device, [rows, inner]: [usize; 2], router: Router<'_, E>) -> Result<Self> {
        let Router { weight, experts, gate, top, .. } = router;
        Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
        let whole = inner.is_multiple_of(CHUNK) && inner > 0;
        Error::unless(whole, "terms of a sum", "a multiple of 32", inner)?;
        Error::unless(weight.len() == experts * inner, "the router", experts * inner, weight.len())?;
        if let Some(gate) = gate {
            Error::unless(gate.len() == inner, "the gate of the shared expert", inner, gate.len())?;
        }
        let fits = chooses_in_place(rows, top) && (1..=experts).contains(&top) && experts <= MOST_EXPERTS;
        let expected = || format!("so few of {rows} rows and {experts} experts that blocks choose them");
        Error::unless(fits, "experts of a row", expected(), top)?;
        let grid = Grid::of([rows, inner], [experts, usize::from(gate.is_some())].into_iter());
        let numbers = |len| Buffer::fresh(device, len, Fresh::Anything);
        let chosen = Buffer::fresh(device, rows * top, Fresh::Anything)?;
        let (into, gates) = (Experts { chosen, weights: numbers(rows * top)? }, gate.map_or(0, |_| rows));
        Ok(Self { rows: [rows, inner], grid, logits: numbers(rows * experts)?, into, gates: numbers(gates)? })
    }

    fn launch<'a>(&self, device: &'a Device, kernel: &str) -> Launch<'a> {
        Launch::new(device, kernel, self.grid.blocks, self.grid.threads).overlapping()
    }

    fn run<'a, E: Float>(
        self,
        launch: Launch<'a>,
        router: Router<'a, E>,
        last: impl FnOnce(Launch<'_>) -> Launch<'_>,
    ) -> Result<Routed> {
        let Self { rows: [rows, inner], grid, mut logits, mut into, mut gates } = self;
        let launch = launch.read(router.weight).read_if(router.gate).write(&mut logits).write(&mut gates);
        let launch = launch.write(&mut into.chosen);
        let numbers = [rows, inner, grid.split, router.experts, router.top];
        last(numbers.into_iter().fold(launch, Launch::int)).run()?;
        let choice = Choice::ToMake { logits, renormalise: router.renormalise, into };
        Ok(Routed { choice, gates })
    }
}
