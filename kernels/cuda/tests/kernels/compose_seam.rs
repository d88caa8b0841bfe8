use half::f16;
use hypic_cuda::layout::{ALIGNMENT, state_at, tile_at};
use hypic_cuda::{
    Buffer, ComposeSeam, Device, Family, Place, Places, Program, Recurrence, Scratch, Sequence, Sequences,
    Shape, Step, StoredAs, Summaries, Summary, bounds, compose_seam, pack_tiles, recurrence,
};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::run::{assert_close, bits, on_devices};
use crate::truth::{Layer, apply, channels, delta, fresh, nan};

/// One head's summary as it is stored: the arena's bytes, and the same values in f64.
struct Stored {
    t: Vec<f64>,
    s: Vec<f64>,
}

/// Appends `values` in the order `at` to the arena; the byte offset, and the values as the kernels will read
/// them.
fn append(
    arena: &mut Vec<u8>,
    width: usize,
    values: &[f64],
    pair: bool,
    single: bool,
    at: fn(usize, usize, usize) -> usize,
) -> (u64, Vec<f64>) {
    arena.resize(arena.len().next_multiple_of(ALIGNMENT as usize), 0xff);
    let offset = arena.len();
    let (mut high, mut low) = (vec![f16::ZERO; values.len()], vec![f16::ZERO; values.len()]);
    let mut plain = vec![0f32; values.len()];
    let mut read = vec![0.0; values.len()];
    for (i, &value) in values.iter().enumerate() {
        let (x, place) = (value as f32, at(width, i / width, i % width));
        high[place] = f16::from_f32(x);
        low[place] = f16::from_f32(x - high[place].to_f32());
        plain[place] = x;
        read[i] = match (pair, single) {
            (true, _) => f64::from(high[place].to_f32()) + f64::from(low[place].to_f32()),
            (_, true) => f64::from(x),
            _ => f64::from(high[place].to_f32()),
        };
    }
    if single {
        arena.extend(plain.iter().flat_map(|x| x.to_le_bytes()));
    } else {
        arena.extend(high.iter().flat_map(|x| x.to_le_bytes()));
        if pair {
            arena.extend(low.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
    (offset as u64, read)
}

/// A body of `length` tokens per step and head, stored; some heads are dead.
fn body(
    rng: &mut StdRng,
    family: Family,
    shape: Shape,
    stored: StoredAs,
    arena: &mut Vec<u8>,
) -> (Summary, Vec<Stored>) {
    let exact = stored == StoredAs::F32;
    let length = rng.random_range(20..60);
    let layer = Layer::random(rng, family, shape, length);
    let (mut summary, mut truth) =
        (Summary { transition: vec![], state: vec![], factors: vec![] }, Vec::new());
    for head in 0..shape.heads {
        let (mut t, s) = layer.summary(0..length, head);
        let (offset, s) = append(arena, shape.width, &s, false, exact, state_at);
        summary.state.push(offset);
        if delta(family) {
            let live = rng.random_range(0..4) > 0;
            let (offset, read) = append(arena, shape.width, &t, exact, false, tile_at);
            summary.transition.push(live.then_some(offset));
            t = if live { read } else { vec![0.0; t.len()] };
        } else {
            let numbers = if channels(family) { shape.width } else { 1 };
            let diagonal: Vec<f32> = (0..numbers).map(|i| t[i * (shape.width + 1)] as f32).collect();
            for i in 0..shape.width {
                t[i * (shape.width + 1)] = f64::from(diagonal[i % numbers]);
            }
            summary.factors.extend(diagonal);
        }
        truth.push(Stored { t, s });
    }
    (summary, truth)
}

/// Two requests of uneven length with seams of `seam` rows; `gaps` adds rows without a body after them.
fn check(family: Family, width: usize, stored: StoredAs, seam: usize, gaps: bool) {
    let mut rng = fresh();
    let shape = Shape { heads: 4, key_heads: 2, width };
    let mut arena = Vec::new();
    let mut bodies = Vec::new();
    let mut requests = Vec::new();
    for count in [5, 2] {
        let mut steps = Vec::new();
        for i in 0..count {
            // The first segment of a prompt has a seam like any other; an empty one stands for a body taken
            // from context.
            let (summary, truth) = body(&mut rng, family, shape, stored, &mut arena);
            steps.push(Step { rows: if i == 0 { seam / 2 } else { seam }, body: Some(summary) });
            bodies.push(Some(truth));
            if gaps && i % 2 == 1 {
                steps.push(Step { rows: 5, body: None });
                bodies.push(None);
            }
        }
        requests.push(steps);
    }
    let rows: usize = requests.iter().flatten().map(|step| step.rows).sum();
    let layer = Layer::random(&mut rng, family, shape, rows);
    let start: Vec<f32> =
        (0..requests.len() * shape.heads * shape.square()).map(|_| rng.random_range(-0.1..0.1)).collect();

    let (mut outputs, mut states) = (vec![0.0; layer.v.len()], Vec::new());
    let (mut row, mut step) = (0, 0);
    for (request, steps) in requests.iter().enumerate() {
        let (first_row, first_step) = (row, step);
        for head in 0..shape.heads {
            let place = (request * shape.heads + head) * shape.square();
            let mut state: Vec<f64> =
                start[place..place + shape.square()].iter().map(|&x| f64::from(x)).collect();
            (row, step) = (first_row, first_step);
            for current in steps {
                layer.scan(row..row + current.rows, head, &mut state, &mut outputs);
                if let Some(stored) = &bodies[step] {
                    state = apply(width, &stored[head].t, &state, &stored[head].s);
                }
                row += current.rows;
                step += 1;
            }
            states.extend(state);
        }
    }

    on_devices(|device| {
        let program = Program::new(device, family, shape, stored, &requests).unwrap();
        let mut scratch = Scratch::new(device, step, shape.heads).unwrap();
        let mut state = Buffer::from_slice(device, &start).unwrap();
        let mut out = nan(device, layer.v.len());
        let rows = layer.upload(device);
        let layer = ComposeSeam {
            rows: rows.rows(),
            program: &program,
            arena: &Buffer::from_slice(device, &arena).unwrap(),
            state: &mut state,
            out: &mut out,
            scratch: &mut scratch,
        };
        compose_seam(device, layer).unwrap();
        let (state, out) = (state.read().unwrap(), out.read().unwrap());
        assert_close("states", state.iter().copied(), &states, bounds::COMPOSE_STATE);
        assert_close("outputs", out.iter().copied(), &outputs, bounds::COMPOSE_OUTPUT);
        (bits(&state), bits(&out))
    });
}

#[test]
fn every_seam_width_equals_f64_on_the_stored_operands() {
    for seam in [0, 1, 3, 7, 8, 16] {
        check(Family::Gdn, 64, StoredAs::F16, seam, false);
    }
}

#[test]
fn width_128_equals_f64_in_both_formats() {
    for stored in [StoredAs::F16, StoredAs::F32] {
        for seam in [0, 3, 8] {
            check(Family::Gdn, 128, stored, seam, false);
        }
    }
}

#[test]
fn every_family_equals_f64_on_the_stored_operands() {
    for family in Family::ALL {
        check(family, 64, StoredAs::F32, 8, false);
    }
}

#[test]
fn live_rows_between_bodies_run_in_order() {
    check(Family::Gdn, 64, StoredAs::F32, 8, true);
    check(Family::Kda, 64, StoredAs::F16, 3, true);
}

/// Builds the bodies of one long sequence from their true context, stores them, composes, and compares with
/// the plain scan.
fn composed_and_recomputed(device: &Device, family: Family, stored: StoredAs) -> (Vec<f32>, Vec<f64>) {
    let (segments, length, seam) = (4, 45, 8);
    let shape = Shape { heads: 2, key_heads: 1, width: 64 };
    let (pairs, square) = (segments * shape.heads, shape.square());
    let layer = Layer::random(&mut fresh(), family, shape, segments * length);
    let mut recomputed = Vec::new();
    for head in 0..shape.heads {
        let mut state = vec![0.0; square];
        layer.scan(0..layer.rows, head, &mut state, &mut vec![0.0; layer.v.len()]);
        recomputed.extend(state);
    }

    let rows = layer.upload(device);
    let built = vec![Sequence { rows: length, before_body: seam, fresh: true }; segments];
    let (mut running, mut s, mut t) =
        (nan(device, pairs * square), nan(device, pairs * square), nan(device, pairs * square));
    let live = Buffer::from_slice(device, &vec![1u8; pairs]).unwrap();
    let build = Recurrence {
        rows: rows.rows(),
        sequences: &Sequences::new(device, &built).unwrap(),
        state: &mut running,
        summaries: Some(Summaries { state: &mut s, transition: &mut t, live: &live }),
        out: &mut nan(device, layer.v.len()),
    };
    recurrence(device, build).unwrap();

    let size = (square * stored.size()) as u64;
    let places: Vec<_> = (0..pairs as u64).map(|i| (Some(2 * i * size), Some((2 * i + 1) * size))).collect();
    let mut arena = Buffer::from_slice(device, &vec![0xffu8; pairs * 2 * size as usize]).unwrap();
    let on_device = Places::new(device, 64, stored, &places).unwrap();
    pack_tiles(device, &on_device, [&t, &s], &mut arena).unwrap();

    let live_rows = |values: usize| {
        (0..segments).flat_map(move |n| n * length * values..(n * length + seam) * values).collect::<Vec<_>>()
    };
    let (heads, channels) = (shape.heads, if channels(family) { 64 } else { 1 });
    let seams = Layer {
        rows: segments * seam,
        q: live_rows(64).iter().map(|&i| layer.q[i]).collect(),
        k: live_rows(64).iter().map(|&i| layer.k[i]).collect(),
        v: live_rows(heads * 64).iter().map(|&i| layer.v[i]).collect(),
        gate: live_rows(heads * channels).iter().map(|&i| layer.gate[i]).collect(),
        beta: live_rows(heads).iter().map(|&i| layer.beta[i]).collect(),
        ..layer
    };
    let steps = (0..segments)
        .map(|n| {
            let of = |part: fn(&Place) -> Option<u64>| {
                places[n * heads..(n + 1) * heads].iter().map(part).collect::<Vec<_>>()
            };
            let state = of(|place| place.1).into_iter().flatten().collect();
            Step {
                rows: seam,
                body: Some(Summary { transition: of(|place| place.0), state, factors: vec![] }),
            }
        })
        .collect();
    let mut state = Buffer::zeros(device, heads * square).unwrap();
    let rows = seams.upload(device);
    let layer = ComposeSeam {
        rows: rows.rows(),
        program: &Program::new(device, family, shape, stored, &[steps]).unwrap(),
        arena: &arena,
        state: &mut state,
        out: &mut nan(device, seams.v.len()),
        scratch: &mut Scratch::new(device, segments, heads).unwrap(),
    };
    compose_seam(device, layer).unwrap();
    (state.read().unwrap(), recomputed)
}

#[test]
fn composed_equals_recomputed_with_bodies_from_the_true_context() {
    for family in [Family::Gdn, Family::Kda] {
        for (stored, bound) in [(StoredAs::F32, 2e-6), (StoredAs::F16, 2.0 * bounds::STORED_F16)] {
            #[cfg(feature = "gpu-tests")]
            let device = Device::cuda(0).unwrap();
            #[cfg(not(feature = "gpu-tests"))]
            let device = Device::fibers(hypic_cuda::Order::Forward);
            let (composed, recomputed) = composed_and_recomputed(&device, family, stored);
            assert_close("composed state", composed, &recomputed, bound);
        }
    }
}

#[test]
fn a_program_with_a_missing_head_or_a_crooked_offset_is_refused() {
    on_devices(|device| {
        let shape = Shape { heads: 2, key_heads: 1, width: 64 };
        let refused = |transition: Vec<Option<u64>>, state: Vec<u64>| {
            let step = Step { rows: 0, body: Some(Summary { transition, state, factors: vec![] }) };
            Program::new(device, Family::Gdn, shape, StoredAs::F16, &[vec![step]]).is_err()
        };
        assert!(refused(vec![None], vec![0, 8192]));
        assert!(refused(vec![None, None], vec![0]));
        assert!(refused(vec![Some(64), None], vec![0, 8192]));
        assert!(!refused(vec![Some(16384), None], vec![0, 8192]));
    });
}
