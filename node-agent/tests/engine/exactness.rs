//! What composition keeps, and what it costs.

use std::sync::atomic::Ordering;

use hypic_domain::flow::{Mode, Piece, SegmentOutcome};
use hypic_domain::key::{Scope, SegmentKey};
use hypic_domain::sampling::Sampling;
use hypic_domain::tuple::TupleFormat;
use hypic_domain::unit::Bytes;
use hypic_kernels::op::Device;
use hypic_node_agent::engine::BuildEvent;

use crate::direct::{build_alone, build_in_context, compose, recompute, relative};
use crate::harness::{
    Agent, Draw, Fixture, IDENTITY, Tuples, greedy, order, questions, random, random_pieces, tiny, to_build,
    with_boundaries,
};

/// Relative state error of one layer against full recompute, for several seams.
fn state_errors(fixture: &Fixture, pieces: &[Piece], layer: usize, seams: &[u32]) -> Vec<f64> {
    let truth = recompute(fixture, pieces);
    let error = |seam: &u32| {
        let bodies = build_alone(fixture, pieces, *seam);
        let composed = compose(fixture, pieces, *seam, &bodies);
        relative(&composed.states[layer], &truth.states[layer])
    };
    seams.iter().map(error).collect()
}

#[test]
fn layer_0_is_exact_as_soon_as_the_seam_covers_the_convolution() {
    let fixture = random();
    for seed in 0..4 {
        let pieces = random_pieces(seed, fixture.spec().vocab, 16, &[128, 100, 61, 200], 24);
        let errors = state_errors(fixture, &pieces, 0, &[0, 3, 4, 8, 16]);
        assert!(errors[0] > 1e-3, "{errors:?}");
        assert!(errors[1..].iter().all(|error| *error <= 1e-6), "{errors:?}");
    }
}

#[test]
fn layer_2_of_the_trained_model_needs_the_seam() {
    for id in ["6x128-coref-12", "4x256-coref-0", "12x64-last-12", "uneven-last-0"] {
        let question = questions().iter().find(|question| question.id == id).unwrap();
        let errors = state_errors(tiny(), &question.pieces, 2, &[0, 8]);
        assert!(errors[0] > 0.1, "{id}: {errors:?}");
        assert!(errors[1] <= 3e-4, "{id}: {errors:?}");
    }
}

#[test]
fn bodies_of_the_true_context_compose_to_the_recomputed_prompt_at_every_layer() {
    let trained = questions().iter().find(|question| question.id == "6x128-last-0").unwrap();
    let drawn = random_pieces(9, random().spec().vocab, 16, &[128, 70, 33, 129], 24);
    for (fixture, pieces) in [(tiny(), &trained.pieces), (random(), &drawn)] {
        let truth = recompute(fixture, pieces);
        for seam in [0, 8] {
            let bodies = build_in_context(fixture, pieces, seam);
            let composed = compose(fixture, pieces, seam, &bodies);
            for (layer, (state, expected)) in composed.states.iter().zip(&truth.states).enumerate() {
                if !state.is_empty() {
                    let error = relative(state, expected);
                    assert!(error <= 2e-5, "layer {layer}, w = {seam}: {error:e}");
                }
            }
            let error = relative(&composed.logits, &truth.logits);
            assert!(error <= 2e-5, "logits, w = {seam}: {error:e}");
        }
    }
}

#[test]
fn a_hit_and_a_miss_give_the_same_bits() {
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(4) };
    for (fixture, format) in
        [(tiny(), TupleFormat::default()), (tiny(), TupleFormat::EXACT), (random(), TupleFormat::default())]
    {
        // Few rows a step, so that everything is computed in several slices.
        let agent = fixture.engine(|config| (config.format, config.rows) = (format, 48));
        let pieces = random_pieces(3, fixture.spec().vocab, 70, &[100, 33, 64, 9, 250], 60);
        let order = with_boundaries(order(pieces, Mode::Pic, everything.clone()));
        let cold = agent.ask(order.clone()).unwrap();
        let warm = agent.ask(order).unwrap();
        assert!(cold.ready.segments.iter().all(|s| matches!(s.outcome, SegmentOutcome::Built { .. })));
        assert!(warm.ready.segments.iter().all(|s| matches!(s.outcome, SegmentOutcome::Hit { .. })));
        assert_eq!(cold.bits(), warm.bits());
        let (cold, warm) = (cold.ready.counts, warm.ready.counts);
        assert_eq!((cold.exact, cold.hit, cold.built), (0, 0, 92 + 25 + 56 + 1 + 242));
        assert_eq!((warm.exact, warm.hit, warm.built), (70, cold.built, 0));
        assert_eq!((warm.seam, warm.live, warm.total()), (40, 60, cold.total()));
    }
}

/// On a GPU it is so to rounding only: products take another form with the rows of a step.
#[test]
fn a_tuple_has_the_same_bits_built_alone_and_in_steps_with_others() {
    for (fixture, format) in [(random(), TupleFormat::EXACT), (random(), TupleFormat::default())] {
        let mut draw = Draw(17);
        let segments: Vec<_> = [9, 16, 33, 64, 77, 100, 128, 200, 65, 250]
            .map(|len| draw.ids(len, fixture.spec().vocab))
            .map(|ids| (SegmentKey::derive(&IDENTITY, &Scope::PUBLIC, &ids), ids))
            .into();
        let engine =
            || fixture.engine(|config| (config.format, config.rows, config.builds) = (format, 1024, 16));
        let build = |agent: &Agent, segments: &[(SegmentKey, Vec<u32>)]| {
            let mut stream = agent.engine.build(segments.iter().cloned().map(to_build));
            while let Some(event) = stream.blocking_next() {
                assert!(!matches!(event, BuildEvent::Failed { .. }), "{event:?}");
            }
        };
        let bytes = |agent: &Agent, key: &SegmentKey| -> Vec<u8> {
            let tuple = agent.tuples.find(key).unwrap();
            tuple.parts().iter().flat_map(|part| part.bytes().to_vec()).collect()
        };
        let alone = engine();
        segments.iter().for_each(|segment| build(&alone, std::slice::from_ref(segment)));
        let together = engine();
        build(&together, &segments);
        let steps = [&alone, &together].map(|agent| agent.engine.load().counters.steps as usize);
        assert!(steps[0] == segments.len() && steps[1] < segments.len(), "{steps:?}");
        // Beside prompts and answers too.
        let crowded = engine();
        let others: Vec<_> = (0..6)
            .map(|seed| {
                order(random_pieces(seed, fixture.spec().vocab, 70, &[], 5), Mode::Recompute, greedy(400))
            })
            .map(|order| crowded.begin(order, &Tuples::default()))
            .collect();
        segments.chunks(3).for_each(|segments| build(&crowded, segments));
        assert!(crowded.engine.load().counters.rows_decoded > 0, "no answer was beside them");
        drop(others);
        for (key, ids) in &segments {
            let expected = bytes(&alone, key);
            assert!(!expected.is_empty());
            assert!(bytes(&together, key) == expected, "{} tokens beside builds", ids.len());
            assert!(bytes(&crowded, key) == expected, "{} tokens beside answers", ids.len());
        }
    }
}

#[test]
fn prefix_answers_as_recompute_does_and_reuses_what_is_exact() {
    let fixture = random();
    let agent = fixture.engine(|config| config.rows = 64);
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(6) };
    let pieces = random_pieces(4, fixture.spec().vocab, 20, &[100, 90], 30);
    let plain = agent.ask(order(pieces.clone(), Mode::Recompute, everything.clone())).unwrap();
    let ask = with_boundaries(order(pieces.clone(), Mode::Prefix, everything.clone()));
    let first = agent.ask(ask.clone()).unwrap();
    let second = agent.ask(ask).unwrap();
    assert_eq!((first.ready.counts.exact, second.ready.counts.exact), (0, 210));
    assert_eq!(second.ready.counts.live, 30);
    assert_eq!(first.bits(), second.bits());
    assert_eq!(first.ids(), plain.ids());
    for place in 0..6 {
        assert!(relative(&first.row(place), &plain.row(place)) < 1e-5);
    }
    // Another end behind the same beginning starts from the longest boundary they share.
    let mut other = pieces;
    other[2].ids[50] ^= 1;
    let other = agent.ask(with_boundaries(order(other, Mode::Prefix, everything))).unwrap();
    assert_eq!(other.ready.counts.exact, 120);
}

#[test]
fn snapshots_give_way_to_sequences() {
    let fixture = random();
    let agent = fixture.engine(|config| {
        let pages = 14 * 32 * 4 * (2 * (32 + 32));
        let slots = fixture.spec().slot_bytes().0 * (config.slots + config.builds) as u64;
        let recordings = fixture.device.recording_bytes(fixture.spec()) * config.builds as u64;
        config.snapshots = Bytes(fixture.spec().slot_bytes().0 * 4);
        config.memory = Bytes(slots + recordings + config.snapshots.0 + pages);
    });
    assert_eq!(agent.engine.load().pages_total, 14);
    let ask = |seed| {
        let pieces = random_pieces(seed, fixture.spec().vocab, 150, &[130], 30);
        with_boundaries(order(pieces, Mode::Prefix, greedy(3)))
    };
    let solo = fixture.engine(|_| {});
    for seed in 0..5 {
        assert_eq!(agent.ask(ask(seed)).unwrap().ids(), solo.ask(ask(seed)).unwrap().ids());
    }
    agent.assert_all_free();
    let load = agent.engine.load();
    assert!(load.snapshots <= 2 && load.counters.snapshots_saved == 10, "{load:?}");
    assert_eq!(agent.kept.load(Ordering::Relaxed), load.snapshots as i64);
}

#[test]
fn the_gap_is_the_divergence_from_the_full_prefill() {
    let fixture = random();
    let agent = fixture.engine(|_| {});
    let everything = Sampling { logprobs: Some(u32::MAX), ..greedy(1) };
    let pieces = random_pieces(5, fixture.spec().vocab, 20, &[64, 64, 64], 20);
    let mut ask = order(pieces.clone(), Mode::Pic, everything.clone());
    let unmeasured = agent.ask(ask.clone()).unwrap();
    ask.measure_gap = true;
    let measured = agent.ask(ask).unwrap();
    let full = agent.ask(order(pieces, Mode::Recompute, everything)).unwrap();
    let expected = hypic_compose::gap::kl(&full.row(0), &measured.row(0));
    let gap = measured.ready.gap.unwrap();
    assert!(expected > 1e-6 && (gap - expected).abs() < 1e-4 * expected.max(1e-2), "{gap} {expected}");
    // Measuring changes nothing of the answer.
    assert_eq!((unmeasured.ready.gap, unmeasured.bits()), (None, measured.bits()));
}
