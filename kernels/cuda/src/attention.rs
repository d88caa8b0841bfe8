use half::bf16;
use hypic_domain::model::FullShape;

use crate::choice::{AttentionForm, attention_form};
use crate::contexts::{Contexts, MERGE_WORDS};
use crate::launch::Launch;
use crate::{Buffer, Device, Error, Result};

/// Threads and bytes of shared memory of a block: sizes of device/attention.cu and attention_hopper.cu.
fn block(form: AttentionForm, width: usize) -> (usize, usize) {
    match form {
        AttentionForm::Portable => (256, (128 + 4 * 64) * 2 * width),
        AttentionForm::Hopper => (512, (128 + 5 * 64) * 2 * width + 5 * 16),
    }
}

/// Attention of live rows over keys and values in pages, causal by global position (DESIGN §4, Used).
pub struct Attention<'a> {
    /// Queries before rotation, `[rows, heads, width]`.
    pub q: &'a Buffer<bf16>,
    /// Keys before rotation, `[pages, kv heads, page tokens, width]`.
    pub key: &'a Buffer<bf16>,
    /// Values, as the keys.
    pub value: &'a Buffer<bf16>,
    /// What the rows attend to, and room for partial sums.
    pub contexts: &'a mut Contexts,
    /// `[positions, rotary]`: cosines of the `rotary / 2` angles of a position, then their sines, made in
    /// f64.
    pub rope: &'a Buffer<f32>,
    /// Factor on scores, usually `width^-0.5`; above zero.
    pub scale: f32,
    /// Outputs, `[rows, heads, width]`.
    pub out: &'a mut Buffer<bf16>,
}

/// Runs the attention in the form that [`attention_form`] names.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts, [`Error::CallDriver`] when a launch fails.
pub fn attention(device: &Device, run: Attention<'_>) -> Result<()> {
    attention_as(device, run, attention_form(device.capability()))
}

/// Runs the attention in a form of the caller's choice.
///
/// # Errors
/// As [`attention`], and [`Error::FindKernel`] for a form that the device does not have.
pub fn attention_as(device: &Device, run: Attention<'_>, form: AttentionForm) -> Result<()> {
    let Attention { q, key, value, contexts, rope, scale, out } = run;
    let FullShape { heads, kv_heads, key: width, rotary, .. } = contexts.shape;
    let size = contexts.rows * heads * width;
    Error::unless(q.len() == size, "the queries", size, q.len())?;
    Error::unless(out.len() == size, "the outputs", size, out.len())?;
    contexts.check_pages([key, value])?;
    let angles = contexts.positions_end * rotary;
    Error::unless(rope.len() >= angles, "the angles", format!("at least {angles}"), rope.len())?;
    Error::unless(scale > 0.0, "the factor on scores", "above zero", scale)?;
    let stem = match form {
        AttentionForm::Portable => "attention",
        AttentionForm::Hopper => "attention_hopper",
    };
    let (threads, shared) = block(form, width);
    Launch::new(device, format!("{stem}_{width}"), [contexts.jobs, kv_heads, 1], threads)
        .shared(shared)
        .read(q)
        .read(key)
        .read(value)
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
        .int(kv_heads)
        .int(contexts.page_tokens)
        .int(rotary)
        .int(rotary.max(1).ilog2() as usize)
        .run()?;
    if contexts.partial_sum.is_empty() {
        return Ok(());
    }
    Launch::new(device, "attention_merge", [contexts.merge.len() / MERGE_WORDS, heads, 1], 256)
        .read(&contexts.partial_out)
        .read(&contexts.partial_sum)
        .read(&contexts.merge)
        .write(out)
        .int(heads)
        .int(width)
        .run()
}

/// Writes keys (before rotation) and values of the contexts' live rows, `[rows, kv heads, width]`, to the
/// slots of their tokens. [`attention`] over the same contexts then finds them there.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts, [`Error::CallDriver`] when the launch fails.
pub fn store_kv(
    device: &Device,
    rows: [&Buffer<bf16>; 2],
    contexts: &Contexts,
    key: &mut Buffer<bf16>,
    value: &mut Buffer<bf16>,
) -> Result<()> {
    let FullShape { kv_heads, key: width, .. } = contexts.shape;
    let size = contexts.rows * kv_heads * width;
    for row in rows {
        Error::unless(row.len() == size, "keys and values of the rows", size, row.len())?;
    }
    contexts.check_pages([key, value])?;
    Launch::new(device, "store_kv", [contexts.rows, kv_heads, 1], 64)
        .read(rows[0])
        .read(rows[1])
        .read(&contexts.row_places)
        .write(key)
        .write(value)
        .int(width)
        .int(contexts.page_tokens)
        .run()
}
