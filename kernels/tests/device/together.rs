//! Ops that a device may do at once have the bits of the ops that they stand for, at numbers of rows around which forms
//! change.

use super::*;

const ROWS: [usize; 8] = [1, 2, 3, 4, 5, 7, 8, 9];
const EPS: f32 = 1e-6;

#[test]
fn a_layer_behind_its_mixer_has_the_bits_of_its_ops() {
    let (hidden, intermediate, count) = (64, 64, 13);
    let mut noise = Noise(41);
    let device = poisoned(1);
    let [router, gate] = [count, 1].map(|rows| weight(&device, &noise.many(rows * hidden), &[rows, hidden]));
    let mut matrices = |count: usize, width: usize| {
        let gate_up = weight(&device, &noise.many(count * 2 * width * hidden), &[count * 2 * width, hidden]);
        [gate_up, weight(&device, &noise.many(count * hidden * width), &[count * hidden, width])]
    };
    let ([gate_up, down], [apart_gate_up, apart_down]) = (matrices(count, intermediate), matrices(1, 96));
    let one = SharedExpert { gate_up: &apart_gate_up, down: &apart_down, gate: &gate };
    let weight = exact(&device, &noise.many(hidden), &[hidden]);
    let norm = Norm { weight: &weight, width: hidden, style: NormWeight::ZeroCentred, eps: EPS };
    for rows in ROWS {
        let [x, mixed] = [(); 2].map(|()| noise.many(rows * hidden));
        for (top, shared) in [(4, Some(&one)), (1, None), (13, None)] {
            let shape = ExpertShape { experts: count, top, intermediate, renormalise: top > 1 };
            let experts = Experts { shape, router: &router, gate_up: &gate_up, down: &down };
            let mixed = device.tensor(&mixed, hidden).unwrap();
            let run = |at_once: bool| {
                let (mut sum, mixture) = (device.tensor(&x, hidden).unwrap(), (&experts, shared));
                let added = match at_once {
                    true => device.add_mixture(&mut sum, &mixed, &norm, mixture),
                    false => add_mixture_apart(&device, &mut sum, &mixed, &norm, mixture),
                };
                added.unwrap();
                device.to_host(&sum).unwrap()
            };
            let found = run(true);
            assert!(found.iter().all(|value| value.is_finite()));
            assert_eq!(found, run(false), "{rows} rows, {top} experts each");
        }
    }
    let mut sum = device.tensor(&noise.many(hidden), hidden).unwrap();
    let mixed = device.tensor(&noise.many(hidden), hidden).unwrap();
    let shape = ExpertShape { experts: count, top: 2, intermediate, renormalise: true };
    let experts = Experts { shape, router: &gate, gate_up: &gate_up, down: &down };
    assert!(device.add_mixture(&mut sum, &mixed, &norm, (&experts, None)).is_err());
}

#[test]
fn products_of_norms_have_the_bits_of_the_two() {
    let mut noise = Noise(44);
    let device = poisoned(1);
    for hidden in [64, 288] {
        let of_norm = exact(&device, &noise.many(hidden), &[hidden]);
        let norm = Norm { weight: &of_norm, width: hidden, style: NormWeight::ZeroCentred, eps: EPS };
        let weights = [33, 64, 1].map(|outer| weight(&device, &noise.many(outer * hidden), &[outer, hidden]));
        for rows in ROWS {
            let x = device.tensor(&noise.many(rows * hidden), hidden).unwrap();
            let host = |found: [_; 3]| found.map(|found| device.to_host(&found).unwrap());
            let found = host(device.norm_linears(&x, &norm, weights.each_ref()).unwrap());
            let right = host(norm_linears_apart(&device, &x, &norm, weights.each_ref()).unwrap());
            assert!(found.iter().flatten().all(|value| value.is_finite()));
            assert_eq!(found, right, "{rows} rows of {hidden}");
        }
        let narrow = device.tensor(&noise.many(32), 32).unwrap();
        assert!(device.norm_linears(&narrow, &norm, weights.each_ref()).is_err());
    }
}

#[test]
fn a_linear_mixer_and_its_norm_have_the_bits_of_the_two() {
    let mut noise = Noise(42);
    let width = LINEAR.heads * LINEAR.value;
    let device = poisoned(1);
    let norm = exact(&device, &noise.many(LINEAR.value), &[LINEAR.value]);
    for rows in ROWS {
        let runs = || (0..rows).map(|slot| linear::plain(slot, slot..slot + 1)).collect();
        let mut states = [true, false].map(|_| linear::fresh(&device, rows));
        // From states of zeros, and from those that the first step left.
        for seed in [rows, rows + 100] {
            let data = linear::Data::random(seed as u64, rows);
            let gate = device.tensor(&noise.many(rows * width), width).unwrap();
            let gate = HeadGate { gate: &gate, weight: &norm, eps: EPS };
            let plan = Plan { ids: vec![0; rows], runs: runs() };
            let [fused, apart] = &mut states;
            let found = linear::with_input(&device, &data, |input| {
                device.linear_mixer_norm(input, &gate, &plan, fused).unwrap()
            });
            let mixed =
                linear::with_input(&device, &data, |input| device.linear_mixer(input, &plan, apart).unwrap());
            let right = device.gated_norm(&mixed, gate.gate, &norm, LINEAR.value, EPS).unwrap();
            let found = device.to_host(&found).unwrap();
            assert!(found.iter().all(|value| value.is_finite()));
            assert_eq!(found, device.to_host(&right).unwrap(), "{rows} rows");
        }
        for slot in 0..rows {
            let [fused, apart] = states.each_ref().map(|of| device.slot_state(of, slot, 0).unwrap());
            assert_eq!(fused, apart, "the state of slot {slot} of {rows}");
        }
    }
}

#[test]
fn norms_before_and_a_gate_behind_a_full_mixer_have_the_bits_of_the_three() {
    let mut noise = Noise(43);
    let width = FULL.heads * FULL.value;
    let device = poisoned(1);
    let [query, key] = [(); 2].map(|()| exact(&device, &noise.many(FULL.key), &[FULL.key]));
    let norms = HeadNorms { query: &query, key: &key, style: NormWeight::ZeroCentred, eps: EPS };
    for rows in ROWS {
        let mut pages = [true, false].map(|_| device.pages(&spec(), 2 * rows, attention::PAGE).unwrap());
        // Sequences of one row each, which then have another.
        for live in [1, 2] {
            let data = attention::Data::random((rows + live) as u64, rows);
            let gate = device.tensor(&noise.many(rows * width), width).unwrap();
            let run = |row: usize| {
                attention::run(row..row + 1, vec![2 * row, 2 * row + 1], (0..live as u32).collect())
            };
            let plan = Plan { ids: vec![0; rows], runs: (0..rows).map(run).collect() };
            let [fused, apart] = &mut pages;
            let found = attention::with_input(&device, &data, |input| {
                device.full_mixer_gated(input, (&norms, &gate), &plan, fused).unwrap()
            });
            let right = attention::with_input(&device, &data, |input| {
                full_mixer_apart(&device, input, (&norms, &gate), &plan, apart).unwrap()
            });
            let found = device.to_host(&found).unwrap();
            assert!(found.iter().all(|value| value.is_finite()));
            assert_eq!(found, device.to_host(&right).unwrap(), "{rows} rows, token {live}");
        }
    }
}
