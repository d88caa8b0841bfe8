use half::bf16;
use hypic_domain::model::FullShape;

use crate::attention::merge;
use crate::contexts::{Contexts, LATENT, LATENT_ROPE, TILE_ROWS};
use crate::launch::Launch;
use crate::{Buffer, Device, Error, Result};

/// Width of a key.
const KEY: usize = LATENT + LATENT_ROPE;
const THREADS: usize = 256;
/// Query rows of a block.
const ROWS: usize = 64;
/// Queries and a tile of keys, each 64 rows in bf16, and their scores.
const SHARED: usize = 2 * ROWS * KEY * 2 + ROWS * 64 * 4;

/// Attention of MLA with absorbed queries over shared latents in pages, causal by global position (DESIGN §4, Used).
/// The contexts' shape has one head of keys, 576 wide, and values of 0; `rotary` is 0, or 64 to rotate the channels
/// behind the latent, channel `i` of them with `i + 32`.
pub struct Mla<'a> {
    /// Absorbed queries before rotation, `[rows, heads, 576]`.
    pub q: &'a Buffer<bf16>,
    /// Latents, and behind each what its key has more, before rotation, `[pages, page tokens, 576]`.
    pub key: &'a Buffer<bf16>,
    /// What the rows attend to, and room for partial sums.
    pub contexts: &'a mut Contexts,
    /// `[positions, rotary]`, as for [`crate::Attention`].
    pub rope: &'a Buffer<f32>,
    /// Factor on scores; above zero.
    pub scale: f32,
    /// Weighted latents, `[rows, heads, 512]`.
    pub out: &'a mut Buffer<bf16>,
}

/// Runs the attention.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts or these are not of MLA, [`Error::CallDriver`] when a
/// launch fails.
pub fn mla(device: &Device, run: Mla<'_>) -> Result<()> {
    let Mla { q, key, contexts, rope, scale, out } = run;
    let FullShape { heads, value, rotary, .. } = contexts.shape;
    Error::unless(value == 0, "values beside latents", 0, value)?;
    let rows = contexts.rows * heads;
    Error::unless(q.len() == rows * KEY, "the queries", rows * KEY, q.len())?;
    Error::unless(out.len() == rows * LATENT, "the outputs", rows * LATENT, out.len())?;
    contexts.check_pages([key])?;
    contexts.check_angles(rope)?;
    Error::unless(scale > 0.0, "the factor on scores", "above zero", scale)?;
    let blocks = (TILE_ROWS / heads * heads).div_ceil(ROWS);
    Launch::new(device, "attention_mla", [contexts.jobs, 1, blocks], THREADS)
        .shared(SHARED)
        .read(q)
        .read(key)
        .read(&contexts.job_table)
        .read(&contexts.tokens)
        .read(&contexts.positions)
        .read(&contexts.seen)
        .read(rope)
        .write(out)
        .write(&mut contexts.partial_out)
        .write(&mut contexts.partial_sum)
        .float(scale)
        .int(heads)
        .int(rotary)
        .run()?;
    merge(device, contexts, LATENT, None, out)
}

/// Writes latents and what keys have more (before rotation) of the contexts' live rows, `[rows, 576]`, to the slots of
/// their tokens. [`mla`] over the same contexts then finds them there.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts or these are not of MLA, [`Error::CallDriver`] when the
/// launch fails.
pub fn store_latent(
    device: &Device,
    rows: &Buffer<bf16>,
    contexts: &Contexts,
    key: &mut Buffer<bf16>,
) -> Result<()> {
    let shape = contexts.shape;
    Error::unless(shape.value == 0, "values beside latents", 0, shape.value)?;
    contexts.check_pages([&*key])?;
    let size = contexts.rows * KEY;
    Error::unless(rows.len() == size, "latents of the rows", size, rows.len())?;
    // The half of the kernel's threads that moves keys.
    Launch::new(device, "store_kv", [contexts.rows, 1, 1], 32)
        .read(rows)
        .unused()
        .read(&contexts.row_places)
        .write(key)
        .unused()
        .int(KEY * size_of::<bf16>() / 16)
        .int(contexts.page_tokens)
        // Of one head, a row lies behind the other.
        .int(1)
        .int(1)
        .run()
}
