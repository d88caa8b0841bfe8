use crate::choice::steps_whole;
use crate::conv_warm::{HEADS_PER_BLOCK, TAPS};
use crate::launch::Launch;
use crate::memory::Float;
use crate::programs::Pool;
use crate::{Buffer, Device, Error, Family, Result, Rows, Shape};

/// What one token of many sequences brings to a gated delta layer, and the tails of their convolutions.
pub(crate) struct StepInputs<'a, E: Float> {
    pub(crate) shape: Shape,
    /// Raw queries, keys, values, `[rows, channels]`.
    pub(crate) x: &'a Buffer<E>,
    /// `[channels, TAPS]`, oldest first.
    pub(crate) taps: &'a Buffer<f32>,
    /// The slot of each row's sequence, each under `most` and no two the same.
    pub(crate) slots: &'a Buffer<u32>,
    pub(crate) most: usize,
    /// Tails, `[TAPS - 1, channels]`: slot `s` has its own at value `first + s * stride`.
    pub(crate) tails: &'a mut Buffer<E>,
    pub(crate) first: usize,
    pub(crate) stride: usize,
    /// What makes decays and strengths, each `[rows, heads]`.
    pub(crate) ab: [&'a Buffer<E>; 2],
    /// `[a_log, dt_bias]`, each `[heads]`.
    pub(crate) decay: [&'a Buffer<f32>; 2],
}

impl<'a, E: Float> StepInputs<'a, E> {
    fn check(&self) -> Result<()> {
        let Self { shape, x, taps, slots, most, tails, first, stride, ab, decay } = self;
        shape.check()?;
        let (rows, channels) = (slots.len(), self.channels());
        for (what, found, expected) in [
            ("x", x.len(), rows * channels),
            ("the taps", taps.len(), channels * TAPS),
            ("a", ab[0].len(), rows * shape.heads),
            ("b", ab[1].len(), rows * shape.heads),
            ("a_log", decay[0].len(), shape.heads),
            ("dt_bias", decay[1].len(), shape.heads),
        ] {
            Error::unless(found == expected, what, expected, found)?;
        }
        let end = first + most.saturating_sub(1) * stride + (TAPS - 1) * channels;
        Error::unless(end <= tails.len(), "the tails", format!("within {}", tails.len()), end)?;
        let aligned = first.is_multiple_of(4) && stride.is_multiple_of(4);
        Error::unless(aligned, "the places of tails", "multiples of 4", format!("{first} and {stride}"))
    }

    fn channels(&self) -> usize {
        (2 * self.shape.key_heads + self.shape.heads) * self.shape.width
    }

    /// As the kernels take them.
    fn of(self, launch: Launch<'a>) -> Launch<'a> {
        let Self { x, taps, slots, tails, first, stride, ab, decay, .. } = self;
        let launch = launch.read(x).read(taps).read(slots).write(tails).int(stride).int(first);
        launch.read(ab[0]).read(ab[1]).read(decay[0]).read(decay[1])
    }
}

/// What the convolution, norms and gates of a gated delta layer make of a step's inputs.
pub(crate) struct Stepped<'a, E: Float> {
    /// Queries and keys, `[rows, key heads, width]`, and values, `[rows, heads, width]`.
    pub(crate) qkv: [&'a mut Buffer<E>; 3],
    /// Decays and strengths, each `[rows, heads]`.
    pub(crate) gates: [&'a mut Buffer<f32>; 2],
}

/// One token of many sequences through the convolution, norms and gates of a gated delta layer:
/// [`conv_warm`](crate::conv_warm) of spans of one row, [`gates`](crate::gates), and the tails, in one launch and with the
/// same bits.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit each other, [`Error::CallDriver`] when the launch fails.
pub(crate) fn conv_step<'a, E: Float>(
    device: &'a Device,
    inputs: StepInputs<'a, E>,
    out: Stepped<'a, E>,
) -> Result<()> {
    inputs.check()?;
    let Shape { heads, key_heads, width } = inputs.shape;
    let (rows, Stepped { qkv: [q, k, v], gates: [gate, beta] }) = (inputs.slots.len(), out);
    for (what, found, expected) in [
        ("q", q.len(), rows * key_heads * width),
        ("k", k.len(), rows * key_heads * width),
        ("v", v.len(), rows * heads * width),
        ("decays", gate.len(), rows * heads),
        ("strengths", beta.len(), rows * heads),
    ] {
        Error::unless(found == expected, what, expected, found)?;
    }
    let blocks = [rows, (2 * key_heads + heads).div_ceil(HEADS_PER_BLOCK), 1];
    let launch = Launch::new(device, format!("conv_step_{}", E::NAME), blocks, 128).overlapping();
    let launch = inputs.of(launch).write(q).write(k).write(v).write(gate).write(beta);
    launch.int(key_heads).int(heads).int(width).run()
}

/// One token of many sequences through the recurrence of a gated delta layer: what
/// [`run_programs`](crate::programs::run_programs) does with one row and no body for each, with the same bits; outputs
/// `[rows, heads, width]`. `slots` are those of `pool`, each under `most` and no two the same. Behind [`conv_step`] of the
/// same rows: it reads the states before it waits.
///
/// # Errors
/// [`Error::CheckShape`] when rows and states do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn gdn_step<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (slots, most): (&Buffer<u32>, usize),
    pool: Pool<'_>,
    out: &mut Buffer<E>,
) -> Result<()> {
    let Shape { heads, key_heads, width } = rows.shape;
    let count = rows.count()?;
    Error::unless(rows.family == Family::Gdn, "the family", "Gdn", format!("{:?}", rows.family))?;
    Error::unless(slots.len() == count, "slots", count, slots.len())?;
    check_pool(&pool, rows.shape, most)?;
    Error::unless(out.len() == rows.v.len(), "the outputs", rows.v.len(), out.len())?;
    Launch::new(device, format!("gdn_step_{width}_{}", E::NAME), [heads, width / 32, count], 128)
        .overlapping()
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate)
        .read(rows.beta)
        .read(slots)
        .write_at(pool.state, pool.first)
        .int(pool.stride)
        .write(out)
        .int(heads)
        .int(key_heads)
        .run()
}

fn check_pool(pool: &Pool<'_>, shape: Shape, most: usize) -> Result<()> {
    let end = pool.first + most.saturating_sub(1) * pool.stride + shape.heads * shape.square();
    Error::unless(end <= pool.state.len(), "the states", format!("within {}", pool.state.len()), end)?;
    let aligned = pool.first.is_multiple_of(4) && pool.stride.is_multiple_of(4);
    let found = || format!("{} and {}", pool.first, pool.stride);
    Error::unless(aligned, "the places of states", "multiples of 4", found())
}

/// The gated norm behind a step.
pub(crate) struct NormBehind<'a, E: Float> {
    /// `[rows, heads, width]`.
    pub(crate) gate: &'a Buffer<E>,
    /// `[width]`.
    pub(crate) weight: &'a Buffer<f32>,
    pub(crate) eps: f32,
    /// `[rows, heads, width]`.
    pub(crate) y: &'a mut Buffer<E>,
}

/// [`conv_step`], [`gdn_step`] and [`gated_norm`](crate::gated_norm) of few rows in one launch and with the same bits.
///
/// # Errors
/// As these, and where a block cannot have a key head's states whole (`steps_whole`).
pub(crate) fn whole_step<'a, E: Float>(
    device: &'a Device,
    inputs: StepInputs<'a, E>,
    pool: Pool<'a>,
    behind: NormBehind<'a, E>,
) -> Result<()> {
    inputs.check()?;
    check_pool(&pool, inputs.shape, inputs.most)?;
    let (shape, rows, NormBehind { gate, weight, eps, y }) = (inputs.shape, inputs.slots.len(), behind);
    let Shape { heads, key_heads, width } = shape;
    let fits = steps_whole(rows, shape, device.capability());
    Error::unless(
        fits,
        "the shape of a whole step",
        "one or two heads for a key head",
        format!("{shape:?}"),
    )?;
    for (what, found, expected) in [
        ("the gates", gate.len(), rows * heads * width),
        ("the norms", y.len(), rows * heads * width),
        ("the norm's weight", weight.len(), width),
    ] {
        Error::unless(found == expected, what, expected, found)?;
    }
    let group = heads / key_heads;
    let kernel = format!("whole_step_{width}_{group}_{}", E::NAME);
    let launch = Launch::new(device, kernel, [key_heads, 1, rows], group * 4 * width).overlapping();
    let launch = inputs.of(launch.shared(group * shape.square() * size_of::<f32>()));
    let launch = launch.write_at(pool.state, pool.first).int(pool.stride);
    launch.read(gate).read(weight).write(y).float(eps).int(heads).int(key_heads).run()
}

#[cfg(all(test, feature = "fibers"))]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
mod tests {
    use half::bf16;

    use super::*;
    use crate::conv_warm::Tails;
    use crate::programs::{PoolRequest, PoolStep, run_programs};
    use crate::{ConvWarm, Order, RawRow, Span, conv_warm, gated_norm, gates};

    const SHAPE: Shape = Shape { heads: 4, key_heads: 2, width: 64 };
    const CHANNELS: usize = 8 * 64;
    /// The slots of three rows, of five in all, which have another layer before this one.
    const SLOTS: [u32; 3] = [4, 0, 2];
    const MOST: usize = 5;
    const FIRST: [usize; 2] = [32, 16];

    struct Numbers(u32);

    impl Numbers {
        fn many<T: Float>(&mut self, len: usize) -> Vec<T> {
            let mut one = || {
                self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                T::narrow((self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0)
            };
            (0..len).map(|_| one()).collect()
        }
    }

    /// Outputs, states and tails of one token, in the form of decode or in that of programs.
    fn run<E: Float>(seed: u32, device: &Device, as_step: bool) -> Result<(Vec<E>, Vec<f32>, Vec<E>)> {
        let mut numbers = Numbers(seed);
        let (rows, Shape { heads, key_heads, width }) = (SLOTS.len(), SHAPE);
        let (stride, tail_stride) = (heads * width * width + FIRST[0], 3 * CHANNELS + FIRST[1]);
        let mut place = |len: usize| Buffer::from_slice(device, &numbers.many::<E>(len));
        let (x, a, b) = (place(rows * CHANNELS)?, place(rows * heads)?, place(rows * heads)?);
        let mut tails = place(MOST * tail_stride)?;
        let mut exact = |len: usize| Buffer::from_slice(device, &numbers.many::<f32>(len));
        let (taps, a_log, dt_bias) = (exact(CHANNELS * TAPS)?, exact(heads)?, exact(heads)?);
        let mut state = exact(MOST * stride)?;
        let nan = |len: usize| Buffer::from_slice(device, &vec![E::narrow(f32::NAN); len]);
        let [mut q, mut k] = [nan(rows * key_heads * width)?, nan(rows * key_heads * width)?];
        let [mut v, mut out] = [nan(rows * heads * width)?, nan(rows * heads * width)?];
        let [mut gate, mut beta] = [exact(rows * heads)?, exact(rows * heads)?];
        if as_step {
            let slots = Buffer::from_slice(device, &SLOTS)?;
            let inputs = StepInputs {
                shape: SHAPE,
                x: &x,
                taps: &taps,
                slots: &slots,
                most: MOST,
                tails: &mut tails,
                first: FIRST[1],
                stride: tail_stride,
                ab: [&a, &b],
                decay: [&a_log, &dt_bias],
            };
            let out_of_conv = Stepped { qkv: [&mut q, &mut k, &mut v], gates: [&mut gate, &mut beta] };
            conv_step(device, inputs, out_of_conv)?;
            let rows =
                Rows { family: Family::Gdn, shape: SHAPE, q: &q, k: &k, v: &v, gate: &gate, beta: &beta };
            let pool = Pool { state: &mut state, first: FIRST[0], stride };
            gdn_step(device, rows, (&slots, MOST), pool, &mut out)?;
        } else {
            let places = SLOTS.map(|slot| slot as usize * tail_stride + FIRST[1]);
            let left = |at: usize| std::array::from_fn(|row| RawRow::At(&tails, at + row * CHANNELS));
            let spans: Vec<_> = places.iter().map(|&at| Span { rows: 1, left: left(at) }).collect();
            let mut moved = Tails::new(CHANNELS);
            for (row, &at) in places.iter().enumerate() {
                let [_, b, c] = left(at);
                moved.push([b, c, RawRow::At(&x, row * CHANNELS)])?;
            }
            let conv =
                ConvWarm { shape: SHAPE, x: &x, taps: &taps, spans: &spans, q: &mut q, k: &mut k, v: &mut v };
            conv_warm(device, conv)?;
            moved.write(device, &mut tails, &places.map(|place| place as u64))?;
            gates(device, [&a, &b], [&a_log, &dt_bias], &mut gate, &mut beta)?;
            let rows =
                Rows { family: Family::Gdn, shape: SHAPE, q: &q, k: &k, v: &v, gate: &gate, beta: &beta };
            let request = |slot: &u32| -> PoolRequest<'_> {
                (Some(*slot as usize), vec![PoolStep { rows: 1, body: None }])
            };
            let requests: Vec<_> = SLOTS.iter().map(request).collect();
            let pool = Pool { state: &mut state, first: FIRST[0], stride };
            run_programs(device, rows, &requests, pool, &mut out)?;
        }
        Ok((out.read()?, state.read()?, tails.read()?))
    }

    fn bits<T: Float>(values: &[T]) -> Vec<u32> {
        values.iter().map(|value| value.wide().to_bits()).collect()
    }

    fn forms_agree<E: Float>() {
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        for order in [Order::Forward, Order::Backward, Order::Shuffled(7)] {
            let [one, other] =
                [true, false].map(|as_step| run::<E>(seed, &Device::fibers(order), as_step).unwrap());
            assert!(one.0.iter().all(|value| value.wide().is_finite()), "seed {seed}");
            assert_eq!(bits(&one.0), bits(&other.0), "outputs, seed {seed}");
            assert_eq!(bits(&one.1), bits(&other.1), "states, seed {seed}");
            assert_eq!(bits(&one.2), bits(&other.2), "tails, seed {seed}");
        }
    }

    #[test]
    fn a_token_of_each_sequence_has_the_bits_of_its_program() {
        forms_agree::<bf16>();
        forms_agree::<f32>();
    }

    /// Normed outputs, states and tails of one token of `count` sequences, by one launch or by three.
    fn normed<E: Float>(
        seed: u32,
        device: &Device,
        (count, shape): (usize, Shape),
        is_whole: bool,
    ) -> Result<(Vec<E>, Vec<f32>, Vec<E>)> {
        let mut numbers = Numbers(seed);
        let Shape { heads, key_heads, width } = shape;
        let (channels, wide) = ((2 * key_heads + heads) * width, count * heads * width);
        let (stride, tail_stride) = (heads * width * width + FIRST[0], 3 * channels + FIRST[1]);
        let mut place = |len: usize| Buffer::from_slice(device, &numbers.many::<E>(len));
        let (x, z) = (place(count * channels)?, place(wide)?);
        let (a, b) = (place(count * heads)?, place(count * heads)?);
        let mut tails = place(MOST * tail_stride)?;
        let mut exact = |len: usize| Buffer::from_slice(device, &numbers.many::<f32>(len));
        let (taps, a_log, dt_bias) = (exact(channels * TAPS)?, exact(heads)?, exact(heads)?);
        let (weight, mut state) = (exact(width)?, exact(MOST * stride)?);
        let slots = Buffer::from_slice(device, &SLOTS[..count])?;
        let nan = |len: usize| Buffer::from_slice(device, &vec![E::narrow(f32::NAN); len]);
        let mut y = nan(wide)?;
        let inputs = StepInputs {
            shape,
            x: &x,
            taps: &taps,
            slots: &slots,
            most: MOST,
            tails: &mut tails,
            first: FIRST[1],
            stride: tail_stride,
            ab: [&a, &b],
            decay: [&a_log, &dt_bias],
        };
        let (pool, eps) = (Pool { state: &mut state, first: FIRST[0], stride }, 1e-6);
        if is_whole {
            whole_step(device, inputs, pool, NormBehind { gate: &z, weight: &weight, eps, y: &mut y })?;
        } else {
            let keys = count * key_heads * width;
            let (mut q, mut k, mut v, mut out) = (nan(keys)?, nan(keys)?, nan(wide)?, nan(wide)?);
            let gates = || Buffer::from_slice(device, &vec![f32::NAN; count * heads]);
            let (mut gate, mut beta) = (gates()?, gates()?);
            let stepped = Stepped { qkv: [&mut q, &mut k, &mut v], gates: [&mut gate, &mut beta] };
            conv_step(device, inputs, stepped)?;
            let rows = Rows { family: Family::Gdn, shape, q: &q, k: &k, v: &v, gate: &gate, beta: &beta };
            gdn_step(device, rows, (&slots, MOST), pool, &mut out)?;
            gated_norm(device, &out, &z, &weight, &mut y, eps)?;
        }
        Ok((y.read()?, state.read()?, tails.read()?))
    }

    fn norms_agree<E: Float>() {
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let shape = |heads: usize, width: usize| Shape { heads, key_heads: 2, width };
        for of in [(1, shape(4, 64)), (3, shape(2, 64)), (1, shape(2, 128)), (2, shape(4, 128))] {
            for order in [Order::Forward, Order::Backward, Order::Shuffled(7)] {
                let run = |is_whole: bool| normed::<E>(seed, &Device::fibers(order), of, is_whole).unwrap();
                let (one, other) = (run(true), run(false));
                assert!(one.0.iter().all(|value| value.wide().is_finite()), "seed {seed}");
                assert_eq!(bits(&one.0), bits(&other.0), "norms of {of:?}, seed {seed}");
                assert_eq!(bits(&one.1), bits(&other.1), "states of {of:?}, seed {seed}");
                assert_eq!(bits(&one.2), bits(&other.2), "tails of {of:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn a_step_in_one_launch_has_the_bits_of_the_launches_apart() {
        norms_agree::<bf16>();
        norms_agree::<f32>();
    }
}
