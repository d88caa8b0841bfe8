use half::bf16;

use crate::choice::adds_in_place;
use crate::experts::MOST_EXPERTS;
use crate::launch::Launch;
use crate::memory::{Float, Fresh};
use crate::product_few::{CHUNK, Grid, room_of};
use crate::{Buffer, Device, Error, Experts, Result, RmsNorm};

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
    /// Of the sums.
    pub norm: RmsNorm<'a>,
    /// The sums and their norms, `[rows, inner]` each.
    pub out: [&'a mut Buffer<E>; 2],
}

/// [`add_norm`](crate::add_norm) into rows of their own, and scores of the norms with the bits of
/// [`product_few`](crate::product_few), in one launch: of at most two rows of bf16, 8192 wide, and 1024 experts in all. The
/// choice is left to who needs it.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, for other formats or more rows; [`Error::CallDriver`] when the launch
/// fails.
pub fn add_norm_scores_few<E: Float>(
    device: &Device,
    run: SumAndNorm<'_, E>,
    [rows, inner]: [usize; 2],
    router: Router<'_, E>,
) -> Result<Routed> {
    let SumAndNorm { terms: [x, r], norm: RmsNorm { weight, offset, eps }, out: [sums, normed] } = run;
    let Router { weight: scores, experts, gate, top, renormalise } = router;
    Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
    Error::unless(adds_in_place(rows, inner), "rows", "so few that each block adds them up", rows)?;
    let whole = inner.is_multiple_of(CHUNK) && inner > 0;
    Error::unless(whole, "terms of a sum", "a multiple of 32", inner)?;
    for (what, found, expected) in [
        ("the rows", x.len(), rows * inner),
        ("the rows", r.len(), rows * inner),
        ("the sums", sums.len(), rows * inner),
        ("the norms", normed.len(), rows * inner),
        ("the norm's weight", weight.len(), inner),
        ("the router", scores.len(), experts * inner),
        ("the gate of the shared expert", gate.map_or(inner, Buffer::len), inner),
    ] {
        Error::unless(found == expected, what, expected, found)?;
    }
    let fits = (1..=experts).contains(&top) && experts <= MOST_EXPERTS;
    Error::unless(fits, "experts of a row", format!("1 to {experts}, of at most {MOST_EXPERTS}"), top)?;
    let numbers = |len| Buffer::fresh(device, len, Fresh::Anything);
    let (mut logits, mut gates) = (numbers(rows * experts)?, numbers(gate.map_or(0, |_| rows))?);
    let chosen = Buffer::fresh(device, rows * top, Fresh::Anything)?;
    let mut into = Experts { chosen, weights: numbers(rows * top)? };
    let Grid { blocks, threads, split } =
        Grid::of([rows, inner], [experts, usize::from(gate.is_some())].into_iter());
    let launch = Launch::new(device, "add_norm_scores_few", blocks, threads).overlapping();
    let launch = launch.shared(room_of::<E>([rows, inner])).read(x).read(r).read(weight);
    let launch = launch.write(sums).write(normed).read(scores).read_if(gate);
    let launch = launch.write(&mut logits).write(&mut gates).write(&mut into.chosen);
    let launch = [rows, inner, split, experts, top].into_iter().fold(launch, Launch::int);
    launch.float(offset).float(eps).run()?;
    Ok(Routed { choice: Choice::ToMake { logits, renormalise, into }, gates })
}
