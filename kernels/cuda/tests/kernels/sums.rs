use half::bf16;
use hypic_cuda::{Buffer, Device, Float, Fresh, bounds, sum_ranks};

use crate::run::{assert_close, bits, on_devices, peer};
use crate::truth::{fresh, normal};

/// Sums of as many ranks as there are `parts`, with and without a base: what every rank has, as bits.
fn sums<E: Float>(device: &Device, parts: &[Vec<f32>], base: &[f32], bound: f64) -> Vec<Vec<u32>> {
    let devices: Vec<Device> = (0..parts.len()).map(|rank| peer(device, rank)).collect();
    Device::link(&devices.iter().collect::<Vec<_>>()).unwrap();
    let narrow = |values: &[f32]| -> Vec<E> { values.iter().map(|&value| E::narrow(value)).collect() };
    let on = |device: &Device, values: &[f32]| Buffer::from_slice(device, &narrow(values)).unwrap();
    let held: Vec<Buffer<E>> = devices.iter().zip(parts).map(|(device, part)| on(device, part)).collect();
    let bases: Vec<Buffer<E>> = devices.iter().map(|device| on(device, base)).collect();
    let (held, bases): (Vec<_>, Vec<_>) = (held.iter().collect(), bases.iter().collect());
    let mut found = Vec::new();
    for added in [None, Some(bases.as_slice())] {
        let exact = |i: usize| {
            let start = if added.is_some() { E::narrow(base[i]).wide() } else { 0.0 };
            parts.iter().fold(f64::from(start), |sum, part| sum + f64::from(E::narrow(part[i]).wide()))
        };
        let expected: Vec<f64> = (0..base.len()).map(exact).collect();
        let sums = sum_ranks(added, &held, Fresh::Poison).unwrap();
        let wide = |sum: &Buffer<E>| -> Vec<f32> { sum.read().unwrap().into_iter().map(E::wide).collect() };
        let ranks: Vec<Vec<f32>> = sums.iter().map(wide).collect();
        for values in &ranks {
            assert_eq!(bits(values), bits(&ranks[0]), "ranks differ");
            assert_close("sums", values.iter().copied(), &expected, bound);
        }
        found.push(bits(&ranks[0]));
    }
    found
}

#[test]
fn every_rank_gets_the_same_sum_at_odd_sizes() {
    let mut rng = fresh();
    for (ranks, units) in [(1, 3), (2, 1), (2, 4097), (3, 129), (16, 200)] {
        let mut random = |len: usize| -> Vec<f32> { (0..len).map(|_| normal(&mut rng)).collect() };
        let parts: Vec<Vec<f32>> = (0..ranks).map(|_| random(8 * units)).collect();
        let base = random(8 * units);
        on_devices(|device| {
            let wide = sums::<f32>(device, &parts, &base, bounds::ELEMENTWISE);
            (wide, sums::<bf16>(device, &parts, &base, bounds::BF16))
        });
    }
}

#[test]
fn sums_that_do_not_fit_are_refused() {
    on_devices(|device| {
        let of = |len: usize| Buffer::from_slice(device, &vec![1.0_f32; len]).unwrap();
        let (four, eight, five) = (of(4), of(8), of(5));
        assert!(sum_ranks::<f32>(None, &[], Fresh::Anything).is_err());
        assert!(sum_ranks(None, &[&four; 17], Fresh::Anything).is_err());
        assert!(sum_ranks(None, &[&four, &eight], Fresh::Anything).is_err());
        assert!(sum_ranks(None, &[&five, &five], Fresh::Anything).is_err());
        assert!(sum_ranks(Some(&[&four]), &[&four, &four], Fresh::Anything).is_err());
        assert!(sum_ranks(Some(&[&eight, &four]), &[&four, &four], Fresh::Anything).is_err());
    });
}
