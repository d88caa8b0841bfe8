use half::{bf16, f16};

use crate::launch::Launch;
use crate::layout::NONE;
use crate::memory::Float;
use crate::pack::Tiles;
use crate::programs::Pool;
use crate::view::{CHUNK, Placed};
use crate::{Buffer, Device, Error, Family, Fresh, Places, Result, Rows, Sequences, Shape, StoredAs};

/// Gated delta net prefill in chunks of 64 tokens on the tensor cores, with `T` as extra columns: the Hopper
/// form of [`recurrence`](crate::recurrence) for builds and long prompts.
pub struct GdnChunks<'a> {
    /// The rows of all sequences.
    pub rows: Rows<'a>,
    /// Where each sequence starts, and where its body does: at most 63 rows after it.
    pub sequences: &'a Sequences,
    /// Where the summaries of fresh sequences' bodies go, per (sequence, head), as [`StoredAs::F16`]; no
    /// place means not recorded.
    pub places: &'a Places,
    /// Where the places are.
    pub arena: &'a mut Buffer<u8>,
    /// Running states, `[sequences, heads, key, value]`, read unless the sequence is fresh, and written.
    pub state: &'a mut Buffer<f32>,
    /// Outputs, `[rows, heads, width]`.
    pub out: &'a mut Buffer<bf16>,
    /// Working memory.
    pub scratch: &'a mut ChunkScratch,
}

/// What does not depend on the states, per chunk: tiles of keys and queries, maps and decays.
pub struct ChunkScratch {
    q_tiles: Buffer<f16>,
    k_tiles: Buffer<f16>,
    maps: Buffer<u8>,
    decays: Buffer<f32>,
    chunks: usize,
}

// Sizes of device/gdn_chunks.cuh and device/gdn_scan_hopper.cu.
/// Values of a tile of keys or queries.
const KEY_VALUES: usize = CHUNK * 128;
/// Roles of the blocks: running state and outputs, `T`, and `S` of bodies that is not the running state.
const ROLES: usize = 3;
/// M or P: strips of 16 columns, with the rows from the diagonal on.
const MAP_BYTES: usize = (64 + 48 + 32 + 16) * 16 * 2;
const DECAY_FLOATS: usize = 3 * CHUNK + 4;
const SCAN_SHARED: usize = 3 * KEY_VALUES * 2 + MAP_BYTES + 2 * CHUNK * 128 + 3 * 832 + 128 + 96;

impl ChunkScratch {
    /// Room for the chunks of `sequences` in a layer of `shape`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub fn new(device: &Device, shape: Shape, sequences: &Sequences) -> Result<Self> {
        let chunks = sequences.chunk_row.len();
        let tiles = chunks * shape.key_heads * KEY_VALUES;
        Ok(Self {
            q_tiles: Buffer::fresh(device, tiles, Fresh::Anything)?,
            k_tiles: Buffer::fresh(device, tiles, Fresh::Anything)?,
            maps: Buffer::fresh(device, chunks * shape.heads * 2 * MAP_BYTES, Fresh::Anything)?,
            decays: Buffer::fresh(device, chunks * shape.heads * DECAY_FLOATS, Fresh::Anything)?,
            chunks,
        })
    }
}

/// Whether [`gdn_chunks`] exists for such a layer on a device of this compute capability.
pub fn has_gdn_chunks(family: Family, shape: Shape, capability: Option<(i32, i32)>) -> bool {
    matches!(family, Family::Gdn | Family::DeltaNet) && shape.width == 128 && capability == Some((9, 0))
}

/// Runs the prefill.
///
/// # Errors
/// [`Error::FindKernel`] where [`has_gdn_chunks`] is false, [`Error::CheckShape`] when buffers do not fit
/// each other, [`Error::CallDriver`] when a launch fails.
pub fn gdn_chunks(device: &Device, run: GdnChunks<'_>) -> Result<()> {
    let GdnChunks { rows, sequences, places, arena, state, out, scratch } = run;
    let pairs = sequences.len() * rows.shape.heads;
    places.check_pairs(pairs, StoredAs::F16)?;
    Error::unless(places.end <= arena.len() as u64, "the arena", places.end, arena.len())?;
    check(device, rows, (sequences, scratch), out)?;
    maps(device, rows, sequences, scratch)?;
    let roles = if sequences.all_are_bodies { 2 } else { ROLES };
    let pool = Pool { state, first: 0, stride: rows.shape.heads * rows.shape.square() };
    let targets = Targets { arena: Some(arena), transition: &places.transition_of, state: &places.state_of };
    Scan { sequences, pairs, roles, has_outputs: true }.run(device, rows, (scratch, targets), pool, out)
}

/// The rows of one sequence among others: it advances the states that begin at a value of a pool, and records nothing.
/// With several pieces the sequence is cut, and they run side by side: what each makes of a state, `T` and `S`, is made
/// first, and from these where each begins.
///
/// # Errors
/// As [`gdn_chunks`].
pub fn gdn_chunks_one<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (range, pieces): (std::ops::Range<usize>, usize),
    (state, state_at): (&mut Buffer<f32>, usize),
    out: &mut Buffer<E>,
) -> Result<()> {
    let shape = rows.shape;
    let sequences = &Sequences::pieces(device, range.clone(), pieces, false)?;
    let mut scratch = ChunkScratch::new(device, shape, sequences)?;
    check(device, rows, (sequences, &scratch), out)?;
    maps(device, rows, sequences, &mut scratch)?;
    let (pieces, stride) = (sequences.len(), shape.heads * shape.square());
    let all = pieces * shape.heads;
    let nothing = Buffer::from_slice(device, &vec![NONE; all])?;
    let nowhere = || Targets { arena: None, transition: &nothing, state: &nothing };
    let last = Scan { sequences, pairs: all, roles: 1, has_outputs: true };
    if pieces < 2 {
        let pool = Pool { state, first: state_at, stride };
        return last.run(device, rows, (&scratch, nowhere()), pool, out);
    }
    let pairs = all - shape.heads;
    let tile = (shape.square() * StoredAs::F16.size()) as u64;
    let places: Vec<_> = (0..pairs as u64).map(|pair| (Some(pair * tile), None)).collect();
    let places = Places::new(device, shape.width, StoredAs::F16, &places)?;
    let mut transitions = Buffer::fresh(device, pairs * tile as usize, Fresh::Anything)?;
    let mut states = Buffer::fresh(device, pieces * stride, Fresh::Anything)?;
    let fresh = &Sequences::pieces(device, range, pieces, true)?;
    let targets =
        Targets { arena: Some(&mut transitions), transition: &places.transition_of, state: &places.state_of };
    let pool = Pool { state: &mut states, first: 0, stride };
    let first = Scan { sequences: fresh, pairs, roles: 2, has_outputs: false };
    first.run(device, rows, (&scratch, targets), pool, out)?;
    join_pieces(device, (&transitions, shape.heads), (state, state_at), &mut states)?;
    last.run(device, rows, (&scratch, nowhere()), Pool { state: &mut states, first: 0, stride }, out)?;
    state.copy(state_at, &states, (pieces - 1) * stride, stride)
}

/// Sequences among other rows, over states in slots of a pool, all in one launch. `tiles` beside them is where each
/// body's summary goes; where there are none, nothing is recorded. A sequence gets the same bits whatever others are
/// beside it.
///
/// # Errors
/// As [`gdn_chunks`].
pub(crate) fn gdn_chunks_in_pool<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (sequences, tiles): (&[Placed], &mut [Option<Tiles>]),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let heads = rows.shape.heads;
    let (mut transition, mut state) = (Vec::new(), Vec::new());
    for tiles in tiles.iter() {
        match tiles {
            Some(tiles) => tiles.addresses([&mut transition, &mut state]),
            None => {
                transition.resize(transition.len() + heads, NONE);
                state.resize(state.len() + heads, NONE);
            }
        }
    }
    let found = [transition.len(), state.len()];
    let fits = found == [sequences.len() * heads; 2];
    Error::unless(fits, "places of summaries", sequences.len() * heads, format!("{found:?}"))?;
    let roles = if tiles.iter().all(Option::is_none) { 1 } else { ROLES };
    let sequences = &Sequences::place(device, sequences)?;
    let mut scratch = ChunkScratch::new(device, rows.shape, sequences)?;
    let (transition, state) = (Buffer::from_slice(device, &transition)?, Buffer::from_slice(device, &state)?);
    let targets = Targets { arena: None, transition: &transition, state: &state };
    check(device, rows, (sequences, &scratch), out)?;
    maps(device, rows, sequences, &mut scratch)?;
    let pairs = sequences.len() * heads;
    Scan { sequences, pairs, roles, has_outputs: true }.run(device, rows, (&scratch, targets), pool, out)
}

/// Where pieces of a sequence begin, `X <- T X + S` from one piece to the next. `transitions` are the tiles of `T`
/// (layout 1, fp16, heads of 128) of all pieces but the last, of `heads` each; `states`, `[pieces, heads, key, value]`,
/// holds their `S`, and then the states at which they begin, the first at value `first_at` of `first`.
///
/// # Errors
/// [`Error::CheckShape`] when the sizes do not fit, [`Error::CallDriver`] when the launch fails.
pub fn join_pieces(
    device: &Device,
    (transitions, heads): (&Buffer<u8>, usize),
    (first, first_at): (&Buffer<f32>, usize),
    states: &mut Buffer<f32>,
) -> Result<()> {
    let size = heads * 128 * 128;
    let pieces = states.len() / size.max(1);
    Error::unless(pieces > 0 && states.len() == pieces * size, "the states", "whole pieces", states.len())?;
    let tiles = (pieces - 1) * size * StoredAs::F16.size();
    Error::unless(transitions.len() == tiles, "the tiles of T", tiles, transitions.len())?;
    let end = first_at + size;
    Error::unless(first.len() >= end, "the first states", format!("at least {end}"), first.len())?;
    Launch::new(device, "gdn_join_pieces", [heads, 4, 1], 128)
        .read(transitions)
        .read_at(first, first_at)
        .write(states)
        .int(pieces)
        .int(heads)
        .run()
}

/// Where summaries go, per (sequence, head): byte offsets in an arena, or addresses where there is none.
struct Targets<'a> {
    arena: Option<&'a mut Buffer<u8>>,
    transition: &'a Buffer<u64>,
    state: &'a Buffer<u64>,
}

fn check<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (sequences, scratch): (&Sequences, &ChunkScratch),
    out: &Buffer<E>,
) -> Result<()> {
    let shape = rows.shape;
    if !has_gdn_chunks(rows.family, shape, device.capability()) || E::NAME != bf16::NAME {
        return Err(Error::FindKernel { kernel: "gdn_chunks".to_owned() });
    }
    let (count, chunks) = (rows.count()?, sequences.chunk_row.len());
    Error::unless(sequences.rows <= count, "rows", format!("at most {count}"), sequences.rows)?;
    let before = sequences.most_before_body;
    Error::unless(before < CHUNK, "rows before a body", "under 64", before)?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    let of_heads = chunks * shape.heads;
    let fits = scratch.chunks >= chunks
        && scratch.k_tiles.len() >= chunks * shape.key_heads * KEY_VALUES
        && scratch.maps.len() >= of_heads * 2 * MAP_BYTES
        && scratch.decays.len() >= of_heads * DECAY_FLOATS;
    Error::unless(fits, "the scratch", format!("{chunks} chunks"), scratch.chunks)
}

/// What does not depend on the states.
fn maps<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    sequences: &Sequences,
    scratch: &mut ChunkScratch,
) -> Result<()> {
    let shape = rows.shape;
    Launch::new(device, "gdn_chunk_maps", [shape.key_heads, sequences.chunk_row.len(), 1], 128)
        .shared(2 * KEY_VALUES * 2)
        .read(rows.q)
        .read(rows.k)
        .read(rows.gate)
        .read(rows.beta)
        .read(&sequences.chunk_row)
        .read(&sequences.chunk_rows)
        .write(&mut scratch.q_tiles)
        .write(&mut scratch.k_tiles)
        .write(&mut scratch.maps)
        .write(&mut scratch.decays)
        .int(shape.heads)
        .int(shape.key_heads)
        .run()
}

/// One pass over the chunks of the first `pairs` (sequence, head) pairs, in the first so many roles, with outputs or
/// without.
struct Scan<'a> {
    sequences: &'a Sequences,
    pairs: usize,
    roles: usize,
    has_outputs: bool,
}

impl Scan<'_> {
    /// After [`check`], and with as many targets as pairs.
    fn run<E: Float>(
        &self,
        device: &Device,
        rows: Rows<'_, E>,
        (scratch, targets): (&ChunkScratch, Targets<'_>),
        pool: Pool<'_>,
        out: &mut Buffer<E>,
    ) -> Result<()> {
        let Self { sequences, pairs, roles, has_outputs } = *self;
        let shape = rows.shape;
        let states = pool.first + sequences.last_slot * pool.stride + shape.heads * shape.square();
        let found = pool.state.len();
        Error::unless(found >= states, "the states", format!("at least {states}"), found)?;
        // A cluster of two blocks for each role, with half of the columns each.
        let launch = Launch::new(device, "gdn_chunk_scan", [2 * roles, pairs, 1], 128)
            .shared(SCAN_SHARED)
            .read(&scratch.q_tiles)
            .read(&scratch.k_tiles)
            .read(rows.v)
            .read(&scratch.maps)
            .read(&scratch.decays)
            .read(&sequences.first_chunk)
            .read(&sequences.ranges)
            .read(&sequences.before_body)
            .read(&sequences.fresh);
        let launch = match targets.arena {
            Some(arena) => launch.write(arena),
            None => launch.unused(),
        };
        launch
            .read(targets.transition)
            .read(targets.state)
            .write_at(pool.state, pool.first)
            .read(&sequences.slots)
            .int(pool.stride)
            .write(out)
            .int(shape.heads)
            .int(shape.key_heads)
            .int(usize::from(has_outputs))
            .run()
    }
}
