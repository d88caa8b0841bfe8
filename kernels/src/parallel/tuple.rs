//! One layer of a tuple, cut by heads for the ranks and joined again: heads are outermost in all of it but the tail, whose
//! rows are channels of queries, keys and values.

use std::ops::Range;

use hypic_domain::model::{LayerSpec, LinearShape, ModelSpec};

use super::cut::{Place, axis};
use crate::check::equal;
use crate::op::{HostLayer, OpError};

/// Queries, keys and values of a row of the tail.
fn channels(shape: &LinearShape) -> [usize; 3] {
    let keys = shape.key_heads * shape.key;
    [keys, keys, shape.heads * shape.value]
}

/// The channels of a rank.
fn own_channels(op: &'static str, shape: &LinearShape, place: Place) -> Result<Vec<Range<usize>>, OpError> {
    let parts = axis(shape.conv_channels(), &channels(shape), place);
    parts.ok_or_else(|| {
        OpError::shape(op, format!("channels for {} ranks", place.ranks), format!("{shape:?}"))
    })
}

fn wrong(op: &'static str, layer: usize) -> OpError {
    OpError::shape(op, format!("parts of layer {layer}"), "those of another kind")
}

/// The part of each of `ranks` ranks.
///
/// # Errors
/// [`OpError::Shape`] for parts that are not those of the layer.
pub(super) fn cut(
    host: &HostLayer,
    (layer, spec): (usize, &ModelSpec),
    ranks: usize,
) -> Result<Vec<HostLayer>, OpError> {
    const OP: &str = "import";
    match (spec.layers.get(layer), host) {
        (Some(LayerSpec::Linear(shape)), HostLayer::Linear { live, transition, state, tail }) => {
            let form = shape.family.transition().len(shape.key);
            let alive = |live: &[bool]| form * live.iter().filter(|&&live| live).count();
            equal(OP, "heads", shape.heads, live.len())?;
            equal(OP, "values of T", alive(live), transition.len())?;
            equal(OP, "values of S", shape.heads * shape.key * shape.value, state.len())?;
            equal(OP, "values of the tail", shape.tail_rows() * shape.conv_channels(), tail.len())?;
            let heads = shape.heads / ranks;
            let part = |rank: usize| {
                let live_here = &live[rank * heads..(rank + 1) * heads];
                let first = alive(&live[..rank * heads]);
                let own = own_channels(OP, shape, Place { rank, ranks })?;
                let rows = tail.chunks_exact(shape.conv_channels().max(1));
                Ok(HostLayer::Linear {
                    live: live_here.to_vec(),
                    transition: transition[first..first + alive(live_here)].to_vec(),
                    state: part_of(state, rank, ranks),
                    tail: rows
                        .flat_map(|row| own.iter().flat_map(|part| &row[part.clone()]))
                        .copied()
                        .collect(),
                })
            };
            (0..ranks).map(part).collect()
        }
        (Some(LayerSpec::Full(shape)), HostLayer::Full { key, value }) => {
            let [keys, values] = [shape.kv_heads * shape.key, shape.kv_heads * shape.value];
            let body = key.len().checked_div(keys).unwrap_or(0);
            equal(OP, "values of keys", body * keys, key.len())?;
            equal(OP, "values of values", body * values, value.len())?;
            let part =
                |rank| HostLayer::Full { key: part_of(key, rank, ranks), value: part_of(value, rank, ranks) };
            Ok((0..ranks).map(part).collect())
        }
        _ => Err(wrong(OP, layer)),
    }
}

/// The heads of a rank, where heads are outermost.
fn part_of(values: &[f32], rank: usize, ranks: usize) -> Vec<f32> {
    let each = values.len() / ranks;
    values[rank * each..(rank + 1) * each].to_vec()
}

/// The layer of which ranks have these parts.
///
/// # Errors
/// [`OpError::Shape`] for parts that are not those of the layer.
pub(super) fn join(parts: &[HostLayer], (layer, spec): (usize, &ModelSpec)) -> Result<HostLayer, OpError> {
    const OP: &str = "export";
    match spec.layers.get(layer) {
        Some(LayerSpec::Linear(shape)) => {
            let width = shape.conv_channels();
            let (mut all_live, mut transitions, mut states) = (Vec::new(), Vec::new(), Vec::new());
            let mut joined = vec![0.0; shape.tail_rows() * width];
            for (rank, part) in parts.iter().enumerate() {
                let HostLayer::Linear { live, transition, state, tail } = part else {
                    return Err(wrong(OP, layer));
                };
                equal(OP, "values of the tail", joined.len() / parts.len(), tail.len())?;
                all_live.extend_from_slice(live);
                transitions.extend_from_slice(transition);
                states.extend_from_slice(state);
                let own = own_channels(OP, shape, Place { rank, ranks: parts.len() })?;
                let mut tail = tail.as_slice();
                for row in joined.chunks_exact_mut(width.max(1)) {
                    for part in &own {
                        let (here, rest) = tail.split_at(part.len());
                        row[part.clone()].copy_from_slice(here);
                        tail = rest;
                    }
                }
            }
            Ok(HostLayer::Linear { live: all_live, transition: transitions, state: states, tail: joined })
        }
        Some(LayerSpec::Full(_)) => {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for part in parts {
                let HostLayer::Full { key, value } = part else { return Err(wrong(OP, layer)) };
                keys.extend_from_slice(key);
                values.extend_from_slice(value);
            }
            Ok(HostLayer::Full { key: keys, value: values })
        }
        None => Err(wrong(OP, layer)),
    }
}

#[cfg(test)]
mod tests {
    use hypic_domain::family::Family;
    use hypic_domain::id::ModelId;
    use hypic_domain::model::FullShape;
    use hypic_domain::unit::Tokens;

    use super::*;

    const LINEAR: LinearShape =
        LinearShape { family: Family::Gdn, key_heads: 2, heads: 4, key: 2, value: 3, conv_kernel: 4 };
    const FULL: FullShape = FullShape { heads: 4, kv_heads: 2, key: 2, value: 3, rotary: 2 };

    fn spec() -> ModelSpec {
        let layers = vec![LayerSpec::Linear(LINEAR), LayerSpec::Full(FULL)];
        ModelSpec { id: ModelId::from("random"), layers, hidden: 8, vocab: 8, context: Tokens(64) }
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|value| value as f32).collect()
    }

    fn layers() -> [HostLayer; 2] {
        let linear = HostLayer::Linear {
            live: vec![true, false, true, true],
            transition: values(3 * 4),
            state: values(4 * 6),
            tail: values(3 * LINEAR.conv_channels()),
        };
        [linear, HostLayer::Full { key: values(2 * 5 * 2), value: values(2 * 5 * 3) }]
    }

    #[test]
    fn a_cut_layer_joins_to_itself() {
        for (layer, host) in layers().into_iter().enumerate() {
            for ranks in [1, 2] {
                let parts = cut(&host, (layer, &spec()), ranks).unwrap();
                assert_eq!(join(&parts, (layer, &spec())).unwrap(), host);
            }
        }
    }

    #[test]
    fn a_rank_gets_its_heads() {
        let [linear, full] = layers();
        let HostLayer::Linear { live, transition, state, tail } =
            cut(&linear, (0, &spec()), 2).unwrap().remove(1)
        else {
            panic!("a linear layer")
        };
        assert_eq!(live, [true, true]);
        assert_eq!((transition[0], transition.len()), (4.0, 8));
        assert_eq!((state[0], state.len()), (12.0, 12));
        // The second halves of four query channels, four key channels and twelve of values.
        assert_eq!(tail[..10], [2.0, 3.0, 6.0, 7.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0]);
        let HostLayer::Full { key, value } = cut(&full, (1, &spec()), 2).unwrap().remove(1) else {
            panic!("a full layer")
        };
        assert_eq!((key[0], key.len(), value[0], value.len()), (10.0, 10, 15.0, 15));
    }

    #[test]
    fn parts_of_another_layer_are_refused() {
        let [linear, full] = layers();
        assert!(cut(&linear, (1, &spec()), 2).is_err());
        assert!(cut(&full, (0, &spec()), 2).is_err());
        assert!(cut(&full, (2, &spec()), 2).is_err());
        let short = HostLayer::Full { key: values(7), value: values(9) };
        assert!(cut(&short, (1, &spec()), 2).is_err());
        assert!(join(&[full], (0, &spec())).is_err());
    }
}
