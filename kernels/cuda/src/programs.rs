//! Programs of rows and bodies over slots of a pool: [`compose_seam`](crate::compose_seam) where states and summaries
//! lie wherever they lie.

use crate::launch::Launch;
use crate::layout::NONE;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Family, Result, Rows, StoredAs};

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

/// Runs the programs of a gated delta layer, every request's in one launch; outputs have the format of the rows.
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
    let shape = rows.shape;
    let count = rows.count()?;
    Error::unless(rows.family == Family::Gdn, "the family", "Gdn", format!("{:?}", rows.family))?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    let (mut first_step, mut first_row) = (vec![0_u32], vec![0_u32]);
    let (mut transition_of, mut state_of, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, steps) in requests {
        let end = slot.map_or(0, |slot| pool.first + slot * pool.stride + shape.heads * shape.square());
        Error::unless(end <= pool.state.len(), "a slot", format!("within {}", pool.state.len()), end)?;
        slots.push(slot.map_or(NO_SLOT, |slot| slot as u32));
        for step in steps {
            first_row.push(first_row[first_row.len() - 1] + step.rows as u32);
            match step.body {
                Some(body) => {
                    body.addresses::<E>(shape.heads, shape.square(), [&mut transition_of, &mut state_of])?
                }
                None => {
                    transition_of.resize(transition_of.len() + shape.heads, NONE);
                    state_of.resize(state_of.len() + shape.heads, NONE);
                }
            }
        }
        first_step.push(first_step[first_step.len() - 1] + steps.len() as u32);
    }
    let last = first_row[first_row.len() - 1] as usize;
    Error::unless(last == count, "rows of the programs", count, last)?;
    let form = match stored_for::<E>() {
        StoredAs::F16 => "bf16",
        StoredAs::F32 => "exact",
    };
    let slots = Buffer::from_slice(device, &slots)?;
    let first_step = Buffer::from_slice(device, &first_step)?;
    let first_row = Buffer::from_slice(device, &first_row)?;
    let transition_of = Buffer::from_slice(device, &transition_of)?;
    let state_of = Buffer::from_slice(device, &state_of)?;
    let kernel = format!("compose_seam_gdn_{}_{form}", shape.width);
    Launch::new(device, kernel, [shape.heads, shape.width / 32, requests.len()], 128)
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate)
        .read(rows.beta)
        .read(&slots)
        .int(pool.stride)
        .read(&first_step)
        .read(&first_row)
        .unused()
        .read(&transition_of)
        .read(&state_of)
        .unused()
        .write_at(pool.state, pool.first)
        .write(out)
        .int(shape.heads)
        .int(shape.key_heads)
        .run()
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
