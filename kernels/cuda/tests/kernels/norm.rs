use half::bf16;
use hypic_cuda::{Buffer, RmsNorm, bounds, gated_norm, gates, rms_norm, unit_norm};
use rand::RngExt;

use crate::run::{assert_close, on_devices};
use crate::truth::{fresh, nan, normal};

const EPS: f32 = 1e-6;

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|x| f64::from(x.to_f32())).collect()
}

fn narrow(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|x| x.to_f32()).collect()
}

#[test]
fn norms_equal_f64_at_odd_widths() {
    let mut rng = fresh();
    let mut random =
        |len: usize| -> Vec<bf16> { (0..len).map(|_| bf16::from_f32(normal(&mut rng))).collect() };
    for (rows, width) in [(7, 1000), (5, 63), (3, 128)] {
        let (x, z, weight) = (random(rows * width), random(rows * width), random(width));
        let (wx, wz, ww) = (wide(&x), wide(&z), wide(&weight));
        let squares: Vec<f64> = wx.chunks(width).map(|row| row.iter().map(|x| x * x).sum()).collect();
        let scale: Vec<f64> =
            squares.iter().map(|s| 1.0 / (s / width as f64 + f64::from(EPS)).sqrt()).collect();
        let each = |f: &dyn Fn(usize) -> f64| (0..rows * width).map(f).collect::<Vec<_>>();
        let zero_centred = each(&|i| wx[i] * scale[i / width] * (1.0 + ww[i % width]));
        let gated = each(&|i| wx[i] * scale[i / width] * ww[i % width] * wz[i] / (1.0 + (-wz[i]).exp()));
        let unit = each(&|i| 0.125 * wx[i] / (squares[i / width] + f64::from(EPS)).sqrt());
        on_devices(|device| {
            let [x, z] = [&x, &z].map(|values| Buffer::from_slice(device, values).unwrap());
            let weight = Buffer::from_slice(device, &narrow(&weight)).unwrap();
            let mut outputs =
                [(); 3].map(|()| Buffer::from_slice(device, &vec![bf16::NAN; rows * width]).unwrap());
            let norm = RmsNorm { weight: &weight, offset: 1.0, eps: EPS };
            rms_norm(device, &x, norm, &mut outputs[0]).unwrap();
            gated_norm(device, &x, &z, &weight, &mut outputs[1], EPS).unwrap();
            unit_norm(device, &x, &mut outputs[2], width, 0.125, EPS).unwrap();
            let outputs = outputs.map(|y| narrow(&y.read().unwrap()));
            for (y, expected) in outputs.iter().zip([&zero_centred, &gated, &unit]) {
                assert_close("norm", y.iter().copied(), expected, bounds::BF16);
            }
            outputs
        });
    }
}

#[test]
fn gates_equal_f64() {
    let mut rng = fresh();
    let (rows, heads) = (65, 3);
    let [a, b] = [(); 2]
        .map(|()| (0..rows * heads).map(|_| bf16::from_f32(10.0 * normal(&mut rng))).collect::<Vec<_>>());
    let a_log: Vec<f32> = (0..heads).map(|_| rng.random_range(-6.0..2.0)).collect();
    let dt_bias: Vec<f32> = (0..heads).map(|_| normal(&mut rng)).collect();
    let gate: Vec<f64> = wide(&a)
        .iter()
        .enumerate()
        .map(|(i, a)| -f64::from(a_log[i % heads]).exp() * (a + f64::from(dt_bias[i % heads])).exp().ln_1p())
        .collect();
    let beta: Vec<f64> = wide(&b).iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect();
    on_devices(|device| {
        let (mut found_gate, mut found_beta) = (nan(device, rows * heads), nan(device, rows * heads));
        let [a, b] = [&a, &b].map(|values| Buffer::from_slice(device, values).unwrap());
        let [a_log, dt_bias] = [&a_log, &dt_bias].map(|values| Buffer::from_slice(device, values).unwrap());
        gates(device, [&a, &b], [&a_log, &dt_bias], &mut found_gate, &mut found_beta).unwrap();
        let (found_gate, found_beta) = (found_gate.read().unwrap(), found_beta.read().unwrap());
        assert_close("gate", found_gate.iter().copied(), &gate, bounds::ELEMENTWISE);
        assert_close("beta", found_beta.iter().copied(), &beta, bounds::ELEMENTWISE);
        (found_gate, found_beta)
    });
}
