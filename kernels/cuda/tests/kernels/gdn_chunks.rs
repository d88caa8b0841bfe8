use hypic_cuda::{
    Buffer, ChunkScratch, Device, Family, GdnChunks, Places, Sequence, Sequences, Shape, StoredAs, bounds,
    gdn_chunks, join_pieces, pack_tiles,
};
#[cfg(feature = "gpu-tests")]
use {
    crate::run::{LENGTHS, assert_transition},
    half::bf16,
    hypic_cuda::{gdn_chunks_one, unpack_tiles},
    rand::RngExt,
};

use crate::run::{assert_close, on_devices};
use crate::truth::{Layer, fresh, nan, normal};

const SHAPE: Shape = Shape { heads: 4, key_heads: 2, width: 128 };

#[cfg(feature = "gpu-tests")]
/// Builds sequences of every length; the last head of each is dead. Sequences with `resumed` start from a
/// state.
fn check(device: &Device, shape: Shape, before_body: usize, resumed: bool) {
    let mut rng = fresh();
    let layer = Layer::random(&mut rng, Family::Gdn, shape, LENGTHS.iter().sum());
    let list: Vec<Sequence> = LENGTHS
        .iter()
        .map(|&rows| Sequence { rows, before_body: before_body.min(rows), fresh: !resumed })
        .collect();
    let (pairs, square) = (list.len() * shape.heads, shape.square());
    let start: Vec<f32> =
        (0..pairs * square).map(|_| if resumed { rng.random_range(-0.1..0.1) } else { f32::NAN }).collect();
    let (size, heads) = (2 * square as u64, shape.heads as u64);
    let places: Vec<_> = (0..pairs as u64)
        .map(|i| ((i % heads != heads - 1).then_some(2 * i * size), Some((2 * i + 1) * size)))
        .collect();

    let rows = layer.upload(device);
    let sequences = Sequences::new(device, &list).unwrap();
    let places = Places::new(device, shape.width, StoredAs::F16, &places).unwrap();
    let mut arena = Buffer::from_slice(device, &vec![0xffu8; 2 * pairs * size as usize]).unwrap();
    let mut state = Buffer::from_slice(device, &start).unwrap();
    let mut out = Buffer::from_slice(device, &vec![bf16::NAN; layer.v.len()]).unwrap();
    let run = GdnChunks {
        rows: rows.rows(),
        sequences: &sequences,
        places: &places,
        arena: &mut arena,
        state: &mut state,
        out: &mut out,
        scratch: &mut ChunkScratch::new(device, shape, &sequences).unwrap(),
    };
    gdn_chunks(device, run).unwrap();
    let (mut t, mut s) = (nan(device, pairs * square), nan(device, pairs * square));
    unpack_tiles(device, &places, &arena, [&mut t, &mut s]).unwrap();
    let [state, s, t] = [state, s, t].map(|buffer| buffer.read().unwrap());
    let out = out.read().unwrap();

    let mut outputs = vec![0.0; layer.v.len()];
    let mut first = 0;
    for (i, sequence) in list.iter().enumerate() {
        let end = first + sequence.rows;
        for head in 0..shape.heads {
            let place = (i * shape.heads + head) * square;
            let mut running = vec![0.0; square];
            if resumed {
                running.iter_mut().zip(&start[place..]).for_each(|(x, &y)| *x = f64::from(y));
            }
            layer.scan(first..end, head, &mut running, &mut outputs);
            let part = |values: &[f32]| values[place..place + square].to_vec();
            let what = |part: &str| format!("{part} of {} rows, head {head}", sequence.rows);
            assert_close(&what("state"), part(&state), &running, bounds::CHUNKS);
            if resumed {
                continue;
            }
            let (dense, body) = layer.summary(first + sequence.before_body..end, head);
            assert_close(&what("S"), part(&s), &body, bounds::CHUNKS);
            let dense = if head == shape.heads - 1 { vec![0.0; square] } else { dense };
            assert_transition(shape.width, part(&t), &dense, bounds::CHUNKS);
        }
        first = end;
    }
    assert_close("outputs", out.iter().map(|x| x.to_f32()), &outputs, bounds::CHUNKS + bounds::BF16);
}

#[cfg(feature = "gpu-tests")]
#[test]
fn chunks_equal_the_f64_scan_at_every_length() {
    let device = Device::cuda(0).unwrap();
    check(&device, SHAPE, 0, false);
}

#[cfg(feature = "gpu-tests")]
#[test]
fn any_number_of_heads_shares_a_key_head() {
    let device = Device::cuda(0).unwrap();
    for (heads, key_heads) in [(2, 2), (3, 1), (4, 1)] {
        check(&device, Shape { heads, key_heads, ..SHAPE }, 2, false);
    }
}

#[cfg(feature = "gpu-tests")]
#[test]
fn the_bodys_summary_leaves_its_seam_out() {
    let device = Device::cuda(0).unwrap();
    for rows in [8, 3, 17, 63] {
        check(&device, SHAPE, rows, false);
    }
}

#[cfg(feature = "gpu-tests")]
#[test]
fn a_running_state_is_continued() {
    let device = Device::cuda(0).unwrap();
    check(&device, SHAPE, 0, true);
}

#[cfg(feature = "gpu-tests")]
#[test]
fn a_scratch_for_fewer_heads_is_refused() {
    let device = Device::cuda(0).unwrap();
    let sequences = Sequences::new(&device, &[Sequence { rows: 64, before_body: 0, fresh: true }]).unwrap();
    let layer = Layer::random(&mut fresh(), Family::Gdn, SHAPE, 64);
    let rows = layer.upload(&device);
    let places = Places::new(&device, SHAPE.width, StoredAs::F16, &[(None, None); SHAPE.heads]).unwrap();
    let fewer = Shape { heads: SHAPE.key_heads, ..SHAPE };
    let run = GdnChunks {
        rows: rows.rows(),
        sequences: &sequences,
        places: &places,
        arena: &mut Buffer::from_slice(&device, &[0_u8; 16]).unwrap(),
        state: &mut nan(&device, SHAPE.heads * SHAPE.square()),
        out: &mut Buffer::from_slice(&device, &vec![bf16::NAN; layer.v.len()]).unwrap(),
        scratch: &mut ChunkScratch::new(&device, fewer, &sequences).unwrap(),
    };
    let refused = gdn_chunks(&device, run).unwrap_err();
    assert!(refused.to_string().contains("the scratch"), "{refused}");
}

#[cfg(feature = "gpu-tests")]
#[test]
fn pieces_of_a_sequence_equal_its_f64_scan() {
    let device = Device::cuda(0).unwrap();
    let mut rng = fresh();
    for (before, rows, pieces) in [(3, 1000, 1), (0, 1000, 2), (70, 1031, 4), (1, 65, 4), (2, 64, 3)] {
        let layer = Layer::random(&mut rng, Family::Gdn, SHAPE, before + rows + 5);
        // The state of a slot that is not the first.
        let (size, at) = (SHAPE.heads * SHAPE.square(), 7 * SHAPE.square());
        let start: Vec<f32> = (0..at + size).map(|_| rng.random_range(-0.1..0.1)).collect();
        let mut state = Buffer::from_slice(&device, &start).unwrap();
        let mut out = Buffer::from_slice(&device, &vec![bf16::NAN; layer.v.len()]).unwrap();
        let uploaded = layer.upload(&device);
        let range = before..before + rows;
        let cut = (range.clone(), pieces);
        gdn_chunks_one(&device, uploaded.rows(), cut, (&mut state, at), &mut out).unwrap();
        let (state, out) = (state.read().unwrap(), out.read().unwrap());
        assert_eq!(state[..at], start[..at]);
        let mut outputs = vec![0.0; layer.v.len()];
        for head in 0..SHAPE.heads {
            let place = at + head * SHAPE.square()..at + (head + 1) * SHAPE.square();
            let mut running: Vec<f64> = start[place.clone()].iter().map(|&x| f64::from(x)).collect();
            layer.scan(range.clone(), head, &mut running, &mut outputs);
            let what = format!("state of {rows} rows in {pieces} pieces, head {head}");
            assert_close(&what, state[place].iter().copied(), &running, bounds::CHUNKS);
        }
        let width = SHAPE.heads * SHAPE.width;
        let found = out[before * width..(before + rows) * width].iter().map(|x| x.to_f32());
        let expected = &outputs[before * width..(before + rows) * width];
        assert_close("outputs of pieces", found, expected, bounds::CHUNKS + bounds::BF16);
        assert!(out[..before * width].iter().all(|x| x.is_nan()), "rows of somebody else were written");
    }
}

#[test]
fn pieces_begin_where_the_ones_before_them_end() {
    let mut rng = fresh();
    let (pieces, heads, square) = (4, 2, SHAPE.square());
    let mut random =
        |len: usize, scale: f32| -> Vec<f32> { (0..len).map(|_| scale * normal(&mut rng)).collect() };
    // Values of fp16, so that what is stored is exact.
    let transitions: Vec<f32> = random((pieces - 1) * heads * square, 0.08)
        .iter()
        .map(|&x| half::f16::from_f32(x).to_f32())
        .collect();
    let (first, summaries) = (random(heads * square, 1.0), random(pieces * heads * square, 1.0));
    let mut expected: Vec<f64> = first.iter().map(|&x| f64::from(x)).collect();
    for piece in 0..pieces - 1 {
        for head in 0..heads {
            let pair = piece * heads + head;
            let before = expected[pair * square..][..square].to_vec();
            for i in 0..square {
                let (row, column) = (i / SHAPE.width, i % SHAPE.width);
                let t = &transitions[pair * square + row * SHAPE.width..][..SHAPE.width];
                let moved =
                    t.iter().enumerate().map(|(k, &t)| f64::from(t) * before[k * SHAPE.width + column]);
                expected.push(moved.sum::<f64>() + f64::from(summaries[pair * square + i]));
            }
        }
    }
    on_devices(|device| {
        let pairs = (pieces - 1) * heads;
        let size = (square * 2) as u64;
        let places: Vec<_> = (0..pairs as u64).map(|pair| (Some(pair * size), None)).collect();
        let places = Places::new(device, SHAPE.width, StoredAs::F16, &places).unwrap();
        let mut tiles = Buffer::zeros(device, pairs * square * 2).unwrap();
        let unpacked = Buffer::from_slice(device, &transitions).unwrap();
        pack_tiles(device, &places, [&unpacked, &nan(device, pairs * square)], &mut tiles).unwrap();
        let mut written = summaries.clone();
        written[pairs * square..].fill(f32::NAN);
        let mut states = Buffer::from_slice(device, &written).unwrap();
        let first = Buffer::from_slice(device, &first).unwrap();
        join_pieces(device, (&tiles, heads), (&first, 0), &mut states).unwrap();
        let states = states.read().unwrap();
        assert_close("where pieces begin", states.iter().copied(), &expected, bounds::ELEMENTWISE);
        states
    });
}

#[cfg(not(feature = "gpu-tests"))]
#[test]
fn without_tensor_cores_there_is_no_chunk_form() {
    let device = Device::fibers(hypic_cuda::Order::Forward);
    let rows = Layer::random(&mut fresh(), Family::Gdn, SHAPE, 1).upload(&device);
    let sequences = Sequences::new(&device, &[Sequence { rows: 1, before_body: 0, fresh: true }]).unwrap();
    let run = GdnChunks {
        rows: rows.rows(),
        sequences: &sequences,
        places: &Places::new(&device, 128, StoredAs::F16, &[(None, None); 4]).unwrap(),
        arena: &mut Buffer::zeros(&device, 0).unwrap(),
        state: &mut nan(&device, 4 * SHAPE.square()),
        out: &mut Buffer::zeros(&device, 4 * SHAPE.width).unwrap(),
        scratch: &mut ChunkScratch::new(&device, SHAPE, &sequences).unwrap(),
    };
    assert!(matches!(gdn_chunks(&device, run), Err(hypic_cuda::Error::FindKernel { .. })));
}
