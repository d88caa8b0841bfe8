//! One layer of a tuple, cut by heads for the ranks and joined again: a range of heads is a range of bytes in all of it but
//! the tail, whose rows are channels of queries, keys and values.

use std::ops::Range;

use bytes::Bytes;
use domain::model::{LayerSpec, LinearShape, ModelSpec};
use domain::part::live_set;
use domain::tuple::{Dtype, PartKind, TupleFormat};
use hypic_domain as domain;

use super::cut::{Place, axis};
use crate::op::{Checked, HostLayer, OpError, StoredPart};

/// Bytes of the scale in front of a row in 8 bits.
const SCALE: usize = 4;

/// The channels of a rank.
fn own_channels(op: &'static str, shape: &LinearShape, place: Place) -> Result<Vec<Range<usize>>, OpError> {
    let keys = shape.key_heads * shape.key;
    let parts = axis(shape.conv_channels(), &[keys, keys, shape.heads * shape.value], place);
    parts.ok_or_else(|| {
        OpError::shape(op, format!("channels for {} ranks", place.ranks), format!("{shape:?}"))
    })
}

fn layer_of<'a>(op: &'static str, (layer, spec): (usize, &'a ModelSpec)) -> Result<&'a LayerSpec, OpError> {
    spec.layers.get(layer).ok_or_else(|| OpError::shape(op, "a layer of the model", layer))
}

/// The format in which ranks give out what is joined to `format`: a row of the tail in 8 bits has one scale, which only
/// all its channels know.
pub(super) fn apart(format: &TupleFormat) -> TupleFormat {
    TupleFormat { tail: if format.tail == Dtype::I8 { Dtype::F32 } else { format.tail }, ..*format }
}

/// The part of each of `ranks` ranks.
///
/// # Errors
/// [`OpError::Shape`] for parts that are not those of the layer.
pub(super) fn cut(
    host: &HostLayer,
    of: (usize, &ModelSpec),
    ranks: usize,
) -> Result<Vec<HostLayer>, OpError> {
    const OP: &str = "import";
    let checked = host.check(OP, layer_of(OP, of)?)?;
    let cut = |rank: usize| {
        let mut own = HostLayer::empty(host.format, host.body);
        let mut put = |kind, bytes: Bytes| {
            if !bytes.is_empty() {
                own.parts.push((kind, bytes));
            }
        };
        match &checked {
            Checked::Linear { shape, live, transition, state, tail } => {
                let heads = rank * shape.heads / ranks..(rank + 1) * shape.heads / ranks;
                let alive = |heads: Range<usize>| live[heads].iter().filter(|live| **live).count();
                let first = alive(0..heads.start);
                let values = heads_of(transition, first..first + alive(heads.clone()));
                if !values.is_empty() {
                    put(PartKind::Transition, [&live_set(&live[heads.clone()]), &values[..]].concat().into());
                }
                put(PartKind::State, heads_of(state, heads));
                let channels = own_channels(OP, shape, Place { rank, ranks })?;
                put(PartKind::Tail, columns_of(tail, &channels).into());
            }
            Checked::Full { shape, key, value } => {
                let heads = rank * shape.kv_heads / ranks..(rank + 1) * shape.kv_heads / ranks;
                put(PartKind::Key, heads_of(key, heads.clone()));
                put(PartKind::Value, heads_of(value, heads));
            }
        }
        Ok(own)
    };
    (0..ranks).map(cut).collect()
}

fn heads_of(part: &StoredPart, heads: Range<usize>) -> Bytes {
    let size = part.bytes.len().checked_div(part.shape.heads as usize).unwrap_or(0);
    part.bytes.slice(heads.start * size..heads.end * size)
}

/// Some columns of every row, with its scale.
fn columns_of(part: &StoredPart, columns: &[Range<usize>]) -> Vec<u8> {
    let size = part.shape.dtype.size();
    let scale = if part.shape.dtype == Dtype::I8 { SCALE } else { 0 };
    let mut own = Vec::new();
    for row in part.bytes.chunks_exact((scale + part.shape.width as usize * size).max(1)) {
        own.extend_from_slice(&row[..scale]);
        for part in columns {
            own.extend_from_slice(&row[scale + part.start * size..scale + part.end * size]);
        }
    }
    own
}

/// The layer in `format` of which ranks have these parts in the format of [`apart`]; `spec` is the whole model and `own`
/// what a rank sees of it.
///
/// # Errors
/// [`OpError::Shape`] for parts that are not those of the layer.
pub(super) fn join(
    parts: &[HostLayer],
    (layer, spec, own): (usize, &ModelSpec, &ModelSpec),
    format: &TupleFormat,
) -> Result<HostLayer, OpError> {
    const OP: &str = "export";
    let (whole, own) = (layer_of(OP, (layer, spec))?, layer_of(OP, (layer, own))?);
    let mut joined = HostLayer::empty(*format, parts.first().map_or(0, |part| part.body));
    let mut all_live = Vec::new();
    let mut tails = Vec::new();
    let mut values: [(PartKind, Vec<u8>); 4] =
        [PartKind::Transition, PartKind::State, PartKind::Key, PartKind::Value]
            .map(|kind| (kind, Vec::new()));
    for part in parts {
        let [transitions, states, keys, all_values] = &mut values;
        match part.check(OP, own)? {
            Checked::Linear { live, transition, state, tail, .. } => {
                all_live.extend(live);
                transitions.1.extend_from_slice(&transition.bytes);
                states.1.extend_from_slice(&state.bytes);
                tails.push(tail);
            }
            Checked::Full { key, value, .. } => {
                keys.1.extend_from_slice(&key.bytes);
                all_values.1.extend_from_slice(&value.bytes);
            }
        }
    }
    for (kind, bytes) in values.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let set = if kind == PartKind::Transition { live_set(&all_live) } else { Vec::new() };
        joined.parts.push((kind, [set, bytes].concat().into()));
    }
    if let LayerSpec::Linear(shape) = whole {
        let tail = tail_of(&tails, shape)?;
        joined.encode(OP, whole, PartKind::Tail, (&all_live, &tail))?;
    }
    Ok(joined)
}

/// The rows of all channels.
fn tail_of(tails: &[StoredPart], shape: &LinearShape) -> Result<Vec<f32>, OpError> {
    let width = shape.conv_channels();
    let mut joined = vec![0.0; shape.tail_rows() * width];
    for (rank, tail) in tails.iter().enumerate() {
        let own = own_channels("export", shape, Place { rank, ranks: tails.len() })?;
        let values = tail.decode();
        let mut values = values.as_slice();
        for row in joined.chunks_exact_mut(width.max(1)) {
            for part in &own {
                let (here, rest) = values.split_at(part.len());
                row[part.clone()].copy_from_slice(here);
                values = rest;
            }
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use domain::family::Family;
    use domain::id::ModelId;
    use domain::model::FullShape;
    use domain::unit::Tokens;

    use super::super::shapes;
    use super::*;

    const LINEAR: LinearShape =
        LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 2, value: 3, conv_kernel: 4 };
    const FULL: FullShape = FullShape { heads: 4, kv_heads: 2, key: 2, value: 3, rotary: 2 };
    const BODY: usize = 5;

    fn spec() -> ModelSpec {
        let layers = vec![LayerSpec::Linear(LINEAR), LayerSpec::Full(FULL)];
        ModelSpec { id: ModelId::from("random"), layers, hidden: 8, vocab: 8, context: Tokens(64) }
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|value| value as f32).collect()
    }

    fn layer(layer: usize, format: TupleFormat, live: &[bool]) -> HostLayer {
        let spec = &spec().layers[layer];
        let mut host = HostLayer::empty(format, BODY);
        let alive = live.iter().filter(|live| **live).count();
        let parts = match layer {
            0 => vec![
                (PartKind::Transition, values(alive * 4)),
                (PartKind::State, values(4 * 6)),
                (PartKind::Tail, values(3 * LINEAR.conv_channels())),
            ],
            _ => vec![(PartKind::Key, values(2 * BODY * 2)), (PartKind::Value, values(2 * BODY * 3))],
        };
        for (kind, values) in parts {
            host.encode("test", spec, kind, (live, &values)).unwrap();
        }
        host
    }

    fn decoded(host: &HostLayer, of: usize) -> Vec<Vec<f32>> {
        let own = shapes::spec(&spec(), 2).unwrap();
        match host.check("test", &own.layers[of]).unwrap() {
            Checked::Linear { transition, state, tail, .. } => vec![transition, state, tail],
            Checked::Full { key, value, .. } => vec![key, value],
        }
        .iter()
        .map(StoredPart::decode)
        .collect()
    }

    #[test]
    fn a_cut_layer_joins_to_itself() {
        let every = |dtype| TupleFormat { transition: dtype, state: dtype, kv: dtype, ..TupleFormat::EXACT };
        for format in [TupleFormat::EXACT, every(Dtype::F16), every(Dtype::I8)] {
            for (of, live) in [
                (0, [true, false, true, true]),
                (0, [false, false, true, false]),
                (0, [false; 4]),
                (1, [true; 4]),
            ] {
                let host = layer(of, format, &live);
                for ranks in [1, 2] {
                    let own = shapes::spec(&spec(), ranks).unwrap();
                    let parts = cut(&host, (of, &spec()), ranks).unwrap();
                    assert_eq!(join(&parts, (of, &spec(), &own), &format).unwrap(), host);
                }
            }
        }
    }

    #[test]
    fn a_tail_in_8_bits_has_the_scales_of_its_whole_rows() {
        let eight = TupleFormat { tail: Dtype::I8, ..TupleFormat::EXACT };
        let (host, own) = (layer(0, TupleFormat::EXACT, &[true; 4]), shapes::spec(&spec(), 2).unwrap());
        let parts = cut(&host, (0, &spec()), 2).unwrap();
        let joined = join(&parts, (0, &spec(), &own), &eight).unwrap();
        let expected = layer(0, eight, &[true; 4]);
        assert_eq!(joined.part(PartKind::Tail), expected.part(PartKind::Tail));
        // And it is cut with them.
        let rank = cut(&expected, (0, &spec()), 2).unwrap().remove(1);
        let right = cut(&host, (0, &spec()), 2).unwrap().remove(1);
        for (found, right) in decoded(&rank, 0)[2].iter().zip(&decoded(&right, 0)[2]) {
            assert!((found - right).abs() <= 0.5 * 60.0 / 127.0 + 1e-3, "{found} for {right}");
        }
        assert_eq!(apart(&eight).tail, Dtype::F32);
        assert_eq!(apart(&TupleFormat::default()), TupleFormat::default());
    }

    #[test]
    fn a_rank_gets_its_heads() {
        let rank = |of| {
            let host = layer(of, TupleFormat::EXACT, &[true, false, true, true]);
            decoded(&cut(&host, (of, &spec()), 2).unwrap()[1], of)
        };
        let linear = rank(0);
        assert_eq!((linear[0][0], linear[0].len()), (4.0, 8));
        assert_eq!((linear[1][0], linear[1].len()), (12.0, 12));
        // The second halves of four query channels, four key channels and twelve of values.
        assert_eq!(linear[2][..10], [2.0, 3.0, 6.0, 7.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0]);
        let full = rank(1);
        assert_eq!((full[0][0], full[0].len(), full[1][0], full[1].len()), (10.0, 10, 15.0, 15));
    }

    #[test]
    fn parts_of_another_layer_are_refused() {
        let [linear, full] = [0, 1].map(|of| layer(of, TupleFormat::EXACT, &[true; 4]));
        for (host, of) in [(&linear, 1), (&full, 0), (&full, 2)] {
            assert!(cut(host, (of, &spec()), 2).is_err());
        }
        let own = shapes::spec(&spec(), 2).unwrap();
        assert!(join(&[full.clone(), full], (0, &spec(), &own), &TupleFormat::EXACT).is_err());
    }
}
