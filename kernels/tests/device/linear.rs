use super::*;

/// One layer's inputs for some rows, and the layer.
pub(super) struct Data {
    pub(super) rows: usize,
    raw: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    taps: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Data {
    /// Half lives of 8, 80, 800 and 8000 tokens.
    pub(super) fn random(seed: u64, rows: usize) -> Self {
        let mut noise = Noise(seed);
        let half = |half: f64| (std::f64::consts::LN_2 / half).ln() as f32;
        Self {
            rows,
            raw: noise.many(rows * LINEAR.conv_channels()),
            a: noise.many(rows * LINEAR.heads),
            b: noise.many(rows * LINEAR.heads),
            // The layer is the same for all seeds.
            taps: Noise(99).many(LINEAR.conv_channels() * 4),
            a_log: vec![half(8.0), half(80.0), half(800.0), half(8000.0)],
            dt_bias: vec![0.54; LINEAR.heads],
        }
    }

    pub(super) fn layer(&self) -> Gdn<'_> {
        Gdn { shape: LINEAR, taps: &self.taps, a_log: &self.a_log, dt_bias: &self.dt_bias }
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs { raw: &self.raw, a: &self.a, b: &self.b }
    }

    /// These rows behind one another.
    pub(super) fn joined(parts: &[&Self]) -> Self {
        let mut all = Self::random(0, 0);
        for part in parts {
            all.rows += part.rows;
            all.raw.extend(&part.raw);
            all.a.extend(&part.a);
            all.b.extend(&part.b);
        }
        all
    }

    fn rows(&self, range: std::ops::Range<usize>) -> Self {
        let part = |x: &[f32], width: usize| x[range.start * width..range.end * width].to_vec();
        Self {
            rows: range.len(),
            raw: part(&self.raw, LINEAR.conv_channels()),
            a: part(&self.a, LINEAR.heads),
            b: part(&self.b, LINEAR.heads),
            ..Self::random(0, 0)
        }
    }
}

/// What `of` makes of the rows of a layer.
pub(super) fn with_input<R>(
    device: &TestDevice,
    data: &Data,
    of: impl FnOnce(&LinearInput<'_, TestDevice>) -> R,
) -> R {
    let tensor = |values: &[f32], width| device.tensor(values, width).unwrap();
    let input = LinearInput {
        layer: 0,
        shape: &LINEAR,
        raw: &tensor(&data.raw, LINEAR.conv_channels()),
        conv: Some(&exact(device, &data.taps, &[LINEAR.conv_channels(), 4])),
        gates: Gates::Gdn {
            a: &tensor(&data.a, LINEAR.heads),
            b: &tensor(&data.b, LINEAR.heads),
            a_log: &exact(device, &data.a_log, &[LINEAR.heads]),
            dt_bias: &exact(device, &data.dt_bias, &[LINEAR.heads]),
        },
    };
    of(&input)
}

pub(super) fn mix(
    device: &TestDevice,
    data: &Data,
    runs: Vec<Run<TestDevice>>,
    states: &mut States,
) -> Result<Vec<f32>, OpError> {
    let plan = Plan { ids: vec![0; data.rows], runs };
    let mixed = with_input(device, data, |input| device.linear_mixer(input, &plan, states));
    mixed.and_then(|out| device.to_host(&out))
}

pub(super) fn run(slot: usize, rows: std::ops::Range<usize>, ops: Vec<RunOp>) -> Run<TestDevice> {
    let context = Context { pages: vec![], live: vec![], bodies: vec![] };
    Run { rows, slot, context, ops, record: None }
}

pub(super) fn plain(slot: usize, rows: std::ops::Range<usize>) -> Run<TestDevice> {
    run(slot, rows.clone(), vec![RunOp::Rows(rows)])
}

pub(super) fn fresh(device: &TestDevice, slots: usize) -> States {
    let mut states = device.states(&spec(), slots).unwrap();
    (0..slots).for_each(|slot| device.reset_slot(&mut states, slot).unwrap());
    states
}

/// Builds a segment alone, in steps of `step` rows; its layer exactly.
fn build(device: &TestDevice, data: &Data, seam: usize, step: usize, skip_below: f32) -> HostLayer {
    build_as(device, data, (seam, step), TupleFormat { skip_below, ..TupleFormat::EXACT })
}

fn build_as(
    device: &TestDevice,
    data: &Data,
    (seam, step): (usize, usize),
    format: TupleFormat,
) -> HostLayer {
    let spec = spec();
    let mut states = fresh(device, 1);
    let recording = Arc::new(Mutex::new(device.recording(&spec).unwrap()));
    for first in (0..data.rows).step_by(step) {
        let count = step.min(data.rows - first);
        let mut run = plain(0, 0..count);
        let body = seam.saturating_sub(first).min(count)..count;
        let whole = (body.len() == data.rows - seam).then_some(format.skip_below);
        run.record = Some(Record { recording: Arc::clone(&recording), body, whole });
        mix(device, &data.rows(first..first + count), vec![run], &mut states).unwrap();
    }
    let pages = device.pages(&spec, 1, 1).unwrap();
    let context = Context { pages: vec![], live: vec![], bodies: vec![] };
    let recording = recording.lock().unwrap();
    let export = Export {
        layer: 0,
        spec: &spec,
        recording: &*recording,
        states: &states,
        slot: 0,
        pages: &pages,
        context: &context,
        body: data.rows - seam,
        format,
    };
    device.export(&export).unwrap()
}

/// The live heads, and `T`, `S` and tail in fp32.
pub(super) fn decoded(layer: &HostLayer) -> (Vec<bool>, [Vec<f32>; 3]) {
    match layer.check("test", &spec().layers[0]).unwrap() {
        Checked::Linear { live, transition, state, tail, .. } => {
            (live, [transition, state, tail].map(|part: StoredPart| part.decode()))
        }
        Checked::Full { .. } => panic!("a full layer"),
    }
}

fn placed(device: &TestDevice, host: HostLayer, len: usize) -> PlacedBody<TestDevice> {
    let layers = BodyLayers::empty(2);
    let mut pages = device.pages(&spec(), 1, 1).unwrap();
    layers.arrive(0, device.import(0, &spec(), &mut pages, &host).unwrap());
    PlacedBody { layers: Arc::new(layers), start: 0, len: len as u32 }
}

#[test]
fn any_length_equals_the_reference() {
    let device = poisoned(2);
    for rows in [1, 2, 7, 63, 64, 65, 1000] {
        let data = Data::random(rows as u64, rows);
        let mut states = fresh(&device, 1);
        let out = mix(&device, &data, vec![plain(0, 0..rows)], &mut states).unwrap();
        let mut running = data.layer().start();
        let right = data.layer().run(data.inputs(), &[Part::Rows(0..rows)], &mut running);
        within(Compared::Mixer, &out, &right);
        within(Compared::State, &device.slot_state(&states, 0, 0).unwrap(), &running.state);
    }
}

#[test]
fn steps_of_any_size_equal_one_step() {
    let device = poisoned(1);
    let data = Data::random(5, 200);
    let mut running = data.layer().start();
    let right = data.layer().run(data.inputs(), &[Part::Rows(0..200)], &mut running);
    for step in [1, 3, 50, 64, 100] {
        let mut states = fresh(&device, 1);
        let mut out = Vec::new();
        for first in (0..200).step_by(step) {
            let part = data.rows(first..200.min(first + step));
            out.extend(mix(&device, &part, vec![plain(0, 0..part.rows)], &mut states).unwrap());
        }
        within(Compared::Mixer, &out, &right);
        within(Compared::State, &device.slot_state(&states, 0, 0).unwrap(), &running.state);
    }
}

#[test]
fn a_build_records_the_body_and_the_tail_of_the_whole_segment() {
    let device = poisoned(2);
    for (rows, seam, step) in
        [(9, 8, 99), (72, 8, 99), (300, 8, 99), (300, 8, 37), (300, 0, 100), (12, 8, 5), (2, 0, 9)]
    {
        let data = Data::random(rows as u64 + 1000, rows);
        let right = data.layer().build(data.inputs(), rows, seam);
        let (live, [transition, state, tail]) = decoded(&build(&device, &data, seam, step, 0.0));
        assert_eq!(live, [true; 4]);
        within(Compared::State, &transition, &right.transition);
        within(Compared::State, &state, &right.state);
        assert_eq!(tail, right.tail.iter().map(|&x| x as f32).collect::<Vec<_>>());
    }
}

#[test]
fn heads_that_have_forgotten_store_no_transition() {
    let device = poisoned(1);
    let data = Data::random(3, 400);
    let right = data.layer().build(data.inputs(), 400, 8);
    let built = build(&device, &data, 8, 400, 1e-3);
    let (live, [transition, ..]) = decoded(&built);
    assert_eq!(built.live_heads(&spec().layers[0]), (3, 4));
    let kept: Vec<bool> = right.log_bound.iter().map(|bound| bound.exp() >= 1e-3).collect();
    assert_eq!(live, kept);
    assert_eq!(live, [false, true, true, true]);
    within(Compared::State, &transition, &right.transition[LINEAR.key * LINEAR.key..]);
}

#[test]
fn a_body_in_any_format_is_what_was_stored() {
    let device = poisoned(1);
    let (data, query) = (Data::random(6, 90), Data::random(7, 3));
    let exact = build(&device, &data, 8, 99, 0.0);
    let right: Vec<f64> = decoded(&exact).1[1].iter().map(|&x| f64::from(x)).collect();
    let rows = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8].map(|dtype| TupleFormat {
        transition: dtype,
        state: dtype,
        tail: dtype,
        ..TupleFormat::EXACT
    });
    for format in rows.into_iter().chain([device.format(&TupleFormat::default())]) {
        let host = build_as(&device, &data, (8, 99), format);
        assert_eq!(host, build_as(&device, &data, (8, 99), format), "the same bits again");
        let after = |host: &HostLayer| {
            let mut states = fresh(&device, 1);
            let mut only = plain(0, 0..3);
            only.ops.push(RunOp::Apply { body: 0, rule: Rule::Replace });
            only.context.bodies.push(placed(&device, host.clone(), 82));
            mix(&device, &query, vec![only], &mut states).unwrap();
            device.slot_state(&states, 0, 0).unwrap()
        };
        let found = after(&host);
        let (error, bound) = (error(&found, &right), bound(Compared::State, format.state));
        assert!(error <= bound.max(super::bound(Compared::State, DTYPE)), "{format:?}: {error:e}");
        assert_eq!(found, after(&host.clone()));
    }
}

#[test]
fn what_is_not_finite_is_never_stored_as_a_number() {
    let device = poisoned(1);
    let mut data = Data::random(6, 40);
    let channels = LINEAR.conv_channels();
    data.raw[20 * channels + channels - 1] = f32::NAN;
    let spec = spec();
    for format in [TupleFormat::EXACT, device.format(&TupleFormat::default())] {
        let mut states = fresh(&device, 1);
        let recording = Arc::new(Mutex::new(device.recording(&spec).unwrap()));
        let mut built = plain(0, 0..40);
        built.record = Some(Record { recording: Arc::clone(&recording), body: 8..40, whole: None });
        mix(&device, &data, vec![built], &mut states).unwrap();
        let pages = device.pages(&spec, 1, 1).unwrap();
        let context = Context { pages: vec![], live: vec![], bodies: vec![] };
        let recording = recording.lock().unwrap();
        let stored = device.export(&Export {
            layer: 0,
            spec: &spec,
            recording: &*recording,
            states: &states,
            slot: 0,
            pages: &pages,
            context: &context,
            body: 32,
            format,
        });
        match stored {
            Ok(host) => {
                let shape = format.part(&spec.layers[0], PartKind::State, 32).unwrap();
                assert!(!format.is_finite(PartKind::State, &shape, host.part(PartKind::State).unwrap()));
            }
            Err(error) => assert!(matches!(error, OpError::NotFinite { .. }), "{error}"),
        }
    }
}

/// Four segments: whole, and composed of seams and bodies.
#[test]
fn a_composed_state_equals_the_state_of_all_tokens_in_one_go() {
    let device = poisoned(2);
    let segments: Vec<Data> =
        [50, 130, 9, 300].iter().enumerate().map(|(i, &n)| Data::random(i as u64, n)).collect();
    let whole = Data::joined(&segments.iter().collect::<Vec<_>>());
    let mut right = whole.layer().start();
    whole.layer().run(whole.inputs(), &[Part::Rows(0..whole.rows)], &mut right);
    for seam in [8, 3, 0] {
        let seams: Vec<Data> = segments.iter().map(|segment| segment.rows(0..seam)).collect();
        let live = Data::joined(&seams.iter().collect::<Vec<_>>());
        let mut composed = run(0, 0..live.rows, vec![]);
        for (i, segment) in segments.iter().enumerate() {
            composed.context.bodies.push(placed(
                &device,
                build(&device, segment, seam, 64, 0.0),
                segment.rows - seam,
            ));
            composed.ops.push(RunOp::Rows(i * seam..(i + 1) * seam));
            composed.ops.push(RunOp::Apply { body: i, rule: Rule::Compose });
        }
        let mut states = fresh(&device, 1);
        mix(&device, &live, vec![composed], &mut states).unwrap();
        let found = device.slot_state(&states, 0, 0).unwrap();
        if seam >= 3 {
            within(Compared::Composed, &found, &right.state);
        } else {
            // Without a seam the convolution at every join is cold, which must show.
            assert!(error(&found, &right.state) > 1e-3);
        }
    }
}

#[test]
fn programs_of_rows_bodies_and_rules_equal_the_reference() {
    let device = poisoned(1);
    // The last body is shorter than the convolution's tail.
    let segments: Vec<Data> =
        [40, 100, 2].iter().enumerate().map(|(i, &n)| Data::random(i as u64 + 7, n)).collect();
    let seams = [8, 8, 1];
    let summaries: Vec<Summary> = segments
        .iter()
        .zip(seams)
        .map(|(segment, seam)| segment.layer().build(segment.inputs(), segment.rows, seam))
        .collect();
    let live = Data::random(70, 30);
    for rule in [Rule::Compose, Rule::Add, Rule::Replace] {
        for clear in [false, true] {
            let mut mixed = run(0, 0..30, vec![]);
            let mut program = Vec::new();
            for (i, rows) in [0..1, 1..9, 9..30].into_iter().enumerate() {
                let host = build(&device, &segments[i], seams[i], 64, 0.0);
                mixed.context.bodies.push(placed(&device, host, segments[i].rows - seams[i]));
                mixed.ops.extend([RunOp::Apply { body: i, rule }, RunOp::Rows(rows.clone())]);
                program.extend([Part::Body(&summaries[i], rule), Part::Rows(rows)]);
                if clear {
                    mixed.ops.push(RunOp::ClearTail);
                    program.push(Part::ClearTail);
                }
            }
            let mut states = fresh(&device, 1);
            let out = mix(&device, &live, vec![mixed], &mut states).unwrap();
            let mut running = live.layer().start();
            within(Compared::Mixer, &out, &live.layer().run(live.inputs(), &program, &mut running));
            within(Compared::State, &device.slot_state(&states, 0, 0).unwrap(), &running.state);
        }
    }
}

#[test]
fn a_step_of_build_live_and_decode_gives_each_what_it_gets_alone() {
    let device = poisoned(2);
    let parts = [Data::random(1, 100), Data::random(2, 70), Data::random(3, 1), Data::random(4, 1)];
    let whole = Data::joined(&parts.iter().collect::<Vec<_>>());
    let before = Data::random(5, 33);
    let warm = |slots: usize| {
        let mut states = fresh(&device, slots);
        (0..slots).for_each(|slot| {
            mix(&device, &before, vec![plain(slot, 0..33)], &mut states).unwrap();
        });
        states
    };
    let record = || {
        let recording = Arc::new(Mutex::new(device.recording(&spec()).unwrap()));
        Some(Record { recording, body: 8..100, whole: Some(0.0) })
    };
    let mut runs: Vec<_> = [3, 1, 0, 4]
        .into_iter()
        .zip([0..100, 100..170, 170..171, 171..172])
        .map(|(slot, rows)| plain(slot, rows))
        .collect();
    runs[0].record = record();
    let mut states = warm(6);
    let out = mix(&device, &whole, runs, &mut states).unwrap();
    let mut alone = Vec::new();
    for (slot, part) in [3, 1, 0, 4].into_iter().zip(&parts) {
        let mut one = warm(1);
        let mut run = plain(0, 0..part.rows);
        run.record = if slot == 3 { record() } else { None };
        alone.extend(mix(&device, part, vec![run], &mut one).unwrap());
        assert_eq!(device.slot_state(&one, 0, 0).unwrap(), device.slot_state(&states, slot, 0).unwrap());
    }
    assert_eq!(out, alone);
    // Slots outside of the step are as they were.
    let untouched = warm(1);
    assert_eq!(device.slot_state(&untouched, 0, 0).unwrap(), device.slot_state(&states, 2, 0).unwrap());
    assert_eq!(device.slot_state(&untouched, 0, 0).unwrap(), device.slot_state(&states, 5, 0).unwrap());
}

#[test]
fn a_reset_slot_equals_a_fresh_device_bit_for_bit() {
    let device = poisoned(1);
    for rows in 1..6 {
        let data = Data::random(rows as u64, rows);
        let mut used = fresh(&device, 1);
        // NaN as raw inputs poisons state and tail.
        let mut poison = Data::random(9, 300);
        poison.raw.fill(f32::NAN);
        mix(&device, &poison, vec![plain(0, 0..300)], &mut used).unwrap();
        assert!(device.slot_state(&used, 0, 0).unwrap()[0].is_nan());
        device.reset_slot(&mut used, 0).unwrap();
        let mut new = fresh(&device, 1);
        let (a, b) = (
            mix(&device, &data, vec![plain(0, 0..rows)], &mut used),
            mix(&device, &data, vec![plain(0, 0..rows)], &mut new),
        );
        assert_eq!(a.unwrap(), b.unwrap());
        assert_eq!(device.slot_state(&used, 0, 0).unwrap(), device.slot_state(&new, 0, 0).unwrap());
    }
}

#[test]
fn a_saved_slot_goes_on_where_it_was() {
    let device = poisoned(1);
    let (first, second) = (Data::random(1, 20), Data::random(2, 20));
    let mut states = fresh(&device, 2);
    mix(&device, &first, vec![plain(0, 0..20)], &mut states).unwrap();
    let saved = device.save_slot(&states, 0).unwrap();
    let right = mix(&device, &second, vec![plain(0, 0..20)], &mut states).unwrap();
    device.load_slot(&mut states, 1, &saved).unwrap();
    assert_eq!(mix(&device, &second, vec![plain(1, 0..20)], &mut states).unwrap(), right);
}

#[test]
fn what_can_not_be_done_is_said_before_any_state_moves() {
    let device = poisoned(1);
    let data = Data::random(1, 20);
    let mut states = fresh(&device, 2);
    let mut missing = run(0, 0..20, vec![RunOp::Rows(0..20), RunOp::Apply { body: 0, rule: Rule::Compose }]);
    missing.context.bodies.push(PlacedBody { layers: Arc::new(BodyLayers::empty(2)), start: 20, len: 5 });
    let refused = mix(&device, &data, vec![missing], &mut states);
    assert!(matches!(refused, Err(OpError::NotArrived { layer: 0 })));
    for runs in [
        vec![run(0, 0..20, vec![RunOp::Rows(0..20), RunOp::Apply { body: 0, rule: Rule::Compose }])],
        vec![run(0, 0..20, vec![RunOp::Rows(0..10)])],
        vec![plain(0, 0..10), plain(0, 10..20)],
        vec![plain(2, 0..20)],
        vec![plain(0, 0..10)],
    ] {
        assert!(matches!(mix(&device, &data, runs, &mut states), Err(OpError::Shape { .. })));
    }
    assert!(device.slot_state(&states, 0, 0).unwrap().iter().all(|&x| x == 0.0));
}
