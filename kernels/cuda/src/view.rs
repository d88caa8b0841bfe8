//! Typed views of what kernels work on. Sizes are checked here, once; kernels rely on them.

use std::ops::Range;

use half::bf16;
pub use hypic_domain::family::Family;
use hypic_domain::model::LinearShape;
use hypic_domain::tuple::Dtype;

use crate::layout::{ALIGNMENT, NONE};
use crate::memory::{Float, Table};
use crate::{Buffer, Device, Error, Result};

/// Tokens that the chunk forms take at once.
pub(crate) const CHUNK: usize = 64;

/// Heads of a linear-attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Value heads; each has its own state, gate and `T`.
    pub heads: usize,
    /// Key heads, each shared by `heads / key_heads` value heads.
    pub key_heads: usize,
    /// Width of keys and of values: 64 or 128.
    pub width: usize,
}

impl From<&LinearShape> for Shape {
    fn from(shape: &LinearShape) -> Self {
        Self { heads: shape.heads, key_heads: shape.key_heads, width: shape.key }
    }
}

impl Shape {
    /// Values of one state or one `T`.
    pub fn square(self) -> usize {
        self.width * self.width
    }

    pub(crate) fn check(self) -> Result<()> {
        Error::unless(matches!(self.width, 64 | 128), "the head width", "64 or 128", self.width)?;
        let shared = self.key_heads > 0 && self.heads.is_multiple_of(self.key_heads);
        Error::unless(shared, "the number of heads", format!("a multiple of {}", self.key_heads), self.heads)
    }
}

/// Inputs of the packed rows of one layer, after convolution, norms and gates.
pub struct Rows<'a, E: Float = bf16> {
    /// The family, which says how wide the gates are and whether there is a `beta`.
    pub family: Family,
    /// The layer's heads.
    pub shape: Shape,
    /// Queries, normalised and scaled, `[rows, key heads, width]`.
    pub q: &'a Buffer<E>,
    /// Keys, of unit length under the delta rule, `[rows, key heads, width]`.
    pub k: &'a Buffer<E>,
    /// Values, `[rows, heads, width]`.
    pub v: &'a Buffer<E>,
    /// Natural logarithms of the decays, `[rows, heads]`, or `[rows, heads, width]` for families that gate
    /// every key channel.
    pub gate: &'a Buffer<f32>,
    /// Strength of the write, `[rows, heads]`; only read under the delta rule.
    pub beta: &'a Buffer<f32>,
}

impl<E: Float> Clone for Rows<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Float> Copy for Rows<'_, E> {}

impl<E: Float> Rows<'_, E> {
    /// Number of rows, after checking that all inputs have as many.
    pub(crate) fn count(&self) -> Result<usize> {
        self.shape.check()?;
        let Shape { heads, key_heads, width } = self.shape;
        let rows = self.v.len() / (heads * width);
        let gates = if gates_channels(self.family) { rows * heads * width } else { rows * heads };
        Error::unless(self.q.len() == rows * key_heads * width, "q", rows * key_heads * width, self.q.len())?;
        Error::unless(self.k.len() == rows * key_heads * width, "k", rows * key_heads * width, self.k.len())?;
        Error::unless(self.v.len() == rows * heads * width, "v", rows * heads * width, self.v.len())?;
        Error::unless(self.gate.len() == gates, "the gates", gates, self.gate.len())?;
        let betas = if has_delta(self.family) { rows * heads } else { self.beta.len() };
        Error::unless(self.beta.len() == betas, "beta", betas, self.beta.len())?;
        Ok(rows)
    }
}

/// Whether each key channel has a decay of its own.
pub(crate) fn gates_channels(family: Family) -> bool {
    matches!(family, Family::Gla | Family::Kda)
}

/// Whether a write first takes away what the key already holds, so that `T` is dense.
pub(crate) fn has_delta(family: Family) -> bool {
    matches!(family, Family::DeltaNet | Family::Gdn | Family::Kda)
}

/// The stem of the family's kernels: gates and the delta rule are all that differs.
pub(crate) fn stem(family: Family) -> &'static str {
    match (gates_channels(family), has_delta(family)) {
        (false, false) => "lightning",
        (true, false) => "gla",
        (false, true) => "gdn",
        (true, true) => "kda",
    }
}

/// One sequence of the packed rows.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Its rows in this launch.
    pub rows: usize,
    /// How many of them come before the body: context that summaries leave out.
    pub before_body: usize,
    /// Whether states start at zero and `T` at the identity, instead of where the last launch left them.
    pub fresh: bool,
}

/// A sequence at its place among the rows of a step, over states in a slot of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) rows: Range<usize>,
    /// As of [`Sequence`].
    pub(crate) before_body: usize,
    pub(crate) fresh: bool,
    pub(crate) slot: usize,
}

/// Sequences on the device.
pub struct Sequences {
    /// First row of each and the row behind its last, `[sequences, 2]`.
    pub(crate) ranges: Table<u32>,
    pub(crate) before_body: Table<u32>,
    pub(crate) fresh: Table<u8>,
    pub(crate) slots: Table<u32>,
    pub(crate) first_chunk: Table<u32>,
    pub(crate) chunk_row: Table<u32>,
    pub(crate) chunk_rows: Table<u32>,
    pub(crate) most_before_body: usize,
    /// Whether the running state of every sequence is its body's `S`.
    pub(crate) all_are_bodies: bool,
    pub(crate) last_slot: usize,
    /// Rows up to the end of the last one.
    pub(crate) rows: usize,
}

impl Sequences {
    /// Copies the table of `sequences`, whose rows follow each other, to the device.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when a body would start after its sequence's end.
    pub fn new(device: &Device, sequences: &[Sequence]) -> Result<Self> {
        let mut start = 0;
        let place = |(slot, s): (usize, &Sequence)| {
            let rows = start..start + s.rows;
            start = rows.end;
            Placed { rows, before_body: s.before_body, fresh: s.fresh, slot }
        };
        Self::place(device, &sequences.iter().enumerate().map(place).collect::<Vec<_>>())
    }

    /// One sequence among more rows: those of `rows`, the first `before_body` of them before its body. It goes on
    /// where states and summaries are.
    ///
    /// # Errors
    /// As [`Sequences::new`].
    pub(crate) fn one(device: &Device, rows: Range<usize>, before_body: usize) -> Result<Self> {
        Self::place(device, &[Placed { rows, before_body, fresh: false, slot: 0 }])
    }

    /// `rows` of one sequence cut into `pieces`, each a sequence of whole chunks but the last, over a slot of its own.
    ///
    /// # Errors
    /// As [`Sequences::new`].
    pub(crate) fn pieces(device: &Device, rows: Range<usize>, pieces: usize, fresh: bool) -> Result<Self> {
        let each = rows.len().div_ceil(pieces.max(1)).next_multiple_of(CHUNK).max(CHUNK);
        let piece = |(slot, start): (usize, usize)| Placed {
            rows: start..rows.end.min(start + each),
            before_body: 0,
            fresh,
            slot,
        };
        Self::place(device, &rows.clone().step_by(each).enumerate().map(piece).collect::<Vec<_>>())
    }

    /// Sequences wherever they are.
    ///
    /// # Errors
    /// As [`Sequences::new`].
    pub(crate) fn place(device: &Device, sequences: &[Placed]) -> Result<Self> {
        let (mut first_chunk, mut chunk_row, mut chunk_rows) = (vec![0u32], vec![], vec![]);
        for Placed { rows, before_body, .. } in sequences {
            Error::unless(*before_body <= rows.len(), "rows before the body", rows.len(), before_body)?;
            for row in rows.clone().step_by(CHUNK) {
                chunk_row.push(row as u32);
                chunk_rows.push((rows.end - row).min(CHUNK) as u32);
            }
            first_chunk.push(chunk_row.len() as u32);
        }
        let ranges: Vec<u32> =
            sequences.iter().flat_map(|s| [s.rows.start as u32, s.rows.end as u32]).collect();
        let numbers = |number: fn(&Placed) -> usize| -> Vec<u32> {
            sequences.iter().map(|s| number(s) as u32).collect()
        };
        let fresh: Vec<u8> = sequences.iter().map(|s| u8::from(s.fresh)).collect();
        Ok(Self {
            ranges: Table::new(device, &ranges)?,
            before_body: Table::new(device, &numbers(|s| s.before_body))?,
            fresh: Table::new(device, &fresh)?,
            slots: Table::new(device, &numbers(|s| s.slot))?,
            first_chunk: Table::new(device, &first_chunk)?,
            chunk_row: Table::new(device, &chunk_row)?,
            chunk_rows: Table::new(device, &chunk_rows)?,
            most_before_body: sequences.iter().map(|s| s.before_body).max().unwrap_or(0),
            all_are_bodies: sequences.iter().all(|s| s.fresh && s.before_body == 0),
            last_slot: sequences.iter().map(|s| s.slot).max().unwrap_or(0),
            rows: sequences.iter().map(|s| s.rows.end).max().unwrap_or(0),
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fresh.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }
}

/// How `T` and `S` are stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// Both in fp16.
    F16,
    /// `S` in fp32, `T` as a pair of fp16 tiles whose sum it is (22 bits).
    F32,
}

impl StoredAs {
    /// Bytes of one value.
    pub fn size(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The format of tuples whose tiles these are.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

/// Where one segment's summary of a layer lies in the arena: byte offsets, one per head, multiples of
/// [`ALIGNMENT`].
#[derive(Clone, Debug)]
pub struct Summary {
    /// `T` of live heads; dead heads have none. Empty where `T` is not dense.
    pub transition: Vec<Option<u64>>,
    /// `S` of every head.
    pub state: Vec<u64>,
    /// `T` where it is a number (`[heads]`) or a diagonal (`[heads, width]`); empty where it is dense.
    pub factors: Vec<f32>,
}

/// Live rows, and the tuple that follows them, if any.
#[derive(Clone, Debug)]
pub struct Step {
    /// Live rows: a seam, a short segment, or the query.
    pub rows: usize,
    /// The body that follows.
    pub body: Option<Summary>,
}

/// The steps of all requests of a batch for one layer, on the device.
pub struct Program {
    pub(crate) first_step: Buffer<u32>,
    pub(crate) first_row: Buffer<u32>,
    pub(crate) transition_of: Buffer<u64>,
    pub(crate) state_of: Buffer<u64>,
    pub(crate) factors: Buffer<f32>,
    pub(crate) shape: Shape,
    pub(crate) requests: usize,
    pub(crate) steps: usize,
    pub(crate) rows: usize,
    pub(crate) most_rows: usize,
    pub(crate) bodies_everywhere: bool,
    pub(crate) arena_end: u64,
    pub(crate) stored: StoredAs,
}

impl Program {
    /// Copies the tables of `requests`, each a list of steps, to the device.
    ///
    /// # Errors
    /// [`Error::CheckShape`] when a summary does not have one entry per head, or an offset is not aligned.
    pub fn new(
        device: &Device,
        family: Family,
        shape: Shape,
        stored: StoredAs,
        requests: &[Vec<Step>],
    ) -> Result<Self> {
        shape.check()?;
        let Shape { heads, width, .. } = shape;
        let numbers = match (has_delta(family), gates_channels(family)) {
            (true, _) => 0,
            (false, false) => heads,
            (false, true) => heads * width,
        };
        let size = (shape.square() * stored.size()) as u64;
        let (mut first_step, mut first_row, mut arena_end) = (vec![0u32], vec![0u32], 0u64);
        let (mut transition_of, mut state_of, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        let steps: Vec<&Step> = requests.iter().flatten().collect();
        for request in requests {
            first_step.push(first_step[first_step.len() - 1] + request.len() as u32);
        }
        for step in &steps {
            first_row.push(first_row[first_row.len() - 1] + step.rows as u32);
            let Some(body) = &step.body else {
                transition_of.resize(transition_of.len() + heads, NONE);
                state_of.resize(state_of.len() + heads, NONE);
                factors.resize(factors.len() + numbers, 1.0);
                continue;
            };
            let dense = if has_delta(family) { heads } else { 0 };
            Error::unless(body.state.len() == heads, "states of a summary", heads, body.state.len())?;
            Error::unless(body.transition.len() == dense, "T of a summary", dense, body.transition.len())?;
            Error::unless(
                body.factors.len() == numbers,
                "factors of a summary",
                numbers,
                body.factors.len(),
            )?;
            for &offset in body.transition.iter().flatten().chain(&body.state) {
                Error::unless(offset.is_multiple_of(ALIGNMENT), "an offset", "aligned to 128 bytes", offset)?;
                arena_end = arena_end.max(offset.saturating_add(size));
            }
            transition_of.extend(body.transition.iter().map(|offset| offset.unwrap_or(NONE)));
            transition_of.resize(state_of.len() + heads, NONE);
            state_of.extend(&body.state);
            factors.extend(&body.factors);
        }
        Ok(Self {
            first_step: Buffer::from_slice(device, &first_step)?,
            first_row: Buffer::from_slice(device, &first_row)?,
            transition_of: Buffer::from_slice(device, &transition_of)?,
            state_of: Buffer::from_slice(device, &state_of)?,
            factors: Buffer::from_slice(device, &factors)?,
            shape,
            requests: requests.len(),
            steps: steps.len(),
            rows: steps.iter().map(|step| step.rows).sum(),
            most_rows: steps.iter().map(|step| step.rows).max().unwrap_or(0),
            bodies_everywhere: steps.iter().all(|step| step.body.is_some()),
            arena_end,
            stored,
        })
    }
}
