use crate::choice::{ComposeForm, compose_form};
use crate::launch::Launch;
use crate::view::{has_delta, stem};
use crate::{Buffer, Device, Error, Fresh, Program, Result, Rows};

/// One layer's live rows between cached bodies, for every request of a batch: in order, rows advance the
/// state and yield outputs, then `S <- T S + S_body` (DESIGN §4, Used).
pub struct ComposeSeam<'a> {
    /// The live rows, in the order of the program's steps.
    pub rows: Rows<'a>,
    /// The steps.
    pub program: &'a Program,
    /// Where the summaries lie.
    pub arena: &'a Buffer<u8>,
    /// Running states, read and written, `[requests, heads, key, value]`.
    pub state: &'a mut Buffer<f32>,
    /// Outputs, `[rows, heads, width]`.
    pub out: &'a mut Buffer<f32>,
    /// Working memory of the Hopper form.
    pub scratch: &'a mut Scratch,
}

/// Records of the state-independent part of seams, written and read within one [`compose_seam`].
pub struct Scratch {
    pub(crate) records: Buffer<u8>,
    pub(crate) writes: Buffer<f32>,
    steps: usize,
    heads: usize,
}

// Sizes of device/seam_prep_hopper.cu, per (step, head).
const RECORD_BYTES: usize = 10368;
const WRITE_FLOATS: usize = 2048;

impl Scratch {
    /// Room for `steps` steps of `heads` heads: about 18 KiB for each pair.
    ///
    /// # Errors
    /// [`Error::CallDriver`] when the device has no room.
    pub fn new(device: &Device, steps: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            records: Buffer::fresh(device, steps * heads * RECORD_BYTES, Fresh::Anything)?,
            writes: Buffer::fresh(device, steps * heads * WRITE_FLOATS, Fresh::Anything)?,
            steps,
            heads,
        })
    }
}

/// Runs the layer in the form that [`compose_form`] names.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the program, [`Error::CallDriver`] when a launch fails.
pub fn compose_seam(device: &Device, layer: ComposeSeam<'_>) -> Result<()> {
    let program = layer.program;
    let form = compose_form(
        layer.rows.family,
        program.shape,
        program.most_rows,
        program.bodies_everywhere,
        device.capability(),
    );
    compose_seam_as(device, layer, form)
}

pub(crate) fn compose_seam_as(device: &Device, layer: ComposeSeam<'_>, form: ComposeForm) -> Result<()> {
    let ComposeSeam { rows, program, arena, state, out, scratch } = layer;
    let shape = program.shape;
    Error::unless(
        rows.shape == shape,
        "the shape of the rows",
        format!("{shape:?}"),
        format!("{:?}", rows.shape),
    )?;
    let count = rows.count()?;
    Error::unless(count == program.rows, "rows", program.rows, count)?;
    Error::unless(arena.len() as u64 >= program.arena_end, "the arena", program.arena_end, arena.len())?;
    let states = program.requests * shape.heads * shape.square();
    Error::unless(state.len() == states, "the states", states, state.len())?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    match form {
        ComposeForm::Plain => {
            let kernel =
                format!("compose_seam_{}_{}_{}", stem(rows.family), shape.width, program.stored.suffix());
            let launch = Launch::new(device, kernel, [shape.heads, shape.width / 32, program.requests], 128)
                .read(rows.q)
                .read(rows.k)
                .read(rows.v)
                .read(rows.gate);
            let launch = if has_delta(rows.family) { launch.read(rows.beta) } else { launch.unused() };
            launch
                .unused()
                .int(shape.heads * shape.square())
                .read(&program.first_step)
                .read(&program.first_row)
                .read(arena)
                .read(&program.transition_of)
                .read(&program.state_of)
                .read(&program.factors)
                .write(state)
                .write(out)
                .int(shape.heads)
                .int(shape.key_heads)
                .run()
        }
        ComposeForm::Hopper => {
            let room = scratch.steps >= program.steps && scratch.heads == shape.heads;
            Error::unless(room, "the scratch", format!("{} steps", program.steps), scratch.steps)?;
            Launch::new(device, "seam_prep", [program.steps * shape.heads, 1, 1], 128)
                .read(rows.q)
                .read(rows.k)
                .read(rows.v)
                .read(rows.gate)
                .read(rows.beta)
                .read(&program.first_row)
                .read(&program.transition_of)
                .write(&mut scratch.records)
                .write(&mut scratch.writes)
                .int(shape.heads)
                .int(shape.key_heads)
                .run()?;
            let kernel = format!("compose_chain_{}", program.stored.suffix());
            Launch::new(device, kernel, [shape.heads * 4, program.requests, 1], 416)
                .shared(crate::layout::compose_chain_shared(program.stored))
                .read(&program.first_step)
                .read(arena)
                .read(&program.transition_of)
                .read(&program.state_of)
                .read(&scratch.records)
                .read(&scratch.writes)
                .write(state)
                .write(out)
                .int(shape.heads)
                .run()
        }
    }
}
