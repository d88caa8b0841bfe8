use super::*;

pub(super) const PAGE: usize = 16;

pub(super) struct Data {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

impl Data {
    pub(super) fn random(seed: u64, rows: usize) -> Self {
        let mut noise = Noise(seed);
        Self {
            // Large enough that the softmax has something to choose.
            query: noise.many(rows * FULL.heads * FULL.key).iter().map(|x| 4.0 * x).collect(),
            key: noise.many(rows * FULL.kv_heads * FULL.key),
            value: noise.many(rows * FULL.kv_heads * FULL.value),
        }
    }

    fn key_row(&self, row: usize) -> &[f32] {
        let width = FULL.kv_heads * FULL.key;
        &self.key[row * width..][..width]
    }

    fn value_row(&self, row: usize) -> &[f32] {
        let width = FULL.kv_heads * FULL.value;
        &self.value[row * width..][..width]
    }

    /// As the parts of a tuple: heads outermost.
    fn host(&self, rows: usize) -> HostLayer {
        let by_head = |of: &dyn Fn(usize) -> Vec<f32>, width: usize| {
            (0..FULL.kv_heads)
                .flat_map(|head| (0..rows).flat_map(move |row| of(row)[head * width..][..width].to_vec()))
                .collect()
        };
        let full = &spec().layers[1];
        let mut host = HostLayer::empty(TupleFormat::EXACT, rows);
        let key: Vec<f32> = by_head(&|row| self.key_row(row).to_vec(), FULL.key);
        let value: Vec<f32> = by_head(&|row| self.value_row(row).to_vec(), FULL.value);
        host.encode("test", full, PartKind::Key, (&[], &key)).unwrap();
        host.encode("test", full, PartKind::Value, (&[], &value)).unwrap();
        host
    }
}

fn frequencies() -> Vec<f64> {
    (0..FULL.rotary / 2).map(|i| 10_000_f64.powf(-2.0 * i as f64 / FULL.rotary as f64)).collect()
}

/// What `of` makes of the rows of a layer.
pub(super) fn with_input<R>(
    device: &TestDevice,
    data: &Data,
    of: impl FnOnce(&FullInput<'_, TestDevice>) -> R,
) -> R {
    let angles = |position: usize| frequencies().into_iter().map(move |f| f * position as f64);
    let table: Vec<f32> = (0..4096)
        .flat_map(|p| angles(p).map(f64::cos).chain(angles(p).map(f64::sin)))
        .map(|x| x as f32)
        .collect();
    let input = FullInput {
        layer: 1,
        shape: &FULL,
        query: &device.tensor(&data.query, FULL.heads * FULL.key).unwrap(),
        key: &device.tensor(&data.key, FULL.kv_heads * FULL.key).unwrap(),
        value: &device.tensor(&data.value, FULL.kv_heads * FULL.value).unwrap(),
        rope: &exact(device, &table, &[4096, FULL.rotary]),
        scale: (FULL.key as f32).powf(-0.5),
    };
    of(&input)
}

fn attend(
    device: &TestDevice,
    data: &Data,
    rows: usize,
    runs: Vec<Run<TestDevice>>,
    pages: &mut Pages,
) -> Result<Vec<f32>, OpError> {
    let plan = Plan { ids: vec![0; rows], runs };
    with_input(device, data, |input| device.full_mixer(input, &plan, pages))
        .and_then(|out| device.to_host(&out))
}

pub(super) fn run(rows: std::ops::Range<usize>, pages: Vec<usize>, live: Vec<u32>) -> Run<TestDevice> {
    let context = Context { pages, live, bodies: vec![] };
    Run { ops: vec![RunOp::Rows(rows.clone())], rows, slot: 0, context, record: None }
}

fn body(
    device: &TestDevice,
    pages: &mut Pages,
    data: &Data,
    start: u32,
    len: usize,
) -> PlacedBody<TestDevice> {
    let layers = BodyLayers::empty(2);
    layers.arrive(1, device.import(1, &spec(), pages, &data.host(len)).unwrap());
    PlacedBody { layers: Arc::new(layers), start, len: len as u32 }
}

fn right(queries: &Data, rows: std::ops::Range<usize>, places: &[u32], tokens: &[Token<'_>]) -> Vec<f64> {
    let frequencies = frequencies();
    let layer = Attention { shape: FULL, frequencies: &frequencies, scale: (FULL.key as f64).powf(-0.5) };
    let width = FULL.heads * FULL.key;
    rows.zip(places)
        .flat_map(|(row, &place)| layer.attend(&queries.query[row * width..][..width], place, tokens))
        .collect()
}

fn tokens<'a>(data: &'a Data, positions: &[u32]) -> Vec<Token<'a>> {
    let token = |(row, &position): (usize, &u32)| Token {
        position,
        key: data.key_row(row),
        value: data.value_row(row),
    };
    positions.iter().enumerate().map(token).collect()
}

#[test]
fn any_length_equals_the_reference_in_one_step_or_many() {
    for (rows, threads) in [(1, 1), (7, 1), (63, 2), (64, 1), (65, 2), (300, 2)] {
        let device = poisoned(threads);
        let data = Data::random(rows as u64, rows);
        let positions: Vec<u32> = (0..rows as u32).collect();
        let right = right(&data, 0..rows, &positions, &tokens(&data, &positions));
        let table: Vec<usize> = (0..20).rev().collect();
        let mut pages = device.pages(&spec(), 20, PAGE).unwrap();
        let out =
            attend(&device, &data, rows, vec![run(0..rows, table.clone(), positions.clone())], &mut pages);
        within(Compared::Attention, &out.unwrap(), &right);

        let mut pages = device.pages(&spec(), 20, PAGE).unwrap();
        let mut out = Vec::new();
        for first in (0..rows).step_by(19) {
            let n = 19.min(rows - first);
            let part = |x: &[f32], width: usize| x[first * width..(first + n) * width].to_vec();
            let step = Data {
                query: part(&data.query, FULL.heads * FULL.key),
                key: part(&data.key, FULL.kv_heads * FULL.key),
                value: part(&data.value, FULL.kv_heads * FULL.value),
            };
            let run = run(0..n, table.clone(), positions[..first + n].to_vec());
            out.extend(attend(&device, &step, n, vec![run], &mut pages).unwrap());
        }
        within(Compared::Attention, &out, &right);
    }
}

/// Two requests that share a body at different places, each with seams, bodies and a query, and one that decodes.
#[test]
fn rows_see_bodies_and_live_tokens_by_global_position() {
    let device = poisoned(2);
    let mut pages = device.pages(&spec(), 6, PAGE).unwrap();
    let (first, second) = (Data::random(1, 100), Data::random(2, 37));
    let data = Data::random(3, 27);
    // 0: seam 0..8, body 8..108, seam 108..116, body 116..153, query 153..156.
    let places: Vec<u32> = (0..8).chain(108..116).chain(153..156).collect();
    let mut one = run(0..19, vec![4, 2], places.clone());
    one.context.bodies =
        vec![body(&device, &mut pages, &first, 8, 100), body(&device, &mut pages, &second, 116, 37)];
    // 1: seam 0..7, body 1000..1100: a row before it, and one behind.
    let others: Vec<u32> = (0..7).chain([1100]).collect();
    let mut two = run(19..27, vec![0], others.clone());
    two.context.bodies = vec![body(&device, &mut pages, &first, 1000, 100)];
    let out = attend(&device, &data, 27, vec![one, two], &mut pages).unwrap();

    let split = 19 * FULL.heads * FULL.value;
    let mut seen = tokens(&data, &places);
    seen.extend(tokens(&first, &(8..108).collect::<Vec<_>>()));
    seen.extend(tokens(&second, &(116..153).collect::<Vec<_>>()));
    within(Compared::Attention, &out[..split], &right(&data, 0..19, &places, &seen));
    let token = |(i, &position): (usize, &u32)| Token {
        position,
        key: data.key_row(19 + i),
        value: data.value_row(19 + i),
    };
    let mut seen: Vec<_> = others.iter().enumerate().map(token).collect();
    seen.extend(tokens(&first, &(1000..1100).collect::<Vec<_>>()));
    within(Compared::Attention, &out[split..], &right(&data, 19..27, &others, &seen));

    // One more token of the first request: few rows take another way through the device.
    let next = Data::random(4, 1);
    let mut decode = run(0..1, vec![4, 2], places.iter().copied().chain([156]).collect());
    decode.context.bodies =
        vec![body(&device, &mut pages, &first, 8, 100), body(&device, &mut pages, &second, 116, 37)];
    let out = attend(&device, &next, 1, vec![decode], &mut pages).unwrap();
    let mut seen = tokens(&data, &places);
    seen.extend(tokens(&first, &(8..108).collect::<Vec<_>>()));
    seen.extend(tokens(&second, &(116..153).collect::<Vec<_>>()));
    seen.extend(tokens(&next, &[156]));
    within(Compared::Attention, &out, &right(&next, 0..1, &[156], &seen));
}

#[test]
fn a_build_exports_unrotated_keys_of_its_body() {
    let [other, device] = pair();
    let spec = spec();
    let data = Data::random(8, 40);
    let mut pages = device.pages(&spec, 5, PAGE).unwrap();
    let live = run(0..40, vec![3, 0, 4], (0..40).collect());
    attend(&device, &data, 40, vec![run(0..40, vec![3, 0, 4], (0..40).collect())], &mut pages).unwrap();
    let recording = device.recording(&spec).unwrap();
    let states = device.states(&spec, 1).unwrap();
    let export = Export {
        layer: 1,
        spec: &spec,
        recording: &recording,
        states: &states,
        slot: 0,
        pages: &pages,
        context: &live.context,
        body: 32,
        format: TupleFormat::EXACT,
    };
    let tail = Data {
        query: vec![],
        key: data.key[8 * FULL.kv_heads * FULL.key..].to_vec(),
        value: data.value[8 * FULL.kv_heads * FULL.value..].to_vec(),
    };
    assert_eq!(device.export(&export).unwrap(), tail.host(32));
    // Taken over, here or from another device, it is the same body.
    let built = Arc::new(device.finish(&export).unwrap());
    for device in [&device, &other] {
        let mut pages = device.pages(&spec, 5, PAGE).unwrap();
        let layers = BodyLayers::empty(2);
        layers.arrive(1, device.adopt(1, &spec, &mut pages, &built).unwrap());
        let imported = BodyLayers::empty(2);
        imported.arrive(1, device.import(1, &spec, &mut pages, &tail.host(32)).unwrap());
        let [adopted, imported] = [layers, imported].map(|layers| {
            let mut run = run(0..6, vec![0], (32..38).collect());
            run.context.bodies.push(PlacedBody { layers: Arc::new(layers), start: 0, len: 32 });
            attend(device, &Data::random(9, 6), 6, vec![run], &mut pages).unwrap()
        });
        assert_eq!(adopted, imported);
    }

    // A copied page holds the same.
    device.copy_page(&mut pages, 0, 1).unwrap();
    let context = Context { pages: vec![3, 1, 4], ..live.context };
    let export = Export {
        pages: &pages,
        context: &context,
        recording: &recording,
        states: &states,
        spec: &spec,
        layer: 1,
        slot: 0,
        body: 32,
        format: TupleFormat::EXACT,
    };
    assert_eq!(device.export(&export).unwrap(), tail.host(32));
}

#[test]
fn what_can_not_be_attended_is_refused() {
    let device = poisoned(1);
    let data = Data::random(1, 4);
    let mut pages = device.pages(&spec(), 2, PAGE).unwrap();
    let with_body = |layers| {
        let mut run = run(0..4, vec![0], (10..14).collect());
        run.context.bodies.push(PlacedBody { layers: Arc::new(layers), start: 0, len: 10 });
        run
    };
    let refused = attend(&device, &data, 4, vec![with_body(BodyLayers::empty(2))], &mut pages);
    assert!(matches!(refused, Err(OpError::NotArrived { layer: 1 })));
    for wrong in [
        run(0..4, vec![2], (0..4).collect()),
        run(0..4, vec![], (0..4).collect()),
        run(0..4, vec![0], (0..3).collect()),
        run(0..4, vec![0], (4093..4097).collect()),
    ] {
        assert!(matches!(attend(&device, &data, 4, vec![wrong], &mut pages), Err(OpError::Shape { .. })));
    }
}
