use crate::conv_warm::{HEADS_PER_BLOCK, TAPS};
use crate::launch::Launch;
use crate::memory::Float;
use crate::programs::Pool;
use crate::{Buffer, Device, Error, Family, Result, Rows, Shape};

/// One token of many sequences through the convolution, norms and gates of a gated delta layer.
pub(crate) struct ConvStep<'a, E: Float> {
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
    /// Queries and keys, `[rows, key heads, width]`, and values, `[rows, heads, width]`.
    pub(crate) qkv: [&'a mut Buffer<E>; 3],
    /// Decays and strengths, each `[rows, heads]`.
    pub(crate) gates: [&'a mut Buffer<f32>; 2],
}

/// Runs it: [`conv_warm`](crate::conv_warm) of spans of one row, [`gates`](crate::gates), and the tails, in one launch and
/// with the same bits.
///
/// # Errors
/// [`Error::CheckShape`] when buffers do not fit each other, [`Error::CallDriver`] when the launch fails.
pub(crate) fn conv_step<E: Float>(device: &Device, run: ConvStep<'_, E>) -> Result<()> {
    let ConvStep { shape, x, taps, slots, most, tails, first, stride, ab, decay, qkv, gates } = run;
    shape.check()?;
    let Shape { heads, key_heads, width } = shape;
    let (rows, channels) = (slots.len(), (2 * key_heads + heads) * width);
    let [q, k, v] = qkv;
    for (what, found, expected) in [
        ("x", x.len(), rows * channels),
        ("the taps", taps.len(), channels * TAPS),
        ("q", q.len(), rows * key_heads * width),
        ("k", k.len(), rows * key_heads * width),
        ("v", v.len(), rows * heads * width),
        ("a", ab[0].len(), rows * heads),
        ("b", ab[1].len(), rows * heads),
        ("a_log", decay[0].len(), heads),
        ("dt_bias", decay[1].len(), heads),
        ("decays", gates[0].len(), rows * heads),
        ("strengths", gates[1].len(), rows * heads),
    ] {
        Error::unless(found == expected, what, expected, found)?;
    }
    let end = first + most.saturating_sub(1) * stride + (TAPS - 1) * channels;
    Error::unless(end <= tails.len(), "the tails", format!("within {}", tails.len()), end)?;
    let aligned = first.is_multiple_of(4) && stride.is_multiple_of(4);
    Error::unless(aligned, "the places of tails", "multiples of 4", format!("{first} and {stride}"))?;
    let [gate, beta] = gates;
    let blocks = [rows, (2 * key_heads + heads).div_ceil(HEADS_PER_BLOCK), 1];
    Launch::new(device, format!("conv_step_{}", E::NAME), blocks, 128)
        .overlapping()
        .read(x)
        .read(taps)
        .read(slots)
        .write(tails)
        .int(stride)
        .int(first)
        .read(ab[0])
        .read(ab[1])
        .read(decay[0])
        .read(decay[1])
        .write(q)
        .write(k)
        .write(v)
        .write(gate)
        .write(beta)
        .int(key_heads)
        .int(heads)
        .int(width)
        .run()
}

/// Where the outputs of a step of the recurrence go.
pub(crate) enum StepOut<'a, E: Float> {
    /// As they are, `[rows, heads, width]`.
    Plain(&'a mut Buffer<E>),
    /// Their [`gated_norm`](crate::gated_norm) over each head, bit for bit: one block for a head, for few rows.
    Normed {
        /// `[rows, heads, width]`.
        gate: &'a Buffer<E>,
        /// `[width]`.
        weight: &'a Buffer<f32>,
        eps: f32,
        y: &'a mut Buffer<E>,
    },
}

/// One token of many sequences through the recurrence of a gated delta layer: what
/// [`run_programs`](crate::programs::run_programs) does with one row and no body for each, with the same bits. `slots` are
/// those of `pool`, each under `most` and no two the same. Behind [`conv_step`] of the same rows: it reads the states and the
/// gate before it waits.
///
/// # Errors
/// [`Error::CheckShape`] when rows and states do not fit, [`Error::CallDriver`] when the launch fails.
pub(crate) fn gdn_step<E: Float>(
    device: &Device,
    rows: Rows<'_, E>,
    (slots, most): (&Buffer<u32>, usize),
    pool: Pool<'_>,
    out: StepOut<'_, E>,
) -> Result<()> {
    let Shape { heads, key_heads, width } = rows.shape;
    let count = rows.count()?;
    Error::unless(rows.family == Family::Gdn, "the family", "Gdn", format!("{:?}", rows.family))?;
    Error::unless(slots.len() == count, "slots", count, slots.len())?;
    let end = pool.first + most.saturating_sub(1) * pool.stride + heads * rows.shape.square();
    Error::unless(end <= pool.state.len(), "the states", format!("within {}", pool.state.len()), end)?;
    let fits = |what, found| Error::unless(found == rows.v.len(), what, rows.v.len(), found);
    let (stem, blocks, threads) = match &out {
        StepOut::Plain(y) => {
            fits("the outputs", y.len())?;
            ("gdn_step", width / 32, 128)
        }
        StepOut::Normed { gate, weight, y, .. } => {
            fits("the gates", gate.len())?;
            fits("the norms", y.len())?;
            Error::unless(weight.len() == width, "the norm's weight", width, weight.len())?;
            ("gdn_step_norm", 1, 4 * width)
        }
    };
    let kernel = format!("{stem}_{width}_{}", E::NAME);
    let launch = Launch::new(device, kernel, [heads, blocks, count], threads)
        .overlapping()
        .read(rows.q)
        .read(rows.k)
        .read(rows.v)
        .read(rows.gate)
        .read(rows.beta)
        .read(slots)
        .write_at(pool.state, pool.first)
        .int(pool.stride);
    let launch = match out {
        StepOut::Plain(y) => launch.write(y),
        StepOut::Normed { gate, weight, eps, y } => launch.read(gate).read(weight).write(y).float(eps),
    };
    launch.int(heads).int(key_heads).run()
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
            let conv = ConvStep {
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
                qkv: [&mut q, &mut k, &mut v],
                gates: [&mut gate, &mut beta],
            };
            conv_step(device, conv)?;
            let rows =
                Rows { family: Family::Gdn, shape: SHAPE, q: &q, k: &k, v: &v, gate: &gate, beta: &beta };
            let pool = Pool { state: &mut state, first: FIRST[0], stride };
            gdn_step(device, rows, (&slots, MOST), pool, StepOut::Plain(&mut out))?;
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

    /// Normed outputs and states of one token of `count` sequences, by one launch or by two.
    fn normed<E: Float>(
        seed: u32,
        device: &Device,
        (count, width): (usize, usize),
        is_fused: bool,
    ) -> Result<(Vec<E>, Vec<f32>)> {
        let mut numbers = Numbers(seed);
        let shape = Shape { width, ..SHAPE };
        let (heads, key_heads, stride) = (SHAPE.heads, SHAPE.key_heads, SHAPE.heads * width * width + 32);
        let mut place = |len: usize| Buffer::from_slice(device, &numbers.many::<E>(len));
        let (q, k) = (place(count * key_heads * width)?, place(count * key_heads * width)?);
        let (v, z) = (place(count * heads * width)?, place(count * heads * width)?);
        let mut exact = |len: usize| Buffer::from_slice(device, &numbers.many::<f32>(len));
        let (gate, beta, weight) = (exact(count * heads)?, exact(count * heads)?, exact(width)?);
        let mut state = exact(MOST * stride)?;
        let slots = Buffer::from_slice(device, &SLOTS[..count])?;
        let nan = || Buffer::from_slice(device, &vec![E::narrow(f32::NAN); count * heads * width]);
        let (mut out, mut y) = (nan()?, nan()?);
        let rows = Rows { family: Family::Gdn, shape, q: &q, k: &k, v: &v, gate: &gate, beta: &beta };
        let pool = Pool { state: &mut state, first: FIRST[0], stride };
        let eps = 1e-6;
        if is_fused {
            let to = StepOut::Normed { gate: &z, weight: &weight, eps, y: &mut y };
            gdn_step(device, rows, (&slots, MOST), pool, to)?;
        } else {
            gdn_step(device, rows, (&slots, MOST), pool, StepOut::Plain(&mut out))?;
            gated_norm(device, &out, &z, &weight, &mut y, eps)?;
        }
        Ok((y.read()?, state.read()?))
    }

    fn norms_agree<E: Float>() {
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        for of in [(1, 64), (3, 64), (1, 128), (2, 128)] {
            for order in [Order::Forward, Order::Backward, Order::Shuffled(7)] {
                let run = |is_fused: bool| normed::<E>(seed, &Device::fibers(order), of, is_fused).unwrap();
                let (one, other) = (run(true), run(false));
                assert!(one.0.iter().all(|value| value.wide().is_finite()), "seed {seed}");
                assert_eq!(bits(&one.0), bits(&other.0), "norms of {of:?}, seed {seed}");
                assert_eq!(bits(&one.1), bits(&other.1), "states of {of:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn outputs_that_are_normed_where_they_are_made_have_the_bits_of_the_launches_apart() {
        norms_agree::<bf16>();
        norms_agree::<f32>();
    }
}
