//! Small tuples for tests: every family, an MLA-shaped full layer, values that say where they stand.

use bytes::Bytes;
use hypic_domain::family::Family;
use hypic_domain::key::{Identity, SegmentKey};
use hypic_domain::model::{FullShape, LayerSpec, LinearShape};
use hypic_domain::part::live_set;
use hypic_domain::tuple::{PartKind, TupleFormat};
use hypic_domain::unit::Tokens;
use hypic_domain::values;

use crate::codec::{TupleHead, TupleWriter};
use crate::tuple::StoredTuple;

pub(crate) fn linear(family: Family) -> LayerSpec {
    LayerSpec::Linear(LinearShape { family, key_heads: 1, heads: 3, key: 2, value: 4, conv_kernel: 4 })
}

pub(crate) fn full() -> LayerSpec {
    LayerSpec::Full(FullShape { heads: 4, kv_heads: 2, key: 4, value: 2, rotary: 2 })
}

/// One latent head that serves as key and value.
pub(crate) fn latent() -> LayerSpec {
    LayerSpec::Full(FullShape { heads: 4, kv_heads: 1, key: 6, value: 0, rotary: 2 })
}

pub(crate) fn head(layers: &[LayerSpec], format: TupleFormat, seed: u32) -> TupleHead {
    let ids: Vec<u32> = (0..11).map(|i| 100 * seed + i).collect();
    let mut key = [0; 32];
    key[..4].copy_from_slice(&seed.to_le_bytes());
    TupleHead {
        identity: Identity([7; 32]),
        key: SegmentKey(key),
        generation: 0,
        ids: ids.into(),
        body: Tokens(3),
        layers: layers.into(),
        format,
    }
}

/// Values of one layer, other ones for every part. The middle head has no `T`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) live: Vec<bool>,
    pub(crate) parts: [Vec<f32>; 5],
}

impl Layer {
    pub(crate) fn of(spec: &LayerSpec, head: &TupleHead, layer: usize) -> Self {
        let run =
            |n: usize, first: usize| (0..n).map(|i| (first + 8 * layer) as f32 + i as f32 / 64.0).collect();
        match spec {
            LayerSpec::Linear(shape) => {
                let form = shape.family.transition().len(shape.key);
                let live = if form == 0 { vec![true; 3] } else { vec![true, false, true] };
                let tail = shape.tail_rows() * shape.conv_channels();
                let state = shape.heads * shape.key * shape.value;
                Self { live, parts: [run(2 * form, 1), run(state, 2), run(tail, 3), vec![], vec![]] }
            }
            LayerSpec::Full(shape) => {
                let rows = shape.kv_heads * head.body.0 as usize;
                let (key, value) = (run(rows * shape.key, 4), run(rows * shape.value, 5));
                Self { live: vec![], parts: [vec![], vec![], vec![], key, value] }
            }
        }
    }

    /// As the writer takes them.
    pub(crate) fn parts(&self, head: &TupleHead, layer: usize) -> Vec<(PartKind, Bytes)> {
        let kinds = PartKind::ALL.into_iter().zip(&self.parts);
        let present = kinds.filter(|(_, values)| !values.is_empty());
        let encode = |(kind, values): (PartKind, &Vec<f32>)| {
            let shape = head.shape(layer as u16, kind).unwrap();
            let mut bytes = if kind == PartKind::Transition { live_set(&self.live) } else { Vec::new() };
            values::encode(values, shape.width as usize, shape.dtype, &mut bytes).unwrap();
            (kind, bytes.into())
        };
        present.map(encode).collect()
    }
}

pub(crate) fn write(head: TupleHead) -> StoredTuple {
    let layers = head.layers.clone();
    let mut writer = TupleWriter::new(head.clone()).unwrap();
    for (at, spec) in layers.iter().enumerate() {
        writer.push_layer(Layer::of(spec, &head, at).parts(&head, at)).unwrap();
    }
    writer.finish().unwrap()
}

/// A tuple of some 600 bytes under a key of its own.
pub(crate) fn tuple(seed: u32) -> StoredTuple {
    write(head(&[linear(Family::Gdn), full()], TupleFormat::default(), seed))
}
