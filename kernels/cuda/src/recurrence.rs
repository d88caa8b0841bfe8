use half::bf16;

use crate::launch::Launch;
use crate::memory::Float;
use crate::view::{has_delta, stem};
use crate::{Buffer, Device, Error, Result, Rows, Sequences};

/// The token recurrence over packed sequences: prefill, build (with summaries) and decode, for every family.
pub struct Recurrence<'a, E: Float = bf16, O: Float = f32> {
    /// The rows of all sequences.
    pub rows: Rows<'a, E>,
    /// Where each sequence starts, and where its body does.
    pub sequences: &'a Sequences,
    /// Running states, `[sequences, heads, key, value]`, read unless the sequence is fresh, and written.
    pub state: &'a mut Buffer<f32>,
    /// What is recorded of the bodies; none for rows that only run.
    pub summaries: Option<Summaries<'a>>,
    /// Outputs, `[rows, heads, width]`.
    pub out: &'a mut Buffer<O>,
}

/// `(T, S)` of every sequence's body, as far as it has run; a later launch goes on where this one ended.
pub struct Summaries<'a> {
    /// `S`, `[sequences, heads, key, value]`.
    pub state: &'a mut Buffer<f32>,
    /// `T`, `[sequences, heads, key, key]`; written for live heads only. Where `T` is not dense the gates
    /// give it, and this is left alone.
    pub transition: &'a mut Buffer<f32>,
    /// Which heads are live, `[sequences, heads]`: decided from the gates, before the launch.
    pub live: &'a Buffer<u8>,
}

/// Runs the recurrence token by token, in fp32. Where rows are split over launches does not change a bit.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit each other, [`Error::CallDriver`] when the launch fails.
pub fn recurrence(device: &Device, run: Recurrence<'_>) -> Result<()> {
    launch(device, run, Form::Tokens, 0)
}

/// Runs the recurrence in chunks of 16 tokens on the tensor cores: several times faster for builds and long
/// prompts, with fp16 operands and fp32 sums. Chunks are counted from a launch's first row, so a split
/// changes results within their rounding.
///
/// # Errors
/// As [`recurrence`].
pub fn recurrence_chunks(device: &Device, run: Recurrence<'_>) -> Result<()> {
    launch(device, run, Form::Chunks, 0)
}

/// The forms of the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// [`recurrence`].
    Tokens,
    /// [`recurrence_chunks`].
    Chunks,
}

/// One sequence of a step: it advances the states that begin at value `state_at` of `run.state`, and its outputs have
/// the format of its inputs.
///
/// # Errors
/// As [`recurrence`].
pub(crate) fn advance_one<E: Float>(
    device: &Device,
    run: Recurrence<'_, E, E>,
    form: Form,
    state_at: usize,
) -> Result<()> {
    launch(device, run, form, state_at)
}

fn launch<E: Float, O: Float>(
    device: &Device,
    run: Recurrence<'_, E, O>,
    form: Form,
    state_at: usize,
) -> Result<()> {
    let Recurrence { rows, sequences, state, summaries, out } = run;
    let (shape, delta) = (rows.shape, has_delta(rows.family));
    let count = rows.count()?;
    let (pairs, states) = (sequences.len() * shape.heads, sequences.len() * shape.heads * shape.square());
    Error::unless(sequences.rows <= count, "rows", format!("at most {count}"), sequences.rows)?;
    Error::unless(state.len() >= state_at + states, "the states", state_at + states, state.len())?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    if let Some(s) = &summaries {
        Error::unless(s.state.len() == states, "the summaries' S", states, s.state.len())?;
        Error::unless(s.live.len() == pairs, "the live heads", pairs, s.live.len())?;
        let dense = if delta { states } else { s.transition.len() };
        Error::unless(s.transition.len() == dense, "the summaries' T", dense, s.transition.len())?;
    }
    let parts = match (&summaries, delta) {
        (None, _) => 1,
        (Some(_), false) => 2,
        (Some(_), true) => 3,
    };
    let form = match form {
        Form::Tokens => "recurrence",
        Form::Chunks => "chunks",
    };
    let kernel = format!("{}_{form}_{}{}", stem(rows.family), shape.width, goes_on::<E, O>());
    let launch = Launch::new(device, kernel, [parts, pairs, 1], 2 * shape.width)
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate);
    let launch = if delta { launch.read(rows.beta) } else { launch.unused() };
    let launch = launch.read(&sequences.ranges).read(&sequences.before_body).read(&sequences.fresh);
    let launch = match summaries {
        None => launch.unused().write_at(state, state_at).unused().unused(),
        Some(s) => launch.read(s.live).write_at(state, state_at).write(s.state).write(s.transition),
    };
    launch.write(out).int(shape.heads).int(shape.key_heads).run()
}

/// The end of a kernel's name: fp32 outputs of bf16 rows have none.
fn goes_on<E: Float, O: Float>() -> &'static str {
    match (E::NAME, O::NAME) {
        ("bf16", "f32") => "",
        ("bf16", _) => "_bf16",
        _ => "_f32",
    }
}
