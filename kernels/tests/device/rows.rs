use super::*;

#[test]
fn row_ops_equal_the_reference_on_one_and_on_two_threads() {
    let mut noise = Noise(1);
    for (rows, threads) in [(1, 1), (7, 2), (65, 2), (1000, 1), (1000, 2)] {
        let device = poisoned(threads);
        let (x, y) = (noise.many(rows * 96), noise.many(rows * 96));
        let (tx, ty) = (device.tensor(&x, 96).unwrap(), device.tensor(&y, 96).unwrap());
        let vector = noise.many(48);
        let placed = exact(&device, &vector, &[48]);
        for style in [NormWeight::ZeroCentred, NormWeight::Plain] {
            let found = device.rms_norm(&tx, &placed, 48, style, 1e-6).unwrap();
            within(
                Compared::Rows,
                &device.to_host(&found).unwrap(),
                &reference::rms_norm(&x, &vector, style, 1e-6),
            );
        }
        let found = device.gated_norm(&tx, &ty, &placed, 48, 1e-6).unwrap();
        within(
            Compared::Rows,
            &device.to_host(&found).unwrap(),
            &reference::gated_norm(&x, &y, &vector, 1e-6),
        );
        let found = device.swiglu(&tx).unwrap();
        within(Compared::Rows, &device.to_host(&found).unwrap(), &reference::swiglu(&x, 48));
        let mut sum = device.tensor(&x, 96).unwrap();
        device.add(&mut sum, &ty).unwrap();
        let right: Vec<f64> = x.iter().zip(&y).map(|(&x, &y)| f64::from(x + y)).collect();
        within(Compared::Rows, &device.to_host(&sum).unwrap(), &right);
        let mut gated = device.tensor(&x, 96).unwrap();
        device.sigmoid_gate(&mut gated, &ty).unwrap();
        let gate = |(&x, &y): (&f32, &f32)| f64::from(x) / (1.0 + (-f64::from(y)).exp());
        within(
            Compared::Rows,
            &device.to_host(&gated).unwrap(),
            &x.iter().zip(&y).map(gate).collect::<Vec<_>>(),
        );
        let gates = noise.many(rows);
        let mut gated = device.tensor(&x, 96).unwrap();
        device.sigmoid_gate(&mut gated, &device.tensor(&gates, 1).unwrap()).unwrap();
        let gate = |(i, &x): (usize, &f32)| f64::from(x) / (1.0 + (-f64::from(gates[i / 96])).exp());
        let right: Vec<f64> = x.iter().enumerate().map(gate).collect();
        within(Compared::Rows, &device.to_host(&gated).unwrap(), &right);
        let mut sum = device.tensor(&x, 96).unwrap();
        let wide = noise.many(96);
        let norm = exact(&device, &wide, &[96]);
        let found = device.add_norm(&mut sum, &ty, (&norm, 96), NormWeight::ZeroCentred, 1e-6).unwrap();
        let sum = device.to_host(&sum).unwrap();
        within(Compared::Rows, &sum, &x.iter().zip(&y).map(|(&x, &y)| f64::from(x + y)).collect::<Vec<_>>());
        let right = reference::rms_norm(&sum, &wide, NormWeight::ZeroCentred, 1e-6);
        within(Compared::Rows, &device.to_host(&found).unwrap(), &right);
        let several = [1, 50, 33].map(|out| noise.many(out * 96));
        let placed = several.each_ref().map(|values| weight(&device, values, &[values.len() / 96, 96]));
        let found = device.linears(&tx, placed.each_ref()).unwrap();
        for (found, values) in found.iter().zip(&several) {
            within(Compared::Linear, &device.to_host(found).unwrap(), &reference::linear(&x, values, 96));
        }
        for out in [1, 16, 50, 700] {
            let matrix = noise.many(out * 96);
            let placed = weight(&device, &matrix, &[out, 96]);
            let right = reference::linear(&x, &matrix, 96);
            let found = device.linear(&tx, &placed).unwrap();
            within(Compared::Linear, &device.to_host(&found).unwrap(), &right);
            // Scores are sums in fp32 whatever the device computes in, and the inputs are exact in every format.
            let found = device.scores(&tx, &placed, &vec![Need::all(); rows]).unwrap();
            let found: Vec<f32> = found.into_iter().filter_map(Logits::into_all).flatten().collect();
            assert!(error(&found, &right) <= bound(Compared::Linear, Dtype::F32));
            if rows > 65 {
                continue;
            }
            portions_of_scores(&device, (&tx, &placed), &found, out);
        }
    }
}

/// Every need of the scores of `x` by `weight`, against what is needed of `rows`, which are all of them.
fn portions_of_scores(
    device: &TestDevice,
    (x, weight): (&<TestDevice as Device>::Tensor, &<TestDevice as Device>::Weight),
    rows: &[f32],
    width: usize,
) {
    let draw = |uniform| Portion::Draw { temperature: 0.8, uniform, largest: 2 };
    let nucleus = |top_p, largest| Portion::Nucleus { temperature: 0.3, top_p, largest };
    let portions = [
        Portion::Largest(1),
        draw(0.3),
        Portion::All,
        nucleus(0.8, 0),
        draw(0.0),
        Portion::Largest(9),
        nucleus(0.97, 3),
        draw(0.9),
    ];
    let addends =
        Arc::new(vec![(0, MASKED), (width as u32 / 2 + 1, 2.5), (width as u32, 1.0), (u32::MAX, 1.0)]);
    let need = |(row, portion): (usize, Portion)| match row % 3 {
        0 => Need { portion, addends: Arc::clone(&addends) },
        _ => portion.into(),
    };
    let count = rows.len() / width;
    let needs: Vec<Need> = (0..count).zip(portions.into_iter().cycle()).map(need).collect();
    let found = device.scores(x, weight, &needs).unwrap();
    assert!(device.scores(x, weight, &needs[1..]).is_err());
    for ((found, row), need) in found.iter().zip(rows.chunks_exact(width)).zip(&needs) {
        let landed = |of: &Logits| match of {
            Logits::Largest { largest, log_sum } => (None, largest.clone(), *log_sum, 0.0),
            Logits::Drawn { drawn, largest, log_sum } => (*drawn, largest.clone(), *log_sum, 0.0),
            Logits::Nucleus { largest, log_sum, weight } => (None, largest.clone(), *log_sum, *weight),
            Logits::All(row) => (None, row.iter().map(|x| (0, *x)).collect(), 0.0, 0.0),
        };
        let (drawn, part, sum, weight) = landed(found);
        let (right_drawn, right, right_sum, right_weight) = landed(&Logits::of_row(row, need));
        assert_eq!((drawn, part), (right_drawn, right), "{need:?}");
        let near = |x: f64, y: f64| (x - y).abs() < 1e-5 * (1.0 + y.abs());
        assert!(near(sum, right_sum) && near(weight, right_weight), "{found:?} for {need:?}");
    }
}

#[test]
fn rows_are_looked_up_and_selected() {
    let device = poisoned(1);
    let table = Noise(2).many(37 * 24);
    let placed = weight(&device, &table, &[37, 24]);
    let rows = device.embed(&placed, &[36, 0, 17]).unwrap();
    let right: Vec<f32> =
        [36, 0, 17].iter().flat_map(|row| &table[row * 24..(row + 1) * 24]).copied().collect();
    assert_eq!(device.to_host(&rows).unwrap(), right);
    assert_eq!(
        device.to_host(&device.select(&rows, &[2, 2]).unwrap()).unwrap(),
        [&right[48..], &right[48..]].concat()
    );
    assert!(matches!(device.embed(&placed, &[37]), Err(OpError::Shape { .. })));
    assert!(matches!(device.select(&rows, &[3]), Err(OpError::Shape { .. })));
}

#[test]
fn half_precision_weights_are_widened_exactly() {
    let device = poisoned(1);
    // 1.5 in bf16 and in f16.
    for (dtype, bytes) in [(Dtype::Bf16, [0xc0, 0x3f]), (Dtype::F16, [0x00, 0x3e])] {
        let host = HostTensor {
            name: "w",
            shape: vec![1, 2],
            dtype,
            bytes: &[bytes, bytes].concat(),
            split: Split::Whole,
        };
        let found =
            device.linear(&device.tensor(&[1.0, 2.0], 2).unwrap(), &device.weight(&host).unwrap()).unwrap();
        assert_eq!(device.to_host(&found).unwrap(), [4.5]);
    }
    let short =
        HostTensor { name: "w", shape: vec![1, 2], dtype: Dtype::F32, bytes: &[0; 4], split: Split::Whole };
    assert!(device.weight(&short).is_err());
}

#[test]
fn rows_go_to_the_experts_that_they_chose() {
    // As wide as a tile of the kernels, and ragged in everything else; one expert is never chosen.
    let (hidden, intermediate, count) = (64, 64, 13);
    let mut noise = Noise(31);
    let mut router = noise.many(count * hidden);
    router[..hidden].fill(0.0);
    let gate_up = noise.many(count * 2 * intermediate * hidden);
    let down = noise.many(count * hidden * intermediate);
    for (rows, top, renormalise, threads) in [(1, 4, true, 1), (7, 1, false, 1), (300, 5, true, 2)] {
        let device = poisoned(threads);
        let shape = ExpertShape { experts: count, top, intermediate, renormalise };
        let x = noise.many(rows * hidden);
        let experts = Experts {
            shape,
            router: &weight(&device, &router, &[count, hidden]),
            gate_up: &weight(&device, &gate_up, &[count * 2 * intermediate, hidden]),
            down: &weight(&device, &down, &[count * hidden, intermediate]),
        };
        let right = reference::experts(&x, hidden, shape, [&router, &gate_up, &down]);
        let tensor = |values: &[f32]| device.tensor(values, hidden).unwrap();
        let found = device.experts(&tensor(&x), &experts).unwrap();
        within(Compared::Linear, &device.to_host(&found).unwrap(), &right);
        let last = device.experts(&tensor(&x[(rows - 1) * hidden..]), &experts).unwrap();
        within(Compared::Linear, &device.to_host(&last).unwrap(), &right[(rows - 1) * hidden..]);
        let wrong = Experts { shape: ExpertShape { experts: count + 1, ..shape }, ..experts };
        assert!(matches!(device.experts(&tensor(&x), &wrong), Err(OpError::Shape { .. })));
    }
}

#[test]
fn what_the_experts_and_the_shared_one_say_is_added() {
    let (hidden, intermediate, apart, count) = (64, 64, 96, 13);
    let mut noise = Noise(32);
    let router = noise.many(count * hidden);
    let mut matrices = |count: usize, width: usize| {
        [noise.many(count * 2 * width * hidden), noise.many(count * hidden * width)]
    };
    let (routed, shared) = (matrices(count, intermediate), matrices(1, apart));
    let gate = noise.many(hidden);
    for (rows, top, renormalise) in
        [(1, 4, true), (2, 1, false), (10, 5, true), (12, 2, false), (65, 3, true)]
    {
        let device = poisoned(1);
        let shape = ExpertShape { experts: count, top, intermediate, renormalise };
        let (x, into) = (noise.many(rows * hidden), noise.many(rows * hidden));
        let [gate_up, down] = &routed;
        let [shared_gate_up, shared_down] = &shared;
        let experts = Experts {
            shape,
            router: &weight(&device, &router, &[count, hidden]),
            gate_up: &weight(&device, gate_up, &[count * 2 * intermediate, hidden]),
            down: &weight(&device, down, &[count * hidden, intermediate]),
        };
        let one = SharedExpert {
            gate_up: &weight(&device, shared_gate_up, &[2 * apart, hidden]),
            down: &weight(&device, shared_down, &[hidden, apart]),
            gate: &weight(&device, &gate, &[1, hidden]),
        };
        let said = reference::experts(&x, hidden, shape, [&router, gate_up, down]);
        // A mixture of one expert is that expert.
        let alone = ExpertShape { experts: 1, top: 1, intermediate: apart, renormalise: true };
        let said_apart = reference::experts(&x, hidden, alone, [&gate, shared_gate_up, shared_down]);
        let share = |row: usize| 1.0 / (1.0 + (-reference::linear(&x, &gate, hidden)[row]).exp());
        let shares: Vec<f64> = (0..rows).map(share).collect();
        let add = |x: &Tensor, of: Option<&SharedExpert<'_, TestDevice>>, first: usize| {
            let mut sum = device.tensor(&into[first * hidden..], hidden).unwrap();
            device.add_experts(&mut sum, x, &experts, of).unwrap();
            device.to_host(&sum).unwrap()
        };
        for of in [None, Some(&one)] {
            let right: Vec<f64> = (0..rows * hidden)
                .map(|i| {
                    let apart = if of.is_some() { shares[i / hidden] * said_apart[i] } else { 0.0 };
                    f64::from(into[i]) + said[i] + apart
                })
                .collect();
            let found = add(&device.tensor(&x, hidden).unwrap(), of, 0);
            within(Compared::Linear, &found, &right);
            let last = device.tensor(&x[(rows - 1) * hidden..], hidden).unwrap();
            within(Compared::Linear, &add(&last, of, rows - 1), &right[(rows - 1) * hidden..]);
        }
        let wrong = SharedExpert { gate: experts.router, ..one };
        let mut sum = device.tensor(&into, hidden).unwrap();
        let x = device.tensor(&x, hidden).unwrap();
        assert!(device.add_experts(&mut sum, &x, &experts, Some(&wrong)).is_err());
    }
}
