//! Builds in company, and what becomes of them: to the host, and to another device.

use std::sync::mpsc;

use super::linear::{Data, decoded, fresh, mix, plain, run};
use super::*;

const SEAM: usize = 8;

/// Builds in slots 0, 1 … of one step, a run of somebody else between the first two; what each recorded, layer 0.
fn built(
    device: &TestDevice,
    lens: &[usize],
    (whole, format): (Option<f32>, TupleFormat),
) -> Vec<<TestDevice as Device>::BuiltLayer> {
    let spec = spec();
    let mut states = fresh(device, lens.len() + 1);
    let segments: Vec<Data> = lens.iter().map(|&len| Data::random(len as u64 + 4000, len)).collect();
    let other = Data::random(77, 40);
    let mut parts: Vec<&Data> = segments.iter().collect();
    parts.insert(1, &other);
    let data = Data::joined(&parts);
    let (mut runs, mut recordings, mut first) = (Vec::new(), Vec::new(), 0);
    for (place, part) in parts.iter().enumerate() {
        let rows = first..first + part.rows;
        first = rows.end;
        let is_other = place == 1;
        let slot = if is_other { lens.len() } else { recordings.len() };
        let mut run = plain(slot, rows.clone());
        if !is_other {
            let recording = Arc::new(Mutex::new(device.recording(&spec).unwrap()));
            let body = rows.start + SEAM..rows.end;
            run.record = Some(Record { recording: Arc::clone(&recording), body, whole });
            recordings.push(recording);
        }
        runs.push(run);
    }
    mix(device, &data, runs, &mut states).unwrap();
    let pages = device.pages(&spec, 1, 1).unwrap();
    let context = Context { pages: vec![], live: vec![], bodies: vec![] };
    let finish = |(slot, recording): (usize, &Arc<Mutex<<TestDevice as Device>::Recording>>)| {
        let (states, pages, context, spec) = (&states, &pages, &context, &spec);
        let (recording, body) = (&*recording.lock().unwrap(), lens[slot] - SEAM);
        let format = TupleFormat { skip_below: whole.unwrap_or(0.0), ..format };
        let request = Export { layer: 0, spec, recording, states, slot, pages, context, body, format };
        device.finish(&request).unwrap()
    };
    recordings.iter().enumerate().map(finish).collect()
}

#[test]
fn builds_in_company_record_what_they_record_alone() {
    let device = poisoned(2);
    for whole in [None, Some(1e-3), Some(0.0)] {
        let lens = [300, 9, 130, 64, 401];
        let asked = (whole, TupleFormat::EXACT);
        let together = built(&device, &lens, asked);
        for (len, together) in lens.iter().zip(&together) {
            let land = |built| device.land(0, &spec(), built).unwrap();
            let (alone, together) = (land(&built(&device, &[*len], asked)[0]), land(together));
            assert_eq!(alone, together, "{len} rows");
            let data = Data::random(*len as u64 + 4000, *len);
            let right = data.layer().build(data.inputs(), *len, SEAM);
            let (live, [transition, state, tail]) = decoded(&together);
            let kept: Vec<bool> =
                right.log_bound.iter().map(|bound| bound.exp() >= f64::from(whole.unwrap_or(0.0))).collect();
            assert_eq!(live, kept);
            let heads = right.transition.chunks_exact(LINEAR.key * LINEAR.key).zip(&live);
            let right_transition: Vec<f64> =
                heads.filter(|(_, live)| **live).flat_map(|(head, _)| head).copied().collect();
            within(Compared::State, &transition, &right_transition);
            within(Compared::State, &state, &right.state);
            assert_eq!(tail, right.tail.iter().map(|&x| x as f32).collect::<Vec<_>>());
        }
    }
}

/// A prompt of one body behind a seam, with the body had in each way.
#[test]
fn a_layer_that_is_adopted_is_the_layer_that_went_over_the_host() {
    let [device, other] = pair();
    let eight = TupleFormat { transition: Dtype::I8, state: Dtype::I8, ..TupleFormat::default() };
    for format in [TupleFormat::EXACT, device.format(&TupleFormat::default()), device.format(&eight)] {
        adopted_or_landed((&device, &other), format);
    }
    assert!(device.keeps(&device.format(&TupleFormat::default())));
}

fn adopted_or_landed((device, other): (&TestDevice, &TestDevice), format: TupleFormat) {
    let len = 200;
    let asked = (Some(1e-3), format);
    let mut pages = device.pages(&spec(), 1, 1).unwrap();
    let here = Arc::new(built(device, &[len], asked).remove(0));
    let there = Arc::new(built(other, &[len], asked).remove(0));
    let host = device.land(0, &spec(), &here).unwrap();
    assert_eq!((host.format, host.body), (TupleFormat { skip_below: 1e-3, ..format }, len - SEAM));
    assert_eq!(other.land(0, &spec(), &there).unwrap(), host);
    let parts = [
        device.import(0, &spec(), &mut pages, &host).unwrap(),
        device.adopt(0, &spec(), &mut pages, &here).unwrap(),
        device.adopt(0, &spec(), &mut pages, &there).unwrap(),
    ];
    // Nobody else keeps what was built.
    drop((here, there));
    let found = parts.map(|parts| composed(device, vec![(parts, len)]));
    assert_eq!(found[1], found[2]);
    if device.keeps(&format) {
        assert_eq!(found[0], found[1], "{format:?}");
    } else {
        let right: Vec<f64> = found[1].1.iter().map(|&x| f64::from(x)).collect();
        let error = error(&found[0].1, &right);
        let bound = bound(Compared::State, format.state).max(bound(Compared::State, DTYPE));
        assert!(error <= bound, "{format:?}: {error:e}");
    }
}

/// What a prompt gets of these segments, each behind its seam, and its state.
fn composed(
    device: &TestDevice,
    segments: Vec<(<TestDevice as Device>::LayerParts, usize)>,
) -> (Vec<f32>, Vec<f32>) {
    let live = Data::random(12, segments.len() * SEAM + 5);
    let (mut ops, mut bodies, mut start) = (Vec::new(), Vec::new(), 0);
    for (body, (parts, len)) in segments.into_iter().enumerate() {
        let layers = BodyLayers::empty(2);
        layers.arrive(0, parts);
        ops.push(RunOp::Rows(body * SEAM..(body + 1) * SEAM));
        ops.push(RunOp::Apply { body, rule: Rule::Compose });
        let (first, len) = (start + SEAM, len - SEAM);
        bodies.push(PlacedBody { layers: Arc::new(layers), start: first as u32, len: len as u32 });
        start = first + len;
    }
    ops.push(RunOp::Rows(bodies.len() * SEAM..live.rows));
    let mut prompt = run(0, 0..live.rows, ops);
    prompt.context.bodies = bodies;
    let mut states = fresh(device, 1);
    let out = mix(device, &live, vec![prompt], &mut states).unwrap();
    (out, device.slot_state(&states, 0, 0).unwrap())
}

/// Layers of another device, taken over as soon as they are finished there, while both go on: that one builds more, in
/// memory that nobody keeps any more, and this one computes before and between them.
#[test]
fn layers_come_whole_from_a_device_that_goes_on() {
    let [device, other] = &pair();
    let asked = (Some(1e-3), device.format(&TupleFormat::default()));
    let mut pages = device.pages(&spec(), 1, 1).unwrap();
    // The second are taken over and not used.
    let rounds = [([90, 41, 130], true), ([130, 90, 41], false), ([41, 130, 90], true)];
    let over_the_host = |lens: &[usize; 3], pages: &mut Pages| {
        let import = |built: &_| {
            let host = device.land(0, &spec(), built).unwrap();
            device.import(0, &spec(), pages, &host).unwrap()
        };
        let parts: Vec<_> = built(device, lens, asked).iter().map(import).collect();
        composed(device, parts.into_iter().zip(*lens).collect())
    };
    let right = rounds.map(|(lens, _)| over_the_host(&lens, &mut pages));
    let busy = Data::random(5, 64);
    let mut states = fresh(device, 1);
    std::thread::scope(|scope| {
        let (sender, finished) = mpsc::channel();
        scope.spawn(move || {
            for built in rounds.iter().flat_map(|(lens, _)| built(other, lens, asked)) {
                sender.send(Arc::new(built)).unwrap();
            }
        });
        for ((lens, is_used), right) in rounds.iter().zip(&right) {
            let take = |len: &usize| {
                let built = finished.recv().unwrap();
                mix(device, &busy, vec![plain(0, 0..busy.rows)], &mut states).unwrap();
                (device.adopt(0, &spec(), &mut pages, &built).unwrap(), *len)
            };
            let segments: Vec<_> = lens.iter().map(take).collect();
            if *is_used {
                assert_eq!(&composed(device, segments), right);
            }
        }
    });
}
