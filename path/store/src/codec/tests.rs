use bytes::Bytes;
use hypic_domain::family::Family;
use hypic_domain::model::LayerSpec;
use hypic_domain::part::live_set_bytes;
use hypic_domain::tuple::{Dtype, PartKind, TupleFormat};
use hypic_domain::values;
use proptest::prelude::*;

use super::*;
use crate::error::StoreError;
use crate::sample::{self, Layer};
use crate::tuple::StoredTuple;

/// One line per tuple: its name, its manifest and its parts in hex. Version 1 of the format is these bytes.
const GOLDEN: &str = include_str!("../../golden/v1.txt");

fn golden_cases() -> Vec<(String, TupleHead)> {
    let mixed = TupleFormat { tail: Dtype::Bf16, kv: Dtype::I8, ..TupleFormat::default() };
    let small = TupleFormat { transition: Dtype::I8, state: Dtype::I8, ..TupleFormat::default() };
    let mut cases: Vec<_> = Family::ALL
        .iter()
        .map(|family| {
            let layers = [sample::linear(*family), sample::full()];
            (format!("{family:?}").to_lowercase(), sample::head(&layers, TupleFormat::default(), 1))
        })
        .collect();
    let latent = [sample::linear(Family::Kda), sample::latent()];
    cases.push(("kda-latent".into(), sample::head(&latent, TupleFormat::EXACT, 2)));
    let hybrid = [sample::linear(Family::Gdn), sample::full(), sample::linear(Family::Mamba2)];
    cases.push(("gdn-bf16-i8".into(), sample::head(&hybrid, mixed, 3)));
    cases.push(("gdn-i8".into(), sample::head(&hybrid, small, 4)));
    cases
}

fn join(tuple: &StoredTuple) -> Vec<u8> {
    tuple.parts().iter().flat_map(|part| part.bytes().to_vec()).collect()
}

/// The parts of `bytes` as a receiver takes them: each checked by itself.
fn receive(manifest: &Manifest, bytes: &Bytes) -> Result<StoredTuple, StoreError> {
    let parts = manifest.parts.iter().map(|spec| {
        let range = spec.offset as usize..(spec.offset + spec.len) as usize;
        let cut = if range.end <= bytes.len() { bytes.slice(range) } else { Bytes::new() };
        Part::check(spec.clone(), cut)
    });
    StoredTuple::assemble(manifest.clone(), parts.collect::<Result<_, _>>()?)
}

/// The values of one part; none where the layer has none of that kind.
fn values_of(head: &TupleHead, layer: usize, kind: PartKind, part: Option<&Bytes>) -> Vec<f32> {
    let (Some(shape), Some(bytes)) = (head.shape(layer as u16, kind), part) else { return Vec::new() };
    let set = if kind == PartKind::Transition { live_set_bytes(shape.heads as usize) } else { 0 };
    let bytes = &bytes[set..];
    let mut out = vec![f32::NAN; bytes.len() / shape.row_bytes().unwrap() as usize * shape.width as usize];
    values::decode(bytes, shape.width as usize, shape.dtype, &mut out);
    out
}

fn assert_values(tuple: &StoredTuple, tolerance: f32) {
    let head = tuple.head();
    for (at, spec) in head.layers.iter().enumerate() {
        let expected = Layer::of(spec, head, at);
        for (kind, expected) in PartKind::ALL.into_iter().zip(&expected.parts) {
            let found = values_of(head, at, kind, tuple.part(at as u16, kind));
            assert_eq!(found.len(), expected.len(), "{kind:?}");
            for (x, y) in found.iter().zip(expected) {
                assert!((x - y).abs() <= tolerance * y.abs(), "{kind:?}: {x} instead of {y}");
            }
        }
        let transition = tuple.part(at as u16, PartKind::Transition);
        assert_eq!(head.live_heads(at as u16, transition).unwrap(), expected.live);
    }
}

#[test]
fn the_bytes_of_version_1_stay() {
    let written: String = golden_cases()
        .into_iter()
        .map(|(name, head)| {
            let tuple = sample::write(head);
            let (manifest, parts) = (hex::encode(tuple.encoded_manifest()), hex::encode(join(&tuple)));
            format!("{name} {manifest} {parts}\n")
        })
        .collect();
    assert_eq!(written, GOLDEN, "the format changed: give it a new version and keep the reader of this one");
}

#[test]
fn the_bytes_of_version_1_are_read() {
    let cases = golden_cases();
    assert_eq!(GOLDEN.lines().count(), cases.len());
    for (line, (name, head)) in GOLDEN.lines().zip(cases) {
        let fields: Vec<&str> = line.split(' ').collect();
        assert_eq!(fields[0], name);
        let manifest = Manifest::decode(&hex::decode(fields[1]).unwrap()).unwrap();
        assert_eq!(manifest.head, head);
        let tuple = receive(&manifest, &hex::decode(fields[2]).unwrap().into()).unwrap();
        let exact = head.format == TupleFormat::EXACT;
        assert_values(&tuple, if exact { 0.0 } else { 1e-2 });
        assert_eq!(tuple.bytes(), (fields[1].len() + fields[2].len()) as u64 / 2);
    }
}

#[test]
fn a_latent_cache_has_keys_and_no_values() {
    let tuple = sample::write(sample::head(&[sample::latent()], TupleFormat::EXACT, 1));
    assert_eq!(tuple.part(0, PartKind::Key).unwrap().len(), 4 * 3 * 6);
    assert!(tuple.part(0, PartKind::Value).is_none());
}

#[test]
fn a_layer_can_be_used_before_the_manifest_exists() {
    let head = sample::head(&[sample::linear(Family::Gdn), sample::full()], TupleFormat::EXACT, 1);
    let layer = Layer::of(&head.layers[0], &head, 0);
    let mut writer = TupleWriter::new(head.clone()).unwrap();
    let parts = writer.push_layer(layer.parts(&head, 0)).unwrap();
    assert_eq!(parts.len(), 3);
    let transition = Some(parts[0].bytes());
    assert_eq!(values_of(&head, 0, PartKind::Transition, transition), layer.parts[0]);
    assert_eq!(head.live_heads(0, transition).unwrap(), layer.live);
}

#[test]
fn a_layer_without_live_heads_has_no_transition() {
    let head = sample::head(&[sample::linear(Family::Gdn)], TupleFormat::default(), 1);
    let mut layer = Layer::of(&head.layers[0], &head, 0);
    (layer.live, layer.parts[0]) = (vec![false; 3], vec![]);
    let mut writer = TupleWriter::new(head.clone()).unwrap();
    writer.push_layer(layer.parts(&head, 0)).unwrap();
    let tuple = writer.finish().unwrap();
    assert!(tuple.part(0, PartKind::Transition).is_none());
    assert_eq!(head.live_heads(0, None).unwrap(), [false; 3]);
    assert_eq!(Manifest::decode(tuple.encoded_manifest()).unwrap(), *tuple.manifest());
}

#[test]
fn what_does_not_fit_the_head_is_refused() {
    let head = sample::head(&[sample::linear(Family::Gdn), sample::full()], TupleFormat::default(), 1);
    let layers: Vec<_> = head
        .layers
        .iter()
        .enumerate()
        .map(|(at, spec)| Layer::of(spec, &head, at).parts(&head, at))
        .collect();
    let writer = || TupleWriter::new(head.clone()).unwrap();
    let pushed = |layer: Vec<(PartKind, Bytes)>| writer().push_layer(layer).map(<[Part]>::len);
    assert_eq!(pushed(layers[0].iter().rev().cloned().collect()).unwrap(), 3, "parts come in any order");
    assert!(matches!(pushed(layers[1].clone()), Err(StoreError::PushLayer { layer: 0, .. })));
    assert!(matches!(writer().finish(), Err(StoreError::PushLayer { layer: 0, .. })));

    let edited = |at: usize, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut layer = layers[0].clone();
        let mut bytes = layer[at].1.to_vec();
        edit(&mut bytes);
        layer[at].1 = bytes.into();
        layer
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let bad = half::f16::from_f32(bad).to_le_bytes();
        let refused = pushed(edited(1, &|bytes| bytes[10..12].copy_from_slice(&bad)));
        assert!(matches!(refused, Err(StoreError::StoreValues { layer: 0, kind: PartKind::State })));
    }
    for edit in [|bytes: &mut Vec<u8>| bytes.push(0), |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1)] {
        for at in 0..3 {
            assert!(matches!(pushed(edited(at, &edit)), Err(StoreError::CheckLength { layer: 0, .. })));
        }
    }
    let twice = [layers[0].clone(), layers[0][2..].to_vec()].concat();
    assert!(matches!(pushed(twice), Err(StoreError::PushLayer { layer: 0, .. })));
    assert!(matches!(pushed(layers[0][..2].to_vec()), Err(StoreError::PushLayer { layer: 0, .. })));

    let mut more = writer();
    more.push_layer(layers[0].clone()).unwrap();
    more.push_layer(layers[1].clone()).unwrap();
    assert!(more.push_layer(layers[1].clone()).is_err());

    let mut empty = head;
    empty.body.0 = 0;
    assert!(TupleWriter::new(empty).is_err());
}

/// A pair of tiles is two numbers of 16 bits: bits of it that are no fp32 number may be right, and the other way round.
#[test]
fn pairs_of_tiles_are_checked_as_what_they_are() {
    let format = TupleFormat { layout: 1, ..TupleFormat::EXACT };
    let head = sample::head(&[sample::linear(Family::Gdn)], format, 1);
    for (halves, taken) in
        [([0x0000, 0x7f80_u16], false), ([0x7800, 0x0000], true), ([0x7c00, 0x3c00], false)]
    {
        let mut layer = Layer::of(&head.layers[0], &head, 0).parts(&head, 0);
        let mut bytes = layer[0].1.to_vec();
        bytes[16..20].copy_from_slice(halves.map(u16::to_le_bytes).as_flattened());
        layer[0].1 = bytes.into();
        assert_eq!(TupleWriter::new(head.clone()).unwrap().push_layer(layer).is_ok(), taken, "{halves:x?}");
    }
}

#[test]
fn a_part_of_another_tuple_is_not_taken() {
    let (one, other) =
        (sample::tuple(1), sample::write(sample::head(&[sample::full()], TupleFormat::EXACT, 2)));
    let mut parts = one.parts().to_vec();
    parts[0] = other.parts()[0].clone();
    assert!(StoredTuple::assemble(one.manifest().clone(), parts).is_err());
    let missing = one.parts()[1..].to_vec();
    assert!(StoredTuple::assemble(one.manifest().clone(), missing).is_err());
    let any_order = one.parts().iter().rev().cloned().collect();
    assert!(StoredTuple::assemble(one.manifest().clone(), any_order).is_ok());
}

#[test]
fn a_range_is_read_inside_a_part_only() {
    let tuple = sample::tuple(1);
    let all = join(&tuple);
    for part in tuple.parts() {
        let (offset, len) = (part.spec().offset, part.spec().len);
        assert_eq!(tuple.range(offset, len).unwrap(), part.bytes());
        assert_eq!(tuple.range(offset + 1, len - 2).unwrap(), all[offset as usize + 1..][..len as usize - 2]);
        assert_eq!(tuple.range(offset, len + 1), None);
    }
    assert_eq!(tuple.range(all.len() as u64, 1), None);
    assert_eq!(tuple.range(u64::MAX, 1), None);
    assert_eq!(tuple.range(1, u64::MAX), None);
}

#[test]
fn another_version_is_named() {
    let mut bytes = sample::tuple(1).encoded_manifest().to_vec();
    bytes[8] = 9;
    assert!(matches!(Manifest::decode(&bytes), Err(StoreError::ReadVersion { found: 9, .. })));
}

/// Counts that ask for terabytes cost no memory: every count is compared with the bytes that are there.
#[test]
fn forged_counts_end_with_the_bytes() {
    let bytes = sample::tuple(1).encoded_manifest().to_vec();
    let ids_at = 8 + 2 + 32 + 32 + 4 + 4;
    let layers_at = ids_at + 4 + 11 * 4 + 4 + 4 + 4;
    let parts_at = layers_at + 4 + 22 + 21;
    for at in [ids_at, layers_at, parts_at] {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        reseal(&mut forged);
        assert!(matches!(Manifest::decode(&forged), Err(StoreError::ReadManifest { .. })));
    }
}

/// Makes the manifest's own sum right again: a peer that lies can do that too.
fn reseal(bytes: &mut [u8]) {
    let end = bytes.len() - 8;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
}

fn formats() -> impl Strategy<Value = TupleFormat> {
    let dtype = || prop::sample::select(&[Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8][..]);
    (dtype(), dtype(), dtype(), dtype()).prop_map(|(transition, state, tail, kv)| TupleFormat {
        transition,
        state,
        tail,
        kv,
        ..TupleFormat::default()
    })
}

fn models() -> impl Strategy<Value = Vec<LayerSpec>> {
    let layer = prop_oneof![
        prop::sample::select(&Family::ALL[..]).prop_map(sample::linear),
        Just(sample::full()),
        Just(sample::latent()),
    ];
    prop::collection::vec(layer, 1..6)
}

proptest! {
    #[test]
    fn what_is_written_is_read(layers in models(), format in formats(), seed: u16) {
        let tuple = sample::write(sample::head(&layers, format, u32::from(seed)));
        let manifest = Manifest::decode(tuple.encoded_manifest()).unwrap();
        prop_assert_eq!(&manifest, tuple.manifest());
        let read = receive(&manifest, &join(&tuple).into()).unwrap();
        assert_values(&read, 1e-2);
    }

    #[test]
    fn a_flipped_bit_is_seen(format in formats(), at: usize, bit in 0u8..8) {
        let layers = [sample::linear(Family::Kda), sample::full(), sample::latent()];
        let tuple = sample::write(sample::head(&layers, format, 1));
        let mut manifest = tuple.encoded_manifest().to_vec();
        let place = at % manifest.len();
        manifest[place] ^= 1 << bit;
        prop_assert!(Manifest::decode(&manifest).is_err());
        let mut parts = join(&tuple);
        let place = at % parts.len();
        parts[place] ^= 1 << bit;
        prop_assert!(receive(tuple.manifest(), &parts.into()).is_err());
    }

    #[test]
    fn a_cut_tuple_is_seen(at: usize) {
        let tuple = sample::tuple(1);
        let manifest = tuple.encoded_manifest();
        prop_assert!(Manifest::decode(&manifest[..at % manifest.len()]).is_err());
        let parts = join(&tuple);
        let cut = Bytes::copy_from_slice(&parts[..at % parts.len()]);
        prop_assert!(receive(tuple.manifest(), &cut).is_err());
    }

    #[test]
    fn noise_is_refused_and_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::decode(&noise).is_err());
    }

    /// Behind a right sum every field may be hostile: refused or consistent, but no panic and no overflow.
    #[test]
    fn a_forged_manifest_is_refused_or_consistent(
        edits in prop::collection::vec((10usize..400, any::<u8>()), 1..6),
    ) {
        let mut bytes = sample::tuple(1).encoded_manifest().to_vec();
        for (at, byte) in edits {
            let place = at % (bytes.len() - 8);
            bytes[place] = byte;
        }
        reseal(&mut bytes);
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
            prop_assert!(manifest.check().is_ok());
        }
    }

    /// The live set stands in front of the values and is bytes of a peer as well.
    #[test]
    fn a_forged_live_set_is_refused(byte in 0usize..16, value: u8) {
        let tuple = sample::tuple(1);
        let mut bytes = tuple.parts()[0].bytes().to_vec();
        prop_assume!(bytes[byte] != value);
        let heads = |byte: u8| (byte & 0b111).count_ones();
        let harmless = byte == 0 && value < 8 && heads(value) == heads(bytes[0]);
        bytes[byte] = value;
        let mut manifest = tuple.manifest().clone();
        manifest.parts[0].sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        let mut parts = tuple.parts().to_vec();
        parts[0] = Part::check(manifest.parts[0].clone(), bytes.into()).unwrap();
        prop_assert_eq!(StoredTuple::assemble(manifest, parts).is_ok(), harmless);
    }
}
