#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helper fails its test")]

use half::bf16;
use hypic_domain::family::Family;
use hypic_domain::id::ModelId;
use hypic_domain::model::LayerSpec;
use hypic_domain::tuple::PartKind;
use hypic_domain::unit::Tokens;
use hypic_domain::values;
use hypic_kernels::op::{Device as _, Export};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::memory::Fresh;
use crate::pack::{from_compute, narrow, pack_tiles};
use crate::{Order, Pinned, Places, StoredAs};

const LINEAR: LinearShape =
    LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 64, value: 64, conv_kernel: 4 };
const FULL: FullShape = FullShape { heads: 6, kv_heads: 2, key: 64, value: 64, rotary: 16 };
const BODY: usize = 45;
const PAGE: usize = 16;

fn spec() -> ModelSpec {
    ModelSpec {
        id: ModelId::from("random"),
        layers: vec![LayerSpec::Linear(LINEAR), LayerSpec::Full(FULL)],
        hidden: 8,
        vocab: 8,
        context: Tokens(4096),
    }
}

/// What this device stores, and plain rows of every number format.
fn formats<E: Float>() -> Vec<TupleFormat> {
    let plain = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8].map(|dtype| TupleFormat {
        transition: dtype,
        state: dtype,
        tail: dtype,
        kv: dtype,
        ..TupleFormat::EXACT
    });
    let mixed = TupleFormat { transition: Dtype::I8, kv: Dtype::I8, ..TupleFormat::default() };
    let own = format::<E>(&TupleFormat::default());
    assert_eq!((own.layout, format::<E>(&mixed).layout), (1, 0));
    plain.into_iter().chain([own, mixed, format::<E>(&mixed)]).collect()
}

/// A layer of values that every format of 16 bits holds exactly.
fn random_layer(rng: &mut StdRng, format: TupleFormat, layer: usize, live: &[bool]) -> HostLayer {
    let spec = &spec().layers[layer];
    let mut host = HostLayer::empty(format, BODY);
    for kind in PartKind::ALL {
        let Some(shape) = format.part(spec, kind, BODY) else { continue };
        let alive = live.iter().filter(|live| **live).count() as u64;
        let heads = if kind == PartKind::Transition { alive } else { shape.heads };
        let count = (heads * shape.rows * shape.width) as usize;
        let values: Vec<f32> = (0..count).map(|_| f32::from(rng.random_range(-100_i8..100)) / 64.0).collect();
        // In tiles the order is another one, but each value is stored alike; of a pair the second number is any.
        host.encode("test", spec, kind, (live, &values)).unwrap();
    }
    host
}

fn poisoned<E: Float>() -> CudaDevice<E> {
    CudaDevice::poisoned(Device::fibers(Order::Shuffled(5)), 4 * BODY)
}

/// `T` and `S` of every head, zeros for a dead head's `T`.
fn tiles_of<E: Float>(parts: &LinearParts<E>) -> [Vec<f32>; 2] {
    await_parts(parts);
    parts.tiles.unpacked(parts.tiles.bytes.device()).unwrap().map(|values| values.read().unwrap())
}

fn await_parts<E: Float>(parts: &LinearParts<E>) {
    parts.tiles.bytes.device().wait_for_copy(parts.arrival).unwrap();
}

/// The bytes of the tiles and of the tail behind them or elsewhere.
fn bytes_of<E: Float>(parts: &LinearParts<E>) -> [Vec<u8>; 2] {
    await_parts(parts);
    let mut all = parts.tiles.bytes.read().unwrap();
    let behind = all.split_off(parts.tiles.end());
    match &parts.tail {
        Tail::Behind(at) => {
            assert_eq!(*at, all.len());
            [all, behind]
        }
        Tail::Own(tail) => {
            let device = tail.device();
            let tail = Buffer::from_slice(device, &tail.read().unwrap()).unwrap().into_bytes();
            [all, tail.read().unwrap()]
        }
    }
}

fn linear_layers_come_back<E: Float>() {
    let (device, spec, mut rng) = (poisoned::<E>(), spec(), StdRng::seed_from_u64(1));
    let mut pages = device.pages(&spec, 2, PAGE).unwrap();
    for format in formats::<E>() {
        for live in [[true; 4], [true, false, true, false], [false; 4]] {
            let host = random_layer(&mut rng, format, 0, &live);
            let LayerParts::Linear(parts) = device.import(0, &spec, &mut pages, &host).unwrap() else {
                panic!("a full layer");
            };
            let bytes = |kind| host.part(kind).cloned().unwrap_or_default();
            let [tiles, tail] = bytes_of(&parts);
            let tail_bytes = tail.len() as u64;
            let tail = Buffer::from_slice(&device.device, &tail).unwrap().cast::<E>();
            let tail = from_compute(&device.device, (format.tail, LINEAR.conv_channels()), tail);
            if format.tail != Dtype::I8 {
                assert_eq!(tail.unwrap().read().unwrap(), bytes(PartKind::Tail), "{format:?}");
            }
            if format.layout == 1 {
                let set = if bytes(PartKind::Transition).is_empty() { 0 } else { 16 };
                let stored = [&bytes(PartKind::Transition)[set..], &bytes(PartKind::State)].concat();
                assert_eq!(tiles, stored);
                let stored_tail = bytes(PartKind::Tail).len() as u64;
                let expected = host.bytes() - set as u64 - stored_tail + tail_bytes;
                assert_eq!(device.layer_bytes(&LayerParts::Linear(parts)), expected);
                continue;
            }
            let Checked::Linear { transition, state, .. } = host.check("test", &spec.layers[0]).unwrap()
            else {
                panic!("a full layer");
            };
            let [found_t, found_s] = tiles_of(&parts);
            let live_t = found_t.chunks(64 * 64).zip(live).filter(|(_, live)| *live).flat_map(|(t, _)| t);
            for (part, found) in [(transition, live_t.copied().collect()), (state, found_s)] {
                let right = part.decode();
                // Rows of 8 bits are rounded once more.
                let bound =
                    if part.shape.dtype == Dtype::I8 { crate::bounds::STORED_F16 as f32 } else { 0.0 };
                assert_eq!(found.len(), right.len());
                for (x, y) in found.iter().zip(&right) {
                    assert!((x - y).abs() <= bound * y.abs().max(1.0), "{format:?}: {x} and {y}");
                }
            }
        }
    }
}

/// Keys and values of a body, `[kv heads, tokens, width]`.
fn read_pages<E: Float>(device: &CudaDevice<E>, parts: &FullParts, layer: &LayerPages<E>) -> [Vec<E>; 2] {
    let FullShape { kv_heads, key: width, .. } = FULL;
    let places = places_of(&parts.pages.pages, 0..BODY, (kv_heads, PAGE));
    let places = Buffer::from_slice(&device.device, &places).unwrap();
    let nan = || Buffer::<E>::fresh(&device.device, BODY * kv_heads * width, Fresh::Poison).unwrap();
    let (mut key, mut value) = (nan(), nan());
    let moved = KvRows { kv_heads, width, page_tokens: PAGE, places: &places, order: KvOrder::Heads };
    moved.load(&device.device, [&mut key, &mut value], [&layer.key, &layer.value]).unwrap();
    [key.read().unwrap(), value.read().unwrap()]
}

fn full_layers_come_back<E: Float>() {
    let (device, spec, mut rng) = (poisoned::<E>(), spec(), StdRng::seed_from_u64(2));
    let mut pages = device.pages(&spec, 2, PAGE).unwrap();
    for format in formats::<E>() {
        let host = random_layer(&mut rng, format, 1, &[]);
        let LayerParts::Full(parts) = device.import(1, &spec, &mut pages, &host).unwrap() else {
            panic!("a linear layer");
        };
        let layer = pages.layer_mut("test", 1).unwrap();
        device.device.wait_for_copy(parts.arrival).unwrap();
        for _ in 0..2 {
            // The second time there is nothing left to do.
            parts.settle(&device.device, &FULL, (&mut *layer, PAGE)).unwrap();
        }
        let [key, value] = read_pages(&device, &parts, layer);
        for (kind, found) in [(PartKind::Key, key), (PartKind::Value, value)] {
            let stored = host.part(kind).unwrap();
            if format.kv == Dtype::I8 {
                let found: Vec<f32> = found.into_iter().map(E::wide).collect();
                let mut right = vec![f32::NAN; found.len()];
                values::decode(stored, FULL.key, Dtype::I8, &mut right);
                assert!(found.iter().zip(&right).all(|(x, y)| (x - y).abs() <= 4e-3 * y.abs()), "{kind:?}");
            } else {
                let found = Buffer::from_slice(&device.device, &found).unwrap();
                let bytes = from_compute(&device.device, (format.kv, FULL.key), found).unwrap();
                assert_eq!(bytes.read().unwrap(), *stored, "{format:?} {kind:?}");
            }
        }
    }
}

#[test]
fn what_is_taken_over_is_what_was_stored() {
    linear_layers_come_back::<bf16>();
    linear_layers_come_back::<f32>();
    full_layers_come_back::<bf16>();
    full_layers_come_back::<f32>();
}

/// What a device stores of a recording are the tiles of it, and taken over they are its bytes again.
#[test]
fn tiles_of_a_recording_are_stored_as_they_are_used() {
    let (device, spec, mut rng) = (poisoned::<bf16>(), spec(), StdRng::seed_from_u64(3));
    let (pages, mut others) = (device.pages(&spec, 1, PAGE).unwrap(), device.pages(&spec, 1, PAGE).unwrap());
    let mut states = device.states(&spec, 1).unwrap();
    device.reset_slot(&mut states, 0).unwrap();
    let mut recording = device.recording(&spec).unwrap();
    let record = recording.layers[0].as_mut().unwrap();
    let record = record.open(&device.device, (LINEAR.heads, LINEAR.key)).unwrap();
    let values: Vec<f32> = (0..record.state.len()).map(|_| rng.random_range(-2.0..2.0)).collect();
    record.state.write(&values).unwrap();
    record.bound.write(&[0.0, -20.0, -1.0, 0.0]).unwrap();
    let context = hypic_kernels::plan::Context { pages: vec![], live: vec![], bodies: vec![] };
    let pinned = Pinned::new(&device.device, 1 << 20);
    pinned.pin().unwrap();
    let export = |format: TupleFormat, pinned: Option<&Pinned>| {
        let (recording, states, pages, context) = (&recording, &states, &pages, &context);
        let request =
            Export { layer: 0, spec: &spec, recording, states, slot: 0, pages, context, body: 3, format };
        land((0, &spec), pinned, &finish(&device.device, &request)?)
    };
    let own = device.format(&TupleFormat::default());
    let host = export(own, None).unwrap();
    let in_pinned = export(own, Some(&pinned)).unwrap();
    assert_eq!(host, in_pinned);
    assert!(in_pinned.parts.iter().all(|(_, bytes)| pinned.holds(bytes)));
    assert_eq!(host.live_heads(&spec.layers[0]), (3, 4));
    let LayerParts::Linear(parts) = device.import(0, &spec, &mut others, &host).unwrap() else {
        panic!("full")
    };
    let [transition, state] = tiles_of(&parts);
    let half = |x: &f32| half::f16::from_f32(*x).to_f32();
    assert_eq!(state, values.iter().map(half).collect::<Vec<_>>());
    let identity = |at: usize| if at / 64 % 64 == at % 64 && at / 4096 != 1 { 1.0 } else { 0.0 };
    assert!(transition.iter().enumerate().all(|(at, x)| *x == identity(at)));
    // Plain rows hold the same values.
    let plain = TupleFormat { layout: 0, ..own };
    let rows = export(plain, None).unwrap();
    let LayerParts::Linear(from_rows) = device.import(0, &spec, &mut others, &rows).unwrap() else {
        panic!("full")
    };
    assert_eq!(bytes_of(&from_rows), bytes_of(&parts));
    let other = TupleFormat { state: Dtype::F32, ..own };
    assert!(matches!(export(other, None), Err(OpError::Unsupported { .. })));
    assert!(matches!(export(TupleFormat { layout: 2, ..own }, None), Err(OpError::Unsupported { .. })));
}

/// What was built is taken over on the same device, on another one, and by way of the host, in bits alike.
#[test]
fn a_full_layer_that_is_adopted_is_the_one_that_was_stored() {
    let (device, other, spec) = (poisoned::<bf16>(), poisoned::<bf16>(), spec());
    let mut pages = device.pages(&spec, 8, PAGE).unwrap();
    let mut rng = StdRng::seed_from_u64(4);
    let values = |len: usize, rng: &mut StdRng| -> Vec<bf16> {
        (0..len).map(|_| bf16::from_f32(rng.random_range(-2.0..2.0))).collect()
    };
    let layer = pages.layer_mut("test", 1).unwrap();
    for kv in [&mut layer.key, &mut layer.value] {
        let random = values(kv.len(), &mut rng);
        kv.write(&random).unwrap();
    }
    let states = device.states(&spec, 1).unwrap();
    let recording = device.recording(&spec).unwrap();
    let tokens = BODY as u32 + 8;
    let context =
        hypic_kernels::plan::Context { pages: vec![5, 1, 7, 2], live: (0..tokens).collect(), bodies: vec![] };
    for wanted in [TupleFormat::default(), TupleFormat::EXACT] {
        let format = device.format(&wanted);
        assert!(device.keeps(&format));
        let (recording, states, context, body) = (&recording, &states, &context, BODY);
        let request = Export {
            layer: 1,
            spec: &spec,
            recording,
            states,
            slot: 0,
            pages: &pages,
            context,
            body,
            format,
        };
        let built = Arc::new(finish(&device.device, &request).unwrap());
        let host = land((1, &spec), None, &built).unwrap();
        for reader in [&device, &other] {
            let read = |import: bool| {
                let mut pages = reader.pages(&spec, 2, PAGE).unwrap();
                let parts = match import {
                    true => reader.import(1, &spec, &mut pages, &host),
                    false => adopt(&reader.device, (1, &spec), &mut pages, &built),
                };
                let LayerParts::Full(parts) = parts.unwrap() else { panic!("a linear layer") };
                let layer = pages.layer_mut("test", 1).unwrap();
                reader.device.wait_for_copy(parts.arrival).unwrap();
                parts.settle(&reader.device, &FULL, (&mut *layer, PAGE)).unwrap();
                read_pages(reader, &parts, layer)
            };
            assert_eq!(read(true), read(false));
        }
    }
}

/// Layers of several builds, taken over in any order, lie in the same pages in all full layers.
#[test]
fn the_layers_of_a_build_take_the_same_pages() {
    let (device, other) = (poisoned::<bf16>(), poisoned::<bf16>());
    let layers = vec![LayerSpec::Full(FULL); 3];
    let spec = ModelSpec { layers, ..spec() };
    let mut pages = device.pages(&spec, 2, PAGE).unwrap();
    let context = hypic_kernels::plan::Context { pages: vec![0, 1], live: (0..20).collect(), bodies: vec![] };
    let of_builder = [&device, &other, &other].map(|builder| {
        let (pages, states) = (builder.pages(&spec, 2, PAGE).unwrap(), builder.states(&spec, 1).unwrap());
        (builder, pages, states, builder.recording(&spec).unwrap())
    });
    let mut taken: [Vec<Vec<u32>>; 3] = Default::default();
    let mut kept = Vec::new();
    for (layer, order) in [[0, 1, 2], [2, 0, 1], [1, 2, 0]].into_iter().enumerate() {
        for build in order {
            let (builder, pages_of, states, recording) = &of_builder[build];
            let (spec, context, format) = (&spec, &context, builder.format(&TupleFormat::default()));
            let request = Export {
                layer,
                spec,
                recording,
                states,
                slot: 0,
                pages: pages_of,
                context,
                body: 18,
                format,
            };
            let built = Arc::new(finish(&builder.device, &request).unwrap());
            let parts = adopt(&device.device, (layer, spec), &mut pages, &built).unwrap();
            let LayerParts::Full(parts) = parts else { panic!("a linear layer") };
            taken[build].push(parts.pages.pages.clone());
            kept.push(parts);
        }
    }
    for layers in &taken {
        assert!(layers.iter().all(|pages| *pages == layers[0]), "{taken:?}");
    }
    let mut all: Vec<u32> = taken.iter().flat_map(|layers| layers[0].clone()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 6);
    // They come back, each once.
    drop(kept);
    let layer = pages.layer_mut("test", 2).unwrap();
    let whole = layer.take((4 * BODY, PAGE), &PagesTaken::default()).unwrap();
    assert!(layer.take((1, PAGE), &PagesTaken::default()).is_err());
    drop(whole);
}

/// What another device sends is there when it was waited for and not before, and what is read stays until then.
#[test]
fn layers_of_another_device_are_waited_for() {
    let (device, other, spec) = (poisoned::<bf16>(), poisoned::<bf16>(), spec());
    let mut pages = device.pages(&spec, 1, PAGE).unwrap();
    let mut states = other.states(&spec, 1).unwrap();
    other.reset_slot(&mut states, 0).unwrap();
    let recording = other.recording(&spec).unwrap();
    let context = hypic_kernels::plan::Context { pages: vec![], live: vec![], bodies: vec![] };
    let of_other = other.pages(&spec, 1, PAGE).unwrap();
    let request = Export {
        layer: 0,
        spec: &spec,
        recording: &recording,
        states: &states,
        slot: 0,
        pages: &of_other,
        context: &context,
        body: 3,
        format: other.format(&TupleFormat::default()),
    };
    let adopted =
        |reader: &CudaDevice<bf16>, pages: &mut Pages<bf16>, built: &Arc<BuiltLayer<bf16>>| match adopt(
            &reader.device,
            (0, &spec),
            pages,
            built,
        )
        .unwrap()
        {
            LayerParts::Linear(parts) => parts,
            LayerParts::Full(_) => panic!("a full layer"),
        };
    for is_used in [true, false] {
        let built = Arc::new(finish(&other.device, &request).unwrap());
        let parts = adopted(&device, &mut pages, &built);
        let right = adopted(&other, &mut pages, &built);
        let kept = Arc::downgrade(&built);
        drop(built);
        assert!(kept.upgrade().is_some());
        let early = parts.tiles.bytes.read().unwrap();
        assert!(early.iter().all(|byte| *byte == 0xff), "nobody has waited yet");
        if is_used {
            assert_eq!(bytes_of(&parts), bytes_of(&right));
        } else {
            // The copy is done before somebody else gets the memory.
            drop(parts);
        }
        assert!(kept.upgrade().is_none());
    }
}

/// Keys and values that a step has failed to bring to their pages are not read as if they were there.
#[test]
fn a_body_of_a_step_that_failed_stays_an_error() {
    let (device, spec, mut rng) = (poisoned::<bf16>(), spec(), StdRng::seed_from_u64(6));
    let mut pages = device.pages(&spec, 2, PAGE).unwrap();
    let host = random_layer(&mut rng, device.format(&TupleFormat::default()), 1, &[]);
    let LayerParts::Full(parts) = device.import(1, &spec, &mut pages, &host).unwrap() else {
        panic!("a linear layer");
    };
    device.device.wait_for_copy(parts.arrival).unwrap();
    let layer = pages.layer_mut("test", 1).unwrap();
    let mut settle = |shape: &FullShape| parts.settle(&device.device, shape, (&mut *layer, PAGE));
    assert!(settle(&FullShape { kv_heads: 3, ..FULL }).is_err());
    let message = settle(&FULL).unwrap_err().to_string();
    assert!(message.ends_with("not lost in a step that failed"), "{message}");
}

#[test]
fn what_is_not_finite_is_stored_as_such() {
    let device = Device::fibers(Order::Forward);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0; 2 * 64 * 64];
        values[4097] = bad;
        let on = Buffer::from_slice(&device, &values).unwrap();
        for stored in [StoredAs::F16, StoredAs::F32] {
            let size = (64 * 64 * stored.size()) as u64;
            let mut tiles = Buffer::fresh(&device, 4 * size as usize, Fresh::Poison).unwrap();
            let places: Vec<_> = (0..2).map(|at| (Some(at * size), Some((2 + at) * size))).collect();
            let places = Places::new(&device, 64, stored, &places).unwrap();
            pack_tiles(&device, &places, [&on, &on], &mut tiles).unwrap();
            let bytes = tiles.read().unwrap();
            let (transition, state) = bytes.split_at(2 * size as usize);
            assert!(!values::is_finite(transition, 64, Dtype::F16));
            assert!(values::is_finite(&transition[..size as usize], 64, Dtype::F16));
            assert!(!values::is_finite(state, 64, stored.dtype()));
        }
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8] {
            let bytes = narrow(&device, (dtype, 64), &on).unwrap().read().unwrap();
            assert!(!values::is_finite(&bytes, 64, dtype), "{bad} in {dtype:?}");
        }
    }
}
