use hypic_cuda::{
    Buffer, Device, Family, Recurrence, Result, Sequence, Sequences, Shape, Summaries, bounds, recurrence,
    recurrence_chunks,
};

use crate::run::{LENGTHS, assert_close, assert_transition, bits, on_devices};
use crate::truth::{Layer, delta, fresh, nan};

/// Builds sequences of `lengths`, each with `before_body` rows of context, and checks outputs, states, `S`
/// and `T` against f64.
fn check(family: Family, width: usize, lengths: &[usize], before_body: usize) {
    check_form((recurrence, bounds::RECURRENCE), family, width, lengths, before_body);
}

/// The same in chunks.
fn check_chunks(family: Family, width: usize, lengths: &[usize], before_body: usize) {
    check_form((recurrence_chunks, bounds::CHUNKS), family, width, lengths, before_body);
}

/// A form of the recurrence.
type Form = fn(&Device, Recurrence<'_>) -> Result<()>;

fn check_form(
    (form, bound): (Form, f64),
    family: Family,
    width: usize,
    lengths: &[usize],
    before_body: usize,
) {
    let shape = Shape { heads: 2, key_heads: 1, width };
    let layer = Layer::random(&mut fresh(), family, shape, lengths.iter().sum());
    check_layer((form, bound), &layer, lengths, before_body);
}

fn check_layer((form, bound): (Form, f64), layer: &Layer, lengths: &[usize], before_body: usize) {
    let Layer { family, shape, .. } = *layer;
    let width = shape.width;
    // The last head of every sequence is dead: its T must not be touched.
    let live: Vec<u8> = (0..lengths.len() * shape.heads).map(|i| u8::from(i % shape.heads == 0)).collect();
    let size = lengths.len() * shape.heads * shape.square();
    let list: Vec<Sequence> = lengths
        .iter()
        .map(|&rows| Sequence { rows, before_body: before_body.min(rows), fresh: true })
        .collect();
    let mut outputs = vec![0.0; layer.v.len()];
    let mut expected = Vec::new();
    let mut first = 0;
    for sequence in &list {
        let end = first + sequence.rows;
        for head in 0..shape.heads {
            let mut state = vec![0.0; shape.square()];
            layer.scan(first..end, head, &mut state, &mut outputs);
            let (t, s) = layer.summary(first + sequence.before_body..end, head);
            expected.push((state, t, s));
        }
        first = end;
    }
    on_devices(|device| {
        let rows = layer.upload(device);
        let sequences = Sequences::new(device, &list).unwrap();
        let (mut state, mut s, mut t) = (nan(device, size), nan(device, size), nan(device, size));
        let mut out = nan(device, layer.v.len());
        let live_heads = Buffer::from_slice(device, &live).unwrap();
        let summaries = Summaries { state: &mut s, transition: &mut t, live: &live_heads };
        let run = Recurrence {
            rows: rows.rows(),
            sequences: &sequences,
            state: &mut state,
            summaries: Some(summaries),
            out: &mut out,
        };
        form(device, run).unwrap();
        let found = [out, state, s, t].map(|buffer| buffer.read().unwrap());

        for (i, (state, t, s)) in expected.iter().enumerate() {
            let part = |values: &[f32]| values[i * shape.square()..(i + 1) * shape.square()].to_vec();
            assert_close("state", part(&found[1]), state, bound);
            assert_close("S", part(&found[2]), s, bound);
            if delta(family) && live[i] == 1 {
                assert_transition(width, part(&found[3]), t, bound);
            } else {
                assert!(part(&found[3]).iter().all(|x| x.is_nan()), "T of a dead head was written");
            }
        }
        assert_close("outputs", found[0].iter().copied(), &outputs, bound);
        found.map(|values| bits(&values))
    });
}

#[test]
fn chunks_of_every_family_equal_the_f64_scan() {
    for family in Family::ALL {
        check_chunks(family, 64, &[1, 7, 15, 16, 17, 65], 3);
        check_chunks(family, 128, &[33], 8);
    }
    check_chunks(Family::Kda, 64, &[200], 0);
}

#[test]
fn chunks_bear_decays_that_forget_everything_within_a_token() {
    let shape = Shape { heads: 2, key_heads: 1, width: 64 };
    for family in [Family::Gdn, Family::Kda] {
        let mut layer = Layer::random(&mut fresh(), family, shape, 40);
        // e^-300 is zero in fp32, and e^300 is not a number of it.
        layer.gate.iter_mut().step_by(7).for_each(|gate| *gate = -300.0);
        check_layer((recurrence_chunks, bounds::CHUNKS), &layer, &[40], 3);
    }
}

#[test]
fn every_family_equals_the_f64_scan_at_width_64() {
    for family in Family::ALL {
        check(family, 64, &LENGTHS[..5], 3);
    }
}

#[test]
fn every_family_equals_the_f64_scan_at_width_128() {
    for family in Family::ALL {
        check(family, 128, &[7, 65], 8);
    }
}

#[test]
fn a_long_segment_equals_the_f64_scan() {
    check(Family::Gdn, 128, &[1000], 8);
    check(Family::Kda, 64, &[1000], 0);
    check(Family::Retention, 64, &[1000], 16);
}

#[test]
fn a_segment_no_longer_than_its_seam_has_an_empty_body() {
    check(Family::Gdn, 64, &[3, 8], 8);
}

#[test]
fn a_split_build_goes_on_where_it_stopped() {
    check_split(recurrence, |whole, split| assert!(bits(whole) == bits(split), "other bits than one launch"));
    let close = |whole: &[f32], split: &[f32]| {
        let whole: Vec<f64> = whole.iter().map(|&x| f64::from(x)).collect();
        assert_close("states of a split build", split.iter().copied(), &whole, bounds::CHUNKS);
    };
    check_split(recurrence_chunks, close);
}

/// Builds 50 rows in one launch and in two, and compares states, `S` and `T`.
fn check_split(form: Form, compare: impl Fn(&[f32], &[f32])) {
    let shape = Shape { heads: 2, key_heads: 2, width: 64 };
    let (length, before_body, cut) = (50, 8, 21);
    let layer = Layer::random(&mut fresh(), Family::Gdn, shape, length);
    let pieces = |at: usize| -> Vec<(Layer, Sequence)> {
        let rows = |from: usize, to: usize| Layer {
            rows: to - from,
            q: layer.q[from * 128..to * 128].to_vec(),
            k: layer.k[from * 128..to * 128].to_vec(),
            v: layer.v[from * 128..to * 128].to_vec(),
            gate: layer.gate[from * 2..to * 2].to_vec(),
            beta: layer.beta[from * 2..to * 2].to_vec(),
            ..layer
        };
        vec![
            (rows(0, at), Sequence { rows: at, before_body, fresh: true }),
            (rows(at, length), Sequence { rows: length - at, before_body: 0, fresh: false }),
        ]
    };
    on_devices(|device| {
        let size = shape.heads * shape.square();
        let live = Buffer::from_slice(device, &[1u8, 1]).unwrap();
        let mut runs = Vec::new();
        for at in [length, cut] {
            let (mut state, mut s, mut t) = (nan(device, size), nan(device, size), nan(device, size));
            for (rows, sequence) in pieces(at) {
                let sequences = Sequences::new(device, &[sequence]).unwrap();
                let mut out = nan(device, rows.v.len());
                let on_device = rows.upload(device);
                let summaries = Summaries { state: &mut s, transition: &mut t, live: &live };
                let run = Recurrence {
                    rows: on_device.rows(),
                    sequences: &sequences,
                    state: &mut state,
                    summaries: Some(summaries),
                    out: &mut out,
                };
                form(device, run).unwrap();
            }
            runs.push([state, s, t].map(|buffer| buffer.read().unwrap()));
        }
        for (whole, split) in runs[0].iter().zip(&runs[1]) {
            compare(whole, split);
        }
        runs
    });
}
