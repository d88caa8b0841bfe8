use half::bf16;
use hypic_domain::model::FullShape;

use crate::choice::{AttentionForm, attention_form};
use crate::contexts::{Contexts, GATHERED, MERGE_WORDS};
use crate::launch::Launch;
use crate::memory::Float;
use crate::{Buffer, Device, Error, Result, sigmoid_gate};

/// Threads and bytes of shared memory of a block: sizes of device/attention.cu, attention_hopper.cu and
/// attention_gathered_hopper.cu.
fn block(form: AttentionForm, width: usize) -> (usize, usize) {
    match form {
        AttentionForm::Portable => (256, (128 + 4 * 64) * 2 * width),
        AttentionForm::Hopper => (512, (128 + 5 * 64) * 2 * width + 5 * 16),
        AttentionForm::Gathered => (384, 128 * 2 * width + 6 * GATHERED * 2 * width.min(128) + 6 * 16),
        AttentionForm::Plain => (64, 0),
    }
}

/// Attention of live rows over keys and values in pages, causal by global position (DESIGN §4, Used).
pub struct Attention<'a, E: Float = bf16> {
    /// Queries before rotation, `[rows, heads, width]`.
    pub q: &'a Buffer<E>,
    /// Keys before rotation, `[pages, kv heads, page tokens, width]`.
    pub key: &'a Buffer<E>,
    /// Values, as the keys.
    pub value: &'a Buffer<E>,
    /// What the rows attend to, and room for partial sums.
    pub contexts: &'a mut Contexts,
    /// `[positions, rotary]`: cosines of the `rotary / 2` angles of a position, then their sines, made in
    /// f64.
    pub rope: &'a Buffer<f32>,
    /// Factor on scores, usually `width^-0.5`; above zero.
    pub scale: f32,
    /// As the outputs, which are multiplied by its sigmoid where it is there: [`sigmoid_gate`], bit for bit.
    pub gate: Option<&'a Buffer<E>>,
    /// Outputs, `[rows, heads, width]`.
    pub out: &'a mut Buffer<E>,
}

/// Runs the attention in the form that [`attention_form`] names, over gathered tokens where the contexts are cut for it,
/// and in the plain form on fp32.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts, [`Error::CallDriver`] when a launch fails.
pub fn attention<E: Float>(device: &Device, run: Attention<'_, E>) -> Result<()> {
    let form = match attention_form(device.capability()) {
        _ if E::NAME == f32::NAME => AttentionForm::Plain,
        AttentionForm::Hopper if run.contexts.gathered.is_some() => AttentionForm::Gathered,
        form => form,
    };
    attention_as(device, run, form)
}

/// Runs the attention in a form of the caller's choice.
///
/// # Errors
/// As [`attention`], and [`Error::FindKernel`] for a form that the device does not have.
pub fn attention_as<E: Float>(device: &Device, run: Attention<'_, E>, form: AttentionForm) -> Result<()> {
    let Attention { q, key, value, contexts, rope, scale, gate, out } = run;
    let FullShape { heads, kv_heads, key: width, value: value_width, rotary } = contexts.shape;
    Error::unless(value_width == width, "the values", "as wide as the keys", value_width)?;
    let size = contexts.rows * heads * width;
    Error::unless(q.len() == size, "the queries", size, q.len())?;
    Error::unless(out.len() == size, "the outputs", size, out.len())?;
    if let Some(gate) = gate {
        Error::unless(gate.len() == size, "the gates", size, gate.len())?;
    }
    contexts.check_pages([key, value])?;
    contexts.check_angles(rope)?;
    Error::unless(scale > 0.0, "the factor on scores", "above zero", scale)?;
    let is_plain = E::NAME == f32::NAME;
    Error::unless(is_plain == (form == AttentionForm::Plain), "the form", "plain for fp32 alone", E::NAME)?;
    if form == AttentionForm::Gathered {
        gather_kv(device, [key, value], contexts, rope)?;
    }
    let stem = match form {
        AttentionForm::Portable => "attention",
        AttentionForm::Hopper => "attention_hopper",
        AttentionForm::Gathered => "attention_gathered",
        AttentionForm::Plain => {
            attention_plain(device, (q, key, value), contexts, (rope, scale), out)?;
            return gate.map_or(Ok(()), |gate| sigmoid_gate(device, out, gate));
        }
    };
    let (threads, shared) = block(form, width);
    let launch =
        Launch::new(device, format!("{stem}_{width}"), [contexts.jobs, kv_heads, 1], threads).shared(shared);
    let (launch, stride) = match (form, &contexts.gathered) {
        (AttentionForm::Gathered, Some([keys, values])) => {
            (launch.read(q).read(keys).read(values), contexts.tokens.len() / 2)
        }
        _ => (launch.read(q).read(key).read(value), contexts.page_tokens),
    };
    launch
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
        .int(stride)
        .int(rotary)
        .int(rotary.max(1).ilog2() as usize)
        .run()?;
    merge(device, contexts, width, gate, out)
}

/// Adds the partial sums of rows whose tokens several jobs share, if there are any, to outputs `[rows, heads, width]`, and
/// multiplies these by the sigmoid of the gate where there is one.
pub(crate) fn merge<E: Float>(
    device: &Device,
    contexts: &Contexts,
    width: usize,
    gate: Option<&Buffer<E>>,
    out: &mut Buffer<E>,
) -> Result<()> {
    if contexts.partial_sum.is_empty() && gate.is_none() {
        return Ok(());
    }
    let heads = contexts.shape.heads;
    let kernel = if gate.is_some() { "attention_merge_gated" } else { "attention_merge" };
    let launch = Launch::new(device, kernel, [contexts.merge.len() / MERGE_WORDS, heads, 1], 256)
        .read(&contexts.partial_out)
        .read(&contexts.partial_sum)
        .read(&contexts.merge)
        .write(out);
    let launch = match gate {
        Some(gate) => launch.overlapping().read(gate),
        None => launch,
    };
    launch.int(heads).int(width).run()
}

/// Brings the keys of the contexts' tokens, rotated to their positions, and their values into tiles
/// `[kv head, tokens / 96][width / 64][96][64]`, the 16-byte chunks of a token xored by its number in the tile.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts, or these are not cut for it; [`Error::CallDriver`] when
/// the launch fails.
pub fn gather_kv<E: Float>(
    device: &Device,
    [key, value]: [&Buffer<E>; 2],
    contexts: &mut Contexts,
    rope: &Buffer<f32>,
) -> Result<()> {
    contexts.check_pages([key, value])?;
    let FullShape { kv_heads, key: width, rotary, .. } = contexts.shape;
    contexts.check_angles(rope)?;
    Error::unless(E::NAME == bf16::NAME, "the format of gathered tokens", bf16::NAME, E::NAME)?;
    let tokens = contexts.tokens.len() / 2;
    let Some([keys, values]) = &mut contexts.gathered else {
        return Err(Error::CheckShape {
            what: "the contexts",
            expected: "cut for gathered tokens".to_owned(),
            found: "not".to_owned(),
        });
    };
    Launch::new(device, "gather_kv", [tokens / 8, kv_heads, 1], 256)
        .read(key)
        .read(value)
        .read(&contexts.tokens)
        .read(rope)
        .write(keys)
        .write(values)
        .int(tokens)
        .int(contexts.page_tokens)
        .int(width)
        .int(rotary)
        .run()
}

/// Attention by plain loops. Contexts are not cut into jobs here.
fn attention_plain<E: Float>(
    device: &Device,
    (q, key, value): (&Buffer<E>, &Buffer<E>, &Buffer<E>),
    contexts: &Contexts,
    (rope, scale): (&Buffer<f32>, f32),
    out: &mut Buffer<E>,
) -> Result<()> {
    let FullShape { heads, kv_heads, key: width, rotary, .. } = contexts.shape;
    Launch::new(device, "attention_f32", [contexts.rows, heads, 1], 64)
        .read(q)
        .read(key)
        .read(value)
        .read(&contexts.row_lists)
        .read(&contexts.tokens)
        .read(&contexts.positions)
        .read(&contexts.seen)
        .read(rope)
        .write(out)
        .float(scale)
        .int(heads)
        .int(kv_heads)
        .int(contexts.page_tokens)
        .int(width)
        .int(rotary)
        .run()
}

/// Writes keys (before rotation) and values of the contexts' live rows, `[rows, kv heads, width]`, to the
/// slots of their tokens. [`attention`] over the same contexts then finds them there.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts, [`Error::CallDriver`] when the launch fails.
pub fn store_kv<E: Float>(
    device: &Device,
    rows: [&Buffer<E>; 2],
    contexts: &Contexts,
    key: &mut Buffer<E>,
    value: &mut Buffer<E>,
) -> Result<()> {
    contexts.check_pages([key, value])?;
    let moved = KvRows {
        kv_heads: contexts.shape.kv_heads,
        width: contexts.shape.key,
        page_tokens: contexts.page_tokens,
        places: &contexts.row_places,
        order: KvOrder::Tokens,
    };
    moved.store(device, rows, [key, value])
}

/// The heads of a step before their norms, for [`norm_and_store`].
pub struct Heads<'a, E: Float = bf16> {
    /// `[rows, heads, width]`.
    pub q: &'a Buffer<E>,
    /// `[rows, kv heads, width]`.
    pub k: &'a Buffer<E>,
    /// As the keys.
    pub v: &'a Buffer<E>,
    /// Weights of the norms of queries and keys, `[width]`.
    pub norms: [&'a Buffer<f32>; 2],
    /// 1 for zero-centred weights, else 0.
    pub offset: f32,
    /// What is added to the mean of squares.
    pub eps: f32,
    /// The norms of queries, as `q`.
    pub normed: &'a mut Buffer<E>,
}

/// [`rms_norm`](crate::rms_norm) of queries and keys of bf16, and [`store_kv`] of those keys and the values, in one launch
/// and with the same bits: for few rows.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit the contexts or for other formats, [`Error::CallDriver`] when the launch
/// fails.
pub fn norm_and_store<E: Float>(
    device: &Device,
    run: Heads<'_, E>,
    contexts: &Contexts,
    [key, value]: [&mut Buffer<E>; 2],
) -> Result<()> {
    let Heads { q, k, v, norms, offset, eps, normed } = run;
    let FullShape { heads, kv_heads, key: width, .. } = contexts.shape;
    contexts.check_pages([key, value])?;
    Error::unless(E::NAME == bf16::NAME, "the format", bf16::NAME, E::NAME)?;
    let sizes = [contexts.rows * heads * width, contexts.rows * kv_heads * width];
    for (what, found, expected) in [
        ("the queries", q.len(), sizes[0]),
        ("the norms of queries", normed.len(), sizes[0]),
        ("the keys", k.len(), sizes[1]),
        ("the values", v.len(), sizes[1]),
        ("the weight of queries", norms[0].len(), width),
        ("the weight of keys", norms[1].len(), width),
    ] {
        Error::unless(found == expected, what, expected, found)?;
    }
    Launch::new(device, "norm_and_store", [contexts.rows, (heads + 2 * kv_heads).div_ceil(4), 1], 128)
        .overlapping()
        .read(q)
        .read(k)
        .read(v)
        .read(norms[0])
        .read(norms[1])
        .read(&contexts.row_places)
        .write(normed)
        .write(key)
        .write(value)
        .int(heads)
        .int(kv_heads)
        .int(width)
        .int(contexts.page_tokens)
        .float(offset)
        .float(eps)
        .run()
}

/// What lies outermost in rows of keys and values.
#[derive(Clone, Copy)]
pub(crate) enum KvOrder {
    /// `[rows, kv heads, width]`, as a step computes them.
    Tokens,
    /// `[kv heads, rows, width]`, as tuples store them.
    Heads,
}

/// Rows of keys and values, and where they lie in pages.
pub(crate) struct KvRows<'a> {
    pub(crate) kv_heads: usize,
    pub(crate) width: usize,
    pub(crate) page_tokens: usize,
    /// For each row `page * kv heads * page tokens + place in the page`; inside of the pages.
    pub(crate) places: &'a Buffer<u32>,
    pub(crate) order: KvOrder,
}

impl KvRows<'_> {
    fn size(&self) -> usize {
        self.places.len() * self.kv_heads * self.width
    }

    fn check<E: Float>(&self, rows: [&Buffer<E>; 2]) -> Result<()> {
        let size = self.size();
        for row in rows {
            Error::unless(row.len() == size, "keys and values of the rows", size, row.len())?;
        }
        self.check_width::<E>()
    }

    fn check_width<E: Float>(&self) -> Result<()> {
        let bytes = self.width * size_of::<E>();
        Error::unless(bytes.is_multiple_of(16), "bytes of a key", "a multiple of 16", bytes)
    }

    /// Into the pages.
    pub(crate) fn store<E: Float>(
        &self,
        device: &Device,
        rows: [&Buffer<E>; 2],
        [key, value]: [&mut Buffer<E>; 2],
    ) -> Result<()> {
        self.check(rows)?;
        let launch = Launch::new(device, "store_kv", [self.places.len(), self.kv_heads, 1], 64);
        self.run::<E>(launch.read(rows[0]).read(rows[1]).read(self.places).write(key).write(value))
    }

    /// Into the pages, from the keys and behind them the values.
    pub(crate) fn store_both<E: Float>(
        &self,
        device: &Device,
        rows: &Buffer<E>,
        [key, value]: [&mut Buffer<E>; 2],
    ) -> Result<()> {
        let size = self.size();
        Error::unless(rows.len() == 2 * size, "keys and values of the rows", 2 * size, rows.len())?;
        self.check_width::<E>()?;
        let launch = Launch::new(device, "store_kv", [self.places.len(), self.kv_heads, 1], 64);
        self.run::<E>(launch.read(rows).read_at(rows, size).read(self.places).write(key).write(value))
    }

    /// Out of the pages.
    pub(crate) fn load<E: Float>(
        &self,
        device: &Device,
        [k, v]: [&mut Buffer<E>; 2],
        pages: [&Buffer<E>; 2],
    ) -> Result<()> {
        self.check([k, v])?;
        let launch = Launch::new(device, "load_kv", [self.places.len(), self.kv_heads, 1], 64);
        self.run::<E>(launch.write(k).write(v).read(self.places).read(pages[0]).read(pages[1]))
    }

    fn run<E: Float>(&self, launch: Launch<'_>) -> Result<()> {
        let (row_step, head_step) = match self.order {
            KvOrder::Tokens => (self.kv_heads, 1),
            KvOrder::Heads => (1, self.places.len()),
        };
        let units = self.width * size_of::<E>() / 16;
        launch.int(units).int(self.page_tokens).int(row_step).int(head_step).run()
    }
}
