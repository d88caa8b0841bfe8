use half::bf16;
use hypic_cuda::{Buffer, CodedMatrix, random_values};
use hypic_kernels::random::RandomMatrix;
use rand::RngExt;

use crate::run::on_devices;
use crate::truth::fresh;

#[test]
fn the_device_draws_the_bits_of_plain_rust() {
    let mut rng = fresh();
    let matrix = RandomMatrix { seed: rng.random(), shape: [7, 1001], scale: 0.02, stride: 1001 };
    let blocks = [matrix.part(&(0..3), &(0..500)), matrix.part(&(5..7), &(501..1001))];
    let expected: Vec<f32> = blocks.iter().flat_map(RandomMatrix::values).collect();
    on_devices(|device| {
        let mut exact = Buffer::from_slice(device, &vec![f32::NAN; expected.len()]).unwrap();
        random_values(device, &blocks, &mut exact).unwrap();
        assert_eq!(exact.read().unwrap(), expected);
        let mut narrow = Buffer::from_slice(device, &vec![bf16::NAN; expected.len()]).unwrap();
        random_values(device, &blocks, &mut narrow).unwrap();
        let rounded: Vec<bf16> = expected.iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(narrow.read().unwrap(), rounded);
        assert!(random_values(device, &blocks[..1], &mut exact).is_err());
    });
}

#[test]
fn the_device_draws_the_codes_of_plain_rust() {
    let mut rng = fresh();
    let matrix = RandomMatrix { seed: rng.random(), shape: [7, 256], scale: 0.02, stride: 256 };
    let blocks = [matrix.part(&(0..3), &(64..192)), matrix.part(&(5..7), &(128..256))];
    let expected = RandomMatrix::coded(&blocks).unwrap();
    let factor = RandomMatrix::factor_of(&blocks).unwrap();
    on_devices(|device| {
        let found = CodedMatrix::random(device, &blocks, factor).unwrap().unwrap();
        let mut values = Buffer::from_slice(device, &vec![f32::NAN; 5 * 128]).unwrap();
        found.widen(device, &mut values).unwrap();
        assert!(values.read().unwrap().into_iter().eq(expected.values()));
        assert!(CodedMatrix::random(device, &[matrix.part(&(0..3), &(0..96))], factor).unwrap().is_none());
    });
}
