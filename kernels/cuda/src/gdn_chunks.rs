use half::{bf16, f16};

use crate::launch::Launch;
use crate::memory::Float;
use crate::view::CHUNK;
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

// Sizes of device/gdn_scan_hopper.cu.
const KEY_TILE: usize = CHUNK * 128;
const MAP_BYTES: usize = 2 * CHUNK * CHUNK * 2;
const DECAY_FLOATS: usize = 3 * CHUNK + 4;
const SCAN_SHARED: usize = 2 * 16384 + 2 * KEY_TILE * 2 + MAP_BYTES + 2 * CHUNK * 128 + 832 + 96;

impl ChunkScratch {
    /// Room for the chunks of `sequences` in a layer of `shape`.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub fn new(device: &Device, shape: Shape, sequences: &Sequences) -> Result<Self> {
        let chunks = sequences.chunk_row.len();
        let tiles = chunks * shape.key_heads * KEY_TILE;
        Ok(Self {
            q_tiles: Buffer::fresh(device, tiles, Fresh::Anything)?,
            k_tiles: Buffer::fresh(device, tiles, Fresh::Anything)?,
            maps: Buffer::fresh(device, chunks * shape.heads * MAP_BYTES, Fresh::Anything)?,
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
    Error::unless(
        sequences.most_before_body < CHUNK,
        "rows before a body",
        "under 64",
        sequences.most_before_body,
    )?;
    // Roles of the blocks: running state and outputs, T, and S of bodies that do not begin at the first
    // token.
    let roles = if sequences.most_before_body > 0 { 3 } else { 2 };
    launch(device, rows, (sequences, roles, scratch), (places, arena), (state, 0), out)
}

/// The rows of one sequence among others: it advances the states that begin at a value of a pool, and records nothing.
///
/// # Errors
/// As [`gdn_chunks`].
pub(crate) fn gdn_chunks_one<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    range: std::ops::Range<usize>,
    state: (&mut Buffer<f32>, usize),
    out: &mut Buffer<E>,
) -> Result<()> {
    let shape = rows.shape;
    let sequences = &Sequences::one(device, range, 0)?;
    let places = &Places::new(device, shape.width, StoredAs::F16, &vec![(None, None); shape.heads])?;
    let mut scratch = ChunkScratch::new(device, shape, sequences)?;
    let arena = &mut Buffer::fresh(device, 0, Fresh::Anything)?;
    launch(device, rows, (sequences, 1, &mut scratch), (places, arena), state, out)
}

fn launch<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (sequences, roles, scratch): (&Sequences, usize, &mut ChunkScratch),
    (places, arena): (&Places, &mut Buffer<u8>),
    (state, state_at): (&mut Buffer<f32>, usize),
    out: &mut Buffer<E>,
) -> Result<()> {
    let shape = rows.shape;
    if !has_gdn_chunks(rows.family, shape, device.capability()) || E::NAME != bf16::NAME {
        return Err(Error::FindKernel { kernel: "gdn_chunks".to_owned() });
    }
    let count = rows.count()?;
    let (pairs, chunks) = (sequences.len() * shape.heads, sequences.chunk_row.len());
    Error::unless(sequences.rows <= count, "rows", format!("at most {count}"), sequences.rows)?;
    let states = state_at + pairs * shape.square();
    Error::unless(state.len() >= states, "the states", format!("at least {states}"), state.len())?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    let fits = scratch.chunks >= chunks && scratch.k_tiles.len() >= chunks * shape.key_heads * KEY_TILE;
    Error::unless(fits, "the scratch", format!("{chunks} chunks"), scratch.chunks)?;

    Launch::new(device, "gdn_chunk_maps", [shape.key_heads, chunks, 1], 128)
        .shared(2 * KEY_TILE * 2)
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
        .run()?;
    Launch::new(device, "gdn_chunk_scan", [roles, pairs, 1], 256)
        .shared(SCAN_SHARED)
        .read(&scratch.q_tiles)
        .read(&scratch.k_tiles)
        .read(rows.v)
        .read(&scratch.maps)
        .read(&scratch.decays)
        .read(&sequences.first_chunk)
        .read(&sequences.starts)
        .read(&sequences.before_body)
        .read(&sequences.fresh)
        .write(arena)
        .read(&places.transition_of)
        .read(&places.state_of)
        .write_at(state, state_at)
        .write(out)
        .int(shape.heads)
        .int(shape.key_heads)
        .run()
}
