//! Many at once, and the edges of one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hypic_domain::flow::{Mode, TokenEvent};
use hypic_domain::sampling::{FinishReason, Sampling};
use hypic_domain::unit::{Millis, Tokens};
use hypic_node_agent::engine::{BuildEvent, EngineError};

use crate::harness::{
    Draw, Tuples, finish, greedy, live, order, random, random_pieces, tiny, with_boundaries,
};

const MODES: [Mode; 5] = [Mode::Recompute, Mode::Pic, Mode::Prefix, Mode::Last, Mode::Add];

#[test]
fn sixteen_streams_together_answer_as_each_alone() {
    for fixture in [tiny(), random()] {
        let everything = |max| Sampling { logprobs: Some(u32::MAX), ..greedy(max) };
        let orders: Vec<_> = (0..16)
            .map(|i| {
                let segments: Vec<usize> = (0..i % 5).map(|s| 20 + 37 * ((i + s) % 6)).collect();
                let pieces = random_pieces(i as u64, fixture.spec().vocab, 5 + 13 * i, &segments, 1 + 7 * i);
                with_boundaries(order(pieces, MODES[i % 5], everything(3 + i as u32)))
            })
            .collect();
        let solo = fixture.engine(|config| config.rows = 96);
        let alone: Vec<_> = orders.iter().map(|order| solo.ask(order.clone()).unwrap()).collect();
        let agent = fixture.engine(|config| config.rows = 96);
        let streams: Vec<_> =
            orders.iter().map(|order| agent.begin(order.clone(), &Tuples::default())).collect();
        for (place, (stream, alone)) in streams.into_iter().zip(&alone).enumerate() {
            let together = finish(stream).unwrap();
            assert_eq!(together.ids(), alone.ids(), "stream {place}");
            for (a, b) in together.tokens[0].iter().zip(&alone.tokens[0]) {
                for ((id, p), (other, q)) in a.top.iter().zip(&b.top).take(64) {
                    assert!(id != other || (p - q).abs() <= 1e-4, "stream {place}: {p} {q}");
                }
            }
        }
        agent.assert_all_free();
    }
}

#[test]
fn choices_share_the_prompt_and_are_drawn_apart() {
    let fixture = random();
    // Fewer slots than choices: they are served in turns.
    let agent = fixture.engine(|config| config.slots = 2);
    let warm = |seed| Sampling { temperature: 1.0, seed, ..greedy(12) };
    let pieces = random_pieces(6, fixture.spec().vocab, 40, &[50], 21);
    let mut many = order(pieces.clone(), Mode::Pic, warm(1));
    many.choices = vec![warm(1), warm(1), warm(2), greedy(12), greedy(0)];
    let answer = agent.ask(many).unwrap();
    assert_eq!(answer.finished, [Some(FinishReason::Length); 5]);
    let ids: Vec<Vec<u32>> =
        answer.tokens.iter().map(|choice| choice.iter().map(|token| token.id).collect()).collect();
    assert_eq!(ids[0], agent.ask(order(pieces.clone(), Mode::Pic, warm(1))).unwrap().ids());
    assert_eq!(ids[3], agent.ask(order(pieces, Mode::Pic, greedy(12))).unwrap().ids());
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[4].is_empty());
    agent.assert_all_free();
}

#[test]
fn an_answer_goes_on_elsewhere_with_the_same_tokens() {
    let fixture = random();
    for mode in [Mode::Recompute, Mode::Pic] {
        let sampling = Sampling { temperature: 0.9, seed: 5, ..greedy(20) };
        let pieces = random_pieces(7, fixture.spec().vocab, 40, &[50, 60], 21);
        let ask = order(pieces, mode, sampling);
        let whole = fixture.engine(|_| {}).ask(ask.clone()).unwrap().ids();
        let mut rest = ask;
        rest.answered = whole[..9].to_vec();
        assert_eq!(fixture.engine(|_| {}).ask(rest).unwrap().ids(), whole[9..]);
    }
}

#[test]
fn an_answer_ends_where_it_should() {
    let agent = random().engine(|_| {});
    let ask = |sampling| agent.ask(order(vec![live(vec![1, 2, 3])], Mode::Recompute, sampling)).unwrap();
    let plain = ask(greedy(8));
    assert_eq!((plain.ids().len(), plain.finished[0]), (8, Some(FinishReason::Length)));
    let stop = plain.ids()[3];
    let before = plain.ids().iter().position(|id| *id == stop).unwrap();
    let stopped = ask(Sampling { stop_ids: vec![stop], ..greedy(8) });
    assert_eq!(
        (stopped.ids(), stopped.finished[0]),
        (plain.ids()[..before].to_vec(), Some(FinishReason::Stop))
    );
    let late = ask(Sampling { stop_ids: vec![stop], min_tokens: Tokens(6), ..greedy(8) });
    assert!(late.ids().len() >= 6);
}

#[test]
fn bad_orders_are_refused_with_a_reason() {
    let agent = random().engine(|_| {});
    let ask = |change: &dyn Fn(&mut hypic_domain::flow::Order)| {
        let mut order = order(vec![live(vec![1, 2, 3])], Mode::Pic, greedy(2));
        change(&mut order);
        agent.ask(order).unwrap_err()
    };
    assert!(matches!(ask(&|order| order.pieces.clear()), EngineError::ComposeOrder { .. }));
    assert!(matches!(ask(&|order| order.choices.clear()), EngineError::ReadOrder { .. }));
    assert!(matches!(ask(&|order| order.pieces[0].ids[1] = 256), EngineError::ReadOrder { .. }));
    assert!(matches!(ask(&|order| order.answered = vec![9999]), EngineError::ReadOrder { .. }));
    assert!(matches!(ask(&|order| order.pieces[0].ids = vec![0; 4096]), EngineError::FitContext { .. }));
    agent.assert_all_free();
}

#[test]
fn a_late_answer_is_cut_off() {
    let agent = random().engine(|_| {});
    let mut late = order(vec![live(vec![1, 2, 3])], Mode::Recompute, greedy(4000));
    late.deadline = Some(Millis(30.0));
    let answer = agent.ask(late).unwrap();
    assert_eq!(answer.finished, [Some(FinishReason::Cancelled)]);
    agent.assert_all_free();
}

#[test]
fn a_reader_that_is_gone_frees_everything_it_held() {
    let fixture = random();
    let agent = fixture.engine(|config| (config.slots, config.builds) = (4, 2));
    let before = agent.engine.load();
    let long = |seed| {
        let pieces = random_pieces(seed, fixture.spec().vocab, 30, &[100, 300], 20);
        order(pieces, Mode::Pic, greedy(2000))
    };
    // Some run, some wait, some are being built for.
    let mut streams: Vec<_> = (0..50).map(|seed| agent.begin(long(seed), &Tuples::default())).collect();
    for stream in streams.iter_mut().take(2) {
        assert!(matches!(stream.blocking_next(), Some(Ok(TokenEvent::Ready(_)))));
    }
    drop(streams);
    agent.assert_all_free();
    let after = agent.engine.load();
    assert_eq!(
        (after.slots_free, after.pages_free, after.build_slots_free),
        (before.slots_total.max(after.slots_total), after.pages_total, 2)
    );
    // At rest nothing is drawn any more, and the next one is served.
    let drawn = after.counters.drawn;
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(agent.engine.load().counters.drawn, drawn);
    let short = order(vec![live(vec![1, 2])], Mode::Recompute, greedy(2));
    assert_eq!(agent.ask(short).unwrap().ids().len(), 2);
}

#[test]
fn a_slow_reader_pauses_only_itself() {
    let agent = random().engine(|_| {});
    let ask = |max| order(vec![live(vec![5, 6, 7])], Mode::Recompute, greedy(max));
    let expected = agent.ask(ask(300)).unwrap();
    let mut slow = agent.begin(ask(300), &Tuples::default());
    assert!(matches!(slow.blocking_next(), Some(Ok(TokenEvent::Ready(_)))));
    // Others finish while nobody reads this one, which stands still after a bounded number of tokens.
    for _ in 0..3 {
        assert_eq!(agent.ask(ask(300)).unwrap().ids(), expected.ids());
    }
    let drawn = agent.engine.load().counters.drawn;
    assert!(drawn < 300 * 4 + 64, "{drawn}");
    assert_eq!(finish(slow).unwrap().ids(), expected.ids());
}

#[test]
fn builds_for_others_come_layer_by_layer_and_equal_our_own() {
    let fixture = random();
    let agent = fixture.engine(|config| config.rows = 64);
    let mut draw = Draw(3);
    let segments: Vec<_> = [40, 200, 9]
        .map(|len| crate::harness::segment(draw.ids(len, fixture.spec().vocab)))
        .map(|piece| (piece.key.unwrap(), piece.ids))
        .into();
    let mut pieces: Vec<_> = segments.iter().map(|(_, ids)| crate::harness::segment(ids.clone())).collect();
    pieces.push(live(vec![1, 2, 3]));
    let mut stream = agent.engine.build(segments.iter().cloned().map(crate::harness::to_build));
    let (mut layers, mut built) = (vec![0; 3], 0);
    while let Some(event) = stream.blocking_next() {
        match event {
            BuildEvent::Layer { key, layer, parts } => {
                let place = segments.iter().position(|(k, _)| *k == key).unwrap();
                assert_eq!(layers[place], layer);
                assert!(parts.iter().all(|part| usize::from(part.spec().layer) == layer));
                layers[place] += 1;
            }
            BuildEvent::Built { tuple } => {
                assert_eq!(agent.tuples.find(tuple.key()).unwrap().bytes(), tuple.bytes());
                built += 1;
            }
            BuildEvent::Failed { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!((layers, built), (vec![fixture.spec().layers.len(); 3], 3));
    let hit = agent.ask(order(pieces.clone(), Mode::Pic, greedy(5))).unwrap();
    let own = fixture.engine(|config| config.rows = 64);
    assert_eq!(hit.ids(), own.ask(order(pieces, Mode::Pic, greedy(5))).unwrap().ids());
    let too_short = crate::harness::segment(vec![1; 8]);
    let mut refused = agent.engine.build([crate::harness::to_build((too_short.key.unwrap(), too_short.ids))]);
    assert!(matches!(refused.blocking_next(), Some(BuildEvent::Failed { .. })));
    agent.assert_all_free();
}

#[test]
fn a_composition_follows_its_tuples_layer_by_layer_and_holds_up_nobody() {
    let fixture = random();
    let agent = fixture.engine(|_| {});
    let pieces = random_pieces(12, fixture.spec().vocab, 10, &[60, 70], 10);
    let ask = order(pieces, Mode::Pic, greedy(4));
    let expected = agent.ask(ask.clone()).unwrap();
    let (feed, stream) = agent.engine.generate(ask);
    let wanted: Vec<_> =
        feed.wanted().map(|(piece, head)| (piece, agent.tuples.find(&head.key).unwrap())).collect();
    let mut composed = agent.engine.load().counters.rows_composed;
    for layer in 0..fixture.spec().layers.len() {
        for (piece, tuple) in &wanted {
            let parts: Vec<_> = tuple
                .parts()
                .iter()
                .filter(|part| usize::from(part.spec().layer) == layer)
                .cloned()
                .collect();
            feed.layer(*piece, layer, &parts).unwrap();
        }
        // Others are served in between.
        let other = order(vec![live(vec![9, 8, 7])], Mode::Recompute, greedy(3));
        assert_eq!(agent.ask(other).unwrap().ids().len(), 3);
        if layer == 0 {
            composed = agent.engine.load().counters.rows_composed - composed;
        }
    }
    assert_eq!(composed, 36, "it took off with the first layer");
    for (piece, _) in &wanted {
        feed.arrived(*piece, hypic_domain::flow::SegmentOutcome::Fetched, Some("other".into()));
    }
    let answer = finish(stream).unwrap();
    assert_eq!(answer.bits(), expected.bits());
    assert_eq!(answer.ids(), expected.ids());
    assert_eq!(answer.ready.counts.hit, 52 + 62);
}

#[test]
fn a_tuple_lost_half_way_is_built_here() {
    let fixture = random();
    let agent = fixture.engine(|_| {});
    let pieces = random_pieces(13, fixture.spec().vocab, 10, &[60, 70], 10);
    let ask = order(pieces, Mode::Pic, greedy(4));
    let expected = agent.ask(ask.clone()).unwrap();
    let (feed, stream) = agent.engine.generate(ask);
    let (piece, head) = feed.wanted().next().unwrap();
    let tuple = agent.tuples.find(&head.key).unwrap();
    let first: Vec<_> = tuple.parts().iter().filter(|part| part.spec().layer == 0).cloned().collect();
    feed.layer(piece, 0, &first).unwrap();
    // It is said to be whole, and is not.
    feed.arrived(piece, hypic_domain::flow::SegmentOutcome::Fetched, None);
    drop(feed);
    let answer = finish(stream).unwrap();
    assert_eq!((answer.ids(), answer.ready.counts.built), (expected.ids(), 52 + 62));
}

#[test]
fn calibration_measures_and_leaves_nothing_behind() {
    let agent = random().engine(|_| {});
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calibration = runtime.block_on(agent.engine.calibrate()).unwrap();
    assert!(calibration.prefill.iter().chain(&calibration.decode).all(|(_, time)| time.0 > 0.0));
    assert_eq!((calibration.prefill.len(), calibration.decode.len()), (3, 2));
    agent.assert_all_free();
}

#[test]
fn a_speed_measured_on_a_busy_machine_follows_the_work_that_comes() {
    let fixture = random();
    let agent = fixture.engine(|_| {});
    let prompt = |seed, rows| {
        let pieces = random_pieces(seed, fixture.spec().vocab, rows, &[], 1);
        order(pieces, Mode::Recompute, greedy(1))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let measured = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        // Others have rows in every step.
        for place in 0..8 {
            let (agent, measured, prompt) = (&agent, &measured, &prompt);
            scope.spawn(move || {
                while !measured.load(Ordering::Relaxed) {
                    agent.ask(prompt(place, 400)).unwrap();
                }
            });
        }
        let busy = runtime.block_on(agent.engine.calibrate());
        measured.store(true, Ordering::Relaxed);
        busy.unwrap()
    });

    let times: Vec<f64> = (0..24)
        .map(|seed| {
            let begun = Instant::now();
            agent.ask(prompt(1000 + seed, 255)).unwrap();
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    let mean = (times.iter().map(|ms| ms.ln()).sum::<f64>() / times.len() as f64).exp();
    let (wrong, followed) = (busy.prefill_of(256).0, agent.engine.calibration().prefill_of(256).0);
    assert!(wrong > 4.0 * mean, "a prompt of {mean} ms was not measured wrong: {wrong}");
    assert!(followed < 2.0 * mean && followed > mean / 2.0, "{mean} ms, of {wrong} came {followed}");
    let (wrong, followed) =
        (busy.build_tokens_per_second, agent.engine.calibration().build_tokens_per_second);
    assert!(followed > 2.0 * wrong, "builds of {wrong} tokens/s are told as {followed}");
    agent.assert_all_free();
}
