use half::bf16;
use hypic_cuda::{Buffer, add_rows, bounds, choose_experts, gather_rows, sigmoid_gate, swiglu, top_logits};
use rand::RngExt;

use crate::run::{assert_close, bits, on_devices};
use crate::truth::{fresh, normal};

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|x| f64::from(x.to_f32())).collect()
}

fn narrow(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

#[test]
fn element_wise_rows_equal_f64_at_odd_sizes() {
    let mut rng = fresh();
    let (rows, width) = (7, 1000);
    let mut random =
        |len: usize| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(normal(&mut rng))).collect() };
    let (x, y, both) = (random(rows * width), random(rows * width), random(2 * rows * width));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (wx, wy, wb) = (wide(&x), wide(&y), wide(&both));
    let sum: Vec<f64> = wx.iter().zip(&wy).map(|(x, y)| x + y).collect();
    let gated: Vec<f64> = wx.iter().zip(&wy).map(|(x, y)| x * sigmoid(*y)).collect();
    let glu: Vec<f64> = (0..rows * width)
        .map(|i| {
            let at = i / width * 2 * width + i % width;
            wb[at] * sigmoid(wb[at]) * wb[at + width]
        })
        .collect();
    let ids: Vec<u32> = vec![6, 0, 3, 3];
    let gathered: Vec<f64> = ids.iter().flat_map(|&id| wx[id as usize * width..][..width].to_vec()).collect();
    on_devices(|device| {
        let [y, both, table] = [&y, &both, &x].map(|values| Buffer::from_slice(device, values).unwrap());
        let [mut added, mut scaled] = [(); 2].map(|()| Buffer::from_slice(device, &x).unwrap());
        let nan = |len: usize| Buffer::from_slice(device, &vec![bf16::NAN; len]).unwrap();
        let (mut glu_out, mut picked) = (nan(rows * width), nan(ids.len() * width));
        add_rows(device, &mut added, &y).unwrap();
        sigmoid_gate(device, &mut scaled, &y).unwrap();
        swiglu(device, &both, width, &mut glu_out).unwrap();
        gather_rows(device, &table, &ids, width, &mut picked).unwrap();
        let found = [added, scaled, glu_out, picked].map(|buffer| narrow(&buffer.read().unwrap()));
        for (found, expected) in found.iter().zip([&sum, &gated, &glu, &gathered]) {
            assert_close("rows", found.iter().copied(), expected, bounds::BF16);
        }
        assert!(
            gather_rows(device, &table, &[7], width, &mut nan(width)).is_err(),
            "an id outside the table"
        );
        found
    });
}

#[test]
fn a_logit_that_is_not_finite_leaves_its_row_without_a_sum() {
    let mut rng = fresh();
    let (rows, width) = (4, 9500);
    let mut logits: Vec<f32> = (0..rows * width).map(|_| normal(&mut rng)).collect();
    for (row, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
        logits[row * width + rng.random_range(0..width)] = bad;
    }
    on_devices(|device| {
        let buffer = Buffer::from_slice(device, &logits).unwrap();
        let top = top_logits(device, &buffer, width, 1).unwrap().read().unwrap();
        let sums: Vec<f32> = top.iter().map(|row| row.log_sum).collect();
        assert!(sums[..3].iter().all(|sum| sum.is_nan()) && sums[3].is_finite(), "{sums:?}");
        bits(&sums[3..])
    });
}

/// The `most` largest of a row, largest first, equal ones by number.
fn largest(row: &[f32], most: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    order.truncate(most);
    order
}

#[test]
fn experts_and_candidates_are_the_largest_logits_and_ties_go_by_number() {
    let mut rng = fresh();
    for (rows, width, most) in [(5, 256, 8), (3, 33, 2), (2, 1000, 5), (1, 1, 1), (2, 9000, 7)] {
        // Few different values, so that there are ties.
        let logits: Vec<f32> = (0..rows * width).map(|_| rng.random_range(-20..20) as f32 / 4.0).collect();
        let chosen: Vec<u32> = logits.chunks(width).flat_map(|row| largest(row, most)).collect();
        let sums: Vec<f64> =
            logits.chunks(width).map(|row| row.iter().map(|&x| f64::from(x).exp()).sum()).collect();
        let shares: Vec<f64> = (0..rows * most)
            .map(|i| f64::from(logits[i / most * width + chosen[i] as usize]).exp() / sums[i / most])
            .collect();
        let normal: Vec<f64> = shares
            .chunks(most)
            .flat_map(|row| row.iter().map(|x| x / row.iter().sum::<f64>()).collect::<Vec<_>>())
            .collect();
        on_devices(|device| {
            let buffer = Buffer::from_slice(device, &logits).unwrap();
            let mut found = Vec::new();
            // No mixture has so many.
            let forms = [(false, &shares), (true, &normal)].into_iter().filter(|_| width <= 1024);
            for (renormalise, expected) in forms {
                let experts = choose_experts(device, &buffer, width, most, renormalise).unwrap();
                assert_eq!(experts.chosen.read().unwrap(), chosen);
                let weights = experts.weights.read().unwrap();
                assert_close("weights", weights.iter().copied(), expected, bounds::ELEMENTWISE);
                found.push(bits(&weights));
            }
            let top = top_logits(device, &buffer, width, most).unwrap().read().unwrap();
            let largest: Vec<(u32, f32)> = top.iter().flat_map(|row| row.largest.clone()).collect();
            let right =
                chosen.iter().enumerate().map(|(i, &id)| (id, logits[i / most * width + id as usize]));
            assert_eq!(largest, right.collect::<Vec<_>>());
            let log_sum: Vec<f32> = top.iter().map(|row| row.log_sum).collect();
            let expected: Vec<f64> = sums.iter().map(|sum| sum.ln()).collect();
            assert_close("log sum", log_sum.iter().copied(), &expected, bounds::ELEMENTWISE);
            found.push(bits(&log_sum));
            found
        });
    }
}
