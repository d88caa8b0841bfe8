//! Programs of rows and bodies over slots of a pool: [`compose_seam`](crate::compose_seam) where states and summaries
//! lie wherever they lie.

use half::bf16;

use crate::choice::{ComposeForm, compose_form};
use crate::launch::Launch;
use crate::layout::{NONE, compose_chain_shared};
use crate::memory::{Float, Table};
use crate::rows::narrow_rows;
use crate::{Buffer, Device, Error, Family, Fresh, Result, Rows, Scratch, Shape, StoredAs};

/// A request whose rows somebody else computes.
const NO_SLOT: u32 = u32::MAX;

/// Live rows, and the body that follows them.
pub(crate) struct PoolStep<'a> {
    pub(crate) rows: usize,
    pub(crate) body: Option<PoolBody<'a>>,
}

/// One layer of a body: tiles of layout 1.
#[derive(Clone, Copy)]
pub(crate) struct PoolBody<'a> {
    pub(crate) tiles: &'a Buffer<u8>,
    /// Byte offsets of `S` of every head.
    pub(crate) state: &'a [u64],
    pub(crate) transition: Transition<'a>,
}

/// What a body multiplies the state by.
#[derive(Clone, Copy)]
pub(crate) enum Transition<'a> {
    /// `T` of every head at a byte offset; a dead head has none, and counts as zero.
    Stored(&'a [Option<u64>]),
    /// Zero for every head.
    Zero,
    /// One tile for every head.
    Shared(&'a Buffer<u8>),
}

/// States in a pool: slot `s` begins at value `first + s * stride`, `[heads, key, value]`.
pub(crate) struct Pool<'a> {
    pub(crate) state: &'a mut Buffer<f32>,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

/// A request: its slot, none when its rows are computed elsewhere, and its steps.
pub(crate) type PoolRequest<'a> = (Option<usize>, Vec<PoolStep<'a>>);

/// How bodies are stored for rows of a format.
pub(crate) fn stored_for<E: Float>() -> StoredAs {
    if E::NAME == f32::NAME { StoredAs::F32 } else { StoredAs::F16 }
}

/// The tables of some requests on the device; their rows follow each other from `first_row` on.
struct Tables {
    first_step: Table<u32>,
    first_row: Table<u32>,
    transition_of: Table<u64>,
    state_of: Table<u64>,
    steps: usize,
    begin_row: usize,
    end_row: usize,
}

impl Tables {
    fn new<E: Float>(
        device: &Device,
        shape: Shape,
        requests: &[&[PoolStep<'_>]],
        first_row: usize,
    ) -> Result<Self> {
        let begin_row = first_row;
        let (mut first_step, mut first_row) = (vec![0_u32], vec![begin_row as u32]);
        let (mut transition_of, mut state_of) = (Vec::new(), Vec::new());
        for steps in requests {
            for step in *steps {
                first_row.push(first_row[first_row.len() - 1] + step.rows as u32);
                match &step.body {
                    Some(body) => {
                        let tables = [&mut transition_of, &mut state_of];
                        body.addresses::<E>(shape.heads, shape.square(), tables)?;
                    }
                    None => {
                        transition_of.resize(transition_of.len() + shape.heads, NONE);
                        state_of.resize(state_of.len() + shape.heads, NONE);
                    }
                }
            }
            first_step.push(first_step[first_step.len() - 1] + steps.len() as u32);
        }
        Ok(Self {
            steps: first_row.len() - 1,
            begin_row,
            end_row: first_row[first_row.len() - 1] as usize,
            first_step: Table::new(device, &first_step)?,
            first_row: Table::new(device, &first_row)?,
            transition_of: Table::new(device, &transition_of)?,
            state_of: Table::new(device, &state_of)?,
        })
    }
}

/// Runs the programs of a gated delta layer that cover all rows, every request's in one launch; outputs have the format
/// of the rows. Requests without a slot are left out.
///
/// # Errors
/// [`Error::CheckShape`] when rows, states or bodies do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn run_programs<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    requests: &[PoolRequest<'_>],
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let steps: Vec<&[PoolStep<'_>]> = requests.iter().map(|(_, steps)| steps.as_slice()).collect();
    let tables = Tables::new::<E>(device, rows.shape, &steps, 0)?;
    let slots: Vec<Option<usize>> = requests.iter().map(|(slot, _)| *slot).collect();
    plain(device, rows, (&slots, &tables), pool, out)
}

/// Runs one request's program over its rows, from `first_row` on: on a Hopper device its seams and bodies as a chain of
/// tensor-core products, everything else in the plain form.
///
/// # Errors
/// As [`run_programs`].
pub(crate) fn run_composition<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (slot, steps, first_row): (usize, &[PoolStep<'_>], usize),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let Pool { state, first, stride } = pool;
    let is_hopper = |step: &PoolStep<'_>| {
        let form = compose_form(rows.family, rows.shape, step.rows, step.body.is_some(), device.capability());
        E::NAME == bf16::NAME && form == ComposeForm::Hopper
    };
    let mut row = first_row;
    for group in steps.chunk_by(|a, b| is_hopper(a) == is_hopper(b)) {
        let tables = Tables::new::<E>(device, rows.shape, &[group], row)?;
        row = tables.end_row;
        let pool = Pool { state: &mut *state, first, stride };
        if group.first().is_some_and(is_hopper) {
            chain(device, rows, (slot, &tables), pool, out)?;
        } else {
            plain(device, rows, (&[Some(slot)], &tables), pool, out)?;
        }
    }
    Ok(())
}

fn plain<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (slots, tables): (&[Option<usize>], &Tables),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let shape = check(rows, tables, slots, &pool, out.len())?;
    let form = match stored_for::<E>() {
        StoredAs::F16 => "bf16",
        StoredAs::F32 => "exact",
    };
    let slots: Vec<u32> = slots.iter().map(|slot| slot.map_or(NO_SLOT, |slot| slot as u32)).collect();
    let slots = Table::new(device, &slots)?;
    let kernel = format!("compose_seam_gdn_{}_{form}", shape.width);
    Launch::new(device, kernel, [shape.heads, shape.width / 32, slots.len()], 128)
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate)
        .read(rows.beta)
        .read(&slots)
        .int(pool.stride)
        .read(&tables.first_step)
        .read(&tables.first_row)
        .unused()
        .read(&tables.transition_of)
        .read(&tables.state_of)
        .unused()
        .write_at(pool.state, pool.first)
        .write(out)
        .int(shape.heads)
        .int(shape.key_heads)
        .run()
}

/// One request's steps of at most eight rows and a body each, on sm_90a.
fn chain<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (slot, tables): (usize, &Tables),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let shape = check(rows, tables, &[Some(slot)], &pool, out.len())?;
    let mut scratch = Scratch::new(device, tables.steps, shape.heads)?;
    Launch::new(device, "seam_prep", [tables.steps * shape.heads, 1, 1], 128)
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate)
        .read(rows.beta)
        .read(&tables.first_row)
        .read(&tables.transition_of)
        .write(&mut scratch.records)
        .write(&mut scratch.writes)
        .int(shape.heads)
        .int(shape.key_heads)
        .run()?;
    let mut wide: Buffer<f32> = Buffer::fresh(device, out.len(), Fresh::Anything)?;
    Launch::new(device, "compose_chain_f16", [shape.heads * 4, 1, 1], 416)
        .shared(compose_chain_shared(StoredAs::F16))
        .read(&tables.first_step)
        .unused()
        .read(&tables.transition_of)
        .read(&tables.state_of)
        .read(&scratch.records)
        .read(&scratch.writes)
        .write_at(pool.state, pool.first + slot * pool.stride)
        .write(&mut wide)
        .int(shape.heads)
        .run()?;
    let each = shape.heads * shape.width;
    narrow_rows(device, &wide, out, tables.begin_row * each..tables.end_row * each)
}

/// Checks what no table has checked, and returns the shape.
fn check<E: Float>(
    rows: Rows<'_, E>,
    tables: &Tables,
    slots: &[Option<usize>],
    pool: &Pool<'_>,
    out: usize,
) -> Result<Shape> {
    let shape = rows.shape;
    let count = rows.count()?;
    Error::unless(rows.family == Family::Gdn, "the family", "Gdn", format!("{:?}", rows.family))?;
    Error::unless(out == rows.v.len(), "the outputs", rows.v.len(), out)?;
    Error::unless(tables.end_row <= count, "rows of the programs", count, tables.end_row)?;
    for slot in slots.iter().flatten() {
        let end = pool.first + slot * pool.stride + shape.heads * shape.square();
        Error::unless(end <= pool.state.len(), "a slot", format!("within {}", pool.state.len()), end)?;
    }
    Ok(shape)
}

impl PoolBody<'_> {
    /// Appends the addresses of every head's `T` and `S`.
    fn addresses<E: Float>(
        &self,
        heads: usize,
        square: usize,
        [transition_of, state_of]: [&mut Vec<u64>; 2],
    ) -> Result<()> {
        let size = square * stored_for::<E>().size();
        let at = |buffer: &Buffer<u8>, offset: u64| {
            let within = offset as usize + size <= buffer.len();
            Error::unless(within, "a tile", format!("within {}", buffer.len()), offset)?;
            Ok::<_, Error>(buffer.address_of(offset as usize))
        };
        Error::unless(self.state.len() == heads, "states of a body", heads, self.state.len())?;
        for &offset in self.state {
            state_of.push(at(self.tiles, offset)?);
        }
        match self.transition {
            Transition::Zero => transition_of.resize(state_of.len(), NONE),
            Transition::Shared(tile) => transition_of.resize(state_of.len(), at(tile, 0)?),
            Transition::Stored(offsets) => {
                Error::unless(offsets.len() == heads, "T of a body", heads, offsets.len())?;
                for &offset in offsets {
                    transition_of.push(offset.map_or(Ok(NONE), |offset| at(self.tiles, offset))?);
                }
            }
        }
        Ok(())
    }
}
